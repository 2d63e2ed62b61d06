"""Convolutions on the CPU without gathering, a tile of images at a time: conditions, lists, buffers and threads for
`cpu_direct_loops`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...host import threads
from ...host.simd import WIDTH, aligned
from ...layouts.windows import Blocks, Window
from ...runtime.declare import tape
from ...runtime.memory import assign, empty_cpu, full_cpu
from ..elementwise import affine_cpu
from . import cpu_direct_loops as loops
from .cpu_direct_pool import described, places_of
from .cpu_direct_products import COLUMNS, POSITIONS
from .cpu_weight import transposed

IMAGES = 2 * WIDTH  # least number of images: empty lanes cost as much as others
LEAST_POSITIONS = 32  # least number of positions: the whole weight is read for each position
ROOM_FLOATS = 5 << 19  # largest buffer of a thread: 10 MB
# largest weight whose gradient is computed here: it has a sum per lane, and SGEMM is better for wide ones
WEIGHTS, OUTPUTS = 4096, 32
WIDER = 16  # largest ratio of outputs to channels if only dx is computed here
MORE = 1.25  # largest ratio of pixels to positions if dx is a convolution of dz, not spread
IDLE = 1.25  # largest ratio of the longest thread's time to the mean
NO_GATE = np.zeros((1, 1), np.float32)
NO_BLOCKS = np.zeros((1, 1), np.int32)


class Sight(NamedTuple):
    """Geometry of the transposed pixels that positions read.

    geometry : lines of an image, floats of a line, both with padding; lines of padding above, floats of padding on the left
    begins, goals : first float of each position's patch, and the position's index; then those of the padding
    offsets : offsets of a patch's columns, padded
    depth, pixels, count : columns of a patch, floats of a padded image, number of positions
    every : begins, goals and starts of the list of all positions
    """

    geometry: np.ndarray
    begins: np.ndarray
    goals: np.ndarray
    offsets: np.ndarray
    depth: int
    pixels: int
    count: int
    every: tuple[np.ndarray, np.ndarray, np.ndarray]

    def flops(self, images: int, outs: int) -> int:
        """FLOPs of a convolution of this many images."""
        return 2 * images * self.count * self.depth * outs


@functools.lru_cache(maxsize=64)
def sight(window: Window, height: int, width: int, channels: int) -> Sight:
    """The geometry of a window's positions for images of this shape."""
    (down, across), steps, (above, left), apart = window
    wide, (oh, ow) = width + 2 * left, window.positions(height, width)
    bases = np.add.outer(np.arange(oh) * steps[0] * wide, np.arange(ow) * steps[1]).reshape(-1) * channels
    taps = np.add.outer(np.arange(down) * apart[0] * wide, np.arange(across) * apart[1]).reshape(-1) * channels
    # positions from any one on are computed in groups of POSITIONS
    offsets, padding = np.add.outer(taps, np.arange(channels)).reshape(-1), 2 * POSITIONS - bases.size % POSITIONS
    begins = np.pad(bases, (0, padding)) * WIDTH
    goals = np.pad(np.arange(bases.size), (0, padding), constant_values=bases.size)
    stop = -(-bases.size // POSITIONS) * POSITIONS
    return Sight(
        _geometry(height, width, channels, above, left),
        begins,
        goals,
        np.pad(offsets, (0, -offsets.size % COLUMNS)) * WIDTH,
        offsets.size,
        (height + 2 * above) * wide * channels,
        bases.size,
        (begins, goals, np.array([0, stop])),
    )


def suits(window: Window, x: tuple[int, ...], outs: int) -> bool:
    """True if convolving images x (N, H, W, C) directly is faster than from gathered patches."""
    return (
        x[0] >= IMAGES
        and math.prod(window.positions(*x[1:3])) >= LEAST_POSITIONS
        and min(x[3], outs) > 0
        and _fits(sight(window, *x[1:]), outs)
    )


class Positions(NamedTuple):
    """Lists of the output positions that each tile of images computes.

    bases : for each position of a list, the first float of its patch among the tile's transposed pixels
    targets : for each position of a list, its index among all output positions of an image
    starts : tile t computes the positions starts[t] … starts[t + 1] - 1 of both arrays
    listed : if False, there is one list, starts[0] … starts[1] - 1, which all tiles use

    The length of each list is padded to a multiple of POSITIONS.
    """

    bases: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    listed: bool


def positions(seen: Sight, rows: Any, images: int, parts: int, together: int = 1) -> Positions | None:
    """Lists of all or of the kept positions, which groups of `together` images share; None if the images of a tile keep
    different ones, or if the threads cannot share tiles equally. A recording is refused if images of a tile may keep different
    positions.
    """
    if rows is None:
        return Positions(*seen.every, False)
    if _bands(images, parts) > 1:
        return None
    tiles, writer, equal = tiles_of(images), tape.get(), together % WIDTH == 0 or together >= images
    if writer is not None and not equal:
        writer.refuse(f"a convolution of which {together} images keep the same positions, not {WIDTH},")
    bases, targets, starts = (empty_cpu((n,), np.int64) for n in (*2 * [tiles * seen.begins.size], tiles + 1))
    if rows.ndim == 2:
        if not equal:
            return None
        loops.share_groups(rows, -(-together // WIDTH), seen.begins, seen.goals, bases, targets, starts)
        return Positions(bases, targets, starts, True)
    loops.share_lists(rows, images, seen.count, seen.begins, seen.goals, bases, targets, starts)
    return Positions(bases, targets, starts, True) if writer is not None or starts[-1] >= 0 else None


def rows_of(kept: Any, together: int, images: int) -> Any:
    """The list of kept rows of A, padded, from a list for each group of images."""
    rows = empty_cpu(images * kept.shape[1], np.int32)
    loops.list_rows(kept, together, images, rows)
    return rows


def columns(seen: Sight, blocks: Blocks | None) -> tuple[np.ndarray, np.ndarray]:
    """The arguments `kept` and `block` of the loops."""
    if blocks is None:
        return NO_BLOCKS, _sizes(0, 0, seen.count, seen.depth)
    return blocks.kept, _sizes(blocks.height, blocks.width, seen.count, seen.depth)


@functools.lru_cache(maxsize=256)  # recorded calls read the array
def _sizes(*sizes: int) -> np.ndarray:
    return np.array(sizes)


def agree(blocks: Blocks, positions: int, images: int) -> bool:
    """True if the images of each tile keep the same blocks, and no block is cut by the end of an image or tile."""
    together = blocks.together % WIDTH == 0 or blocks.together >= images
    return (together and positions % blocks.height == 0) or blocks.height % (WIDTH * positions) == 0


def tiles_of(images: int) -> int:
    """The number of tiles for this many images."""
    return -(-images // WIDTH)


@functools.lru_cache(maxsize=256)
def _geometry(height: int, width: int, channels: int, above: int = 0, left: int = 0) -> np.ndarray:
    """The field `geometry` of `Sight`, for images with this padding."""
    return np.array([height, width * channels, (width + 2 * left) * channels, above, left * channels])


def _flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


class Pooling(NamedTuple):
    """Max pooling that follows a convolution: its numbers (`cpu_direct_pool.described`), and the marks of its maxima (tiles,
    P O, WIDTH); without tiles if no marks are kept. No numbers: there is no pooling.
    """

    numbers: np.ndarray = np.zeros(0, np.int64)
    marks: np.ndarray = np.zeros((0, 1, WIDTH), np.uint8)

    def positions(self) -> int:
        """The number of positions after pooling."""
        return int(self.numbers[-2:].prod()) if self.numbers.size else 0


NO_POOLING = Pooling()


def pooling(window: Window, grid: tuple[int, int], images: int, outs: int, keeps: bool) -> Pooling:
    """Max pooling of `outs` outputs at `grid` positions of each image, with room for marks if it `keeps` them."""
    found = Pooling(_described(window, grid))
    return found._replace(marks=empty_cpu((tiles_of(images) if keeps else 0, found.positions() * outs, WIDTH), np.uint8))


_described = functools.lru_cache(maxsize=256)(described)


def unmarked(marks: Any, shape: tuple[int, ...]) -> Any:
    """The places of `max_pool` for outputs of this shape, from marks; those without a gradient are beyond the window."""
    places = empty_cpu(shape, np.uint8)
    places_of(marks, _flat(places))
    return places


def pools(seen: Sight, window: Window, grid: tuple[int, int], outs: int) -> bool:
    """True if outputs can be pooled in the lanes: their marks are bytes, every window has pixels, and the buffer fits."""
    after = math.prod(window.positions(*grid))
    return (
        window.dilation == (1, 1)
        and (window.kernel[0] + 1) * window.kernel[1] <= 256
        and WIDTH * (_floats(seen, outs) + after * outs) <= ROOM_FLOATS
    )


def _floats(seen: Sight, outs: int) -> int:
    """Floats of the transposed pixels of an image and of its outputs at all positions."""
    return seen.pixels + (seen.count + 1) * outs


def _fits(seen: Sight, outs: int) -> bool:
    """True if the buffer of a tile is small enough."""
    return WIDTH * _floats(seen, outs) <= ROOM_FLOATS


def _rooms(parts: int, seen: Sight, outs: int, line: int, pooled: int) -> list[tuple[Any, ...]]:
    """Return, for each thread, buffers for a line of each image, for transposed pixels, for the outputs of all positions, and
    for `pooled` maxima. They are allocated before the threads start, because threads that allocate would contend for the GIL.
    """
    floats = _floats(seen, outs)
    every, lines = aligned(parts, floats + pooled, WIDTH), empty_cpu((parts, WIDTH, line))
    return [(lines[n], own[: seen.pixels], own[seen.pixels : floats], own[floats:]) for n, own in enumerate(every)]


def _share(units: int, flops: int, work: Callable[[int, int, int], None]) -> None:
    """Call work(number of the thread, its first unit, the end of its units) on all threads, with the units divided equally."""

    def run(part):
        own = part.of(units)
        work(part.number, own.start, own.stop)

    threads.share(run, flops=flops)


def _bands(images: int, parts: int) -> int:
    """The number of bands of positions into which each tile is cut, so that threads have nearly equal work."""
    tiles = tiles_of(images)
    return next((bands for bands in range(1, parts) if -(-tiles * bands // parts) * parts <= IDLE * tiles * bands), parts)


def _products(x, where, seen, lists, kept, wt, bias, low, y, pool=NO_POOLING, pooled=0, back=False):
    """y (N, P O) = max(A wt + bias, low) at the listed positions, then pooled; if `back`, x is the gradient after pooling.
    `pooled` is the number of values of an image after pooling.
    """
    gate, flops, x, out = NO_GATE if where is None else _flat(where), seen.flops(len(x), wt.shape[1]), _flat(x), _flat(y)
    rooms = _rooms(threads.parts(flops=flops), seen, wt.shape[1], int(seen.geometry[1]), pooled)
    bands = 1 if lists.listed else _bands(len(x), len(rooms))
    _share(
        tiles_of(len(x)) * bands,
        flops,
        lambda number, first, stop: loops.forward(
            x,
            gate,
            where is not None,
            seen.geometry,
            *lists,
            seen.offsets,
            *kept,
            wt,
            bias,
            low,
            *pool,
            back,
            *rooms[number],
            out,
            bands,
            first,
            stop,
        ),
    )
    return y


def _transposed(w: Any, scale: float) -> Any:
    """scale w as (KH KW C, O)"""
    wt = transposed(w)
    return wt if scale == 1 else affine_cpu(wt, mul=scale, out=wt)


def convolved(choice, x, w, grid, bias, relu, scale, pool=NO_POOLING):
    """y of conv2d, or of conv2d_max_pool; `grid` is the number of positions along the height and the width."""
    added, low = full_cpu(len(w), 0.0) if bias is None else bias, 0.0 if relu else -np.inf
    grid = tuple(map(int, pool.numbers[-2:])) if pool.numbers.size else grid
    y, pooled = empty_cpu((len(x), *grid, len(w))), pool.positions() * len(w)
    given = choice.sight, choice.lists, columns(choice.sight, choice.blocks), _transposed(w, scale)
    return _products(x, None, *given, added, low, y, pool, pooled)


def gradients(choice, dy, where, x, w, window, scale, pool=NO_POOLING):
    """(dx, (dw, db)) of conv2d, or of conv2d_max_pool; None for each that is not chosen."""
    dx = _convolved_back(dy, where, x.shape, w, window, scale, pool) if choice.dx == "convolved" else None
    if choice.dx != "spread" and not choice.dw:
        return dx, None
    seen, slopes = choice.sight, _geometry(*window.positions(*x.shape[1:3]), len(w))
    flops = seen.flops(len(x), len(w))
    gate, kept = NO_GATE if where is None else _flat(where), columns(seen, choice.blocks)
    given = (_flat(dy), gate, where is not None, slopes, *choice.lists, seen.offsets, *kept, *pool)
    rooms = _rooms(threads.parts(flops=flops), seen, len(w), int(slopes[1]), pool.positions() * len(w))
    share = functools.partial(_share, tiles_of(len(x)), flops)
    if choice.dx == "spread":
        dx = _spread_back(given, x.shape, _transposed(w, scale), seen, rooms, share)
    return dx, _weight_gradient(given, x, w.shape, seen, rooms, share, scale) if choice.dw else None


def _behind(window):
    """The padding of dz in the convolution that computes dx, along the height and the width."""
    return tuple(apart * (taps - 1) - before for taps, before, apart in zip(window.kernel, window.padding, window.dilation))


def convolves_back(window: Window, shape: tuple[int, ...], outs: int) -> bool:
    """True if dx of images of this shape is a convolution of dz and faster this way than by spreading: all positions are kept,
    the stride is one, and there are not many more pixels than positions.
    """
    grid, behind = window.positions(*shape[1:3]), _behind(window)
    return (
        window.stride == (1, 1)
        and min(behind) >= 0
        and math.prod(shape[1:3]) <= MORE * math.prod(grid)
        and _fits(sight(window._replace(padding=behind), *grid, outs), shape[3])
    )


def _convolved_back(dy, where, shape, w, window, scale, pool):
    """dx as a convolution of dz by the weight with reversed taps."""
    seen = sight(window._replace(padding=_behind(window)), *window.positions(*shape[1:3]), len(w))
    turned = w.transpose(2, 3, 0, 1)[::-1, ::-1]
    wt = assign(turned, empty_cpu(turned.shape)).reshape(-1, shape[3])
    wt = wt if scale == 1 else affine_cpu(wt, mul=scale, out=wt)
    given = seen, positions(seen, None, len(dy), 1), columns(seen, None), wt, full_cpu(shape[3], 0.0)
    return _products(dy, where, *given, -np.inf, empty_cpu(shape), pool, pool.positions() * len(w), back=True)


def _spread_back(given, shape, wt, seen, rooms, share):
    """dx of conv2d for images of this shape: each gradient is added to the pixels that its position reads."""
    dx = empty_cpu(shape)
    changes = _flat(dx)
    share(lambda number, first, stop: loops.spread_back(*given, wt, *rooms[number], seen.geometry, changes, first, stop))
    return dx


def _weight_gradient(given, x, shape, seen, rooms, share, scale):
    """(dw, db) of conv2d for a weight of this shape."""
    outs, _, *kernel = shape
    lanes, db_lanes = aligned(len(rooms), seen.offsets.size + 1, outs, WIDTH), empty_cpu((len(rooms), outs, WIDTH))
    images, dw, db = _flat(x), empty_cpu(shape), empty_cpu(outs)
    share(
        lambda number, first, stop: loops.gradient(
            *given, seen.geometry, images, *rooms[number], lanes[number], db_lanes[number], first, stop
        )
    )
    loops.add_up(lanes, db_lanes, scale, dw.reshape(outs, -1, math.prod(kernel)), db)
    return dw, db
