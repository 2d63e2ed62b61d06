"""Optimisers update parameters from their gradients. One fused kernel updates all parameters; packed gradients are not
expanded. The modules `sgd` and `adam` define the optimisers.

A training step calls the method `prepare`, then makes the forward and the backward pass, then calls `reduce`, `launch` and
`advance`. The method `step` calls all of these methods, but makes no pass.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbanet_kernels.layouts.packed import Packing
from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import is_real
from ..device import Device
from ..gradients import Packed
from ..plans import DevicePlan, Plan, on_device
from ..tensor import Tensor

LARGEST = float(np.finfo(np.float32).max)


def check_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return `value` as a float; raise ValueError unless low <= value < high."""
    if not is_real(value) or not low <= value < high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}), got {value!r}")
    return float(value)


def matrix(tensor: Tensor, array: Any) -> Any:
    """Return an array of the shape of the parameter `tensor` as a matrix (R, C), which the update kernels take."""
    rows = tensor.shape[0] if tensor.ndim > 1 else 1
    columns = math.prod(tensor.shape[1:]) if tensor.ndim > 1 else tensor.size  # also right if the tensor has no rows
    return array if tensor.ndim == 2 else tensor.device.reshape(array, (rows, columns))


def on_host(dev: Device, array: Any) -> np.ndarray:
    """Return a copy of a device array as a NumPy array."""
    return np.array(dev.download(array))


@functools.lru_cache(maxsize=64)
def _uploaded(dev: Device, numbers: tuple[float, ...]) -> Any:
    return dev.upload(np.array(numbers, np.float32))


class Due(NamedTuple):
    """A parameter that has a gradient in this step. `arrays` are its values and its states as matrices (R, C); g is the
    gradient, and `packing` is the `Packing` of g, or None if g is dense.
    """

    parameter: Tensor
    arrays: list[Any]
    g: Any
    packing: Packing | None


class Proximal(abc.ABC):
    """A proximal step: what an optimiser does to weights at the end of each update (`Optimizer.proximal`). It is recorded with
    the update, so its launches must always be the same, except for parameters that are frozen meanwhile.

    Attributes
    ----------
    arrays : list of array
        The arrays that `apply` changes, apart from the weights. They are never replaced.
    """

    arrays: Sequence[Any] = ()

    def numbers(self, optimizer: Optimizer) -> tuple[float, ...]:
        """Return the numbers that change between steps; `apply` gets them as a device array."""
        return ()

    @abc.abstractmethod
    def apply(self, numbers: Any) -> None:
        """Change the weights in place; `numbers` is a device array with the result of the method `numbers`."""


