"""Convolution of images with channels last, x (N, H, W, C), by a weight w (O, C / groups, KH, KW):

    conv2d        y[r, o] = act(scale sum_k A[r, k] w[o, k] + bias[o])
    conv2d_grad   dz[r, o] = dy[r, o], given `where` 0 unless where[r, o] > 0;   dA = scale dz w,   dw = scale dz.T A,
                  db[o] = sum_r dz[r, o];   dx[pixel] = the sum of dA[r, k] over all A[r, k] that are that pixel

The input matrix A has a row for each output position, r = (n, oh, ow), and a column k = (kh, kw, c) for each tap and channel
of the group: A[r, k] = x[n, oh stride - padding + kh dilation, ow stride - padding + kw dilation, c], 0 outside the image.
im2col would build it, KH KW times as large as x; here tiles of it are gathered and used at once, on the CPU of 4 MB a thread
at most (32 rows are the fewest), on CUDA in shared memory. Where there are two vectors of images or more, 32 positions or more,
no groups and no blocks, and a tile of as many images as a vector has lanes fits into 10 MB, the CPU gathers nothing: patches
are multiplied where they lie, each image in a lane of its own (`host.abreast`). Two things thin A out:

    rows     increasing int32 list: only these rows of A are computed, the others of y are 0, bias included; on the CPU sooner
             where the images of a tile have the same ones
    blocks   `Blocks`: of each block row of A only some block columns, the same number in all
"""
from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ..blocks.im2col import launch_im2col, turn_gradient, turn_weight
from ..blocks.implicit import launch_dw, launch_dx, launch_forward
from ..host import blas, patches, threads, tiled_images
from ..host.threads import Part
from ..host.transposition import NOTHING
from ..layouts.windows import Blocks, Window
from ..runtime.expect import INT32, expect
from ..runtime.memory import empty_cpu
from .gemm import gemm_cuda

TILE_FLOATS = 1 << 20  # of a thread's tile of A: with its part of y, 4 MB and a little
TILE_ROWS = 1024       # at most
SHORT = 32             # floats of a row of y, and of a line of a patch, up to which neighbouring positions are joined
NO_ROWS, NO_BLOCKS, NO_MATRIX = np.zeros(0, np.int32), np.zeros((0, 1), np.int32), np.zeros((1, 1), np.float32)


# --- reference --------------------------------------------------------------------------------------------------------
def kept_reference(positions, depth, rows=None, blocks=None):
    """(positions, depth) of 0 and 1: what is computed of A"""
    kept = np.ones((positions, depth))
    if rows is not None:
        kept[np.setdiff1d(np.arange(positions), rows)] = 0
    if blocks is not None:
        kept[:] = 0
        for b, columns in enumerate(np.asarray(blocks.kept)):
            for column in columns:
                kept[b * blocks.height:(b + 1) * blocks.height, column * blocks.width:(column + 1) * blocks.width] = 1
    return kept


