"""Whole fits of small networks, and of some by width, against scikit-learn, PyTorch and, if installed, JAX; few predictions.

Predictions of few samples are compared with scikit-learn and with the bare products in NumPy.

Each library is used in its usual way: an estimator in numbanet and scikit-learn, a loop over shuffled batches in PyTorch, a
jitted step in JAX. The check is that all of them learn: at most 40 % of the training samples are classified wrongly. The
probabilities of predictions are compared with those of NumPy.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..machinery.harness import Case, Implementation, Options, Schedule, run_cases
from ..machinery.results import Results
from ..machinery.worker import Task, torch_on

SUITE = "small"
RECORDED = ("--json bench/results/small.json",)
RATES = {"adam": 0.001, "sgd": 0.05}
WRONG = 0.4  # largest error rate on the training samples after a fit; random predictions have at least 0.5
DIFFERENT = 1e-4  # largest difference of a probability
FEW = Schedule(pairs=9, turn=0.05, warm_up=1)  # a turn is a whole fit


class Problem(NamedTuple):
    """Widths of all layers, n samples, batch size, n epochs."""

    widths: tuple[int, ...]
    samples: int
    batch: int
    epochs: int

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.widths))}, batch {self.batch}"


PROBLEMS = (
    Problem((20, 64, 32, 2), 10_000, 32, 3),
    Problem((50, 256, 128, 2), 20_000, 128, 3),
    Problem((64, 100, 10), 1_500, 200, 30),
    Problem((100, 512, 2), 50_000, 256, 3),
)
BY_WIDTH = tuple(
    Problem((64, width, width, 2), 128 * steps, 128, 1)
    for width, steps in ((16, 400), (64, 400), (256, 200), (1024, 40), (4096, 10))
)


@functools.lru_cache(maxsize=1)
def data(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """X (samples, inputs) normal, y: argmax of X W for a random W."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((problem.samples, problem.widths[0]), np.float32)
    return X, (X @ rng.standard_normal((problem.widths[0], problem.widths[-1]), np.float32)).argmax(1)


def _task(fit: Callable[[], Callable[[np.ndarray], np.ndarray]], problem: Problem, **options: Any) -> Task:
    """Task: fits; fit() returns a function that predicts."""
    X, y = data(problem)
    return Task(fit, lambda: {"error": float(np.mean(fit()(X) != y))}, **options)


def numbanet_task(device: str, problem: Problem, optimizer: str, dropout: str) -> Task:
    """Task: fits of a `Net`."""
    from numbanet import Net

    (X, y), (_, *hidden, _) = data(problem), problem.widths

    def fit():
        return (
            Net(
                hidden,
                dropout=dropout,
                dropout_rate=0.5,
                epochs=problem.epochs,
                batch_size=problem.batch,
                device=device,
                optimizer=optimizer,
                learning_rate=RATES[optimizer],
                momentum=0.9,
                random_state=0,
            )
            .fit(X, y)
            .predict
        )

    return _task(fit, problem)


def scikit_learn_task(device: str, problem: Problem, optimizer: str) -> Task:
    """Task: fits of an `MLPClassifier`."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    (X, y), (_, *hidden, _) = data(problem), problem.widths

    def fit():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return (
                MLPClassifier(
                    hidden,
                    solver=optimizer,
                    alpha=0,
                    batch_size=problem.batch,
                    max_iter=problem.epochs,
                    learning_rate_init=RATES[optimizer],
                    momentum=0.9,
                    nesterovs_momentum=False,
                    n_iter_no_change=problem.epochs + 1,
                    random_state=0,
                )
                .fit(X, y)
                .predict
            )

    return _task(fit, problem)


def torch_task(device: str, problem: Problem, optimizer: str) -> Task:
    """Task: the same in PyTorch, with its default initial weights, batches by index, and the loss copied to the host per
    epoch."""
    import torch

    X, y = (torch.from_numpy(part).to(device) for part in data(problem))

    def fit():
        layers = []
        for n_in, n_out in itertools.pairwise(problem.widths):
            layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1]).to(device)
        chosen = {"adam": torch.optim.Adam, "sgd": functools.partial(torch.optim.SGD, momentum=0.9)}[optimizer]
        updates = chosen(model.parameters(), lr=RATES[optimizer])
        for _ in range(problem.epochs):
            total = 0.0
            for rows in torch.randperm(len(X), device=X.device).split(problem.batch):
                updates.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(X[rows]), y[rows])
                loss.backward()
                updates.step()
                total += loss.detach() * len(rows)
            float(total)
        return lambda x: model(torch.from_numpy(x).to(device)).argmax(1).cpu().numpy()

    return _task(fit, problem, **torch_on(torch, device))


def jax_task(device: str, problem: Problem, optimizer: str) -> Task:
    """Task: the same in JAX with optax; a step is one jitted function, called from Python."""
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_default_device", jax.devices("gpu" if device == "cuda" else device)[0])
    X, y = map(jnp.asarray, data(problem))
    updates = optax.adam(RATES["adam"]) if optimizer == "adam" else optax.sgd(RATES["sgd"], momentum=0.9)

    def output(weights, x):
        for w, b in weights[:-1]:
            x = jax.nn.relu(x @ w + b)
        return x @ weights[-1][0] + weights[-1][1]

    def loss(weights, x, labels):
        return optax.softmax_cross_entropy_with_integer_labels(output(weights, x), labels).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, state, rows):
        value, gradients = jax.value_and_grad(loss)(weights, X[rows], y[rows])
        changes, state = updates.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    def fit():
        rng = np.random.default_rng(0)
        weights = [
            (jnp.asarray(rng.uniform(-1, 1, (n_in, n_out)) * np.sqrt(6 / n_in), jnp.float32), jnp.zeros(n_out))
            for n_in, n_out in itertools.pairwise(problem.widths)
        ]
        state = updates.init(weights)
        for _ in range(problem.epochs):
            order, losses = rng.permutation(len(X)), []
            for start in range(0, len(X), problem.batch):
                weights, state, value = step(weights, state, order[start : start + problem.batch])
                losses.append(value)
            float(sum(losses))
        return lambda x: np.asarray(output(weights, jnp.asarray(x)).argmax(1))

    return _task(fit, problem)


# --- predictions ------------------------------------------------------------------------------------------------------
PREDICTOR = Problem((784, 512, 512, 10), 600, 100, 1)  # trained for one epoch, as only times count
COUNTS = 1, 100, 600  # samples to predict


def predict_task(device: str, samples: int) -> Task:
    """Task: `predict_proba` of a `Net`. The error is the largest difference from NumPy's probabilities."""
    from scipy.special import softmax

    net, x = _trained(device), data(PREDICTOR)[0][:samples]

    def error() -> float:
        y, tensors = x, [p.numpy() for p in net.model_.parameters()]
        for i, (w, b) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
            y = (y if i == 0 else np.maximum(y, 0)) @ w.T + b
        return float(np.abs(net.predict_proba(x) - softmax(y, axis=1)).max())

    for _ in range(2):  # the pass is recorded when it comes for the second time
        net.predict_proba(x)
    return Task(lambda: net.predict_proba(x), lambda: {"error": error()})


