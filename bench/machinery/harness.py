"""Harness: verify every implementation of a case, then time each in alternation with its peer.

    ratio = time of the peer / time of the implementation

The row of an implementation has the median of the pairwise ratios, with their 10th and 90th percentile. A turn is a block of
repetitions; the two sides take turns, A B A B …, and never run at the same time. An implementation with a wrong result is not
timed.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .machine import threads
from .results import Results
from .worker import BEFORE, Task, WorkerError, Workers

Sizes = tuple[int, int, int]
Seconds = tuple[float, float | None]  # wall time, and GPU time if there is a GPU


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the command line.

    Attributes
    ----------
    device : str
        "cpu", "cuda" or "emulated".
    against : str, optional
        "torch": compare with PyTorch.
    quick : bool
        Small sizes and few repetitions.
    only : str
        A regular expression; a suite runs only the cases whose name it matches.
    shape : (samples, inputs, outputs), optional
        Of kernels, in place of their usual shapes.
    before : str, optional
        Folder of another checkout, whose implementations are then the peers.
    """

    device: str = "cpu"
    against: str | None = None
    quick: bool = False
    only: str = ""
    shape: tuple[int, int, int] | None = None
    before: str | None = None

    def sizes(self, small: Sizes, *usual: Sizes) -> list[Sizes]:
        """(N, I, O) of a kernel's cases: `shape` if it is given, else the small one if `quick`, else the usual ones."""
        return [self.shape] if self.shape else [small] if self.quick else list(usual)

    def wants(self, name: str) -> bool:
        """Whether `only` selects the case of this name."""
        return re.search(self.only, name) is not None

    def only_on_cpu(self, why: str) -> None:
        """Raise ValueError, which begins with `why`, unless the device is the CPU."""
        if self.device != "cpu":
            raise ValueError(f"{why}: use --device cpu")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Length and number of turns.

    Attributes
    ----------
    pairs : int
        n turns of each side of a comparison.
    turn : float
        Seconds that a turn takes at least: far above the resolution of the clock and the cost of waking a process.
    pause : float
        Seconds between turns, after the threads of a worker have come to rest (`worker.rest`).
    warm_up : int
        n turns of each side that are not counted.
    """

    pairs: int = 15
    turn: float = 0.05
    pause: float = 0.04
    warm_up: int = 2


QUICK = Schedule(pairs=3, turn=0.002, pause=0.001, warm_up=1)  # to check that a suite runs; the times mean nothing


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One implementation of a case.

    Attributes
    ----------
    build : callable
        (**parameters) -> Task. It must be a module-level function, because it is pickled for the worker process.
    peer : str, optional
        Name of the implementation of the same case whose time is divided by this one's.
    ceiling : float, optional
        The ratio of the two implementations' FLOPs (of their bytes, if memory bandwidth limits them).
    flops, bytes : float, optional
        Work of one repetition.
    tolerance : float, optional
        Replaces the case's tolerance, for arithmetic of lower precision.
    """

    name: str
    build: Callable[..., Task]
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    peer: str | None = None
    ceiling: float | None = None
    flops: float | None = None
    bytes: float | None = None
    tolerance: float | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """Implementations that compute the same result.

    Attributes
    ----------
    error : callable
        outputs of a Task -> the largest relative error against the reference.
    tolerance : float
        A result is wrong if its error is above the tolerance or NaN.
    least : int
        A turn has at least n repetitions: 1, or more if the cost of a repetition is random.
    pairs : int, optional
        At most n turns, if a repetition takes long; by default the schedule's.
    """

    suite: str
    name: str
    implementations: tuple[Implementation, ...]
    error: Callable[[Mapping[str, Any]], float]
    tolerance: float = 1e-4
    least: int = 1
    pairs: int | None = None


@dataclasses.dataclass
class Row:
    """One row of the results: an implementation of a case. Times are wall times, except device_ms, which is GPU time. `problem`
    is the reason if the implementation was not timed."""

    suite: str
    case: str
    implementation: str
    peer: str | None = None
    median_ms: float | None = None
    p10: float | None = None
    p90: float | None = None
    device_ms: float | None = None
    ratio: float | None = None
    ratio_p10: float | None = None
    ratio_p90: float | None = None
    ceiling: float | None = None
    error: float | None = None
    flops: float | None = None
    bytes: float | None = None
    turns: int = 0
    repetitions: int = 0
    problem: str | None = None


