"""What is learned over seconds of training: runs with a learning rate for each kind of dropout, compared with training without.

Each kind of dropout has its own learning rate: the one of a grid with the best mean score in the last ten epochs, on a tenth of
the training samples that is held out in these runs. Runs that choose learning rates are parallel, on one thread each; the
others have the machine to themselves. Results and times are medians over seeds. The target of a case is what training without
dropout ends with, minus 0.2 percentage points of accuracy, or times 1.01 in perplexity; times are divided by the seconds of
this whole training with the same seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import training
from ..machinery.harness import Options
from ..machinery.machine import processor
from ..machinery.results import Results
from ..machinery.runs import Run, case_of, chooses, elapsed, measure, seconds_to, timed, whole
from . import SEEDS, Experiment
from .rows import summary

DROPOUTS = ("bernoulli", "rdp", "tdp", "batchwise", "window")
UNTIL = 0.75
HELD = 0.1  # share of the samples that choose a learning rate
LAST = 10  # epochs of which the mean chooses a learning rate: with a high one, single epochs swing by some points
BELOW, ABOVE = 0.002, 1.01  # the target is below the accuracy of `none` by this; its perplexity is multiplied by this
WARM_UP_EPOCHS = 4  # EarlyDropout changes the rate after the third of four epochs
Pair = tuple[Experiment, list[Experiment]]


# --- experiments ------------------------------------------------------------------------------------------------------
def kinds(rate: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, parameters of an estimator) of each kind of dropout, in all epochs or in the first three quarters"""
    from numbanet import EarlyDropout

    yield "none", {"dropout": "none"}
    for dropout in DROPOUTS:
        yield dropout, {"dropout": dropout, "dropout_rate": rate}
        yield f"{dropout} early", {"dropout": dropout, "dropout_rate": EarlyDropout(rate, until=UNTIL)}


def pair(
    chosen: dict[str, Any],
    name: str,
    variant: Callable[[], dict[str, Any]],
    load: Callable[[dict[str, Any], int], Any] | None = None,
) -> Pair:
    """(the experiment without its learning rate, those that choose it). In the settings "learning_rate" is the grid, and
    "choosing_seeds" the number of seeds of the runs that choose."""
    measured = Experiment(chosen, name, variant, SEEDS, "none", load=load, warm_up=WARM_UP_EPOCHS)
    return (
        measured,
        [
            dataclasses.replace(
                measured,
                settings={**chosen, "learning_rate": rate, "held": HELD},
                name=f"{name}, learning rate {rate:g}",
                seeds=chosen["choosing_seeds"],
                warm_up=1,
            )
            for rate in chosen["learning_rate"]
        ],
    )


def best_rate(searches: Sequence[Experiment], runs: Sequence[Run]) -> float:
    """The learning rate with the highest mean score on held-out samples in the last epochs. A rate with which a run diverged
    is not chosen; the lowest is, if this is so for all."""

    def held(experiment: Experiment) -> float:
        mine = [one for one in runs if (one["dropout"], one["settings"]) == (experiment.name, experiment.settings)]
        if not mine or not all(map(whole, mine)):
            return -math.inf
        return float(np.mean([epoch["held"] for one in mine for epoch in one["epochs"][-LAST:]]))

    return max(searches, key=held).settings["learning_rate"]


