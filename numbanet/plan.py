"""Plan: which part of a matrix product is computed this step. Made on the host by a dropout policy, consumed by planned ops.

A plan is small, immutable and hashable, and knows nothing of devices; the index arrays that kernels read are derived from it
once a device and cached (`at` and `prepared`, which do not count when plans are compared, are where such arrays lie that are
there already). Every planned op satisfies, with M = plan.mask(),

    planned(x, W, plan) == dense(x, W * M)            for y, dx and dW.

`scale` multiplies what is kept, so that a step has the right mean: y = scale * (what the plan keeps of y).
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from numbanet_kernels import tiles

from .device import Device
from .lists import Blocks, Lists, Packing, RowLists


@dataclasses.dataclass(frozen=True)
class RowPlan:
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
        What the kept values are multiplied by.
    at : RowLists, optional
        Where kernels read what is kept, if not in arrays of this plan's own (`Replay`).

    Raises
    ------
    ValueError
        If n is negative, dp < 1 or bias is not in 0 … dp - 1.
    """

    n: int
    dp: int
    bias: int
    scale: float = 1.0
    at: RowLists | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n < 0 or self.dp < 1 or not 0 <= self.bias < self.dp:
            raise ValueError(f"RowPlan: n {self.n} must be >= 0, dp {self.dp} >= 1 and bias {self.bias} in 0 … dp - 1")

    @property
    def trivial(self) -> bool:
        """Whether everything is kept as it is."""
        return self.dp == 1 and self.scale == 1.0

    @property
    def count(self) -> int:
        """How many indices are kept."""
        return len(range(self.bias, self.n, self.dp))

    @property
    def density(self) -> float:
        """The kept share of the axis, 1.0 for an empty axis."""
        return self.count / self.n if self.n else 1.0

    @property
    def kind(self) -> tuple:
        """What is the same for all plans that mean the same launches: they differ in what is in their lists."""
        return RowPlan, self.n, self.dp, self.count, self.scale

    def lists(self, dev: Device) -> Lists:
        """The kept indices on a device."""
        return _row_lists(self.n, self.dp, self.bias, dev)

    def with_lists(self, parts: RowLists) -> RowPlan:
        """The same plan, whose lists are read in other arrays."""
        return dataclasses.replace(self, at=parts)

    def mask(self) -> np.ndarray:
        """(n,) bool, True where kept."""
        mask = np.zeros(self.n, bool)
        mask[self.bias::self.dp] = True
        return mask

    def flops(self, samples: int, inner: int) -> int:
        """FLOPs of the product (samples, inner) x (inner, kept)."""
        return 2 * samples * inner * self.count

    def blocks(self, shape: tuple[int, int], dev: Device) -> Blocks:
        """The rows of a weight (n, I), and which of them this plan keeps."""
        return Blocks((1, shape[1]), _row_mask(self.n, self.dp, self.bias, dev))

    def room(self, dev: Device) -> None:
        """Nothing is packed: kernels read kept rows where they lie."""

    @property
    def index(self) -> slice | tiles.Period | None:
        """The kept indices as planned kernels take them; None stands for all."""
        if self.dp == 1:
            return None
        return slice(self.bias, self.n, self.dp) if self.at is None else tiles.Period(self.at.kept, self.dp)

    def arrays(self, dev: Device) -> RowLists:
        """The lists, where kernels read them."""
        return self.lists(dev).parts if self.at is None else self.at

    def positions(self, dev: Device) -> Any:
        """(n,) int32 device array: place of each index among the kept ones, -1 where dropped."""
        return self.arrays(dev).places

    def kept(self, dev: Device) -> Any:
        """(count,) int32 device array: the kept indices."""
        return self.arrays(dev).kept


@functools.lru_cache(maxsize=4096)
def _row_lists(n: int, dp: int, bias: int, dev: Device) -> Lists:
    kept = np.arange(bias, n, dp)
    places = np.full(n, -1)
    places[kept] = np.arange(kept.size)
    return Lists.uploaded(RowLists(places, np.zeros(n), kept, kept[None], places[None]), dev)


@functools.lru_cache(maxsize=4096)
def _row_mask(n: int, dp: int, bias: int, dev: Device) -> Any:
    return dev.upload(RowPlan(n, dp, bias).mask()[:, None])


