"""Does it matter which rows a convolution drops? CIFAR-10 and a network with batch norm and augmentation, three seeds.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, section 5.1: regions of an input with large values are
dropped at a lower rate than others. Whether that helps is the difference between `rsdp` and `rsdp chance`, which drops as many
rows at random (contrast=0). An effect can only show where dropping costs or gains something: six convolutions with batch norm,
images that are mirrored and shifted, all of the images that are at hand. Beside them rates that rise and fall (`skew`), outputs
multiplied by 1 / (1 - p) (`scaled`), none, and bernoulli, which drops single outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from . import IMAGES, SEEDS, Experiment

SUITE = "sensitivity"
RECORDED = ("--json bench/results/sensitivity.json",)
DATA, EPOCHS, WIDTHS, TARGETS = "cifar10", 24, (24, 48, 96), (0.7,)
RATES = (0.3, 0.5)
SETTINGS: dict[str, Any] = {"learning_rate": 0.05, "learning_rate_schedule": "cosine", "weight_decay": 5e-4}


def layers(seed: int, widths: tuple[int, ...] = WIDTHS) -> list[Any]:
    """Two convolutions of 3 x 3 for each width, with batch norm and ReLU, and max pooling between the widths; at the end the
    mean of each channel, and a linear layer."""
    from numbanet.layers import AvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU

    rng = np.random.default_rng(seed)
    channels, side = IMAGES[DATA][:2]
    made: list[Any] = []
    for width in widths:
        for _ in range(2):
            made += [Conv2d(channels, width, 3, padding=1, bias=False, rng=rng), BatchNorm2d(width), ReLU()]
            channels = width
        if width != widths[-1]:
            made.append(MaxPool2d(2))
            side //= 2
    return [*made, AvgPool2d(side), Flatten(), Linear(channels, 10, rng=rng)]


def _parameters(**dropout: Any) -> dict[str, Any]:
    from numbanet import FlipsAndCrops

    return {
        "layers": layers,
        "image_shape": IMAGES[DATA],
        "augment": FlipsAndCrops(),
        "learning_rate_schedule": SETTINGS["learning_rate_schedule"],
        "weight_decay": SETTINGS["weight_decay"],
        **dropout,
    }


def _sensitive(rate: float, epochs: int = 0, **settings: Any) -> dict[str, Any]:
    from numbanet.dropout import RowSensitiveDropout, SkewNormalSchedule

    return _parameters(dropout=RowSensitiveDropout(SkewNormalSchedule(rate, epochs) if epochs else rate, **settings))


def variants(rate: float, epochs: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, () -> parameters of a Net) of each variant at a rate."""
    ways: dict[str, dict[str, Any]] = {
        "": {},
        " chance": {"contrast": 0.0},
        " skew": {"epochs": epochs},
        " scaled": {"scale": "rate"},
        " scaled chance": {"scale": "rate", "contrast": 0.0},
    }
    for way, settings in ways.items():
        yield f"rsdp{way} p={rate}", functools.partial(_sensitive, rate, **settings)
    yield f"bernoulli p={rate}", functools.partial(_parameters, dropout="bernoulli", dropout_rate=rate)


def experiments(options: Options) -> Iterator[Experiment]:
    """None, then the variants at each rate."""
    chosen = training.network_settings(options, f"{DATA}-bn {'-'.join(map(str, WIDTHS))}", DATA, EPOCHS, TARGETS)
    chosen = {**chosen, **SETTINGS}
    yield Experiment(chosen, "none", functools.partial(_parameters, dropout="none"), SEEDS)
    for rate in RATES[-1:] if options.quick else RATES:
        for name, variant in variants(rate, chosen["epochs"]):
            yield Experiment(chosen, name, variant, SEEDS)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs, two at a time on two cores; return the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=0)


def plot(results: Results, path: Path) -> None:
    """Plot the test error by rate."""
    from ..machinery.plots import plot_rates

    plot_rates(results.rows, path)
