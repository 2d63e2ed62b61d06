"""Optimisers: how parameters follow their gradients. One fused kernel for all; a packed gradient is never made dense.

    SGD    g += decay w;  v = momentum v + g;  w -= lr v        (Nesterov: w -= lr (g + momentum v))        (`sgd`)
    Adam   m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;  w -= lr m' / (sqrt(s') + eps)        (`adam`)

A step is prepare -> forward and backward passes -> reduce -> launch -> advance; `step` is all of it but the passes.
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


def check_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """The value as a float, or ValueError unless low <= value < high."""
    if not is_real(value) or not low <= value < high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}), got {value!r}")
    return float(value)


def matrix(tensor: Tensor, array: Any) -> Any:
    """A parameter-shaped array as (R, C): what update kernels take."""
    rows = tensor.shape[0] if tensor.ndim > 1 else 1
    columns = math.prod(tensor.shape[1:]) if tensor.ndim > 1 else tensor.size  # where there are no rows, too
    return array if tensor.ndim == 2 else tensor.device.reshape(array, (rows, columns))


def on_host(dev: Device, array: Any) -> np.ndarray:
    """A copy of an array of a device."""
    return np.array(dev.download(array))


@functools.lru_cache(maxsize=64)
def _uploaded(dev: Device, numbers: tuple[float, ...]) -> Any:
    return dev.upload(np.array(numbers, np.float32))


class Due(NamedTuple):
    """A parameter that has a gradient: its values and its state as (R, C), the gradient, and what of it is packed."""

    parameter: Tensor
    arrays: list[Any]
    g: Any
    packing: Packing | None


class Optimizer(abc.ABC):
    """Base of the optimisers: parameters, a learning rate, and the state that each parameter carries.

    Subclasses define `update`, and `numbers` if more than the learning rate changes from step to step. `state` holds, for each
    parameter, arrays of its shape, and `counts` in how many steps it had a gradient; both are made at the first step.
    """

    recordable: ClassVar[bool] = False  # see `records`
    foresees = False  # whether `prepare` decides, by what is read before the next step, what is launched
    states = 1  # how many arrays of state a parameter carries

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
        self.parameters = list(dict.fromkeys(self.parameters))  # one that is given twice takes one step
        self.learning_rate = check_number("learning_rate", learning_rate, 0)
        self.weight_decay = check_number("weight_decay", weight_decay, 0)
        self.clip_norm = None if clip_norm is None else check_number("clip_norm", clip_norm, 1e-30)
        self.steps = 0
        self.state: list[list[Any]] = []
        self.counts: list[int] = []  # of the steps, those in which each parameter had a gradient
        self.wanted: dict[Tensor, DevicePlan] = {}  # what is read of them before the next step

    # --- a step, in order ---------------------------------------------------------------------------------------------
    @deferred
    def step(self, wanted: Mapping[Tensor, DevicePlan | Plan] | None = None) -> dict[Tensor, Any]:
        """Update every parameter that has a gradient, and forget the gradients: prepare, reduce, launch and advance.

        Parameters
        ----------
        wanted : mapping of Tensor to Kept or Plan, optional
            Weights of which nothing but this part is read before the next step. The rest of them may be left as it is until a
            step wants it, or `settle`, where that saves time and gives the same weights (`SGD`).

        Returns
        -------
        dict of Tensor to array
            Of some weights, what the next step reads of them, packed on the way (`Context.packed`): for the next step alone,
            before anything else changes the weights.

        Raises
        ------
        ValueError
            If a plan is of another weight than the one it is given for, before anything is changed.
        """
        self.prepare(wanted)
        self.reduce()
        ready = self.launch()
        self.advance()
        return ready

    def prepare(self, wanted: Mapping[Tensor, DevicePlan | Plan] | None = None) -> None:
        """Before the passes of a step: what is read of the weights before the next one (`step`)."""
        self.wanted = {w: on_device(plan, w.device) if isinstance(plan, Plan) else plan for w, plan in (wanted or {}).items()}
        for w, part in self.wanted.items():
            region = part.plan.region(w.shape) if isinstance(part, DevicePlan) else None
            if region is None or part.plan.shape not in (w.shape, w.shape[:1]) or part.device is not w.device:
                raise ValueError(f"{type(self).__name__}: {part} is no part of a weight of shape {w.shape} on {w.device.name}")
        if not self.state:
            self.state = [[p.device.full(p.shape, 0.0) for _ in range(self.states)] for p in self.parameters]
            self.counts = [0] * len(self.parameters)

    def numbers(self, count: int) -> tuple[float, ...]:
        """What changes from step to step, for parameters that have taken so many steps: `update` finds it in an array."""
        return (self.learning_rate,)

    def changing(self) -> tuple[tuple[int, ...], list[tuple[float, ...]]]:
        """(by parameter, which of some numbers are its own; those numbers)"""
        counts = self.counts
        if counts and counts.count(counts[0]) == len(counts):
            return (0,) * len(counts), [self.numbers(counts[0])]
        found = {count: self.numbers(count) for count in sorted(set(self.counts))}
        distinct = list(dict.fromkeys(found.values()))
        places = {count: distinct.index(own) for count, own in found.items()}
        return tuple([places[count] for count in self.counts]), distinct

    @property
    def records(self) -> bool:
        """Whether updates with equal `constants` and `arrays`, of equally packed gradients, always launch the same, so that
        they may be recorded. A class says so for itself alone (`recordable = True`): a subclass may do something else."""
        return bool(vars(type(self)).get("recordable", False)) and self.clip_norm is None

    @property
    def constants(self) -> Hashable:
        """What `update` takes besides arrays: nearly always the same in all steps."""
        return ()

    @property
    def arrays(self) -> list[Any]:
        """What `update` changes besides parameters."""
        return [array for state in self.state for array in state]

    def reduce(self) -> None:  # noqa: B027  in one process there is nothing to do
        """After the passes: make gradients those of all processes that train together."""

    def launch(self, numbers: Sequence[Any] | None = None) -> dict[Tensor, Any]:
        """What a step does to the weights; returns what `step` does. The numbers of `changing` may lie in arrays already."""
        if self.clip_norm is not None:
            self._clip()
        ready: dict[Tensor, Any] = {}
        due: dict[tuple[Device, int], list[Due]] = {}
        places, values = self.changing()
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
            own = _uploaded(dev, values[place]) if numbers is None else numbers[place]
            ready.update(self.update(dev, parameters, own) or {})
        return ready

    def _clip(self) -> None:
        """g *= min(1, clip_norm / norm), in place, for the norm of all gradients as one vector (Pascanu et al. 2013, algorithm
        1). Parameters may have their gradient in the same array, as the two biases of an LSTM: it is multiplied once."""
        found, squares = [], []
        for p in self.parameters:
            if p.gradient is not None:
                dev, packing = p.device, p.gradient.packing if isinstance(p.gradient, Packed) else None
                found.append((dev, p.gradient.dense(dev) if packing is None else p.gradient.values))
                squares.append(dev.squares(found[-1][1]) if packing is None else dev.packed_squares(found[-1][1], packing))
        norm = math.sqrt(math.fsum(float(dev.download(s)) for (dev, _), s in zip(found, squares)))
        limit = math.inf if self.clip_norm is None else self.clip_norm
        if norm > limit:
            with np.errstate(all="ignore"):  # of packed tiles, places that are no elements hold anything
                for dev in {dev for dev, _ in found}:
                    for g in dev.distinct([g for there, g in found if there is dev]):
                        dev.affine(g, mul=limit / norm, out=g)

    def advance(self, trained: Sequence[bool] | None = None) -> None:
        """A step was launched: go on to the next, without gradients. `trained` says which parameters had one, if that is known
        and there are none to forget."""
        self.steps += 1
        if trained is None:
            trained = [p.gradient is not None for p in self.parameters]
            self.zero_grad()
        self.counts = [n + had for n, had in zip(self.counts, trained, strict=True)]

    # --- what optimisers differ in ------------------------------------------------------------------------------------
    @abc.abstractmethod
    def update(self, dev: Device, due: list[Due], numbers: Any) -> dict[Tensor, Any] | None:
        """Change parameters that live on one device, and their state, in place; returns what was packed on the way, if any.
        All of them have the same `numbers`, here in an array of the device."""

    def settle(self, parameter: Tensor | None = None) -> None:  # noqa: B027  most optimisers leave nothing undone
        """Bring a parameter, or all, up to date where steps were left undone."""

    def resize(self, parameter: Tensor, change: Callable[[Any], Any]) -> None:
        """Replace a parameter's array by change(array), of another shape, and the arrays of its state in the same way."""
        self.settle(parameter)
        parameter.zero_grad()
        parameter.assign(change(parameter.data))
        for own, state in zip(self.parameters, self.state):
            if own is parameter:
                state[:] = map(change, state)

    def exchange(self, parameter: Tensor, other: Tensor, change: Callable[[Any], Any]) -> None:
        """Train another tensor in place of a parameter, whose state, change(array) of each array of it, it takes over."""
        self.resize(parameter, change)
        self.parameters = [other if own is parameter else own for own in self.parameters]

    # --- state --------------------------------------------------------------------------------------------------------
    def adjust(self, learning_rate: float) -> float:
        """Take another learning rate; returns the one before."""
        before, self.learning_rate = self.learning_rate, learning_rate
        return before

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.zero_grad()

    def reset(self) -> None:
        """Forget all state, as before the first step."""
        self.steps, self.state, self.counts = 0, [], []

    def snapshot(self, copied: Callable[[Device, Any], Any] | None = None) -> dict[str, Any]:
        """The learning rate, the steps and the state; copied(device, array) copies an array, by default to the host."""
        self.settle()
        copied = copied or on_host
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "counts": list(self.counts),
            "state": [[copied(p.device, s) for s in state] for p, state in zip(self.parameters, self.state)],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go back to a snapshot, on the devices where the parameters are now."""
        self.steps, self.learning_rate = saved["steps"], saved.get("learning_rate", self.learning_rate)
        self.state = [[p.device.copy(a) for a in state] for p, state in zip(self.parameters, saved["state"])]
        self.counts = list(saved.get("counts", [self.steps] * len(self.state)))  # older pickles have one count for all

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self.snapshot(), "wanted": {}}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        vars(self).update(saved)
        self.restore(saved)
