"""Indexing: moving elements, x[...] -> y[...].

The reference of every function is the NumPy expression in its docstring, or written below. Index arrays are not checked on the
device: a row outside x is clamped to the nearest one, a column outside x reads 0.
"""

from __future__ import annotations

import math

import numpy as np
from numba import int32

from ..blocks.turned_copy import EDGE, HEIGHT, turning
from ..host import threads
from ..runtime import arrays
from ..runtime.declare import cuda, host_kernel, kernel, kernels, tape
from ..runtime.expect import INT32, expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, assign, blocks_for, empty_cpu, empty_cuda, flat, full_cpu, full_cuda, output, upload_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def take_rows_reference(x, rows):
    return np.take(x, rows, axis=0, mode="clip")


def expand_reference(x, pos):
    x, pos = np.asarray(x), np.asarray(pos)
    y = np.zeros((x.shape[0], pos.size), x.dtype)
    inside = (pos >= 0) & (pos < x.shape[1])
    y[:, inside] = x[:, pos[inside]]
    return y


_NO_SHIFT = np.zeros(0, np.float32)


def _axes(op, x, axes):
    expect(op, x=x)
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"{op}: axes {tuple(axes)} are not a permutation of the axes of x {x.shape}")
    return axes


def _spread(op, x, shape):
    expect(op, x=x)
    fits = len(shape) >= x.ndim and all(n in (1, m) for n, m in zip(x.shape[::-1], tuple(shape)[::-1]))
    if not fits or min(shape, default=0) < 0:
        raise ValueError(f"{op}: x {x.shape} cannot be broadcast to {tuple(shape)}")
    return shape


def _joined(op, xs, axis):
    """The shape of a concatenation."""
    shapes = [x.shape for x in xs]
    if not shapes or not -len(shapes[0]) <= axis < len(shapes[0]):
        raise ValueError(f"{op}: axis {axis} does not fit {shapes}")
    axis %= len(shapes[0])
    before, after = shapes[0][:axis], shapes[0][axis + 1 :]
    expect(op, **{f"x{i}": (x, (*before, f"length {i}", *after)) for i, x in enumerate(xs)})
    return (*before, sum(shape[axis] for shape in shapes), *after)


def _taken(op, empty, x, rows, out):
    expect(op, rows=(rows, None, INT32))
    if rows.size and not x.shape[:1] > (0,):
        raise ValueError(f"{op}: x {x.shape} has no rows, but rows {rows.shape} asks for some")
    return output(op, empty, out, (*rows.shape, *x.shape[1:]), x.dtype, x=(x, None, x.dtype))


def _columns(op, empty, x, columns, shift, out):
    return output(op, empty, out, ("N", "K"), x=(x, ("N", "I")), columns=(columns, ("K",), INT32), shift=(shift, ("K",)))


def repeat_indices_reference(x, times):
    x = np.asarray(x)[:, None]
    return np.where(x < 0, -1, x * times + np.arange(times)).reshape(-1)


def _repeated(op, empty, x, times):
    expect(op, x=(x, ("K",), INT32))
    if times < 1:
        raise ValueError(f"{op}: indices are repeated once at least, not {times} times")
    return empty((x.size * times,), np.int32)


# --- CPU --------------------------------------------------------------------------------------------------------------
def _contiguous(view):
    """The view itself if it is contiguous, else a copy."""
    return view if view.flags.c_contiguous else assign(view, empty_cpu(view.shape, view.dtype))


def transpose_cpu(x, axes):
    """y = np.transpose(x, axes), contiguous."""
    return _contiguous(x.transpose(_axes("transpose (cpu)", x, axes)))


def broadcast_to_cpu(x, shape):
    """y = np.broadcast_to(x, shape), copied so that it is contiguous."""
    shape = _spread("broadcast_to (cpu)", x, shape)
    return assign(np.broadcast_to(x, shape), empty_cpu(shape, x.dtype))


def getitem_cpu(x, key):
    """y = x[key], contiguous; a view if x[key] is contiguous."""
    _is_view(key)
    return _contiguous(x[key])


def _is_view(key):
    """Whether x[key] is a view, which has no position twice; else it is not recorded."""
    kinds = int, slice, type(None), type(...)
    found = all(type(k) is not bool and isinstance(k, kinds) for k in (key if isinstance(key, tuple) else (key,)))
    return found or ((writer := tape.get()) is not None and writer.refuse("a list of positions"))


def putitem_cpu(dy, key, shape):
    """dx = 0; dx[key] += dy, repeated indices adding up: the adjoint of getitem."""
    view, dx = _is_view(key), full_cpu(shape, 0.0)
    expect("putitem (cpu)", dy=(dy, dx[key].shape))
    if view:
        assign(dy, dx[key])
    else:
        np.add.at(dx, key, dy)
    return dx


