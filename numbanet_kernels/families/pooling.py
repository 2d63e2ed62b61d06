"""Pooling of images x (N, H, W, C), channels last. A window says which pixels output (oh, ow) sees (`layouts.windows`):

    max_pool        y[n, oh, ow, c] = max of x[n, h, w, c] over the pixels that it sees; padding counts as -inf
                    places[n, oh, ow, c] = kh KW + kw of the first one that is the largest, in the image even where that is
                    -inf; NaN is larger than any number, and of several the last counts, all as in PyTorch
    max_pool_grad   dx[n, h, w, c] = sum of dy[n, oh, ow, c] over the outputs whose place is (h, w)

    avg_pool        y[n, oh, ow, c] = a[oh] b[ow] (sum of x[n, h, w, c] over the pixels that it sees), a and b 1 / the pixels
                    that it sees along each axis, those of padding counted or not
    avg_pool_grad   dx[n, h, w, c] = sum of a[oh] b[ow] dy[n, oh, ow, c] over the outputs that see (h, w)

Places are bytes where a window, with one row more for padding (`host.maxima`), has at most 256 pixels, else int32. The outputs
that see a pixel lie side by side, as the pixels that an output sees do: avg_pool_grad is avg_pool's loop over other `Bands`. No
gradient adds to what another thread writes.
"""
from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numba import float32, int32

from ..blocks.kahan import kahan
from ..host import threads
from ..host.maxima import KINDS, largest
from ..layouts.windows import Bins, Window, pooled
from ..runtime import arrays
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat

BYTE = np.dtype(np.uint8)
FEW = 16  # pixels that are added up in float32


class Bands(NamedTuple):
    """One axis of a sum over neighbours: z[i] = outer[i] (sum of inner[k] x[k] for edges[i, 0] <= k < edges[i, 1])."""

    edges: np.ndarray  # (O, 2) int32
    outer: np.ndarray  # (O,) float32
    inner: np.ndarray  # (I,) float32


def _axis_bands(window, axis, n, include_padding, back):
    """The bands of averages along an axis of n pixels; `back`: of their gradient. Holes of a window count as pixels."""
    if isinstance(window, Bins):
        i = np.arange(window[axis])
        starts, stops = i * n // len(i), -(-(i + 1) * n // len(i))
        sizes = stops - starts
    else:
        kernel, stride, padding, dilation = (pair[axis] for pair in window)
        starts = np.arange(window.positions(n, n)[axis]) * stride - padding
        stops = np.minimum(starts + dilation * (kernel - 1) + 1, n + padding)
        sizes, starts, stops = stops - starts, np.maximum(starts, 0), np.minimum(stops, n)
        sizes = sizes if include_padding else stops - starts
    edges, weights, ones = np.stack([starts, stops], 1), np.float32(1 / sizes), np.ones(n, np.float32)
    if not back:
        return Bands(np.int32(edges), weights, ones)
    pixels = np.arange(n)
    edges = np.stack([np.searchsorted(stops, pixels, "right"), np.searchsorted(starts, pixels, "right")], 1)
    return Bands(np.int32(edges), ones, weights)


@functools.lru_cache(maxsize=256)
def _bands(window, height, width, include_padding, back):
    """The arrays of both axes, one after the other."""
    return (*_axis_bands(window, 0, height, include_padding, back), *_axis_bands(window, 1, width, include_padding, back))


@arrays.device_cache(maxsize=256)
def _device_bands(*key):
    return tuple(arrays.to_device(array) for array in _bands(*key))


