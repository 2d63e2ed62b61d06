"""Convolutions on the CPU from wide kept blocks of the im2col matrix: conditions, buffers and threads for `cpu_block_loops`.

Results are the same to the last bit for any number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from ...host import threads
from ...host.simd import LINE, aligned
from ...host.threads import Part
from ...layouts.windows import Blocks, Window
from ...runtime.memory import empty_cpu, full_cpu
from . import cpu_block_loops as loops
from .cpu_im2col import Work
from .cpu_im2col_loops import add_up
from .cpu_panel_products import PANEL, columns
from .cpu_position import packed_weight
from .cpu_position_loops import BLOCK

SLICES, ROOM = 8, 1 << 22  # largest number of slices that are summed separately, and of floats of their sums
LEAST_ROWS = 32  # least number of rows of a block: for fewer, reading the weight takes longer than the products
WIDE = 32  # least ratio of products to channels plus outputs: those are multiplied, these are read and added up


def suits(window: Window, images: tuple[int, ...], outs: int, blocks: Blocks) -> bool:
    """True if convolving images (N, H, W, C) so is faster than from gathered patches: a block is whole panels of channels of
    one tap.
    """
    channels = images[3]
    whole = not channels % blocks.width and not blocks.width % PANEL
    return whole and blocks.height >= LEAST_ROWS and channels * outs >= max(WIDE * (channels + outs), PANEL**2)


def _lists(work, parts):
    """For each thread, the arguments `geometry` to `counts` of a loop."""
    sizes = (work.taps, work.tile), (work.taps, work.tile), (work.taps,)
    given = work.geometry, work.table, work.starts, work.kept, work.tile, work.width
    return [(*given, *(empty_cpu(size, np.int64) for size in sizes)) for _ in range(parts)]


def _taps(work, parts):
    """Room for taps of each thread."""
    return [empty_cpu((work.taps * BLOCK, PANEL)) for _ in range(parts)]


def _spans(work, part):
    """(first block row, end, first image, end) of a thread: block rows of an image have one thread."""
    units = part.of(-(-work.images // work.unit))
    first, stop = (min(end * work.unit, work.images) for end in (units.start, units.stop))
    return first * work.places // work.tile, -(-stop * work.places // work.tile), first, stop


def convolved(x, w, window, plan, positions, bias, relu, scale):
    """y of conv2d"""
    work, (outs, channels) = Work(x, w, window, plan, positions, joins=False), w.shape[:2]
    y, parts = empty_cpu((len(x), *positions, outs)), threads.parts(w.size, work.flops)
    u, s, lists = packed_weight(w, False, _taps(work, parts)), aligned(parts, work.tile * PANEL), _lists(work, parts)
    bias, low = full_cpu(outs, 0.0) if bias is None else bias, 0.0 if relu else -np.inf

    def run(part):
        n, own = part.number, part.of(len(work.kept))
        given = x.reshape(-1), channels, *lists[n], u, scale, bias, low, s[n]
        loops.forward(*given, y.reshape(-1), work.images * work.places, own.start, own.stop)

    threads.share(run, flops=work.flops)
    return y


def gradients(dy, where, x, w, window, plan, positions, scale, wants_dx):
    """(dx or None, dw, db) of conv2d_grad"""
    work, slopes = Work(x, w, window, plan, positions, joins=False), dy.reshape(-1, len(w))
    gates = slopes if where is None else where.reshape(slopes.shape), where is not None
    dx = _pixel_gradient(work, slopes, gates, x.shape, w, scale) if wants_dx else None
    return dx, *_weight_gradient(work, slopes, gates, x, w.shape, scale)


def _pixel_gradient(work, slopes, gates, shape, w, scale):
    """dx of conv2d for images of this shape."""
    (outs, channels), dx, size = w.shape[:2], empty_cpu(shape), math.prod(shape[1:])
    parts = threads.parts(w.size, work.flops)
    u, z, lists = packed_weight(w, True, _taps(work, parts)), aligned(parts, work.tile * (outs + LINE)), _lists(work, parts)

    def run(part):
        n, (first, stop, *images) = part.number, _spans(work, part)
        given = channels, *lists[n], slopes, *gates, u, scale, z[n], dx.reshape(-1), *(k * size for k in images)
        loops.backward(*given, first, stop)

    threads.share(run, flops=work.flops)
    return dx


def _slices(work, floats):
    """The number of slices of block rows whose sums of dw, of this many floats, are added up: it does not depend on the number
    of threads, so that results do not either.
    """
    most = min(SLICES, ROOM // floats, len(work.kept))
    return 1 << (max(most, 1).bit_length() - 1)


def _weight_gradient(work, slopes, gates, x, shape, scale):
    """(dw, db) of conv2d for a weight of this shape. Threads share the slices; if there are more threads, also their panels."""
    (outs, channels), panels, dw, db = shape[:2], -(-shape[0] // PANEL), empty_cpu(shape), empty_cpu(shape[0])
    slices, parts = _slices(work, panels * PANEL * work.depth), threads.parts(dw.size, work.flops)
    ways, wide = min(-(-parts // slices), panels), columns(work.width)
    v = aligned(parts, -(-work.width // wide) * (work.tile * wide + LINE))
    s, lists = aligned(parts, work.tile * -(-panels // ways) * PANEL), _lists(work, parts)
    terms, sums = aligned(slices, panels * PANEL * work.depth), empty_cpu((slices, outs), np.float64)

    def run(part):
        k, own = part.number, part.of(slices * ways)
        for unit in range(own.start, own.stop):
            n, rows, mine = unit // ways, Part(unit // ways, slices).of(len(work.kept)), Part(unit % ways, ways).of(panels)
            given = x.reshape(-1), channels, *lists[k], wide, slopes, *gates, v[k], s[k], terms[n], sums[n]
            loops.gradient(*given, rows.start, rows.stop, mine.start, mine.stop)

    threads.share(run, flops=work.flops)
    add_up(sums, db)
    rooms = _taps(work, parts)

    def end(part):
        own = part.of(panels)
        loops.finish(terms, work.taps, channels, scale, rooms[part.number], dw.reshape(outs, -1), own.start, own.stop)

    threads.share(end, dw.size)
    return dw, db
