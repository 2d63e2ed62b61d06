"""Convolutions on the CPU of listed positions, for each position of a block of images the images that keep it: conditions,
lists, buffers and threads for `cpu_position_loops`. Threads share blocks and the results of a product, so these are the same to
the last bit for any number of threads.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ...host import threads
from ...host.simd import LINE, aligned
from ...layouts.windows import Window
from ...runtime.memory import empty_cpu, full_cpu
from . import cpu_position_loops as loops
from .cpu_panel_products import PANEL, columns
from .cpu_position_loops import BLOCK

LEAST = 32  # least number of images, because the weight is packed for them
INSIDE = 0.75  # largest share of taps inside of images that count as small: otherwise zeros around them would be multiplied
WIDE = 12, 32  # least ratio of products to channels plus outputs, of small images and of others: these are read and written
IMAGES = 16  # usual number of images of a block, because policies let as many keep the same positions
NEAR, FAR = 1 << 18, 1 << 20  # floats of the images of larger blocks; of a usual block's values, from which it leaves the cache


def suits(window: Window, images: tuple[int, ...], outs: int) -> bool:
    """True if convolving listed positions of images (N, H, W, C) so is faster than from gathered patches."""
    count, *size, channels = images
    places = math.prod(window.positions(*size))
    small = inside(window, *size) <= INSIDE * places * math.prod(window.kernel)
    near = small or IMAGES * places * max(channels, outs) < FAR
    return count >= LEAST and near and channels * outs >= WIDE[not small] * (channels + outs)


@functools.lru_cache(maxsize=256)
def inside(window: Window, height: int, width: int) -> int:
    """The number of taps inside the image, of all positions together."""
    lines = []
    for n, count, step, before, apart, taps in zip(
        (height, width), window.positions(height, width), window.stride, window.padding, window.dilation, window.kernel
    ):
        read = np.add.outer(np.arange(count) * step - before, np.arange(taps) * apart)
        lines.append(int(((read >= 0) & (read < n)).sum()))
    return math.prod(lines)


@functools.lru_cache(maxsize=256)
def _geometry(*sizes: int) -> np.ndarray:
    """The sizes as an array, the same one each time: recordings hold its address."""
    return np.array(sizes)


class _Work(NamedTuple):
    """Sizes and lists of a convolution.

    geometry : array, as `cpu_position_loops` defines it
    taps, places : n taps, n positions of an image
    block : n images of a block
    starts, members : the lists of `loops.cut`
    flops : an upper bound, because replays have other lists
    """

    geometry: np.ndarray
    taps: int
    places: int
    block: int
    starts: Any
    members: Any
    flops: int

    def shared(self, panels: int, parts: int) -> tuple[int, int]:
        """(n parts of the panels of each block, n units in all): so many that all threads have equally many, if possible"""
        ways = min(math.lcm(len(self.starts), parts) // len(self.starts), panels)
        return ways, ways * len(self.starts)


def _work(x, shape, window, positions, rows) -> _Work:
    places, count = math.prod(positions), len(x)
    block = min(IMAGES, count)
    while block < count and 2 * block * max(math.prod(x.shape[1:]), places * shape[0]) <= NEAR:
        block *= 2
    geometry = _geometry(*x.shape[1:], *positions, shape[0], *(n for pair in window for n in pair))
    starts, members = empty_cpu((-(-count // block), places + 1), np.int64), empty_cpu((max(count * places, 1),), np.int32)
    loops.cut(geometry, rows, count, block, starts, members)
    return _Work(geometry, math.prod(window.kernel), places, block, starts, members, 2 * count * places * math.prod(shape))


def packed_weight(w, turned, rooms):
    """All panels of the weight (O, C, KH, KW), packed; those of channels if `turned`. `rooms` are buffers for taps."""
    taps, panels = math.prod(w.shape[2:]), -(-w.shape[1 if turned else 0] // PANEL)
    u = aligned(panels * taps * w.shape[0 if turned else 1] * PANEL)

    def pack(part):
        own = part.of(panels)
        loops.pack(w.reshape(len(w), -1), taps, w.shape[1], turned, rooms[part.number], u, own.start, own.stop)

    threads.share(pack, w.size)
    return u


def _rooms(work, parts, width):
    """(room for taps, s with `width` rows) of each thread."""
    return [(empty_cpu((work.taps * BLOCK, PANEL)), aligned(width * PANEL)) for _ in range(parts)]


def _packed(work, w, turned, rooms):
    """u of each thread: all panels of the weight, packed; or if there is one block, a buffer for one panel."""
    if len(work.starts) == 1:
        return [aligned(math.prod(w.shape[2:]) * w.shape[0 if turned else 1] * PANEL) for _ in rooms]
    return [packed_weight(w, turned, [room for room, _ in rooms])] * len(rooms)


def convolved(x, w, window: Window, positions, rows, bias, relu, scale):
    """y of conv2d at the listed positions."""
    outs, work = len(w), _work(x, w.shape, window, positions, rows)
    y, bias = empty_cpu((len(x), *positions, outs)), full_cpu(outs, 0.0) if bias is None else bias
    parts, low = threads.parts(w.size, work.flops), 0.0 if relu else -np.inf
    (ways, units), rooms = work.shared(-(-outs // PANEL), parts), _rooms(work, parts, work.block)
    u, ready = _packed(work, w, False, rooms), len(work.starts) > 1

    def run(part):
        (room, s), own = rooms[part.number], part.of(units)
        loops.forward(
            work.geometry,
            x.reshape(-1),
            w.reshape(outs, -1),
            scale,
            bias,
            low,
            rows,
            len(x),
            work.block,
            work.starts,
            work.members,
            room,
            u[part.number],
            ready,
            s,
            y.reshape(-1),
            ways,
            own.start,
            own.stop,
        )

    threads.share(run, flops=work.flops)
    return y


def gradients(dy, where, x, w, window: Window, rows, scale, wants_dx):
    """(dx or None, dw, db) of conv2d_grad from the listed positions."""
    work = _work(x, w.shape, window, dy.shape[1:3], rows)
    slopes = dy.reshape(-1)
    gates = slopes if where is None else where.reshape(-1), where is not None
    dx = _pixel_gradient(work, slopes, gates, x.shape, w, scale) if wants_dx else None
    return dx, *_weight_gradient(work, slopes, gates, x, w.shape, scale)


def _pixel_gradient(work, slopes, gates, shape, w, scale):
    """dx of conv2d for images of this shape."""
    (outs, channels), dx = w.shape[:2], empty_cpu(shape)
    parts = threads.parts(w.size, work.flops)
    (ways, units), rooms = work.shared(-(-channels // PANEL), parts), _rooms(work, parts, work.block)
    u, ready = _packed(work, w, True, rooms), len(work.starts) > 1
    v = [aligned(work.block * work.places * (outs + LINE)) for _ in rooms]

    def run(part):
        (room, s), own = rooms[part.number], part.of(units)
        loops.backward(
            work.geometry,
            slopes,
            *gates,
            w.reshape(outs, -1),
            scale,
            len(dx),
            work.block,
            work.starts,
            work.members,
            room,
            v[part.number],
            u[part.number],
            ready,
            s,
            dx.reshape(-1),
            ways,
            own.start,
            own.stop,
        )

    threads.share(run, flops=work.flops)
    return dx


def _weight_gradient(work, slopes, gates, x, shape, scale):
    """(dw, db) of conv2d for a weight of this shape. Threads share the channels."""
    (outs, channels), dw = shape[:2], empty_cpu(shape)
    db, sums = empty_cpu(outs), empty_cpu(outs, np.float64)
    panels, parts, wide = -(-outs // PANEL), threads.parts(flops=work.flops), columns(channels)
    chunks, rows = -(-channels // wide), work.block * work.places
    rooms = [empty_cpu((work.taps * BLOCK, PANEL)) for _ in range(parts)]
    s = [aligned(panels * PANEL * rows) for _ in range(parts)]
    v = [aligned(-(-chunks // parts) * (rows * wide + LINE)) for _ in range(parts)]
    listed = [empty_cpu((rows,), np.int64) for _ in range(parts)]
    u = aligned(panels * PANEL * work.taps * channels)

    def run(part):
        number, own = part.number, part.of(chunks)
        loops.gradient(
            work.geometry,
            x.reshape(-1),
            slopes,
            *gates,
            scale,
            wide,
            work.starts,
            work.members,
            rooms[number],
            listed[number],
            v[number],
            u,
            s[number],
            dw.reshape(outs, -1),
            sums,
            db,
            own.start * wide,
            min(own.stop * wide, channels),
        )

    threads.share(run, flops=work.flops)
    return dw, db
