"""Plans that keep tiles of a weight, or blocks of the im2col matrix of a convolution."""

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
    keeps t mod dp = bias. The paper's pattern has this form, too, with the identity as b, unless C and dp have a common factor.
    If they have one, several tile rows keep the same tile columns (all tile rows do if dp divides C), and a step does not use
    the other inputs, so networks learn less. The paper has only one order of the tiles; with several orders, the sets of tiles
    that are kept together change between steps.

    Parameters
    ----------
    shape : tuple of int
        Shape (O, I) of the weight.
    tile : int
        Side of a tile, in elements; tiles at the far edges may extend beyond the weight.
    dp : int
        Period of the pattern: one tile in dp is kept.
    bias : int
        First kept tile of the first tile row, 0 … dp - 1.
    scale : float, default=1.0
        Factor of the kept products.
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
            raise ValueError(
                f"TilePlan: shape {self.shape} and mix {self.mix} must be >= 0, tile {self.tile} and dp {self.dp} "
                f">= 1 and bias {self.bias} in 0 … dp - 1"
            )

    @property
    def covers(self):
        return self.shape

    @property
    def trivial(self) -> bool:
        return self.dp == 1 and self.scale == 1.0

    @property
    def pattern(self) -> tiles.Pattern:
        """The kept tiles in the form that kernels take."""
        return tiles.Pattern(self.shape, self.tile, self.dp, self.bias, self.mix)

    @property
    def kind(self):
        return TilePlan, self.shape, self.tile, self.dp, self.scale

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers (R, C) of tile rows and tile columns."""
        return self.pattern.grid

    @property
    def size(self) -> int:
        """The number of elements of the weight that are kept."""
        return _size(self.pattern)

    @property
    def density(self) -> float:
        total = self.shape[0] * self.shape[1]
        return self.size / total if total else 1.0

    def tile_mask(self) -> np.ndarray:
        """Return an array (R, C) of bool that is True for kept tiles."""
        return tiles.kept_tiles(self.pattern)

    def mask(self) -> np.ndarray:
        """Return an array (O, I) of bool that is True for kept elements."""
        return np.kron(self.tile_mask(), np.ones((self.tile, self.tile), bool))[: self.shape[0], : self.shape[1]]

    @functools.cached_property
    def _tiles(self) -> np.ndarray:
        return self.tile_mask()

    def region(self, shape):
        return Region((self.tile, self.tile), self._tiles) if self.dp > 1 else None

    def lists(self) -> tuple:
        """Return the arrays of a `Packing`, which says where the values of the gradient belong, and of a `TileLists`."""
        return (*tiles.tile_packing(self.pattern), *tiles.tile_lists(self.pattern))


@functools.lru_cache(maxsize=4096)
def _size(pattern: tiles.Pattern) -> int:
    heights, widths = (
        np.diff(np.minimum(np.arange(n + 1) * pattern.tile, length)) for n, length in zip(pattern.grid, pattern.shape)
    )
    return int(heights @ tiles.kept_tiles(pattern) @ widths)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockPlan(Plan):
    """Keep the same number of blocks in every block row of a convolution's im2col matrix (N OH OW, KH KW C), in which adjacent
    columns are channels (*DNN Training Acceleration via Exploring GPGPU Friendly Sparsity*, 5.2.2). Because the numbers are
    equal, every block row is the same amount of work.

    Parameters
    ----------
    shape : tuple of int
        Shape of the im2col matrix.
    height, width : int
        Size of a block: `height` output positions (rows) and `width` columns. Blocks at the far edges may extend beyond the
        matrix.
    chosen : array_like of int, (block rows, Q)
        The kept block columns of each block row, increasing.
    scale : float, default=1.0
        Factor of the kept products.
    together : int, default=1
        Each group of this many consecutive images keeps the same blocks; `height` then divides the output positions of an
        image. It changes no result: it tells kernels that images may be computed together.

    Raises
    ------
    ValueError
        If the blocks do not fit the matrix.
    """

    shape: tuple[int, int]
    height: int
    width: int
    chosen: np.ndarray
    scale: float = 1.0
    together: int = 1

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.together) < 1 or min(self.shape) < 0:
            raise ValueError(
                f"BlockPlan: blocks {self.height} x {self.width}, {self.together} images together: all must be at least 1"
            )
        chosen = np.array(self.chosen)
        rows, columns = (-(-n // side) for n, side in zip(self.shape, (self.height, self.width)))
        fits = chosen.ndim == 2 and len(chosen) == rows and (not chosen.size or chosen.dtype.kind in "iu")
        if not (
            fits
            and (
                not chosen.size
                or (chosen.min() >= 0 and chosen.max() < columns and (np.diff(chosen.astype(np.int64), axis=1) > 0).all())
            )
        ):
            raise ValueError(
                f"BlockPlan: {rows} rows of increasing block columns from 0 to {columns - 1} are required, got {self.chosen!r}"
            )
        chosen = chosen.astype(np.int32)
        chosen.flags.writeable = False
        object.__setattr__(self, "chosen", chosen)

    def _value(self) -> tuple:
        return self.shape, self.height, self.width, self.chosen.shape, self.chosen.tobytes(), self.scale, self.together

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockPlan) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    @property
    def covers(self):
        return self.shape

    @property
    def trivial(self) -> bool:
        """False, even if everything is kept, because another plan of the same kind may drop blocks."""
        return False

    @property
    def kind(self):
        return BlockPlan, self.shape, self.height, self.width, self.scale, self.together

    @functools.cached_property
    def density(self) -> float:
        total = self.shape[0] * self.shape[1]
        if not total:
            return 1.0
        last = -(-self.shape[1] // self.width) - 1
        widths = np.where(self.chosen == last, self.shape[1] - last * self.width, self.width).sum(1)
        heights = np.diff(np.minimum(np.arange(len(self.chosen) + 1) * self.height, self.shape[0]))
        return float(heights @ widths) / total

    def mask(self) -> np.ndarray:
        """Return an array of bool with the shape of the im2col matrix that is True for kept elements."""
        mask = np.zeros(self.shape, bool)
        for row, columns in enumerate(self.chosen):
            for column in columns:
                mask[row * self.height : (row + 1) * self.height, column * self.width : (column + 1) * self.width] = True
        return mask

    def lists(self) -> tuple:
        """Return the kept block columns of each block row, as an array (block rows, block columns). Plans with an equal `kind`
        may keep different numbers of blocks, so each row is padded to full length with the number of block columns, which is an
        index beyond the last one.
        """
        columns = -(-self.shape[1] // self.width)
        found = np.full((len(self.chosen), columns), columns, np.int32)
        found[:, : self.chosen.shape[1]] = self.chosen
        return (found,)


class ChannelBlockPlan(BlockPlan):
    """Keep blocks that consist of all kernel taps of some channels at all output positions of some images; each group of images
    keeps the same number of them.

    Parameters
    ----------
    grid : tuple of int
        (N, OH, OW): the number of images, and of output positions along their height and width.
    images : int
        Number of images of a group; the last group may have fewer.
    taps, channels : int
        Numbers of kernel taps and of channels, which are KH KW and C.
    width : int
        Number of channels of a block; it divides the number of channels.
    kept : array_like of int, (groups, Q)
        The kept blocks of channels of each group, increasing.
    scale : float, default=1.0
        Factor of the kept products.

    Raises
    ------
    ValueError
        If the blocks do not fit.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        images: int,
        taps: int,
        channels: int,
        width: int,
        kept: np.ndarray,
        scale: float = 1.0,
    ) -> None:
        if min(images, width) < 1 or channels % width:
            raise ValueError(f"ChannelBlockPlan: blocks of {width} channels do not divide {channels}, or have {images} images")
        count, places = channels // width, grid[1] * grid[2]
        own = BlockPlan((grid[0], channels), images, width, kept).chosen  # checks them
        chosen = (np.arange(taps)[:, None] * count + own[:, None]).reshape(len(own), taps * own.shape[1])
        super().__init__((grid[0] * places, taps * channels), images * max(places, 1), width, chosen, scale)
        for name, value in (("taps", taps), ("kept", own)):
            object.__setattr__(self, name, value)

    taps: int
    kept: np.ndarray

    def _value(self):
        return *super()._value(), self.taps

    @property
    def kind(self):
        return ChannelBlockPlan, self.shape, self.height, self.width, self.taps, self.scale

    def lists(self):
        """Return the kept block columns, and the kept blocks of channels, both padded with numbers beyond the last one."""
        count = self.shape[1] // self.taps // self.width
        channels = np.full((len(self.kept), count), count, np.int32)
        channels[:, : self.kept.shape[1]] = self.kept
        return *super().lists(), channels