def pack_rows(rows: RowPlan, cols: RowPlan, dev: Device) -> Packing:
    """Packing of the gradient of w[kept rows, kept columns]."""
    of_rows, of_cols = rows.arrays(dev), cols.arrays(dev)
    return Packing(of_rows.places, of_rows.classes, of_cols.cols, of_cols.col_pos)


@dataclasses.dataclass(frozen=True)
class TilePlan:
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
        Number of the permutations a and b (`numbanet_kernels.tiles.arrangement`); 0: the natural order.
    prepared : optional
        What `tile_blocks` of the device would give: the kept tiles of the weight, packed, where an update made them on its way
        (`Optimizer.step`), or the lists of them, where these are not the plan's own (`Replay`).
    at : Packing, optional
        How the gradient is packed, if not by arrays of this plan's own (`Replay`).

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
    prepared: Any = dataclasses.field(default=None, repr=False, compare=False)
    at: Packing | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tile < 1 or self.dp < 1 or not 0 <= self.bias < self.dp or min(*self.shape, self.mix) < 0:
            raise ValueError(f"TilePlan: shape {self.shape} and mix {self.mix} must be >= 0, tile {self.tile} and dp {self.dp} "
                             f">= 1 and bias {self.bias} in 0 … dp - 1")

    @property
    def trivial(self) -> bool:
        """Whether everything is kept as it is."""
        return self.dp == 1 and self.scale == 1.0

    @property
    def pattern(self) -> tuple:
        """(shape, tile, dp, bias, mix): what says which tiles are kept."""
        return self.shape, self.tile, self.dp, self.bias, self.mix

    @property
    def kind(self) -> tuple:
        """What is the same for all plans that mean the same launches: they differ in what is in their lists."""
        return TilePlan, self.shape, self.tile, self.dp, self.scale

    def lists(self, dev: Device) -> Lists:
        """The kept tiles on a device, and how a gradient is packed."""
        return _tile_lists(*self.pattern, dev)

    def with_lists(self, parts: tuple) -> TilePlan:
        """The same plan, whose lists are read in other arrays."""
        count = len(Packing._fields)
        return dataclasses.replace(self, at=Packing(*parts[:count]), prepared=tiles.TileLists(*parts[count:]))

    @property
    def grid(self) -> tuple[int, int]:
        """(tile rows R, tile columns C)."""
        return tiles.grid_of(self.shape, self.tile)

    @property
    def classes(self) -> int:
        """How many classes the tile rows fall into: dp, at most R."""
        return min(self.dp, self.grid[0])

    @property
    def size(self) -> int:
        """How many elements of the weight are kept."""
        return _tile_size(*self.pattern)

    @property
    def density(self) -> float:
        """The kept share of the weight's elements, 1.0 for an empty weight."""
        total = self.shape[0] * self.shape[1]
        return self.size / total if total else 1.0

    def tile_mask(self) -> np.ndarray:
        """(R, C) bool, True where the tile is kept."""
        return tiles.kept_tiles(self.grid, self.dp, self.bias, self.mix)

    def mask(self) -> np.ndarray:
        """(O, I) bool, True where kept."""
        return np.kron(self.tile_mask(), np.ones((self.tile, self.tile), bool))[:self.shape[0], :self.shape[1]]

    def flops(self, samples: int) -> int:
        """FLOPs of the product of (samples, I) with the kept tiles."""
        return 2 * samples * self.size

    def blocks(self, shape: tuple[int, int], dev: Device) -> Blocks:
        """The tiles of the weight, and which of them this plan keeps."""
        return Blocks((self.tile, self.tile), _tile_mask(*self.pattern, dev))

    def room(self, dev: Device) -> tuple | None:
        """Where an update may write the kept tiles on its way, on devices that read them packed."""
        return dev.tile_room(*self.pattern)

    def packing(self, dev: Device) -> Packing:
        """Packing of the gradient of the kept tiles: tile rows by class, in each row its kept columns."""
        return _tile_packing(*self.pattern, dev) if self.at is None else self.at

    def meeting(self, order: Order | None, dev: Device) -> Any:
        """How kept tiles meet features that come in another order, as the device's kernels take it; None: as they come."""
        return None if order is None else _tile_order(*self.pattern, order, dev)


