"""What is timed: the passes and the update of each stage of a model on a device, op by op or as recordings."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ..autograd import backward, no_grad, op
from ..device import THREADS, Device, available as usable, device
from ..layers import DENSE, Context, Flow, Sequential, Symbols, walk
from ..layers.base import to
from ..tensor import Tensor
from ..training.optim import Optimizer
from .stages import Part, parts
from .table import BACKWARD, FORWARD, UPDATE, Stage


class Place(NamedTuple):
    """A device as a profile names it: "cpu:2" is the device "cpu" with at most two threads."""

    name: str
    dev: Device
    limit: int | None = None

    def session(self) -> AbstractContextManager:
        """Return a session of the device with its number of threads."""
        return self.dev.session(limit=self.limit)

    @property
    def on_host(self) -> bool:
        """True if the arrays of the device are NumPy's, so that it computes on the host's processor."""
        return isinstance(self.dev.full((1,), 0.0), np.ndarray)

    @property
    def home(self) -> str:
        """The name of the device whose memory it uses: "cpu" if its arrays are NumPy's, which all such devices share."""
        return "cpu" if type(self.dev.full((1,), 0.0)) is np.ndarray else self.dev.name

    @property
    def on_card(self) -> bool:
        """True if the arrays of the device are in the memory of an NVIDIA GPU."""
        return hasattr(self.dev.full((1,), 0.0), "__cuda_array_interface__")


def place(name: str) -> Place:
    """Return the place of this name.

    Raises
    ------
    ValueError
        If there is no device of this name.
    RuntimeError
        If it is not available on this machine.
    """
    if THREADS.fullmatch(name):
        return Place(name, device("cpu"), int(name.partition(":")[2]))
    try:
        dev = device(name)
    except ValueError as error:
        raise ValueError(f"{error}; 'cpu:2' is the CPU with two threads") from None
    return Place(dev.name, dev)


def available() -> list[str]:
    """Return the devices of this machine: the CPU with one and with all threads, and each other one that is available. The
    emulated device is left out, because its times mean nothing."""
    cpu = place("cpu")
    with cpu.session():
        several = cpu.dev.workers() > 1
    others = [name for name in usable() if name not in ("cpu", "emulated")]
    return [*["cpu:1"] * several, "cpu", *others]


@op
def seeded(dev: Device, _y: Any, *, dy: Any) -> Any:
    """A number whose gradient with respect to _y is dy, which is not copied."""
    return dev.full((1,), 0.0), (lambda _: dy,)


class Work:
    """The passes or the update of one stage in one direction on one device; run(n) makes it n times. The figures of a backward
    pass are those of both passes without those of the work `beyond`, the forward pass."""

    def __init__(
        self, where: Place, direction: str, compute: Callable[[], Any], recorded: bool, beyond: Work | None = None
    ) -> None:
        self.place, self.direction, self.beyond = where, direction, beyond
        with where.session():
            compute()  # fills caches, and compiles
            tape = where.dev.record(compute) if recorded and where.dev.records() else None
            self.once = compute if tape is None else tape.replay
            self.recorded = tape is not None
            self.once()
        self.ms: list[float] = []
        self.beyond_ms: list[float] = []  # of the work `beyond` just before

    def run(self, n: int) -> None:
        """Make it n times."""
        with self.place.session():
            for _ in range(n):
                self.once()
            self.place.dev.synchronize()


def measure(steps: Sequence[Work], seconds: float) -> None:
    """Append to each work of a device the milliseconds of one call, the mean over several passes through all of them, in the
    order of a step: so each one finds the caches as the others leave them. The passes take about n times `seconds`."""
    where, spent, before = steps[0].place, [0.0] * len(steps), [0.0] * len(steps)
    known = sum(work.ms[0] for work in steps if work.ms)
    passes = max(1, min(10000, math.ceil(1e3 * seconds * len(steps) / max(known, 1e-4)))) if known else 1
    with where.session():
        for _ in range(passes):
            for i, work in enumerate(steps):
                if work.beyond is not None:
                    work.beyond.once()  # so that both of the next ones find the same in the caches
                    before[i] += _seconds(work.beyond)
                spent[i] += _seconds(work)
    for work, taken, beyond in zip(steps, spent, before, strict=True):
        work.ms.append(1e3 * taken / passes)
        work.beyond_ms.append(1e3 * beyond / passes)


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work.once()
    work.place.dev.synchronize()
    return time.perf_counter() - start


class Lacking(NamedTuple):
    """A stage that a device cannot compute, and why."""

    stage: Stage
    place: Place
    why: str


