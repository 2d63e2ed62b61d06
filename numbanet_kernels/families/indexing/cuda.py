"""Indexing on CUDA."""

from __future__ import annotations

import math
import operator

import numpy as np
from numba import int32

from ...blocks.turned_copy import EDGE, HEIGHT, turning
from ...runtime import arrays
from ...runtime.declare import cuda, kernel, kernels
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for, empty_cuda, flat, full_cuda, upload_cuda
from .family import axes_of, columns_of, joined_shape, repeated, spread_to, taken


@kernels("indexing")
def _copies():
    @kernel("void(f4[::1], f4[::1], i4, i4, i4, i4, i4, i4, i4)")
    def strided_copy(x, y, n1, n2, n3, s0, s1, s2, s3):
        """y[i0, i1, i2, i3] = x[i0*s0 + i1*s1 + i2*s2 + i3*s3], y contiguous."""
        i = cuda.grid(1)
        if i < y.size:
            i3, rest = i % n3, i // n3
            i2, rest = rest % n2, rest // n2
            i1, i0 = rest % n1, rest // n1
            y[i] = x[i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3]

    @kernel("void(f4[::1], i4[::1], f4[::1])")
    def gather(x, positions, y):
        """y[k] = x[positions[k]]"""
        k = cuda.grid(1)
        if k < y.size:
            y[k] = x[positions[k]]

    @kernel("void(f4[::1], i4[::1], f4[::1])")
    def scatter_add(dy, positions, dx):
        """dx[positions[k]] += dy[k]; atomic, because positions may repeat."""
        k = cuda.grid(1)
        if k < dy.size:
            cuda.atomic.add(dx, positions[k], dy[k])

    @kernel("void(f4[::1], i4[::1], f4[::1], i4, i4)")
    def take_rows(x, rows, y, count, width):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[min(max(rows[i // width], int32(0)), count - int32(1)) * width + i % width]

    @kernel("void(f4[::1], i4[::1], f4[::1], f4[::1], i4, i4)")
    def take_columns(x, columns, shift, y, x_width, y_width):
        """y[n, i] = x[n, columns[i]] - shift[i]; columns outside x read 0. Both expand and compact use this kernel."""
        i = cuda.grid(1)
        if i < y.size:
            column = columns[i % y_width]
            value = x[(i // y_width) * x_width + column] if 0 <= column < x_width else np.float32(0)
            y[i] = value - shift[i % y_width]

    @kernel("void(f4[::1], f4[::1], i4, i4, i4)")
    def paste(x, y, x_width, y_width, offset):
        """y[r, offset + c] = x[r, c]; each part of a concatenation is copied by one launch."""
        i = cuda.grid(1)
        if i < x.size:
            y[(i // x_width) * y_width + offset + i % x_width] = x[i]

    @kernel("void(i4[::1], i4[::1], i4)")
    def repeat_indices(x, y, times):
        i = cuda.grid(1)
        if i < y.size:
            k = x[i // times]
            y[i] = k * times + i % times if k >= 0 else int32(-1)

    return strided_copy, gather, scatter_add, take_rows, take_columns, paste, repeat_indices


MOST_BLOCKS = 65535  # largest number of blocks along the second and third axis of a grid


def _strided(x, shape, strides):
    """Return a contiguous copy of x for the given shape and strides; at most four axes remain when axes are merged."""
    axes = [(n, s) for n, s in zip(shape, strides) if n != 1]
    merged: list[tuple[int, int]] = []
    for n, s in axes:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    if len(merged) > 4:
        raise ValueError(f"cuda: a copy to shape {tuple(shape)} needs {len(merged)} separate axes, at most 4 are supported")
    merged = [(1, 0)] * (4 - len(merged)) + merged
    y = empty_cuda(tuple(shape))
    if not _transposed(x, y, merged):
        (_, s0), (n1, s1), (n2, s2), (n3, s3) = merged
        launch(_copies()[0], blocks_for(y.size), THREADS, flat(x), flat(y), n1, n2, n3, s0, s1, s2, s3)
    return y


def _transposed(x, y, axes):
    """If an axis of y other than the last one is contiguous in x, copy x to y in squares and return True; else return False.
    `axes` holds (length, stride in x) of each axis of y.
    """
    *outer, (n_b, s_b) = axes
    steps, contiguous = _element_strides([n for n, _ in axes]), [i for i, (n, s) in enumerate(outer) if s == 1 and n > 1]
    if s_b < 2 or not contiguous:
        return False
    n_a, t_a = outer[contiguous[0]][0], steps[contiguous[0]]
    (n0, s0, t0), (n1, s1, t1) = [(*outer[i], steps[i]) for i in range(3) if i != contiguous[0]]
    grid = ceil_div(n_b, EDGE), ceil_div(n_a, EDGE), n0 * n1
    if min(n_a, n_b) < EDGE // 2 or max(grid[1:]) > MOST_BLOCKS:  # nearly empty squares, or too many blocks
        return False
    launch(turning(), grid, (EDGE, HEIGHT), flat(x), flat(y), n_a, n_b, s_b, t_a, n1, s0, t0, s1, t1)
    return True


def _element_strides(shape):
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def transpose_cuda(x, axes):
    strides, axes = _element_strides(x.shape), axes_of("transpose (cuda)", x, axes)
    return _strided(x, [x.shape[a] for a in axes], [strides[a] for a in axes])


def broadcast_to_cuda(x, shape):
    spread_to("broadcast_to (cuda)", x, shape)
    missing = len(shape) - x.ndim
    strides = [0] * missing + [0 if n == 1 else s for n, s in zip(x.shape, _element_strides(x.shape))]
    return _strided(x, shape, strides)


@arrays.device_cache(maxsize=64)
def _positions(shape, key):
    """Return the flat positions that x[key] reads; they are computed once for each shape and key, as `_hashable` returns it."""
    positions = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)[tuple(map(_unpacked, key))]
    return arrays.to_device(np.ascontiguousarray(positions).reshape(-1)), positions.shape


def _unpacked(part):
    if not isinstance(part, tuple):
        return part
    kind, *numbers = part
    return slice(*numbers) if kind == "slice" else np.frombuffer(numbers[1], kind).reshape(numbers[0])


def _hashable(op, key):
    """Return the key of x[key] as a hashable value for the cache. Numbers and lists are named with their dtype, because True, 1
    and 1.0 are equal, but are different keys.
    """
    parts = []
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, slice):
            parts.append(("slice", *(n if n is None else operator.index(n) for n in (k.start, k.stop, k.step))))
        elif k is None or k is ...:
            parts.append(k)
        else:
            array = np.asarray(k)
            if not array.size and not isinstance(k, np.ndarray):  # an empty list has no dtype
                array = array.astype(np.int64)
            if array.dtype.kind not in "biu":
                raise IndexError(f"{op}: integers, slices, bools and lists of these are indices, not {array.dtype}")
            parts.append((array.dtype.str, array.shape, array.tobytes()))
    return tuple(parts)


def getitem_cuda(x, key):
    """y = x[key], copied so that it is contiguous; x of float32 or int32."""
    expect("getitem (cuda)", x=(x, None, INT32 if x.dtype == INT32 else np.float32))
    positions, shape = _positions(x.shape, _hashable("getitem (cuda)", key))
    y = empty_cuda(shape, x.dtype)
    bits = [flat(array).view(np.float32) for array in (x, y)]
    launch(_copies()[1], blocks_for(y.size), THREADS, bits[0], positions, bits[1])
    return y


def putitem_cuda(dy, key, shape):
    positions, of_dy = _positions(tuple(shape), _hashable("putitem (cuda)", key))
    expect("putitem (cuda)", dy=(dy, of_dy))
    dx = full_cuda(shape, 0.0)
    launch(_copies()[2], blocks_for(dy.size), THREADS, flat(dy), positions, flat(dx))
    return dx


def concatenate_cuda(xs, axis):
    shape = joined_shape("concatenate (cuda)", xs, axis)
    y, inner, offset = empty_cuda(shape), math.prod(shape[axis % len(shape) + 1 :]), 0
    for x in xs:
        width = x.shape[axis] * inner
        launch(_copies()[5], blocks_for(x.size), THREADS, flat(x), flat(y), width, shape[axis] * inner, offset)
        offset += width
    return y


def take_rows_cuda(x, rows, out=None):
    out = taken("take_rows (cuda)", empty_cuda, x, rows, out)
    if x.dtype.itemsize != 4:
        raise TypeError(f"take_rows (cuda): x must have elements of 4 bytes, not {x.dtype}")
    bits = [flat(array).view(np.float32) for array in (x, out)]
    launch(_copies()[3], blocks_for(out.size), THREADS, bits[0], flat(rows), bits[1], x.shape[0], math.prod(x.shape[1:]))
    return out


@arrays.device_cache(maxsize=16)
def _no_shift(size):
    return upload_cuda(np.zeros(size, np.float32))


def _launch_columns(x, columns, shift, out):
    shift = _no_shift(columns.size) if shift is None else shift
    launch(_copies()[4], blocks_for(out.size), THREADS, flat(x), columns, shift, flat(out), x.shape[1], columns.size)
    return out


def expand_cuda(x, pos, out=None):
    return _launch_columns(x, pos, None, columns_of("expand (cuda)", empty_cuda, x, pos, None, out))


def compact_cuda(x, list_, shift=None, out=None):
    return _launch_columns(x, list_, shift, columns_of("compact (cuda)", empty_cuda, x, list_, shift, out))


def repeat_indices_cuda(x, times):
    out = repeated("repeat_indices (cuda)", empty_cuda, x, times)
    launch(_copies()[6], blocks_for(out.size), THREADS, x, out, times)
    return out
