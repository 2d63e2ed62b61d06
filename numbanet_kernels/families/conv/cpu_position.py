"""Convolutions on the CPU of listed positions, all images of a position at once: conditions, lists, buffers and threads for
`cpu_position_loops`. Threads share the results of a product, so these are the same to the last bit for any number of threads.
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
from .cpu_position_loops import BLOCK, IMAGES
from .winograd.cpu_winograd_transforms import PANEL

LEAST = 32  # least number of images, because products have a row for each image that keeps a position
WIDE = 12  # least ratio of products to channels plus outputs: those are multiplied, these are copied
INSIDE = 0.75  # largest share of taps inside the image: in larger images, pixels of a position are far from each other
NEAR, ALL = 1 << 18, 1 << 22  # floats of a thread's v: of a stretch, and of all pieces if they fit


def suits(window: Window, images: tuple[int, ...], outs: int) -> bool:
    """True if convolving listed positions of images (N, H, W, C) so is faster than from gathered patches."""
    count, *size, channels = images
    if count < LEAST or channels * outs < WIDE * (channels + outs):
        return False
    return inside(window, *size) <= INSIDE * math.prod(window.positions(*size)) * math.prod(window.kernel)


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

    pieces, members : the lists of `loops.cut`
    rows, tapped : largest number of kept rows, and of their taps inside the image
    flops : an upper bound, because replays have other lists
    """

    geometry: np.ndarray
    taps: int
    pieces: Any
    members: Any
    rows: int
    tapped: int
    flops: int

    def room(self, depth: int, tapped: bool) -> tuple[int, bool]:
        """(floats of v, whether they are enough for all pieces); rows have `depth` values, of each tap if `tapped`."""
        every = (self.tapped if tapped else self.rows) * depth + self.rows * LINE
        one = IMAGES * ((self.taps if tapped else 1) * depth + LINE)
        return (every, True) if every <= ALL else (max(NEAR, one), False)


def _work(x, shape, window, positions, rows) -> _Work:
    places, taps = math.prod(positions), math.prod(window.kernel)
    geometry = _geometry(*x.shape[1:], *positions, shape[0], *(n for pair in window for n in pair))
    starts, members = empty_cpu((places + 1,), np.int64), empty_cpu((max(len(x) * places, 1),), np.int32)
    pieces = empty_cpu((-(-len(x) // IMAGES) * places + 1, 5), np.int64)
    loops.cut(geometry, rows, len(x), starts, members, pieces)
    tapped = len(x) * inside(window, *x.shape[1:3])
    return _Work(geometry, taps, pieces, members, len(x) * places, tapped, 2 * len(x) * places * math.prod(shape))


def _rooms(work, size, parts):
    """(taps, v, s) of each thread."""
    return [(empty_cpu((work.taps * BLOCK, PANEL)), aligned(size), aligned(IMAGES * PANEL)) for _ in range(parts)]


def packed_weight(w, turned, rooms):
    """All panels of the weight (O, C, KH, KW), packed; those of channels if `turned`. `rooms` are buffers for taps."""
    taps, panels = math.prod(w.shape[2:]), -(-w.shape[1 if turned else 0] // PANEL)
    u = aligned(panels * taps * w.shape[0 if turned else 1] * PANEL)

    def pack(part):
        own = part.of(panels)
        loops.pack(w.reshape(len(w), -1), taps, w.shape[1], turned, rooms[part.number], u, own.start, own.stop)

    threads.share(pack, w.size)
    return u


def _packed(w, turned, rooms, whole, parts):
    """u of each thread: all panels of the weight, packed; or if v holds all pieces (`whole`), a buffer for one panel."""
    if whole:
        return [aligned(math.prod(w.shape[2:]) * w.shape[0 if turned else 1] * PANEL) for _ in range(parts)]
    return [packed_weight(w, turned, [room for room, *_ in rooms])] * parts


def convolved(x, w, window: Window, positions, rows, bias, relu, scale):
    """y of conv2d at the listed positions."""
    outs, channels = w.shape[:2]
    work, panels = _work(x, w.shape, window, positions, rows), -(-outs // PANEL)
    y, bias = empty_cpu((len(x), *positions, outs)), full_cpu(outs, 0.0) if bias is None else bias
    (size, whole), parts = work.room(channels, True), threads.parts(w.size, work.flops)
    rooms = _rooms(work, size, parts)
    u = _packed(w, False, rooms, whole, parts)

    def run(part):
        (room, v, s), own = rooms[part.number], part.of(panels)
        loops.forward(
            work.geometry,
            x.reshape(-1),
            w.reshape(outs, -1),
            scale,
            bias,
            0.0 if relu else -np.inf,
            rows,
            len(x),
            work.pieces,
            work.members,
            room,
            v,
            u[part.number],
            not whole,
            s,
            y.reshape(-1),
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
    dx = _pixel_gradient(work, slopes, gates, x, w, scale) if wants_dx else None
    return dx, *_weight_gradient(work, slopes, gates, x, w.shape, scale)


def _pixel_gradient(work, slopes, gates, x, w, scale):
    """dx of conv2d."""
    outs, channels = w.shape[:2]
    dx, panels = empty_cpu(x.shape), -(-channels // PANEL)
    (size, whole), parts = work.room(outs, False), threads.parts(w.size, work.flops)
    rooms = _rooms(work, size, parts)
    u = _packed(w, True, rooms, whole, parts)

    def run(part):
        (room, v, s), own = rooms[part.number], part.of(panels)
        loops.backward(
            work.geometry,
            slopes,
            *gates,
            w.reshape(outs, -1),
            scale,
            len(x),
            work.pieces,
            work.members,
            room,
            v,
            u[part.number],
            not whole,
            s,
            dx.reshape(-1),
            own.start,
            own.stop,
        )

    threads.share(run, flops=work.flops)
    return dx


def _weight_gradient(work, slopes, gates, x, shape, scale):
    """(dw, db) of conv2d for a weight of this shape."""
    outs, channels = shape[:2]
    dw, db, sums = empty_cpu(shape), empty_cpu(outs), empty_cpu(outs, np.float64)
    panels, (size, whole), parts = -(-outs // PANEL), work.room(channels, True), threads.parts(flops=work.flops)
    rooms, floats = _rooms(work, size, parts), work.taps * channels * PANEL
    u = [aligned(floats) for _ in range(parts)] if whole else [aligned(panels * floats)] * parts

    def run(part):
        (room, v, s), own = rooms[part.number], part.of(panels)
        loops.gradient(
            work.geometry,
            x.reshape(-1),
            slopes,
            *gates,
            scale,
            work.pieces,
            work.members,
            room,
            v,
            u[part.number],
            not whole,
            s,
            dw.reshape(outs, -1),
            sums,
            db,
            own.start,
            own.stop,
        )

    threads.share(run, flops=work.flops)
    return dw, db
