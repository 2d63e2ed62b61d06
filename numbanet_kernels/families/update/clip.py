"""Clipping of gradients: if the norm of all gradients as one vector is above a limit, they are scaled down to it (Pascanu,
Mikolov & Bengio 2013, algorithm 1). A gradient is dense or packed (`packed`).

    packed_squares    the sum of g[row_pos[r], k]^2 over all r and k with row_pos[r] >= 0 and cols[row_class[r], k] >= 0;
                      the padding of g is uninitialised and is not summed
    clip_norm         x *= limit / norm for each array x, in place, if norm > limit, where norm = sqrt(sum(squares))

`squares` holds the sum of squares of each gradient, as `squares` and `packed_squares` compute them. Norm and limit stay in
memory of the device, so that a recorded step can be replayed. If the norm is NaN, nothing changes; if it is infinite, x *= 0.
On the CPU all sums are of parts that do not depend on the number of threads, so results are bitwise equal for any number.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32

from ...host import threads
from ...runtime.declare import cuda, host_kernel, kernel, kernels
from ...runtime.expect import expect
from ...runtime.launch import launch
from ...runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, output
from ..reduce import add_up, sum_cuda
from .packed import expected, packed_example

SMALLER = 2.0**-5  # factor of norms on CUDA before they are added; a power of 2, so that nothing is rounded


def _check_squares(op, empty, g, packing, out):
    """Return (the number of rows of the weight, the array for the result)."""
    return expect(op, g=(g, ("G", "K")), **expected(packing))["R"], output(op, empty, out, ())


def _check_clip(op, arrays, squares, limit):
    expect(op, squares=(squares, ("n",)), limit=(limit, (1,)))
    for x in arrays:
        expect(op, x=x)


# --- reference --------------------------------------------------------------------------------------------------------
def packed_squares_reference(g, packing):
    if packing is None:
        return np.sum(np.square(g, dtype=np.float64))
    row_pos, row_class, cols, _ = map(np.asarray, packing)
    has_gradient = row_pos >= 0
    values = np.where(cols[row_class[has_gradient]] >= 0, np.float64(g)[row_pos[has_gradient]], 0)
    return np.sum(values * values)


def clip_norm_reference(arrays, squares, limit):
    norm = math.sqrt(np.sum(squares, dtype=np.float64))
    return [np.float64(x) * (limit / norm if norm > limit else 1) for x in arrays]


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f8[::1], i8, i8)")
def _row_squares(g, row_pos, row_class, cols, sums, first, stop):
    """sums[r] = the sum of the squares of row r, for the rows first … stop - 1"""
    for r in range(first, stop):
        total = float32(0)
        if 0 <= row_pos[r] < g.shape[0] and 0 <= row_class[r] < cols.shape[0]:
            row, columns = g[row_pos[r]], cols[row_class[r]]
            for k in range(row.size):
                total += row[k] * row[k] if columns[k] >= 0 else float32(0)
        sums[r] = total


def packed_squares_cpu(g, packing, out=None):
    """y = the sum of g[row_pos[r], k]^2 over all r and k with row_pos[r] >= 0 and cols[row_class[r], k] >= 0.   -> ()"""
    rows, out = _check_squares("packed_squares (cpu)", empty_cpu, g, packing, out)
    sums = empty_cpu(rows, np.float64)

    def work(part):
        span = part.of(rows)
        _row_squares(g, *packing[:3], sums, span.start, span.stop)

    threads.share(work, g.size)
    add_up(sums, out.reshape(1))
    return out


@host_kernel("void(f4[::1], f4[::1], f4[::1])")
def _factor(squares, limit, factor):
    """factor[0] = limit / norm if norm > limit, else 1"""
    total = np.float64(0)
    for value in squares:
        total += value
    norm = math.sqrt(total)
    factor[0] = limit[0] / norm if norm > limit[0] else 1


@host_kernel("void(f4[::1], f4[::1])")
def _scale(x, factor):
    """x *= factor[0]"""
    if factor[0] != 1:
        for i in range(x.size):
            x[i] *= factor[0]


def clip_norm_cpu(arrays, squares, limit):
    """x *= min(1, limit / sqrt(sum(squares))) for each of the arrays, in place; `limit` is an array (1,)"""
    _check_clip("clip_norm (cpu)", arrays, squares, limit)
    factor = empty_cpu(1)
    _factor(squares, limit, factor)
    for x in arrays:
        values = flat(x)
        threads.share(lambda part, values=values: _scale(values[part.of(values.size)], factor), x.size)


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("update")
def _squaring():
    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[::1])")
    def row_squares(g, row_pos, row_class, cols, sums):
        """Each block sums the squares of one row of g."""
        shared = cuda.shared.array(THREADS, float32)
        r, lane = cuda.blockIdx.x, cuda.threadIdx.x
        total, z = float32(0), row_class[r]
        if 0 <= row_pos[r] < g.shape[0] and 0 <= z < cols.shape[0]:
            for k in range(lane, g.shape[1], THREADS):
                value = g[row_pos[r], k] if cols[z, k] >= 0 else float32(0)
                total += value * value
        shared[lane] = total
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if lane < half:
                shared[lane] += shared[lane + half]
            cuda.syncthreads()
            half //= 2
        if lane == 0:
            sums[r] = shared[0]

    return row_squares


@kernels("update")
def _clipping():
    @kernel("void(f4[::1], f4[::1], f4[::1])")
    def scale(x, squares, limit):
        """Each thread scales one element, and computes the norm itself: there are few gradients."""
        i, total = cuda.grid(1), float32(0)
        for k in range(squares.size):
            total += squares[k] * float32(SMALLER * SMALLER)  # so that the sum does not overflow
        norm = math.sqrt(total) / float32(SMALLER)
        if i < x.size and norm > limit[0]:
            x[i] *= limit[0] / norm

    return scale


def packed_squares_cuda(g, packing, out=None):
    rows, out = _check_squares("packed_squares (cuda)", empty_cuda, g, packing, out)
    sums = empty_cuda(rows)
    if rows:
        launch(_squaring(), rows, THREADS, g, *packing[:3], sums)
    return sum_cuda(sums, out=out)


def clip_norm_cuda(arrays, squares, limit):
    _check_clip("clip_norm (cuda)", arrays, squares, limit)
    for x in arrays:
        if x.size:
            launch(_clipping(), blocks_for(x.size), THREADS, flat(x), squares, limit)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "packed_squares": lambda: dev.packed_squares(*packed_example(a, O, I)),
        "clip_norm": lambda: dev.clip_norm([a(O, I), a(O, I)], a(2, above=1.0), a(1, above=0.1)),
    }
