"""The papers' language models: validation perplexity on WikiText-2 by epoch and by seconds, with each kind of dropout.

*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, Figs. 12 and 13 and Table 2: bernoulli, rdp and tdp on
non-recurrent connections, and rdp at 0.25 on recurrent ones as well. Without dropout: sparse gate gradients, by columns or by
elements, in the first four fifths of the steps. Beside them batchwise and window, and one window for a layer's outputs and its
recurrence, which the papers do not have. The papers have layers of 1500 units. Here two layers of 256 units train on the
first 50,000 words for twenty epochs, which takes two cores minutes. A model this small needs less dropout than the papers' 0.5:
it has 0.3, with periods of at most 2. The main comparisons have three seeds; runs of the first one have the machine to
themselves, and times come from them. Variants have one seed, among them rdp with the period and the scale that are usual in
other networks.
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
DROPOUTS = {  # kind of dropout, settings of its policy, parameters of a LanguageModel, n seeds
    "bernoulli": ("bernoulli", {}, {}, SEEDS),
    "rdp": ("rdp", PATTERN, {}, SEEDS),
    "tdp": ("tdp", PATTERN, {}, SEEDS),
    "batchwise": ("batchwise", {}, {}, SEEDS),
    "window": ("window", {}, {}, SEEDS),
    "window + recurrent": (
        "window",
        {},
        {"recurrent_dropout": "window", "recurrent_dropout_rate": RATE, "recurrent_sampling": "outputs"},
        SEEDS,
    ),
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
    """Parameters of a LanguageModel: a policy with these settings, and the other parameters."""
    from numbanet.dropout import policy

    chosen = policy(dropout, rate)
    return {"dropout": type(chosen)(rate, **settings) if settings else chosen, **others}


def experiments(options: Options) -> Iterator[Experiment]:
    """Experiments with dropout, then those without."""
    for rate, ways in ((RATE, DROPOUTS), (0.0, GATES)):
        chosen = training.text_settings(options, HIDDEN, WORDS, EPOCHS, rate, TARGETS, HALVED_AFTER)
        for name, (dropout, settings, others, seeds) in ways.items():
            yield Experiment(chosen, name, functools.partial(parameters, dropout, rate, settings, others), seeds)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""
    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=1)


def plot(results: Results, path: Path) -> None:
    """Plot the validation perplexity by epoch and by seconds."""
    from ..machinery.plots import plot_runs

    plot_runs(results.runs, path)