class Order:
    """A fixed order of features, and what is always taken off them: y[n, j] = (x - mean)[n, order[j]].

    Compared by identity: the index arrays that kernels read are derived from it once a device.

    Parameters
    ----------
    order : array_like of int
        A permutation of 0 … I - 1.
    mean : array_like of float, optional
        Of each feature, in the order of x; 0 by default.

    Raises
    ------
    ValueError
        If the order is no permutation, or the mean not I finite numbers.
    """

    def __init__(self, order: Any, mean: Any = None) -> None:
        found = np.array(order)
        if not (found.ndim == 1 and found.dtype.kind in "iu" and np.array_equal(np.sort(found), np.arange(found.size))):
            raise ValueError(f"order must be a permutation of 0 … n - 1, got {order!r}")
        self.order = found.astype(np.int32)
        self.mean = None if mean is None else np.array(mean, np.float32)
        if self.mean is not None and not (self.mean.shape == found.shape and np.isfinite(self.mean).all()):
            raise ValueError(f"mean must be {found.size} finite numbers, one for each feature, got {mean}")

    @property
    def size(self) -> int:
        """How many features there are, I."""
        return self.order.size

    def views(self, dev: Device) -> tuple:
        """(order, its inverse, mean[order] or None) on the device."""
        return _order_views(self, dev)


@functools.lru_cache(maxsize=16)
def _order_views(of: Order, dev: Device) -> tuple:
    order = np.array(of.order)  # kernels take no read-only array, such as one mapped from a file
    return dev.upload(order), dev.upload(np.argsort(order), np.int32), None if of.mean is None else dev.upload(of.mean[order])


def _plan(shape, tile, dp, bias, mix) -> TilePlan:
    return TilePlan(shape, tile, dp, bias, mix=mix)


@functools.lru_cache(maxsize=4096)
def _tile_size(*pattern) -> int:
    plan = _plan(*pattern)
    heights, widths = (np.diff(np.minimum(np.arange(n + 1) * plan.tile, length)) for n, length in zip(plan.grid, plan.shape))
    return int(heights @ plan.tile_mask() @ widths)


@functools.lru_cache(maxsize=1024)
def _tile_mask(shape, tile, dp, bias, mix, dev: Device):
    return dev.upload(_plan(shape, tile, dp, bias, mix).tile_mask())


@functools.lru_cache(maxsize=1024)
def _tile_order(shape, tile, dp, bias, mix, order: Order, dev: Device):
    return dev.tile_order(*order.views(dev), shape, tile, dp, bias, mix)


@functools.lru_cache(maxsize=1024)
def _tile_packing(*pattern) -> Packing:
    *pattern, dev = pattern
    return Packing(*(dev.upload(a, np.int32) for a in _host_packing(*pattern)))


@functools.lru_cache(maxsize=1024)
def _tile_lists(*pattern) -> Lists:
    *pattern, dev = pattern
    return Lists.uploaded((*_host_packing(*pattern), *tiles.tile_lists(*pattern)), dev)


def _host_packing(shape, tile, dp, bias, mix) -> Packing:
    packed = tiles.packed_tiles(tiles.grid_of(shape, tile), dp, bias, mix)
    classes, width = len(packed.cols), tiles.packed_shape(shape, tile, dp)[1]
    cols, col_pos = np.full((classes, width), -1), np.full((classes, shape[1]), -1)
    for z, tile_cols in enumerate(packed.cols):
        kept = tiles.elements(tile_cols, tile, shape[1])
        cols[z, :kept.size] = kept
        col_pos[z, kept] = np.arange(kept.size)
    row_class = packed.row_class[np.arange(shape[0]) // tile]
    return Packing(tiles.row_places(packed, tile, shape[0]), row_class, cols, col_pos)


@dataclasses.dataclass(frozen=True)
class BernoulliPlan:
    """Keep each element of an (N, n) activation with probability 1 - rate: conventional dropout, which skips no work.

    Parameters
    ----------
    n : int
        Length of the activation's last axis.
    rate : float
        Probability to drop, in [0, 1).
    key : int
        Key of the counter-based random bits that decide, in [0, 2**64): the same bits on every device.
    scale : float, default=1.0
        What the kept values are multiplied by.
    """

    n: int
    rate: float
    key: int
    scale: float = 1.0

    density = 1.0
    trivial = False


Plan = RowPlan | TilePlan | BernoulliPlan
