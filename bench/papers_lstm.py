"""The papers' language models: validation perplexity of WikiText-2 by epoch and by seconds, with each way to save time.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, Figs. 12 and 13 and Table 2: bernoulli, rdp and tdp on what
is not recurrent, and rdp at 0.25 on what comes back through time as well. Without dropout: sparse gate gradients in the first
four fifths of the steps, columns or elements. Two layers of 256 units, the first 200,000 words and four epochs are what two
cores train in minutes, where the papers have 1500 units; so small a model wants less dropout than their 0.5, and has 0.3. Three
seeds; what stands beside the comparisons, one.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import training
from .harness import Options
from .results import Results
from .training import SEEDS, Experiment

HIDDEN, WORDS, EPOCHS, HALVED_AFTER = (256, 256), 200_000, 4, 3
RATE, TARGETS = 0.3, (400, 300, 250)
DROPOUTS = {  # parameters of a LanguageModel, seeds
    "bernoulli": ({"dropout": "bernoulli"}, SEEDS), "rdp": ({"dropout": "rdp"}, SEEDS), "tdp": ({"dropout": "tdp"}, SEEDS),
    "rdp + recurrent rdp": ({"dropout": "rdp", "recurrent_dropout": "rdp"}, 1)}
GATES = {"none": ({}, SEEDS), "gate columns 50%": ({"gate_sparsity": 0.5}, SEEDS),
         "gate threshold 50%": ({"gate_sparsity": 0.5, "gate_mode": "threshold"}, 1)}


def experiments(options: Options) -> Iterator[Experiment]:
    """With dropout, then without."""
    for rate, ways in ((RATE, DROPOUTS), (0.0, GATES)):
        chosen = training.text_settings(options, HIDDEN, WORDS, EPOCHS, rate, TARGETS, HALVED_AFTER)
        for name, (parameters, seeds) in ways.items():
            given = {"dropout": "none", **({"dropout_rate": rate} if rate else {}), **parameters}
            yield Experiment(chosen, name, functools.partial(dict, **given), seeds)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows."""
    return training.run(options, results, say, "papers-lstm", list(experiments(options)), ())


def plot(results: Results, path: Path) -> None:
    """Validation perplexity by epoch and by seconds."""
    from .plots import plot_runs

    plot_runs(results.runs, path)
