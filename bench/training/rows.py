"""Rows of the results of training runs: means over seeds, and comparisons with the baseline and the peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..machinery.runs import (
    TORCH,
    Run,
    baseline,
    case_of,
    clocked,
    key_of,
    measure,
    perplexity_ratio,
    points,
    seconds_to,
    whole,
)

if TYPE_CHECKING:
    from . import Experiment


def summary(
    runs: Sequence[Run], experiments: Sequence[Experiment], suite: str, targets: Sequence[float]
) -> list[dict[str, Any]]:
    """One row for each experiment that has runs, with the time until each of the targets is reached."""
    by_key: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_key.setdefault((key_of(run["settings"]), run["dropout"]), []).append(run)
    by_case: dict[str, list[Run]] = {}
    for (case, _), group in by_key.items():
        by_case.setdefault(case, []).extend(group)
    comparable = {case: clocked(group) for case, group in by_case.items()}
    return [_row(by_key, comparable, experiment, suite, targets) for experiment in experiments if experiment.key in by_key]


def _time_to(target: float, mine: Sequence[Run], seconds: float | None, longer: float | None) -> dict[str, Any]:
    """An entry of a row: n runs that reach the target, their mean seconds, and the speed-up over `longer` seconds."""
    return {
        "target": target,
        "reached": sum(seconds_to(target, run) is not None for run in mine),
        "seconds": seconds,
        "shorter": longer / seconds if seconds and longer else None,
    }


def _mean_seconds_to(target: float, runs: Sequence[Run]) -> float | None:
    """The mean seconds until runs reach the target; None unless all of them do."""
    times = [seconds_to(target, run) for run in runs]
    return float(np.mean(times)) if times and None not in times else None


def _row(
    by_key: dict[tuple[str, str], list[Run]],
    comparable: dict[str, list[Run]],
    experiment: Experiment,
    suite: str,
    targets: Sequence[float],
) -> dict[str, Any]:
    case, mine, what = experiment.key[0], by_key[experiment.key], measure(experiment.settings)
    row = {
        "suite": suite,
        "case": case_of(experiment.settings),
        "implementation": experiment.name,
        "seeds": len(mine),
        what: None,
    }
    if not all(map(whole, mine)):
        return {**row, "diverged": sum(not whole(run) for run in mine)}
    values = [run["epochs"][-1][what] for run in mine]

    def of(name: str | None) -> list[Run]:
        return [run for run in comparable[case] if run["dropout"] == name]

    def times(target: float) -> dict[str, Any]:
        return _time_to(target, mine, *(_mean_seconds_to(target, of(name)) for name in (experiment.name, peer)))

    seconds = [epoch["seconds"] for run in of(experiment.name) for epoch in run["epochs"]]
    usual = experiment.against or baseline(experiment.settings)
    others = list(filter(whole, by_key.get((case, usual), [])))
    peer = next((name for name in (TORCH, usual) if (case, name) in by_key), None)
    peer = None if peer == experiment.name else peer
    against = (
        points(mine, others)
        if what == "accuracy"
        else {
            "of_baseline": perplexity_ratio(mine, others),
            "of_baseline_in_time": perplexity_ratio(of(experiment.name), of(usual), True),
        }
    )
    return {
        **row,
        what: float(np.mean(values)),
        f"{what}_min": min(values),
        f"{what}_max": max(values),
        **against,
        "baseline": usual,
        "seconds_per_epoch": float(np.median(seconds)) if seconds else None,
        "flops_share": float(np.mean([epoch["flops_share"] for run in mine for epoch in run["epochs"]])),
        "peer": peer,
        "times": [times(target) for target in experiment.settings.get("targets", targets)],
    }
