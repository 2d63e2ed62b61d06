"""The network of the suites `mlp…`, 784-H-H-10: training steps in numbanet, PyTorch and scikit-learn, and a float64 reference.

All have the same model, optimiser and batches, selected by index from the data set.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import steps
from ..machinery.harness import Implementation, Options
from ..machinery.worker import Task, torch_on
from . import BATCH, CLASSES, FEATURES, MOMENTUM, RATE, TOLERANCE

SAMPLES = 20000  # 63 MB: more than a cache, like a real data set
LEAST_STEPS = 20  # n steps of a turn, because the cost of a step under a random pattern is random
KINK = 1e-6  # a pre-activation of smaller magnitude can have the other sign in float32


# --- what both sides share --------------------------------------------------------------------------------------------
def initial_weights(hidden: int, seed: int = 0) -> list[np.ndarray]:
    """w1, b1, w2, b2, w3, b3: He-uniform weights. Biases are not zero, so that a wrong bias changes the result."""
    rng, widths, weights = np.random.default_rng(seed), (FEATURES, hidden, hidden, CLASSES), []
    for n_in, n_out in zip(widths, widths[1:], strict=False):
        bound = np.sqrt(6 / n_in)
        weights += [
            rng.uniform(-bound, bound, (n_out, n_in)).astype(np.float32),
            rng.uniform(-0.1, 0.1, n_out).astype(np.float32),
        ]
    return weights


@functools.lru_cache(maxsize=1)
def samples(count: int = SAMPLES, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """X (count, 784), y (count,): random labels, and inputs in [0, 1) of which four in five are 0, as in MNIST's images."""
    rng = np.random.default_rng(seed)
    X = rng.random((count, FEATURES), np.float32)
    X[rng.random(X.shape, np.float32) < 0.8] = 0
    return X, rng.integers(CLASSES, size=count).astype(np.int32)


# --- numbanet ---------------------------------------------------------------------------------------------------------
def numbanet_task(device: str, hidden: int, dropout: str, rate: float, batch: int = BATCH, replayed: bool = True) -> Task:
    """Task: training steps by numbanet's Stepper. If not `replayed`, Python launches each kernel of each step."""
    from numbanet import device as named

    dev = named(device)

    def make():
        return _trainer(dev, hidden, dropout, rate, batch, replayed)

    return steps.numbanet_steps(dev, *samples(), batch, make, described(batch))


def described(batch: int) -> Any:
    """A function describe(stepper, plans of some steps) that returns what the reference must know of these steps."""

    def describe(stepper, drawn):
        owners, shuffle = stepper.tree.owners, getattr(stepper.model.layers[0], "order", None)
        layers = [owners[site.path] for site in stepper.tree.droppable()]
        by_layer = [[plans.of(layer, "tiles") or plans.of(layer) for layer in layers] for plans in drawn]
        return {
            "order": slice(None) if shuffle is None else shuffle.order,
            "mean": 0.0 if shuffle is None else shuffle.mean,
            "factors": [[_factors(plan, batch) for plan in plans] for plans in by_layer],
        }

    return describe


def _trainer(dev: Any, hidden: int, dropout: str, rate: float, batch: int, replayed: bool) -> Any:
    """A Stepper of the network with the shared initial weights."""
    from numbanet.dropout import policy
    from numbanet.training.sgd import SGD
    from numbanet.training.stepper import Stepper
    from numbanet.training.streams import Streams
    from numbanet.training.task import Classification

    chosen = policy(dropout, rate)
    model = network(hidden, dev, chosen.mixes_features)
    for parameter, values in zip(model.parameters(), initial_weights(hidden), strict=True):
        dev.copy(dev.upload(values), out=parameter.data)
    optimizer = SGD(model.parameters(), RATE, MOMENTUM)
    stepper = Stepper(model, optimizer, chosen, Classification(), Streams.from_seed(3), dev, batch)
    stepper.recorder.possible &= replayed
    return stepper


def network(hidden: int, dev: Any = "cpu", shuffle: bool = False) -> Any:
    """The layers 784-H-H-10 with ReLU, as Net builds them."""
    from numbanet.layers import Linear, ReLU, Sequential, Shuffle

    before = [Shuffle(np.random.default_rng(4).permutation(FEATURES), samples()[0].mean(axis=0))] if shuffle else []
    return Sequential(
        [
            *before,
            Linear(FEATURES, hidden, device=dev),
            ReLU(),
            Linear(hidden, hidden, device=dev),
            ReLU(),
            Linear(hidden, CLASSES, device=dev),
        ]
    )


def _factors(plan: Any, batch: int) -> tuple[Any, Any]:
    """(factor of the weight, factor of the activation) that are equivalent to a plan in a dense layer."""
    from numbanet.plans import AxisPlan, BernoulliPlan, SamplePlan
    from numbanet_kernels.families.random import dropout_reference

    if plan is None:
        return 1.0, 1.0
    if isinstance(plan, BernoulliPlan):
        return 1.0, dropout_reference(np.ones((batch, plan.n)), plan.rate, plan.key, 0, plan.scale)
    factor = plan.mask() * plan.scale
    return (1.0, factor) if isinstance(plan, (AxisPlan, SamplePlan)) else (factor, 1.0)