def concatenate_cpu(xs, axis):
    """y = np.concatenate(xs, axis)"""
    out, start = empty_cpu(_joined("concatenate (cpu)", xs, axis), xs[0].dtype), 0
    for x in xs:
        start += assign(x, np.moveaxis(np.moveaxis(out, axis, 0)[start : start + x.shape[axis]], 0, axis)).shape[axis]
    return out


@host_kernel("void(u1[:, ::1], i4[::1], u1[:, ::1], i8, i8)")
def _take_rows(x, rows, y, first, stop):
    """y[k] = x[rows[k]] for first <= k < stop, bytes of the row that is nearest."""
    for k in range(first, stop):
        row, out = x[min(max(rows[k], 0), x.shape[0] - 1)], y[k]
        for j in range(out.size):
            out[j] = row[j]


def take_rows_cpu(x, rows, out=None):
    """y[k, ...] = x[rows[k], ...], rows (...) of 0 ... len(x) - 1"""
    if out is None or not (
        rows.dtype is INT32
        and rows.flags.c_contiguous
        and x.flags.c_contiguous
        and out.flags.c_contiguous
        and out.dtype is x.dtype
        and len(x)
        and out.shape == rows.shape + x.shape[1:]
    ):
        out = _taken("take_rows (cpu)", empty_cpu, x, rows, out)
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
    return _share_columns(x, pos, _NO_SHIFT, _columns("expand (cpu)", empty_cpu, x, pos, None, out))


def compact_cpu(x, list_, shift=None, out=None):
    """y[n, k] = x[n, list[k]] - shift[k]; without shift, the adjoint of expand.   x (N, I), list (K,), shift (K,) -> y (N,
    K)
    """
    out = _columns("compact (cpu)", empty_cpu, x, list_, shift, out)
    return _share_columns(x, list_, _NO_SHIFT if shift is None else shift, out)


@host_kernel("void(i4[::1], i4[::1], i8)")
def _repeat_indices(x, y, times):
    for k in range(x.size):
        for j in range(times):
            y[k * times + j] = x[k] * times + j if x[k] >= 0 else -1


def repeat_indices_cpu(x, times):
    """y[k times + j] = x[k] times + j for 0 <= j < times, -1 where x[k] is negative.   x (K,) int32 -> y (K times,) int32"""
    out = _repeated("repeat_indices (cpu)", empty_cpu, x, times)
    _repeat_indices(x, out, times)
    return out


# --- CUDA -------------------------------------------------------------------------------------------------------------
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
        """y[n, i] = x[n, columns[i]] - shift[i], with 0 for columns outside x: both expand and compact."""
        i = cuda.grid(1)
        if i < y.size:
            column = columns[i % y_width]
            value = x[(i // y_width) * x_width + column] if 0 <= column < x_width else np.float32(0)
            y[i] = value - shift[i % y_width]

    @kernel("void(f4[::1], f4[::1], i4, i4, i4)")
    def paste(x, y, x_width, y_width, offset):
        """y[r, offset + c] = x[r, c]: one part of a concatenation."""
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


MOST_BLOCKS = 65535  # along the second and third axis of a grid


def _strided(x, shape, strides):
    """Copy with up to four axes, after merging neighbouring axes with a common stride."""
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
    """Copy in squares if an axis other than the last of y is contiguous in x; else return False.   axes: (n, stride in x)"""
    *outer, (n_b, s_b) = axes
    steps, contiguous = _element_strides([n for n, _ in axes]), [i for i, (n, s) in enumerate(outer) if s == 1 and n > 1]
    if s_b < 2 or not contiguous:
        return False
    n_a, t_a = outer[contiguous[0]][0], steps[contiguous[0]]
    (n0, s0, t0), (n1, s1, t1) = [(*outer[i], steps[i]) for i in range(3) if i != contiguous[0]]
    grid = ceil_div(n_b, EDGE), ceil_div(n_a, EDGE), n0 * n1
    if min(n_a, n_b) < EDGE // 2 or max(grid[1:]) > MOST_BLOCKS:  # most of a square would be empty
        return False
    launch(turning(), grid, (EDGE, HEIGHT), flat(x), flat(y), n_a, n_b, s_b, t_a, n1, s0, t0, s1, t1)
    return True


def _element_strides(shape):
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def transpose_cuda(x, axes):
    strides, axes = _element_strides(x.shape), _axes("transpose (cuda)", x, axes)
    return _strided(x, [x.shape[a] for a in axes], [strides[a] for a in axes])


def broadcast_to_cuda(x, shape):
    _spread("broadcast_to (cuda)", x, shape)
    missing = len(shape) - x.ndim
    strides = [0] * missing + [0 if n == 1 else s for n, s in zip(x.shape, _element_strides(x.shape))]
    return _strided(x, shape, strides)


@arrays.device_cache(maxsize=64)
def _positions(shape, key):
    """Flat positions that x[key] reads, computed once per shape and key."""
    unpacked = tuple(
        slice(*k[1:])
        if isinstance(k, tuple) and k[:1] == ("slice",)
        else np.frombuffer(k[1], np.int64).reshape(k[2])
        if isinstance(k, tuple)
        else k
        for k in key
    )
    positions = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)[unpacked]
    return arrays.to_device(np.ascontiguousarray(positions).reshape(-1)), positions.shape


def _hashable(key, shape):
    """A key for x[key] as a hashable value for the cache; boolean masks become positions."""
    parts = []
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, slice):
            parts.append(("slice", k.start, k.stop, k.step))
        elif isinstance(k, (list, np.ndarray)):
            k = np.asarray(k)
            if k.dtype == bool:
                np.broadcast_to(False, shape)[key]  # IndexError if a mask does not have the shape that it masks
            arrays = np.nonzero(k) if k.dtype == bool else (k.astype(np.int64),)
            parts.extend(("array", a.tobytes(), a.shape) for a in arrays)
        else:
            parts.append(k)
    return tuple(parts)


