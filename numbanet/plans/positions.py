"""Plans that keep some output positions of a convolution, which are rows of its im2col matrix: any positions (`PositionPlan`),
whole tiles of them (`PositionTilePlan`), or the same ones for groups of images (`GroupPlan`).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from .rows import DrawnPlan, IndexPlan


class PositionPlan(DrawnPlan):
    """Keep some rows of a convolution's im2col matrix; each row is an output position of an image. Each group of `together`
    consecutive images keeps the same positions.

    Plans with an equal `kind` may keep different numbers of rows. So the list of kept rows is padded to length n: if there are
    k of them, with the numbers n + k, …, 2n - 1, which are out of range. `share` is the approximate mean share of rows that
    plans of this kind keep, by which the device chooses its algorithm; by default, that of this plan. It is rounded, so that
    few kinds of plans differ by it.
    """

    STEPS = 16  # of `share`, from 0 to 1

    def __init__(self, n: int, chosen: np.ndarray, scale: float = 1.0, together: int = 1, share: float | None = None) -> None:
        super().__init__(n, chosen, scale)
        object.__setattr__(self, "together", together)
        self._set_share(share)

    def _set_share(self, share: float | None) -> None:
        own = self.density if share is None else share
        object.__setattr__(self, "share", round(self.STEPS * own) / self.STEPS)

    together: int
    share: float

    @property
    def trivial(self) -> bool:
        return False

    @property
    def kind(self):
        return PositionPlan, self.n, self.scale, self.together, self.share

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
    share : float, optional
        As for `PositionPlan`.

    Raises
    ------
    ValueError
        If the side is not positive, or the tiles are not increasing integers in range.
    """

    def __init__(
        self, grid: tuple[int, int, int], side: int, tiles: np.ndarray, scale: float = 1.0, share: float | None = None
    ) -> None:
        if side < 1 or min(grid) < 0:
            raise ValueError(f"PositionTilePlan: the side {side} must be at least 1, and no number of {grid} negative")
        images, *positions = grid
        down, across = (-(-n // side) for n in positions)
        kept = IndexPlan(images * down * across, tiles)  # checks them
        mask = kept.mask().reshape(images, down, across).repeat(side, axis=1).repeat(side, axis=2)
        super().__init__(math.prod(grid), np.flatnonzero(mask[:, : positions[0], : positions[1]]), scale, 1, share)
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
        return PositionTilePlan, self.grid, self.side, self.scale, self.share

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

    def __init__(self, images: int, groups: np.ndarray, scale: float, together: int, share: float | None = None) -> None:
        wanted = -(-images // together)
        if groups.dtype != np.bool_ or groups.ndim != 2 or len(groups) != wanted:
            raise ValueError(f"GroupPlan: {wanted} rows of bool are required, not {groups.shape} {groups.dtype}")
        given = {"n": images * groups.shape[1], "images": images, "groups": groups, "scale": scale, "together": together}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self._set_share(share)

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
        return GroupPlan, self.groups.shape, self.n, self.scale, self.together, self.share

    def lists(self):
        found = np.full(self.groups.shape, self.groups.shape[1], np.int32)
        for own, row in zip(self.groups, found, strict=True):
            kept = np.flatnonzero(own)
            row[: kept.size] = kept
        return (found,)