# --- PyTorch ----------------------------------------------------------------------------------------------------------
def torch_task(
    device: str, hidden: int, rate: float | None, batch: int = BATCH, tf32: bool = False, compiled: bool = False
) -> Task:
    """Task: training steps in PyTorch, with nn.Dropout(rate) after each hidden activation unless the rate is None. If
    `compiled`, the timed steps compile model and loss to CUDA graphs; the checked steps are eager, because hooks must read the
    masks."""
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    fed = steps.torch_batches(torch, device, *samples(), batch)
    model, optimizer = _torch_model(torch, device, hidden, rate)

    def loss_with(model):
        return lambda x, labels: torch.nn.functional.cross_entropy(model(x), labels)

    timed = torch.compile(loss_with(model), mode="reduce-overhead") if compiled else loss_with(model)

    feed = fed()

    def step(loss_of=timed, optimizer=optimizer, feed=feed):
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        x, labels = next(feed)
        optimizer.zero_grad()
        loss_of(x, labels).backward()
        optimizer.step()

    for _ in range(3 if compiled else 0):  # compile and capture before timing
        step()

    def outputs():
        fresh, fresh_optimizer = _torch_model(torch, device, hidden, rate)
        feed, factors = fed(), [[] for _ in range(steps.CHECKED)]
        for drawn in factors:

            def record(layer, x, out, drawn=drawn):
                """Read the mask from the output. Zeros of ReLU count as dropped, which changes neither outputs nor
                gradients."""
                drawn.append((1.0, (out != 0).cpu().numpy() / (1 - layer.p)))

            hooks = [layer.register_forward_hook(record) for layer in fresh if isinstance(layer, torch.nn.Dropout)]
            step(loss_with(fresh), fresh_optimizer, feed)
            for hook in hooks:
                hook.remove()
        return {
            "weights": [p.detach().cpu().numpy() for p in fresh.parameters()],
            "factors": [drawn or [(1.0, 1.0)] * 2 for drawn in factors],
        }

    return Task(step, outputs, **torch_on(torch, device))


def _torch_model(torch: Any, device: str, hidden: int, rate: float | None) -> tuple[Any, Any]:
    """The network with the shared initial weights, and its optimiser."""
    layers = []
    for n_in, n_out in ((FEATURES, hidden), (hidden, hidden)):
        layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        layers += [] if rate is None else [torch.nn.Dropout(rate)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(hidden, CLASSES)).to(device)
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), initial_weights(hidden), strict=True):
            parameter.copy_(torch.from_numpy(values))
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


# --- scikit-learn -----------------------------------------------------------------------------------------------------
def sklearn_task(hidden: int, batch: int = BATCH) -> Task:
    """Task: training steps of MLPClassifier by `partial_fit` on one batch after another."""
    X, y = samples()
    feed, model = steps.batches(SAMPLES, batch), _sklearn_model(hidden, batch)

    def step(model=model, feed=feed):
        rows = next(feed)
        model.partial_fit(X[rows], y[rows])

    def outputs():
        fresh, feed = _sklearn_model(hidden, batch), steps.batches(SAMPLES, batch)
        for _ in range(steps.CHECKED):
            step(fresh, feed)
        weights = [np.asarray(p) for pair in zip(fresh.coefs_, fresh.intercepts_, strict=True) for p in pair]
        return {"weights": [p.T if p.ndim == 2 else p for p in weights], "factors": [[(1.0, 1.0)] * 2] * steps.CHECKED}

    return Task(step, outputs)


def _sklearn_model(hidden: int, batch: int) -> Any:
    """The network with the shared initial weights. scikit-learn creates weights in its first step; they are then replaced."""
    from sklearn.neural_network import MLPClassifier

    X, y = samples()
    model = MLPClassifier(
        (hidden, hidden),
        solver="sgd",
        alpha=0.0,
        batch_size=batch,
        learning_rate_init=RATE,
        momentum=MOMENTUM,
        nesterovs_momentum=False,
        random_state=0,
    )
    model.partial_fit(X[:batch], y[:batch], classes=np.arange(CLASSES))
    values = initial_weights(hidden)
    for parameter, value in zip((*model.coefs_, *model.intercepts_), (*(w.T for w in values[::2]), *values[1::2]), strict=True):
        parameter[...] = value
    for velocity in model._optimizer.velocities:
        velocity[...] = 0
    return model


# --- reference --------------------------------------------------------------------------------------------------------
def reference_steps(
    hidden: int,
    batch: int,
    factors: Sequence[Sequence[tuple[Any, Any]]],
    order: np.ndarray | slice = slice(None),
    mean: np.ndarray | float = 0.0,
    kink: float = 0.0,
) -> list[np.ndarray]:
    """Weights after the first n steps, by dense products with masks in float64.

    Parameters
    ----------
    factors
        By step and hidden layer: (factor of the weight, factor of the activation).
    order, mean
        The input is X - mean with its columns in this order.
    kink
        The gradient of ReLU at z is 1 if z > kink, else 0.
    """
    weights = [np.float64(w) for w in initial_weights(hidden)]
    velocity = [np.zeros_like(w) for w in weights]
    X, y = samples()
    feed = steps.batches(SAMPLES, batch)
    for drawn in factors:
        rows = next(feed)
        x = (np.float64(X[rows]) - mean)[:, order]
        for w, v, g in zip(weights, velocity, _gradients(weights, x, y[rows], drawn, kink), strict=True):
            v *= MOMENTUM
            v += g
            w -= RATE * v
    return weights


