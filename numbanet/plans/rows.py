"""Plans that keep some indices of an axis: every dp-th index (`RowPlan`), any indices (`IndexPlan`), or
different ones at each time step (`TimePlan`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbanet_kernels.layouts.rows import Period, RowLists

from .base import AxisPlan, Plan


@dataclasses.dataclass(frozen=True)
class RowPlan(AxisPlan):
    """Keep the indices bias, bias + dp, bias + 2 dp, … of an axis of length n (*Approximate Random Dropout*, row pattern).

    On a layer's output axis it drops neurons: rows of this layer's weight and columns of the next one's.

    Parameters
    ----------
    n : int
        Length of the axis.
    dp : int
        Period of the pattern: one index in dp is kept.
    bias : int
        First kept index, 0 … dp - 1.
    scale : float, default=1.0
        Factor of the kept values.

    Raises
    ------
    ValueError
        If n is negative, dp < 1 or bias is not in 0 … dp - 1.
    """

    n: int
    dp: int
    bias: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.n < 0 or self.dp < 1 or not 0 <= self.bias < self.dp:
            raise ValueError(f"RowPlan: n {self.n} must be >= 0, dp {self.dp} >= 1 and bias {self.bias} in 0 … dp - 1")

    @functools.cached_property
    def count(self) -> int:
        return len(range(self.bias, self.n, self.dp))

    @functools.cached_property
    def kind(self):
        return RowPlan, self.n, self.dp, self.count, self.scale

    def indices(self):
        return np.arange(self.bias, self.n, self.dp)

    def index(self, kept: Any) -> Period | None:
        return None if self.dp == 1 else Period(kept, slice(self.bias, self.n, self.dp))


@dataclasses.dataclass(frozen=True, eq=False)
class IndexPlan(AxisPlan):
    """Keep any increasing indices of an axis of length n.

    Parameters
    ----------
    n : int
        Length of the axis.
    chosen : array_like of int
        The kept indices, increasing, in 0 … n - 1.
    scale : float, default=1.0
        Factor of the kept values.

    Raises
    ------
    ValueError
        If the indices are not increasing integers in that range.
    """

    n: int
    chosen: np.ndarray
    scale: float = 1.0

    def __post_init__(self) -> None:
        chosen = np.asarray(self.chosen)
        if chosen.ndim != 1 or (
            chosen.size
            and (
                chosen.dtype.kind not in "iu"
                or chosen[0] < 0
                or chosen[-1] >= self.n
                or np.count_nonzero(chosen[1:] <= chosen[:-1])
            )
        ):
            raise ValueError(f"IndexPlan: indices must be increasing integers from 0 to {self.n - 1}, got {self.chosen!r}")
        chosen = chosen.astype(np.int32)  # a copy
        chosen.flags.writeable = False
        object.__setattr__(self, "chosen", chosen)

    def _value(self) -> tuple:
        return self.n, self.chosen.tobytes(), self.scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexPlan) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    @property
    def kind(self):
        return IndexPlan, self.n, self.count, self.scale

    def indices(self):
        return self.chosen

    def lists(self):  # no check, because the constructor has checked the indices
        nowhere, numbers, classes = _constants(self.n)
        places = nowhere.copy()
        places[self.chosen] = numbers[: self.count]
        return RowLists(places, classes, self.chosen)


@functools.lru_cache(maxsize=64)
def _constants(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three int32 arrays (n,) for the lists of plans, which are not to be changed: all -1; 0, 1, …; and zeros."""
    return np.full(n, -1, np.int32), np.arange(n, dtype=np.int32), np.zeros(n, np.int32)


class DrawnPlan(IndexPlan):
    """An `IndexPlan` with randomly drawn indices: such plans rarely repeat, so their device arrays are not cached."""

    cacheable = False


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenPlan(AxisPlan):
    """Keep `kept` of n indices that the device has chosen during a pass. The host reads them from the device when it first
    needs them, by read(); a recorded step overwrites them when it is replayed again.
    """

    n: int
    kept: int
    read: Callable[[], np.ndarray] = dataclasses.field(repr=False)
    scale: float = 1.0

    cacheable = False

    @property
    def count(self) -> int:
        """The number of kept indices."""
        return self.kept

    @property
    def kind(self):
        return IndexPlan, self.n, self.kept, self.scale

    @functools.cached_property
    def _indices(self) -> np.ndarray:
        return np.array(self.read())

    def indices(self):
        return self._indices


def repeat_indices(plan: AxisPlan, times: int) -> IndexPlan:
    """Return the plan that keeps `times` consecutive indices for each kept index of `plan`, such as the pixels of a channel."""
    return (_repeat_indices if plan.cacheable else _repeat_indices.__wrapped__)(plan, times)


@functools.lru_cache(maxsize=1024)
def _repeat_indices(plan: AxisPlan, times: int) -> IndexPlan:
    chosen = (np.asarray(plan.indices())[:, None] * times + np.arange(times)).reshape(-1)
    return (IndexPlan if plan.cacheable else DrawnPlan)(plan.n * times, chosen)


@dataclasses.dataclass(frozen=True)
class TimePlan(Plan):
    """Keep different indices of an axis of length n at each time step: time step t keeps the `count` indices
    (starts[t] + k dp) mod n for k = 0 … count - 1.

    This plan drops units of the recurrent input of an `LSTM`. All time steps keep the same number of indices, so that one
    launch computes all of them. If dp divides n and count is n / dp, a time step keeps the same indices as a `RowPlan` with the
    period dp.

    Parameters
    ----------
    n : int
        Length of the axis.
    dp : int
        Distance between kept indices, modulo n.
    count : int
        Number of indices that each step keeps, at most ceil(n / dp).
    starts : tuple of int
        For each of the T time steps, its first kept index, 0 … n - 1. A sequence of fewer time steps uses the first entries.
    scale : float, default=1.0
        Factor of the kept values.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    cacheable = False

    n: int
    dp: int
    count: int
    starts: tuple[int, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.n < 1 or self.dp < 1 or not 0 <= self.count <= -(-self.n // self.dp):
            raise ValueError(f"TimePlan: n {self.n} and dp {self.dp} must be >= 1, and count {self.count} in 0 … ceil(n / dp)")
        if not all(0 <= start < self.n for start in self.starts):
            raise ValueError(f"TimePlan: starts must be in 0 … {self.n - 1}, got {self.starts}")

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (T, n) of the plan's mask; T is the number of time steps."""
        return len(self.starts), self.n

    @property
    def covers(self):
        return (self.n,)

    @property
    def density(self) -> float:
        return self.count / self.n

    @property
    def trivial(self) -> bool:
        return self.count == self.n and self.scale == 1.0

    @property
    def kind(self):
        return TimePlan, self.n, self.count, len(self.starts), self.scale

    def indices(self) -> np.ndarray:
        """Return an int32 array (T, count): the kept indices of each time step, increasing."""
        first = np.array(self.starts, np.int32).reshape(-1, 1)
        return np.sort((first + self.dp * np.arange(self.count, dtype=np.int32)) % np.int32(self.n), axis=1)

    def mask(self) -> np.ndarray:
        """Return an array (T, n) of bool that is True for kept indices."""
        mask = np.zeros(self.shape, bool)
        np.put_along_axis(mask, self.indices(), True, axis=1)
        return mask

    def lists(self):
        return (self.indices(),)
