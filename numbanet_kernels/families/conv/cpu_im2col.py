"""Convolutions on the CPU from gathered patches: this module makes the lists and buffers for `cpu_im2col_loops`, and divides
the work among threads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...host import blas, threads
from ...host.simd import VECTOR
from ...host.threads import Part
from ...host.transpose import EMPTY, NO_INDICES
from ...layouts.windows import Blocks
from ...runtime.memory import assign, empty_cpu, full_cpu
from . import cpu_im2col_loops as loops
from .cpu_weight import add_joined, transposed, transposed_back

TILE_FLOATS = 1 << 20  # of a thread's tile of A: with its part of y a little over 4 MB
TILE_ROWS = 1024  # at most
SHORT = 32  # largest row of y, and largest line of a patch, in floats, for which adjacent positions are joined
NO_BLOCKS, NO_MATRIX = np.zeros((0, 1), np.int32), np.zeros((1, 1), np.float32)


class _Job(NamedTuple):
    """The part of a convolution that a thread computes, and the buffers of the thread."""

    images: list[int]  # (first, end)
    rows: list[int]  # of A likewise
    cols: Any  # a tile of A
    part: Any  # a tile of y
    own: Any  # the rows of the weight for a block row
    own_dw: Any  # its gradient


def padded(x, window):
    """If images have few channels, return a copy of the images with explicit padding, and the window without padding; else
    return both unchanged. With few channels, tests for the edges of the image take longer than this copy.
    """
    (n, height, width, channels), (down, across) = x.shape, window.padding
    if channels >= VECTOR or not max(down, across):
        return x, window
    found = full_cpu((n, height + 2 * down, width + 2 * across, channels), 0.0)
    assign(x, found[:, down : down + height, across : across + width])
    return found, window._replace(padding=(0, 0))


def _joined(window, outs, channels, across, blocks):
    """Return the number of adjacent positions, at most `across`, that are joined into one if rows of A and of y are short. The
    joined patch is at most twice as wide as a single one.
    """
    line, (_, step) = window.kernel[1] * channels, window.stride
    if not 0 < line <= SHORT or window.dilation[1] > 1 or (blocks is not None and blocks.width % line):
        return 1
    most = max(min(SHORT // max(outs, 1), window.kernel[1] // step + 1), 1)
    return max(n for n in range(1, most + 1) if across % n == 0 and (blocks is None or blocks.height % n == 0))


class Work:
    """The arguments of the loops for one convolution: lists, sizes, and the images of each thread.

    Adjacent positions read nearly the same pixels. So `joined` positions can be computed as one, by a wider window: its weight
    has the outputs of each position, and is 0 for pixels that this position does not read. Fewer rows are gathered, and SGEMM
    gets wider matrices. The outputs of joined positions are adjacent in y. Nothing is
    joined unless `joins`.
    """

    def __init__(self, x, w, window, plan, positions, joins=True):
        groups, rows, blocks = plan.groups, plan.rows, plan.blocks
        self.rows, self.listed = NO_INDICES if rows is None else rows, rows is not None
        self.images, self.groups, self.kernel, self.step = x.shape[0], groups, window.kernel, window.stride[1]
        self.taps = math.prod(window.kernel)
        self.joined = 1 if self.listed or groups > 1 or not joins else _joined(window, *w.shape[:2], positions[1], blocks)
        if self.joined > 1:
            across = window.kernel[1] + (self.joined - 1) * self.step
            if blocks is not None:
                blocks = Blocks(blocks.kept, blocks.height // self.joined, blocks.width // window.kernel[1] * across)
            window = window._replace(kernel=(window.kernel[0], across), stride=(window.stride[0], self.joined * self.step))
            positions = positions[0], positions[1] // self.joined
        self.x, window = padded(x, window)
        self.places, self.outs = math.prod(positions), self.joined * w.shape[0]
        self.depth = w.shape[1] * math.prod(window.kernel)
        self.kept = NO_BLOCKS if blocks is None else blocks.kept
        self.width, columns = (1, self.depth) if blocks is None else (blocks.width, blocks.width * self.kept.shape[1])
        self.inner = min(columns, self.depth)
        self.tile = max(min(TILE_FLOATS // max(self.inner, 1), TILE_ROWS), 32) if blocks is None else blocks.height
        # images whose block rows must stay together
        self.unit = 1 if blocks is None else math.lcm(blocks.height, self.places) // self.places
        self.geometry = loops.geometry(window, self.x.shape, positions)
        self.table, self.starts = loops.segments(window, x.shape[3], w.shape[1], None if blocks is None else blocks.width)
        self.flops = 2 * self.images * self.places * self.depth * self.outs // groups  # an upper bound for replays

    def transposed(self, w):
        """Return the transposed weight (groups K, O / groups), for joined positions."""
        if self.joined > 1:
            wide = full_cpu(self._wide(w.shape), 0.0)
            for i in range(self.joined):
                start = i * self.step
                assign(w.transpose(2, 3, 1, 0), wide[:, start : start + self.kernel[1], :, i])
            return wide.reshape(self.depth, self.outs)
        return transposed(w, self.groups)

    def transposed_back(self, terms, shape):
        """Return the gradient of a weight of shape `shape`: the sum of `terms` (T, groups K, O / groups) over the threads T,
        transposed back.
        """
        if self.joined > 1:
            dw = empty_cpu(shape)
            add_joined(terms.reshape(len(terms), *self._wide(shape)), self.step, dw)
            return dw
        return transposed_back(terms, shape, self.groups)

    def _wide(self, shape):
        """Return the shape of the transposed weight of joined positions, with separate axes."""
        outs, channels, height, width = shape
        return height, width + (self.joined - 1) * self.step, channels, self.joined, outs

    def jobs(self, flops):
        """The `_Job` of each thread. Buffers are allocated before the threads start, so that threads do not contend for the
        GIL.
        """
        parts = threads.parts(flops=flops)
        return [self._job(Part(number, parts)) for number in range(parts)]

    def _job(self, part):
        units = part.of(-(-self.images // self.unit))  # no two threads share a block row
        images = [min(end * self.unit, self.images) for end in (units.start, units.stop)]
        own = (self.inner, self.outs)
        return _Job(
            images,
            [end * self.places for end in images],
            empty_cpu((self.tile * self.inner + VECTOR,)),
            empty_cpu((self.tile, self.outs)),
            *(empty_cpu(own) if len(self.kept) else NO_MATRIX for _ in range(2)),
        )

    @property
    def lists(self):
        return self.geometry, self.groups, self.table, self.starts, self.rows, self.listed, self.kept, self.width, self.tile


def convolved(x, w, window, plan, positions, bias, relu, scale):
    """Return y of conv2d."""
    work = Work(x, w, window, plan, positions)
    y = empty_cpu((x.shape[0], *positions, w.shape[0]))
    if not y.size:
        return y
    out, entry, pixels = y.reshape(-1, work.outs), blas.entry(), work.x.reshape(-1)
    added = full_cpu(work.outs, 0.0) if bias is None else _repeated(bias, work.joined)
    wt, jobs = work.transposed(w), work.jobs(work.flops)

    def run(part):
        job = jobs[part.number]
        loops.forward(
            entry, pixels, x.shape[3], wt, added, relu, scale, *work.lists, job.cols, job.part, job.own, out, *job.rows
        )

    threads.share(run, flops=work.flops)
    return y


def _repeated(bias, times):
    """Return the bias, repeated for `times` joined positions."""
    shape = times, len(bias)
    return bias if times == 1 else assign(np.broadcast_to(bias, shape), empty_cpu(shape)).reshape(-1)


def gradients(dy, where, x, w, window, plan, positions, scale, wants_dx):
    """Return (dx or None, dw, db) of conv2d_grad (`family`, which defines `where`); dx is None unless `wants_dx`."""
    work = Work(x, w, window, plan, positions)
    entry, slopes, pixels = blas.entry(), dy.reshape(work.images * work.places, work.outs), work.x.reshape(-1)
    gate = slopes if where is None else where.reshape(slopes.shape)
    dx, size = empty_cpu(work.x.shape) if wants_dx else None, math.prod(work.x.shape[1:])
    changes = EMPTY if dx is None else dx.reshape(-1)
    wt, jobs = work.transposed(w), work.jobs(2 * work.flops)
    terms, sums = empty_cpu((len(jobs), *wt.shape)), empty_cpu((len(jobs), work.outs), np.float64)

    def run(part):
        job = jobs[part.number]
        loops.backward(
            entry,
            slopes,
            gate,
            where is not None,
            pixels,
            x.shape[3],
            wt,
            scale,
            *work.lists,
            job.cols,
            job.part,
            job.own,
            job.own_dw,
            changes,
            *(end * size for end in job.images),
            wants_dx,
            terms[part.number],
            sums[part.number],
            *job.rows,
        )

    threads.share(run, flops=2 * work.flops)
    dw, db = work.transposed_back(terms, w.shape), empty_cpu(w.shape[0])
    loops.add_up(sums.reshape(len(sums) * work.joined, w.shape[0]), db)
    if wants_dx and work.x is not x:
        (_, height, width, _), (down, across) = x.shape, window.padding
        dx = assign(dx[:, down : down + height, across : across + width], empty_cpu(x.shape))
    return dx, dw, db
