"""Test accuracy over seconds of training: each kind of dropout, in all epochs or in the first three quarters, against none.

MLPs with two hidden layers on MNIST, Fashion-MNIST and a generated table, SGD with momentum 0.9, p = 0.5, three seeds. Each
kind of dropout has its own learning rate: the one of a grid with the highest mean accuracy in the last ten epochs, on a tenth
of the training samples that is held out in these runs; they have one seed, or three if there are few samples. Runs that choose
learning rates are parallel, on one thread each; the others have the machine to themselves.

Accuracies and times are medians over seeds. The target of a case is the accuracy with which training without dropout ends,
minus 0.2 percentage points; times are divided by the seconds of this whole training with the same seed. Kinds are compared only
if `none` is trained as well: --only "784-512.*: (none|window)".
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import training
from ..machinery.harness import Options
from ..machinery.machine import processor
from ..machinery.results import Results
from ..machinery.runs import Run, case_of, elapsed, seconds_to, timed, whole
from ..steps import BATCH
from . import SEEDS, Data, Experiment
from .rows import summary

SUITE = "time-to-accuracy"
RECORDED = (
    "--json bench/results/time-to-accuracy.json --plot time-to-accuracy.png",
    '--device cuda --only "784-4096.*: (none|(rdp|batchwise|window) early)$" --json bench/results/time-to-accuracy-h200.json',
)
DROPOUTS = ("bernoulli", "rdp", "tdp", "batchwise", "window")
RATE, UNTIL = 0.5, 0.75
HELD = 0.1  # share of the samples that choose a learning rate
CHOOSING_SEEDS = 1, 3  # number of seeds of the runs that choose a learning rate; the second, of at most FEW_SAMPLES samples
FEW_SAMPLES = 5000
LAST = 10  # epochs of which the mean chooses a learning rate: with a high one, single epochs swing by some points
BELOW = 0.002  # the target is below the accuracy of `none` by this
TABLE, FEATURES, CLASSES = "generated table", 54, 7
WARM_UP_EPOCHS, QUICK_SAMPLES = 4, 300  # EarlyDropout changes the rate after the third of four epochs


class Problem(NamedTuple):
    """Training data, the width of both hidden layers, and hyperparameters.

    Attributes
    ----------
    samples : int, optional
        Only the first n training samples.
    wrong : float
        Share of the training samples whose label is replaced by another one, drawn from the seed.
    """

    data: str
    hidden: int
    epochs: int
    samples: int | None = None
    wrong: float = 0.0
    learning_rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    batch: int = BATCH


PROBLEMS = (
    Problem("mnist", 512, 20),
    Problem("fashion-mnist", 512, 20),
    Problem("mnist", 2048, 15),
    Problem("fashion-mnist", 2048, 15),
    Problem("mnist", 4096, 10),
    Problem("fashion-mnist", 4096, 10),
    Problem("mnist", 512, 60, samples=1000),
    Problem("fashion-mnist", 512, 60, samples=1000),
    Problem("mnist", 512, 60, samples=5000),
    Problem("fashion-mnist", 512, 60, samples=5000),
    Problem("mnist", 512, 20, wrong=0.2),
    Problem("fashion-mnist", 512, 20, wrong=0.2),
    Problem(TABLE, 512, 40),
)


# --- data -------------------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def _parts(data: str) -> Data:
    """X, y, X_test, y_test of a data set; that of the last call is kept, because runs of a case follow each other."""
    from sklearn.datasets import make_classification
    from sklearn.model_selection import train_test_split

    from numbanet import datasets

    if data != TABLE:
        return datasets.load(data)
    options = {"n_informative": 16, "n_redundant": 10, "n_clusters_per_class": 4, "class_sep": 1.5, "flip_y": 0.02}
    X, y = make_classification(20_000, FEATURES, n_classes=CLASSES, random_state=0, **options)
    X, X_test, y, y_test = train_test_split(X, y, test_size=4000, random_state=0, stratify=y)
    centre, spread = X.mean(axis=0), X.std(axis=0)
    return np.float32((X - centre) / spread), y, np.float32((X_test - centre) / spread), y_test


def load(chosen: dict[str, Any], seed: int) -> Data:
    """The data of a problem's settings; the seed chooses the wrong labels."""
    X, y, *test = _parts(chosen["data"])
    X, y = X[: chosen["samples"]], y[: chosen["samples"]].copy()
    rng, classes = np.random.default_rng(seed), int(y.max()) + 1
    rows = rng.choice(len(y), round(chosen.get("wrong", 0.0) * len(y)), replace=False)
    y[rows] = (y[rows] + rng.integers(1, classes, len(rows))) % classes
    return X, y, *test


# --- experiments ------------------------------------------------------------------------------------------------------
def settings(options: Options, problem: Problem) -> dict[str, Any]:
    """Settings of a problem; "learning_rate" is the grid, and each run has its own."""
    chosen = training.settings(options, problem.hidden, 0.0, problem.epochs, problem.data)
    return {
        **chosen,
        "samples": QUICK_SAMPLES if options.quick else problem.samples,
        **({"wrong": problem.wrong} if problem.wrong else {}),
        **({"table": [FEATURES, CLASSES]} if problem.data == TABLE else {}),
        "batch": problem.batch,
        "learning_rate": list(problem.learning_rates),
        "choosing_seeds": CHOOSING_SEEDS[problem.samples is not None and problem.samples <= FEW_SAMPLES],
    }


