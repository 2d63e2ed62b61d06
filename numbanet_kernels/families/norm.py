"""Batch normalisation of x (N, C), N samples of C channels. Each channel is normalised over the samples; eps > 0:

    mean[c] = 1/N sum_n x[n, c]           variance[c] = 1/N sum_n (x[n, c] - mean[c])²
    h[n, c] = (x[n, c] - mean[c]) / sqrt(variance[c] + eps)

    batch_norm        returns (y, mean, variance), where y[n, c] = gamma[c] h[n, c] + beta[c]; both are 0 of no samples
    batch_norm_apply  y[n, c] = gamma[c] h[n, c] + beta[c], where mean and variance in h are arguments
    batch_norm_grad   dbeta[c] = sum_n dy[n, c],  dgamma[c] = sum_n dy[n, c] h[n, c],
                      dx[n, c] = gamma[c] / sqrt(variance[c] + eps) (dy[n, c] - dbeta[c] / N - h[n, c] dgamma[c] / N)

On the CPU threads divide the rows. They sum, in float64, the differences x[n] - x[0] and the squares of these differences. So
one pass gives both the mean and the variance, without cancellation if the mean is large. On CUDA the samples are divided into
parts. A block of threads sums 32 channels (ACROSS) of a part, and adjacent threads read adjacent channels; the variance needs a
second pass after the mean, which finds the part in the cache. If there are several parts, a further launch joins their sums.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32

from ..blocks.kahan import kahan
from ..host import threads
from ..runtime.declare import cuda, host_function, host_kernel, inlined, kernel, kernels
from ..runtime.expect import expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, full_cpu, part_cuda
from .reduce import sum_rows_cuda

ACROSS, DOWN = 32, 8  # threads of a block along the channels and along the samples
BLOCK = ACROSS * DOWN
ROWS, PARTS = 128, 256  # on CUDA a part has this many samples at least, and there are at most this many parts
CHANNELS = ("C",)
GROUP = 256  # rows with fewer channels are joined, so that a CPU loop has at least this length


# --- reference --------------------------------------------------------------------------------------------------------
def batch_norm_apply_reference(x, gamma, beta, mean, variance, eps):
    """y = gamma (x - mean) / sqrt(variance + eps) + beta, in float64"""
    x, gamma, beta, mean, variance = map(np.float64, (x, gamma, beta, mean, variance))
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def batch_norm_reference(x, gamma, beta, eps):
    """Return (y, mean, variance) of batch_norm, in float64."""
    given = np.float64(x) if len(x) else np.zeros((1, x.shape[1]))
    mean, variance = given.mean(0), given.var(0)
    return batch_norm_apply_reference(x, gamma, beta, mean, variance, eps), mean, variance


def batch_norm_grad_reference(dy, x, gamma, mean, variance, eps):
    """Return (dx, dgamma, dbeta) of batch_norm, in float64."""
    dy, x, gamma, mean, variance = map(np.float64, (dy, x, gamma, mean, variance))
    inverse = 1 / np.sqrt(variance + eps)
    h = (x - mean) * inverse
    dgamma, dbeta = (dy * h).sum(0), dy.sum(0)
    return gamma * inverse * (dy - dbeta / len(x) - h * dgamma / len(x)), dgamma, dbeta


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[::1], f4[::1])", makes_arrays=True)
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
        shift = x[0] if len(x) else full_cpu(gamma.shape, 0.0)
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
def _totals():
    """Return the device function `total_of`; each factory makes its own (`inlined`)."""

    @inlined
    def total_of(shared, value):
        """Return the sum of the values of the DOWN threads that have the same channel."""
        tx = int32(cuda.threadIdx.x)
        shared[int32(cuda.threadIdx.y) * ACROSS + tx] = value
        cuda.syncthreads()
        total = float32(0)
        for j in range(DOWN):
            total += shared[j * ACROSS + tx]
        cuda.syncthreads()
        return total

    return total_of


@kernels("norm")
def _forward_kernels():
    add, total_of = kahan(), _totals()

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], i4)")
    def moments(x, means, variances, rows):
        """Each block computes the means of 32 channels (ACROSS) over a part of the samples, `rows` or fewer, then their
        variances there. If there are several parts, their means are those of x[n] - x[0]: few digits are lost in them.
        """
        shared = cuda.shared.array(BLOCK, float32)
        ty, part = int32(cuda.threadIdx.y), int32(cuda.blockIdx.y)
        c, first = int32(cuda.blockIdx.x * ACROSS + cuda.threadIdx.x), part * rows
        stop = min(first + rows, int32(x.shape[0]))
        samples, centre, apart, base = float32(max(stop - first, int32(1))), float32(0), float32(0), float32(0)
        if c < x.shape[1] and first < stop:
            base = x[0, c]
        for turn in range(2):
            total, missed = float32(0), float32(0)
            if c < x.shape[1]:
                for n in range(first + ty, stop, DOWN):
                    d = (x[n, c] - base) - centre
                    total, missed = add(total, missed, d * d if turn else d)
            apart = total_of(shared, total) / samples
            if turn == 0:
                centre = apart
        if ty == 0 and c < x.shape[1]:
            means[part, c], variances[part, c] = centre if cuda.gridDim.y > 1 else base + centre, apart

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], i4)")
    def joined(x, means, variances, mean, variance, rows):
        """Each block joins the means and variances of all parts, for 32 channels (Chan, Golub & LeVeque 1983)."""
        shared = cuda.shared.array(BLOCK, float32)
        c, parts = int32(cuda.blockIdx.x * ACROSS + cuda.threadIdx.x), int32(means.shape[0])
        samples, centre, apart = int32(x.shape[0]), float32(0), float32(0)
        for turn in range(2):
            total, missed = float32(0), float32(0)
            if c < mean.size:
                for part in range(int32(cuda.threadIdx.y), parts, DOWN):
                    share = float32(min(rows, samples - part * rows)) / float32(samples)
                    d = means[part, c] - centre
                    total, missed = add(total, missed, share * ((variances[part, c] + d * d) if turn else d))
            apart = total_of(shared, total)
            if turn == 0:
                centre += apart
        if cuda.threadIdx.y == 0 and c < mean.size:
            mean[c], variance[c] = x[0, c] + centre, apart

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, f4[::1], i4)")
    def apply(x, gamma, beta, mean, variance, eps, y, channels):
        """Each thread computes one value."""
        i = cuda.grid(1)
        if i < y.size:
            c = i % channels
            y[i] = gamma[c] * (x[i] - mean[c]) / math.sqrt(variance[c] + eps) + beta[c]

    return moments, joined, apply


@kernels("norm")
def _backward_kernels():
    add, total_of = kahan(), _totals()

    @kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4, f4[:, :, ::1], i4)")
    def slopes(dy, x, mean, variance, eps, parts, rows):
        """Each block computes dgamma and dbeta of 32 channels (ACROSS) over a part of the samples, `rows` or fewer."""
        shared = cuda.shared.array(BLOCK, float32)
        ty, part = int32(cuda.threadIdx.y), int32(cuda.blockIdx.y)
        c, begin = int32(cuda.blockIdx.x * ACROSS + cuda.threadIdx.x), part * rows
        first, second, missed, lost = float32(0), float32(0), float32(0), float32(0)
        if c < mean.size:
            centre, inverse = mean[c], float32(1) / math.sqrt(variance[c] + eps)
            for n in range(begin + ty, min(begin + rows, int32(x.shape[0])), DOWN):
                first, missed = add(first, missed, dy[n, c] * (x[n, c] - centre) * inverse)
                second, lost = add(second, lost, dy[n, c])
        first, second = total_of(shared, first), total_of(shared, second)
        if ty == 0 and c < mean.size:
            parts[part, 0, c], parts[part, 1, c] = first, second

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4, f4[::1], f4[::1], f4[::1], i4)")
    def backward(dy, x, gamma, mean, variance, eps, dgamma, dbeta, dx, channels):
        """Each thread computes one value of dx."""
        i = cuda.grid(1)
        if i < dx.size:
            c, share = i % channels, float32(channels) / float32(dx.size)
            inverse = float32(1) / math.sqrt(variance[c] + eps)
            h = (x[i] - mean[c]) * inverse
            dx[i] = gamma[c] * inverse * (dy[i] - dbeta[c] * share - h * dgamma[c] * share)

    return slopes, backward


def _parts(n):
    """Return (number of parts, samples of a part, of which the last may have fewer) for n samples."""
    rows = max(ROWS, ceil_div(n, PARTS))
    return max(ceil_div(n, rows), 1), rows


def batch_norm_cuda(x, gamma, beta, eps):
    n, channels = expect("batch_norm (cuda)", x=(x, ("N", "C")), gamma=(gamma, CHANNELS), beta=(beta, CHANNELS)).values()
    mean, variance, across = empty_cuda((channels,)), empty_cuda((channels,)), ceil_div(channels, ACROSS)
    (parts, rows), (moments, joined, _) = _parts(n), _forward_kernels()
    of_parts = [one.reshape(1, channels) if parts == 1 else empty_cuda((parts, channels)) for one in (mean, variance)]
    launch(moments, (across, parts), (ACROSS, DOWN), x, *of_parts, rows)
    if parts > 1:
        launch(joined, across, (ACROSS, DOWN), x, *of_parts, mean, variance, rows)
    return batch_norm_apply_cuda(x, gamma, beta, mean, variance, eps), mean, variance


def batch_norm_apply_cuda(x, gamma, beta, mean, variance, eps):
    expect("batch_norm_apply (cuda)", x=(x, ("N", "C")), **_channels(gamma=gamma, beta=beta, mean=mean, variance=variance))
    y = empty_cuda(x.shape)
    launch(_forward_kernels()[2], blocks_for(y.size), THREADS, flat(x), gamma, beta, mean, variance, eps, flat(y), gamma.size)
    return y


def batch_norm_grad_cuda(dy, x, gamma, mean, variance, eps):
    expect(
        "batch_norm_grad (cuda)", dy=(dy, ("N", "C")), x=(x, ("N", "C")), **_channels(gamma=gamma, mean=mean, variance=variance)
    )
    channels, (parts, rows), (slopes, backward) = x.shape[1], _parts(len(x)), _backward_kernels()
    of_parts = empty_cuda((parts, 2, channels))
    launch(slopes, (ceil_div(channels, ACROSS), parts), (ACROSS, DOWN), dy, x, mean, variance, eps, of_parts, rows)
    sums = flat(of_parts) if parts == 1 else sum_rows_cuda(of_parts.reshape(parts, 2 * channels))
    dx, sums = empty_cuda(x.shape), (part_cuda(sums, 0, channels), part_cuda(sums, channels, 2 * channels))
    numbers = gamma, mean, variance, eps, *sums
    launch(backward, blocks_for(dx.size), THREADS, flat(dy), flat(x), *numbers, flat(dx), channels)
    return dx, *sums


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "batch_norm": lambda: dev.batch_norm(a(N, O), a(O), a(O), 1e-5),
        "batch_norm_apply": lambda: dev.batch_norm_apply(a(N, O), a(O), a(O), a(O), a(O, above=0.1), 1e-5),
        "batch_norm_grad": lambda: dev.batch_norm_grad(a(N, O), a(N, O), a(O), a(O), a(O, above=0.1), 1e-5),
    }
