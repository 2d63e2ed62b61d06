"""Convolutions on the CPU, a tile of images at a time (`abreast`): when that is sooner, and its lists, rooms and threads."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..layouts.windows import Window
from ..runtime.memory import empty_cpu
from . import abreast, threads
from .lanes import WIDTH
from .narrow import aligned

IMAGES = 2 * WIDTH      # at least: lanes that are not filled cost as much as others
POSITIONS = 32          # of an image at least: the whole weight passes by each of them
ROOM_FLOATS = 5 << 19   # of a thread at most: 10 MB
WEIGHTS, OUTPUTS = 4096, 32  # whose gradient is added up here, at most: it has a sum for each lane, and SGEMM wants wide ones
WIDER = 16              # times as many outputs as channels, at most, where dx is found here: to turn dz takes as long
MORE = 1.25             # times as many pixels as positions, at most, where dx is a convolution of dz: else it is spread
IDLE = 1.25             # times as long as its work, at most, the longest thread may take
NO_GATE, EACH = np.zeros((1, 1), np.float32), np.ones(WIDTH, np.float32)


class Sight(NamedTuple):
    """What positions see of turned pixels.

    geometry : lines of an image, floats of a line, those with padding, lines of padding above, floats of it on the left
    begins, goals : where a position's patch begins, and which position it is, then those of the padding
    offsets : where a patch's columns lie, padded
    depth, pixels, count : columns of a patch, floats of an image with its padding, positions
    """

    geometry: np.ndarray
    begins: np.ndarray
    goals: np.ndarray
    offsets: np.ndarray
    depth: int
    pixels: int
    count: int

    @property
    def line(self) -> int:
        """Floats of an image's line."""
        return int(self.geometry[1])


@functools.lru_cache(maxsize=64)
def sight(window: Window, height: int, width: int, channels: int) -> Sight:
    """Of a window on images of this shape."""
    (down, across), steps, (above, left), apart = window
    wide, (oh, ow) = width + 2 * left, window.positions(height, width)
    bases = np.add.outer(np.arange(oh) * steps[0] * wide, np.arange(ow) * steps[1]).reshape(-1) * channels
    taps = np.add.outer(np.arange(down) * apart[0] * wide, np.arange(across) * apart[1]).reshape(-1) * channels
    offsets, padding = np.add.outer(taps, np.arange(channels)).reshape(-1), abreast.POSITIONS - bases.size % abreast.POSITIONS
    return Sight(np.array([height, width * channels, wide * channels, above, left * channels]),
                 np.pad(bases, (0, padding)) * WIDTH, np.pad(np.arange(bases.size), (0, padding), constant_values=bases.size),
                 np.pad(offsets, (0, -offsets.size % abreast.COLUMNS)) * WIDTH, offsets.size,
                 (height + 2 * above) * wide * channels, bases.size)


def suits(window: Window, x: tuple[int, ...], outs: int) -> bool:
    """Whether images x (N, H, W, C) are convolved sooner here than by gathered patches."""
    (images, *sides, channels), positions = x, math.prod(window.positions(*x[1:3]))
    pixels = math.prod(side + 2 * padding for side, padding in zip(sides, window.padding)) * channels
    return (images >= IMAGES and positions >= POSITIONS and min(channels, outs) > 0
            and WIDTH * (pixels + (positions + 1) * outs) <= ROOM_FLOATS)


def suits_gradient(w: tuple[int, ...]) -> bool:
    """Whether dw of a weight (O, C, KH, KW) is found sooner here, of images that suit; then dx is, too."""
    return math.prod(w) <= WEIGHTS and w[0] <= OUTPUTS


