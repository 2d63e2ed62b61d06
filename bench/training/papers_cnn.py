"""The papers' convolutional networks: test accuracy by data set, network, pattern and rate after the same number of epochs.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, Figs. 14 to 18: rsdp and bsdp at p = 0.3 to 0.6, each with
the same rate in all epochs, with rates that rise and fall (`skew`), and with random rows or blocks that ignore sensitivity
(`chance`); and rdp on channels, which does not depend on the data. At p = 0.6 also outputs multiplied by 1 / (1 - p)
(`scaled`), rows or blocks drawn for each image separately (`each`), and blocks in all convolutions except the first, whose sums
have few terms (`inner`). In the other networks, whose convolutions are 3 x 3, also tiles of positions and blocks of channels
(`tiles`, `channels`). LeNet-5 has three seeds at the rate that the paper discusses most, 0.6 on MNIST and 0.4 on CIFAR-10, and
one seed at the others. AlexNet has one seed and one rate on the CPU, where its runs take minutes on two cores; on a GPU it has
all rates, like VGG19, which is trained only there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from . import IMAGES, SEEDS, Experiment

SUITE = "papers-cnn"
RECORDED = ("--json bench/results/papers-cnn.json --plot papers-cnn.png",)
RATES, LAST = (0.3, 0.4, 0.5, 0.6), 0.6
CONVOLUTIONS = {"lenet5": 2, "alexnet": 5, "vgg19": 16}
CASES = (  # network, data, epochs, rates, rates with all seeds, target accuracies
    ("lenet5", "mnist", 5, RATES, (0.6,), (0.98, 0.985)),
    ("lenet5", "cifar10", 15, RATES, (0.4,), (0.45,)),
    ("alexnet", "cifar10", 6, (0.4,), (), (0.45,)),
)
ON_A_CARD = (("alexnet", "mnist", 5, RATES, RATES, (0.98, 0.985)), ("vgg19", "cifar10", 15, RATES, RATES, (0.45,)))


def _sensitive(kind: str, rate: float, data: str, epochs: int = 0, inner: int = 0, **settings: Any) -> dict[str, Any]:
    """Parameters of a Net. With `epochs`, rates rise and fall over them; with `inner`, the first convolution has rate 0 and the
    next n = inner have the rate."""
    from numbanet.dropout import BlockSensitiveDropout, RowSensitiveDropout, SkewNormalSchedule

    policy = {"rsdp": RowSensitiveDropout, "bsdp": BlockSensitiveDropout}[kind]
    rates = SkewNormalSchedule(rate, epochs) if epochs else [0.0] + [rate] * inner if inner else rate
    return {"dropout": policy(rates, **settings), "image_shape": IMAGES[data]}


def variants(network: str, rate: float, data: str, epochs: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, () -> parameters of a Net) of each variant at a rate."""
    ways = {"": {}, " skew": {"epochs": epochs}, " chance": {"contrast": 0.0}}
    last = {" scaled": {"scale": "rate"}} if rate == LAST else {}
    for kind in ("rsdp", "bsdp"):
        special: dict[str, dict[str, Any]] = {" each": {"together": 1}}
        special |= {} if kind == "rsdp" else {" inner": {"inner": CONVOLUTIONS[network] - 1}}
        whole = {" tiles": {"tile": "auto"}} if kind == "rsdp" else {" channels": {"channels": True}}
        whole = {} if network == "lenet5" else whole
        for way, settings in (ways | last | (special if rate == LAST else {}) | whole).items():
            yield f"{kind}{way} p={rate}", functools.partial(_sensitive, kind, rate, data, **settings)
    yield f"rdp p={rate}", functools.partial(dict, dropout="rdp", dropout_rate=rate, image_shape=IMAGES[data])


def experiments(options: Options) -> Iterator[Experiment]:
    """Cases in the order of the paper's figures, the longest last."""
    cases = (*CASES, *ON_A_CARD) if options.device == "cuda" else CASES
    for network, data, epochs, rates, main, targets in cases[:1] if options.quick else cases:
        chosen = training.network_settings(options, network, data, epochs, targets)
        none = functools.partial(dict, dropout="none", image_shape=IMAGES[data])
        yield Experiment(chosen, "none", none, SEEDS if main else 1)
        for rate in rates[-1:] if options.quick else rates:
            for name, variant in variants(network, rate, data, chosen["epochs"]):
                yield Experiment(chosen, name, variant, SEEDS if rate in main else 1)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=0)


def plot(results: Results, path: Path) -> None:
    """Plot the test error by rate, a panel for each data set and network."""
    from ..machinery.plots import plot_rates

    plot_rates(results.rows, path)
