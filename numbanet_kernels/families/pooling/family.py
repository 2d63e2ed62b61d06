"""Pooling of images x (N, H, W, C), channels last. A window determines the pixels of output (oh, ow) (`layouts.windows`):

    max_pool        y[n, oh, ow, c] = max of x[n, h, w, c] over the window; padding counts as -inf
                    places[n, oh, ow, c] = kh KW + kw, the position in the window of the first pixel that has this maximum. The
                    pixel is inside the image, even if the maximum is -inf. NaN is larger than any number, and of several NaNs
                    the last one counts; all this is as in PyTorch
    max_pool_grad   dx[n, h, w, c] = sum of dy[n, oh, ow, c] over the outputs whose maximum is at the pixel (h, w)

    avg_pool        y[n, oh, ow, c] = a[oh] b[ow] (sum of x[n, h, w, c] over the window), where a and b are 1 / the number of
                    pixels of the window along the height and the width; `include_padding` says whether padding counts
    avg_pool_grad   dx[n, h, w, c] = sum of a[oh] b[ow] dy[n, oh, ow, c] over the outputs whose window has the pixel (h, w)

`places` are bytes if a window, with one more row for padding (`cpu_max_pool`), has at most 256 pixels, else int32. The pixels
of a window are contiguous, and so are the outputs whose window has a pixel. So avg_pool_grad is the loop of avg_pool with other
`Bands`. Each gradient is written by one thread only.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from ...layouts.windows import Bins, CeilWindow, Window, pooled
from ...runtime.expect import INT32, expect

# dtype of `places` in bytes; codes of the types in signatures, by whether `places` are bytes
BYTE, KINDS = np.dtype(np.uint8), {True: "u1", False: "i4"}
FEW = 16  # number of pixels that are summed in float32


class Bands(NamedTuple):
    """Sums over ranges of one axis: z[i] = outer[i] (sum of inner[k] x[k] for edges[i, 0] <= k < edges[i, 1])."""

    edges: np.ndarray  # (O, 2) int32
    outer: np.ndarray  # (O,) float32
    inner: np.ndarray  # (I,) float32


def _axis_bands(window, axis, n, include_padding, back):
    """Return the `Bands` of averages along an axis of n pixels or, if `back`, those of their gradient. The holes of a dilated
    window count as pixels.
    """
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
def bands_of(window, height, width, include_padding, back):
    """Return the arrays of the `Bands` along the height, then those along the width."""
    return (*_axis_bands(window, 0, height, include_padding, back), *_axis_bands(window, 1, width, include_padding, back))


# --- reference --------------------------------------------------------------------------------------------------------
def max_pool_reference(x, window):
    """Return (y, places) of max_pool, in float64 and int64."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    n, oh, ow, c = pooled("max_pool (reference)", window, x.shape)

    def seen(array, beyond):
        ends = [
            max(p, (o - 1) * s + (k - 1) * d + 1 - p - size)
            for p, o, s, k, d, size in zip((ph, pw), (oh, ow), (sh, sw), (kh, kw), (dh, dw), x.shape[1:3])
        ]
        padded = np.pad(array, ((0, 0), (ph, ends[0]), (pw, ends[1]), (0, 0)), constant_values=beyond)
        return np.stack(
            [
                padded[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
                for i in range(kh)
                for j in range(kw)
            ]
        ).reshape(kh * kw, n, oh, ow, c)

    values, inside = seen(np.float64(x), -np.inf), seen(np.ones(x.shape, bool), False)
    largest, nan = values.max(0), np.isnan(values)
    last_nan = kh * kw - 1 - np.argmax(nan[::-1], 0)
    return largest, np.where(nan.any(0), last_nan, np.argmax(inside & (values == largest), 0))


def max_pool_grad_reference(dy, places, window, shape):
    """Return dx of max_pool, in float64."""
    (_, kw), stride, padding, dilation = window
    dx = np.zeros(shape)
    n, oh, ow, c = np.indices(dy.shape)
    h, w = (o * s - p + k * d for o, s, p, k, d in zip((oh, ow), stride, padding, np.divmod(np.int64(places), kw), dilation))
    there = (h >= 0) & (h < shape[1]) & (w >= 0) & (w < shape[2])
    np.add.at(dx, tuple(index[there] for index in (n, h, w, c)), np.float64(dy)[there])
    return dx


def _matrices(window, shape, include_padding):
    """Yield the two matrices, float64, by which avg_pool multiplies along the height and along the width."""
    for axis, n in enumerate(shape[1:3]):
        edges, outer, _ = _axis_bands(window, axis, n, include_padding, False)
        pixels = np.arange(n)
        yield np.float64(outer)[:, None] * ((pixels >= edges[:, :1]) & (pixels < edges[:, 1:]))


def avg_pool_reference(x, window, include_padding=True):
    """Return y of avg_pool, in float64."""
    return np.einsum("ih,jw,nhwc->nijc", *_matrices(window, x.shape, include_padding), np.float64(x))


def avg_pool_grad_reference(dy, window, shape, include_padding=True):
    """Return dx of avg_pool, in float64."""
    return np.einsum("ih,jw,nijc->nhwc", *_matrices(window, shape, include_padding), np.float64(dy))


def check_max_grad(op, dy, places, window, shape):
    """Return (True if `places` are bytes, the numbers of the window); raise TypeError or ValueError unless the arrays fit."""
    small = in_bytes(op, window)
    expect(op, dy=(dy, pooled(op, window, shape)), places=(places, dy.shape, BYTE if small else INT32))
    return small, numbers_of(window)


def in_bytes(op, window):
    """Return True if the positions in a window fit into a byte; raise TypeError for `Bins`."""
    if not isinstance(window, Window):
        raise TypeError(f"{op}: expected a Window, got {window!r}")
    return (window.kernel[0] + 1) * window.kernel[1] <= 256


def averaged(op, window, shape):
    """Return the shape (N, OH, OW, C) of averages; raise ValueError for a dilated window, and where `pooled` does."""
    if isinstance(window, Window) and window.dilation != (1, 1):
        raise ValueError(f"{op}: average pooling does not support dilation {window.dilation}")
    return pooled(op, window, shape)


def numbers_of(window):
    return tuple(int(n) for pair in window for n in pair)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
WINDOW = Window((3, 3), (2, 2), (1, 1))  # the windows overlap


def examples(dev, a, N, I, O):
    n, c = -(-N // 32), -(-O // 8)
    x, wide, bins = (n, 9, 8, c), Window((17, 16), (5, 7), (2, 8), (1, 1)), Bins(4, 3)
    beyond = CeilWindow((3, 2), (2, 3), (1, 1))
    dilated = Window((2, 3), (1, 2), (1, 1), (2, 3))

    def slope(window, shape):
        return a(*pooled("example", window, shape))

    def places(window, shape, kind):
        return a.indices(math.prod(window.kernel), *pooled("example", window, shape)).astype(kind)

    return {
        "max_pool": lambda: dev.max_pool(a(*x), WINDOW),
        "max_pool, dilated": lambda: dev.max_pool(a(*x), dilated),
        "max_pool, beyond the image": lambda: dev.max_pool(a(*x), beyond),
        "max_pool_grad, beyond the image": lambda: dev.max_pool_grad(slope(beyond, x), places(beyond, x, np.uint8), beyond, x),
        "avg_pool, beyond the image": lambda: dev.avg_pool(a(*x), beyond),
        "max_pool, wide": lambda: dev.max_pool(a(2, 20, 19, 3), wide),
        "max_pool_grad": lambda: dev.max_pool_grad(slope(WINDOW, x), places(WINDOW, x, np.uint8), WINDOW, x),
        "max_pool_grad, dilated": lambda: dev.max_pool_grad(slope(dilated, x), places(dilated, x, np.uint8), dilated, x),
        "max_pool_grad, wide": lambda: dev.max_pool_grad(
            slope(wide, (2, 20, 19, 3)), places(wide, (2, 20, 19, 3), np.int32), wide, (2, 20, 19, 3)
        ),
        "avg_pool": lambda: dev.avg_pool(a(*x), WINDOW, False),
        "avg_pool, adaptive": lambda: dev.avg_pool(a(*x), bins),
        "avg_pool_grad": lambda: dev.avg_pool_grad(slope(WINDOW, x), WINDOW, x),
        "avg_pool_grad, adaptive": lambda: dev.avg_pool_grad(slope(bins, x), bins, x),
    }
