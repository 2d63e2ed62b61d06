"""`profile`: measure each layer of a model on each device, forward, backward and update."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import check_count, is_real
from ..device import THREADS
from ..layers import Context, Cost, Layer
from ..tensor import Tensor
from ..training.optim import Optimizer
from ..training.sgd import SGD
from . import cache, energy, facts, stages as staging
from .figures import ESTIMATED, NONE, ZERO, Figure, product, total
from .table import BACKWARD, DIRECTIONS, FORWARD, UPDATE, DeviceFacts, LayerTimes, Profile, Stage, Transfer
from .walk import Walk
from .works import Lacking, Place, Work, available, measure, place, works

LEAST_MS = 1e-5  # of a backward pass, if the difference of two times is less
SMALL, LARGE, MOST = 1024, 1 << 20, 1 << 24  # float32 values of the moves that are timed
Counters = Callable[[], float] | Mapping[str, Callable[[], float]]


def usual_optimizer(parameters: list[Tensor]) -> Optimizer:
    """Return SGD with momentum, whose updates are timed by default; its learning rate is 0, so that weights do not change."""
    return SGD(parameters, 0.0, momentum=0.9)


def check_maker(owner: str, optimizer: Any) -> None:
    """Raise TypeError, beginning with `owner`, unless the optimizer can be called."""
    if not callable(optimizer):
        raise TypeError(
            f"{owner}: optimizer must be a function that makes an Optimizer of parameters, such as "
            f"lambda parameters: SGD(parameters, 0.0), got {optimizer!r}"
        )


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a profile is measured.

    Parameters
    ----------
    plans : mapping of Site or Layer to Plan, optional
        The plans of a step with dropout (`Context`); by default everything is computed.
    optimizer : callable, optional
        Parameters -> the `Optimizer` whose update is measured; by default SGD with momentum.
    runs : int, default=7
        Number of timed runs.
    quantile : float, default=0.5
        Which of the runs is reported: by default the median. 0 is the fastest one, for machines that others use as well.
    seconds : float, default=0.01
        About the time of a run, by layer and direction; steps of fast layers are repeated.
    recorded : bool, default=True
        If True, recordings are replayed where that is possible, as in training on one device. If False, layers run op by op in
        whole steps, as in a model whose layers are on several devices, and changes of device are measured as well (`Walk`).
    meters : callable or mapping of str to callable, optional
        () -> joules so far: a counter of energy for all devices, or by device. By default NVML's counter of a GPU, and
        RAPL's of the CPU where it may be read; then each layer also runs for a second.
    watts : mapping of str to float, optional
        The power of devices without a meter; energy is then estimated from it.
    mm2 : mapping of str to float, optional
        The area of a device's die, for the performance density; by default known for some GPUs.
    cached : bool, default=True
        If True, a profile of the same model, shape, devices and settings is read from `folder()`, unless the machine or the
        versions differ; and a new one is written there. With a meter that is given, nothing is read or written; nor with a
        layer or an optimizer from outside numbanet that a function defines or whose module has no source, nor if one, or any
        optimizer, has other attributes than numbers, texts, tensors, layers and collections of them.
    again : bool, default=False
        If True, nothing is read from the cache.
    """

    plans: Mapping[Any, Any] | None = None
    optimizer: Callable[[list[Tensor]], Optimizer] = usual_optimizer
    runs: int = 7
    quantile: float = 0.5
    seconds: float = 0.01
    recorded: bool = True
    meters: Counters | None = None
    watts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    mm2: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cached: bool = True
    again: bool = False

    def check(self, names: list[str]) -> Settings:
        """Return the settings with Python's numbers. Raise ValueError if a number is out of range, or a device has no such
        name; TypeError for another kind of value.
        """
        check_maker("profile", self.optimizer)
        if self.plans is not None and not isinstance(self.plans, Mapping):
            raise TypeError(f"plans must be a dict of plans by site or layer, got {self.plans!r}")
        runs = check_count("runs", self.runs)
        if not is_real(self.seconds) or not 0 < self.seconds < 60:
            raise ValueError(f"seconds must be a number in (0, 60), got {self.seconds!r}")
        if not is_real(self.quantile) or not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must be a number in [0, 1], got {self.quantile!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"profile: a device is named twice in {', '.join(map(repr, names))}")
        energy.check_meters(self.meters, names)
        watts, mm2 = (energy.check_by_device(what, getattr(self, what), names) for what in ("watts", "mm2"))
        numbers: dict[str, Any] = {"runs": runs, "seconds": float(self.seconds), "quantile": float(self.quantile)}
        return dataclasses.replace(self, recorded=bool(self.recorded), watts=watts, mm2=mm2, **numbers)


