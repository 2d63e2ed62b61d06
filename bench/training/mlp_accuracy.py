"""Test accuracy of each kind of dropout by rate: after equal epochs, after equal time, and with early stopping.

MLPs of two widths on all images of MNIST and Fashion-MNIST, and on the first 5000 of them, on which networks overfit; three
seeds. A twelfth of the training samples is held out in all runs and scored after each epoch. With early stopping a run ends
after some epochs without a better score, and its result is the accuracy of the weights with the best score. `falling`: the
learning rate decreases linearly to 0. Wide networks, whose runs take minutes, have one seed. Runs of the first seed have the
machine to themselves; times come from them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.runs import Run, case_of, clocked, difference, whole
from . import SEEDS, Experiment

SUITE = "mlp-accuracy"
RECORDED = ("--json bench/results/mlp-accuracy.json --plot accuracy.png",)
RATES, FALLING, HELD, PATIENCE = (0.3, 0.5, 0.7), 0.5, 1 / 12, 5
DROPOUTS = ("bernoulli", "rdp", "tdp", "batchwise")
CASES = tuple(
    (data, width, samples, epochs, seeds)
    for width, samples, epochs, seeds in ((512, None, 20, SEEDS), (512, 5000, 60, SEEDS), (2048, None, 20, 1))
    for data in ("mnist", "fashion-mnist")
)


def ways() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, name of the kind that it is compared with, parameters of a Net)"""
    for rate in RATES:
        for name in DROPOUTS:
            yield f"{name} p={rate}", f"bernoulli p={rate}", {"dropout": name, "dropout_rate": rate}
    for name in ("none", *DROPOUTS):
        rate = {} if name == "none" else {"dropout_rate": FALLING}
        yield (
            f"falling {name}" + f" p={FALLING}" * bool(rate),
            f"falling bernoulli p={FALLING}",
            {"dropout": name, **rate, "learning_rate_schedule": "linear"},
        )


def experiments(options: Options) -> Iterator[Experiment]:
    """For each case the training without dropout, then each kind."""
    for data, width, samples, epochs, seeds in CASES[:1] if options.quick else CASES:
        chosen = {**training.settings(options, width, 0.0, epochs, data), "held": HELD}
        chosen["samples"] = chosen["samples"] or samples
        every = ("none", f"bernoulli p={FALLING}", {"dropout": "none"}), *ways()
        for name, against, parameters in every:
            yield Experiment(chosen, name, functools.partial(dict, **parameters), seeds, against)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""
    every = list(experiments(options))
    cases = {(case_of(one.settings), one.name): one for one in every}

    def complete(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            row if row["accuracy"] is None else row | _stopped(cases[row["case"], row["implementation"]], results.runs)
            for row in rows
        ]

    return training.run(options, results, say, SUITE, every, (), alone=1, complete=complete)


def stopped(run: Run) -> tuple[int, int]:
    """(n epochs trained, the epoch with the best score, counted from 1) of a run with early stopping."""
    held = [epoch["held"] for epoch in run["epochs"]]
    best = 0
    for number, score in enumerate(held):
        if score > held[best]:
            best = number
        elif number - best >= PATIENCE:
            return number + 1, best + 1
    return len(held), best + 1


def _stopped(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Any]:
    """Entries of a row: accuracy and seconds with early stopping, and percentage points against its baseline in equal time."""
    pair = [
        run
        for run in runs
        if run["settings"] == experiment.settings and whole(run) and run["dropout"] in (experiment.name, experiment.against)
    ]
    mine, comparable = [run for run in pair if run["dropout"] == experiment.name], clocked(pair)
    values = [run["epochs"][stopped(run)[1] - 1]["accuracy"] for run in mine]
    ours, theirs = ([run for run in comparable if run["dropout"] == name] for name in (experiment.name, experiment.against))
    seconds = [sum(epoch["seconds"] for epoch in run["epochs"][: stopped(run)[0]]) for run in ours]
    ahead = (
        None
        if experiment.name == experiment.against
        else difference(ours, theirs, lambda epoch: 100 * epoch["accuracy"], in_time=True)
    )
    return {
        "stopped": float(np.mean(values)),
        "stopped_min": min(values),
        "stopped_max": max(values),
        "stopped_seconds": float(np.mean(seconds)) if seconds else None,
        "points_in_time": ahead,
    }


def plot(results: Results, path: Path) -> None:
    """Plot the test error by rate, a panel for each case."""
    from ..machinery.plots import plot_rates

    plot_rates([row for row in results.rows if row["suite"] == SUITE], path)
