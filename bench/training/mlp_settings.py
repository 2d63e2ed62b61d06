"""Accuracy by settings of rdp, tdp and windows: scale, largest period, search, alignment, and reordering of neurons.

784-1024-1024-10 on MNIST and Fashion-MNIST at p = 0.5 and 0.7, ten epochs, at most three seeds. Neurons are reordered after
each epoch, and batchwise stands beside them. The smallest dp_max of each rate is the default, and windows are aligned to
multiples of 8 by default.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import training
from ..machinery.harness import Options
from ..machinery.results import Results
from ..machinery.runs import case_of
from . import Experiment

SUITE = "mlp-settings"
RECORDED = ("--json bench/results/mlp-settings.json",)
SCALES, DATA, KINDS = ("pattern", "root", "rate"), ("mnist", "fashion-mnist"), ("rdp", "tdp")
PERIODS = {0.5: (3, 4, 8, 16), 0.7: (4, 5, 8, 16)}
ALIGNMENTS, REORDERED = (1, 8, 16, 32), ("rdp", "window")  # alignments of windows
SETTINGS = "dp_max", "align", "shuffle", "default"
HIDDEN, RATES, EPOCHS = 1024, (0.7, 0.5), 10


def _policy(kind: str, rate: float, **settings: Any) -> dict[str, Any]:
    from numbanet.dropout import POLICIES

    return {"dropout": POLICIES[kind](rate, **settings)}


def variants(rate: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, () -> parameters of a Net) of each combination of settings at a rate."""
    yield "bernoulli", functools.partial(dict, dropout="bernoulli", dropout_rate=rate)
    for kind in KINDS:
        for scale in SCALES:
            for dp_max in PERIODS[rate]:
                yield f"{kind} {scale} dp_max={dp_max}", functools.partial(_policy, kind, rate, scale=scale, dp_max=dp_max)
        yield f"{kind} root dp_max=8 search=sgd", functools.partial(_policy, kind, rate, scale="root", dp_max=8, search="sgd")
    for align in ALIGNMENTS:
        yield f"window align={align}", functools.partial(_policy, "window", rate, align=align)
    for kind in REORDERED:
        yield f"{kind} shuffle=1", functools.partial(_policy, kind, rate, shuffle=1)
    yield "batchwise default", functools.partial(_policy, "batchwise", rate)


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train missing runs; return the rows, the last of which are those of `points`."""
    experiments = [
        Experiment(training.settings(options, HIDDEN, rate, EPOCHS, data), name, variant)
        for data in DATA
        for rate in RATES
        for name, variant in variants(rate)
    ]
    return training.run(
        options, results, say, SUITE, experiments, (), alone=0, complete=lambda rows: [*rows, *points(rows, experiments)]
    )


def points(rows: Sequence[dict[str, Any]], experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """One row for each data set and combination of settings: percentage points against bernoulli, by kind of dropout and
    rate."""
    by_name = {(row["case"], row["implementation"]): row for row in rows}
    table: dict[str, dict[str, Any]] = {}
    for experiment in experiments:
        row = by_name.get((case_of(experiment.settings), experiment.name))
        if row is not None and experiment.name != "bernoulli":
            kind, setting = experiment.name.split(" ", 1)
            line = table.setdefault(f"{experiment.settings['data']}, {setting}", {})
            line[f"{kind} p={experiment.settings['dropout_rate']}"] = row
    columns = [f"{kind} p={rate}" for kind in (*KINDS, "window", "batchwise") for rate in RATES]
    return [
        {
            "suite": f"{SUITE}-points",
            "case": case,
            "seeds": min(row["seeds"] for row in table[case].values()),
            "points_of": {name: _points(table[case].get(name)) for name in columns},
        }
        for case in sorted(table, key=_order)
    ]


def _order(case: str) -> tuple:
    """A sorting key: data set, what is set, default search first, scale, number."""
    data, setting = case.split(", ")
    what = next(index for index, name in enumerate(SETTINGS) if name in setting)
    scale = [index for index, name in enumerate(SCALES) if name in setting]
    return DATA.index(data), what, "search" in setting, scale, [int(number) for number in re.findall(r"\d+", setting)]


def _points(row: dict[str, Any] | None) -> float | str | None:
    return None if row is None else "diverged" if row.get("diverged") else row["points"]


def plot(results: Results, path: Path) -> None:
    """Plot the test accuracy by epoch and by seconds."""
    from ..machinery.plots import plot_runs

    plot_runs(results.runs, path)
