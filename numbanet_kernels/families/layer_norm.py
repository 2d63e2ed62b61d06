"""Layer normalisation of x (N, C): each row is normalised over its C columns; eps > 0:

    mean[n] = 1/C sum_c x[n, c]           inverse[n] = 1 / sqrt(1/C sum_c (x[n, c] - mean[n])² + eps)
    h[n, c] = (x[n, c] - mean[n]) inverse[n]

The mean and the variance of no columns are 0.

    layer_norm        returns (y, mean, inverse), where y[n, c] = gamma[c] h[n, c] + beta[c]
    layer_norm_grad   dgamma[c] = sum_n dy[n, c] h[n, c],   dbeta[c] = sum_n dy[n, c]
                      dx[n, c] = inverse[n] (g[n, c] - 1/C sum_c g[n, c] - h[n, c] 1/C sum_c g[n, c] h[n, c]),
                      where g[n, c] = gamma[c] dy[n, c]

On the CPU threads divide the rows. A row is read three times for y, and twice for dx, and stays in cache meanwhile; all sums
are float64. On CUDA a block of threads computes a row of y or dx, or dgamma and dbeta of 32 columns (ACROSS).
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64, int32

from ..blocks.kahan import kahan
from ..host import threads
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import empty_cpu, empty_cuda, full_cuda
from .softmax import row_sums

LANES = 128  # number of threads per row
ACROSS, DOWN = 32, 8  # threads of a block along the columns and along the rows
ROWS, ROW, COLUMN = ("N", "C"), ("C",), ("N",)


# --- reference --------------------------------------------------------------------------------------------------------
def layer_norm_reference(x, gamma, beta, eps):
    """Return (y, mean, inverse) of layer_norm, in float64."""
    x = np.float64(x)
    given = x if x.shape[1] else np.zeros((len(x), 1))
    mean, inverse = given.mean(1), 1 / np.sqrt(given.var(1) + eps)
    return gamma * (x - mean[:, None]) * inverse[:, None] + beta, mean, inverse


def layer_norm_grad_reference(dy, x, gamma, mean, inverse):
    """Return (dx, dgamma, dbeta) of layer_norm, in float64."""
    dy, x, gamma, mean, inverse = map(np.float64, (dy, x, gamma, mean, inverse))
    h, g = (x - mean[:, None]) * inverse[:, None], gamma * dy
    dx = inverse[:, None] * (g - g.mean(1, keepdims=True) - h * (g * h).mean(1, keepdims=True))
    return dx, (dy * h).sum(0), dy.sum(0)


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], f4[::1], f4[::1], f4, f4[:, ::1], f4[::1], f4[::1], i8, i8)")
def _forward(x, gamma, beta, eps, y, mean, inverse, start, stop):
    """Compute y, mean and inverse of the rows start … stop - 1."""
    share = 1 / float64(max(x.shape[1], 1))
    for n in range(start, stop):
        row, out, total = x[n], y[n], float64(0)
        for c in range(row.size):
            total += row[c]
        centre, total = float32(total * share), float64(0)
        for c in range(row.size):
            d = row[c] - centre
            total += d * d
        factor = float32(1 / math.sqrt(total * share + eps))
        mean[n], inverse[n] = centre, factor
        for c in range(row.size):
            out[c] = gamma[c] * ((row[c] - centre) * factor) + beta[c]


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[:, ::1], f8[:, ::1], i8, i8)")
def _backward(dy, x, gamma, mean, inverse, dx, sums, start, stop):
    """Compute dx of the rows start … stop - 1, and sums[0] = sum_n dy[n] h[n] and sums[1] = sum_n dy[n] over these rows n."""
    of_gamma, of_beta, share = sums[0], sums[1], 1 / float64(max(x.shape[1], 1))
    of_gamma[:], of_beta[:] = 0, 0
    for n in range(start, stop):
        slope, row, out, centre, factor = dy[n], x[n], dx[n], mean[n], inverse[n]
        first, second = float64(0), float64(0)
        for c in range(row.size):
            h = (row[c] - centre) * factor
            g = gamma[c] * slope[c]
            first += g
            second += g * h
            of_gamma[c] += slope[c] * h
            of_beta[c] += slope[c]
        less, tilt = float32(first * share), float32(second * share)
        for c in range(row.size):
            h = (row[c] - centre) * factor
            out[c] = factor * (gamma[c] * slope[c] - less - h * tilt)


@host_kernel("void(f8[:, :, ::1], f4[::1], f4[::1])")
def _add_up(sums, dgamma, dbeta):
    """Compute dgamma and dbeta: add up the sums of all threads, in a fixed order."""
    for c in range(dgamma.size):
        first, second = 0.0, 0.0
        for t in range(sums.shape[0]):
            first += sums[t, 0, c]
            second += sums[t, 1, c]
        dgamma[c], dbeta[c] = first, second


def layer_norm_cpu(x, gamma, beta, eps):
    """y = gamma (x - mean) inverse + beta; returns (y, mean, inverse), where inverse is 1 / sqrt(variance + eps) of each row"""
    n, _ = expect("layer_norm (cpu)", x=(x, ROWS), gamma=(gamma, ROW), beta=(beta, ROW)).values()
    y, mean, inverse = empty_cpu(x.shape), empty_cpu((n,)), empty_cpu((n,))

    def work(part):
        span = part.of(n)
        _forward(x, gamma, beta, eps, y, mean, inverse, span.start, span.stop)

    threads.share(work, x.size)
    return y, mean, inverse


def layer_norm_grad_cpu(dy, x, gamma, mean, inverse):
    """Return (dx, dgamma, dbeta) of layer_norm."""
    _check("layer_norm_grad (cpu)", dy, x, gamma, mean, inverse)
    dx, dgamma, dbeta = empty_cpu(x.shape), empty_cpu(gamma.shape), empty_cpu(gamma.shape)
    sums = empty_cpu((threads.parts(x.size), 2, x.shape[1]), np.float64)

    def work(part):
        span = part.of(len(x))
        _backward(dy, x, gamma, mean, inverse, dx, sums[part.number], span.start, span.stop)

    threads.share(work, x.size)
    _add_up(sums, dgamma, dbeta)
    return dx, dgamma, dbeta


def _check(op, dy, x, gamma, mean, inverse):
    expect(op, dy=(dy, ROWS), x=(x, ROWS), gamma=(gamma, ROW), mean=(mean, COLUMN), inverse=(inverse, COLUMN))


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("layer_norm")
def _layer_norm_kernels():
    add, (tree, _) = kahan(), row_sums(LANES)

    @kernel("void(f4[:, ::1], f4[::1], f4[::1], f4, f4[:, ::1], f4[::1], f4[::1])")
    def forward(x, gamma, beta, eps, y, mean, inverse):
        """Each block computes the mean of one row, then its variance."""
        shared = cuda.shared.array(LANES, float32)
        lane, row, width = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x), int32(x.shape[1])
        total = float32(0)
        for c in range(lane, width, LANES):
            total += x[row, c]
        centre = tree(shared, lane, total, False) / float32(width)
        cuda.syncthreads()  # all threads have read the sum before `shared` is overwritten
        total = float32(0)
        for c in range(lane, width, LANES):
            d = x[row, c] - centre
            total += d * d
        factor = float32(1) / math.sqrt(tree(shared, lane, total, False) / float32(width) + eps)
        for c in range(lane, width, LANES):
            y[row, c] = gamma[c] * (x[row, c] - centre) * factor + beta[c]
        if lane == 0:
            mean[row], inverse[row] = centre, factor

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[:, ::1])")
    def backward(dy, x, gamma, mean, inverse, dx):
        """Each block computes the two sums over c of one row, and then dx of this row."""
        shared = cuda.shared.array(LANES, float32)
        lane, row, width = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x), int32(x.shape[1])
        centre, factor, first, second = mean[row], inverse[row], float32(0), float32(0)
        for c in range(lane, width, LANES):
            g = gamma[c] * dy[row, c]
            first += g
            second += g * (x[row, c] - centre) * factor
        first = tree(shared, lane, first, False) / float32(width)
        cuda.syncthreads()  # all threads have read the sum before `shared` is overwritten
        second = tree(shared, lane, second, False) / float32(width)
        for c in range(lane, width, LANES):
            dx[row, c] = factor * (gamma[c] * dy[row, c] - first - (x[row, c] - centre) * factor * second)

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[::1])")
    def vectors(dy, x, mean, inverse, dgamma, dbeta):
        """Each block computes dgamma and dbeta of 32 columns (ACROSS)."""
        of_gamma, of_beta = cuda.shared.array((DOWN, ACROSS), float32), cuda.shared.array((DOWN, ACROSS), float32)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        c, first, second = int32(cuda.blockIdx.x * ACROSS) + tx, float32(0), float32(0)
        missed, lost = float32(0), float32(0)
        if c < dgamma.size:
            for n in range(ty, int32(x.shape[0]), DOWN):
                first, missed = add(first, missed, dy[n, c] * (x[n, c] - mean[n]) * inverse[n])
                second, lost = add(second, lost, dy[n, c])
        of_gamma[ty, tx], of_beta[ty, tx] = first, second
        cuda.syncthreads()
        if ty == 0 and c < dgamma.size:
            first, second = float32(0), float32(0)
            for j in range(DOWN):
                first += of_gamma[j, tx]
                second += of_beta[j, tx]
            dgamma[c], dbeta[c] = first, second

    return forward, backward, vectors


def layer_norm_cuda(x, gamma, beta, eps):
    n, columns = expect("layer_norm (cuda)", x=(x, ROWS), gamma=(gamma, ROW), beta=(beta, ROW)).values()
    y, mean, inverse = empty_cuda(x.shape), empty_cuda((n,)), empty_cuda((n,))
    if not columns:
        return y, full_cuda((n,), 0.0, out=mean), full_cuda((n,), 1 / math.sqrt(eps), out=inverse)
    launch(_layer_norm_kernels()[0], n, LANES, x, gamma, beta, eps, y, mean, inverse)
    return y, mean, inverse


def layer_norm_grad_cuda(dy, x, gamma, mean, inverse):
    _check("layer_norm_grad (cuda)", dy, x, gamma, mean, inverse)
    dx, dgamma, dbeta = empty_cuda(x.shape), empty_cuda(gamma.shape), empty_cuda(gamma.shape)
    _, backward, vectors = _layer_norm_kernels()
    launch(backward, x.shape[0], LANES, dy, x, gamma, mean, inverse, dx)
    launch(vectors, ceil_div(gamma.size, ACROSS), (ACROSS, DOWN), dy, x, mean, inverse, dgamma, dbeta)
    return dx, dgamma, dbeta


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "layer_norm": lambda: dev.layer_norm(a(N, O), a(O), a(O), 1e-5),
        "layer_norm_grad": lambda: dev.layer_norm_grad(a(N, O), a(N, O), a(O), a(N), a(N, above=0.1)),
    }
