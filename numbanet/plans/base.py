"""Plan: which part of a matrix product is computed this step. Made on the host by a dropout policy, consumed by planned ops.

A plan is small, frozen and hashable, and knows no device: `on_device` makes index arrays that kernels read. Every planned op
satisfies, with M = plan.mask() and on every device,

    planned(x, W, plan) == dense(x, W * M)            for y, dx and dW.

`scale` multiplies what is kept, so that a step has the right mean: y = scale * (what the plan keeps of y).
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
    """The part of a weight that a step reads: blocks of so many rows and columns, and which of them."""

    block: tuple[int, int]
    wanted: np.ndarray  # (block rows, block columns) bool


class Plan(abc.ABC):
    """Base of the plans: the protocol that policies, layers and optimisers rely on.

    Subclasses are frozen dataclasses. A layer refuses a plan that it does not know; a plan of one's own is therefore made
    from `AxisPlan`, which every layer with neurons knows, or comes with a layer of one's own.
    """

    scale: float = 1.0  # what is kept is multiplied by it
    cacheable: ClassVar[bool] = True  # whether one may come again: what it is on a device is kept for then

    if TYPE_CHECKING:  # a plan that has a region says so: a field or a property

        @property
        def shape(self) -> tuple[int, ...]:
            """Of what the plan's mask covers."""

    @abc.abstractmethod
    def mask(self) -> np.ndarray:
        """Bool, True where kept: what the plan means."""

    @property
    def density(self) -> float:
        """The kept share, 1.0 where there is nothing to keep."""
        mask = self.mask()
        return float(mask.mean()) if mask.size else 1.0

    @property
    def covers(self) -> tuple[int, ...]:
        """The first lengths that the weight at its site must have; () where any will do."""
        return ()

    @property
    def trivial(self) -> bool:
        """Whether everything is kept as it is."""
        return False

    @property
    def kind(self) -> Hashable | None:
        """The same for plans that mean the same launches and differ only in their lists; None: passes are not recorded."""
        return None

    def lists(self) -> tuple:
        """The integers that kernels read, a tuple of NumPy arrays; those of plans of one kind have the same shapes."""
        return ()

    def region(self, shape: tuple[int, ...]) -> Region | None:
        """What of a weight of this shape a step under the plan reads; None: all of it. A plan that has a region has a `shape`,
        that of such a weight or of its rows."""
        return None


class AxisPlan(Plan):
    """Keep some indices of an axis of length n: neurons, features, rows of a weight. Subclasses say which by `indices`."""

    n: int

    @property
    def shape(self) -> tuple[int]:
        """(n,): of what the plan's mask covers."""
        return (self.n,)

    @property
    def covers(self):
        return (self.n,)

    @abc.abstractmethod
    def indices(self) -> np.ndarray:
        """(count,) integers in 0 … n - 1, increasing."""

    @functools.cached_property
    def count(self) -> int:
        """How many indices are kept."""
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
        """The kept indices, and the place of each index among them."""
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
        """The kept indices as kernels take them, given as an int32 array of the device; None for all."""
        return kept