def profile(
    model: str | Layer | Sequence[Layer],
    shape: Sequence[int] | None = None,
    devices: Sequence[str] | None = None,
    training: bool = True,
    **settings: Any,
) -> Profile:
    """Measure the layers of a model on devices: milliseconds, power and energy by layer, device and direction.

    Each top-level layer is measured as it runs in the model: on the activation that the layers before it compute, warm, fused
    with the next one if `Sequential` fuses them, recorded if its device and its layers can be, and in the order of a step, so
    that it finds the caches as the other layers leave them. The runs of all devices alternate, and the median is reported. A
    ReLU mask that a whole model fuses into the product of the next layer is counted here with its own layer. The quantities
    are those of CNNLab (Zhu et al. 2016).

    Parameters
    ----------
    model : str, Layer or sequence of Layer
        "lenet5", "alexnet", "vgg19", "lstm", or layers; it is not changed.
    shape : sequence of int, optional
        Shape of a batch; for a name by default 64 samples of the network's usual size.
    devices : sequence of str, optional
        Names of devices; "cpu:2" is the CPU with two threads. By default all devices of this machine, and "cpu:1".
    training : bool, default=True
        If True, the backward pass and the update are measured as well.
    **settings
        The parameters of `Settings`.

    Raises
    ------
    ValueError
        If a device or a network is unknown, a number is out of range, or a layer cannot take the batch.
    TypeError
        If an argument is of another kind.
    RuntimeError
        If a device is not available on this machine.
    """
    return profiles([(model, shape)], devices, training, **settings)[0]


def profiles(
    models: Sequence[tuple[str | Layer | Sequence[Layer], Sequence[int] | None]],
    devices: Sequence[str] | None = None,
    training: bool = True,
    **settings: Any,
) -> list[Profile]:
    """Return the profile of each (model, shape of a batch), measured together: a turn times each layer of each model on each
    device, so that a change of the machine's speed over time affects all alike. The other parameters are those of `profile`.
    """
    how = Settings(**settings)
    asked = [_Measuring(model, shape, devices, training, how) for model, shape in models]
    found = {number: each.cached() for number, each in enumerate(asked)}
    new = [each for number, each in enumerate(asked) if found[number] is None]
    for each in new:
        each.prepare()
    for _ in range(how.runs + 1):
        for each in new:
            each.turn()
    return [found[number] or each.result() for number, each in enumerate(asked)]


