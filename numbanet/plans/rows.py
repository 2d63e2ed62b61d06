"""Plans that keep some indices of an axis: every dp-th index (`RowPlan`), any indices (`IndexPlan`), or
different ones at each time step (`TimePlan`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
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

    @property
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
        chosen = np.array(self.chosen)
        if chosen.ndim != 1 or (
            chosen.size
            and (chosen.dtype.kind not in "iu" or chosen[0] < 0 or chosen[-1] >= self.n or (chosen[1:] <= chosen[:-1]).any())
        ):
            raise ValueError(f"IndexPlan: indices must be increasing integers from 0 to {self.n - 1}, got {self.chosen!r}")
        chosen = chosen.astype(np.int32)
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
        places = np.full(self.n, -1, np.int32)
        places[self.chosen] = np.arange(self.count, dtype=np.int32)
        return RowLists(places, np.zeros(self.n, np.int32), self.chosen)


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


class PositionPlan(DrawnPlan):
    """Keep some rows of a convolution's im2col matrix; each row is an output position of an image. Each group of `together`
    consecutive images keeps the same positions.

    Plans with an equal `kind` may keep different numbers of rows. So the list of kept rows is padded to length n with the
    numbers n, n + 1, ….
    """

    def __init__(self, n: int, chosen: np.ndarray, scale: float = 1.0, together: int = 1) -> None:
        super().__init__(n, chosen, scale)
        object.__setattr__(self, "together", together)

    together: int

    @property
    def trivial(self) -> bool:
        return False

    @property
    def kind(self):
        return PositionPlan, self.n, self.scale, self.together

    def lists(self):
        rows = np.arange(self.n, 2 * self.n, dtype=np.int32)
        rows[: self.count] = self.chosen
        return (rows,)


class PositionTilePlan(PositionPlan):
    """Keep some tiles of a convolution's output positions, which are rows of its im2col matrix. The output positions of an
    image are cut into tiles of side x side positions, cut off at the far edges, and numbered by image, line and column.

    Parameters
    ----------
    grid : tuple of int
        (N, OH, OW): the number of images, and of output positions along their height and width.
    side : int
        Side of a tile.
    tiles : array_like of int
        The kept tiles, increasing.
    scale : float, default=1.0
        Factor of the kept values.

    Raises
    ------
    ValueError
        If the side is not positive, or the tiles are not increasing integers in range.
    """

    def __init__(self, grid: tuple[int, int, int], side: int, tiles: np.ndarray, scale: float = 1.0) -> None:
        if side < 1 or min(grid) < 0:
            raise ValueError(f"PositionTilePlan: the side {side} must be at least 1, and no number of {grid} negative")
        images, *positions = grid
        down, across = (-(-n // side) for n in positions)
        kept = IndexPlan(images * down * across, tiles)  # checks them
        mask = kept.mask().reshape(images, down, across).repeat(side, axis=1).repeat(side, axis=2)
        super().__init__(math.prod(grid), np.flatnonzero(mask[:, : positions[0], : positions[1]]), scale)
        for name, value in (("grid", tuple(grid)), ("side", side), ("tiles", kept.chosen), ("_all", kept.n)):
            object.__setattr__(self, name, value)

    grid: tuple[int, int, int]
    side: int
    tiles: np.ndarray
    _all: int

    def _value(self):
        return *super()._value(), self.grid, self.side

    @property
    def kind(self):
        return PositionTilePlan, self.grid, self.side, self.scale

    def lists(self):
        """Return the kept rows, and the kept tiles, both padded with numbers beyond the last one."""
        tiles = np.arange(self._all, 2 * self._all, dtype=np.int32)
        tiles[: len(self.tiles)] = self.tiles
        return *super().lists(), tiles


class GroupPlan(PositionPlan):
    """A `PositionPlan` for `images` images, of which each group keeps the positions where its row of `groups`, an array
    (groups, positions of an image) of bool, is True. Its list has a row for each group, padded with the number of positions;
    the rows of the im2col matrix are listed only if they are asked for.
    """

    def __init__(self, images: int, groups: np.ndarray, scale: float, together: int) -> None:
        wanted = -(-images // together)
        if groups.dtype != np.bool_ or groups.ndim != 2 or len(groups) != wanted:
            raise ValueError(f"GroupPlan: {wanted} rows of bool are required, not {groups.shape} {groups.dtype}")
        given = {"n": images * groups.shape[1], "images": images, "groups": groups, "scale": scale, "together": together}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    images: int
    groups: np.ndarray

    @functools.cached_property
    def chosen(self) -> np.ndarray:
        """The kept rows of the im2col matrix."""
        found = np.flatnonzero(np.repeat(self.groups, self.together, axis=0)[: self.images]).astype(np.int32)
        found.setflags(write=False)
        return found

    @functools.cached_property
    def count(self) -> int:
        last = self.images - (len(self.groups) - 1) * self.together
        return int(self.groups.sum()) * self.together - int(self.groups[-1:].sum()) * (self.together - last)

    @property
    def kind(self):
        return GroupPlan, self.groups.shape, self.n, self.scale, self.together

    def lists(self):
        found = np.full(self.groups.shape, self.groups.shape[1], np.int32)
        for own, row in zip(self.groups, found, strict=True):
            kept = np.flatnonzero(own)
            row[: kept.size] = kept
        return (found,)


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
