"""The network of the suites `mlp…`, 784-H-H-10: steps in numbanet, PyTorch and scikit-learn as tasks, and in float64.

Same model, optimiser and batches, taken by index from the data set on all sides.
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

SAMPLES = 20000  # 63 MB: like a real data set, more than a cache holds
LEAST_STEPS = 20  # of a turn, because the cost of a step under a random pattern is random
KINK = 1e-6  # how near a pre-activation must be to 0 for float32 to see it on the other side


# --- what both sides share --------------------------------------------------------------------------------------------
def initial_weights(hidden: int, seed: int = 0) -> list[np.ndarray]:
    """w1, b1, w2, b2, w3, b3: He's uniform weights; biases are not zero, so that an error in one is seen."""
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
    """Training steps through numbanet's Stepper; not replayed: each of its launches is made by Python."""
    from numbanet import device as named

    dev = named(device)

    def describe(stepper, drawn):
        owners, before = stepper.tree.owners, getattr(stepper.model.layers[0], "order", None)
        layers = [owners[site.path] for site in stepper.tree.droppable()]
        kept = [[plans.of(layer, "tiles") or plans.of(layer) for layer in layers] for plans in drawn]
        return {
            "order": slice(None) if before is None else before.order,
            "mean": 0.0 if before is None else before.mean,
            "factors": [[_factors(plan, batch) for plan in plans] for plans in kept],
        }

    return steps.numbanet_steps(dev, *samples(), batch, lambda: _trainer(dev, hidden, dropout, rate, batch, replayed), describe)


def _trainer(dev: Any, hidden: int, dropout: str, rate: float, batch: int, replayed: bool) -> Any:
    """A Stepper of the network with the shared initial weights."""
    from numbanet.dropout import policy
    from numbanet.training.sgd import SGD
    from numbanet.training.stepper import Stepper
    from numbanet.training.streams import Streams
    from numbanet.training.task import Classification

    chosen = policy(dropout, rate)
    model = network(hidden, dev, chosen.shuffle)
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
    """What a plan multiplies a layer's weight with, and what its activation, in the dense picture."""
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
    """Training steps in PyTorch, with nn.Dropout(rate) after each hidden activation unless the rate is None. Eager, or timed
    with model and loss compiled to CUDA graphs: what is verified is eager, where masks can be seen."""
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    fed = steps.torch_batches(torch, device, *samples(), batch)
    model, optimizer = _torch_model(torch, device, hidden, rate)

    def loss_with(model):
        return lambda x, labels: torch.nn.functional.cross_entropy(model(x), labels)

    timed = torch.compile(loss_with(model), mode="reduce-overhead") if compiled else loss_with(model)

    taken = fed()

    def step(loss_of=timed, optimizer=optimizer, at=taken):
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        x, labels = next(at)
        optimizer.zero_grad()
        loss_of(x, labels).backward()
        optimizer.step()

    for _ in range(3 if compiled else 0):  # compiled and captured before anything is timed
        step()

    def outputs():
        fresh, fresh_optimizer = _torch_model(torch, device, hidden, rate)
        at, factors = fed(), [[] for _ in range(steps.CHECKED)]
        for drawn in factors:

            def record(layer, x, out, drawn=drawn):
                """Where ReLU gave 0, whether it was dropped changes nothing."""
                drawn.append((1.0, (out != 0).cpu().numpy() / (1 - layer.p)))

            hooks = [layer.register_forward_hook(record) for layer in fresh if isinstance(layer, torch.nn.Dropout)]
            step(loss_with(fresh), fresh_optimizer, at)
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
    """Training steps of MLPClassifier: `partial_fit` on one batch after another."""
    X, y = samples()
    rows, model = steps.batches(SAMPLES, batch), _sklearn_model(hidden, batch)

    def step(model=model, at=rows):
        chosen = next(at)
        model.partial_fit(X[chosen], y[chosen])

    def outputs():
        fresh, at = _sklearn_model(hidden, batch), steps.batches(SAMPLES, batch)
        for _ in range(steps.CHECKED):
            step(fresh, at)
        weights = [np.asarray(p) for pair in zip(fresh.coefs_, fresh.intercepts_, strict=True) for p in pair]
        return {"weights": [p.T if p.ndim == 2 else p for p in weights], "factors": [[(1.0, 1.0)] * 2] * steps.CHECKED}

    return Task(step, outputs)


def _sklearn_model(hidden: int, batch: int) -> Any:
    """The network with the shared initial weights: scikit-learn makes its own in the first step, which are then replaced."""
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
    for mine, given in zip((*model.coefs_, *model.intercepts_), (*(w.T for w in values[::2]), *values[1::2]), strict=True):
        mine[...] = given
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
    """Weights after the first steps, dense and masked, in float64; factors by step and hidden layer: (of w, of h).

    `order` is that in which the first weight meets the features, less their `mean`. ReLU has its kink at `kink` in gradients.
    """
    weights = [np.float64(w) for w in initial_weights(hidden)]
    velocity = [np.zeros_like(w) for w in weights]
    X, y = samples()
    at = steps.batches(SAMPLES, batch)
    for drawn in factors:
        rows = next(at)
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
    """The error of the weights after the first steps (`steps.update_error`). In a narrow layer one neuron of one sample is a
    hundredth of the whole: where it lies so near to ReLU's kink that each side of it is right, that of the weights counts."""
    given = {key: outputs[key] for key in ("order", "mean") if key in outputs}

    def error(kink: float) -> float:
        references = reference_steps(hidden, batch, outputs["factors"], **given, kink=kink)
        return steps.update_error(initial_weights(hidden), outputs["weights"], references)

    found = error(0.0)
    return found if found <= TOLERANCE else min(found, error(KINK), error(-KINK))


# --- work -------------------------------------------------------------------------------------------------------------
@functools.cache
def mean_flops(hidden: int, batch: int, dropout: str, rate: float) -> float:
    """FLOPs of the matrix products of a step, averaged exactly over the policy's patterns."""
    from numbanet.dropout import policy
    from numbanet.dropout.search import pattern_distribution
    from numbanet.layers import ActivationSpec, Context
    from numbanet.plans import RowPlan, TilePlan, WindowPlan

    model = network(hidden)

    def flops(plans=None):
        return float(model.cost(ActivationSpec((batch, FEATURES)), Context(plans=plans, model=model).plans)[0].flops)

    chosen, (first, second) = policy(dropout, rate), model.droppable()
    if dropout == "batchwise":  # each of its plans keeps as much
        return flops({site: chosen.plan(site, np.random.default_rng(0)) for site in (first, second)})
    if dropout == "window":  # of K or K + 1 neurons, at one time or another
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
    """numbanet's steps, with their FLOPs and the ceiling against a peer that skips nothing."""
    flops = mean_flops(hidden, batch, dropout, rate)
    parameters = {"device": options.device, "hidden": hidden, "dropout": dropout, "rate": rate, "batch": batch}
    ceiling = None if peer is None else mean_flops(hidden, batch, "none", 0.0) / flops
    name, how = (dropout, {}) if replayed else (f"{dropout}, launch by launch", {"replayed": False})
    return Implementation(name, numbanet_task, {**parameters, **how}, peer, ceiling, flops)
