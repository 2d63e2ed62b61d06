"""Reductions over chosen axes.

sum       y = the sum of x over some axes; None stands for all axes
max       y = the maximum of x over some axes; None stands for all axes; NaN if one of the values is NaN
squares   y = the sum of x * x over all axes
sum_rows  y[o] = scale * sum_n x[n, o]                     x (N, O) -> y (O,)
argmax    y[n] = the first c with x[n, c] = max_c x[n, c]  x (..., C) -> y (...) int32; NaN counts as the largest

On CUDA adjacent axes are merged, so that x is (outer, n, inner) and y is (outer, inner). In a block of threads, threadIdx.x
runs along the axis inner, where memory is contiguous, and threadIdx.y along n; a tree in shared memory adds up their sums.
If inner = 1, threadIdx.x is 0, and threads with adjacent threadIdx.y read adjacent elements. The order of additions depends
only on the shape, so results are bitwise reproducible.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32

from ..host import threads
from ..host.stack import least, stack_array
from ..runtime.declare import cuda, host_kernel, inlined, kernel, kernels
from ..runtime.expect import INT32, shapes
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, copy_cuda, empty_cpu, empty_cuda, flat, output
from .elementwise import affine_cuda

SUM, MAX, SQUARES = range(3)
# threads along inner and along n, for inner > 1, for inner = 1 and a small n, and for inner = 1 and a large n
BLOCKS = (32, 8), (1, 32), (1, 256)
LANES = 32  # number of threads that share a row of argmax
LOWEST = np.float32(-np.inf)


def _axes(op, device, x, axis):
    """Return the axes in `axis`, which is None, an int or a tuple, as sorted, non-negative numbers."""
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if any(not -x.ndim <= a < x.ndim for a in axes) or len({a % x.ndim for a in axes}) < len(axes):
        raise ValueError(f"{op} ({device}): axis {axis} does not fit x {x.shape}")
    axes = tuple(sorted(a % x.ndim for a in axes))
    if op == "max" and any(x.shape[a] == 0 for a in axes):
        raise ValueError(f"max ({device}): x {x.shape} is empty along axis {axis}")
    return axes


def _reduced_shape(x, axes, keepdims):
    return tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)


def _groups(shape, axes):
    """Yield (outer, n, inner) for each group of adjacent axes, the last one first; an array of this shape is summed over n."""
    shape, left = list(shape), list(axes)
    while left:
        stop = left.pop() + 1
        start = stop - 1
        while left and left[-1] == start - 1:
            start = left.pop()
        yield math.prod(shape[:start]), math.prod(shape[start:stop]), math.prod(shape[stop:])
        del shape[start:stop]


def _argmax_output(op, empty, x, out):
    if x.shape[-1:] in ((), (0,)):
        raise ValueError(f"{op}: x {x.shape} is empty along its last axis")
    return output(op, empty, out, x.shape[:-1], INT32, x=x)


# --- reference --------------------------------------------------------------------------------------------------------
def sum_reference(x, axis=None, keepdims=False):
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=np.float64)


def max_reference(x, axis=None, keepdims=False):
    return np.max(np.asarray(x, np.float64), axis=axis, keepdims=keepdims)


def squares_reference(x):
    return np.sum(np.square(x, dtype=np.float64))


def sum_rows_reference(x, scale=1.0):
    return scale * np.sum(x, axis=0, dtype=np.float64)


def argmax_reference(x):
    return np.argmax(x, axis=-1).astype(np.int32)


# --- CPU --------------------------------------------------------------------------------------------------------------
LINE, LINES, COLUMNS = 256, 32, 1024  # floats of a line of joined rows; lines summed in float32; columns summed at a time
LEAST_COLUMNS = 64  # smallest number of columns of a thread
PIECE = 1 << 14  # number of squares that are summed by one thread; so results do not depend on the number of threads


@host_kernel("void(f4[::1], i8, i8, f4, f4[:, ::1], i8, i8)")
def _sum_lines(x, size, wide, scale, y, start, stop):
    """y[o, c] = scale * sum_k x[o * size + c + k * inner], for y (O, inner). The `size` floats of o are read as lines of `wide`
    floats, a multiple of inner; only the columns start … stop - 1 of each line are used. A few lines at a time are summed in
    float32, and their sums in float64. Lines of more than COLUMNS floats are rows.
    """
    inner, whole = y.shape[1], size // wide
    few, sums = stack_array(1, COLUMNS, np.float32)[0], stack_array(1, COLUMNS, np.float64)[0]
    for o in range(y.shape[0]):
        for left in range(start, stop, COLUMNS):
            width = least(stop - left, COLUMNS)
            sums[:width] = 0
            for first in range(0, whole, LINES):
                few[:width] = 0
                last = least(first + LINES, whole)
                quads = first + (last - first) // 4 * 4
                for k in range(first, quads, 4):
                    at = o * size + k * wide + left
                    a, b, c, d = x[at:], x[at + wide :], x[at + 2 * wide :], x[at + 3 * wide :]
                    for i in range(width):
                        few[i] += (a[i] + b[i]) + (c[i] + d[i])
                for k in range(quads, last):
                    a = x[o * size + k * wide + left :]
                    for i in range(width):
                        few[i] += a[i]
                for i in range(width):
                    sums[i] += few[i]
            for i in range(left, least(left + width, size - whole * wide)):
                sums[i - left] += x[o * size + whole * wide + i]
            for c in range(least(width, inner)):
                for i in range(c + inner, width, inner):
                    sums[c] += sums[i]
                y[o, left + c] = scale * float32(sums[c])


@host_kernel("void(f4[:, ::1], f4[::1], i8, i8)")
def _sum_each(x, y, start, stop):
    """y[o] = sum_k x[o, k] for start <= o < stop. LINE numbers at a time are summed in float32, and their sums in float64."""
    for o in range(start, stop):
        row, total = x[o], np.float64(0)
        for first in range(0, row.size, LINE):
            few = float32(0)
            for value in row[first : first + LINE]:
                few += value
            total += few
        y[o] = total


@host_kernel("void(f4[:, ::1], i4[::1])")
def _argmax(x, y):
    """y[n] = the first index of the maximum of x[n]; NaN counts as the largest."""
    for n in range(x.shape[0]):
        index, top = 0, x[n, 0]
        for c in range(1, x.shape[1]):
            value = x[n, c]
            if value > top or (value != value and top == top):
                index, top = c, value
        y[n] = index


def _sum(x, outer, n, inner, scale, out):
    """out[o, i] = scale * the sum of x[o, :, i]"""
    y, x, wide = out.reshape(outer, inner), x.reshape(-1), max(min(LINE // inner, n), 1) * inner
    columns = wide if wide == inner and inner >= LEAST_COLUMNS * threads.count() else 0

    def work(part):
        span = part.of(columns) if columns else slice(0, wide)
        _sum_lines(x, n * inner, wide, scale, y, span.start, span.stop)

    if columns:
        threads.share(work, x.size)
    else:
        work(threads.WHOLE)


def sum_cpu(x, axis=None, keepdims=False, out=None):
    """y = the sum of x over the axes `axis`; None stands for all axes"""
    axes = _axes("sum", "cpu", x, axis)
    out = output("sum (cpu)", empty_cpu, out, _reduced_shape(x, axes, keepdims), x=x)
    if not x.size or not axes:
        return np.add.reduce(x, axis=axes, keepdims=keepdims, out=out)
    groups = list(_groups(x.shape, axes))
    for number, (outer, n, inner) in enumerate(groups, 1):
        y = out if number == len(groups) else empty_cpu(outer * inner)
        if inner == 1 < outer:  # one sum, such as that of the losses, needs no other loop than sums of rows
            _sum_each(x.reshape(outer, n), y.reshape(outer), 0, outer)
        else:
            _sum(x, outer, n, inner, 1.0, y)
        x = y
    return out


def max_cpu(x, axis=None, keepdims=False, out=None):
    """y = the maximum of x over the axes `axis`; None stands for all axes"""
    axes = _axes("max", "cpu", x, axis)
    out = output("max (cpu)", empty_cpu, out, _reduced_shape(x, axes, keepdims), x=x)
    return np.maximum.reduce(x, axis=axes, keepdims=keepdims, out=out)


@host_kernel("void(f4[::1], f8[::1], i8, i8)")
def _squares(x, sums, first, stop):
    """sums[i] = the sum of the squares of piece i of x, for first <= i < stop"""
    for i in range(first, stop):
        piece, sums[i] = x[i * PIECE : (i + 1) * PIECE], 0
        for start in range(0, piece.size, LINE):
            few = float32(0)
            for value in piece[start : start + LINE]:
                few += value * value
            sums[i] += few


@host_kernel("void(f8[::1], f4[::1])")
def add_up(x, y):
    """y[0] = the sum of x"""
    total = np.float64(0)
    for value in x:
        total += value
    y[0] = total


def squares_cpu(x, out=None):
    """y = the sum of x * x over all axes.   -> ()"""
    out = output("squares (cpu)", empty_cpu, out, (), x=x)
    sums, values = empty_cpu(ceil_div(x.size, PIECE), np.float64), x.reshape(-1)

    def work(part):
        pieces = part.of(sums.size)
        _squares(values, sums, pieces.start, pieces.stop)

    threads.share(work, x.size)
    add_up(sums, out.reshape(1))
    return out


_CHECK_ROWS = shapes("sum_rows (cpu)", x="NO", out="O")


def sum_rows_cpu(x, scale=1.0, out=None):
    """y[o] = scale * sum_n x[n, o]"""
    n, width = _CHECK_ROWS(x, out)
    out = empty_cpu((width,)) if out is None else out
    if x.size:
        _sum(x, 1, n, width, scale, out)
    else:
        out.fill(0)
    return out


def argmax_cpu(x, out=None):
    """y[n] = the first c with x[n, c] = max_c x[n, c]"""
    out = _argmax_output("argmax (cpu)", empty_cpu, x, out)
    _argmax(x.reshape(out.size, x.shape[-1]), out.reshape(out.size))
    return out


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("reduce")
def _reduce_kernels():
    """Return the kernels: one for each shape in BLOCKS for SUM, then the same for MAX, and last one for SQUARES. The n elements
    to reduce are cut into `parts` parts of `chunk` elements. Each block of threads reduces one part; a second pass reduces the
    results of the parts.
    """

    def declared(formula, block):
        across, down = block

        @inlined
        def reduced(total, v):
            return total + v if formula == SUM else total + v * v if formula == SQUARES else v if v > total or v != v else total

        @kernel("void(f4[::1], f4[::1], i4, i4, i4, i4)")
        def reduce(x, y, n, inner, chunk, parts):
            shared = cuda.shared.array(THREADS, float32)
            tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
            tiles = (inner + across - 1) // across
            part = cuda.blockIdx.x // tiles
            i = (cuda.blockIdx.x % tiles) * across + tx
            start = (part // parts) * n
            first = (part % parts) * chunk
            total = LOWEST if formula == MAX else float32(0)
            if i < inner:
                for k in range(first + ty, min(n, first + chunk), down):
                    total = reduced(total, x[(start + k) * inner + i])
            slot = ty * across + tx
            shared[slot] = total
            cuda.syncthreads()
            half = down // 2
            while half > 0:  # a sum over the y threads of the block, by a tree
                if ty < half:
                    other = shared[slot + half * across]
                    total = total + other if formula == SQUARES else reduced(total, other)
                    shared[slot] = total
                cuda.syncthreads()
                half //= 2
            if i < inner and ty == 0:
                y[part * inner + i] = total

        return reduce

    return *(declared(formula, block) for formula in (SUM, MAX) for block in BLOCKS), declared(SQUARES, BLOCKS[-1])


@kernels("reduce")
def _argmax_kernel():
    @kernel("void(f4[:, ::1], i4[::1])")
    def argmax(x, y):
        values = cuda.shared.array(LANES, float32)
        indices = cuda.shared.array(LANES, int32)
        lane = cuda.threadIdx.x
        row = cuda.blockIdx.x
        width = x.shape[1]
        value = x[row, lane] if lane < width else LOWEST
        index = lane
        for c in range(lane + LANES, width, LANES):
            v = x[row, c]
            if v > value or (v != v and value == value):
                value = v
                index = int32(c)
        values[lane] = value
        indices[lane] = index
        cuda.syncthreads()
        half = LANES // 2
        while half > 0:  # a maximum over the lanes of the row, by a tree; of equal values the first index wins
            if lane < half:
                v = values[lane + half]
                p = indices[lane + half]
                equal = v == value or (v != v and value != value)
                if v > value or (v != v and value == value) or (equal and p < index):
                    value = v
                    index = p
                    values[lane] = value
                    indices[lane] = index
            cuda.syncthreads()
            half //= 2
        if lane == 0:
            y[row] = index

    return argmax


def _reduce(formula, x, outer, n, inner, out):
    """out[o, i] = the reduction of x[o, :, i]. If n is large, it takes two or more passes, so all multiprocessors work."""
    chunk = 4096 if inner == 1 else 1024
    parts = max(1, ceil_div(n, chunk))
    y = flat(out) if parts == 1 else empty_cuda(outer * parts * inner)
    shape = 0 if inner > 1 else 1 if n <= 1024 and formula != SQUARES else 2
    grid = outer * parts * ceil_div(inner, BLOCKS[shape][0])
    which = min(len(BLOCKS) * formula + shape, len(BLOCKS) * SQUARES)
    launch(_reduce_kernels()[which], grid, BLOCKS[shape], flat(x), y, n, inner, chunk, parts)
    if parts > 1:
        _reduce(SUM if formula == SQUARES else formula, y, outer, parts, inner, out)


def _reduce_axes(op, formula, x, axis, keepdims, out):
    """Reduce over the axes `axis`, in one pass for each group of adjacent axes, the last group first."""
    axes = _axes(op, "cuda", x, axis)
    out = output(f"{op} (cuda)", empty_cuda, out, _reduced_shape(x, axes, keepdims), x=x)
    if not axes or out.size == 0:
        return copy_cuda(x, out) if out.size else out
    groups = list(_groups(x.shape, axes))
    for number, (outer, n, inner) in enumerate(groups, 1):
        y = out if number == len(groups) else empty_cuda(outer * inner)
        _reduce(formula, x, outer, n, inner, y)
        x = y
    return out


def sum_cuda(x, axis=None, keepdims=False, out=None):
    return _reduce_axes("sum", SUM, x, axis, keepdims, out)


def max_cuda(x, axis=None, keepdims=False, out=None):
    return _reduce_axes("max", MAX, x, axis, keepdims, out)


def squares_cuda(x, out=None):
    out = output("squares (cuda)", empty_cuda, out, (), x=x)
    _reduce(SQUARES, x, 1, x.size, 1, out)
    return out


def sum_rows_cuda(x, scale=1.0, out=None):
    out = output("sum_rows (cuda)", empty_cuda, out, ("O",), x=(x, ("N", "O")))
    _reduce(SUM, x, 1, x.shape[0], x.shape[1], out)
    return out if scale == 1.0 else affine_cuda(out, mul=scale, out=out)


def argmax_cuda(x, out=None):
    out = _argmax_output("argmax (cuda)", empty_cuda, x, out)
    launch(_argmax_kernel(), out.size, LANES, x.reshape(out.size, x.shape[x.ndim - 1]), flat(out))
    return out


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        **{f"{op}, all": lambda op=op: getattr(dev, op)(a(N, O)) for op in ("sum", "max")},
        **{f"{op}, rows": lambda op=op: getattr(dev, op)(a(N, O), axis=1) for op in ("sum", "max")},
        **{f"{op}, columns": lambda op=op: getattr(dev, op)(a(N, 2 * O), axis=0) for op in ("sum", "max")},
        **{f"{op}, few": lambda op=op: getattr(dev, op)(a(9, 2 * O), axis=0) for op in ("sum", "max")},
        **{f"squares, {n}": lambda n=n: dev.squares(a(n)) for n in (70, 9000)},
        "sum_rows": lambda: dev.sum_rows(a(N, O), 0.5),
        "argmax": lambda: dev.argmax(a(N, O)),
    }
