"""Softmax over the last axis, its logarithm, and the gradient of both.   x, y, dy, dx (..., C)

softmax           y[n, c] = exp(x[n, c] - m[n]) / sum_c exp(x[n, c] - m[n]),    m[n] = max_c x[n, c]
log_softmax       y[n, c] = x[n, c] - m[n] - log sum_c exp(x[n, c] - m[n])
softmax_grad      dx[n, c] = y[n, c] (dy[n, c] - sum_c dy[n, c] y[n, c])
log_softmax_grad  dx[n, c] = dy[n, c] - exp(y[n, c]) sum_c dy[n, c]

On CUDA a block of threads computes one row. Each pass over the row ends with a reduction by a tree in shared memory; later
passes read the row from cache.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import float32

from ..host.ufuncs import apply
from ..runtime.declare import cuda, host_kernel, inlined, kernel, kernels
from ..runtime.launch import launch
from ..runtime.memory import empty_cpu, empty_cuda, output

PLAIN, LOG = range(2)
NARROW, WIDE = 32, 256  # numbers of threads per row
LOWEST = np.float32(-np.inf)


def _output(op, empty, out, x):
    if x.shape[-1:] in ((), (0,)):
        raise ValueError(f"{op}: x {x.shape} is empty along its last axis")
    return output(op, empty, out, x=x)


# --- reference --------------------------------------------------------------------------------------------------------
def softmax_reference(x):
    return np.exp(log_softmax_reference(x))


def log_softmax_reference(x):
    x = np.asarray(x, np.float64)
    z = x - x.max(axis=-1, keepdims=True, initial=-np.inf)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def softmax_grad_reference(dy, y):
    dy, y = np.asarray(dy, np.float64), np.asarray(y, np.float64)
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def log_softmax_grad_reference(dy, y):
    dy, y = np.asarray(dy, np.float64), np.asarray(y, np.float64)
    return dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], f4[:, ::1])")
def _below_largest(x, y):
    """y[n, c] = x[n, c] - m[n]"""
    for n in range(x.shape[0]):
        row, out, top = x[n], y[n], LOWEST
        for value in row:
            top = value if value > top or value != value else top  # with this comparison, NaN stays NaN
        for c in range(row.size):
            out[c] = row[c] - top


@host_kernel("void(f4[:, ::1])")
def _to_shares(y):
    """y[n, c] /= sum_c y[n, c]"""
    for row in y:
        total = float32(0)
        for value in row:
            total += value
        for c in range(row.size):
            row[c] = row[c] / total


@host_kernel("void(f4[:, ::1], f4[:, ::1])")
def _less_logarithm(powers, y):
    """y[n, c] -= log sum_c powers[n, c]"""
    for n in range(y.shape[0]):
        row, total = y[n], float32(0)
        for value in powers[n]:
            total += value
        less = math.log(total)
        for c in range(row.size):
            row[c] -= less


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1])")
def _softmax_grad(dy, y, dx):
    for n in range(dy.shape[0]):
        slope, row, out, total = dy[n], y[n], dx[n], float32(0)
        for c in range(row.size):
            total += slope[c] * row[c]
        for c in range(row.size):
            out[c] = row[c] * (slope[c] - total)


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1])")
def _log_softmax_grad(dy, powers, dx):
    for n in range(dy.shape[0]):
        slope, power, out, total = dy[n], powers[n], dx[n], float32(0)
        for value in slope:
            total += value
        for c in range(slope.size):
            out[c] = slope[c] - power[c] * total


def _rows(*arrays):
    return [array.reshape(-1, array.shape[-1]) for array in arrays]


def softmax_cpu(x, out=None):
    """y[n, c] = exp(x[n, c] - m[n]) / sum_c exp(x[n, c] - m[n])"""
    out = _output("softmax (cpu)", empty_cpu, out, x)
    _below_largest(*_rows(x, out))
    apply(np.exp, out, out=out)
    _to_shares(*_rows(out))
    return out


def log_softmax_cpu(x, out=None):
    """y[n, c] = x[n, c] - m[n] - log sum_c exp(x[n, c] - m[n])"""
    out = _output("log_softmax (cpu)", empty_cpu, out, x)
    _below_largest(*_rows(x, out))
    _less_logarithm(*_rows(apply(np.exp, out, out=empty_cpu(out.shape)), out))
    return out


def softmax_grad_cpu(dy, y, out=None):
    """dx[n, c] = y[n, c] (dy[n, c] - sum_c dy[n, c] y[n, c])"""
    out = output("softmax_grad (cpu)", empty_cpu, out, dy=dy, y=y)
    if out.size:
        _softmax_grad(*_rows(dy, y, out))
    return out


def log_softmax_grad_cpu(dy, y, out=None):
    """dx[n, c] = dy[n, c] - exp(y[n, c]) sum_c dy[n, c]"""
    out = output("log_softmax_grad (cpu)", empty_cpu, out, dy=dy, y=y)
    if out.size:
        _log_softmax_grad(*_rows(dy, apply(np.exp, y, out=empty_cpu(y.shape)), out))
    return out


# --- CUDA -------------------------------------------------------------------------------------------------------------
@functools.cache
def row_sums(lanes):
    """Return the device functions `tree` and `exponentials` for kernels with `lanes` threads per row. Their argument `shared`
    is an array in shared memory with one element per thread.
    """

    @inlined
    def tree(shared, lane, value, largest):
        """Return, to every lane, the sum of the values of all lanes or, if `largest`, their maximum."""
        shared[lane] = value
        cuda.syncthreads()
        half = lanes // 2
        while half > 0:
            if lane < half:
                if not largest:
                    shared[lane] += shared[lane + half]
                elif shared[lane + half] > shared[lane]:
                    shared[lane] = shared[lane + half]
            cuda.syncthreads()
            half //= 2
        return shared[0]

    @inlined
    def exponentials(shared, lane, x, row):
        """Return, to every lane, top = max_c x[row, c] and sum_c exp(x[row, c] - top)."""
        top = LOWEST
        for c in range(lane, x.shape[1], lanes):
            top = x[row, c] if x[row, c] > top else top  # NaN is skipped here; the sum is then NaN
        top = tree(shared, lane, top, True)
        cuda.syncthreads()  # all threads have read the maximum before `shared` is overwritten
        total = float32(0)
        for c in range(lane, x.shape[1], lanes):
            total += math.exp(x[row, c] - top)
        return top, tree(shared, lane, total, False)

    return tree, exponentials


@kernels("softmax")
def _softmax_kernels():
    """Return the kernels of softmax and log_softmax, with NARROW and with WIDE threads per row."""

    def declared(formula, lanes):
        _, exponentials = row_sums(lanes)

        @kernel("void(f4[:, ::1], f4[:, ::1])")
        def softmax(x, y):
            shared = cuda.shared.array(lanes, float32)
            lane, row = cuda.threadIdx.x, cuda.blockIdx.x
            width = x.shape[1]
            top, total = exponentials(shared, lane, x, row)
            if formula == PLAIN:
                scale = float32(1) / total
                for c in range(lane, width, lanes):
                    y[row, c] = math.exp(x[row, c] - top) * scale
            else:
                logarithm = math.log(total)
                for c in range(lane, width, lanes):
                    y[row, c] = (x[row, c] - top) - logarithm

        return softmax

    return tuple(declared(formula, lanes) for lanes in (NARROW, WIDE) for formula in (PLAIN, LOG))


@kernels("softmax")
def _softmax_grad_kernels():
    """Return the kernels of softmax_grad and log_softmax_grad, with NARROW and with WIDE threads per row."""

    def declared(formula, lanes):
        tree, _ = row_sums(lanes)

        @kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1])")
        def softmax_grad(dy, y, dx):
            shared = cuda.shared.array(lanes, float32)
            lane, row = cuda.threadIdx.x, cuda.blockIdx.x
            width = y.shape[1]
            total = float32(0)
            for c in range(lane, width, lanes):
                total += dy[row, c] * y[row, c] if formula == PLAIN else dy[row, c]
            total = tree(shared, lane, total, False)
            for c in range(lane, width, lanes):
                if formula == PLAIN:
                    dx[row, c] = y[row, c] * (dy[row, c] - total)
                else:
                    dx[row, c] = dy[row, c] - math.exp(y[row, c]) * total

        return softmax_grad

    return tuple(declared(formula, lanes) for lanes in (NARROW, WIDE) for formula in (PLAIN, LOG))


def _launch_rows(pair, out, *arrays):
    """Launch the narrow or the wide kernel of `pair` on arrays that are reshaped to (rows, last axis)."""
    width = out.shape[out.ndim - 1]
    if out.size == 0:
        return out
    rows = out.size // width
    views = [x.reshape(rows, width) for x in (*arrays, out)]
    wide = width > 32 * NARROW
    launch(pair[wide], rows, WIDE if wide else NARROW, *views)
    return out


def softmax_cuda(x, out=None):
    return _launch_rows(_softmax_kernels()[PLAIN::2], _output("softmax (cuda)", empty_cuda, out, x), x)


def log_softmax_cuda(x, out=None):
    return _launch_rows(_softmax_kernels()[LOG::2], _output("log_softmax (cuda)", empty_cuda, out, x), x)


def softmax_grad_cuda(dy, y, out=None):
    out = output("softmax_grad (cuda)", empty_cuda, out, dy=dy, y=y)
    return _launch_rows(_softmax_grad_kernels()[PLAIN::2], out, dy, y)


def log_softmax_grad_cuda(dy, y, out=None):
    out = output("log_softmax_grad (cuda)", empty_cuda, out, dy=dy, y=y)
    return _launch_rows(_softmax_grad_kernels()[LOG::2], out, dy, y)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "softmax": lambda: dev.softmax(a(N, O)),
        "softmax, wide": lambda: dev.softmax(a(7, 1100)),
        "softmax_grad": lambda: dev.softmax_grad(a(N, O), softmax_cpu(a(N, O))),
        "softmax_grad, wide": lambda: dev.softmax_grad(a(7, 1100), softmax_cpu(a(7, 1100))),
        "log_softmax": lambda: dev.log_softmax(a(N, O)),
        "log_softmax, wide": lambda: dev.log_softmax(a(7, 1100)),
        "log_softmax_grad": lambda: dev.log_softmax_grad(a(N, O), log_softmax_cpu(a(N, O))),
        "log_softmax_grad, wide": lambda: dev.log_softmax_grad(a(7, 1100), log_softmax_cpu(a(7, 1100))),
    }