class Optimizer(abc.ABC):
    """Base class of the optimisers. An optimiser has parameters, a learning rate, and a state for each parameter.

    Subclasses define `update`; they override `numbers` if more than the learning rate changes between steps. For each
    parameter, `state` holds arrays of the parameter's shape, and `counts` holds the number of steps in which the parameter had
    a gradient. Both lists are made at the first step. `proximal` is what happens to weights after each update; it needs all
    weights, so no update is deferred. Parameters that are `resting` keep their values, whatever their gradients.
    """

    recordable: ClassVar[bool] = False  # True if steps may be recorded (`records`)
    foretells: ClassVar[bool] = False  # True if between steps only `numbers` changes, by its argument (`ahead`)
    proximal: Proximal | None = None
    reducer: Any = None  # if several processes train one model, the `Exchange` that sums their gradients
    resting: frozenset[Tensor] = frozenset()  # the parameters that keep their values
    foresees = False  # True if the launches of an update depend on `wanted` of `prepare`
    states = 1  # number of state arrays of a parameter

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float = 0.0, clip_norm: float | None = None
    ) -> None:
        if isinstance(parameters, Tensor):
            raise TypeError("parameters must be a list of tensors; for one tensor w write [w]")
        self.parameters = list(parameters)
        for p in self.parameters:
            if not (isinstance(p, Tensor) and p.requires_grad):
                raise TypeError(
                    f"parameters must be tensors made with requires_grad=True, got {p!r}; leave out what is "
                    "frozen, or freeze it after the optimiser is made"
                )
        if not self.parameters:
            raise ValueError(f"{type(self).__name__}: there are no parameters; give tensors, as in list(model.parameters())")
        self.parameters = list(dict.fromkeys(self.parameters))  # a tensor that is given twice is updated only once
        self.learning_rate = check_number("learning_rate", learning_rate, 0)
        self.weight_decay = check_number("weight_decay", weight_decay, 0)
        self.clip_norm = None if clip_norm is None else check_number("clip_norm", clip_norm, 1e-30)
        self.steps = 0
        self.state: list[list[Any]] = []
        self.counts: list[int] = []  # for each parameter, the number of steps in which it had a gradient
        self.wanted: dict[Tensor, DevicePlan] = {}  # the parts of weights that are read before the next step

    # --- a step, in order ---------------------------------------------------------------------------------------------
    @deferred
    def step(self, wanted: Mapping[Tensor, DevicePlan | Plan] | None = None) -> dict[Tensor, Any]:
        """Update every parameter that has a gradient, and delete the gradients: call `prepare`, `reduce`, `launch` and
        `advance`.

        Parameters
        ----------
        wanted : mapping of Tensor to Kept or Plan, optional
            For each weight that is not read completely before the next step, the part that is read. If it saves time, the
            update of the rest is deferred until a later step reads it or `settle` is called. Deferring changes the weights only
            by rounding (`SGD`).

        Returns
        -------
        dict of Tensor to array
            For some weights, a packed copy of the part that the next step reads (`Context.packed`). It is valid only in the
            next step, and only if nothing else changes the weights before.

        Raises
        ------
        ValueError
            If a plan does not match its weight; nothing is changed then.
        """
        self.prepare(wanted)
        self.reduce()
        ready = self.launch()
        self.advance()
        return ready

    def prepare(self, wanted: Mapping[Tensor, DevicePlan | Plan] | None = None) -> None:
        """Prepare a step before its passes; `wanted` maps a weight to the part that is read before the next step (`step`)."""
        wanted = None if self.proximal else wanted
        self.wanted = {w: on_device(plan, w.device) if isinstance(plan, Plan) else plan for w, plan in (wanted or {}).items()}
        for w, part in self.wanted.items():
            region = part.plan.region(w.shape) if isinstance(part, DevicePlan) else None
            if region is None or part.plan.shape not in (w.shape, w.shape[:1]) or part.device is not w.device:
                raise ValueError(f"{type(self).__name__}: {part} is not part of a weight of shape {w.shape} on {w.device.name}")
        if not self.state:
            self.state = [[p.device.full(p.shape, 0.0) for _ in range(self.states)] for p in self.parameters]
            self.counts = [0] * len(self.parameters)

    def numbers(self, count: int) -> tuple[float, ...]:
        """Return the numbers that change between steps, such as the learning rate, for a parameter that had a gradient in
        `count` steps. `update` gets them as a device array.
        """
        return (self.learning_rate,)

    def changing(self) -> tuple[tuple[int, ...], list[tuple[float, ...]]]:
        """Return (indices, list): the list of the distinct results of `numbers`, and for each parameter an index into it. After
        them, the list holds the numbers of the proximal step, if there is one, and last `clip_norm`, unless it is None.
        """
        places, numbers = self._distinct()
        if self.proximal is not None:
            numbers.append(self.proximal.numbers(self))
        if self.clip_norm is not None:
            numbers.append((min(self.clip_norm, LARGEST),))
        return places, numbers

    def ahead(self, steps: int) -> list[list[tuple[float, ...]]] | None:
        """Return, for each array of numbers of `changing`, a list of what it holds in each of the next steps, if all parameters
        have gradients then. None if that is not known. Each class must set `foretells = True` itself, as `recordable`.
        """
        foretells = vars(type(self)).get("foretells", False)
        if not foretells or self.proximal is not None or len(set(self.counts)) != 1:
            return None
        own = [self.numbers(self.counts[0] + step) for step in range(steps)]
        return [own] if self.clip_norm is None else [own, [(min(self.clip_norm, LARGEST),)] * steps]

    def _distinct(self) -> tuple[tuple[int, ...], list[tuple[float, ...]]]:
        counts = self.counts
        if counts and counts.count(counts[0]) == len(counts):
            return (0,) * len(counts), [self.numbers(counts[0])]
        found = {count: self.numbers(count) for count in sorted(set(self.counts))}
        distinct = list(dict.fromkeys(found.values()))
        places = {count: distinct.index(own) for count, own in found.items()}
        return tuple([places[count] for count in self.counts]), distinct

    def reduce_by(self, reducer: Any) -> None:
        """Sum gradients by an `Exchange`, or, with None, train in one process."""
        self.reducer = reducer

    def end_with(self, proximal: Proximal | None) -> None:
        """End each update with a proximal step, or with none."""
        self.proximal = proximal

    @property
    def records(self) -> bool:
        """True if updates with equal `constants` and `arrays`, and equally packed gradients, always issue the same launches, so
        that they may be recorded. Each class must set `recordable = True` itself: a subclass may issue other launches.
        """
        exchanged = self.reducer is None or self.reducer.records
        return bool(vars(type(self)).get("recordable", False)) and exchanged

    @property
    def constants(self) -> Hashable:
        """Return the arguments of the update kernels that are not arrays; they seldom change between steps."""
        return ()

    @property
    def arrays(self) -> list[Any]:
        """Return the arrays that `update` changes, without those of the parameters."""
        return [array for state in self.state for array in state]

    def issues(self, places: tuple[int, ...]) -> Hashable:
        """Return all that decides which launches an update issues, apart from arrays and gradients."""
        return self.constants, places, self.proximal, self.clip_norm is None, self.resting

    def reduce(self, loss: Any = None) -> None:
        """After the passes, sum the gradients if several processes train one model, and delete those of resting parameters.
        `loss` is the loss of the step, a device array.
        """
        if self.reducer is not None:
            self.reducer(self.parameters, loss)
        for parameter in self.resting:
            parameter.zero_grad()

    def launch(self, numbers: Sequence[Any] | None = None) -> dict[Tensor, Any]:
        """Update the weights; return the same as `step`. `numbers` may hold the numbers of `changing` as device arrays."""
        places, values = self.changing()

        def given(dev: Device, place: int) -> Any:
            return _uploaded(dev, values[place]) if numbers is None else numbers[place]

        if self.clip_norm is not None:
            self._clip(given)
        ready: dict[Tensor, Any] = {}
        due: dict[tuple[Device, int], list[Due]] = {}
        for parameter, state, place in zip(self.parameters, self.state, places, strict=True):
            g = parameter.gradient
            if g is None:
                self.settle(parameter)
                continue
            arrays = [parameter.data, *state]
            arrays = arrays if parameter.ndim == 2 else [matrix(parameter, array) for array in arrays]
            due.setdefault((parameter.device, place), []).append(
                Due(parameter, arrays, g.values, g.packing)
                if isinstance(g, Packed)
                else Due(parameter, arrays, matrix(parameter, g.dense(parameter.device)), None)
            )
        for (dev, place), parameters in due.items():
            ready.update(self.update(dev, parameters, given(dev, place)) or {})
        if self.proximal is not None:
            self.proximal.apply(given(self.parameters[0].device, len(values) - 1 - (self.clip_norm is not None)))
        return ready

    def _clip(self, given: Callable[[Device, int], Any]) -> None:
        """Clip the gradients in place: g *= min(1, clip_norm / norm) for each gradient g, where `norm` is the norm of all
        gradients as one vector (Pascanu et al. 2013, algorithm 1). given(dev, -1) is an array of `clip_norm`.
        """
        found: dict[Device, list[tuple[Any, Packing | None]]] = {}
        for p in self.parameters:
            if (g := p.gradient) is not None:
                own = (g.values, g.packing) if isinstance(g, Packed) else (g.dense(p.device), None)
                found.setdefault(p.device, []).append(own)
        squares = {dev: self._squares(dev, gradients) for dev, gradients in found.items()}
        if len(squares) > 1:
            everywhere = np.concatenate([dev.download(own) for dev, own in squares.items()])
            squares = {dev: dev.upload(everywhere) for dev in squares}
        for dev, gradients in found.items():
            dev.clip_norm([g for g, _ in gradients], squares[dev], given(dev, -1))

    @staticmethod
    def _squares(dev: Device, gradients: list[tuple[Any, Packing | None]]) -> Any:
        """Return a device array of the sum of squares of each gradient."""
        sums = dev.empty((len(gradients),))
        for i, (g, packing) in enumerate(gradients):
            out = dev.reshape(dev.part(sums, i, i + 1), ())
            if packing is None:
                dev.squares(g, out=out)
            else:
                dev.packed_squares(g, packing, out=out)
        return sums

    def advance(self, trained: Sequence[bool] | None = None) -> None:
        """Called after `launch`: count the step and delete the gradients. If `trained` is given, there are no gradients to
        delete, and `trained` says for each parameter whether it had one.
        """
        self.steps += 1
        if trained is None:
            trained = [p.gradient is not None for p in self.parameters]
            self.zero_grad()
        self.counts = [n + had for n, had in zip(self.counts, trained, strict=True)]

    # --- methods that subclasses define -------------------------------------------------------------------------------
    @abc.abstractmethod
    def update(self, dev: Device, due: list[Due], numbers: Any) -> dict[Tensor, Any] | None:
        """Update the parameters `due`, which are on one device, and their states, in place. Return packed copies as `step`
        does, or None. `numbers` is a device array with the result of the method `numbers`, equal for all parameters in `due`.
        """

    def settle(self, parameter: Tensor | None = None) -> None:  # noqa: B027  most optimisers defer nothing
        """Make the deferred updates of `parameter`; by default, of all parameters."""

    def resize(self, parameter: Tensor, change: Callable[[Any], Any]) -> None:
        """Replace the array of a parameter and each array of its state by change(array), which may have another shape."""
        self.settle(parameter)
        parameter.zero_grad()
        parameter.assign(change(parameter.data))
        for own, state in zip(self.parameters, self.state):
            if own is parameter:
                state[:] = map(change, state)

    def permute(self, parameter: Tensor, order: np.ndarray, axis: int) -> None:
        """Move entry order[i] of an axis, 0 or 1, to position i, in a parameter and in each array of its state. All arrays keep
        their memory, so recorded steps stay valid. A tensor that is not trained has no state.
        """
        self.settle(parameter)
        parameter.zero_grad()
        dev, taps = parameter.device, math.prod(parameter.shape[2:]) if axis else 1
        columns = (np.asarray(order)[:, None] * taps + np.arange(taps)).reshape(-1) if axis else np.asarray(order)
        places = dev.upload(columns.astype(np.int32))
        states = (state for own, state in zip(self.parameters, self.state) if own is parameter)
        for array in [parameter.data, *next(states, ())]:
            given = matrix(parameter, array) if axis else array
            dev.copy(dev.compact(given, places) if axis else dev.take_rows(given, places), out=given)

    def exchange(self, parameter: Tensor, other: Tensor, change: Callable[[Any], Any]) -> None:
        """Train `other` instead of `parameter`. Its state arrays are change(array) of those of `parameter`."""
        self.resize(parameter, change)
        self.parameters = [other if own is parameter else own for own in self.parameters]
        self.resting = frozenset(other if own is parameter else own for own in self.resting)

    # --- state --------------------------------------------------------------------------------------------------------
    def adjust(self, learning_rate: float) -> float:
        """Set the learning rate, and return the previous one."""
        before, self.learning_rate = self.learning_rate, learning_rate
        return before

    def zero_grad(self) -> None:
        """Delete all gradients."""
        for parameter in self.parameters:
            parameter.zero_grad()

    def rest(self, parameters: Iterable[Tensor]) -> None:
        """Let these parameters keep their values."""
        self.resting = frozenset(parameters)

    def reset(self) -> None:
        """Delete all state, as before the first step."""
        self.steps, self.state, self.counts = 0, [], []

    def snapshot(self, copied: Callable[[Device, Any], Any] | None = None, settle: bool = True) -> dict[str, Any]:
        """Return a dict with the learning rate, the number of steps and the state. copied(device, array) is called to copy an
        array; by default arrays are copied to the host. If `settle` is False, deferred updates stay deferred, and the dict says
        which (`SGD`).
        """
        if settle:
            self.settle()
        copied = copied or on_host
        return {
            "steps": self.steps,
            "counts": list(self.counts),
            "state": [[copied(p.device, s) for s in state] for p, state in zip(self.parameters, self.state)],
            **self.settings(),
        }

    def settings(self) -> dict[str, Any]:
        """Return the entries of `snapshot` that hooks may set between steps: the learning rate, and which parameters rest."""
        resting = [i for i, p in enumerate(self.parameters) if p in self.resting]
        return {"learning_rate": self.learning_rate, "resting": resting}

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore a snapshot, on the devices where the parameters are now."""
        self.steps, self.learning_rate = saved["steps"], saved.get("learning_rate", self.learning_rate)
        self.state = [[p.device.copy(a) for a in state] for p, state in zip(self.parameters, saved["state"])]
        self.counts = list(saved.get("counts", [self.steps] * len(self.state)))  # old pickles have one count for all
        self.resting = frozenset(self.parameters[i] for i in saved.get("resting", ()))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self.snapshot(), "wanted": {}, "proximal": None, "reducer": None}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        vars(self).update(saved)
        self.restore(saved)
