"""What a pattern keeps, as plans, kernels and tests share it: a `Period` of indices, or tiles of a weight, and their order.

A weight (O, I) in tiles of T x T has R = ceil(O / T) tile rows and C = ceil(I / T) tile columns. Of the permutations a of
0 … R - 1 and b of 0 … C - 1 with the number `mix` (0: a and b in natural order), the tile at (r, c) is kept where

    (a[r] + b[c]) mod dp = bias

Tile rows with the same a[r] mod dp keep the same tile columns: they are a class, and no two classes share a column.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Period(NamedTuple):
    """Indices that are `step` apart, in an array of a device: where they begin, kernels find out."""

    kept: Any  # (K,) int32
    step: int

    @property
    def size(self) -> int:
        return self.kept.size


def grid_of(shape: tuple[int, int], tile: int) -> tuple[int, int]:
    """(R, C)"""
    return -(-shape[0] // tile), -(-shape[1] // tile)


@functools.lru_cache(maxsize=256)
def arrangement(grid: tuple[int, int], mix: int) -> tuple[np.ndarray, np.ndarray]:
    """(a, b) of this number."""
    if not mix:
        return np.arange(grid[0]), np.arange(grid[1])
    rng = np.random.default_rng((mix, *grid))
    return rng.permutation(grid[0]), rng.permutation(grid[1])


def kept_tiles(grid: tuple[int, int], dp: int, bias: int, mix: int) -> np.ndarray:
    """(R, C) bool, True where (a[r] + b[c]) mod dp = bias."""
    a, b = arrangement(grid, mix)
    return (a[:, None] + b) % dp == bias


def packed_shape(shape: tuple[int, int], tile: int, dp: int) -> tuple[int, int]:
    """Shape of the packed kept tiles: in each row as many tiles as a class keeps at most."""
    rows, cols = grid_of(shape, tile)
    return rows * tile, -(-cols // dp) * tile


class Packed(NamedTuple):
    """The classes, and where tile rows are when packed: class after class, within a class in the order of the weight."""

    rows: np.ndarray        # (classes, most rows) the tile rows of each class, increasing, then -1
    cols: np.ndarray        # (classes, most columns) the tile columns that these keep, increasing, then -1
    row_class: np.ndarray   # (R,)
    row_place: np.ndarray   # (R,)


def packed_tiles(grid: tuple[int, int], dp: int, bias: int, mix: int) -> Packed:
    """How the kept tiles are packed; there are min(dp, R) classes."""
    a, b = arrangement(grid, mix)
    classes = range(min(dp, grid[0]))
    row_place = np.empty(grid[0], np.int64)
    row_place[np.argsort(a % dp, kind="stable")] = np.arange(grid[0])
    most_rows, most_cols = most_tiles(grid, dp)
    return Packed(_padded([np.flatnonzero(a % dp == z) for z in classes], most_rows),
                  _padded([np.flatnonzero((z + b) % dp == bias) for z in classes], most_cols), a % dp, row_place)


def most_tiles(grid: tuple[int, int], dp: int) -> tuple[int, int]:
    """How many tile rows a class has at most, and how many tile columns these keep: the same for every bias and every mix."""
    return -(-grid[0] // dp), -(-grid[1] // dp)


def _padded(lists: Sequence[np.ndarray], most: int, fill: int = -1) -> np.ndarray:
    """Lists of numbers as the rows of one array, filled up."""
    array = np.full((len(lists), most), fill)
    for row, numbers in zip(array, lists, strict=True):
        row[:len(numbers)] = numbers
    return array


class TileLists(NamedTuple):
    """What kernels walk: int32 arrays, whose shapes are the same for every bias and every mix."""

    rows: np.ndarray        # (classes, room) the rows of a weight in each class, then 0
    row_counts: np.ndarray  # (classes,) how many these are
    cols: np.ndarray        # (classes, room) the columns that they keep, then 0
    col_counts: np.ndarray  # (classes,)
    starts: np.ndarray      # (classes,) where the class begins, packed
    tile_rows: np.ndarray   # the same by tiles, as in `Packed`
    tile_cols: np.ndarray
    row_class: np.ndarray
    row_place: np.ndarray


ROOM = 128  # lists of elements reach as far as the largest blocks: they are read without a look at their ends


def tile_lists(shape: tuple[int, int], tile: int, dp: int, bias: int, mix: int) -> TileLists:
    """The kept tiles as lists of tiles, and of their rows and columns."""
    grid = grid_of(shape, tile)
    packed = packed_tiles(grid, dp, bias, mix)

    def listed(numbers: np.ndarray, most: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        found = [elements(some, tile, length) for some in numbers]
        return _padded(found, -(-max(most * tile, 1) // ROOM) * ROOM, 0), np.array([some.size for some in found])

    most_rows, most_cols = most_tiles(grid, dp)
    return TileLists(*(array.astype(np.int32) for array in (
        *listed(packed.rows, most_rows, shape[0]), *listed(packed.cols, most_cols, shape[1]),
        packed.row_place[packed.rows[:, :1].ravel()] * tile, *packed)))


def elements(numbers: np.ndarray, tile: int, length: int) -> np.ndarray:
    """The elements of these tiles of an axis, tile by tile; the last tile of the axis may be shorter, -1 is none."""
    inside = (numbers[numbers >= 0, None] * tile + np.arange(tile)).ravel()
    return inside[inside < length]


def row_places(packed: Packed, tile: int, length: int) -> np.ndarray:
    """(O,) where each row of the weight is when packed."""
    o = np.arange(length)
    return packed.row_place[o // tile] * tile + o % tile