# --- reference --------------------------------------------------------------------------------------------------------
def max_pool_reference(x, window):
    """(y, places), float64 and int64"""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    n, oh, ow, c = pooled("max_pool (reference)", window, x.shape)

    def seen(array, beyond):
        padded = np.pad(array, ((0, 0), (ph, ph), (pw, pw), (0, 0)), constant_values=beyond)
        return np.stack([padded[:, i * dh:i * dh + (oh - 1) * sh + 1:sh, j * dw:j * dw + (ow - 1) * sw + 1:sw]
                         for i in range(kh) for j in range(kw)]).reshape(kh * kw, n, oh, ow, c)

    values, inside = seen(np.float64(x), -np.inf), seen(np.ones(x.shape, bool), False)
    largest, nan = values.max(0), np.isnan(values)
    last_nan = kh * kw - 1 - np.argmax(nan[::-1], 0)
    return largest, np.where(nan.any(0), last_nan, np.argmax(inside & (values == largest), 0))


def max_pool_grad_reference(dy, places, window, shape):
    """dx, float64"""
    (_, kw), stride, padding, dilation = window
    dx = np.zeros(shape)
    n, oh, ow, c = np.indices(dy.shape)
    h, w = (o * s - p + k * d for o, s, p, k, d in zip((oh, ow), stride, padding, np.divmod(np.int64(places), kw), dilation))
    there = (h >= 0) & (h < shape[1]) & (w >= 0) & (w < shape[2])
    np.add.at(dx, tuple(index[there] for index in (n, h, w, c)), np.float64(dy)[there])
    return dx


def _matrices(window, shape, include_padding):
    """avg_pool along each axis as a matrix, float64."""
    for axis, n in enumerate(shape[1:3]):
        edges, outer, _ = _axis_bands(window, axis, n, include_padding, False)
        pixels = np.arange(n)
        yield np.float64(outer)[:, None] * ((pixels >= edges[:, :1]) & (pixels < edges[:, 1:]))


def avg_pool_reference(x, window, include_padding=True):
    """y, float64"""
    return np.einsum("ih,jw,nhwc->nijc", *_matrices(window, x.shape, include_padding), np.float64(x))


def avg_pool_grad_reference(dy, window, shape, include_padding=True):
    """dx, float64"""
    return np.einsum("ih,jw,nijc->nhwc", *_matrices(window, shape, include_padding), np.float64(dy))


def _check_max_grad(op, dy, places, window, shape):
    """Whether places are bytes, and the numbers of the window; TypeError or ValueError unless the arrays fit."""
    small = _places(op, window)
    expect(op, dy=(dy, pooled(op, window, shape)), places=(places, dy.shape, BYTE if small else INT32))
    return small, _numbers(window)


def _places(op, window):
    """Whether the places of a window fit into bytes; TypeError for bins, whose maximum is not offered."""
    if not isinstance(window, Window):
        raise TypeError(f"{op}: it takes a Window, not {window!r}")
    return (window.kernel[0] + 1) * window.kernel[1] <= 256


def _averaged(op, window, shape):
    """`pooled`; ValueError for a window with holes, too."""
    if isinstance(window, Window) and window.dilation != (1, 1):
        raise ValueError(f"{op}: a mean has no dilation, the window's is {window.dilation}")
    return pooled(op, window, shape)


def _covering(bands, window, shape):
    """(H, 2) and (W, 2): first output whose window covers a pixel, and after the last."""
    return bands(window, *shape[1:3], True, True)[::3]


def _numbers(window):
    return tuple(int(n) for pair in window for n in pair)


# --- CPU --------------------------------------------------------------------------------------------------------------
def _to_largest(dy, places, dx, taps, numbers, start, stop):
    """The images start … stop - 1: each output's slope goes to the pixel that its place names, `taps` (K, 3) below, to the
    right, and in floats behind its window's first; those of places outside the image go nowhere."""
    kh, kw, sh, sw, ph, pw, dh, dw = numbers
    height, width, channels = dx.shape[1:]
    lowest, rightmost = height - (kh - 1) * dh, width - (kw - 1) * dw
    for n in range(start, stop):
        image = dx[n].reshape(height * width * channels)
        image[:] = 0
        for oh in range(dy.shape[1]):
            for ow in range(dy.shape[2]):
                slopes, place, top, left = dy[n, oh, ow], places[n, oh, ow], oh * sh - ph, ow * sw - pw
                first = (top * width + left) * channels
                inside = 0 <= top < lowest and 0 <= left < rightmost
                for c in range(channels):
                    at = place[c]
                    if 0 <= at < taps.shape[0] and (inside or (0 <= top + taps[at, 0] < height
                                                               and 0 <= left + taps[at, 1] < width)):
                        image[np.uint64(first + taps[at, 2] + c)] += slopes[c]


