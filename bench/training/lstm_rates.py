"""Learning rate and clipping of language models: perplexity after one epoch, where large steps shake, and after the last.

Two texts, the first 50,000 and 200,000 words of WikiText-2 with their 2000 most frequent ones, two layers of 128 units, no
dropout, no schedule, three seeds: what `LanguageModel` does by default, but for its size.
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
    """Each text with each kind of steps; quick, the first text alone."""
    found = []
    for words, epochs in list(TEXTS.items())[: 1 if options.quick else None]:
        chosen = training.text_settings(options, HIDDEN, words, epochs, 0.0, (), epochs)
        chosen |= {} if options.quick else {"vocabulary": VOCABULARY, "validation": VALIDATION}
        found += [
            Experiment(
                {**chosen, "learning_rate": rate, "clip_norm": clip},
                f"{rate:g}, clipped to {clip:g}",
                functools.partial(dict, dropout="none"),
            )
            for rate, clip in STEPS
        ]
    return found


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows of `ends`."""
    every = experiments(options)
    try:
        training.run(options, results, say, SUITE, every, (), alone=0)
    finally:  # an interrupted command, too, reports what is finished
        found = ends(results.runs, every)
        results.add(found)
    return found


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
        for name, at in (("first", 0), ("last", -1)) if not row["diverged"] else ():
            values = [run["epochs"][at]["perplexity"] for run in mine]
            row |= {name: float(np.mean(values)), f"{name}_min": min(values), f"{name}_max": max(values)}
        rows.append(row)
    return rows


def plot(results: Results, path: Path) -> None:
    """Validation perplexity by epoch, and by seconds where all runs had the machine to themselves."""
    from ..machinery.plots import plot_runs

    plot_runs(results.runs, path)
