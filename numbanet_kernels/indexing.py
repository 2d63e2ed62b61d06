"""Indexing: elements moved to other places, x[...] -> y[...].

The reference of every function is the NumPy expression in its docstring, or written below.
"""
from __future__ import annotations

import math

import numpy as np
from numba import float32, int32

from . import launch as L, threads
from .launch import ceil_div, cuda, host_kernel, kernel, kernels, launch
from .memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, full_cuda, upload_cpu, upload_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def take_rows_reference(x, rows):
    """y[k, ...] = x[rows[k], ...]"""
    return np.asarray(x)[np.asarray(rows)]


def expand_reference(x, pos):
    """y[n, i] = x[n, pos[i]] where pos[i] >= 0, else 0.   x (N, K), pos (I,) -> y (N, I)"""
    x, pos = np.asarray(x), np.asarray(pos)
    y = np.zeros((x.shape[0], pos.size), x.dtype)
    y[:, pos >= 0] = x[:, pos[pos >= 0]]
    return y


# --- CPU --------------------------------------------------------------------------------------------------------------
def transpose_cpu(x, axes):
    """y = np.transpose(x, axes), contiguous."""
    return np.asarray(x.transpose(axes), order="C")


def broadcast_to_cpu(x, shape):
    """y = np.broadcast_to(x, shape), copied so that it is contiguous."""
    return np.array(np.broadcast_to(x, shape), order="C")


def getitem_cpu(x, key):
    """y = x[key], contiguous; where x[key] is so already, the same memory."""
    return np.asarray(x[key], order="C")


def putitem_cpu(dy, key, shape):
    """dx = 0; dx[key] += dy, repeated positions adding up: the adjoint of getitem."""
    dx = np.zeros(shape, dy.dtype)
    np.add.at(dx, key, dy)
    return dx


def concatenate_cpu(xs, axis):
    """y = np.concatenate(xs, axis)"""
    return np.concatenate(xs, axis)


def take_rows_cpu(x, rows, out=None):
    """y[k, ...] = x[rows[k], ...]"""
    out = empty_cpu((len(rows), *x.shape[1:]), x.dtype) if out is None else out
    return np.take(x, rows, axis=0, out=out, mode="clip")


@host_kernel("void(f4[:, ::1], i4[::1], f4[:, ::1], i8, i8)")
def _expand(x, pos, y, first, stop):
    """y[n, i] = x[n, pos[i]] where x has such a column, else 0, for first <= n < stop."""
    for n in range(first, stop):
        row, out = x[n], y[n]
        for i in range(pos.size):
            out[i] = row[np.uint64(pos[i])] if 0 <= pos[i] < row.size else np.float32(0)


@host_kernel("void(f4[:, ::1], i4[::1], f4[::1], f4[:, ::1], i8, i8)")
def _compact(x, list_, shift, y, first, stop):
    """y[n, k] = x[n, list[k]] - shift[k] for first <= n < stop; x has all these columns."""
    for n in range(first, stop):
        row, out = x[n], y[n]
        for k in range(list_.size):
            out[k] = row[np.uint32(list_[k])] - shift[k]


@L.device_cache(maxsize=16)
def _no_shift(size, upload):
    return upload(np.zeros(size, np.float32))


def _share_samples(kernel, *arrays):
    """The kernel on each thread's rows."""
    def work(part):
        own = part.of(arrays[0].shape[0])
        kernel(*arrays, own.start, own.stop)

    threads.share(work, threads.worthwhile(arrays[-1].size))
    return arrays[-1]


def expand_cpu(x, pos, out=None):
    """y[n, i] = x[n, pos[i]] where pos[i] >= 0, else 0.   x (N, K), pos (I,) -> y (N, I)"""
    return _share_samples(_expand, x, pos, empty_cpu((x.shape[0], pos.size)) if out is None else out)


