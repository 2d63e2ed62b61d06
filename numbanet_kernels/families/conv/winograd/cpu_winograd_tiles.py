"""Convolutions on the CPU by Winograd's filtering of some tiles: sizes, buffers and threads for `cpu_winograd_tile_loops`.

Results are the same to the last bit for any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....host import threads
from ....host.simd import aligned
from ....layouts.windows import Window
from ....runtime.memory import empty_cpu, full_cpu
from ..cpu_im2col_loops import add_up
from ..cpu_panel_products import PANEL, ROWS
from . import cpu_winograd_tile_loops as loops
from .cpu_winograd import FAR, LENGTH, NEAR, SLICES, Panels, Tiling, add_slices, tiling, weighed
from .cpu_winograd_loops import BLOCK, TAPS, plane_of, row_of


class _Rooms(NamedTuple):
    """A thread's buffers: places of each tile of a stretch, and of a single one; taps, and the transformed arrays."""

    each: Any
    one: Any
    room: Any
    v: Any
    s: Any


class _Work(NamedTuple):
    """A pass over kept tiles. Its products have sums of `depth` terms, and `width` columns.

    kept, images, tiles : the list, the number of images, and their tiling
    most : the largest number of tiles of a stretch
    far : True if the weight is much larger than the pixels, so that threads share the panels, not the tiles
    flops : an upper bound, because replays have other lists
    """

    kept: Any
    images: int
    tiles: Tiling
    depth: int
    width: int
    most: int
    far: bool
    flops: int

    @property
    def panels(self) -> int:
        """Number of panels of columns."""
        return -(-self.width // PANEL)

    @property
    def floats(self) -> int:
        """Floats of u for a panel."""
        return self.tiles.elements * plane_of(self.depth, PANEL)

    @property
    def weight(self) -> Panels:
        """The panels of the transformed weight."""
        return Panels(self.tiles.m, self.panels, self.floats, self.far)

    def rooms(self, each: int, one: int, parts: int) -> list[_Rooms]:
        """The buffers of each thread; `each` and `one` are the numbers of places of a tile."""
        elements = self.tiles.elements
        return [
            _Rooms(
                empty_cpu((self.most, each), np.int64),
                empty_cpu((one,), np.int64),
                empty_cpu((TAPS * BLOCK, PANEL)),
                aligned(elements * plane_of(self.most, row_of(self.depth))),
                aligned(elements * plane_of(self.most, PANEL)),
            )
            for _ in range(parts)
        ]

    def share(self, part: threads.Part) -> tuple[int, int, int, int]:
        """(number of a part of the images, number of parts, first panel, end) of a thread."""
        own = part.of(self.panels)
        return (0, 1, own.start, own.stop) if self.far else (*part, 0, self.panels)


def _far(weight: int, pixels: int) -> bool:
    """True if threads share the panels of a transformed weight of this size, not the tiles; each then transforms all tiles."""
    return weight >= FAR and pixels <= FAR


def _work(tiles: Tiling, kept: Any, images: int, outs: int, depth: int, width: int) -> _Work:
    elements = tiles.elements
    far = _far(elements * depth * width, elements * tiles.tiles * depth)
    near = max(NEAR // (elements * row_of(depth)), ROWS)
    most = max(tiles.tiles if far else min(near, tiles.tiles), 1)
    return _Work(kept, images, tiles, depth, width, most, far, 2 * elements * tiles.tiles * depth * width)


def convolved(x, w, window: Window, positions, kept, side, bias, relu, scale):
    """y of conv2d, of the kept tiles of side x side positions."""
    outs, channels = w.shape[:2]
    tiles, matrix = tiling(x.shape, window.padding, positions, outs, side), w.reshape(outs, -1)
    work = _work(tiles, kept, len(x), outs, channels, outs)
    bias, zeros = full_cpu(outs, 0.0) if bias is None else bias, full_cpu(channels, 0.0)
    y, parts = empty_cpu((len(x), *positions, outs)), threads.parts(flops=work.flops)
    rooms = work.rooms(tiles.m**2, tiles.elements, threads.parts(w.size, work.flops))
    u = weighed(matrix, channels, False, False, work.weight, rooms, parts)

    def run(part):
        goals, places, room, v, s = rooms[part.number]
        loops.forward(
            tiles.geometry,
            x.reshape(-1),
            matrix,
            scale,
            bias,
            0.0 if relu else -np.inf,
            kept,
            len(x),
            places,
            goals,
            zeros,
            room,
            v,
            u[part.number],
            not work.far,
            s,
            y.reshape(-1),
            *work.share(part),
        )

    threads.share(run, flops=work.flops)
    return y


def gradients(dy, where, x, w, window: Window, kept, side, scale, wants_dx):
    """(dx or None, dw, db) of conv2d_grad, from the kept tiles of side x side positions."""
    outs = len(w)
    tiles = tiling(x.shape, window.padding, dy.shape[1:3], outs, side)
    slopes = dy.reshape(-1, outs)
    dz = dy if where is None else empty_cpu(dy.shape)
    sums, db = empty_cpu((min(len(dy), SLICES), outs), np.float64), empty_cpu(outs)
    lists = [[empty_cpu((n,), np.int64) for n in (tiles.elements, tiles.m**2)] for _ in range(threads.parts(dy.size))]

    def gate(part):
        own = part.of(len(sums))
        loops.gate(
            tiles.geometry,
            slopes,
            slopes if where is None else where.reshape(slopes.shape),
            where is not None,
            kept,
            len(x),
            *lists[part.number],
            dz.reshape(slopes.shape),
            sums,
            own.start,
            own.stop,
        )

    threads.share(gate, dy.size)
    add_up(sums, db)
    dw = _weight_gradient(dz, x, w.shape, tiles, kept, scale)
    return _pixel_gradient(dz, x, w, tiles, kept, scale) if wants_dx else None, dw, db


def _pixel_gradient(dz, x, w, tiles, kept, scale):
    """dx of conv2d."""
    outs, channels = w.shape[:2]
    work, matrix, zeros = _work(tiles, kept, len(x), outs, outs, channels), w.reshape(outs, -1), full_cpu(outs, 0.0)
    dx, parts = empty_cpu(x.shape), threads.parts(flops=work.flops)
    rooms = work.rooms(tiles.elements, tiles.m**2, threads.parts(w.size, work.flops))
    u = weighed(matrix, channels, True, False, work.weight, rooms, parts)

    def run(part):
        places, goals, room, v, s = rooms[part.number]
        loops.backward(
            tiles.geometry,
            dz.reshape(-1),
            matrix,
            scale,
            kept,
            len(x),
            places,
            goals,
            zeros,
            room,
            v,
            u[part.number],
            not work.far,
            s,
            dx.reshape(-1),
            *work.share(part),
        )

    threads.share(run, flops=work.flops)
    return dx


def _weight_gradient(dz, x, shape, tiles, kept, scale):
    """dw of conv2d for a weight of this shape."""
    outs, channels = shape[:2]
    work, dw, zeros = _work(tiles, kept, len(x), outs, channels, outs), empty_cpu(shape), full_cpu(max(shape[:2]), 0.0)
    slices = 1 if work.far else max(min(SLICES, FAR // (work.panels * work.floats), tiles.tiles // LENGTH), 1)
    matrix = dw.reshape(outs, -1)
    rooms = work.rooms(tiles.m**2, tiles.elements, threads.parts(dw.size, work.flops))

    def add(number, terms, *spans):
        goals, places, room, v, s = rooms[number]
        loops.gradient(
            tiles.geometry,
            x.reshape(-1),
            dz.reshape(-1),
            scale,
            kept,
            len(x),
            places,
            goals,
            zeros,
            room,
            v,
            terms,
            s,
            not work.far,
            matrix,
            *spans,
        )

    def span(number):
        return number, slices

    add_slices(add, span, slices, work.weight, rooms, work.flops, matrix, scale)
    return dw
