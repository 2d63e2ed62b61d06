"""Optimisers: how parameters follow their gradients. One fused kernel for all; a packed gradient is never made dense.

    SGD    g += decay w;  v = momentum v + g;  w -= lr v        (Nesterov: w -= lr (g + momentum v))
    Adam   m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;  w -= lr m' / (sqrt(s') + eps), m', s' corrected for their start at 0
"""
from __future__ import annotations

import abc
import dataclasses
import functools
import math
import numbers
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .device import Device
from .lists import Blocks, PackedGradient, Packing, every_block
from .plan import RowPlan, TilePlan
from .tensor import Tensor


def _check(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """The value as a float, or ValueError unless low <= value < high."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= value < high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}), got {value!r}")
    return float(value)


def _matrix(tensor: Tensor, array: Any) -> Any:
    """A parameter-shaped array as (R, C): what update kernels take."""
    shape = tensor.shape
    return array if len(shape) == 2 else tensor.device.reshape(array, (1, -1) if len(shape) < 2 else (shape[0], -1))


class Due(NamedTuple):
    """A parameter that has a gradient: its values and its state as (R, C), the gradient and what of it is packed, and what is
    read of the parameter next (None: everything)."""

    parameter: Tensor
    arrays: list[Any]
    g: Any
    kept: Packing | None
    plan: RowPlan | TilePlan | None


class Optimizer(abc.ABC):
    """Base of the optimisers: parameters, a learning rate, and the state that each parameter carries.

    `state` holds, for each parameter, arrays of its shape, made at the first step.
    """

    states = 1  # how many arrays of state a parameter carries

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float = 0.0) -> None:
        if isinstance(parameters, Tensor):
            raise TypeError("parameters must be a list of tensors; for one tensor w write [w]")
        self.parameters = list(parameters)
        for p in self.parameters:
            if not (isinstance(p, Tensor) and p.requires_grad):
                raise TypeError(f"parameters must be tensors made with requires_grad=True, got {p!r}")
        self.parameters = list(dict.fromkeys(self.parameters))  # one that is given twice takes one step
        self.learning_rate = _check("learning_rate", learning_rate, 0)
        self.weight_decay = _check("weight_decay", weight_decay, 0)
        self.steps = 0
        self.state: list[list[Any]] = []

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.zero_grad()

    def step(self, wanted: Mapping[Tensor, RowPlan | TilePlan] | None = None) -> dict[Tensor, RowPlan | TilePlan]:
        """Update every parameter that has a gradient, and forget the gradients.

        Parameters
        ----------
        wanted : mapping of Tensor to plan, optional
            Weights of which nothing but what the plan keeps is read before the next step. The rest of them may be left as
            it is until a step wants it, or `settle`, where that saves time and gives the same weights (`SGD`).

        Returns
        -------
        dict of Tensor to plan
            The plans of those weights of which the next step's packed form was made on the way, with that form: for the next
            step alone, before anything else changes the weights.
        """
        ready = self.apply(wanted)
        self.advance()
        return ready

    def _begin(self) -> None:
        if not self.state:
            self.state = [[p.device.full(p.shape, 0.0) for _ in range(self.states)] for p in self.parameters]

    def foresee(self, wanted: Mapping[Tensor, RowPlan | TilePlan]) -> tuple[Hashable, list[Any]] | None:
        """Put what the next `apply(wanted, foreseen=True)` reads where it was read before: recorded launches of it can be done
        again instead, with `advance` after them. Returns the numbers and the arrays that these depend on, or None where they
        cannot: here, because each step may have numbers of its own."""
        return None

    def apply(self, wanted: Mapping[Tensor, RowPlan | TilePlan] | None = None,
              foreseen: bool = False) -> dict[Tensor, RowPlan | TilePlan]:
        """What a step does to the weights; `advance` does the rest. As `step`, and what is wanted may have been foreseen."""
        ready: dict[Tensor, RowPlan | TilePlan] = {}
        self._begin()
        due: dict[Device, list[Due]] = {}
        for parameter, state in zip(self.parameters, self.state, strict=True):
            g = parameter.gradient
            if g is not None:
                packed = isinstance(g, PackedGradient)
                due.setdefault(parameter.device, []).append(Due(
                    parameter, [_matrix(parameter, array) for array in (parameter.data, *state)],
                    g.values if packed else _matrix(parameter, g), g.packing if packed else None,
                    (wanted or {}).get(parameter)))
            else:
                self.settle(parameter)
        for dev, parameters in due.items():
            ready.update(self.update(dev, parameters, foreseen))
        return ready

    def advance(self) -> None:
        """A step was applied: go on to the next, without gradients."""
        self.steps += 1
        self.zero_grad()

    @abc.abstractmethod
    def update(self, dev: Device, due: list[Due], foreseen: bool) -> dict[Tensor, RowPlan | TilePlan]:
        """Change parameters that live on one device, and their state, in place.

        Returns the plans of those for which something was prepared, with it."""

    def settle(self, parameter: Tensor | None = None) -> None:  # noqa: B027  most optimisers leave nothing undone
        """Bring a parameter, or all, up to date where steps were left undone."""

    def reset(self) -> None:
        """Forget all state, as before the first step."""
        self.steps, self.state = 0, []

    def snapshot(self) -> dict[str, Any]:
        """The steps and the state, on the host."""
        self.settle()
        return {"steps": self.steps, "state": [[np.array(p.device.download(s)) for s in state]
                                               for p, state in zip(self.parameters, self.state)]}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go back to a snapshot, on the devices where the parameters are now."""
        self.steps = saved["steps"]
        self.state = [[p.device.upload(np.array(a)) for a in state] for p, state in zip(self.parameters, saved["state"])]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self.snapshot()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        vars(self).update(saved)
        self.restore(saved)


class _Debt:
    """The steps that are left undone in the blocks of one weight; all in terms of `numbanet_kernels.update`. Its arrays stay,
    because recorded updates read them."""

    LIMIT = 256  # steps that a block can miss: then all of the weight is brought up to date

    def __init__(self, dev: Device, shape: tuple[int, int], block: tuple[int, int], numbers: tuple) -> None:
        self.dev, self.block, self.numbers, self.missed = dev, block, numbers, 0
        blocks = tuple(-(-n // size) for n, size in zip(shape, block, strict=True))
        self.none, self.every = every_block(blocks, dev)
        self.behind, self.after = (dev.copy(self.none) for _ in range(2))
        self.held, self.wanted = (dev.copy(self.every) for _ in range(2))
        self.powers = dev.copy(_powers(dev, self.LIMIT + 1, numbers))
        self.partly = False  # whether some blocks are not wanted

    @property
    def late(self) -> tuple:
        """What the kernels take."""
        return self.behind, self.after, self.held, self.wanted, self.powers, self.block

    def want(self, blocks: Blocks | None) -> None:
        """What will be read before the next step; None: everything."""
        self.partly = blocks is not None and self.missed + 1 < self.LIMIT
        self.dev.copy(blocks.wanted if self.partly else self.every, out=self.wanted)

    def stepped(self) -> None:
        """A step was done: what it wrote is what the next one reads."""
        self.behind, self.after, self.held, self.wanted = self.after, self.behind, self.wanted, self.held
        self.missed = self.missed + 1 if self.partly else 0

    def settled(self) -> None:
        """All blocks are up to date."""
        self.dev.copy(self.none, out=self.behind)
        self.dev.copy(self.every, out=self.held)
        self.missed = 0

    def renumber(self, numbers: tuple) -> None:
        """Steps have other numbers from here on, where all blocks are up to date."""
        self.dev.copy(_powers(self.dev, self.LIMIT + 1, numbers), out=self.powers)
        self.numbers = numbers


@functools.lru_cache(maxsize=64)
def _powers(dev: Device, count: int, numbers: tuple) -> Any:
    return dev.sgd_powers(count, *numbers)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as PyTorch defines it.

    Lazy where it is told what is read next (`step(wanted)`): a step that brings a block of a weight no gradient is a linear map
    of (w, v), so that several of them are one, done when somebody reads the block. An update then costs what two successive
    plans keep, not the size of the weight, and gives the weights of the dense update to rounding.

    Parameters
    ----------
    parameters : iterable of Tensor
    learning_rate : float, default=0.01
    momentum : float, default=0.0
        In [0, 1): share of the last step's velocity that is kept (Polyak 1964).
    nesterov : bool, default=False
        Whether to look ahead along the velocity (Nesterov 1983, in the form of Sutskever et al. 2013).
    weight_decay : float, default=0.0
        L2 penalty: weight_decay * w is added to the gradient.

    Raises
    ------
    ValueError
        If a number is out of range, or nesterov is asked for without momentum.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float = 0.01, momentum: float = 0.0,
                 nesterov: bool = False, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, learning_rate, weight_decay)
        self.momentum = _check("momentum", momentum, 0, 1)
        self.nesterov = bool(nesterov)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        self.debts: dict[Tensor, _Debt] = {}
        self.stepping: list[_Debt] = []  # those that the present step changes
        self.foreseeable = True          # whether a step has changed all that were foreseen
        self.rates: dict[Device, tuple[float, Any]] = {}

    @property
    def _numbers(self) -> tuple:
        return self.learning_rate, self.momentum, self.nesterov, self.weight_decay

    def foresee(self, wanted):
        if not self.foreseeable or len({p.device for p in self.parameters}) > 1:
            return None
        self._begin()
        for p in self.parameters:
            if p.requires_grad:
                self._arrange(p, wanted.get(p))
            elif p in self.debts:  # frozen meanwhile
                self.settle(p)
                del self.debts[p]
        self.stepping, dev = list(self.debts.values()), self.parameters[0].device
        rate, array = self.rates.get(dev, (None, None))
        if rate != self.learning_rate:
            array = dev.full((1,), self.learning_rate, out=array)
            self.rates[dev] = self.learning_rate, array
        read = [array, *(v for (v,) in self.state), *(a for debt in self.stepping for a in (debt.behind, debt.held))]
        return self._numbers[1:], read

    def apply(self, wanted=None, foreseen=False):
        expected, self.stepping = len(self.stepping), []
        ready = super().apply(wanted, foreseen)
        self.foreseeable &= not foreseen or len(self.stepping) == expected  # else some of them got no gradient
        return ready

    def update(self, dev, due, foreseen):
        updates, ready = [], {}
        for parameter, (w, v), g, kept, plan in due:
            if not foreseen:
                self._arrange(parameter, plan)
            debt = self.debts.get(parameter)
            if debt and not (foreseen or debt.missed or debt.partly):
                debt = None  # it has nothing to say
            into = plan.room(dev) if debt and debt.partly else None
            updates.append((w, v, g, kept, debt and debt.late, into))
            if debt:
                self.stepping.append(debt)
            if into is not None:
                ready[parameter] = dataclasses.replace(plan, prepared=into[0])
        dev.sgd(updates, self.rates[dev][1] if foreseen else self.learning_rate, *self._numbers[1:])
        return ready

    def _arrange(self, parameter: Tensor, plan: RowPlan | TilePlan | None) -> None:
        """Tell the parameter's debt what is wanted; make one that fits where there is none."""
        dev, debt = parameter.device, self.debts.get(parameter)
        blocks = plan.blocks(parameter.shape, dev) if plan is not None and dev.late_pays(parameter.size) else None
        fits = debt and debt.dev is dev and (blocks is None or blocks.size == debt.block)
        if debt and not (fits and debt.numbers == self._numbers):
            self.settle(parameter)
            debt.renumber(self._numbers)
            if not fits:
                del self.debts[parameter]
        if blocks and not fits:
            debt = self.debts[parameter] = _Debt(dev, parameter.shape, blocks.size, self._numbers)
        if parameter in self.debts:
            debt.want(blocks)

    def advance(self):
        super().advance()
        for debt in self.stepping:
            debt.stepped()
        self.stepping = []

    def settle(self, parameter=None):
        for i, p in enumerate(self.parameters):
            if p in self.debts and parameter in (None, p):
                debt = self.debts[p]
                if debt.missed:
                    p.device.sgd_settle(_matrix(p, p.data), _matrix(p, self.state[i][0]), debt.late)
                    debt.settled()

    def reset(self):
        super().reset()
        self.debts = {}

    def restore(self, saved):
        super().restore(saved)
        self.debts, self.stepping, self.rates = {}, [], {}

    def __getstate__(self):
        return {**super().__getstate__(), "debts": {}, "stepping": [], "rates": {}}


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), as PyTorch defines it.

    Never lazy: its step without a gradient is not linear (a square root, eps, and corrections that change every step), so
    missed steps cannot be done as one without another result.

    Parameters
    ----------
    parameters : iterable of Tensor
    learning_rate : float, default=0.001
    betas : tuple of float, default=(0.9, 0.999)
        How slowly the means of g and g² move, each in [0, 1).
    eps : float, default=1e-8
        Keeps the division finite.
    weight_decay : float, default=0.0
        L2 penalty: weight_decay * w is added to the gradient.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    states = 2

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float = 0.001, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, learning_rate, weight_decay)
        self.betas = tuple(_check("betas", b, 0, 1) for b in betas)
        self.eps = _check("eps", eps, 0)

    def update(self, dev, due, foreseen):
        dev.adam([(*d.arrays, d.g, d.kept) for d in due], self.learning_rate, *self.betas, self.eps, self.steps + 1,
                 self.weight_decay)
        return {}
