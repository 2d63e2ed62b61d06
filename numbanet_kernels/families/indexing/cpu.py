"""Indexing on the CPU."""

from __future__ import annotations

import math

import numpy as np

from ...host import threads
from ...host.stack import least
from ...host.transpose import VECTOR, swap
from ...runtime.declare import host_kernel, tape
from ...runtime.expect import INT32, expect
from ...runtime.memory import assign, empty_cpu, flat, full_cpu
from .family import axes_of, columns_of, joined_shape, repeated, spread_to, taken

_NO_SHIFT = np.zeros(0, np.float32)
SMALL = 1 << 13  # elements that NumPy moves sooner
NEAR = 1 << 10  # elements of a matrix that stays in the L1 cache, so that any order of its elements is as fast


def _contiguous(view):
    """Return the view itself if it is contiguous, else a copy."""
    return view if view.flags.c_contiguous else assign(view, empty_cpu(view.shape, view.dtype))


def transpose_cpu(x, axes):
    """y = np.transpose(x, axes), contiguous."""
    view = x.transpose(axes := axes_of("transpose (cpu)", x, axes))
    if view.flags.c_contiguous:
        return view
    kept = next(i for i, axis in enumerate(axes) if axis != i)  # leading axes that stay where they are
    moved = axes[kept]
    if tuple(axes[kept:]) != (*range(moved, x.ndim), *range(kept, moved)):
        return _contiguous(view)
    whole = x.reshape(math.prod(x.shape[:kept]), math.prod(x.shape[kept:moved]), -1)
    sooner = min(whole.shape[1:]) < VECTOR or math.prod(whole.shape[1:]) < NEAR or x.size < SMALL
    if sooner or not x.flags.writeable:  # which compiled loops refuse
        return _contiguous(view)
    y = empty_cpu(view.shape)
    swap(whole, y.reshape(len(whole), *whole.shape[:0:-1]))
    return y


def broadcast_to_cpu(x, shape):
    """y = np.broadcast_to(x, shape), copied so that it is contiguous."""
    shape = spread_to("broadcast_to (cpu)", x, shape)
    return assign(np.broadcast_to(x, shape), empty_cpu(shape, x.dtype))


def getitem_cpu(x, key):
    """y = x[key], contiguous; y is a view if x[key] is contiguous, else a copy."""
    _is_view(key := _whole(key))
    return _contiguous(x[key])


def _whole(key):
    """Return the key as a tuple with `...`, so that x[key] is an array even if it has no axes."""
    key = key if isinstance(key, tuple) else (key,)
    return key if any(k is ... for k in key) else (*key, ...)


def _is_view(key):
    """Return True if x[key] is a view for the tuple `key`: then no position occurs twice. Otherwise a recording is refused."""
    kinds = int, np.integer, slice, type(None), type(...)
    found = all(type(k) is not bool and isinstance(k, kinds) for k in key)
    return found or ((writer := tape.get()) is not None and writer.refuse("a list of positions"))


def putitem_cpu(dy, key, shape):
    """dx[key] += dy, from dx = 0 on; values of an index that occurs several times are added up: the adjoint of getitem."""
    view, dx = _is_view(key := _whole(key)), full_cpu(shape, 0.0)
    expect("putitem (cpu)", dy=(dy, dx[key].shape))
    if view:
        assign(dy, dx[key])
    else:
        np.add.at(dx, key, dy)
    return dx


def concatenate_cpu(xs, axis):
    """y = np.concatenate(xs, axis)"""
    out, start = empty_cpu(joined_shape("concatenate (cpu)", xs, axis), xs[0].dtype), 0
    for x in xs:
        start += assign(x, np.moveaxis(np.moveaxis(out, axis, 0)[start : start + x.shape[axis]], 0, axis)).shape[axis]
    return out


@host_kernel("void(u1[:, ::1], i4[::1], u1[:, ::1], i8, i8)")
def _take_rows(x, rows, y, first, stop):
    """y[k] = x[rows[k]] for first <= k < stop; the rows of x are bytes. An index outside x is clamped to the nearest row."""
    for k in range(first, stop):
        row, out = x[least(rows[k] if rows[k] > 0 else 0, x.shape[0] - 1)], y[k]
        for j in range(out.size):
            out[j] = row[j]


def take_rows_cpu(x, rows, out=None):
    """y[k, ...] = x[rows[k], ...]; rows is an array of any shape with indices in 0 … len(x) - 1"""
    if out is None or not (
        rows.dtype is INT32
        and rows.flags.c_contiguous
        and x.flags.c_contiguous
        and out.flags.c_contiguous
        and out.dtype is x.dtype
        and len(x)
        and out.shape == rows.shape + x.shape[1:]
    ):
        out = taken("take_rows (cpu)", empty_cpu, x, rows, out)
    if tape.get() is None:
        return x.take(rows, axis=0, out=out, mode="clip")
    if out.size:
        given, found = (flat(array).view(np.uint8).reshape(count, -1) for array, count in ((x, len(x)), (out, rows.size)))
        _share_loop(_take_rows, rows.size, out.size, given, flat(rows), found)
    return out


@host_kernel("void(f4[:, ::1], i4[::1], f4[::1], f4[:, ::1], i8, i8)")
def _take_columns(x, columns, shift, y, first, stop):
    """y[n, k] = x[n, columns[k]] - shift[k], with 0 for columns outside x, for first <= n < stop; an empty shift is 0."""
    for n in range(first, stop):
        row, out = x[n], y[n]
        for k in range(columns.size):
            out[k] = row[np.uint64(columns[k])] if 0 <= columns[k] < row.size else np.float32(0)
        if shift.size:
            for k in range(shift.size):
                out[k] -= shift[k]


def _share_loop(loop, count, elements, *given):
    """Run the loop on each thread's rows."""

    def work(part):
        span = part.of(count)
        loop(*given, span.start, span.stop)

    threads.share(work, elements)


def _share_columns(x, columns, shift, y):
    _share_loop(_take_columns, x.shape[0], y.size, x, columns, shift, y)
    return y


def expand_cpu(x, pos, out=None):
    """y[n, i] = x[n, pos[i]] if 0 <= pos[i] < K, else 0.   x (N, K), pos (I,) -> y (N, I)"""
    return _share_columns(x, pos, _NO_SHIFT, columns_of("expand (cpu)", empty_cpu, x, pos, None, out))


def compact_cpu(x, list_, shift=None, out=None):
    """y[n, k] = x[n, list_[k]] - shift[k]; x (N, I), list_ (K,), shift (K,) or None -> y (N, K)"""
    out = columns_of("compact (cpu)", empty_cpu, x, list_, shift, out)
    return _share_columns(x, list_, _NO_SHIFT if shift is None else shift, out)


@host_kernel("void(i4[::1], i4[::1], i8)")
def _repeat_indices(x, y, times):
    for k in range(x.size):
        for j in range(times):
            y[k * times + j] = x[k] * times + j if x[k] >= 0 else -1


def repeat_indices_cpu(x, times):
    """y[k times + j] = x[k] times + j for 0 <= j < times, -1 where x[k] is negative.   x (K,) int32 -> y (K times,) int32"""
    out = repeated("repeat_indices (cpu)", empty_cpu, x, times)
    _repeat_indices(x, out, times)
    return out