F4, REST = "f4[:, :, :, ::1]", "UniTuple(i8, 8), i8, i8"
_MAX_GRAD = {small: host_kernel(f"void({F4}, {kind}[:, :, :, ::1], {F4}, i8[:, ::1], {REST})")(_to_largest)
             for small, kind in KINDS.items()}


@host_kernel("void(f4[:, :, :, ::1], f4[:, :, :, ::1], i4[:, ::1], f4[::1], f4[::1], i4[:, ::1], f4[::1], f4[::1], i8, i8)")
def _sums(x, z, rows, outer_row, inner_row, cols, outer_col, inner_col, start, stop):
    """The rows start … stop - 1 of all (n, i) of z. Sums of many pixels are float64: float32 would lose the last ones."""
    sums = np.empty(z.shape[3], np.float64)
    for row in range(start, stop):
        n, i = row // z.shape[1], row % z.shape[1]
        for j in range(z.shape[2]):
            out, fresh = z[n, i, j], True
            if (rows[i, 1] - rows[i, 0]) * (cols[j, 1] - cols[j, 0]) > FEW:
                sums[:] = 0
                for h in range(rows[i, 0], rows[i, 1]):
                    for w in range(cols[j, 0], cols[j, 1]):
                        pixel, factor = x[n, h, w], outer_row[i] * inner_row[h] * outer_col[j] * inner_col[w]
                        for c in range(out.size):
                            sums[c] += factor * pixel[c]
                for c in range(out.size):
                    out[c] = sums[c]
                continue
            for h in range(rows[i, 0], rows[i, 1]):
                for w in range(cols[j, 0], cols[j, 1]):
                    pixel, factor = x[n, h, w], outer_row[i] * inner_row[h] * outer_col[j] * inner_col[w]
                    if fresh:
                        for c in range(out.size):
                            out[c] = factor * pixel[c]
                    else:
                        for c in range(out.size):
                            out[c] += factor * pixel[c]
                    fresh = False
            if fresh:
                out[:] = 0


def _share(loop, shape, elements, *given):
    """The loop on each thread's rows of N images."""
    def work(part):
        own = part.of(shape[0] * shape[1])
        loop(*given, own.start, own.stop)

    threads.share(work, elements)


def max_pool_cpu(x, window):
    """(y, places): the maximum in each window, and which of its pixels it is.   x (N, H, W, C)"""
    small = _places("max_pool (cpu)", window)
    expect("max_pool (cpu)", x=x)
    shape = pooled("max_pool (cpu)", window, x.shape)
    y, places = empty_cpu(shape), empty_cpu(shape, BYTE if small else INT32)
    if y.size:
        _share(largest, shape, x.size, x, y, places, _numbers(window))
    return y, places


def max_pool_grad_cpu(dy, places, window, shape):
    """dx of max_pool of images of this shape"""
    small, numbers = _check_max_grad("max_pool_grad (cpu)", dy, places, window, shape)
    dx, taps = empty_cpu(shape), np.indices(window.kernel).reshape(2, -1).T * window.dilation
    taps = np.ascontiguousarray(np.column_stack([taps, (taps[:, 0] * shape[2] + taps[:, 1]) * shape[3]]))

    def work(part):
        own = part.of(shape[0])
        _MAX_GRAD[small](dy, places, dx, taps, numbers, own.start, own.stop)

    threads.share(work, dx.size)
    return dx


