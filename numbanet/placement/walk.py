"""`Walk`: whole steps of a model, op by op, in which the time of each stage is taken, and that of changes of device.

A layer that runs alone again and again finds its weights in the cache and its threads awake. In a step other layers have run
before it, perhaps on another device, whose threads may still wait for work and so take a core. So a walk makes whole steps: on
each device, and on all of them in turn, such that each layer runs on each device after each other one.

    time(layer k on d, after e) = time(layer k on d, after d) + change(e, d)
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..autograd import backward, no_grad
from ..device import THREADS, Device, device
from ..layers import DENSE, Context, Flow, Sequential, Symbols
from ..layers.base import to
from ..tensor import Tensor
from ..training.optim import Optimizer
from .stages import Part, parts
from .table import BACKWARD, FORWARD, UPDATE, Stage
from .works import Place, seeded, with_layers_of

CHANGES = 5.0  # seconds after which only steps on one device are made
SLOW = 0.1  # seconds from which on the first step of a turn counts


class _Copy(NamedTuple):
    """A model on a device: its stages, their optimisers (None without parameters), and the context of its passes."""

    dev: Device
    parts: list[Part]
    optimizers: list[Optimizer | None]
    context: Context


class Walk:
    """Steps of a model with the time of each stage.

    Parameters
    ----------
    model : Sequential
        The model; copies of it are used.
    table : list of Stage
        Its stages.
    places : sequence of Place
        The devices.
    lacking : set of (int, int)
        (stage, device) that cannot be computed; the first device that can stands in.
    training : bool
        True if passes backward and updates are made.
    plans : mapping or None
        The plans of a step.
    optimizer : callable
        Parameters -> the `Optimizer` whose update is timed.
    """

    def __init__(
        self,
        model: Sequential,
        table: Sequence[Stage],
        places: Sequence[Place],
        lacking: set[tuple[int, int]],
        training: bool,
        plans: Mapping[Any, Any] | None,
        optimizer: Callable[[list[Tensor]], Optimizer],
    ) -> None:
        self.table, self.places, self.training, self.host = table, places, training, device("auto")
        self.copies = [_copied(model, each, training, plans, optimizer) for each in places]
        self.usable = [[d for d in range(len(places)) if (k, d) not in lacking] for k in range(len(table))]
        rng = np.random.default_rng(0)
        values = rng.standard_normal(table[0].inputs, np.float32)
        if model.symbols:
            values = rng.integers(model.symbols, size=table[0].inputs).astype(np.int32)
        x = Tensor.wrap(self.host.upload(values), self.host)
        self.given = Flow(x, Symbols(values) if model.symbols else DENSE)
        self._ends: dict[tuple, Any] = {}  # gradients of the output, by device and shape
        self.alone: dict[tuple[int, int, str], list[float]] = {}  # ms by (stage, device, direction)
        self.after: dict[tuple[int, int, int, str], list[float]] = {}  # ms by (stage, device, device before, direction)
        self._spent, self._first, self._last, self._mixed, self._counts = 0.0, 0, 0, False, False
        self._quick: dict[tuple[int, int], bool] = {}

    def turn(self) -> None:
        """Make a step on each device, and one for each design that changes the device before each stage."""
        count = len(self.places)
        for shift in range(count if self._spent < CHANGES else 1):
            began, self._mixed = time.perf_counter(), shift > 0
            for first in range(count):
                self._first = first
                design = [self._near(k, (first + shift * k) % count) for k in range(len(self.table))]
                self._counts, start = False, time.perf_counter()
                if self._quick.get((first, shift), True):  # lets the threads of the step before fall asleep
                    self.step(design)
                    self._quick[first, shift] = time.perf_counter() - start < SLOW
                self._counts, self._last = True, design[-1]
                self.step(design)
            self._spent += (time.perf_counter() - began) * self._mixed

    def changes(self, quantile: float) -> Iterator[tuple[str, str, float]]:
        """Yield (device before, device, ms): what a stage takes longer after a stage on another device, the mean of stages."""
        usual = {key: float(np.quantile(ms[1:] or ms, quantile)) for key, ms in self.alone.items()}
        found: dict[tuple[int, int], list[float]] = {}
        for (k, here, before, direction), took in self.after.items():
            if (k, here, direction) in usual:
                longer = float(np.quantile(took[1:] or took, quantile)) - usual[k, here, direction]
                found.setdefault((before, here), []).append(longer)
        for (before, here), differences in found.items():
            yield self.places[before].name, self.places[here].name, max(float(np.mean(differences)), 0.0)

    def _near(self, k: int, d: int) -> int:
        return d if d in self.usable[k] else self.usable[k][0]

    # --- a step -------------------------------------------------------------------------------------------------------
    def step(self, design: Sequence[int]) -> None:
        """Make a step with each stage on its device."""
        with self.host.session(), contextlib.nullcontext() if self.training else no_grad():
            flow, cuts = self.given, list[tuple[Tensor, Tensor]]()
            for k, d in enumerate(design):
                began, where, grad = time.perf_counter(), self.copies[d], self.training and self.table[k].differentiable
                leaf = Tensor.wrap(flow.x.data, flow.x.device, grad)
                moved = flow._replace(x=leaf).on(where.dev)
                after = where.parts[k](moved, where.context)
                where.dev.synchronize()
                self._put(k, d, FORWARD, began)
                cuts.append((leaf, after.x))
                flow = after._replace(x=after.x.detach())
            if self.training:
                self._back(design, cuts)

    def _back(self, design: Sequence[int], cuts: list[tuple[Tensor, Tensor]]) -> None:
        """Make the backward pass and the update of a step; `cuts` are (input, output) of each stage."""
        last, dy = cuts[-1][1], None
        key = design[-1], last.shape
        if key not in self._ends:
            self._ends[key] = last.device.upload(np.random.default_rng(1).standard_normal(last.shape, np.float32))
        dy = self._ends[key]
        for k in reversed(range(len(design))):
            if BACKWARD not in self.table[k].directions(True):
                break
            (leaf, y), began = cuts[k], time.perf_counter()
            backward(seeded(y, dy=dy))
            if leaf.gradient is not None:
                dy = leaf.gradient.dense(leaf.device)
                leaf.device.synchronize()
            self._put(k, design[k], BACKWARD, began)
        for k, d in enumerate(design):
            optimizer = self.copies[d].optimizers[k]
            if optimizer is not None:
                began = time.perf_counter()
                optimizer.step()
                self.copies[d].dev.synchronize()
                self._put(k, d, UPDATE, began)
            for p in self.copies[d].parts[k].trained:  # one that an earlier stage on another device would update
                p.zero_grad()

    def _put(self, k: int, d: int, direction: str, began: float) -> None:
        """Keep the time of stage k on device d since `began`."""
        ms, before, self._last = 1e3 * (time.perf_counter() - began), self._last, d
        if not self._counts:
            return
        if self._mixed and before != d and direction != UPDATE:
            self.after.setdefault((k, d, before, direction), []).append(ms)
        elif not self._mixed and d == self._first:  # a stage that the device lacks is on another one
            self.alone.setdefault((k, d, direction), []).append(ms)


def _copied(
    model: Sequential,
    where: Place,
    training: bool,
    plans: Mapping[Any, Any] | None,
    optimizer: Callable[[list[Tensor]], Optimizer],
) -> _Copy:
    """Return a copy of a model on a device, as a model whose layers are on several devices has it there."""
    dev, own = device(where.name) if THREADS.fullmatch(where.name) else where.dev, copy.deepcopy(model)
    to(own, dev)
    chosen = {} if plans is None else with_layers_of(own, plans, model)
    optimizers = []
    for part in parts(own):
        trained = part.updated if training else []
        optimizers.append(optimizer(trained) if trained else None)
    return _Copy(dev, list(parts(own)), optimizers, Context(dev, chosen, training, model=own if chosen else None))