def im2col_reference(x, window, groups=1):
    """A (groups, N P, KH KW C / groups) in float64"""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    n, h, w, c = x.shape
    oh, ow = window.positions(h, w)
    padded = np.pad(np.float64(x), ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    taps = [padded[:, i * dh:i * dh + (oh - 1) * sh + 1:sh, j * dw:j * dw + (ow - 1) * sw + 1:sw]
            for i in range(kh) for j in range(kw)]
    found = np.stack(taps, 3).reshape(n * oh * ow, kh * kw, groups, c // groups)
    return found.transpose(2, 0, 1, 3).reshape(groups, n * oh * ow, kh * kw * (c // groups))


def _matrix(w, groups):
    """w as (groups, O / groups, KH KW C / groups), float64"""
    outs, channels, kh, kw = w.shape
    return np.float64(w).transpose(0, 2, 3, 1).reshape(groups, outs // groups, kh * kw * channels)


def conv2d_reference(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    """y (N, OH, OW, O) in float64"""
    a, matrix = im2col_reference(x, window, groups), _matrix(w, groups)
    y = scale * np.concatenate([(part * kept_reference(*part.shape, None, blocks)) @ own.T for part, own in zip(a, matrix)], 1)
    y = y if bias is None else y + bias
    y = (np.maximum(y, 0) if relu else y) * kept_reference(len(y), 1, rows)
    return y.reshape(x.shape[0], *window.positions(*x.shape[1:3]), w.shape[0])


def conv2d_grad_reference(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    """(dx, dw, db) in float64"""
    dz = np.float64(dy if where is None else dy * (where > 0)).reshape(math.prod(dy.shape[:3]), w.shape[0])
    dz = dz * kept_reference(len(dz), 1, rows)
    a, outs = im2col_reference(x, window, groups), w.shape[0] // groups
    kept = kept_reference(*a.shape[1:], None, blocks)
    parts = [scale * dz[:, g * outs:(g + 1) * outs] for g in range(groups)]
    dw = np.concatenate([part.T @ (own * kept) for part, own in zip(parts, a)])
    dw = dw.reshape(w.shape[0], *window.kernel, w.shape[1]).transpose(0, 3, 1, 2)
    numbers = im2col_reference(np.arange(x.size).reshape(x.shape) + 1, window, groups).astype(int)
    da = np.stack([part @ own for part, own in zip(parts, _matrix(w, groups))]) * kept
    dx = np.bincount(numbers.ravel(), da.ravel(), x.size + 1)[1:].reshape(x.shape)
    return dx if wants_dx else None, dw, dz.sum(0)


# --- what both need ---------------------------------------------------------------------------------------------------
def check(op, x, w, window, groups, bias=None, dy=None, where=None, rows=None, blocks=None):
    """(positions along the height, along the width) of images x; an error where something does not fit."""
    if not isinstance(window, Window) or not (blocks is None or isinstance(blocks, Blocks)):
        raise TypeError(f"{op}: it takes a Window and Blocks, not {window!r} and {type(blocks).__name__}")
    found = expect(op, x=(x, ("N", "H", "W", "C")), w=(w, ("O", "D", "KH", "KW")), bias=(bias, ("O",)),
                   rows=(rows, ("R",), INT32), kept=(None if blocks is None else blocks.kept, ("B", "Q"), INT32))
    outs, channels, kernel = found["O"], found["D"], (found["KH"], found["KW"])
    if groups < 1 or channels * groups != found["C"] or outs % groups or kernel != tuple(window.kernel):
        raise ValueError(f"{op}: x {x.shape} does not match w {w.shape} with {groups} groups and {window}")
    if min(*window.kernel, *window.stride, *window.dilation) < 1 or min(window.padding) < 0:
        raise ValueError(f"{op}: {window} must have sizes from 1 and paddings from 0 on")
    positions = window.positions(*x.shape[1:3])
    if not min(positions):
        raise ValueError(f"{op}: the window {window} is larger than the images {x.shape[1:3]}")
    shape, depth = (found["N"], *positions, outs), channels * math.prod(kernel)
    expect(op, dy=(dy, shape), where=(where, shape))
    total = math.prod(shape[:3])
    if rows is not None and (blocks is not None or found["R"] > total):
        raise ValueError(f"{op}: {found['R']} rows are listed of {total}{' and blocks as well' if blocks is not None else ''}")
    if blocks is not None and (groups > 1 or min(blocks[1:]) < 1 or found["B"] != -(-total // blocks.height)
                               or found["Q"] > -(-depth // blocks.width)):
        raise ValueError(f"{op}: blocks {blocks.kept.shape} of {blocks[1:]} do not divide a matrix {total, depth}"
                         f"{' of several groups' if groups > 1 else ''}")
    return positions


# --- CPU --------------------------------------------------------------------------------------------------------------
def _increasing(op, lists, below):
    """ValueError unless the numbers of each row increase and are in 0 … below - 1."""
    if lists.size and (lists[..., :1].min() < 0 or lists[..., -1:].max() >= below or
                       (lists.shape[-1] > 1 and (lists[..., 1:] <= lists[..., :-1]).any())):
        raise ValueError(f"{op}: what is kept must be increasing numbers from 0 to {below - 1}")


_segments = functools.lru_cache(maxsize=256)(patches.segments)


class _Job(NamedTuple):
    """A thread's part of a convolution, and its room."""

    images: list[int]   # the first, and the one after the last
    rows: list[int]     # of A likewise, or of the list
    cols: Any           # a tile of A
    part: Any           # a tile of y
    own: Any            # the weight that a block row meets
    own_dw: Any         # its gradient


def padded(x, window):
    """Images of few channels with their padding, and a window without: rows of A are so short that to look for edges would
    take longer than to copy them."""
    (n, height, width, channels), (down, across) = x.shape, window.padding
    if channels >= patches.VECTOR or not max(down, across):
        return x, window
    found = empty_cpu((n, height + 2 * down, width + 2 * across, channels))
    found[...] = 0
    found[:, down:down + height, across:across + width] = x
    return found, window._replace(padding=(0, 0))


def _joined(window, outs, channels, across, blocks):
    """How many of `across` neighbouring positions become one: where rows of A and of y are short. Their patch is at most
    twice as wide."""
    line, (_, step) = window.kernel[1] * channels, window.stride
    if not 0 < line <= SHORT or window.dilation[1] > 1 or (blocks is not None and blocks.width % line):
        return 1
    most = max(min(SHORT // max(outs, 1), window.kernel[1] // step + 1), 1)
    return max(n for n in range(1, most + 1) if across % n == 0 and (blocks is None or blocks.height % n == 0))


class _Work:
    """A convolution as the loops of `patches` take it: lists, sizes, and each thread's images.

    Neighbouring positions see nearly the same pixels. `joined` of them can be computed as one, by a wider window whose weight
    has outputs for each of them, 0 where one does not see: fewer rows are gathered, and SGEMM gets wider matrices. In memory
    their rows of y are one.
    """

    def __init__(self, op, x, w, window, groups, positions, rows, blocks):
        self.rows, self.listed = NO_ROWS if rows is None else rows, rows is not None
        _increasing(op, self.rows, x.shape[0] * math.prod(positions))
        self.images, self.groups, self.kernel, self.step = x.shape[0], groups, window.kernel, window.stride[1]
        self.joined = 1 if self.listed or groups > 1 else _joined(window, *w.shape[:2], positions[1], blocks)
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
        _increasing(op, self.kept, -(-self.depth // self.width))
        self.inner = min(columns, self.depth)
        self.tile = max(min(TILE_FLOATS // max(self.inner, 1), TILE_ROWS), 32) if blocks is None else blocks.height
        self.unit = 1 if blocks is None else math.lcm(blocks.height, self.places) // self.places  # images that go together
        self.geometry = patches.geometry(window, self.x.shape, positions)
        self.table, self.starts = _segments(window, x.shape[3], w.shape[1], None if blocks is None else blocks.width)
        count = len(self.rows) if self.listed else self.images * self.places
        self.flops = 2 * count * self.inner * self.outs // groups

    def turned(self, w):
        """The weight, (groups K, O / groups)."""
        if self.joined > 1:
            wide = np.zeros(self._wide(w.shape), np.float32)
            for own in self._each(wide):
                own[...] = w.transpose(2, 3, 1, 0)
            return wide.reshape(self.depth, self.outs)
        return patches.turned(w, self.groups)

    def turned_back(self, terms, shape):
        """The gradient of a weight of this shape, from terms (T, groups K, O / groups) that are to be added."""
        if self.joined > 1:
            wide = terms.sum(0).reshape(self._wide(shape))
            return np.ascontiguousarray(sum(self._each(wide)).transpose(3, 2, 0, 1))
        return patches.turned_back(terms, shape, self.groups)

    def _wide(self, shape):
        """That of the weight of joined positions, turned, by axes."""
        outs, channels, height, width = shape
        return height, width + (self.joined - 1) * self.step, channels, self.joined, outs

    def _each(self, wide):
        """What each of the joined positions sees, (KH, KW, C, O)."""
        return (wide[:, i * self.step:i * self.step + self.kernel[1], :, i] for i in range(self.joined))

    def jobs(self, flops):
        """What each thread works on and in, found before they start: in Python they would wait for each other."""
        parts = threads.parts(flops=flops)
        return [self._job(Part(number, parts)) for number in range(parts)]

    def _job(self, part):
        units = part.of(-(-self.images // self.unit))  # no two threads meet in a block row
        images = [min(end * self.unit, self.images) for end in (units.start, units.stop)]
        rows = [end * self.places for end in images]
        rows = np.searchsorted(self.rows, np.array(rows, np.int32)).tolist() if self.listed else rows  # of one type: no copy
        own = (self.inner, self.outs)
        return _Job(images, rows, empty_cpu((self.tile * self.inner + patches.VECTOR,)), empty_cpu((self.tile, self.outs)),
                    *(empty_cpu(own) if len(self.kept) else NO_MATRIX for _ in range(2)))

    @property
    def lists(self):
        return self.geometry, self.groups, self.table, self.starts, self.rows, self.listed, self.kept, self.width, self.tile


def _suits(op, x, w, window, groups, positions, rows, blocks):
    """Whether images may be convolved abreast (`tiled_images`); ValueError where rows do not increase."""
    if groups > 1 or blocks is not None or not tiled_images.suits(window, x.shape, len(w)):
        return False
    _increasing(op, NO_ROWS if rows is None else rows, x.shape[0] * math.prod(positions))
    return True


def conv2d_cpu(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    """y[r, o] = act(scale sum_k A[r, k] w[o, k] + bias[o])"""
    positions = check("conv2d (cpu)", x, w, window, groups, bias, rows=rows, blocks=blocks)
    if _suits("conv2d (cpu)", x, w, window, groups, positions, rows, blocks):
        with threads.session():
            y = tiled_images.convolved(x, w, window, bias, relu, scale, rows)
        if y is not None:
            return y
    work = _Work("conv2d (cpu)", x, w, window, groups, positions, rows, blocks)
    y = empty_cpu((x.shape[0], *positions, w.shape[0]))
    if not work.flops or not y.size:
        y[...] = 0
        if bias is not None and y.size:
            y.reshape(-1, w.shape[0])[work.rows if work.listed else slice(None)] = np.maximum(bias, 0) if relu else bias
        return y
    out, entry, pixels = y.reshape(-1, work.outs), blas.entry(), work.x.reshape(-1)
    added = np.zeros(work.outs, np.float32) if bias is None else np.tile(bias, work.joined)
    with threads.session():
        wt, jobs = work.turned(w), work.jobs(work.flops)

        def run(part):
            job = jobs[part.number]
            patches.forward(entry, pixels, x.shape[3], wt, added, relu, scale, *work.lists, job.cols, job.part,
                            job.own, out, *job.rows)

        threads.share(run, flops=work.flops)
    return y


def conv2d_grad_cpu(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    """(dx or None, dw, db) of conv2d"""
    positions = check("conv2d_grad (cpu)", x, w, window, groups, None, dy, where, rows, blocks)
    given = None
    if _suits("conv2d_grad (cpu)", x, w, window, groups, positions, rows, blocks):
        with threads.session():
            given, others = tiled_images.gradients(dy, where, x, w, window, scale, rows, wants_dx)
        if others is not None:
            return given, *others
    wants_dx = wants_dx and given is None
    work = _Work("conv2d_grad (cpu)", x, w, window, groups, positions, rows, blocks)
    entry, slopes, pixels = blas.entry(), dy.reshape(work.images * work.places, work.outs), work.x.reshape(-1)
    gate = slopes if where is None else where.reshape(slopes.shape)
    dx, size = empty_cpu(work.x.shape) if wants_dx else None, math.prod(work.x.shape[1:])
    changes = NOTHING if dx is None else dx.reshape(-1)
    with threads.session():
        wt, jobs = work.turned(w), work.jobs(2 * work.flops)
        terms, sums = empty_cpu((len(jobs), *wt.shape)), np.zeros((len(jobs), work.outs))

        def run(part):
            job = jobs[part.number]
            patches.backward(entry, slopes, gate, where is not None, pixels, x.shape[3], wt, scale, *work.lists,
                             job.cols, job.part, job.own, job.own_dw, changes, *(end * size for end in job.images), wants_dx,
                             terms[part.number], sums[part.number], *job.rows)

        threads.share(run, flops=2 * work.flops)
        dw = work.turned_back(terms, w.shape)
    if wants_dx and work.x is not x:
        (_, height, width, _), (down, across) = x.shape, window.padding
        dx = np.ascontiguousarray(dx[:, down:down + height, across:across + width])
    return dx if given is None else given, dw, sums.reshape(len(sums) * work.joined, w.shape[0]).sum(0).astype(np.float32)


# --- CUDA -------------------------------------------------------------------------------------------------------------
def conv2d_cuda(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    positions = check("conv2d (cuda)", x, w, window, groups, bias, rows=rows, blocks=blocks)
    y = launch_forward(x, turn_weight(w), window, bias, relu, scale, rows, blocks)
    return y.reshape((x.shape[0], *positions, w.shape[0]))


def conv2d_grad_cuda(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    check("conv2d_grad (cuda)", x, w, window, groups, None, dy, where, rows, blocks)
    slopes, gate = (None if array is None else array.reshape((math.prod(dy.shape[:3]), w.shape[0])) for array in (dy, where))
    dx = launch_dx(slopes, turn_weight(w), gate, x.shape, window, scale, rows, blocks) if wants_dx else None
    dwt, db = launch_dw(x, slopes, gate, window, groups, scale, rows, blocks)
    return dx, turn_gradient(dwt, w.shape), db


def conv2d_materialised(x, w, window, bias=None):
    """Teaching step, for one group: im2col writes the input matrix, KH KW times as large as x, and a product reads it again."""
    positions = check("conv2d (cuda)", x, w, window, 1, bias)
    return gemm_cuda(launch_im2col(x, window)[0], turn_weight(w), bias=bias).reshape((x.shape[0], *positions, w.shape[0]))


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    """Images of 7 x 10 pixels: some blocks of each kernel."""
    window = Window((3, 3), (1, 1), (1, 1))
    images, channels, outs = max(N // 16, 1), max(I // 16, 1), max(O // 4, 1)
    shape, total, depth = (images, 7, 10, channels), images * 70, 9 * channels
    rows = np.arange(0, total, 3, dtype=np.int32)
    blocks = Blocks(np.tile(np.arange(0, -(-depth // 8), 2, dtype=np.int32), (-(-total // 4), 1)), 4, 8)
    found = {}
    for name, plan in (("", {}), (", rows", {"rows": rows}), (", blocks", {"blocks": blocks})):
        found[f"conv2d{name}"] = functools.partial(
            lambda plan: dev.conv2d(a(*shape), a(outs, channels, 3, 3), window, bias=a(outs), relu=True, **plan), plan)
        found[f"conv2d_grad{name}"] = functools.partial(
            lambda plan: dev.conv2d_grad(a(images, 7, 10, outs), a(*shape), a(outs, channels, 3, 3), window,
                                         where=a(images, 7, 10, outs), **plan), plan)
    return found
