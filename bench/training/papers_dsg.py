"""Dynamic sparse graphs: test accuracy by rate after the same number of epochs, for each form, an oracle and random selection.

*Dynamic Sparse Graph for Efficient Deep Learning*: Fashion-MNIST with an MLP and LeNet-5, each at rates of .5 to .9; on a GPU
also 10000 images of CIFAR-10 with a small VGG of eight layers. `oracle` selects neurons by their true outputs, `random` at
random.

At the rate .6 each of these has three seeds. So have an MLP whose last epoch is dense (`dense at last`), and one with batch
norm: with the mask before it only (`single`), before and after it (`double`), and dense. One seed have the other rates and, at
.6, predictions in the mode that is not the default, with all neurons (`all`) or with selected ones (`selecting`), thresholds
computed from the first samples for all samples (`shared`), other values of epsilon, and selections by more samples of a batch.
The learning rate of the MLP is larger than in other suites, for all variants: selection slows learning, and with a small rate a
few epochs would show only that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from . import SEEDS, Experiment

SUITE = "papers-dsg"
RECORDED = ("--json bench/results/papers-dsg.json --plot papers-dsg.png",)
RATES, ONE, EPSILONS, SAMPLES, SHARES = (0.5, 0.6, 0.8, 0.9), 0.6, (0.3, 0.7, 0.9), (32, 64), ("batch", "tile", "sample")
HIDDEN, EPOCHS, VGG_SAMPLES = (1024, 1024), 6, 10_000
VGG8 = ((64, 64), (128, 128), (256, 256))  # filters of each group before its pooling; two linear layers follow


def _but_at_last(rate: float, epoch: int) -> float:
    """The rate of an epoch; the last epoch is dense."""
    return rate if epoch < EPOCHS - 1 else 0.0


def _dsg(kind: str, rate: float, **options: Any) -> dict[str, Any]:
    """Parameters of a Net."""
    from ..steps.dsg_model import KINDS

    extra = {name: options.pop(name) for name in ("image_shape", "layers") if name in options}
    return {"dropout": KINDS[kind](rate, **options), **extra}


def normed(seed: int) -> list[Any]:
    """The layers of an MLP with batch norm after each ReLU."""
    from numbanet.layers import BatchNorm1d, Linear, ReLU

    rngs = [100 * seed + i for i in range(3)]
    return [
        Linear(784, HIDDEN[0], rng=rngs[0]),
        ReLU(),
        BatchNorm1d(HIDDEN[0]),
        Linear(*HIDDEN, rng=rngs[1]),
        ReLU(),
        BatchNorm1d(HIDDEN[1]),
        Linear(HIDDEN[1], 10, init="glorot", rng=rngs[2]),
    ]


def vgg8(seed: int) -> list[Any]:
    """Six convolutions and two linear layers for images (3, 32, 32), batch norm after each ReLU."""
    from numbanet.layers import BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU

    layers, before, number = [], 3, 100 * seed
    for group in VGG8:
        for filters in group:
            layers += [Conv2d(before, filters, 3, padding=1, rng=number), ReLU(), BatchNorm2d(filters)]
            before, number = filters, number + 1
        layers.append(MaxPool2d(2))
    return [*layers, Flatten(), Linear(before * 16, 256, rng=number), ReLU(), Linear(256, 10, init="glorot", rng=number + 1)]


Variant = tuple[str, functools.partial[dict[str, Any]], int]  # name, parameters, seeds


def _variant(name: str, kind: str, rate: float, seeds: int = 1, **options: Any) -> Variant:
    return f"{name} p={rate}", functools.partial(_dsg, kind, rate, **options), seeds


def mlp_variants(rate: float) -> Iterator[Variant]:
    """Variants of the MLP at a rate."""
    seeds = SEEDS if rate == ONE else 1
    for share in SHARES:
        yield _variant(share, "dsg", rate, seeds, share=share)
    for kind in ("oracle", "random"):
        for share in ("batch", "sample") if rate == ONE else ("batch",):
            yield _variant(f"{share} {kind}", kind, rate, seeds, share=share)
    if rate != ONE:
        return
    for name, double in (("double", True), ("single", False)):
        yield _variant(f"sample {name} mask", "dsg", rate, seeds, share="sample", double=double, layers=normed)
    for share in SHARES:
        made = functools.partial(_dsg, "dsg", functools.partial(_but_at_last, rate), share=share)
        yield f"{share} dense at last p={rate}", made, seeds
        name, selects = (f"{share} all", False) if share == "sample" else (f"{share} selecting", True)
        yield _variant(name, "dsg", rate, share=share, select_in_prediction=selects)
    for share in ("batch", "sample"):
        for epsilon in EPSILONS:
            yield _variant(f"{share} epsilon={epsilon}", "dsg", rate, share=share, epsilon=epsilon)
    for samples in SAMPLES:
        yield _variant(f"batch samples={samples}", "dsg", rate, samples=samples)
    yield _variant("sample shared", "dsg", rate, share="sample", threshold="shared")


def image_variants(rate: float, **options: Any) -> Iterator[Variant]:
    """Variants of a convolutional network at a rate; channels are selected per batch."""
    for kind in ("dsg", "oracle", "random"):
        yield _variant(f"batch{'' if kind == 'dsg' else ' ' + kind}", kind, rate, SEEDS if rate == ONE else 1, **options)


def experiments(options: Options) -> Iterator[Experiment]:
    """The MLP, LeNet-5 and, on a GPU, the VGG."""
    rates = RATES[1:2] if options.quick else RATES
    mlp = {**training.settings(options, HIDDEN, 0.0, EPOCHS, "fashion-mnist"), "learning_rate": 0.04}
    yield Experiment(mlp, "none", functools.partial(dict, dropout="none"))
    if not options.quick:
        yield Experiment(mlp, "none, batch norm", functools.partial(dict, dropout="none", layers=normed))
    for rate in rates:
        for name, variant, seeds in mlp_variants(rate):
            if not (options.quick and name.startswith("sample")):
                with_norm = variant.keywords.get("layers") is normed
                yield Experiment(mlp, name, variant, seeds, "none, batch norm" if with_norm else None)
    lenet = training.network_settings(options, "lenet5", "fashion-mnist", EPOCHS, ())
    vgg = training.network_settings(options, "vgg8", "cifar10", EPOCHS, (), VGG_SAMPLES)
    networks = [(lenet, {"image_shape": (1, 28, 28)}), (vgg, {"image_shape": (3, 32, 32), "layers": vgg8})]
    for chosen, given in networks if options.device == "cuda" and not options.quick else networks[:1]:
        yield Experiment(chosen, "none", functools.partial(dict, dropout="none", **given))
        for rate in rates:
            for name, variant, seeds in image_variants(rate, **given):
                yield Experiment(chosen, name, variant, seeds)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=0)


def plot(results: Results, path: Path) -> None:
    """Plot the test error by rate, a panel for each data set and network."""
    from ..machinery.plots import plot_rates

    plot_rates(results.rows, path)
