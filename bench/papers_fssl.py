"""Structured sparsity learning: accuracy, share of weights kept, time of training and of prediction, against dense and pruned.

*Performance of Training Sparse Deep Neural Networks on GPUs*: more than nine tenths of the weights gone, and twice the gain of
unstructured sparsity. 784-1024-1024-10 on Fashion-MNIST under a group lasso of rows, columns, both, and tiles; LeNet-5 on
MNIST under one of filters with rows, and with columns too; both pruned by magnitude, the baseline. Three seeds, Adam, a rate
that falls to 0. After training, the network and a dense one of the first shape predict the test set in turn.
"""
from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import training
from .harness import Options
from .mlp import BATCH
from .results import Results
from .training import Experiment

TURNS = 9           # of prediction, by each of the two networks
EQUAL = 0.001       # of accuracy: as far as two are called equal
NETWORKS = {  # what is trained, on what, how many epochs, the accuracies to which the time is told
    "mlp": ({"hidden": 1024}, "fashion-mnist", 24, (0.88, 0.885, 0.89)),
    "lenet5": ({"network": "lenet5"}, "mnist", 16, (0.985, 0.988))}
STRENGTHS: dict[str, dict[tuple[str, ...], float]] = {
    "mlp": {("rows",): 0.06, ("columns",): 0.06, ("rows", "columns"): 0.04, ("tiles",): 0.06},
    "lenet5": {("filters", "rows"): 0.06, ("filters", "rows", "columns"): 0.04}}
KEEP, PRUNED = 0.1, (0.9, 0.95)
PRUNING = "pruned "


def _lasso(groups: tuple[str, ...], strength: float, cost_weight: float = 0.0) -> dict[str, Any]:
    """Parameters of a Net."""
    from numbanet import GroupLasso

    return {**_usual(), "sparsity": GroupLasso(strength, groups, cost_weight, keep=KEEP)}


def _pruned(share: float) -> dict[str, Any]:
    from numbanet import MagnitudePruning

    return {**_usual(), "sparsity": MagnitudePruning(share)}


def _usual() -> dict[str, Any]:
    return {"optimizer": "adam", "schedule": "linear"}


def experiments(options: Options) -> Iterator[Experiment]:
    """Dense training, each way to group, and pruning, for each network."""
    quick = options.quick
    for network, (made, data, epochs, targets) in NETWORKS.items():
        chosen = {"data": data, "samples": 1000 if quick else None, **made, "epochs": 4 if quick else epochs, "batch": BATCH,
                  "learning_rate": 0.001, "momentum": 0.0, "dropout_rate": 0.0, "device": options.device, "predict": TURNS,
                  "targets": list(targets), **({"hidden": 64} if quick and "hidden" in made else {})}
        shape = {"image_shape": (1, 28, 28)} if network == "lenet5" else {}

        def experiment(name: str, variant: Callable[[], dict[str, Any]], chosen=chosen, shape=shape) -> Experiment:
            return Experiment(chosen, name, lambda: {**variant(), **shape})

        yield experiment("none", _usual)
        for groups, strength in STRENGTHS[network].items():
            yield experiment("+".join(groups), functools.partial(_lasso, groups, strength))
        groups, strength = next(iter(STRENGTHS[network].items()))
        yield experiment(f"{'+'.join(groups)}, by time", functools.partial(_lasso, groups, strength, 1.0))
        for share in PRUNED:
            yield experiment(f"{PRUNING}{share:g}", functools.partial(_pruned, share))


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train what is not trained yet; returns the rows."""
    rows = training.run(options, results, say, "papers-fssl", list(experiments(options)), ())
    for row in rows:
        row.update(_compared(row, results.runs))
    for row in rows:
        row["gain_of_pruning"] = _gain(row, rows)
    results.save()
    return rows


def _compared(row: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of a row: the share of weights kept, seconds of training, and dense over own time."""
    def of(name: str) -> dict[int, dict[str, Any]]:
        return {run["seed"]: run for run in runs if training.case_of(run["settings"]) == row["case"] and run["dropout"] == name}

    mine, dense = of(row["implementation"]), of("none")
    last = [run["epochs"][-1] for run in mine.values()]
    pairs = [(_seconds(dense[seed]), _seconds(run)) for seed, run in mine.items() if seed in dense]
    return {"weights_kept": statistics.mean(epoch.get("weights_kept", 1.0) for epoch in last),
            "training_seconds": statistics.mean(map(_seconds, mine.values())),
            "training_shorter": statistics.mean(a / b for a, b in pairs) if pairs else None,
            "prediction_ms": statistics.mean(1e3 * epoch["predict_seconds"] for epoch in last),
            "prediction_shorter": statistics.mean(epoch["predict_dense"] / epoch["predict_seconds"] for epoch in last)}


def _seconds(run: dict[str, Any]) -> float:
    return sum(epoch["seconds"] for epoch in run["epochs"])


def _gain(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """How many times the gain in prediction is that of the fastest pruned network that is as accurate, or more."""
    if row.get("accuracy") is None or row["implementation"].startswith((PRUNING, "none")):
        return None
    gains = [other["prediction_shorter"] for other in rows if other["case"] == row["case"] and other.get("accuracy") is not None
             and other["implementation"].startswith(PRUNING) and other["accuracy"] >= row["accuracy"] - EQUAL]
    return row["prediction_shorter"] / max(gains) if gains else None


def plot(results: Results, path: Path) -> None:
    """Accuracy by seconds of training, and by time of prediction, a row of panels for each network."""
    from .plots import plot_fssl

    plot_fssl(results.rows, results.runs, path)
