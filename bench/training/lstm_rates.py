"""Learning rate and clipping of language models: perplexity after one epoch, when large steps oscillate, and after the last.

The texts are the first 50,000 and 200,000 words of WikiText-2, with a vocabulary of 2000 words. Two layers of 128 units, no
dropout, no schedule, three seeds: the defaults of `LanguageModel`, except for its size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.runs import Run, case_of, whole
from . import Experiment

SUITE = "lstm-rates"
RECORDED = ("--json bench/results/lstm-rates.json",)
HIDDEN, VOCABULARY, VALIDATION = (128, 128), 2000, 10_000
TEXTS = {50_000: 20, 200_000: 4}  # words: epochs, 20 by default
STEPS = ((20.0, 0.25), (10.0, 0.25), (5.0, 0.25), (20.0, 0.1))  # learning rate, clip_norm


def experiments(options: Options) -> list[Experiment]:
    """Each text with each learning rate and clipping; --quick takes the first text only."""
    every = []
    for words, epochs in list(TEXTS.items())[: 1 if options.quick else None]:
        chosen = training.text_settings(options, HIDDEN, words, epochs, 0.0, (), epochs)
        chosen |= {} if options.quick else {"vocabulary": VOCABULARY, "validation": VALIDATION}
        every += [
            Experiment(
                {**chosen, "learning_rate": rate, "clip_norm": clip},
                f"{rate:g}, clipped to {clip:g}",
                functools.partial(dict, dropout="none"),
            )
            for rate, clip in STEPS
        ]
    return every


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows, the last of which are those of `ends`."""
    every = experiments(options)
    return training.run(
        options, results, say, SUITE, every, (), alone=0, complete=lambda rows: [*rows, *ends(results.runs, every)]
    )


def ends(runs: Sequence[Run], every: Sequence[Experiment]) -> list[dict[str, Any]]:
    """One row for each experiment: perplexity after the first and the last epoch, with the lowest and highest of its seeds."""
    rows = []
    for experiment in every:
        mine = [run for run in runs if (run["settings"], run["dropout"]) == (experiment.settings, experiment.name)]
        if not mine:
            continue
        row = {
            "suite": f"{SUITE}-ends",
            "case": case_of(experiment.settings),
            "seeds": len(mine),
            "implementation": experiment.name,
            "diverged": sum(not whole(run) for run in mine),
            "first": None,
            "last": None,
        }
        for name, epoch in (("first", 0), ("last", -1)) if not row["diverged"] else ():
            values = [run["epochs"][epoch]["perplexity"] for run in mine]
            row |= {name: float(np.mean(values)), f"{name}_min": min(values), f"{name}_max": max(values)}
        rows.append(row)
    return rows


def plot(results: Results, path: Path) -> None:
    """Plot validation perplexity by epoch, and by seconds if the runs had the machine to themselves."""
    from ..machinery.plots import plot_runs

    plot_runs(results.runs, path)
