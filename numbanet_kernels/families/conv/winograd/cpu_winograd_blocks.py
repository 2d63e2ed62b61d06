"""Convolutions on the CPU by Winograd's filtering of some channels, different ones in each group of images: conditions, sizes,
buffers and threads for `cpu_winograd_block_loops`. Results are the same to the last bit for any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....host import threads
from ....host.simd import WIDTH, aligned
from ....layouts import filtering
from ....layouts.windows import Blocks, Window
from ....runtime.memory import empty_cpu, full_cpu
from ..cpu_panel_products import PANEL
from . import cpu_winograd_block_loops as loops
from .cpu_winograd import FAR, SLICES, Panels, Tiling, add_slices, gated, tiling, weighed
from .cpu_winograd_loops import BLOCK, TAPS, plane_of, row_of

FEW = 4  # groups of images: if there are fewer, threads do not share them


def suits(window: Window, images: tuple[int, ...], outs: int, blocks: Blocks) -> bool:
    """True if blocks of channels of images (N, H, W, C) are computed so, because it is faster than from gathered patches."""
    fits = blocks.width % WIDTH == 0 and (blocks.width % PANEL == 0 or PANEL % blocks.width == 0)
    return blocks.channels is not None and fits and filtering.suits(window, images, outs)


class _Work(NamedTuple):
    """A pass over groups of images. Its products have sums of up to `depth` terms, and `columns` columns.

    kept, width : the kept blocks of channels of each group, and the channels of a block
    size, most : the numbers of tiles of a group and of a stretch
    far : True if threads share the panels, not the groups
    """

    tiles: Tiling
    kept: Any
    width: int
    columns: int
    size: int
    most: int
    far: bool

    @property
    def panels(self) -> int:
        """Number of panels of columns."""
        return -(-self.columns // PANEL)

    @property
    def floats(self) -> int:
        """Floats of u for a panel."""
        return self.tiles.elements * plane_of(self.tiles.channels, PANEL)

    @property
    def weight(self) -> Panels:
        """The panels of the transformed weight."""
        return Panels(self.tiles.m, self.panels, self.floats, self.far)

    @property
    def flops(self) -> int:
        """An upper bound of the work."""
        return 2 * self.tiles.elements * self.tiles.tiles * self.tiles.channels * self.columns

    @property
    def lists(self) -> tuple:
        """Arguments of the loops."""
        return self.kept, self.width, self.size, self.tiles.tiles

    def rooms(self, parts: int) -> list[tuple]:
        """(places, goals, taps, v, s) of each thread."""
        tiles = self.tiles
        return [
            (
                empty_cpu((tiles.elements,), np.int64),
                empty_cpu((self.most, tiles.m**2), np.int64),
                empty_cpu((TAPS * BLOCK, PANEL)),
                aligned(tiles.elements * plane_of(self.most, row_of(tiles.channels))),
                aligned(tiles.elements * plane_of(self.size, PANEL)),
            )
            for _ in range(parts)
        ]

    def spans(self, part: threads.Part) -> tuple[int, int, int, int]:
        """(first group, end, first panel, end) of a thread."""
        own = part.of(self.panels if self.far else len(self.kept))
        return (0, len(self.kept), own.start, own.stop) if self.far else (own.start, own.stop, 0, self.panels)


def _work(tiles: Tiling, blocks: Blocks, images: int, each: int, columns: int) -> _Work:
    """The pass over `tiles`; a group has `each` images."""
    kept, size = blocks.channels, tiles.tiles // max(images, 1) * each
    few = elements_of(tiles) <= FAR and (len(kept) < FEW or tiles.elements * tiles.channels * columns >= FAR)
    return _Work(tiles, kept, blocks.width, columns, size, size * len(kept) if few else size, few)


def elements_of(tiles: Tiling) -> int:
    """Floats of v for all tiles."""
    return tiles.elements * tiles.tiles * tiles.channels


def _convolved(work, loop, x, w, turned, bias, scale, y, *low):
    """y of conv2d; or if `turned`, dx of conv2d_grad."""
    matrix = w.reshape(len(w), -1)
    parts = threads.parts(flops=work.flops)
    rooms, zeros = work.rooms(threads.parts(w.size, work.flops)), full_cpu(work.tiles.channels, 0.0)
    u = weighed(matrix, w.shape[1], turned, turned, work.weight, rooms, parts)

    def run(part):
        places, goals, room, v, s = rooms[part.number]
        loop(
            work.tiles.geometry,
            x.reshape(-1),
            matrix,
            scale,
            bias,
            *low,
            *work.lists,
            places,
            goals,
            zeros,
            room,
            v,
            u[part.number],
            not work.far,
            s,
            y.reshape(-1),
            *work.spans(part),
        )

    threads.share(run, flops=work.flops)
    return y


def convolved(x, w, window: Window, positions, blocks: Blocks, bias, relu, scale):
    """y of conv2d."""
    outs, each = len(w), blocks.height // (positions[0] * positions[1])
    work = _work(tiling(x.shape, window.padding, positions, outs), blocks, len(x), each, outs)
    bias = full_cpu(outs, 0.0) if bias is None else bias
    y = empty_cpu((len(x), *positions, outs))
    return _convolved(work, loops.forward, x, w, False, bias, scale, y, 0.0 if relu else -np.inf)


def gradients(dy, where, x, w, window: Window, blocks: Blocks, scale, wants_dx):
    """(dx or None, dw, db) of conv2d_grad"""
    outs, positions, channels = len(w), dy.shape[1:3], x.shape[3]
    each, (dz, db) = blocks.height // (positions[0] * positions[1]), gated(dy, where)
    work = _work(tiling(x.shape, window.padding, positions, outs), blocks, len(x), each, outs)
    dw, dx = _weight_gradient(work, dz, x, w.shape, scale), None
    if wants_dx:
        behind = tuple(2 - before for before in window.padding)
        work = _work(tiling(dy.shape, behind, x.shape[1:3], channels), blocks, len(x), each, channels)
        dx = _convolved(work, loops.backward, dz, w, True, full_cpu(channels, 0.0), scale, empty_cpu(x.shape))
    return dx, dw, db


def _weight_gradient(work, dz, x, shape, scale):
    """dw of conv2d for a weight of this shape."""
    dw, zeros = empty_cpu(shape), full_cpu(max(shape[:2]), 0.0)
    matrix = dw.reshape(shape[0], shape[1] * TAPS)
    slices = 1 if work.far else max(min(SLICES, FAR // (work.panels * work.floats), len(work.kept)), 1)
    rooms = work.rooms(threads.parts(dw.size, work.flops))

    def add(number, terms, *spans):
        places, goals, room, v, s = rooms[number]
        loops.gradient(
            work.tiles.geometry,
            x.reshape(-1),
            dz.reshape(-1),
            scale,
            *work.lists,
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
        groups = threads.Part(number, slices).of(len(work.kept))
        return groups.start, groups.stop

    add_slices(add, span, slices, work.weight, rooms, work.flops, matrix, scale)
    return dw