def _gradients(
    weights: list[np.ndarray], x: np.ndarray, y: np.ndarray, factors: Sequence[tuple[Any, Any]], kink: float
) -> list:
    """Gradients of the mean cross-entropy by backpropagation, in the order of the weights."""
    factors = [*factors, (1.0, 1.0)]
    inputs, slopes, h = [], [], x
    for layer, (of_w, of_h) in enumerate(factors):
        inputs.append(h)
        z = h @ (weights[2 * layer] * of_w).T + weights[2 * layer + 1]
        last = layer == len(factors) - 1
        slopes.append(1.0 if last else (z > kink) * of_h)
        h = z if last else np.maximum(z, 0) * of_h
    dz = np.exp(h - h.max(axis=1, keepdims=True))
    dz /= dz.sum(axis=1, keepdims=True)
    dz[np.arange(len(y)), y] -= 1
    dz /= len(y)
    gradients = []
    for layer in reversed(range(len(factors))):
        of_w = factors[layer][0]
        gradients = [dz.T @ inputs[layer] * of_w, dz.sum(axis=0), *gradients]
        if layer:
            dz = dz @ (weights[2 * layer] * of_w) * slopes[layer - 1]
    return gradients


def update_error(hidden: int, batch: int, outputs: Mapping[str, Any]) -> float:
    """The error of the weights after the first n steps (see `steps.update_error`).

    In a narrow layer one neuron of one sample can be a hundredth of the gradient. If its pre-activation is so close to 0 that
    float32 can have the other sign, both gradients are right; so the smallest error for ReLU's kink at 0, KINK and -KINK
    counts.
    """
    options = {key: outputs[key] for key in ("order", "mean") if key in outputs}

    def error(kink: float) -> float:
        references = reference_steps(hidden, batch, outputs["factors"], **options, kink=kink)
        return steps.update_error(initial_weights(hidden), outputs["weights"], references)

    smallest = error(0.0)
    return smallest if smallest <= TOLERANCE else min(smallest, error(KINK), error(-KINK))


# --- work -------------------------------------------------------------------------------------------------------------
@functools.cache
def mean_flops(hidden: int, batch: int, dropout: str, rate: float) -> float:
    """FLOPs of the matrix products of a step: the exact mean over the policy's patterns."""
    from numbanet.dropout import policy
    from numbanet.dropout.search import pattern_distribution
    from numbanet.layers import ActivationSpec, Context
    from numbanet.plans import RowPlan, TilePlan, WindowPlan

    model = network(hidden)

    def flops(plans=None):
        return float(model.cost(ActivationSpec((batch, FEATURES)), Context(plans=plans, model=model).plans)[0].flops)

    chosen, (first, second) = policy(dropout, rate), model.droppable()
    if dropout == "batchwise":  # each of its plans keeps the same number of neurons
        return flops({site: chosen.plan(site, np.random.default_rng(0)) for site in (first, second)})
    if dropout == "window":  # windows have K or K + 1 neurons
        windows = [[(p, WindowPlan(site.shape[0], 0, count)) for count, p in chosen.counts(site)] for site in (first, second)]
        return sum(p * q * flops({first: a, second: b}) for p, a in windows[0] for q, b in windows[1])
    if dropout not in ("rdp", "tdp"):
        return flops()
    distribution = pattern_distribution(rate, chosen.dp_max, chosen.search)

    def drawn(site):
        """(probability, plan) of every pattern."""
        shape = site.shape
        return [
            (p / dp, RowPlan(shape[0], dp, bias) if dropout == "rdp" else TilePlan(shape, chosen.tile, dp, bias))
            for dp, p in enumerate(distribution, 1)
            for bias in range(dp)
        ]

    return sum(p * q * flops({first: a, second: b}) for p, a in drawn(first) for q, b in drawn(second))


def numbanet_implementation(
    options: Options, hidden: int, batch: int, dropout: str, rate: float, peer: str | None, replayed: bool = True
) -> Implementation:
    """Steps in numbanet, with their FLOPs and the ceiling of the ratio to a dense peer."""
    flops = mean_flops(hidden, batch, dropout, rate)
    parameters = {"device": options.device, "hidden": hidden, "dropout": dropout, "rate": rate, "batch": batch}
    ceiling = None if peer is None else mean_flops(hidden, batch, "none", 0.0) / flops
    name, how = (dropout, {}) if replayed else (f"{dropout}, launch by launch", {"replayed": False})
    return Implementation(name, numbanet_task, {**parameters, **how}, peer, ceiling, flops)
