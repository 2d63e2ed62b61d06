"""Growth of the time of a training step with its FLOPs: 784-H-H-10, H from 512 to 8192, p = 0.5.

For each kind of dropout, log(time - fixed) is fitted by a line in log(FLOPs), where `fixed` is the time of a step at H = 32,
which has almost no FLOPs. With a slope of 1, skipping a share of the FLOPs saves the same share of the time at every size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..machinery.harness import Case, Options, Schedule, run_cases
from ..machinery.results import Results
from . import BATCH, TOLERANCE, mlp_model

SUITE = "mlp-scaling"
RECORDED = ("--json bench/results/mlp-scaling.json --plot scaling.png",)
TINY, WIDTHS, RATE, DROPOUTS = 32, (512, 1024, 2048, 4096, 8192), 0.5, ("rdp", "tdp")
STEPS, FEWER_STEPS, WIDE = 20, 6, 4096  # n steps of a turn, below width WIDE and from it on
LONG = Schedule(pairs=9, turn=0.5)  # long turns, so that the time to wake a worker is negligible for small steps, too


def cases(options: Options) -> Iterator[Case]:
    """Each width without dropout (the peer) and with each pattern."""
    for hidden in (TINY, 128, 256) if options.quick else (TINY, *WIDTHS):
        implementations = [mlp_model.numbanet_implementation(options, hidden, BATCH, "none", 0.0, None)]
        implementations += [mlp_model.numbanet_implementation(options, hidden, BATCH, name, RATE, "none") for name in DROPOUTS]
        steps = 2 if options.quick else FEWER_STEPS if hidden >= WIDE else STEPS
        yield Case(
            SUITE,
            _name(hidden),
            tuple(implementations),
            functools.partial(mlp_model.update_error, hidden, BATCH),
            TOLERANCE,
            steps,
        )


def _name(hidden: int) -> str:
    return f"784-{hidden}-{hidden}-10 p={RATE}"


def fits(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind of dropout whose narrowest network was timed as well: slope, fixed time, and the largest relative
    error of the line.
    """
    fitted = []
    for name in dict.fromkeys(row["implementation"] for row in rows):
        of_case = {row["case"]: row for row in rows if row["implementation"] == name and row["median_ms"]}
        narrow = of_case.pop(_name(TINY), None)
        if narrow is None or len(of_case) < 2:
            continue
        fixed, others = narrow["median_ms"], [(row["flops"], row["median_ms"]) for row in of_case.values()]
        flops, ms = np.array(others).T
        x, y = np.log(flops), np.log(np.maximum(ms - fixed, 1e-6))
        slope, start = np.polyfit(x, y, 1)
        fitted.append(
            {
                "suite": f"{SUITE}-fit",
                "case": f"{len(others)} widths",
                "implementation": name,
                "fixed_ms": fixed,
                "slope": float(slope),
                "start": float(start),
                "worst": float(np.exp(np.max(np.abs(y - start - slope * x))) - 1),
            }
        )
    return fitted


def run(options: Options, results: Results, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time the widths and fit the lines; return the rows, the last of which are those of the fit."""
    results.add(fits(run_cases(SUITE, cases(options), options, results, say, LONG)))
    return results.rows


def plot(results: Results, path: Path) -> None:
    """Plot time minus the fixed time against FLOPs on logarithmic axes, with the fitted lines."""
    from ..machinery.plots import plot_scaling

    plot_scaling(results.rows, path)
