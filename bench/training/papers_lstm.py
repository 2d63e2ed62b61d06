"""The papers' language models: validation perplexity of WikiText-2 by epoch and by seconds, with each way to save time.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, Figs. 12 and 13 and Table 2: bernoulli, rdp and tdp on what
is not recurrent, and rdp at 0.25 on what comes back through time as well. Without dropout: sparse gate gradients in the first
four fifths of the steps, columns or elements. Two layers of 256 units, the first 50,000 words and twenty epochs are what two
cores train in minutes, where the papers have 1500 units; so small a model wants less dropout than their 0.5, and has 0.3, and
periods of at most 2. Three seeds, of which the first has the machine for itself and tells the time; what stands beside the
comparisons, one: rdp with the period and the scale of other networks too.
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

SUITE = "papers-lstm"
RECORDED = ("--json bench/results/papers-lstm.json --plot papers-lstm.png",)
HIDDEN, WORDS, EPOCHS, HALVED_AFTER = (256, 256), 50_000, 20, 10
RATE, TARGETS = 0.3, (250, 200, 180)
PATTERN = {"dp_max": 2, "scale": "pattern"}
DROPOUTS = {  # what is dropped, settings of its policy, parameters of a LanguageModel, seeds
    "bernoulli": ("bernoulli", {}, {}, SEEDS),
    "rdp": ("rdp", PATTERN, {}, SEEDS),
    "tdp": ("tdp", PATTERN, {}, SEEDS),
    "batchwise": ("batchwise", {}, {}, SEEDS),
    "rdp + recurrent rdp": ("rdp", PATTERN, {"recurrent_dropout": "rdp"}, 1),
    "rdp dp_max=3": ("rdp", {**PATTERN, "dp_max": 3}, {}, 1),
    "rdp scale=root": ("rdp", {**PATTERN, "scale": "root"}, {}, 1),
}
GATES = {
    "none": ("none", {}, {}, SEEDS),
    "gate columns 50%": ("none", {}, {"gate_sparsity": 0.5}, SEEDS),
    "gate threshold 50%": ("none", {}, {"gate_sparsity": 0.5, "gate_mode": "threshold"}, 1),
}


def parameters(dropout: str, rate: float, settings: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Of a LanguageModel: a policy with some settings, and what stands beside it."""
    from numbanet.dropout import policy

    chosen = policy(dropout, rate)
    return {"dropout": type(chosen)(rate, **settings) if settings else chosen, **others}


def experiments(options: Options) -> Iterator[Experiment]:
    """With dropout, then without."""
    for rate, ways in ((RATE, DROPOUTS), (0.0, GATES)):
        chosen = training.text_settings(options, HIDDEN, WORDS, EPOCHS, rate, TARGETS, HALVED_AFTER)
        for name, (dropout, settings, others, seeds) in ways.items():
            yield Experiment(chosen, name, functools.partial(parameters, dropout, rate, settings, others), seeds)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=1)


def plot(results: Results, path: Path) -> None:
    """Validation perplexity by epoch and by seconds."""
    from ..machinery.plots import plot_runs

    plot_runs(results.runs, path)