def products_task(device: str, samples: int) -> Task:
    """Task: the matrix products of that network alone, by NumPy."""
    y, weights = data(PREDICTOR)[0][:samples], [p.numpy() for p in _trained(device).model_.parameters() if p.ndim == 2]
    return Task(lambda: functools.reduce(lambda y, w: y @ w.T, weights, y), lambda: {"error": 0.0})


def scikit_learn_predict_task(device: str, samples: int) -> Task:
    """Task: `predict_proba` of an `MLPClassifier` of that size. The error is the largest difference of a sum from 1."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    X, y = data(PREDICTOR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        net = MLPClassifier(PREDICTOR.widths[1:-1], max_iter=PREDICTOR.epochs, random_state=0).fit(X, y)
    x = X[:samples]
    return Task(lambda: net.predict_proba(x), lambda: {"error": float(np.abs(net.predict_proba(x).sum(1) - 1).max())})


def _trained(device: str) -> Any:
    from numbanet import Net

    X, y = data(PREDICTOR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it has learned little
        return Net(PREDICTOR.widths[1:-1], epochs=PREDICTOR.epochs, device=device, random_state=0).fit(X, y)


def _prediction_cases(options: Options) -> Iterator[Case]:
    for samples in COUNTS[:1] if options.quick else COUNTS:
        common = {"device": options.device, "samples": samples}
        name = f"{'-'.join(map(str, PREDICTOR.widths))}, predict_proba of {samples}"
        for peer, task in (("NumPy's products", products_task), ("scikit-learn", scikit_learn_predict_task)):
            if options.against in (None, peer):
                ours = Implementation("none", predict_task, common, peer)
                yield Case(SUITE, f"{name}, against {peer}", (ours, Implementation(peer, task, common)), _error, DIFFERENT)


PEERS: dict[str, Callable[..., Task]] = {"scikit-learn": scikit_learn_task, "torch": torch_task, "jax": jax_task}
NEEDS = {"scikit-learn": ("sklearn",), "torch": ("torch",), "jax": ("jax", "optax")}


def _error(outputs: Mapping[str, Any]) -> float:
    return outputs["error"]


def _against(options: Options, name: str, common: Mapping[str, Any]) -> Iterator[Case]:
    """Fits without dropout, against every installed peer."""
    wanted = [options.against] if options.against else ["scikit-learn", "torch", "jax"]
    for peer in wanted:
        if all(map(importlib.util.find_spec, NEEDS[peer])):
            ours = Implementation("none", numbanet_task, {**common, "dropout": "none"}, peer)
            both = ours, Implementation(peer, PEERS[peer], common)
            yield Case(SUITE, f"{name}, against {peer}", both, _error, WRONG)


def cases(options: Options) -> Iterator[Case]:
    """Every network with every optimiser against every installed peer; patterns against no dropout; and networks by width."""
    problems = (Problem((20, 16, 2), 640, 32, 6),) if options.quick else PROBLEMS
    for problem, optimizer in itertools.product(problems, RATES):
        common = {"device": options.device, "problem": problem, "optimizer": optimizer}
        yield from _against(options, f"{problem}, {optimizer}", common)
        dense = Implementation("none", numbanet_task, {**common, "dropout": "none"})
        patterns = [
            Implementation(name, numbanet_task, {**common, "dropout": name}, "none") for name in ("rdp", "window", "bernoulli")
        ]
        yield Case(SUITE, f"{problem}, {optimizer}, p=0.5", (*patterns, dense), _error, WRONG)
    for problem in () if options.quick else BY_WIDTH:
        common = {"device": options.device, "problem": problem, "optimizer": "adam"}
        yield from _against(options, f"{problem}, adam, {problem.samples // problem.batch} steps", common)
    yield from _prediction_cases(options)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time the fits; return the rows."""
    return run_cases(SUITE, cases(options), options, results, say, FEW)
