"""Runs: what recorded training runs say: their case, which of them can be compared by seconds, and by how much they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Run = dict[str, Any]
TORCH = "torch nn.Dropout"


def measure(chosen: dict[str, Any]) -> str:
    """What is measured after each epoch."""
    return "perplexity" if "vocabulary" in chosen else "accuracy"


def baseline(chosen: dict[str, Any]) -> str:
    """The kind of dropout that others are compared with."""
    return "bernoulli" if chosen.get("dropout_rate") else "none"


def both(value: Any) -> tuple[Any, Any]:
    """(of the first hidden layer, of the second)"""
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


def case_of(chosen: dict[str, Any]) -> str:
    """What a case is called."""
    if "network" in chosen:
        return f"{chosen['data']}, {chosen['network']}, {chosen['epochs']} epochs"
    if "vocabulary" in chosen:
        model = f"LSTM {'-'.join(map(str, chosen['lstm']))} p={chosen['dropout_rate']}"
        return f"{chosen['data']}, {chosen['samples']} words, {model}, {chosen['epochs']} epochs"
    h1, h2 = both(chosen["hidden"])
    rates = ", ".join(dict.fromkeys(map(str, both(chosen["dropout_rate"])))) if chosen.get("dropout_rate") else ""
    data = "" if chosen["data"] == "mnist" and not chosen["samples"] else f"{chosen['data']}, "
    few = f"{chosen['samples']} images, " if chosen["samples"] else ""
    return f"{data}{few}784-{h1}-{h2}-10{rates and ' p=' + rates}, {chosen['epochs']} epochs"


def whole(run: Run) -> bool:
    """Whether a training run came to its end; else it diverged."""
    return len(run["epochs"]) == run["settings"]["epochs"]


def timed(runs: Iterable[Run]) -> list[Run]:
    """Those runs of one case whose seconds can be compared: alone on the machine, and all on one kind of processor, the one on
    which most kinds of dropout were trained so."""
    by_processor: dict[str, list[Run]] = {}
    for run in runs:
        if run["alone"]:
            by_processor.setdefault(run["processor"], []).append(run)
    return max(by_processor.values(), key=lambda found: (len({run["dropout"] for run in found}), len(found)), default=[])


def clocked(runs: Iterable[Run]) -> list[Run]:
    """All whole runs of one case, with seconds that can be compared: by epoch the mean of those of its kind that are `timed`.
    What is learned depends on the seed, how long it takes does not. Kinds of which none is timed are left out."""
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
    reached = [s for s, epoch in zip(_seconds(run), run["epochs"], strict=True) if sign * epoch[what] >= sign * target]
    return float(reached[0]) if reached else None


def _seconds(run: Run) -> np.ndarray:
    """Of training, at the end of each epoch."""
    return np.cumsum([epoch["seconds"] for epoch in run["epochs"]])


def difference(mine: Sequence[Run], others: Sequence[Run], of: Callable[[Any], float], in_time: bool = False) -> float | None:
    """By how much something of an epoch is above that of others with the same seed, in the mean: after the last epoch, or after
    as many seconds as the shorter one of the two took, on a line between the ends of epochs."""
    theirs, found = {run["seed"]: run for run in others if whole(run)}, []
    for pair in ((run, theirs[run["seed"]]) for run in mine if whole(run) and run["seed"] in theirs):
        end = min(_seconds(run)[-1] for run in pair) if in_time else math.inf
        ours, its = (np.interp(end, _seconds(run), list(map(of, run["epochs"]))) for run in pair)
        found.append(ours - its)
    return float(np.mean(found)) if found else None


def points(mine: Sequence[Run], others: Sequence[Run]) -> dict[str, float | None]:
    """By how many points the accuracy is above that of others, in the mean."""
    ours, theirs = (float(np.mean([run["epochs"][-1]["accuracy"] for run in of])) if of else None for of in (mine, others))
    return {"points": None if theirs is None else 100 * (ours - theirs)}


def perplexity_ratio(mine: Sequence[Run], others: Sequence[Run], in_time: bool = False) -> float | None:
    """Perplexity over that of others, by the `difference` of logarithms."""
    found = difference(mine, others, lambda epoch: math.log(epoch["perplexity"]), in_time)
    return None if found is None else math.exp(found)
