"""Quality of dsg's selection: the share of the largest outputs that its projection selects, by epsilon and rate.

Measured for both hidden layers of 784-1024-1024-10 after two dense epochs on Fashion-MNIST, and for 2048-2048 with random
weights, with batches of 128. An oracle selects the largest outputs; a random selection contains a share 1 - rate of them.
`within` is the share of the estimates f(x) . f(w) of x . w whose error is at most epsilon |x| |w|. Its mean over projections is
at least `bound`: the relative error of each of |f(x / |x| + w / |w|)|² and |f(x / |x| - w / |w|)|² exceeds epsilon with a
probability of at most 2 exp(-k (epsilon² / 2 - epsilon³ / 3) / 2) (Achlioptas 2003, theorem 1.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from numbanet import Linear, Sequential, Tensor, datasets, no_grad
from numbanet.dropout import DynamicSparseGraph
from numbanet.dropout.graph import johnson_lindenstrauss, kept_of
from numbanet.layers import Flow
from numbanet_kernels.families.projection import project_cpu
from numbanet_kernels.layouts.ternary import ternary

from ..machinery.harness import Options
from ..machinery.results import Results
from ..steps import MOMENTUM, RATE
from ..steps.dsg_model import SHARES, WIDTH, Oracle, layer_inputs

SUITE = "dsg-quality"
RECORDED = ("--json bench/results/dsg-quality.json --plot dsg-quality.png",)
RATES, EPSILONS = (0.5, 0.8, 0.9), (0.3, 0.5, 0.7, 0.9)
HIDDEN, EPOCHS, BATCH, BATCHES = (1024, 1024), 2, 128, 8


def layers(quick: bool) -> Iterator[tuple[str, Linear, list[np.ndarray]]]:
    """(name, layer, batches of its input)"""
    from numbanet import Net  # loads scikit-learn

    X, y, X_test, _ = datasets.load_fashion_mnist()
    hidden, epochs, samples, batches = ((256, 256), 1, 2000, 1) if quick else (HIDDEN, EPOCHS, len(X), BATCHES)
    net = Net(
        hidden,
        init="he",
        dropout="none",
        epochs=epochs,
        batch_size=BATCH,
        learning_rate=RATE,
        momentum=MOMENTUM,
        device="cpu",
        random_state=0,
    ).fit(X[:samples], y[:samples])
    first, relu, second = net.model_.layers[:3]
    x = np.float32(X_test[: batches * BATCH])
    with no_grad():
        h = relu(first(Tensor(x))).numpy()
    for layer, inputs in ((first, x), (second, h)):
        yield f"fashion-mnist {layer.in_features}-{layer.out_features}", layer, np.split(inputs, batches)
    width = 256 if quick else WIDTH
    x, w, b = layer_inputs(width, BATCH)
    layer = Linear(width, width)
    layer.weight.data[:], layer.bias.data[:] = w, b
    yield f"random {width}-{width}", layer, [x]


def recall(layer: Linear, batches: list[np.ndarray], rate: float, share: str, epsilon: float) -> float:
    """The share of the oracle's selection that dsg selects as well."""
    site = Sequential([layer, Linear(layer.out_features, 1)]).droppable()[0]

    def mask(policy: DynamicSparseGraph, x: np.ndarray) -> np.ndarray:
        return policy.choose_from_flow(site, Flow(Tensor(x)), layer, None).mask()

    policies = DynamicSparseGraph(rate, epsilon, share), Oracle(rate, share=share)
    pairs = [[mask(policy, x) for policy in policies] for x in batches]
    return float(np.mean([(chosen & best).sum() / best.sum() for chosen, best in pairs]))


def within(layer: Linear, x: np.ndarray, epsilon: float) -> float:
    """The share of the estimates whose error is at most epsilon |x| |w|."""
    w = layer.weight.numpy()
    k = johnson_lindenstrauss(len(w), epsilon)
    fx, fw = (project_cpu(v, ternary(k, w.shape[1], 0), k) for v in (x, w))
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    return float(np.mean(np.abs(fx @ fw.T - x @ w.T) <= epsilon * lengths))


def bound(outputs: int, epsilon: float) -> float:
    """A lower bound of the mean of `within`."""
    return max(0.0, 1 - 4 * math.exp(-johnson_lindenstrauss(outputs, epsilon) * (epsilon**2 / 2 - epsilon**3 / 3) / 2))


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all layers; return the rows."""
    options.only_on_cpu(f"{SUITE} measures a quality that is the same on every device")
    rates, epsilons = (RATES[1:2], EPSILONS[2:]) if options.quick else (RATES, EPSILONS)
    rows: list[dict[str, Any]] = []
    for name, layer, batches in layers(options.quick):
        n, case = layer.out_features, f"{name}, batch {BATCH}"
        if not options.wants(case):
            continue
        say(f"{SUITE}: {case}")
        for epsilon in epsilons:
            common = {
                "suite": SUITE,
                "case": case,
                "epsilon": epsilon,
                "projected": johnson_lindenstrauss(n, epsilon),
                "within": within(layer, np.concatenate(batches), epsilon),
                "bound": bound(n, epsilon),
            }
            measured = [
                {
                    **common,
                    "implementation": f"{share} rate {rate}",
                    "share": share,
                    "rate": rate,
                    "found": recall(layer, batches, rate, share, epsilon),
                    "chance": kept_of(n, rate) / n,
                }
                for share in SHARES
                for rate in rates
            ]
            results.add(measured)
            rows += measured
    return rows


def plot(results: Results, path: Path) -> None:
    """Plot the share of the largest outputs that is selected, and the errors of the estimates, by epsilon."""
    from ..machinery.plots import plot_quality

    plot_quality(results.rows, path)
