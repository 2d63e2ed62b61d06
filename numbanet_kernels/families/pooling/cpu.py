"""Pooling on the CPU."""

from __future__ import annotations

import functools

import numpy as np

from ...host import threads
from ...layouts.windows import pooled
from ...runtime.declare import host_kernel
from ...runtime.expect import INT32, expect
from ...runtime.memory import empty_cpu
from .cpu_max_pool import largest
from .family import BYTE, FEW, KINDS, averaged, bands_of, check_max_grad, in_bytes, numbers_of


def _to_largest(dy, places, dx, taps, numbers, start, stop):
    """Compute dx of the images start … stop - 1: the gradient of each output is added to the pixel of its maximum. `taps` is
    the result of `_taps`. Pixels outside the image are skipped.
    """
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
                    if 0 <= at < taps.shape[0] and (
                        inside or (0 <= top + taps[at, 0] < height and 0 <= left + taps[at, 1] < width)
                    ):
                        image[np.uint64(first + taps[at, 2] + c)] += slopes[c]


F4, REST = "f4[:, :, :, ::1]", "UniTuple(i8, 8), i8, i8"
_MAX_GRAD = {
    small: host_kernel(f"void({F4}, {kind}[:, :, :, ::1], {F4}, i8[:, ::1], {REST})")(_to_largest)
    for small, kind in KINDS.items()
}


@host_kernel("void(f4[:, :, :, ::1], f4[:, :, :, ::1], i4[:, ::1], f4[::1], f4[::1], i4[:, ::1], f4[::1], f4[::1], i8, i8)")
def _sums(x, z, rows, outer_row, inner_row, cols, outer_col, inner_col, start, stop):
    """Compute the rows start … stop - 1 of z, counted over all n and i. Sums are float64: in float32, the last pixels of a
    large sum would be lost.
    """
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
    """Run the loop on each thread's rows of N images."""

    def work(part):
        own = part.of(shape[0] * shape[1])
        loop(*given, own.start, own.stop)

    threads.share(work, elements)


def max_pool_cpu(x, window):
    """y = the maximum of each window, places = its position in the window; returns (y, places).   x (N, H, W, C)"""
    small = in_bytes("max_pool (cpu)", window)
    expect("max_pool (cpu)", x=x)
    shape = pooled("max_pool (cpu)", window, x.shape)
    y, places = empty_cpu(shape), empty_cpu(shape, BYTE if small else INT32)
    if y.size:
        _share(largest, shape, x.size, x, y, places, numbers_of(window))
    return y, places


@functools.lru_cache(maxsize=256)
def _taps(window, width, channels):
    """Return an array (K, 3) that holds, for each of the K pixels of a window, its offset from the first pixel of the window:
    the number of lines, the number of pixels to the right, and the number of floats.
    """
    taps = np.indices(window.kernel).reshape(2, -1).T * window.dilation
    return np.ascontiguousarray(np.column_stack([taps, (taps[:, 0] * width + taps[:, 1]) * channels]))


def max_pool_grad_cpu(dy, places, window, shape):
    """dx[n, h, w, c] = sum of dy[n, oh, ow, c] over the outputs whose maximum is at (h, w); `shape` is that of dx"""
    small, numbers = check_max_grad("max_pool_grad (cpu)", dy, places, window, shape)
    dx, taps = empty_cpu(shape), _taps(window, *shape[2:])

    def work(part):
        own = part.of(shape[0])
        _MAX_GRAD[small](dy, places, dx, taps, numbers, own.start, own.stop)

    threads.share(work, dx.size)
    return dx


def avg_pool_cpu(x, window, include_padding=True):
    """y = the mean of each window.   x (N, H, W, C)"""
    expect("avg_pool (cpu)", x=x)
    y = empty_cpu(averaged("avg_pool (cpu)", window, x.shape))
    _share(_sums, y.shape, x.size, x, y, *bands_of(window, *x.shape[1:3], bool(include_padding), False))
    return y


def avg_pool_grad_cpu(dy, window, shape, include_padding=True):
    """dx[n, h, w, c] = sum of a[oh] b[ow] dy[n, oh, ow, c] over the windows that contain (h, w); a, b: 1 / sides of a window;
    `shape`: of dx"""
    expect("avg_pool_grad (cpu)", dy=(dy, averaged("avg_pool_grad (cpu)", window, shape)))
    dx = empty_cpu(shape)
    _share(_sums, dx.shape, dx.size, dy, dx, *bands_of(window, *shape[1:3], bool(include_padding), True))
    return dx
