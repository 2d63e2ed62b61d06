"""Plans of a weight's tiles."""
from __future__ import annotations

import dataclasses
import functools

import numpy as np

from numbanet_kernels.layouts import tiles

from .base import Plan, Region


@dataclasses.dataclass(frozen=True)
class TilePlan(Plan):
    """Keep the tiles (r, c) of a weight with (a[r] + b[c]) mod dp = bias (*Approximate Random Dropout*, tile pattern).

    a and b are permutations of the tile rows and the tile columns. Tile rows fall into dp classes that share no column, so the
    kept matrix is block-diagonal up to a permutation. The paper numbers tiles row by row, t = r C + c with C tile columns, and
    keeps t mod dp = bias: that is this pattern with another a and the natural b, unless C and dp have a common factor. Then
    tile rows share columns, all of them if dp divides C, and a step sees nothing of the other inputs: networks learn less that
    way. Nor has the paper more than one order; with several, which tiles stay together changes from step to step.

    Parameters
    ----------
    shape : tuple of int
        Shape (O, I) of the weight.
    tile : int
        Side of a tile, in elements; tiles at the far edges may stick out.
    dp : int
        Period of the pattern: one tile in dp is kept.
    bias : int
        First kept tile of the first tile row, 0 … dp - 1.
    scale : float, default=1.0
        What the kept products are multiplied by.
    mix : int, default=0
        Number of the permutations a and b (`numbanet_kernels.layouts.tiles.arrangement`); 0: the natural order.

    Raises
    ------
    ValueError
        If a size is out of range.
    """

    shape: tuple[int, int]
    tile: int
    dp: int
    bias: int
    scale: float = 1.0
    mix: int = 0

    def __post_init__(self) -> None:
        if self.tile < 1 or self.dp < 1 or not 0 <= self.bias < self.dp or min(*self.shape, self.mix) < 0:
            raise ValueError(f"TilePlan: shape {self.shape} and mix {self.mix} must be >= 0, tile {self.tile} and dp {self.dp} "
                             f">= 1 and bias {self.bias} in 0 … dp - 1")

    @property
    def trivial(self) -> bool:
        return self.dp == 1 and self.scale == 1.0

    @property
    def pattern(self) -> tiles.Pattern:
        """Which tiles are kept, as kernels take it."""
        return tiles.Pattern(self.shape, self.tile, self.dp, self.bias, self.mix)

    @property
    def kind(self):
        return TilePlan, self.shape, self.tile, self.dp, self.scale

    @property
    def grid(self) -> tuple[int, int]:
        """(tile rows R, tile columns C)."""
        return self.pattern.grid

    @property
    def size(self) -> int:
        """How many elements of the weight are kept."""
        return _size(self.pattern)

    @property
    def density(self) -> float:
        total = self.shape[0] * self.shape[1]
        return self.size / total if total else 1.0

    def tile_mask(self) -> np.ndarray:
        """(R, C) bool, True where the tile is kept."""
        return tiles.kept_tiles(self.pattern)

    def mask(self) -> np.ndarray:
        """(O, I) bool, True where kept."""
        return np.kron(self.tile_mask(), np.ones((self.tile, self.tile), bool))[:self.shape[0], :self.shape[1]]

    @functools.cached_property
    def _tiles(self) -> np.ndarray:
        return self.tile_mask()

    def region(self, shape):
        return Region((self.tile, self.tile), self._tiles) if self.dp > 1 else None

    def lists(self) -> tuple:
        """How a gradient is packed, then what kernels walk: a `Packing` and a `TileLists`."""
        return (*tiles.tile_packing(self.pattern), *tiles.tile_lists(self.pattern))


@functools.lru_cache(maxsize=4096)
def _size(pattern: tiles.Pattern) -> int:
    heights, widths = (np.diff(np.minimum(np.arange(n + 1) * pattern.tile, length))
                       for n, length in zip(pattern.grid, pattern.shape))
    return int(heights @ tiles.kept_tiles(pattern) @ widths)
