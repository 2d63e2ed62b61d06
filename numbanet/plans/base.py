"""Plan: defines which part of a matrix product is computed in a step. A dropout policy draws it on the host, and ops use it.

A plan is small, frozen and hashable, and independent of the device: `on_device` makes the index arrays that kernels read. Every
planned op satisfies, with M = plan.mask() and on every device,

    planned(x, W, plan) == dense(x, W * M)            for y, dx and dW.

`scale` multiplies the kept part, so that a step has the right mean: y = scale * (the part of y that the plan keeps).
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
    """The part of a weight that a step reads, in blocks of `block` rows and columns."""

    block: tuple[int, int]
    wanted: np.ndarray  # (block rows, block columns) bool


class Plan(abc.ABC):
    """Base of the plans: the protocol that policies, layers and optimisers rely on.

    Subclasses are frozen dataclasses. A layer refuses a plan that it does not support. So a user's plan either subclasses
    `AxisPlan`, which every layer with neurons supports, or comes with a layer that supports it.
    """

    scale: float = 1.0  # factor of the kept part
    cacheable: ClassVar[bool] = True  # False: such plans rarely repeat, so their device arrays are not cached

    if TYPE_CHECKING:  # plans with a region define it as a field or a property

        @property
        def shape(self) -> tuple[int, ...]:
            """The shape of the plan's mask."""

    @abc.abstractmethod
    def mask(self) -> np.ndarray:
        """Bool array, True where kept: the specification of the plan."""

    @property
    def density(self) -> float:
        """The kept share; 1.0 for size 0."""
        mask = self.mask()
        return float(mask.mean()) if mask.size else 1.0

    @property
    def covers(self) -> tuple[int, ...]:
        """The first lengths that the shape of the site's weight must have; () if any weight is accepted."""
        return ()

    @property
    def trivial(self) -> bool:
        """True if the plan changes nothing: everything is kept with scale 1."""
        return False

    @property
    def kind(self) -> Hashable | None:
        """A hashable value, equal for plans that lead to the same launches and differ only in their lists. None: steps with
        this plan are not recorded.
        """
        return None

    def lists(self) -> tuple:
        """The integers that kernels read, as a tuple of NumPy arrays, which have the same shapes for all plans of one kind."""
        return ()

    def region(self, shape: tuple[int, ...]) -> Region | None:
        """The part of a weight of this shape that a step under the plan reads; None: all of it. If the plan has a region, its
        `shape` is that of the weight, or the number of the weight's rows.
        """
        return None


class AxisPlan(Plan):
    """Keep some indices of an axis of length n: neurons, features, rows of a weight. Subclasses define `indices`."""

    n: int

    @property
    def shape(self) -> tuple[int]:
        """(n,): the shape of the plan's mask."""
        return (self.n,)

    @property
    def covers(self):
        return (self.n,)

    @abc.abstractmethod
    def indices(self) -> np.ndarray:
        """(count,) integers in 0 … n - 1, increasing."""

    @functools.cached_property
    def count(self) -> int:
        """Number of kept indices."""
        return len(self.indices())

    @property
    def density(self) -> float:
        return self.count / self.n if self.n else 1.0

    @property
    def trivial(self) -> bool:
        return self.count == self.n and self.scale == 1.0

    def mask(self) -> np.ndarray:
        """(n,) bool, True where kept."""
        mask = np.zeros(self.n, bool)
        mask[self.indices()] = True
        return mask

    def lists(self) -> RowLists:
        """The kept indices, and the inverse: the position of each index among them, -1 if dropped."""
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
        """The argument of kernels for these indices, made from an int32 device array of them; None if all indices are kept."""
        return kept