def works(
    model: Sequential,
    table: list[Stage],
    where: Place,
    training: bool,
    recorded: bool,
    plans: Mapping[Any, Any] | None,
    optimizer: Callable[[list[Tensor]], Optimizer],
) -> Iterator[tuple[Stage, list[Work]] | Lacking]:
    """Yield the works of each stage on a device, each on the activation that the stages before it compute.

    A stage that fails is `Lacking`, unless it fails on the CPU as well; later stages get its output from the CPU.
    """
    dev, symbols = where.dev, model.symbols
    rng, own = np.random.default_rng(0), copy.deepcopy(model)
    to(own, dev)
    shape = table[0].inputs
    values = rng.integers(symbols, size=shape).astype(np.int32) if symbols else rng.standard_normal(shape, np.float32)
    flow = Flow(Tensor.wrap(dev.upload(values), dev), Symbols(values) if symbols else DENSE)
    chosen = {} if plans is None else with_layers_of(own, plans, model)
    context = Context(dev, chosen, training, model=own if chosen else None, state={})
    reference: Flow | None = None
    for stage, part in zip(table, parts(own)):
        try:
            with where.session(), no_grad():
                after = part(flow, context)
            yield stage, _stage(stage, part, flow, context, where, training, recorded, optimizer)
        except (AttributeError, NotImplementedError, TypeError, RuntimeError) as error:
            if dev.name == "cpu":
                raise
            yield Lacking(stage, where, f"{type(error).__name__}: {error}")
            home = device("cpu")
            host = copy.deepcopy(part.layers)
            for layer in host:
                to(layer, home)
            reference = Flow(Tensor(flow.dense().numpy(), home))
            with home.session(), no_grad():
                for layer in host:
                    reference = layer.forward(reference, Context(home, training=training, state={}))
            after = Flow(Tensor(reference.dense().numpy(), dev))
        flow = after._replace(x=after.x.detach())


def with_layers_of(own: Sequential, plans: Mapping[Any, Any], model: Sequential) -> dict[Any, Any]:
    """Return the plans with keys that are layers of the copy `own`, or inside it, where they were the same ones of `model`."""
    copies = {id(layer): copied for (_, layer), (_, copied) in zip(walk(model), walk(own), strict=True)}
    return {copies.get(id(key), key): plan for key, plan in plans.items()}


def _stage(
    stage: Stage,
    part: Part,
    flow: Flow,
    context: Context,
    where: Place,
    training: bool,
    recorded: bool,
    optimizer: Callable[[list[Tensor]], Optimizer],
) -> list[Work]:
    """Return the works of one stage."""
    dev = where.dev
    recorded = recorded and all(layer.records for layer in part.layers)
    parameters = part.trained
    given = flow._replace(x=Tensor.wrap(flow.x.data, dev, training and stage.differentiable))

    def forward() -> Any:
        return part(given, context).x.data

    if not training:

        def predict() -> Any:
            with no_grad():
                return forward()

        return [Work(where, FORWARD, predict, recorded)]
    found = [Work(where, FORWARD, forward, recorded)]
    if BACKWARD not in stage.directions(True):
        return found
    leaves = [*parameters, given.x] if given.x.requires_grad else parameters
    passes = _passes(where, lambda: part(given, context).x, leaves)
    found.append(Work(where, BACKWARD, passes, recorded, beyond=found[0]))
    if UPDATE in stage.directions(True):
        with where.session():
            passes()
        updates = optimizer(part.updated)
        found.append(Work(where, UPDATE, _update(where, updates), recorded and updates.records))
    for leaf in leaves:
        leaf.zero_grad()
    return found


def _passes(where: Place, forward: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], list[Any]]:
    """Return a function that makes a forward pass and its backward pass. A backward pass alone cannot be repeated: vjps share
    what they compute once, and some overwrite what the forward pass kept."""
    with where.session():
        y = forward()
        dy = where.dev.upload(np.random.default_rng(1).standard_normal(y.shape, np.float32))

    def run() -> list[Any]:
        for leaf in leaves:
            leaf.zero_grad()
        backward(seeded(forward(), dy=dy))
        return [getattr(leaf.gradient, "values", None) for leaf in leaves]

    return run


def _update(where: Place, optimizer: Optimizer) -> Callable[[], None]:
    """Return a function that updates parameters from the gradients that they have now, as often as it is called."""
    kept = [(p, p.gradient) for p in optimizer.parameters]
    with where.session():
        optimizer.prepare()
        numbers = [where.dev.upload(np.array(own, np.float32)) for own in optimizer.changing()[1]]

    def run() -> None:
        for p, gradient in kept:
            p.zero_grad()
            if gradient is not None:
                p.receive(gradient)
        optimizer.launch(numbers)

    return run