def relative_error(value: Any, reference: Any) -> float:
    """max |value - reference| / max |reference|; infinite if shapes differ or a value is not finite."""
    value, reference = np.asarray(value), np.asarray(reference, np.float64)
    if value.shape != reference.shape:
        return math.inf
    if not value.size:
        return 0.0
    difference = float(np.max(np.abs(value - reference)))
    return difference / max(float(np.max(np.abs(reference))), 1e-30) if math.isfinite(difference) else math.inf


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, 10th percentile, 90th percentile)"""
    return tuple(float(q) for q in np.quantile(values, (0.5, 0.1, 0.9)))


def measure(case: Case, workers: Workers, schedule: Schedule) -> list[Row]:
    """Verify and time every implementation of a case; return one row for each."""
    if case.pairs is not None:
        schedule = dataclasses.replace(schedule, pairs=min(case.pairs, schedule.pairs), warm_up=1)
    rows = {
        i.name: Row(case.suite, case.name, i.name, i.peer, ceiling=i.ceiling, flops=i.flops, bytes=i.bytes)
        for i in case.implementations
    }
    for implementation in case.implementations:
        _verify(case, implementation, workers, rows[implementation.name])
    for row in rows.values():
        if row.problem is None and row.peer and rows[row.peer].problem:
            row.problem = f"not timed: its peer, {row.peer}, failed"
    times: dict[str, list[Seconds]] = {name: [] for name in rows}
    peers = {row.peer for row in rows.values() if row.problem is None}
    for name, row in rows.items():
        if row.problem is not None or (row.peer is None and name in peers):
            continue  # a peer is timed in the comparisons with it
        try:
            _compare(row, rows[row.peer] if row.peer else None, times, workers, schedule, case.least)
        except WorkerError as error:
            row.problem = str(error)
    for name, row in rows.items():
        if times[name]:
            walls, devices = zip(*times[name], strict=True)
            row.median_ms, row.p10, row.p90 = (1e3 * q for q in quantiles(walls))
            row.device_ms = None if None in devices else 1e3 * quantiles(devices)[0]
            row.turns = len(times[name])
    return list(rows.values())


def run_cases(
    suite: str,
    cases: Iterable[Case],
    options: Options,
    results: Results,
    say: Callable[[str], None],
    schedule: Schedule = Schedule(),
) -> list[dict[str, Any]]:
    """Verify and time the cases of a suite one after another, record the rows of each case at once, and return all rows."""
    rows: list[dict[str, Any]] = []
    with Workers(threads(), options.before and Path(options.before)) as workers:
        for case in cases:
            if not options.wants(case.name):
                continue
            case = with_before(case) if options.before else case
            say(f"{suite}: {case.name}")
            measured = [dataclasses.asdict(row) for row in measure(case, workers, QUICK if options.quick else schedule)]
            results.add(measured)
            rows += measured
    return rows


def with_before(case: Case) -> Case:
    """The case with two versions of each implementation: this checkout's, compared with that of the checkout before."""
    pairs = [
        (dataclasses.replace(i, name=i.name + BEFORE, peer=None), dataclasses.replace(i, peer=i.name + BEFORE, ceiling=1.0))
        for i in case.implementations
    ]
    return dataclasses.replace(case, implementations=tuple(i for pair in pairs for i in pair))


def _verify(case: Case, implementation: Implementation, workers: Workers, row: Row) -> None:
    """Run an implementation once and compare it with the reference; store the error, or the problem, in the row."""
    worker = workers[implementation.name]
    try:
        worker.ask("load", (implementation.build, dict(implementation.parameters)))
        error = float(case.error(worker.ask("outputs")))
    except (WorkerError, KeyError, ValueError) as problem:
        row.problem = str(problem)
        return
    row.error = error if math.isfinite(error) else None
    tolerance = case.tolerance if implementation.tolerance is None else implementation.tolerance
    if not error <= tolerance:
        row.problem = f"wrong: relative error {error:.2g} is above {tolerance:.0e}"


def _repetitions(worker: Any, schedule: Schedule, least: int) -> int:
    """n repetitions that take at least the seconds of a turn."""
    count = least
    while True:
        seconds, _ = worker.ask("run", count)
        if seconds >= schedule.turn:
            return count
        wanted = count * schedule.turn / max(seconds, 1e-9) * 1.2
        count = max(count + 1, min(math.ceil(wanted), 20 * count))


def _compare(
    row: Row, peer: Row | None, times: dict[str, list[Seconds]], workers: Workers, schedule: Schedule, least: int
) -> None:
    """Time an implementation and its peer in turns, A B A B …; without a peer, the implementation alone."""
    sides = [side for side in (peer, row) if side is not None]
    for side in sides:
        side.repetitions = side.repetitions or _repetitions(workers[side.implementation], schedule, least)
    measured: dict[str, list[Seconds]] = {side.implementation: [] for side in sides}
    for turn in range(schedule.warm_up + schedule.pairs):
        for side in sides:
            time.sleep(schedule.pause)
            seconds = workers[side.implementation].ask("run", side.repetitions)
            if turn >= schedule.warm_up:
                measured[side.implementation].append(tuple(s if s is None else s / side.repetitions for s in seconds))
    for name, seconds in measured.items():
        times[name] += seconds
    if peer is not None:
        ratios = [a / b for (a, _), (b, _) in zip(measured[peer.implementation], measured[row.implementation], strict=True)]
        row.ratio, row.ratio_p10, row.ratio_p90 = quantiles(ratios)
