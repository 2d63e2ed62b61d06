"""Pooling on CUDA."""

from __future__ import annotations

import math

from numba import float32, int32

from ...blocks.kahan import kahan
from ...layouts.windows import pooled
from ...runtime import arrays
from ...runtime.declare import cuda, kernel, kernels
from ...runtime.expect import INT32, expect
from ...runtime.launch import launch
from ...runtime.memory import THREADS, blocks_for, empty_cuda, flat
from .family import BYTE, FEW, KINDS, averaged, bands_of, check_max_grad, in_bytes, numbers_of


@arrays.device_cache(maxsize=256)
def _device_bands(*key):
    return tuple(arrays.to_device(array) for array in bands_of(*key))


def _covering(bands, window, shape):
    """Return two arrays, (H, 2) and (W, 2): for each line and each column of pixels, the first output whose window covers it,
    and the end of these outputs.
    """
    return bands(window, *shape[1:3], True, True)[::3]


@kernels("pooling")
def _max_kernels(kind="u1"):
    @kernel(f"void(f4[::1], f4[::1], {kind}[::1], i4, i4, i4, i4, i4, UniTuple(i4, 8))")
    def largest(x, y, places, channels, height, width, y_height, y_width, numbers):
        """Each thread computes one maximum; adjacent threads compute adjacent channels."""
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
        """Each thread computes one channel of dx at a pixel from all outputs whose window, with its holes, covers the pixel."""
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
        """Each thread computes one output, as a sum of float32 sums over FEW pixels each."""
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
    small = in_bytes("max_pool (cuda)", window)
    expect("max_pool (cuda)", x=x)
    shape = pooled("max_pool (cuda)", window, x.shape)
    y, places = empty_cuda(shape), empty_cuda(shape, BYTE if small else INT32)
    launch(
        _max_kernels(KINDS[small])[0],
        blocks_for(y.size),
        THREADS,
        flat(x),
        flat(y),
        flat(places),
        shape[3],
        *x.shape[1:3],
        *shape[1:3],
        numbers_of(window),
    )
    return y, places


def max_pool_grad_cuda(dy, places, window, shape):
    small, numbers = check_max_grad("max_pool_grad (cuda)", dy, places, window, shape)
    dx = empty_cuda(shape)
    launch(
        _max_kernels(KINDS[small])[1],
        blocks_for(dx.size),
        THREADS,
        flat(dy),
        flat(places),
        flat(dx),
        *_covering(_device_bands, window, shape),
        shape[3],
        *dy.shape[1:3],
        numbers,
    )
    return dx


def avg_pool_cuda(x, window, include_padding=True):
    expect("avg_pool (cuda)", x=x)
    y = empty_cuda(averaged("avg_pool (cuda)", window, x.shape))
    launch(
        _sum_kernel(),
        blocks_for(y.size),
        THREADS,
        flat(x),
        flat(y),
        *_device_bands(window, *x.shape[1:3], bool(include_padding), False),
        y.shape[3],
    )
    return y


def avg_pool_grad_cuda(dy, window, shape, include_padding=True):
    expect("avg_pool_grad (cuda)", dy=(dy, averaged("avg_pool_grad (cuda)", window, shape)))
    dx = empty_cuda(shape)
    launch(
        _sum_kernel(),
        blocks_for(dx.size),
        THREADS,
        flat(dy),
        flat(dx),
        *_device_bands(window, *shape[1:3], bool(include_padding), True),
        shape[3],
    )
    return dx
