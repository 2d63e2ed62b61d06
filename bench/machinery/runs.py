"""Runs: evaluates recorded training runs: their case, which of them can be compared by seconds, and how much they differ."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Run = dict[str, Any]
TORCH = "torch nn.Dropout"


def key_of(settings: dict[str, Any]) -> str:
    """Settings as a string, which can be a dictionary key."""
    return json.dumps(settings, sort_keys=True)


def measure(chosen: dict[str, Any]) -> str:
    """The measure after each epoch: perplexity of language models, else accuracy."""
    return "perplexity" if "vocabulary" in chosen else "accuracy"


def baseline(chosen: dict[str, Any]) -> str:
    """The kind of dropout that the others are compared with."""
    return "bernoulli" if chosen.get("dropout_rate") else "none"


def chooses(run: Run) -> bool:
    """Whether a training run only chooses a learning rate, by samples that are held out."""
    return {"held", "choosing_seeds"} <= run.get("settings", {}).keys()


def both(value: Any) -> tuple[Any, Any]:
    """(value of the first hidden layer, value of the second), which are equal if only one is given"""
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


def case_of(chosen: dict[str, Any]) -> str:
    """The name of a case, from its settings."""
    if "network" in chosen:
        return f"{chosen['data']}, {chosen['network']}, {chosen['epochs']} epochs"
    if "vocabulary" in chosen:
        model = f"LSTM {'-'.join(map(str, chosen['lstm']))} p={chosen['dropout_rate']}"
        return f"{chosen['data']}, {chosen['samples']} words, {model}, {chosen['epochs']} epochs"
    h1, h2 = both(chosen["hidden"])
    rates = ", ".join(dict.fromkeys(map(str, both(chosen["dropout_rate"])))) if chosen.get("dropout_rate") else ""
    few = f"{chosen['samples']} images, " if chosen["samples"] else ""
    few += f"{chosen['wrong']:.0%} wrong labels, " if chosen.get("wrong") else ""
    data = "" if chosen["data"] == "mnist" and not few else f"{chosen['data']}, "
    features, classes = chosen.get("table", (784, 10))
    return f"{data}{few}{features}-{h1}-{h2}-{classes}{rates and ' p=' + rates}, {chosen['epochs']} epochs"


def whole(run: Run) -> bool:
    """Whether a training run has all its epochs; else it diverged."""
    return len(run["epochs"]) == run["settings"]["epochs"]


def timed(runs: Iterable[Run]) -> list[Run]:
    """The runs of one case whose seconds can be compared. Each of them ran alone on the machine, and all ran on one kind of
    processor: the one on which most kinds of dropout were trained."""
    by_processor: dict[str, list[Run]] = {}
    for run in runs:
        if run["alone"]:
            by_processor.setdefault(run["processor"], []).append(run)
    return max(by_processor.values(), key=lambda group: (len({run["dropout"] for run in group}), len(group)), default=[])


def clocked(runs: Iterable[Run]) -> list[Run]:
    """All complete runs of one case, with seconds that can be compared: the mean seconds of each epoch over the `timed` runs of
    the same kind of dropout. The seed changes the accuracy but not the time of an epoch. Kinds of dropout without a timed run
    are left out."""
    runs, seconds = list(filter(whole, runs)), {}
    for run in timed(runs):
        seconds.setdefault(run["dropout"], []).append([epoch["seconds"] for epoch in run["epochs"]])
    return [
        {
            **run,
            "epochs": [
                {**epoch, "seconds": float(mean)}
                for epoch, mean in zip(run["epochs"], np.mean(seconds[run["dropout"]], axis=0), strict=True)
            ],
        }
        for run in runs
        if run["dropout"] in seconds
    ]


def seconds_to(target: float, run: Run) -> float | None:
    """Seconds of training until an epoch ends with this test accuracy, or this perplexity; None if none does."""
    what, sign = measure(run["settings"]), -1 if measure(run["settings"]) == "perplexity" else 1
    reached = [s for s, epoch in zip(elapsed(run), run["epochs"], strict=True) if sign * epoch[what] >= sign * target]
    return float(reached[0]) if reached else None


def elapsed(run: Run) -> np.ndarray:
    """Seconds of training until the end of each epoch."""
    return np.cumsum([epoch["seconds"] for epoch in run["epochs"]])


def difference(mine: Sequence[Run], others: Sequence[Run], of: Callable[[Any], float], in_time: bool = False) -> float | None:
    """The mean difference of of(epoch) between pairs of runs with the same seed.

    It is taken after the last epoch or, with in_time, after the seconds of the shorter run of a pair, interpolated linearly
    between epochs. None if there is no pair.
    """
    theirs, differences = {run["seed"]: run for run in others if whole(run)}, []
    for pair in ((run, theirs[run["seed"]]) for run in mine if whole(run) and run["seed"] in theirs):
        end = min(elapsed(run)[-1] for run in pair) if in_time else math.inf
        ours, its = (np.interp(end, elapsed(run), list(map(of, run["epochs"]))) for run in pair)
        differences.append(ours - its)
    return float(np.mean(differences)) if differences else None


def points(mine: Sequence[Run], others: Sequence[Run]) -> dict[str, float | None]:
    """{"points": the final accuracy minus that of the others, in percentage points, the mean over seeds that both have}"""
    return {"points": difference(mine, others, lambda epoch: 100 * epoch["accuracy"])}


def perplexity_ratio(mine: Sequence[Run], others: Sequence[Run], in_time: bool = False) -> float | None:
    """Perplexity divided by that of the others: exp of the `difference` of logarithms."""
    logarithm = difference(mine, others, lambda epoch: math.log(epoch["perplexity"]), in_time)
    return None if logarithm is None else math.exp(logarithm)
