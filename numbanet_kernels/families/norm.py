"""Batch normalisation of x (N, C), N samples of C channels. Each channel is normalised over the samples; eps > 0:

    mean[c] = 1/N sum_n x[n, c]           variance[c] = 1/N sum_n (x[n, c] - mean[c])²
    h[n, c] = (x[n, c] - mean[c]) / sqrt(variance[c] + eps)

    batch_norm        returns (y, mean, variance), where y[n, c] = gamma[c] h[n, c] + beta[c]
    batch_norm_apply  y[n, c] = gamma[c] h[n, c] + beta[c], where mean and variance in h are arguments
    batch_norm_grad   dbeta[c] = sum_n dy[n, c],  dgamma[c] = sum_n dy[n, c] h[n, c],
                      dx[n, c] = gamma[c] / sqrt(variance[c] + eps) (dy[n, c] - dbeta[c] / N - h[n, c] dgamma[c] / N)

On the CPU threads divide the rows. They sum, in float64, the differences x[n] - x[0] and the squares of these differences. So
one pass gives both the mean and the variance, without cancellation if the mean is large. On CUDA the variance needs a second
pass after the mean; a block of threads computes 32 channels (ACROSS), and adjacent threads read adjacent channels.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32

from ..blocks.kahan import kahan
from ..host import threads
from ..runtime.declare import cuda, host_function, host_kernel, kernel, kernels
from ..runtime.expect import expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat

ACROSS, DOWN = 32, 8  # threads of a block along the channels and along the samples
BLOCK = ACROSS * DOWN
CHANNELS = ("C",)
GROUP = 256  # rows with fewer channels are joined, so that a CPU loop has at least this length


# --- reference --------------------------------------------------------------------------------------------------------
def batch_norm_apply_reference(x, gamma, beta, mean, variance, eps):
    """y = gamma (x - mean) / sqrt(variance + eps) + beta, in float64"""
    x, gamma, beta, mean, variance = map(np.float64, (x, gamma, beta, mean, variance))
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def batch_norm_reference(x, gamma, beta, eps):
    """Return (y, mean, variance) of batch_norm, in float64."""
    mean, variance = np.float64(x).mean(0), np.float64(x).var(0)
    return batch_norm_apply_reference(x, gamma, beta, mean, variance, eps), mean, variance


def batch_norm_grad_reference(dy, x, gamma, mean, variance, eps):
    """Return (dx, dgamma, dbeta) of batch_norm, in float64."""
    dy, x, gamma, mean, variance = map(np.float64, (dy, x, gamma, mean, variance))
    inverse = 1 / np.sqrt(variance + eps)
    h = (x - mean) * inverse
    dgamma, dbeta = (dy * h).sum(0), dy.sum(0)
    return gamma * inverse * (dy - dbeta / len(x) - h * dgamma / len(x)), dgamma, dbeta


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[::1], f4[::1])")
def _repeat(x, y):
    """Fill y with copies of x."""
    for begin in range(0, y.size, x.size):
        y[begin : begin + x.size] = x


@host_kernel("void(f4[::1], f4[::1], f8[:, ::1])")
def _moments(x, shift, sums):
    """x is read as groups of shift.size values; j is the position in a group. Compute sums[0, j] = the sum of x - shift[j] over
    the groups, and sums[1, j] = the sum of (x - shift[j])².
    """
    first, second = sums[0], sums[1]
    first[:], second[:] = 0, 0
    for begin in range(0, x.size, shift.size):
        group = x[begin : begin + shift.size]
        for j in range(group.size):
            d = np.float64(group[j]) - np.float64(shift[j])
            first[j] += d
            second[j] += d * d


@host_kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1])")
def _apply(x, centre, factor, offset, y):
    """y = factor (x - centre) + offset"""
    for begin in range(0, x.size, centre.size):
        group, out = x[begin : begin + centre.size], y[begin : begin + centre.size]
        for j in range(group.size):
            out[j] = factor[j] * (group[j] - centre[j]) + offset[j]


@host_kernel("void(f4[::1], f4[::1], f4[::1], f8[:, ::1])")
def _slopes(dy, x, centre, sums):
    """x and dy are read as groups of centre.size values; j is the position in a group. Compute sums[0, j] = the sum of dy over
    the groups, and sums[1, j] = the sum of dy (x - centre[j]).
    """
    first, second = sums[0], sums[1]
    first[:], second[:] = 0, 0
    for begin in range(0, x.size, centre.size):
        slope, group = dy[begin : begin + centre.size], x[begin : begin + centre.size]
        for j in range(group.size):
            first[j] += slope[j]
            second[j] += slope[j] * (group[j] - centre[j])


@host_kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1])")
def _backward(dy, x, centre, factor, less, tilt, dx):
    """dx = factor (dy - less - tilt (x - centre))"""
    for begin in range(0, x.size, centre.size):
        slope, group, out = dy[begin : begin + centre.size], x[begin : begin + centre.size], dx[begin : begin + centre.size]
        for j in range(group.size):
            out[j] = factor[j] * (slope[j] - less[j] - (group[j] - centre[j]) * tilt[j])


@host_function
def _total(sums, which, c, channels):
    """Return the sum of sums[t, which, j] over all threads t and all positions j of channel c in a group, in a fixed order."""
    total = 0.0
    for t in range(sums.shape[0]):
        for j in range(c, sums.shape[2], channels):
            total += sums[t, which, j]
    return total


@host_kernel("void(f8[:, :, ::1], f4[::1], i8, f4[::1], f4[::1])")
def _mean_and_variance(sums, shift, n, mean, variance):
    for c in range(mean.size):
        first, second = _total(sums, 0, c, mean.size) / n, _total(sums, 1, c, mean.size) / n
        mean[c], apart = shift[c] + first, second - first * first
        variance[c] = 0.0 if apart < 0.0 else apart  # with this order of the comparison, NaN stays NaN


@host_kernel("void(f4[::1], f4[::1], f4, f4[::1])")
def _factors(gamma, variance, eps, factor):
    for c in range(factor.size):
        factor[c] = gamma[c] / math.sqrt(variance[c] + eps)


@host_kernel("void(f8[:, :, ::1], f4[::1], f4[::1], f8, i8, f4[:, ::1], f4[::1], f4[::1])")
def _gradients(sums, gamma, variance, eps, n, numbers, dgamma, dbeta):
    """Write the arguments factor, less and tilt of `_backward` to the rows of `numbers`, and the gradients to dgamma and dbeta.
    `sums` are those of `_slopes`, of all threads.
    """
    for c in range(dgamma.size):
        inverse = 1.0 / math.sqrt(np.float64(variance[c]) + eps)
        of_beta, of_gamma = _total(sums, 0, c, dgamma.size), _total(sums, 1, c, dgamma.size) * inverse
        numbers[0, c], numbers[1, c], numbers[2, c] = gamma[c] * inverse, of_beta / n, of_gamma * inverse / n
        dgamma[c], dbeta[c] = of_gamma, of_beta


def _repeated(vector):
    """Return `vector` repeated to about GROUP elements, or `vector` itself if it has at least GROUP. A loop then handles
    several rows of few channels as one group, so that it is vectorised.
    """
    if vector.size >= GROUP:
        return vector
    out = empty_cpu(GROUP // vector.size * vector.size)
    _repeat(vector, out)
    return out


def _each(loop, rows, vectors, *out):
    """Call loop(rows, vectors, out) on all threads, each for a part of the rows."""
    n, channels = rows[0].shape
    if not n * channels:
        return
    vectors = [_repeated(vector) for vector in vectors]

    def work(part):
        span = part.of(n)
        loop(*(x[span].reshape(-1) for x in rows), *vectors, *(y[span].reshape(-1) for y in out))

    threads.share(work, n * channels)


def _sums(loop, rows, vector):
    """Return the sums (threads, 2, positions), float64: each thread t calls loop(its rows, vector, sums[t]). A position is
    that of a value in a group of rows (`_repeated`).
    """
    n, channels = rows[0].shape
    vector = _repeated(vector)
    sums = empty_cpu((threads.parts(n * channels), 2, vector.size), np.float64)

    def work(part):
        span = part.of(n)
        loop(*(x[span].reshape(-1) for x in rows), vector, sums[part.number])

    threads.share(work, n * channels)
    return sums


def batch_norm_cpu(x, gamma, beta, eps):
    """y = gamma (x - mean) / sqrt(variance + eps) + beta; returns (y, mean, variance), the latter two of each channel"""
    expect("batch_norm (cpu)", x=(x, ("N", "C")), gamma=(gamma, CHANNELS), beta=(beta, CHANNELS))
    mean, variance = empty_cpu(gamma.shape), empty_cpu(gamma.shape)
    if gamma.size:
        shift = x[0] if len(x) else beta
        _mean_and_variance(_sums(_moments, [x], shift), shift, max(len(x), 1), mean, variance)
    return batch_norm_apply_cpu(x, gamma, beta, mean, variance, eps), mean, variance


def batch_norm_apply_cpu(x, gamma, beta, mean, variance, eps):
    """y = gamma (x - mean) / sqrt(variance + eps) + beta"""
    expect("batch_norm_apply (cpu)", x=(x, ("N", "C")), **_channels(gamma=gamma, beta=beta, mean=mean, variance=variance))
    y, factor = empty_cpu(x.shape), empty_cpu(gamma.shape)
    _factors(gamma, variance, eps, factor)
    _each(_apply, [x], [mean, factor, beta], y)
    return y


def batch_norm_grad_cpu(dy, x, gamma, mean, variance, eps):
    """Return (dx, dgamma, dbeta) of batch_norm."""
    expect(
        "batch_norm_grad (cpu)", dy=(dy, ("N", "C")), x=(x, ("N", "C")), **_channels(gamma=gamma, mean=mean, variance=variance)
    )
    dx, dgamma, dbeta, numbers = (empty_cpu(shape) for shape in (x.shape, gamma.shape, gamma.shape, (3, gamma.size)))
    if gamma.size:
        _gradients(_sums(_slopes, [dy, x], mean), gamma, variance, eps, max(len(x), 1), numbers, dgamma, dbeta)
        _each(_backward, [dy, x], [mean, *numbers], dx)
    return dx, dgamma, dbeta


def _channels(**arrays):
    return {name: (array, CHANNELS) for name, array in arrays.items()}


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("norm")
def _forward_kernels():
    add = kahan()

    @kernel("void(f4[:, ::1], f4[::1], f4[::1])")
    def moments(x, mean, variance):
        """Each block computes the means of 32 channels (ACROSS), then their variances."""
        shared = cuda.shared.array(BLOCK, float32)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        c, samples = int32(cuda.blockIdx.x * ACROSS) + tx, float32(max(x.shape[0], 1))
        centre = float32(0)
        for turn in range(2):
            total, missed = float32(0), float32(0)
            if c < mean.size:
                for n in range(ty, x.shape[0], DOWN):
                    d = x[n, c] - centre
                    total, missed = add(total, missed, d * d if turn else d)
            shared[ty * ACROSS + tx] = total
            cuda.syncthreads()
            total = float32(0)
            for j in range(DOWN):
                total += shared[j * ACROSS + tx]
            cuda.syncthreads()
            if turn == 0:
                centre = total / samples
            if ty == 0 and c < mean.size:
                if turn == 0:
                    mean[c] = centre
                else:
                    variance[c] = total / samples

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, f4[::1], i4)")
    def apply(x, gamma, beta, mean, variance, eps, y, channels):
        """Each thread computes one value."""
        i = cuda.grid(1)
        if i < y.size:
            c = i % channels
            y[i] = gamma[c] * (x[i] - mean[c]) / math.sqrt(variance[c] + eps) + beta[c]

    return moments, apply


@kernels("norm")
def _backward_kernel():
    add = kahan()

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], f4, f4[:, ::1], f4[::1], f4[::1])")
    def backward(dy, x, gamma, mean, variance, eps, dx, dgamma, dbeta):
        """Each block computes dbeta and dgamma of 32 channels (ACROSS), then their dx."""
        of_gamma, of_beta = cuda.shared.array(BLOCK, float32), cuda.shared.array(BLOCK, float32)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        c, inside = int32(cuda.blockIdx.x * ACROSS) + tx, int32(cuda.blockIdx.x * ACROSS) + tx < gamma.size
        centre, inverse, first, second = float32(0), float32(0), float32(0), float32(0)
        missed, lost = float32(0), float32(0)
        if inside:
            centre, inverse = mean[c], float32(1) / math.sqrt(variance[c] + eps)
            for n in range(ty, x.shape[0], DOWN):
                first, missed = add(first, missed, dy[n, c] * (x[n, c] - centre) * inverse)
                second, lost = add(second, lost, dy[n, c])
        of_gamma[ty * ACROSS + tx], of_beta[ty * ACROSS + tx] = first, second
        cuda.syncthreads()
        first, second = float32(0), float32(0)
        for j in range(DOWN):
            first += of_gamma[j * ACROSS + tx]
            second += of_beta[j * ACROSS + tx]
        if inside:
            if ty == 0:
                dgamma[c], dbeta[c] = first, second
            share = float32(1) / float32(max(x.shape[0], 1))
            for n in range(ty, x.shape[0], DOWN):
                h = (x[n, c] - centre) * inverse
                dx[n, c] = gamma[c] * inverse * (dy[n, c] - second * share - h * first * share)

    return backward


def batch_norm_cuda(x, gamma, beta, eps):
    expect("batch_norm (cuda)", x=(x, ("N", "C")), gamma=(gamma, CHANNELS), beta=(beta, CHANNELS))
    mean, variance = empty_cuda(gamma.shape), empty_cuda(gamma.shape)
    launch(_forward_kernels()[0], ceil_div(gamma.size, ACROSS), (ACROSS, DOWN), x, mean, variance)
    return batch_norm_apply_cuda(x, gamma, beta, mean, variance, eps), mean, variance


def batch_norm_apply_cuda(x, gamma, beta, mean, variance, eps):
    expect("batch_norm_apply (cuda)", x=(x, ("N", "C")), **_channels(gamma=gamma, beta=beta, mean=mean, variance=variance))
    y = empty_cuda(x.shape)
    launch(_forward_kernels()[1], blocks_for(y.size), THREADS, flat(x), gamma, beta, mean, variance, eps, flat(y), gamma.size)
    return y


def batch_norm_grad_cuda(dy, x, gamma, mean, variance, eps):
    expect(
        "batch_norm_grad (cuda)", dy=(dy, ("N", "C")), x=(x, ("N", "C")), **_channels(gamma=gamma, mean=mean, variance=variance)
    )
    dx, dgamma, dbeta = empty_cuda(x.shape), empty_cuda(gamma.shape), empty_cuda(gamma.shape)
    launch(
        _backward_kernel(), ceil_div(gamma.size, ACROSS), (ACROSS, DOWN), dy, x, gamma, mean, variance, eps, dx, dgamma, dbeta
    )
    return dx, dgamma, dbeta


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "batch_norm": lambda: dev.batch_norm(a(N, O), a(O), a(O), 1e-5),
        "batch_norm_apply": lambda: dev.batch_norm_apply(a(N, O), a(O), a(O), a(O), a(O, above=0.1), 1e-5),
        "batch_norm_grad": lambda: dev.batch_norm_grad(a(N, O), a(N, O), a(O), a(O), a(O, above=0.1), 1e-5),
    }
