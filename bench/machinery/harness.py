"""Harness: verify every implementation of a case, then time each against its peer in strict alternation.

    ratio = time of the peer / time of this one,    median of the pairwise ratios, with their 10th and 90th percentile

A turn is a block of repetitions; turns go A B A B …, never two at a time. What is wrong is not timed.
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
Seconds = tuple[float, float | None]  # by the clock on the wall, and by the card's


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line chose for the suites; of the cases, those alone in whose name the regular expression is found, and
    kernels at their usual shapes if not at this one, (samples, inputs, outputs). `before` is another checkout, whose own
    implementations are then the peers."""

    device: str = "cpu"
    against: str | None = None
    quick: bool = False
    only: str = ""
    shape: tuple[int, int, int] | None = None
    before: str | None = None

    def sizes(self, small: Sizes, *usual: Sizes) -> list[Sizes]:
        """(N, I, O) of a kernel's cases: the shape that was asked for, else a small one if quick, else the usual ones."""
        return [self.shape] if self.shape else [small] if self.quick else list(usual)

    def wants(self, name: str) -> bool:
        """Whether a case of this name is to be measured."""
        return re.search(self.only, name) is not None


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how often.

    Attributes
    ----------
    pairs : int
        Turns of each side of a comparison.
    turn : float
        Least seconds of a turn: far above the resolution of the clock and the cost of waking a process.
    pause : float
        Seconds between turns: the thread pools of BLAS and OpenMP spin for up to about 30 ms before they sleep.
    warm_up : int
        Turns of each side that are not counted.
    """

    pairs: int = 15
    turn: float = 0.05
    pause: float = 0.04
    warm_up: int = 2


QUICK = Schedule(pairs=3, turn=0.002, pause=0.001, warm_up=1)  # does it run at all: figures from it are worth nothing


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One way to do a case.

    Attributes
    ----------
    build : callable
        (**parameters) -> Task; a function of a module, because it is called in the worker.
    peer : str, optional
        Name of the implementation of the same case that this one's time is compared with.
    ceiling : float, optional
        The ratio that the FLOPs (or the bytes, where memory binds) would allow.
    flops, bytes : float, optional
        Useful work of one repetition.
    tolerance : float, optional
        In place of the case's, for arithmetic of lower precision.
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
    """Implementations that compute the same.

    Attributes
    ----------
    error : callable
        outputs -> the largest relative error against the reference.
    tolerance : float
        Errors above it, and NaN, are wrong.
    least : int
        Least repetitions of a turn: 1, or more where the cost of a repetition is random.
    pairs : int, optional
        Turns at most, in place of the schedule's, where a repetition takes long.
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
    """One line of the result: an implementation of a case. Times are by the clock on the wall, device_ms by the card's own.
    `problem` says why it was not timed."""

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
    """max |value - reference| / max |reference|; infinite where shapes differ or a value is not finite."""
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
    """Verify and time every implementation of a case; one row each."""
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
            continue  # a peer gets its times from the comparisons
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
    """Verify and time the cases of a suite, one after the other, each recorded when it is done; returns the rows."""
    rows: list[dict[str, Any]] = []
    with Workers(threads(), options.before and Path(options.before)) as workers:
        for case in cases:
            if not options.wants(case.name):
                continue
            case = with_before(case) if options.before else case
            say(f"{suite}: {case.name}")
            found = [dataclasses.asdict(row) for row in measure(case, workers, QUICK if options.quick else schedule)]
            results.add(found)
            rows += found
    return rows


def with_before(case: Case) -> Case:
    """Each implementation as it is, compared with itself as it was before."""
    pairs = [
        (dataclasses.replace(i, name=i.name + BEFORE, peer=None), dataclasses.replace(i, peer=i.name + BEFORE, ceiling=1.0))
        for i in case.implementations
    ]
    return dataclasses.replace(case, implementations=tuple(i for pair in pairs for i in pair))


def _verify(case: Case, implementation: Implementation, workers: Workers, row: Row) -> None:
    """Run it once and compare with the reference; leaves the error, and what is wrong, in the row."""
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
    """How many repetitions make a turn."""
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
    """Peer and this one in turns, A B A B …; without a peer, this one alone."""
    sides = [side for side in (peer, row) if side is not None]
    for side in sides:
        side.repetitions = side.repetitions or _repetitions(workers[side.implementation], schedule, least)
    measured: dict[str, list[Seconds]] = {side.implementation: [] for side in sides}
    for turn in range(schedule.warm_up + schedule.pairs):
        for side in sides:
            time.sleep(schedule.pause)
            found = workers[side.implementation].ask("run", side.repetitions)
            if turn >= schedule.warm_up:
                measured[side.implementation].append(tuple(s if s is None else s / side.repetitions for s in found))
    for name, seconds in measured.items():
        times[name] += seconds
    if peer is not None:
        ratios = [a / b for (a, _), (b, _) in zip(measured[peer.implementation], measured[row.implementation], strict=True)]
        row.ratio, row.ratio_p10, row.ratio_p90 = quantiles(ratios)