def kinds() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, parameters of a Net)"""
    from numbanet import EarlyDropout

    yield "none", {"dropout": "none"}
    for dropout in DROPOUTS:
        yield dropout, {"dropout": dropout, "dropout_rate": RATE}
        yield f"{dropout} early", {"dropout": dropout, "dropout_rate": EarlyDropout(RATE, until=UNTIL)}


def experiments(options: Options) -> Iterator[tuple[Experiment, list[Experiment]]]:
    """For each problem and kind of dropout the experiment without its learning rate, and those that choose it."""
    for problem in PROBLEMS[:1] if options.quick else PROBLEMS:
        chosen = settings(options, problem)
        for name, parameters in kinds():
            variant: Callable[[], dict[str, Any]] = functools.partial(dict, init="glorot", **parameters)
            measured = Experiment(chosen, name, variant, SEEDS, "none", load=load, warm_up=WARM_UP_EPOCHS)
            yield (
                measured,
                [
                    dataclasses.replace(
                        measured,
                        settings={**chosen, "learning_rate": rate, "held": HELD},
                        name=f"{name}, learning rate {rate:g}",
                        seeds=chosen["choosing_seeds"],
                        warm_up=1,
                    )
                    for rate in problem.learning_rates
                ],
            )


def best_rate(searches: Sequence[Experiment], runs: Sequence[Run]) -> float:
    """The learning rate with the highest mean accuracy on held-out samples in the last epochs. A rate with which a run diverged
    is not chosen; the lowest is, if this is so for all."""

    def held(experiment: Experiment) -> float:
        mine = [one for one in runs if (one["dropout"], one["settings"]) == (experiment.name, experiment.settings)]
        if not mine or not all(map(whole, mine)):
            return -math.inf
        return float(np.mean([epoch["held"] for one in mine for epoch in one["epochs"][-LAST:]]))

    return max(searches, key=held).settings["learning_rate"]


# --- runs -------------------------------------------------------------------------------------------------------------
def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs, for each case first those that choose learning rates; return the rows."""
    pairs = list(experiments(options))
    others = [dataclasses.replace(one, seeds=0) for measured, searches in pairs for one in (measured, *searches)]
    results.resume([one.settings for one in others])  # before `finally` writes the file
    key = lambda one: (one.name, repr(one.settings))  # noqa: E731

    def train(experiments: Sequence[Experiment], alone: int) -> None:
        """Train these; the file may hold runs of the others."""
        these = {key(one) for one in experiments}
        listed = [*experiments, *(one for one in others if key(one) not in these)]
        training.run(dataclasses.replace(options, only=""), results, say, SUITE, listed, (), alone)

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
            for one in best:  # runs with another rate that was chosen before, or on another processor, are made again
                results.runs[:] = [run for run in results.runs if not _replaced(run, one)]
            train(best, alone=SEEDS)
    finally:  # if the command is interrupted, finished runs are reported
        results.rows = rows([measured for measured, _ in pairs], results.runs)
        results.save()
    return results.rows


def _replaced(run: Run, by: Experiment) -> bool:
    """Whether a run is to be made again: times of a case are compared on one processor."""
    if (run["dropout"], run["settings"]) != (by.name, by.settings):
        return False
    return run["learning_rate"] != by.learning_rate or run["processor"] != processor()


def rows(every: Sequence[Experiment], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row for each experiment that has runs: medians over seeds of accuracies, and of times relative to `none`."""
    found = summary(runs, every, SUITE, ())
    chosen = {case_of(experiment.settings): experiment.settings for experiment in every}
    for row in found:
        row.update(_compared(row, [run for run in runs if run["settings"] == chosen[row["case"]]]))
    return found


def _compared(row: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Entries of a row: learning rate, median accuracy, and the comparison with `none` by seconds, between runs of a seed."""

    def of(name: str, among: Sequence[Run]) -> list[Run]:
        return [run for run in among if run["dropout"] == name and whole(run)]

    name = row["implementation"]
    usual = [run["epochs"][-1]["accuracy"] for run in of("none", runs)]
    entries: dict[str, Any] = {
        "learning_rate": next(run["learning_rate"] for run in runs if run["dropout"] == name),
        "target": None,
        "to_target": None,
    }
    if row["accuracy"] is not None:
        entries["accuracy"] = float(np.median([run["epochs"][-1]["accuracy"] for run in of(name, runs)]))
    if not usual or row["accuracy"] is None:
        return entries
    target = float(np.median(usual)) - BELOW
    entries |= {"target": target, "points": 100 * (entries["accuracy"] - float(np.median(usual)))}
    comparable = timed(filter(whole, runs))
    ends = {run["seed"]: elapsed(run)[-1] for run in of("none", comparable)}
    mine = [run for run in of(name, comparable) if run["seed"] in ends]
    if not mine:
        return entries
    times = [seconds_to(target, run) for run in mine]
    ratio = np.median([math.inf if time is None else time / ends[run["seed"]] for time, run in zip(times, mine, strict=True)])
    accuracies = [np.interp(ends[run["seed"]], elapsed(run), [epoch["accuracy"] for epoch in run["epochs"]]) for run in mine]
    return {
        **entries,
        "timed": len(mine),
        "reached": sum(time is not None for time in times),
        "to_target": float(ratio) if math.isfinite(ratio) else None,
        "in_time": float(np.median(accuracies)),
    }


def plot(results: Results, path: Path) -> None:
    """Plot the test accuracy by seconds of training, a panel for each case."""
    from ..machinery.plots import plot_seconds

    plot_seconds(results.rows, [run for run in results.runs if "held" not in run["settings"]], path)