# --- runs -------------------------------------------------------------------------------------------------------------
def run(
    options: Options, results: Results, say: Callable[[str], None], suite: str, every: Iterable[Pair]
) -> list[dict[str, Any]]:
    """Train missing runs, for each case first those that choose learning rates; return the rows."""
    pairs, here = list(every), processor()
    others = [dataclasses.replace(one, seeds=0) for measured, searches in pairs for one in (measured, *searches)]
    results.resume([one.settings for one in others])  # before `finally` writes the file
    key = lambda one: (one.name, repr(one.settings))  # noqa: E731

    def train(experiments: Sequence[Experiment], alone: int, again: Callable[[Run], bool] = lambda run: False) -> None:
        """Train these; the file may hold runs of the others."""
        these = {key(one) for one in experiments}
        listed = [*experiments, *(one for one in others if key(one) not in these)]
        training.run(dataclasses.replace(options, only=""), results, say, suite, listed, (), alone, again=again)

    try:
        for case in dict.fromkeys(case_of(measured.settings) for measured, _ in pairs):
            chosen = [
                (measured, searches)
                for measured, searches in pairs
                if case_of(measured.settings) == case and options.wants(f"{case}: {measured.name}")
            ]
            if not chosen:
                continue
            train([search for _, searches in chosen for search in searches], alone=0)
            best = [dataclasses.replace(one, learning_rate=best_rate(searches, results.runs)) for one, searches in chosen]
            # runs with another rate that was chosen before count no longer; those on another processor are made again
            results.runs[:] = [run for run in results.runs if not any(_outdated(run, one) for one in best)]
            train(best, alone=SEEDS, again=lambda run: run["processor"] != here)
    finally:  # if the command is interrupted, finished runs are reported
        results.rows = rows([measured for measured, _ in pairs], results.runs, suite)
        results.save()
    return results.rows


def _outdated(run: Run, by: Experiment) -> bool:
    """Whether a run of an experiment has another learning rate."""
    return (run["dropout"], run["settings"]) == (by.name, by.settings) and run["learning_rate"] != by.learning_rate


# --- rows -------------------------------------------------------------------------------------------------------------
def rows(every: Sequence[Experiment], runs: Sequence[Run], suite: str) -> list[dict[str, Any]]:
    """One row for each experiment that has runs: medians over seeds of results, and of times relative to `none`."""
    found = summary(runs, every, suite, ())
    chosen = {case_of(experiment.settings): experiment.settings for experiment in every}
    for row in found:
        settings = chosen[row["case"]]
        row.update(_compared(row, [run for run in runs if run["settings"] == settings], measure(settings)))
    return found


def _against(value: float, usual: float, what: str) -> dict[str, float]:
    """Entries of a row: the target, and how a median differs from that of `none`: in percentage points, or by this factor."""
    if what == "perplexity":
        return {"target": ABOVE * usual, "of_baseline": value / usual}
    return {"target": usual - BELOW, "points": 100 * (value - usual)}


def _compared(row: dict[str, Any], runs: Sequence[Run], what: str) -> dict[str, Any]:
    """Entries of a row: learning rate, median accuracy or perplexity, and the comparison with `none` by seconds, between runs
    of a seed."""

    def of(name: str, among: Sequence[Run]) -> list[Run]:
        return [run for run in among if run["dropout"] == name and whole(run)]

    name = row["implementation"]
    usual = [run["epochs"][-1][what] for run in of("none", runs)]
    entries: dict[str, Any] = {
        "learning_rate": next(run["learning_rate"] for run in runs if run["dropout"] == name),
        "target": None,
        "to_target": None,
    }
    if row[what] is not None:
        entries[what] = float(np.median([run["epochs"][-1][what] for run in of(name, runs)]))
    if not usual or row[what] is None:
        return entries
    entries |= _against(entries[what], float(np.median(usual)), what)
    comparable = timed(filter(whole, runs))
    ends = {run["seed"]: elapsed(run)[-1] for run in of("none", comparable)}
    mine = [run for run in of(name, comparable) if run["seed"] in ends]
    if not mine:
        return entries
    times = [seconds_to(entries["target"], run) for run in mine]
    ratio = np.median([math.inf if time is None else time / ends[run["seed"]] for time, run in zip(times, mine, strict=True)])
    reached = [np.interp(ends[run["seed"]], elapsed(run), [epoch[what] for epoch in run["epochs"]]) for run in mine]
    return {
        **entries,
        "timed": len(mine),
        "reached": sum(time is not None for time in times),
        "to_target": float(ratio) if math.isfinite(ratio) else None,
        "in_time": float(np.median(reached)),
    }


def plot(results: Results, path: Path) -> None:
    """Plot test accuracy or validation perplexity by seconds of training, a panel for each case."""
    from ..machinery.plots import plot_seconds

    plot_seconds(results.rows, [run for run in results.runs if not chooses(run)], path)