class _Measuring:
    """A model, the devices that it is measured on, and how."""

    def __init__(self, model: Any, shape: Any, devices: Sequence[str] | None, training: bool, settings: Settings) -> None:
        self.net, self.batch, name = staging.network(model, shape)
        self.places = [place(device) for device in _names(devices) or available()]
        names = [each.name for each in self.places]
        self.settings, self.training = settings.check(names), bool(training)
        settings, training = self.settings, self.training
        plans = Context("cpu", settings.plans, training, model=self.net).plans if settings.plans else None
        self.table = staging.stages(self.net, self.batch, plans)
        self.said = {
            "model": name,
            "recorded": settings.recorded,
            "runs": settings.runs,
            "quantile": settings.quantile,
            "seconds": settings.seconds,
            "threads": _threads(self.places),
        }
        self.facts = tuple(
            DeviceFacts(
                each.name,
                each.home,
                settings.mm2.get(each.name, facts.die() if each.on_card else None),
                settings.watts.get(each.name),
            )
            for each in self.places
        )
        self.path = None
        if settings.cached and settings.meters is None:  # joules of a given meter must not be read without it
            decides = self.table, settings.plans, self.batch, training, self.said, self.facts
            self.path = cache.place_of(self.net, settings.optimizer if training else None, *decides)

    def cached(self) -> Profile | None:
        """Return the profile in the cache. Return None if there is no valid one, it has no place there, or `again` is True."""
        return None if self.path is None or self.settings.again else cache.read(self.path)

    def prepare(self) -> None:
        """Make what is to be timed; warn of what cannot be computed."""
        how, stages = self.settings, [stage for stage, _ in self.table]
        ways = [works(self.net, stages, each, self.training, how.recorded, how.plans, how.optimizer) for each in self.places]
        self.works: list[tuple[Stage, Cost, Work]] = []
        for (stage, cost), *found in zip(self.table, *ways, strict=True):
            for each in found:
                if isinstance(each, Lacking):
                    warnings.warn(f"profile: {each.place.name!r} cannot compute layer {stage.path}: {each.why}", stacklevel=5)
            own = [work for each in found if not isinstance(each, Lacking) for work in each[1]]
            own.sort(key=lambda work: DIRECTIONS.index(work.direction))  # the devices alternate
            self.works += [(stage, cost, work) for work in own]
        self.steps = [_in_order([work for _, _, work in self.works if work.place is each]) for each in self.places]
        there = {(stage.path, work.place.name) for stage, _, work in self.works}
        self.walk = None
        if not how.recorded:
            lacking = {(k, d) for k, s in enumerate(stages) for d, p in enumerate(self.places) if (s.path, p.name) not in there}
            self.walk = Walk(self.net, stages, self.places, lacking, self.training, how.plans, how.optimizer)

    def turn(self) -> None:
        """Time all layers once, on all devices."""
        if self.walk is not None:
            self.walk.turn()
            return
        for steps in filter(None, self.steps):
            measure(steps, self.settings.seconds)

    def result(self) -> Profile:
        """Return the profile after all turns, and write it to the cache."""
        counters = {
            each.name: energy.meter(each.name, each.on_host, each.on_card, self.settings.meters) for each in self.places
        }
        entries = tuple(self._entry(stage, cost, work, counters[work.place.name]) for stage, cost, work in self.works)
        stages = tuple(stage for stage, _ in self.table)
        moves, changes = tuple(self._transfers()), tuple(self._changes(entries))
        made = facts.machine(), facts.now(), facts.versions(), self.batch, self.training
        result = Profile(*made, self.facts, stages, entries, moves, self.said, changes)
        return result if self.path is None else cache.written(result, self.path)

    def _ms(self, stage: Stage, work: Work) -> float:
        """Return the milliseconds of a work, in whole steps or by itself; the first time only sets the n of repetitions."""
        if self.walk is not None:
            paths = [each.path for each, _ in self.table]
            own = self.walk.alone[paths.index(stage.path), self.places.index(work.place), work.direction]
            return float(np.quantile(own[1:], self.settings.quantile))
        ms, beyond = (float(np.quantile(each[1:], self.settings.quantile)) for each in (work.ms, work.beyond_ms))
        return max(ms - beyond, LEAST_MS)

    def _entry(self, stage: Stage, cost: Cost, work: Work, counter: energy.Meter | None) -> LayerTimes:
        """Return the figures of a work. The power of a backward pass is that of both passes."""
        ms = Figure(self._ms(stage, work))
        figures = energy.measured(work.run, counter) if counter else (NONE, NONE)
        if work.beyond is not None:
            figures = figures[0], product(figures[0], ms, 1e-3)
        if not figures[1].known:
            figures = energy.stated(self.settings.watts.get(work.place.name), ms)
        flops, moved = amount(stage, cost, work.direction)
        return LayerTimes(stage.path, stage.layer, work.place.name, work.direction, ms, flops, moved, *figures)

    def _transfers(self) -> list[Transfer]:
        """Return the figures of moves between devices whose memory differs, timed with a small and a large array."""
        most = max(stage.megabytes for stage, _ in self.table)
        large = int(min(max(2.5e5 * most, LARGE), MOST))
        found = {(a.home, b.home): (a, b) for a in self.places for b in self.places if a.home != b.home}
        moves = []
        for source, target in found.values():
            slow, fast = (_move(source, target, size, self.settings) for size in (large, SMALL))
            per = max(slow - fast, 0.0) / (4e-6 * (large - SMALL))
            watts = [self.settings.watts[name] for name in (source.name, target.name) if name in self.settings.watts]
            drawn = Figure(sum(watts), ESTIMATED) if len(watts) == 2 else NONE
            moves.append(Transfer(source.home, target.home, Figure(per), Figure(fast), drawn))
        return moves

    def _changes(self, entries: Sequence[LayerTimes]) -> Iterator[Transfer]:
        """Yield the figures of changes between devices of one memory; the power is that of the device that is changed to."""
        homes = {each.name: each.home for each in self.facts}
        for source, target, ms in self.walk.changes(self.settings.quantile) if self.walk else ():
            if homes[source] == homes[target]:
                drawn = [entry.watts for entry in entries if entry.device == target]
                watts = total(drawn).times(1 / max(len(drawn), 1))
                yield Transfer(source, target, ZERO, Figure(ms), watts)