def avg_pool_cpu(x, window, include_padding=True):
    """The mean of each window.   x (N, H, W, C)"""
    expect("avg_pool (cpu)", x=x)
    y = empty_cpu(_averaged("avg_pool (cpu)", window, x.shape))
    _share(_sums, y.shape, x.size, x, y, *_bands(window, *x.shape[1:3], bool(include_padding), False))
    return y


def avg_pool_grad_cpu(dy, window, shape, include_padding=True):
    """dx of avg_pool of images of this shape"""
    expect("avg_pool_grad (cpu)", dy=(dy, _averaged("avg_pool_grad (cpu)", window, shape)))
    dx = empty_cpu(shape)
    _share(_sums, dx.shape, dx.size, dy, dx, *_bands(window, *shape[1:3], bool(include_padding), True))
    return dx


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("pooling")
def _max_kernels(kind="u1"):
    @kernel(f"void(f4[::1], f4[::1], {kind}[::1], i4, i4, i4, i4, i4, UniTuple(i4, 8))")
    def largest(x, y, places, channels, height, width, y_height, y_width, numbers):
        """One thread, one maximum: neighbouring threads have neighbouring channels."""
        kh, kw, sh, sw, ph, pw, dh, dw = numbers
        k = cuda.grid(1)
        if k < y.size:
            c, rest = k % channels, k // channels
            ow, rest = rest % y_width, rest // y_width
            oh, n = rest % y_height, rest // y_height
            best, place = float32(-math.inf), int32(-1)
            for i in range(kh):
                h = oh * sh - ph + i * dh
                for j in range(kw):
                    w = ow * sw - pw + j * dw
                    if 0 <= h < height and 0 <= w < width:
                        value = x[((n * height + h) * width + w) * channels + c]
                        if place < 0 or value > best or value != value:
                            best, place = value, int32(i * kw + j)
            y[k], places[k] = best, max(place, int32(0))

    @kernel(f"void(f4[::1], {kind}[::1], f4[::1], i4[:, ::1], i4[:, ::1], i4, i4, i4, UniTuple(i4, 8))")
    def to_largest(dy, places, dx, rows, cols, channels, y_height, y_width, numbers):
        """One thread, one pixel of one channel: it looks at the outputs whose windows, holes included, cover it."""
        _, kw, sh, sw, ph, pw, dh, dw = numbers
        k = cuda.grid(1)
        if k < dx.size:
            c, rest = k % channels, k // channels
            w, rest = rest % cols.shape[0], rest // cols.shape[0]
            h, n = rest % rows.shape[0], rest // rows.shape[0]
            total = float32(0)
            for oh in range(rows[h, 0], rows[h, 1]):
                down = h + ph - oh * sh
                for ow in range(cols[w, 0], cols[w, 1]):
                    across = w + pw - ow * sw
                    at = ((n * y_height + oh) * y_width + ow) * channels + c
                    if down % dh == 0 and across % dw == 0 and places[at] == (down // dh) * kw + across // dw:
                        total += dy[at]
            dx[k] = total

    return largest, to_largest


@kernels("pooling")
def _sum_kernel():
    add = kahan()

    @kernel("void(f4[::1], f4[::1], i4[:, ::1], f4[::1], f4[::1], i4[:, ::1], f4[::1], f4[::1], i4)")
    def sums(x, z, rows, outer_row, inner_row, cols, outer_col, inner_col, channels):
        """One thread, one sum, of sums of FEW pixels."""
        k = cuda.grid(1)
        if k < z.size:
            c, rest = k % channels, k // channels
            j, rest = rest % outer_col.size, rest // outer_col.size
            i, n = rest % outer_row.size, rest // outer_row.size
            total, missed, some, count = float32(0), float32(0), float32(0), 0
            for h in range(rows[i, 0], rows[i, 1]):
                for w in range(cols[j, 0], cols[j, 1]):
                    at = ((n * inner_row.size + h) * inner_col.size + w) * channels + c
                    some += inner_row[h] * inner_col[w] * x[at]
                    count += 1
                    if count == FEW:
                        total, missed = add(total, missed, some)
                        some, count = float32(0), 0
            total, _ = add(total, missed, some)
            z[k] = outer_row[i] * outer_col[j] * total

    return sums


def max_pool_cuda(x, window):
    small = _places("max_pool (cuda)", window)
    expect("max_pool (cuda)", x=x)
    shape = pooled("max_pool (cuda)", window, x.shape)
    y, places = empty_cuda(shape), empty_cuda(shape, BYTE if small else INT32)
    launch(_max_kernels(KINDS[small])[0], blocks_for(y.size), THREADS, flat(x), flat(y), flat(places), shape[3],
           *x.shape[1:3], *shape[1:3], _numbers(window))
    return y, places


def max_pool_grad_cuda(dy, places, window, shape):
    small, numbers = _check_max_grad("max_pool_grad (cuda)", dy, places, window, shape)
    dx = empty_cuda(shape)
    launch(_max_kernels(KINDS[small])[1], blocks_for(dx.size), THREADS, flat(dy), flat(places), flat(dx),
           *_covering(_device_bands, window, shape), shape[3], *dy.shape[1:3], numbers)
    return dx


def avg_pool_cuda(x, window, include_padding=True):
    expect("avg_pool (cuda)", x=x)
    y = empty_cuda(_averaged("avg_pool (cuda)", window, x.shape))
    launch(_sum_kernel(), blocks_for(y.size), THREADS, flat(x), flat(y),
           *_device_bands(window, *x.shape[1:3], bool(include_padding), False), y.shape[3])
    return y


def avg_pool_grad_cuda(dy, window, shape, include_padding=True):
    expect("avg_pool_grad (cuda)", dy=(dy, _averaged("avg_pool_grad (cuda)", window, shape)))
    dx = empty_cuda(shape)
    launch(_sum_kernel(), blocks_for(dx.size), THREADS, flat(dy), flat(dx),
           *_device_bands(window, *shape[1:3], bool(include_padding), True), shape[3])
    return dx


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
WINDOW = Window((3, 3), (2, 2), (1, 1))  # they overlap


def examples(dev, a, N, I, O):
    n, c = -(-N // 32), -(-O // 8)
    x, wide, bins = (n, 9, 8, c), Window((17, 16), (5, 7), (2, 8), (1, 1)), Bins(4, 3)
    dilated = Window((2, 3), (1, 2), (1, 1), (2, 3))

    def slope(window, shape):
        return a(*pooled("example", window, shape))

    def places(window, shape, kind):
        return a.indices(math.prod(window.kernel), *pooled("example", window, shape)).astype(kind)

    return {
        "max_pool": lambda: dev.max_pool(a(*x), WINDOW),
        "max_pool, dilated": lambda: dev.max_pool(a(*x), dilated),
        "max_pool, wide": lambda: dev.max_pool(a(2, 20, 19, 3), wide),
        "max_pool_grad": lambda: dev.max_pool_grad(slope(WINDOW, x), places(WINDOW, x, np.uint8), WINDOW, x),
        "max_pool_grad, dilated": lambda: dev.max_pool_grad(slope(dilated, x), places(dilated, x, np.uint8), dilated, x),
        "max_pool_grad, wide": lambda: dev.max_pool_grad(slope(wide, (2, 20, 19, 3)), places(wide, (2, 20, 19, 3), np.int32),
                                                         wide, (2, 20, 19, 3)),
        "avg_pool": lambda: dev.avg_pool(a(*x), WINDOW, False),
        "avg_pool, adaptive": lambda: dev.avg_pool(a(*x), bins),
        "avg_pool_grad": lambda: dev.avg_pool_grad(slope(WINDOW, x), WINDOW, x),
        "avg_pool_grad, adaptive": lambda: dev.avg_pool_grad(slope(bins, x), bins, x),
    }
