"""Plans that keep adjacent indices of an axis: a window (`WindowPlan`), the same window in each gate of a recurrent layer
(`UnitWindow`, `GateWindow`), and the part of a weight that a product reads between two windows (`WindowProduct`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from numbanet_kernels.layouts.rows import Window

from .base import AxisPlan, Plan, Region


@dataclasses.dataclass(frozen=True)
class WindowPlan(AxisPlan):
    """Keep `count` adjacent indices start, start + 1, …, modulo n, of an axis of length n.

    The kept part of a weight is one slice, or two if the window wraps around the end, so products read it without a copy.

    Parameters
    ----------
    n : int
        Length of the axis.
    start : int
        First index of the window, 0 … n - 1.
    count : int
        Number of kept indices, 0 … n.
    scale : float, default=1.0
        Factor of the kept values.

    Raises
    ------
    ValueError
        If n < 1, or start or count is out of range.
    """

    n: int
    start: int
    count: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 <= self.start < self.n or not 0 <= self.count <= self.n:
            raise ValueError(
                f"WindowPlan: n {self.n} must be >= 1, start {self.start} in 0 … n - 1 and count {self.count} in 0 … n"
            )

    @functools.cached_property
    def kind(self):
        return WindowPlan, self.n, self.count, self.scale

    def indices(self):
        end = self.start + self.count
        return np.concatenate([np.arange(max(end - self.n, 0)), np.arange(self.start, min(end, self.n))])

    def index(self, kept: Any) -> Window | None:
        return None if self.count == self.n else Window(kept, self.count, self.n)


@dataclasses.dataclass(frozen=True)
class GateWindow(AxisPlan):
    """Keep the same window of units in each gate of a recurrent layer; the axis holds the units gate by gate."""

    units: WindowPlan
    gates: int

    @property
    def n(self) -> int:  # type: ignore[override]
        """The length of the axis."""
        return self.gates * self.units.n

    @property
    def kind(self):
        return GateWindow, self.units.kind, self.gates

    def indices(self):
        return np.add.outer(np.arange(self.gates) * self.units.n, self.units.indices()).reshape(-1)

    def index(self, kept: Any) -> Window | None:
        return None if self.count == self.n else Window(kept, self.count, self.n, self.gates)


@dataclasses.dataclass(frozen=True)
class UnitWindow(WindowPlan):
    """The window of units that a recurrent layer keeps both in its outputs and in its recurrent input.

    The other units are not read in this pass. So the gradients of their gates are exactly 0, and an `LSTM` computes neither
    these gradients nor products with them. The other units still have a state, which the next pass may read.

    Parameters
    ----------
    n, start, count, scale
        As for `WindowPlan`.
    gates : int, default=4
        Number of gates of the layer; 4 for an LSTM.
    """

    gates: int = 4

    @property
    def kind(self):
        return UnitWindow, self.n, self.count, self.scale, self.gates

    @functools.cached_property
    def of_gates(self) -> GateWindow:
        """Return the plan that keeps the same units in each gate."""
        return GateWindow(WindowPlan(self.n, self.start, self.count), self.gates)

    def lists(self):
        """Return the lists of the units, then those of the gates."""
        return *super().lists(), *self.of_gates.lists()

    def same_units(self, other: Any) -> bool:
        """Return True if `other` is a window of the same units."""
        return isinstance(other, WindowPlan) and (self.n, self.start, self.count) == (other.n, other.start, other.count)


@dataclasses.dataclass(frozen=True)
class WindowProduct(Plan):
    """The part of a weight (O, I) that a product reads if the plan `rows` keeps a window of its outputs and the plan `cols` a
    window of its inputs. If a plan is None, the whole axis is kept.

    If the plan `cols` has fewer entries than the weight has inputs, each entry stands for several adjacent inputs, such as the
    pixels of a channel. Each block of its region is `WIDE` columns of one row, so that an update may defer columns as well as
    rows.
    """

    WIDE = 64
    cacheable = False

    shape: tuple[int, int]
    rows: WindowPlan | None
    cols: WindowPlan | None

    def _masks(self) -> tuple[np.ndarray, np.ndarray]:
        rows, cols = (np.ones(n, bool) if plan is None else plan.mask() for n, plan in zip(self.shape, (self.rows, self.cols)))
        return rows, np.repeat(cols, self.shape[1] // max(cols.size, 1))

    def mask(self) -> np.ndarray:
        """Return an array (O, I) of bool that is True where the weight is read."""
        return np.logical_and.outer(*self._masks())

    @functools.cached_property
    def _region(self) -> Region:
        rows, cols = self._masks()
        return Region((1, self.WIDE), np.logical_and.outer(rows, np.logical_or.reduceat(cols, range(0, cols.size, self.WIDE))))

    def region(self, shape):
        return self._region
