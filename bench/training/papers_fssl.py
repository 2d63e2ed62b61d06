"""Structured sparsity learning: accuracy, share of remaining weights, times of training and prediction.

*Performance of Training Sparse Deep Neural Networks on GPUs* removes more than nine tenths of the weights, with twice the
speed-up of unstructured sparsity. Here 784-1024-1024-10 is trained on Fashion-MNIST with a group lasso of rows, columns, both,
and tiles; LeNet-5 on MNIST with a group lasso of filters and rows, and of filters, rows and columns. The baseline of both is
pruning by magnitude. Learning rates decrease linearly to 0. The dense network, the first group lasso and the weaker pruning
have three seeds, the others one. Runs of the first seed have the machine to themselves; times come from them. After training,
the network and a dense one of the initial shape predict the test set in alternation.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.runs import case_of, timed, whole
from ..steps import BATCH
from . import SEEDS, Experiment

SUITE = "papers-fssl"
RECORDED = (
    "--only fashion --json bench/results/papers-fssl.json --plot papers-fssl.png",
    "--only lenet5 --json bench/results/papers-fssl-lenet5.json",
)
TURNS = 9  # n predictions by each of the two networks
EQUAL = 0.001  # accuracies that differ by at most this count as equal
PRUNED = 0.9, 0.95
PRUNING = "pruned "
Groups = tuple[str, ...]


class Network(NamedTuple):
    """A network and its training.

    The strengths were tuned on a half of the images of Fashion-MNIST and a fifth of MNIST's, for the same number of steps. In
    LeNet-5 most weights are in the linear layers, which shrink in the first epochs; most FLOPs are in the convolutions, whose
    filters shrink until the penalty ends.
    """

    made: dict[str, Any]  # settings that define the layers
    data: str
    epochs: int
    targets: tuple[float, ...]  # accuracies; tables show the time until they are reached
    rate: float
    momentum: float
    parameters: dict[str, Any]  # further parameters of the Net
    strengths: dict[Groups, float]  # of the group lasso, by groups
    cost_weight: float  # of another run with the first groups
    keep: float  # the penalty ends at this share of remaining weights, or after half of the epochs


NETWORKS = (
    Network(
        {"hidden": 1024},
        "fashion-mnist",
        24,
        (0.88, 0.885, 0.89),
        0.002,
        0.0,
        {"optimizer": "adam"},
        {("rows",): 0.04, ("columns",): 0.04, ("rows", "columns"): 0.025, ("tiles",): 0.04},
        1.0,
        0.1,
    ),
    Network(
        {"network": "lenet5"},
        "mnist",
        16,
        (0.985, 0.988),
        0.03,
        0.9,
        {"image_shape": (1, 28, 28)},
        {("filters", "rows"): 4e-4, ("filters", "rows", "columns"): 3e-4},
        0.02,
        0.0,
    ),
)


def _parameters(network: Network, sparsity: str | None = None, *given: Any, **named: Any) -> dict[str, Any]:
    """Parameters of a Net, with the sparsity of that name."""
    import numbanet

    value = sparsity and getattr(numbanet, sparsity)(*given, **named)
    return {**network.parameters, "learning_rate_schedule": "linear", "sparsity": value}


def experiments(options: Options) -> Iterator[Experiment]:
    """For each network dense training, each group lasso, and pruning."""
    quick = options.quick
    for network in NETWORKS:
        chosen = {
            "data": network.data,
            "samples": 1000 if quick else None,
            **network.made,
            "epochs": 4 if quick else network.epochs,
            "batch": BATCH,
            "learning_rate": network.rate,
            "momentum": network.momentum,
            "dropout_rate": 0.0,
            "device": options.device,
            "predict": TURNS,
            "targets": list(network.targets),
            **({"hidden": 64} if quick and "hidden" in network.made else {}),
        }
        ways: dict[str, tuple] = {"none": ()}
        for groups, strength in network.strengths.items():
            ways["+".join(groups)] = "GroupLasso", strength, groups
        groups, strength = next(iter(network.strengths.items()))
        ways[f"{'+'.join(groups)}, by time"] = "GroupLasso", strength, groups, network.cost_weight
        ways |= {f"{PRUNING}{share:g}": ("MagnitudePruning", share) for share in PRUNED}
        first = "none", "+".join(groups), f"{PRUNING}{PRUNED[0]:g}"
        for name, kind in ways.items():
            keep = {"keep": network.keep} if "GroupLasso" in kind else {}
            variant = functools.partial(_parameters, network, *kind, **keep)
            yield Experiment(chosen, name, variant, SEEDS if name in first else 1)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows."""

    def complete(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = [row if row.get("diverged") else row | _compared(row, results.runs) for row in rows]
        return [row if row.get("diverged") else row | {"gain_of_pruning": _gain(row, found)} for row in found]

    return training.run(options, results, say, SUITE, list(experiments(options)), (), alone=1, complete=complete)


def _compared(row: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Entries of a row, means over its seeds: share of remaining weights, seconds of training, and speed-ups over dense."""
    of_case = [run for run in runs if case_of(run["settings"]) == row["case"] and whole(run)]

    def of(name: str) -> dict[int, dict[str, Any]]:
        return {run["seed"]: run for run in timed(of_case) if run["dropout"] == name}

    mine, dense = of(row["implementation"]), of("none")
    last = [run["epochs"][-1] for run in mine.values()]
    pairs = [(_seconds(dense[seed]), _seconds(run)) for seed, run in mine.items() if seed in dense]
    return {
        "weights_kept": statistics.mean(
            run["epochs"][-1].get("weights_kept", 1.0) for run in of_case if run["dropout"] == row["implementation"]
        ),
        "training_seconds": _mean(map(_seconds, mine.values())),
        "training_shorter": _mean(a / b for a, b in pairs),
        "prediction_ms": _mean(1e3 * epoch["predict_seconds"] for epoch in last),
        "prediction_shorter": _mean(epoch["predict_dense"] / epoch["predict_seconds"] for epoch in last),
    }


def _mean(values: Iterable[float]) -> float | None:
    """The mean; None if there are no values."""
    numbers = list(values)
    return statistics.mean(numbers) if numbers else None


def _seconds(run: dict[str, Any]) -> float:
    return sum(epoch["seconds"] for epoch in run["epochs"])


def _gain(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """The speed-up of prediction divided by that of the fastest pruned network with at least the same accuracy."""
    if row.get("accuracy") is None or row["implementation"].startswith((PRUNING, "none")) or not row["prediction_shorter"]:
        return None
    gains = [
        other["prediction_shorter"]
        for other in rows
        if other["case"] == row["case"]
        and other["implementation"].startswith(PRUNING)
        and other.get("prediction_shorter")
        and (other.get("accuracy") or 0) >= row["accuracy"] - EQUAL
    ]
    return row["prediction_shorter"] / max(gains) if gains else None


def plot(results: Results, path: Path) -> None:
    """Plot the accuracy by seconds of training and by speed-up of prediction, a row of panels for each network."""
    from ..machinery.plots import plot_fssl

    plot_fssl(results.rows, results.runs, path)