def compact_cpu(x, list_, shift=None, out=None):
    """y[n, k] = x[n, list[k]] - shift[k]; no shift: the adjoint of expand.   x (N, I), list (K,), shift (K,) -> y (N, K)"""
    shift = _no_shift(list_.size, upload_cpu) if shift is None else shift
    return _share_samples(_compact, x, list_, shift, empty_cpu((x.shape[0], list_.size)) if out is None else out)


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels
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

    @kernel("void(f4[::1], i4[::1], f4[::1], i4)")
    def take_rows(x, rows, y, width):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[rows[i // width] * width + i % width]

    @kernel("void(f4[::1], i4[::1], f4[::1], f4[::1], i4, i4)")
    def take_columns(x, columns, shift, y, x_width, y_width):
        """y[n, i] = x[n, columns[i]] - shift[i], x 0 where it has no such column: both expand and compact."""
        i = cuda.grid(1)
        if i < y.size:
            column = columns[i % y_width]
            found = x[(i // y_width) * x_width + column] if 0 <= column < x_width else np.float32(0)
            y[i] = found - shift[i % y_width]

    @kernel("void(f4[::1], f4[::1], i4, i4, i4)")
    def paste(x, y, x_width, y_width, offset):
        """y[r, offset + c] = x[r, c]: one part of a concatenation."""
        i = cuda.grid(1)
        if i < x.size:
            y[(i // x_width) * y_width + offset + i % x_width] = x[i]

    return strided_copy, gather, scatter_add, take_rows, take_columns, paste


EDGE, HEIGHT = 32, 8  # of the square that a block turns, and of its threads
SQUARE = EDGE * (EDGE + 1)  # a column's numbers lie in 32 banks
MOST_BLOCKS = 65535  # along the second and third axis of a grid


@kernels
def _turning():
    @kernel("void(f4[::1], f4[::1], i4, i4, i4, i4, i4, i4, i4, i4, i4)")
    def turned_copy(x, y, n_a, n_b, s_b, t_a, n1, s0, t0, s1, t1):
        """y[i0 t0 + i1 t1 + a t_a + b] = x[i0 s0 + i1 s1 + a + b s_b]: a is contiguous in x, b in y. By way of shared memory
        neighbouring threads read neighbours and write neighbours."""
        square = cuda.shared.array(SQUARE, float32)
        tx, ty, outer = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.z)
        a0, b0 = int32(cuda.blockIdx.y * EDGE), int32(cuda.blockIdx.x * EDGE)
        i0, i1 = outer // n1, outer % n1
        for j in range(0, EDGE, HEIGHT):
            if a0 + tx < n_a and b0 + ty + j < n_b:
                square[(ty + j) * (EDGE + 1) + tx] = x[i0 * s0 + i1 * s1 + a0 + tx + (b0 + ty + j) * s_b]
        cuda.syncthreads()
        for j in range(0, EDGE, HEIGHT):
            if a0 + ty + j < n_a and b0 + tx < n_b:
                y[i0 * t0 + i1 * t1 + (a0 + ty + j) * t_a + b0 + tx] = square[tx * (EDGE + 1) + ty + j]

    return turned_copy


def _strided(x, shape, strides):
    """Copy with up to four axes after neighbours that step together are merged."""
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
    if not _turned(x, y, merged):
        (_, s0), (n1, s1), (n2, s2), (n3, s3) = merged
        launch(_copies()[0], blocks_for(y.size), THREADS, flat(x), flat(y), n1, n2, n3, s0, s1, s2, s3)
    return y


def _turned(x, y, axes):
    """The copy in squares, where another axis of y than its last is contiguous in x; else False.   axes: (n, step in x)"""
    *outer, (n_b, s_b) = axes
    steps, contiguous = _element_strides([n for n, _ in axes]), [i for i, (n, s) in enumerate(outer) if s == 1 and n > 1]
    if s_b < 2 or not contiguous:
        return False
    n_a, t_a = outer[contiguous[0]][0], steps[contiguous[0]]
    (n0, s0, t0), (n1, s1, t1) = [(*outer[i], steps[i]) for i in range(3) if i != contiguous[0]]
    grid = ceil_div(n_b, EDGE), ceil_div(n_a, EDGE), n0 * n1
    if min(n_a, n_b) < EDGE // 2 or max(grid[1:]) > MOST_BLOCKS:  # of a narrow one most of a square would be empty
        return False
    launch(_turning(), grid, (EDGE, HEIGHT), flat(x), flat(y), n_a, n_b, s_b, t_a, n1, s0, t0, s1, t1)
    return True


def _element_strides(shape):
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


def transpose_cuda(x, axes):
    """y = np.transpose(x, axes), copied so that it is contiguous."""
    strides = _element_strides(x.shape)
    return _strided(x, [x.shape[a] for a in axes], [strides[a] for a in axes])


def broadcast_to_cuda(x, shape):
    """y = np.broadcast_to(x, shape), copied so that it is contiguous."""
    np.broadcast_shapes(x.shape, shape)
    missing = len(shape) - x.ndim
    strides = [0] * missing + [0 if n == 1 else s for n, s in zip(x.shape, _element_strides(x.shape))]
    return _strided(x, shape, strides)


@L.device_cache(maxsize=64)
def _positions(shape, key):
    """Flat positions that x[key] reads, computed once a shape and key."""
    unpacked = tuple(slice(*k[1:]) if isinstance(k, tuple) and k[:1] == ("slice",) else
                     np.frombuffer(k[1], np.int64).reshape(k[2]) if isinstance(k, tuple) else k for k in key)
    positions = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)[unpacked]
    return L.to_device(np.ascontiguousarray(positions).reshape(-1)), positions.shape


def _hashable(key, shape):
    """A key of x[key], x of that shape, as something a cache can hold; boolean masks become positions."""
    parts = []
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, slice):
            parts.append(("slice", k.start, k.stop, k.step))
        elif isinstance(k, (list, np.ndarray)):
            k = np.asarray(k)
            if k.dtype == bool:
                np.broadcast_to(False, shape)[key]  # IndexError where a mask has another shape than what it masks
            arrays = np.nonzero(k) if k.dtype == bool else (k.astype(np.int64),)
            parts.extend(("array", a.tobytes(), a.shape) for a in arrays)
        else:
            parts.append(k)
    return tuple(parts)


def getitem_cuda(x, key):
    """y = x[key], copied so that it is contiguous."""
    positions, shape = _positions(x.shape, _hashable(key, x.shape))
    y = empty_cuda(shape)
    launch(_copies()[1], blocks_for(y.size), THREADS, flat(x), positions, flat(y))
    return y


def putitem_cuda(dy, key, shape):
    """dx = 0; dx[key] += dy, repeated positions adding up: the adjoint of getitem."""
    positions, _ = _positions(tuple(shape), _hashable(key, shape))
    dx = full_cuda(shape, 0.0)
    launch(_copies()[2], blocks_for(dy.size), THREADS, flat(dy), positions, flat(dx))
    return dx


def concatenate_cuda(xs, axis):
    """y = np.concatenate(xs, axis)"""
    axis %= xs[0].ndim
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    y = empty_cuda(tuple(shape))
    inner = math.prod(shape[axis + 1:])
    offset = 0
    for x in xs:
        width = x.shape[axis] * inner
        launch(_copies()[5], blocks_for(x.size), THREADS, flat(x), flat(y), width, shape[axis] * inner, offset)
        offset += width
    return y


def take_rows_cuda(x, rows, out=None):
    """y[k, ...] = x[rows[k], ...]"""
    out = empty_cuda((rows.size, *x.shape[1:]), x.dtype) if out is None else out
    launch(_copies()[3], blocks_for(out.size), THREADS, flat(x), rows, flat(out), math.prod(x.shape[1:]))
    return out


def _take_columns(x, columns, shift, out):
    out = empty_cuda((x.shape[0], columns.size)) if out is None else out
    shift = _no_shift(columns.size, upload_cuda) if shift is None else shift
    launch(_copies()[4], blocks_for(out.size), THREADS, flat(x), columns, shift, flat(out), x.shape[1], columns.size)
    return out


def expand_cuda(x, pos, out=None):
    """y[n, i] = x[n, pos[i]] where pos[i] >= 0, else 0.   x (N, K), pos (I,) -> y (N, I)"""
    return _take_columns(x, pos, None, out)


def compact_cuda(x, list_, shift=None, out=None):
    """y[n, k] = x[n, list[k]] - shift[k]; no shift: the adjoint of expand.   x (N, I), list (K,), shift (K,) -> y (N, K)"""
    return _take_columns(x, list_, shift, out)
