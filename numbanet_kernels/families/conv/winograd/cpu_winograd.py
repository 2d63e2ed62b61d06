"""Convolutions on the CPU by Winograd's filtering: sizes, buffers and threads for `cpu_winograd_loops`.

dx is computed as a convolution of dz by the weight with reversed taps. Results are the same to the last bit for any number of
threads. If a pixel is infinite or NaN, outputs of its tile that do not read the pixel may be NaN as well.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ....host import threads
from ....host.simd import aligned
from ....host.transpose import NO_INDICES
from ....layouts.windows import tile_of
from ....runtime.memory import empty_cpu, full_cpu
from ..cpu_im2col_loops import add_up
from ..cpu_panel_products import PANEL, ROWS
from . import cpu_winograd_loops as loops

NEAR = 80_000  # floats of a thread's v: they stay in the L2 cache
FAR = 1 << 22  # floats of u from which a thread transforms a panel when it is needed, and of v that it may hold then
SLICES, LENGTH = 8, 128  # largest number of slices of tiles that are summed separately, and least number of their tiles
ROOM = 2  # place of the buffer for taps in the buffers of a thread (`_Rooms`)


class Panels(NamedTuple):
    """The panels of a transformed weight: the side of its tiles, their number, the floats of one, and `far` (`Tiling`)."""

    m: int
    count: int
    floats: int
    far: bool


class Tiling(NamedTuple):
    """How images are cut into tiles, and tiles are grouped into stretches. A stretch is the tiles that a thread transforms
    before it multiplies them.

    m : side of a tile's outputs, 2 or 4
    geometry : sizes for the loops
    tiles, panels : the number of tiles of all images, and of panels of the transformed weight, of PANEL outputs each
    far : True if the transformed weight has at least FAR floats, and the transformed pixels at most FAR; threads then share the
        panels, not the tiles
    """

    m: int
    geometry: np.ndarray
    tiles: int
    panels: int
    far: bool

    @property
    def elements(self) -> int:
        """Number of elements of a transformed tile."""
        return (self.m + 2) ** 2

    @property
    def channels(self) -> int:
        """Number of channels of the pixels."""
        return int(self.geometry[3])

    @property
    def weight(self) -> Panels:
        """The panels of the transformed weight."""
        return Panels(self.m, self.panels, self.elements * loops.plane_of(self.channels, PANEL), self.far)

    def stretch(self, parts: int) -> int:
        """The number of tiles of a stretch, if `parts` threads share the stretches."""
        if self.far:
            return self.tiles
        row = loops.row_of(self.channels)
        most = max(NEAR // (self.elements * row), ROWS)
        count = -(-self.tiles // most)
        return -(-self.tiles // (-(-count // parts) * parts))


def tiling(
    images: tuple[int, ...], padding: tuple[int, int], positions: tuple[int, int], outs: int, side: int | None = None
) -> Tiling:
    """The tiling of outputs at `positions` of images (N, H, W, C) with this padding; `side` is that of tiles, if given."""
    m = side or tile_of(*positions)
    down, across = (-(-n // m) for n in positions)
    tiles, panels, channels = images[0] * down * across, -(-outs // PANEL), images[3]
    elements = (m + 2) ** 2
    far = elements * channels * outs >= FAR and elements * tiles * channels <= FAR
    return Tiling(m, _geometry(m, *images[1:], *padding, down, across, *positions, outs), tiles, panels, far)


@functools.lru_cache(maxsize=256)
def _geometry(*sizes: int) -> np.ndarray:
    """The sizes as an array, the same one each time: recordings hold its address."""
    return np.array(sizes)


class _Rooms(NamedTuple):
    """A thread's buffers, and the lists of a tile's places and of a stretch's goals."""

    places: Any
    goals: Any
    room: Any
    v: Any
    s: Any


def _rooms(tiles: Tiling, most: int) -> _Rooms:
    row, plane = loops.row_of(tiles.channels), loops.plane_of
    return _Rooms(
        empty_cpu((tiles.elements,), np.int64),
        empty_cpu((most, tiles.m**2), np.int64),
        empty_cpu((loops.TAPS * loops.BLOCK, PANEL)),
        aligned(tiles.elements * plane(most, row)),
        aligned(tiles.elements * plane(most, PANEL)),
    )


def weighed(matrix, channels, turned, reverse, panels, rooms, parts):
    """The transformed weight of each of `parts` threads: one for all, which the threads of `rooms` make; or if the weight is
    far, room for a panel.
    """
    if panels.far:
        return [aligned(panels.floats) for _ in range(parts)]
    u = aligned(panels.count * panels.floats)

    def weigh(part):
        own = part.of(panels.count)
        loops.weigh(panels.m, matrix, channels, turned, reverse, rooms[part.number][ROOM], u, own.start, own.stop)

    threads.share(weigh, matrix.size)
    return [u] * parts


def gated(dy, where, rows=None):
    """(dz, db) of conv2d_grad: dz is dy, but 0 unless `where` is positive and unless the row is listed, and db the sum of its
    rows.
    """
    slopes, listed = dy.reshape(-1, dy.shape[3]), NO_INDICES if rows is None else rows
    dz = dy if where is None and rows is None else empty_cpu(dy.shape)
    sums, db = empty_cpu((min(len(dy), SLICES), dy.shape[3]), np.float64), empty_cpu(dy.shape[3])

    def gate(part):
        own = part.of(len(sums))
        gates = slopes if where is None else where.reshape(slopes.shape)
        given = slopes, gates, where is not None, listed, rows is not None
        loops.gate(*given, dz.reshape(slopes.shape), sums, own.start, own.stop)

    threads.share(gate, dy.size)
    add_up(sums, db)
    return dz, db