def _lists(seen: Sight, rows: np.ndarray | None, images: int) -> tuple[np.ndarray, ...] | None:
    """(bases, targets, starts) of all positions or of the listed ones; None where images of a tile have other ones, or tiles
    cannot be shared equally."""
    if rows is None:
        return seen.begins, seen.goals, np.array([0, seen.begins.size])
    if _bands(images, threads.count()) > 1:
        return None
    tiles = -(-images // WIDTH)
    bases, targets = np.empty((2, tiles * seen.begins.size), np.int64)
    starts = np.empty(tiles + 1, np.int64)
    abreast.share_lists(rows, images, seen.count, seen.begins, seen.goals, bases, targets, starts)
    return (bases, targets, starts) if starts[-1] >= 0 else None


def _flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


def _parts(flops: int) -> int:
    return threads.count() if threads.worthwhile(flops=flops) else 1


def _rooms(parts: int, seen: Sight, outs: int, line: int) -> list[tuple[Any, ...]]:
    """Of each thread, rooms for a line of each image, for turned pixels, whose padding is never written and stays 0, and for
    the outputs of all positions."""
    every = aligned(parts, seen.pixels + (seen.count + 1) * outs, WIDTH)
    every[:, :seen.pixels] = 0
    lines = empty_cpu((parts, WIDTH, line))
    return [(lines[number], own[:seen.pixels], own[seen.pixels:]) for number, own in enumerate(every)]


def _share(units: int, flops: int, work: Callable[[int, int, int], None]) -> None:
    """work(number of the thread, its first unit, the one after its last); rooms are found before, as in Python threads would
    wait for each other."""
    def run(part):
        own = part.of(units)
        work(part.number, own.start, own.stop)

    threads.share(run, flops=flops)


def _bands(images: int, parts: int) -> int:
    """Into how many bands of positions tiles are cut, so that no thread has much more to do than others."""
    tiles = -(-images // WIDTH)
    return next((bands for bands in range(1, parts) if -(-tiles * bands // parts) * parts <= IDLE * tiles * bands), parts)


def _products(x, where, seen, lists, wt, bias, low, y):
    """y (N, P, O) = max(A wt + bias, low) at listed positions."""
    gate, flops, x, out = NO_GATE if where is None else _flat(where), 2 * len(x) * seen.count * wt.size, _flat(x), _flat(y)
    rooms = _rooms(_parts(flops), seen, wt.shape[1], seen.line)
    bands = _bands(len(x), len(rooms)) if len(lists[2]) == 2 else 1
    _share(-(-len(x) // WIDTH) * bands, flops, lambda number, first, stop: abreast.forward(
        x, gate, where is not None, seen.geometry, *lists, seen.offsets, wt, bias, low, *rooms[number], out, bands, first,
        stop))
    return y


def _turned(w: Any, scale: float) -> Any:
    """scale w as (KH KW C, O)."""
    return np.ascontiguousarray(scale * w.transpose(2, 3, 1, 0)).reshape(-1, w.shape[0])


def convolved(x, w, window, bias=None, relu=False, scale=1.0, rows=None):
    """y of conv2d; None as `_lists` says."""
    seen = sight(window, *x.shape[1:])
    lists = _lists(seen, rows, len(x))
    if lists is None:
        return None
    added, low = np.zeros(len(w), np.float32) if bias is None else bias, 0.0 if relu else -np.inf
    y = empty_cpu((len(x), *window.positions(*x.shape[1:3]), len(w)))
    return _products(x, None, seen, lists, _turned(w, np.float32(scale)), added, low, y)


def input_gradient(dy, where, w, window, shape, scale=1.0, rows=None):
    """dx of conv2d for images of this shape; None as `_lists` says. Of all positions and
    steps of one pixel it is a convolution of dz by the weight, its taps from last to first."""
    behind = tuple(apart * (taps - 1) - before
                   for taps, before, apart in zip(window.kernel, window.padding, window.dilation))
    dx = empty_cpu(shape)
    more = math.prod(shape[1:3]) / math.prod(dy.shape[1:3])
    if rows is None and window.stride == (1, 1) and min(behind) >= 0 and more <= MORE:
        seen = sight(window._replace(padding=behind), *dy.shape[1:])
        wt = _turned(w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), np.float32(scale))
        return _products(dy, where, seen, _lists(seen, None, len(dy)), wt, np.zeros(shape[3], np.float32), -np.inf, dx)
    seen, slopes = sight(window, *shape[1:]), _geometry(dy.shape)
    lists = _lists(seen, rows, len(dy))
    if lists is None:
        return None
    wt, gate = _turned(w, np.float32(scale)), NO_GATE if where is None else _flat(where)
    flops, dz, changes = 2 * len(dy) * seen.count * wt.size, _flat(dy), _flat(dx)
    rooms = _rooms(_parts(flops), seen, len(w), int(slopes[1]))
    _share(-(-len(dy) // WIDTH), flops, lambda number, first, stop: abreast.spread_back(
        dz, gate, where is not None, slopes, *lists, seen.offsets, wt, *rooms[number], seen.geometry, changes, first, stop))
    return dx


def weight_gradient(dy, where, x, window, scale=1.0, rows=None):
    """(dw, db) of conv2d; None as `_lists` says."""
    seen, slopes, outs = sight(window, *x.shape[1:]), _geometry(dy.shape), dy.shape[3]
    lists = _lists(seen, rows, len(x))
    if lists is None:
        return None
    gate, flops, dz, x = NO_GATE if where is None else _flat(where), 2 * dy.size * seen.depth, _flat(dy), _flat(x)
    rooms = _rooms(_parts(flops), seen, outs, int(slopes[1]))
    dw, db = aligned(len(rooms), seen.offsets.size, outs, WIDTH), np.zeros((len(rooms), outs, WIDTH), np.float32)
    dw[...] = 0
    _share(-(-len(x) // WIDTH), flops, lambda number, first, stop: abreast.gradient(
        dz, gate, where is not None, slopes, *lists, seen.offsets, seen.geometry, x, *rooms[number], dw[number], db[number],
        first, stop))
    sums = (dw.reshape(-1, WIDTH) @ EACH).reshape(len(rooms), -1, outs).sum(0)[:seen.depth]  # sooner than sum() of a short axis
    dw = np.float32(scale) * sums.reshape(*window.kernel, -1, outs).transpose(3, 2, 0, 1)
    return np.ascontiguousarray(dw), db.sum((0, 2))


def _geometry(shape: tuple[int, ...]) -> np.ndarray:
    """Of images (N, H, W, C) without padding."""
    _, height, width, channels = shape
    return np.array([height, width * channels, width * channels, 0, 0])