def _names(devices: Any) -> list[str]:
    """Return the names of devices; raise an error unless they are a list of names, and no more threads than there are cores."""
    if devices is None:
        return []
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise TypeError(f"profile: devices must be a list of names, such as ['cpu:1', 'cpu'], got {devices!r}")
    names, cores = list(devices), os.cpu_count() or 1  # "cpu:2" is taken on one core, too
    if not names:
        raise ValueError("profile: devices must name one device at least; leave devices out for all those of this machine")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"profile: a device must be a name, such as 'cpu:1', got {name!r}")
        if THREADS.fullmatch(name) and int(name.partition(":")[2]) > max(cores, 2):
            raise ValueError(f"profile: {name!r} has more threads than this machine, which has {cores}; 'cpu' has all of them")
    return names


def _in_order(works: list[Work]) -> list[Work]:
    """Return the works of a device in the order of a step: forward, backward from the last layer on, update."""
    ahead, back, updates = ([work for work in works if work.direction == direction] for direction in DIRECTIONS)
    return [*ahead, *back[::-1], *updates]


def amount(stage: Stage, cost: Cost, direction: str) -> tuple[float, float]:
    """Return (FLOPs, bytes moved) of a stage in one direction. For a pass they are those of its matrix products, but at least
    the bytes of its inputs and outputs; for an update, 0 FLOPs and 20 bytes per parameter that it changes.
    """
    if direction == UPDATE:
        return 0.0, 20.0 * stage.updated  # reads the weight, the gradient and the velocity, writes weight and velocity
    ends = 4.0 * (np.prod(stage.inputs) + np.prod(stage.outputs))
    flops, moved = {FORWARD: (cost.forward, cost.bytes_forward), BACKWARD: (cost.backward, cost.bytes_backward)}[direction]
    return float(flops), float(max(moved, ends))


# --- transfers --------------------------------------------------------------------------------------------------------
def _move(source: Place, target: Place, size: int, how: Settings) -> float:
    """Return the milliseconds of a move of n = `size` values."""
    array = source.dev.full((size,), 1.0)

    def once() -> None:
        with target.session():
            target.dev.upload(source.dev.download(array))
            target.dev.synchronize()

    return float(np.quantile([_timed(once) for _ in range(how.runs + 1)], how.quantile))


def _timed(once: Callable[[], Any]) -> float:
    start = time.perf_counter()
    once()
    return 1e3 * (time.perf_counter() - start)


def _threads(places: list[Place]) -> dict[str, int]:
    """Return the number of threads of each place."""
    counts = {}
    for each in places:
        with each.session():
            counts[each.name] = int(each.dev.workers())
    return counts
