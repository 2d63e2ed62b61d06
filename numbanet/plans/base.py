"""Plan: defines which part of a matrix product is computed in a step. A dropout policy draws it on the host, and ops use it.

A plan is small, frozen, hashable and independent of the device; `on_device` makes the index arrays that kernels read. If M is
plan.mask(), every op that takes a plan satisfies on every device

    planned(x, W, plan) == dense(x, W * M)            for y, dx and dW.

A plan also has a factor, `scale`: y = scale * (the part of y that the plan keeps). Random policies choose it so that the mean
of y over the plans that they draw is the dense y.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from numbanet_kernels.layouts.rows import RowLists


class Region(NamedTuple):
    """The part of a weight that a step reads: those of its blocks, of block[0] x block[1] elements, that are `wanted`."""

    block: tuple[int, int]
    wanted: np.ndarray  # (block rows, block columns) bool


class Plan(abc.ABC):
    """Base class of the plans. It defines the protocol that policies, layers and optimisers rely on.

    Subclasses are frozen dataclasses. A layer refuses a plan that it does not support. So a user's plan either subclasses
    `AxisPlan`, which every layer with neurons supports, or comes with a layer that supports it.
    """

    scale: float = 1.0  # factor of the part that is kept
    cacheable: ClassVar[bool] = True  # False if such plans rarely repeat; their device arrays are then not cached

    if TYPE_CHECKING:  # at run time, subclasses with a region define it as a field or a property

        @property
        def shape(self) -> tuple[int, ...]:
            """The shape of the plan's mask."""

    @abc.abstractmethod
    def mask(self) -> np.ndarray:
        """Return an array of bool that is True where the plan keeps an element. The mask specifies the plan."""

    @property
    def density(self) -> float:
        """The share of elements that the plan keeps; 1.0 if there are none."""
        mask = self.mask()
        return float(mask.mean()) if mask.size else 1.0

    @property
    def covers(self) -> tuple[int, ...]:
        """The lengths with which the shape of the weight must begin; () if the plan fits a weight of any shape."""
        return ()

    @property
    def trivial(self) -> bool:
        """True if the plan changes nothing: everything is kept with scale 1."""
        return False

    @property
    def kind(self) -> Hashable | None:
        """A hashable value; plans with the same value lead to the same launches. None if steps must not be recorded."""
        return None

    def lists(self) -> tuple:
        """Return the index arrays that kernels read. Those of plans with an equal `kind` have equal shapes."""
        return ()

    def of_rank(self, rank: int) -> Plan:
        """Return the plan for the samples of a rank, if several processes train one model: for random bits of each sample,
        other bits on each rank; else the plan itself, because all ranks keep the same parts of weights.
        """
        return self

    def region(self, shape: tuple[int, ...]) -> Region | None:
        """Return the part of a weight of shape `shape` that a step with this plan reads; None if it reads the whole weight. If
        a plan has a region, the plan's `shape` is the shape of the weight, or (number of rows,).
        """
        return None


class AxisPlan(Plan):
    """Keep some indices of an axis of length n, such as neurons, features or rows of a weight. Subclasses define `indices`."""

    n: int

    @property
    def shape(self) -> tuple[int]:
        """The shape (n,) of the plan's mask."""
        return (self.n,)

    @property
    def covers(self):
        return (self.n,)

    @abc.abstractmethod
    def indices(self) -> np.ndarray:
        """Return the kept indices: an array (count,) of increasing integers in 0 … n - 1."""

    @functools.cached_property
    def count(self) -> int:
        """The number of kept indices."""
        return len(self.indices())

    @functools.cached_property
    def density(self) -> float:
        return self.count / self.n if self.n else 1.0

    @functools.cached_property
    def trivial(self) -> bool:
        return self.count == self.n and self.scale == 1.0

    def mask(self) -> np.ndarray:
        """Return an array (n,) of bool that is True for kept indices."""
        mask = np.zeros(self.n, bool)
        mask[self.indices()] = True
        return mask

    def lists(self) -> RowLists:
        """Return a `RowLists`, which holds the kept indices, and for each index of the axis its position among the kept ones,
        or -1 if it is dropped. Raise ValueError if `indices` does not return increasing integers in 0 … n - 1.
        """
        places, found = np.full(self.n, -1), np.asarray(self.indices())
        if not (
            found.shape == (self.count,)
            and (np.diff(found) > 0).all()
            and (found[:1] >= 0).all()
            and (found[-1:] < self.n).all()
        ):
            raise ValueError(f"{type(self).__name__}: indices must be increasing, from 0 to {self.n - 1}; got {found!r}")
        places[found] = np.arange(found.size)
        return RowLists(places, np.zeros(self.n), found)

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        return self.mask()[:, None]

    def region(self, shape):
        return Region((1, max(math.prod(shape[1:]), 1)), self._rows) if self.count < self.n else None

    def index(self, kept: Any) -> Any:
        """Return what kernels take as the list of kept indices; `kept` holds these indices as an int32 array on the device.
        Subclasses may return None if all indices are kept.
        """
        return kept