def add_slices(add, span, slices, panels, rooms, flops, dw, scale):
    """dw, a matrix, from sums over n = `slices` slices of the tiles. add(thread, sums, *span(slice), first panel, end) adds a
    slice for some panels, and writes dw itself if the weight is far. Threads share the panels of a single slice.
    """
    parts, floats = threads.parts(flops=flops), panels.floats
    sums = aligned(parts, floats) if panels.far else aligned(slices, panels.count * floats)

    def run(part):
        if slices == 1:
            own = part.of(panels.count)
            add(part.number, sums[part.number if panels.far else 0], *span(0), own.start, own.stop)
            return
        own = part.of(slices)
        for number in range(own.start, own.stop):
            add(part.number, sums[number], *span(number), 0, panels.count)

    threads.share(run, flops=flops)
    if not panels.far:

        def end(part):
            own = part.of(panels.count)
            loops.finish(panels.m, sums, scale, rooms[part.number][ROOM], dw, own.start, own.stop)

        threads.share(end, dw.size)


def _stretches(part, tiles, most):
    """(first tile, end, first panel, end) of a thread."""
    if tiles.far:
        own = part.of(tiles.panels)
        return 0, tiles.tiles, own.start, own.stop
    own = part.of(-(-tiles.tiles // most))
    return own.start * most, min(own.stop * most, tiles.tiles), 0, tiles.panels


def _convolved(x, w, turned, tiles, bias, low, scale, y):
    """y = max(scale the convolution of x by w (O, C, 3, 3) + bias, low); if `turned`, from O to C channels by reversed taps."""
    matrix, channels = w.reshape(len(w), -1), w.shape[1]
    flops = 2 * tiles.elements * tiles.tiles * w.shape[0] * channels
    parts = threads.parts(flops=flops)
    most = tiles.stretch(parts)
    rooms = [_rooms(tiles, most) for _ in range(threads.parts(w.size, flops))]
    zeros, u = full_cpu(tiles.channels, 0.0), weighed(matrix, channels, turned, turned, tiles.weight, rooms, parts)

    def run(part):
        own = rooms[part.number]
        loops.forward(
            tiles.geometry,
            x.reshape(-1),
            matrix,
            turned,
            scale,
            bias,
            low,
            own.places,
            own.goals,
            zeros,
            own.room,
            own.v,
            u[part.number],
            not tiles.far,
            own.s,
            y.reshape(-1),
            *_stretches(part, tiles, most),
        )

    threads.share(run, flops=flops)
    return y


def convolved(x, w, window, positions, bias, relu, scale, rows=None):
    """y of conv2d; it is computed in all rows, and then set to 0 in those that are not listed."""
    outs = len(w)
    tiles = tiling(x.shape, window.padding, positions, outs)
    bias = full_cpu(outs, 0.0) if bias is None else bias
    y = empty_cpu((len(x), *positions, outs))
    _convolved(x, w, False, tiles, bias, 0.0 if relu else -np.inf, scale, y)
    if rows is not None:
        _blank(rows, y)
    return y


def _blank(rows, y):
    """Set y to 0 in the rows that are not listed."""

    def blank(part):
        own = part.of(y.size // y.shape[3])
        loops.blank_rows(rows, own.start, own.stop, y.shape[3], y.reshape(-1))

    threads.share(blank, y.size)


def gradients(dy, where, x, w, window, scale, wants_dx, rows=None):
    """(dx or None, dw, db) of conv2d_grad; dz is 0 in rows that are not listed."""
    outs, positions = len(w), dy.shape[1:3]
    dz, db = gated(dy, where, rows)
    dw, dx = _weight_gradient(dz, x, w.shape, tiling(x.shape, window.padding, positions, outs), scale), None
    if wants_dx:
        behind = tuple(2 - before for before in window.padding)
        back = tiling(dy.shape, behind, x.shape[1:3], x.shape[3])
        dx = _convolved(dz, w, True, back, full_cpu(x.shape[3], 0.0), -np.inf, scale, empty_cpu(x.shape))
    return dx, dw, db


def _weight_gradient(dz, x, shape, tiles, scale):
    """dw of conv2d for a weight of this shape."""
    dw = empty_cpu(shape)
    flops, panels = 2 * tiles.elements * tiles.tiles * shape[0] * shape[1], tiles.weight
    slices = 1 if tiles.far else max(min(SLICES, FAR // (panels.count * panels.floats), tiles.tiles // LENGTH), 1)
    most = tiles.stretch(slices)
    length = -(-tiles.tiles // (most * slices)) * most  # tiles of a slice, of whole stretches
    slices = -(-tiles.tiles // length)
    rooms = [_rooms(tiles, most) for _ in range(threads.parts(dw.size, flops))]
    zeros = full_cpu(max(shape[:2]), 0.0)
    matrix = dw.reshape(shape[0], -1)

    def add(number, terms, *spans):
        own = rooms[number]
        loops.gradient(
            tiles.geometry,
            x.reshape(-1),
            dz.reshape(-1),
            scale,
            own.places,
            own.goals,
            zeros,
            own.room,
            own.v,
            terms,
            own.s,
            not tiles.far,
            matrix,
            *spans,
        )

    def span(number):
        return number * length, min((number + 1) * length, tiles.tiles)

    add_slices(add, span, slices, panels, rooms, flops, matrix, scale)
    return dw
