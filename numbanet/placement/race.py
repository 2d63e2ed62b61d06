"""Races: whole training steps of a few placements, measured in turns, decide between them.

A sum of layers' times leaves out what a step does beside its layers, what a recorded step saves as a whole, and what devices do
to each other's threads and caches. A race costs a fraction of a second, and needs no model of these.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..arguments import check_count, host_array, is_real
from ..device import Device, device
from ..dropout import Dropout, NoDropout
from ..layers import Layer, Sequential
from ..parallel.ranks import current
from ..tensor import Tensor
from ..training.data import Data, on_device
from ..training.large.rows import Rows
from ..training.optim import Optimizer
from ..training.stepper import Stepper
from ..training.streams import Streams
from ..training.task import Classification, Task
from ..user_warnings import warn
from .figures import Figure
from .measure import check_maker, usual_optimizer
from .result import Placement, Tried
from .stages import sequential
from .table import Profile

Measure = Callable[[Sequence[Placement]], Sequence[float]]
Run = Callable[[int], float]  # makes n steps and returns the seconds of one
SAME = 0.01  # placements that differ only in stages that cost less than this share of a step on all devices are nearly equal
WORTH = 0.01  # a placement on several devices is chosen if it saves at least this share
WARM, VARIED = 3, 16  # steps before the first turn: each kind of step is recorded at its second occurrence
LEAST, MOST, SECONDS = 3, 15, 0.6  # turns, and the time after which there are no more of them
TURN, LATE = 0.01, 1.25  # least seconds of a turn; what takes longer than this, relative to the fastest, drops out


# --- who runs ---------------------------------------------------------------------------------------------------------
def distinct(profile: Profile, ranked: Sequence[Placement], most: int) -> list[Placement]:
    """Return the first n = `most` placements that differ in a stage that counts."""
    check_count("most", most, least=0)
    if not ranked:
        return []
    whole, counts = ranked[0].ms.number, []
    for stage in profile.stages:
        costs = [profile.cost(stage, name, ranked[0].training)[0] for name in profile.names]
        counts.append(max(cost.value for cost in costs if cost.value is not None) >= SAME * whole)
    found: dict[tuple, Placement] = {}
    for each in ranked:
        found.setdefault(tuple(stage.device for stage, heavy in zip(each.stages, counts) if heavy), each)
    return list(found.values())[:most]


def fastest(runners: Sequence[Placement], measure: Measure) -> Placement:
    """Return the placement whose step takes the least time as measured, with all times; one device is preferred.

    Raises
    ------
    ValueError
        If no step can be made.
    """
    took = measure(runners)
    took = list(took) if isinstance(took, Iterable) else [took]
    if len(took) != len(runners) or not all(map(is_real, took)):
        raise ValueError(f"choose: measure must return {len(runners)} numbers, the ms of a step of each placement, got {took}")
    if not any(map(math.isfinite, took)):
        raise ValueError("choose: no placement can make a step; each failure was warned of")
    tried = tuple(
        Tried(tuple(stage.device for stage in each.stages), each.ms, Figure(ms))
        for each, ms in zip(runners, took, strict=True)
        if math.isfinite(ms)
    )
    best = min(range(len(took)), key=lambda i: took[i] * (1 + WORTH * (len(set(runners[i].devices.values())) > 1)))
    return dataclasses.replace(runners[best], step_ms=Figure(took[best]), tried=tried)


# --- the race ---------------------------------------------------------------------------------------------------------
def in_turns(runs: Sequence[Run | None], seconds: float = SECONDS, late: float = LATE) -> list[float]:
    """Return the milliseconds of a step of each run, in the fastest turn, because others may use the machine; inf for None.

    A turn begins with a step that does not count, so that the threads of the run before it are asleep. All turns make the same
    number of steps, so that all runs see the same plans. Runs that are clearly late make no more turns.
    """
    took: list[list[float]] = [[] for _ in runs]
    left = {i: run for i, run in enumerate(runs) if run is not None}
    first = {i: run(1) for i, run in left.items()}
    steps = max(1, math.ceil(TURN / max(min(first.values(), default=1.0), 1e-5)))
    began = time.perf_counter()
    for turn in range(MOST):
        for i, run in list(left.items()):
            run(1)
            took[i].append(run(steps))
        if turn + 1 >= LEAST:
            best = min((min(took[i]) for i in left), default=0.0)
            left = {i: run for i, run in left.items() if min(took[i]) <= late * best and math.isfinite(max(took[i]))}
            if time.perf_counter() - began > seconds or len(left) < 2:
                break
    return [1e3 * min(seconds, default=math.inf) if math.inf not in seconds else math.inf for seconds in took]


def where(names: Sequence[str]) -> tuple[list[str], Device, int | None]:
    """Return (devices of the layers, device of the run, its limit of threads) such that a run is as fast as possible: if all
    layers are on one device, the run is on it, so that steps are recorded, and "cpu:2" is the CPU with a limit of two threads.
    """
    if len(set(names)) > 1:
        return list(names), device("auto"), None
    base, _, threads = names[0].partition(":")
    return [base] * len(names), device(base), int(threads) if threads else None


def run(
    model: Sequential, names: Sequence[str], make: Callable[[Sequential, Device, int | None], Stepper], data: Data, size: int
) -> Run | None:
    """Return the run of steps of a copy of the model whose layers are on these devices, warm; None, with a warning, if a step
    cannot be made. A step that fails later warns and takes infinitely long. make(model, device, limit of threads) returns a
    `Stepper`; a batch has n = `size` samples.
    """
    layers, dev, limit = where(names)
    which = " and ".join(dict.fromkeys(names))
    try:
        trial = copy.deepcopy(model)
        trial.span(layers)
        stepper, feed = make(trial, dev, limit), dataclasses.replace(data, X=on_device(data.X, dev))
        rows = min(size, len(data))
    except Exception as error:
        _failed(which, error)
        return None

    def steps(n: int) -> float:
        try:
            batch = next(stepper.task.batches(feed, rows, np.random.default_rng(0), dev))
            began = time.perf_counter()
            for _ in range(n):
                stepper.step(feed.X, batch, last=False)
            dev.synchronize()
        except Exception as error:
            _failed(which, error)
            return math.inf
        return (time.perf_counter() - began) / n

    return steps if math.isfinite(steps(WARM if isinstance(stepper.policy, NoDropout) else VARIED)) else None


def _failed(names: str, error: Exception) -> None:
    """Warn that a placement on these devices cannot train the network."""
    warn(f"placement: {names} cannot train this network: {type(error).__name__}: {error}")


def steps(
    model: Layer | Sequence[Layer],
    X: np.ndarray,
    y: np.ndarray,
    size: int | None = None,
    *,
    task: Task | None = None,
    policy: Dropout | None = None,
    optimizer: Callable[[list[Tensor]], Optimizer] = usual_optimizer,
    seconds: float = SECONDS,
    late: float = LATE,
) -> Measure:
    """Return a function that measures whole training steps of placements in turns, for `choose(measure=...)`.

    Parameters
    ----------
    model : Layer or sequence of Layer
        The model; copies of it are trained.
    X, y : array
        Samples and targets, as `fit` takes them; for the usual task class indices.
    size : int, optional
        Samples of a batch; by default all.
    task : Task, optional
        By default `Classification`.
    policy : Dropout, optional
        By default nothing is dropped.
    optimizer : callable, optional
        Parameters -> `Optimizer`; by default SGD with momentum.
    seconds : float, default=0.6
        Time after which no turn begins; three turns are made in any case, and at most 15.
    late : float, default=1.25
        From the third turn on, a placement whose step takes more than `late` times that of the fastest makes no more turns.

    Returns
    -------
    callable
        Sequence of `Placement` -> list of ms of a step of each in its fastest turn; inf, with a warning, if there is none.

    Raises
    ------
    ValueError
        If there are no layers or samples, X and y differ in length, or a number is out of range; TypeError if a value is of
        another kind.
    """
    own = sequential("steps", model)
    data = _samples(own, X, y)
    size = len(data) if size is None else check_count("steps: size", size)
    _check(task, policy, optimizer, seconds, late)

    def make(trial: Sequential, dev: Device, limit: int | None) -> Stepper:
        trained = [p for p in trial.parameters() if p.requires_grad]
        parts = trial, optimizer(trained), policy or NoDropout(), task or Classification()
        return Stepper(*parts, Streams.from_seed(0), dev, size, {} if limit is None else {"limit": limit})

    def measure(placements: Sequence[Placement]) -> list[float]:
        with current.within(None):  # on one rank alone, if several train
            runs = [run(own, list(each.devices.values()), make, data, size) for each in placements]
            return in_turns(runs, seconds, late)

    return measure


def _check(task: Any, policy: Any, optimizer: Any, seconds: Any, late: Any) -> None:
    """Raise an error unless these parameters of `steps` are what they must be."""
    check_maker("steps", optimizer)
    if task is not None and not isinstance(task, Task):
        raise TypeError(f"steps: task must be a Task, such as Classification(), got {task!r}")
    if policy is not None and not isinstance(policy, Dropout):
        raise TypeError(f"steps: policy must be a Dropout, such as RowDropout(0.5), got {policy!r}")
    if not is_real(seconds) or not seconds >= 0:
        raise ValueError(f"steps: seconds must be a number of at least 0, got {seconds!r}")
    if not is_real(late) or not late >= 1:
        raise ValueError(f"steps: late must be a number of at least 1, got {late!r}")


def _samples(model: Sequential, X: Any, y: Any) -> Data:
    """Return samples and targets as a fit has them: X as float32 unless the model takes integers, which stay."""
    if not isinstance(X, Rows):
        X = host_array("steps: X", X, None if model.symbols else np.float32)
        if model.symbols and X.dtype.kind not in "iu":
            raise TypeError(f"steps: {model.layers[0]!r} takes integers, X has {X.dtype}; give X.astype(np.int32)")
    y = host_array("steps: y", y)
    if not y.ndim or not np.ndim(X) or len(X) != len(y) or not len(y):
        raise ValueError(f"steps: X and y must have one sample at least, and as many targets, not {np.shape(X)} and {y.shape}")
    return Data(X, y.astype(np.float32) if y.dtype == np.float64 else y)