def getitem_cuda(x, key):
    """y = x[key], copied so that it is contiguous; x of float32 or int32."""
    expect("getitem (cuda)", x=(x, None, INT32 if x.dtype == INT32 else np.float32))
    positions, shape = _positions(x.shape, _hashable(key, x.shape))
    y = empty_cuda(shape, x.dtype)
    bits = [flat(array).view(np.float32) for array in (x, y)]
    launch(_copies()[1], blocks_for(y.size), THREADS, bits[0], positions, bits[1])
    return y


def putitem_cuda(dy, key, shape):
    positions, of_dy = _positions(tuple(shape), _hashable(key, shape))
    expect("putitem (cuda)", dy=(dy, of_dy))
    dx = full_cuda(shape, 0.0)
    launch(_copies()[2], blocks_for(dy.size), THREADS, flat(dy), positions, flat(dx))
    return dx


def concatenate_cuda(xs, axis):
    shape = _joined("concatenate (cuda)", xs, axis)
    y, inner, offset = empty_cuda(shape), math.prod(shape[axis % len(shape) + 1 :]), 0
    for x in xs:
        width = x.shape[axis] * inner
        launch(_copies()[5], blocks_for(x.size), THREADS, flat(x), flat(y), width, shape[axis] * inner, offset)
        offset += width
    return y


def take_rows_cuda(x, rows, out=None):
    out = _taken("take_rows (cuda)", empty_cuda, x, rows, out)
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
    return _launch_columns(x, pos, None, _columns("expand (cuda)", empty_cuda, x, pos, None, out))


def compact_cuda(x, list_, shift=None, out=None):
    return _launch_columns(x, list_, shift, _columns("compact (cuda)", empty_cuda, x, list_, shift, out))


def repeat_indices_cuda(x, times):
    out = _repeated("repeat_indices (cuda)", empty_cuda, x, times)
    launch(_copies()[6], blocks_for(out.size), THREADS, x, out, times)
    return out


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "transpose": lambda: dev.transpose(a(N, I), (1, 0)),
        "transpose, three axes": lambda: dev.transpose(a(7, 33, 40), (1, 0, 2)),
        "transpose, four axes": lambda: dev.transpose(a(3, 35, 2, 37), (3, 0, 1, 2)),
        "broadcast_to": lambda: dev.broadcast_to(a(N, 1), (N, I)),
        "getitem": lambda: dev.getitem(a(N, I), (slice(1, None, 2), slice(None, None, -1))),
        "putitem": lambda: dev.putitem(a(N, I), [n // 2 for n in range(N)], (N, I)),
        "putitem, slices": lambda: dev.putitem(a(N - 2, I), (slice(1, -1), slice(None, None, -1)), (N, I)),
        "concatenate": lambda: dev.concatenate([a(N, 9), a(N, I)], 1),
        "take_rows": lambda: dev.take_rows(a(4 * N, I), a.indices(4 * N, N)),
        "expand": lambda: dev.expand(a(N, I), a.indices(2 * I, 2 * I) - I),
        "repeat_indices": lambda: dev.repeat_indices(a.indices(I, I), 7),
        "compact": lambda: dev.compact(a(N, I), a.indices(I, I // 2), a(I // 2)),
    }
