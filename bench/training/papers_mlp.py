"""The papers' MLPs on MNIST: accuracy by epoch and time to given accuracies with bernoulli, rdp and tdp, by rates and by size.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, Fig. 11: 784-2048-2048-10, equal rates of the two hidden
layers and different ones; Table 1: sizes from 1024x64 to 4096x4096 at p = 0.7. With --against torch, PyTorch with nn.Dropout is
trained as well if both rates are 0.5 or 0.7. Three seeds, at 4096x4096 one. At 4096x4096 bernoulli and tdp are also trained
without dropout in the first layer: this shows the accuracy that tdp loses because it hides input features there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.runs import TORCH
from . import SEEDS, Experiment

SUITE = "papers-mlp"
RECORDED = ("--against torch --json bench/results/papers-mlp.json --plot papers.png",)
DROPOUTS, EPOCHS, TARGETS = ("bernoulli", "rdp", "tdp"), 15, (0.97, 0.975, 0.98)
WIDTHS, RATES = (2048, 2048), ((0.3, 0.3), (0.5, 0.5), (0.7, 0.7), (0.3, 0.7), (0.7, 0.3))
SIZES, THEIR_RATES = ((1024, 64), (1024, 1024), (4096, 4096)), (0.7, 0.7)  # 2048x2048 is in WIDTHS
ALL_FEATURES = ((4096, 4096), (0.0, 0.7))  # without rdp, which hides no features
WITH_TORCH = (0.5, 0.7)


def experiments(options: Options) -> Iterator[Experiment]:
    """Cases in the order of the paper's figure, then of its table."""
    cases = [(WIDTHS, rates) for rates in RATES] + [(size, THEIR_RATES) for size in SIZES] + [ALL_FEATURES]
    for widths, rates in cases[:1] if options.quick else cases:
        chosen = training.settings(options, widths, rates, EPOCHS)
        seeds = 1 if max(widths) > 2048 else SEEDS
        for name in DROPOUTS if all(rates) else ("bernoulli", "tdp"):
            yield Experiment(chosen, name, functools.partial(_variant, name, rates), seeds)
        if widths == WIDTHS and rates[0] == rates[1] and rates[0] in WITH_TORCH and options.against == "torch":
            yield Experiment(chosen, TORCH, None, seeds)


def _variant(name: str, rates: tuple[float, float]) -> dict[str, Any]:
    """Parameters of a Net; tiles have the scale "root", as rows do."""
    from numbanet import TileDropout

    return {"dropout": TileDropout(rates, scale="root")} if name == "tdp" else {"dropout": name, "dropout_rate": rates}


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), TARGETS)


def plot(results: Results, path: Path) -> None:
    """Plot the speed-up by case with its ceiling, and the accuracy by seconds for each case."""
    from ..machinery.plots import plot_papers

    plot_papers(results.rows, results.runs, path)
