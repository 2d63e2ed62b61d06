"""The tiles of a weight that a pattern keeps, and the order in which they are packed.

A weight (O, I) in tiles of T x T has R = ceil(O / T) tile rows and C = ceil(I / T) tile columns. `mix` is the seed of
two permutations, a of 0 … R - 1 and b of 0 … C - 1; if mix = 0, both are the identity. The tile at (r, c) is kept if

    (a[r] + b[c]) mod dp = bias

where dp is the period of the pattern. Tile rows with the same a[r] mod dp keep the same tile columns. Such tile rows form a
class; no tile column is kept by two classes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .packed import Packing


class Pattern(NamedTuple):
    """The numbers that define which tiles of a weight are kept: `shape` is (O, I), `tile` is T, the others are those above."""

    shape: tuple[int, int]
    tile: int
    dp: int
    bias: int
    mix: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers (R, C) of tile rows and tile columns."""
        return -(-self.shape[0] // self.tile), -(-self.shape[1] // self.tile)

    @property
    def most(self) -> tuple[int, int]:
        """The pair (rows, cols): the largest number of tile rows of a class, and the largest number of tile columns that a
        class keeps. They do not depend on `bias` and `mix`.
        """
        rows, cols = self.grid
        return -(-rows // self.dp), -(-cols // self.dp)

    @property
    def packed_shape(self) -> tuple[int, int]:
        """The shape of the array of packed tiles; a row has room for the most columns that a class keeps."""
        return self.grid[0] * self.tile, self.most[1] * self.tile


@functools.lru_cache(maxsize=256)
def arrangement(grid: tuple[int, int], mix: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the permutations (a, b) of the tile rows and tile columns for the seed `mix`."""
    if not mix:
        return np.arange(grid[0]), np.arange(grid[1])
    rng = np.random.default_rng((mix, *grid))
    return rng.permutation(grid[0]), rng.permutation(grid[1])


def kept_tiles(pattern: Pattern) -> np.ndarray:
    """Return an array (R, C) of bool that is True where the tile is kept: where (a[r] + b[c]) mod dp = bias."""
    a, b = arrangement(pattern.grid, pattern.mix)
    return (a[:, None] + b) % pattern.dp == pattern.bias


class Packed(NamedTuple):
    """The classes of tile rows, which keep the same tile columns, and the packed order of the tile rows: sorted by class, and
    within a class by row index.
    """

    rows: np.ndarray  # (classes, most rows) the tile rows of each class, increasing, then -1
    cols: np.ndarray  # (classes, most columns) the tile columns that each class keeps, increasing, then -1
    row_class: np.ndarray  # (R,) the class of each tile row
    row_position: np.ndarray  # (R,) the position of each tile row in the packed order


def packed_tiles(pattern: Pattern) -> Packed:
    """Return the classes of a pattern and the packed order of its tile rows; there are min(dp, R) classes."""
    (a, b), dp, rows = arrangement(pattern.grid, pattern.mix), pattern.dp, pattern.grid[0]
    classes = range(min(dp, rows))
    row_position = np.empty(rows, np.int64)
    row_position[np.argsort(a % dp, kind="stable")] = np.arange(rows)
    most_rows, most_cols = pattern.most
    return Packed(
        _padded([np.flatnonzero(a % dp == z) for z in classes], most_rows),
        _padded([np.flatnonzero((z + b) % dp == pattern.bias) for z in classes], most_cols),
        a % dp,
        row_position,
    )


def _padded(lists: Sequence[np.ndarray], most: int, fill: int = -1) -> np.ndarray:
    """Return an array whose rows are the given lists, padded with `fill` to length `most`."""
    array = np.full((len(lists), most), fill)
    for row, numbers in zip(array, lists, strict=True):
        row[: len(numbers)] = numbers
    return array


class TileLists(NamedTuple):
    """Index lists for kernels: int32 arrays, whose shapes do not depend on the pattern's `bias` and `mix`."""

    rows: np.ndarray  # (classes, room) the rows of the weight in each class, then 0
    row_counts: np.ndarray  # (classes,) the number of rows in each class
    cols: np.ndarray  # (classes, room) the columns of the weight that each class keeps, then 0
    col_counts: np.ndarray  # (classes,) the number of columns that each class keeps
    starts: np.ndarray  # (classes,) the first packed row of each class
    tile_rows: np.ndarray  # this field and the next three are those of `Packed`
    tile_cols: np.ndarray
    row_class: np.ndarray
    row_position: np.ndarray
    row_positions: np.ndarray  # (O,) the row of the packed gradient that holds each row of the weight
    col_positions: np.ndarray  # (I,) the position of each column if columns are sorted by class; -1 if no class keeps it


ROOM = 128  # lists are padded to a multiple of the size of the largest blocks, so that kernels read them without bounds checks


@functools.lru_cache(maxsize=1024)
def list_shapes(pattern: Pattern) -> TileLists:
    """Return the shapes of the arrays that `tile_lists` returns, as the fields of a `TileLists`."""
    (rows, _), (most_rows, most_cols) = pattern.grid, pattern.most
    classes = min(pattern.dp, rows)
    of_rows, of_cols = ((classes, -(-max(n * pattern.tile, 1) // ROOM) * ROOM) for n in (most_rows, most_cols))
    by_tiles = (classes, most_rows), (classes, most_cols), (rows,), (rows,)
    return TileLists(of_rows, (classes,), of_cols, (classes,), (classes,), *by_tiles, *((n,) for n in pattern.shape))


def tile_lists(pattern: Pattern) -> TileLists:
    """Return the `TileLists` of a pattern: the tiles, rows and columns that each of its classes keeps."""
    packed, shapes = packed_tiles(pattern), list_shapes(pattern)

    def listed(numbers: np.ndarray, shape: tuple[int, int], length: int) -> tuple[np.ndarray, np.ndarray]:
        expanded = [elements(some, pattern.tile, length) for some in numbers]
        return _padded(expanded, shape[1], 0), np.array([some.size for some in expanded])

    (of_rows, row_counts), (of_cols, col_counts) = map(listed, packed[:2], (shapes.rows, shapes.cols), pattern.shape)
    col_positions, kept = np.full(pattern.shape[1], -1), [cols[:n] for cols, n in zip(of_cols, col_counts, strict=True)]
    col_positions[np.concatenate([np.zeros(0, np.intp), *kept])] = np.arange(col_counts.sum())
    return TileLists(
        *(
            array.astype(np.int32)
            for array in (
                of_rows,
                row_counts,
                of_cols,
                col_counts,
                packed.row_position[packed.rows[:, :1].ravel()] * pattern.tile,
                *packed,
                row_positions(pattern),
                col_positions,
            )
        )
    )


def tile_packing(pattern: Pattern) -> Packing:
    """Return the `Packing` of the gradient of kept tiles: rows sorted by class, each with the columns that its class keeps."""
    packed, (length, width), tile = packed_tiles(pattern), pattern.shape, pattern.tile
    columns_of = [elements(some, tile, width) for some in packed.cols]
    col_pos = np.full((len(columns_of), width), -1)
    for positions, columns in zip(col_pos, columns_of, strict=True):
        positions[columns] = np.arange(columns.size)
    row_class = packed.row_class[np.arange(length) // tile]
    return Packing(
        *(
            array.astype(np.int32)
            for array in (row_positions(pattern), row_class, _padded(columns_of, pattern.packed_shape[1]), col_pos)
        )
    )


def elements(numbers: np.ndarray, tile: int, length: int) -> np.ndarray:
    """Return the indices of an axis of length `length` that lie in the tiles `numbers`, tile after tile; tile t covers the
    indices t tile … (t + 1) tile - 1. Numbers of -1 are padding and are skipped, and indices beyond the end of the axis too.
    """
    inside = (numbers[numbers >= 0, None] * tile + np.arange(tile)).ravel()
    return inside[inside < length]


def row_positions(pattern: Pattern) -> np.ndarray:
    """Return an array (O,): the row of the packed tiles that holds each row of the weight."""
    o = np.arange(pattern.shape[0])
    return packed_tiles(pattern).row_position[o // pattern.tile] * pattern.tile + o % pattern.tile
