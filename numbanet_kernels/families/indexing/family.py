"""Indexing: operations that move elements, x[...] -> y[...].

The reference of a function is the NumPy expression in its docstring, or is written below. Index arrays are not checked on the
device: the index of a row outside x is replaced by that of the nearest row, and a column outside x reads 0.
"""

from __future__ import annotations

import numpy as np

from ...runtime.expect import INT32, expect
from ...runtime.memory import output


# --- reference --------------------------------------------------------------------------------------------------------
def take_rows_reference(x, rows):
    return np.take(x, rows, axis=0, mode="clip")


def expand_reference(x, pos):
    x, pos = np.asarray(x), np.asarray(pos)
    y = np.zeros((x.shape[0], pos.size), x.dtype)
    inside = (pos >= 0) & (pos < x.shape[1])
    y[:, inside] = x[:, pos[inside]]
    return y


def repeat_indices_reference(x, times):
    x = np.asarray(x)[:, None]
    return np.where(x < 0, -1, x * times + np.arange(times)).reshape(-1)


# --- checks -----------------------------------------------------------------------------------------------------------
def axes_of(op, x, axes):
    expect(op, x=x)
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"{op}: axes {tuple(axes)} are not a permutation of the axes of x {x.shape}")
    return axes


def spread_to(op, x, shape):
    expect(op, x=x)
    fits = len(shape) >= x.ndim and all(n in (1, m) for n, m in zip(x.shape[::-1], tuple(shape)[::-1]))
    if not fits or min(shape, default=0) < 0:
        raise ValueError(f"{op}: x {x.shape} cannot be broadcast to {tuple(shape)}")
    return shape


def joined_shape(op, xs, axis):
    """Return the shape of the concatenation of the arrays `xs` along `axis`."""
    shapes = [x.shape for x in xs]
    if not shapes or not -len(shapes[0]) <= axis < len(shapes[0]):
        raise ValueError(f"{op}: axis {axis} does not fit {shapes}")
    axis %= len(shapes[0])
    before, after = shapes[0][:axis], shapes[0][axis + 1 :]
    expect(op, **{f"x{i}": (x, (*before, f"length {i}", *after)) for i, x in enumerate(xs)})
    return (*before, sum(shape[axis] for shape in shapes), *after)


def taken(op, empty, x, rows, out):
    expect(op, rows=(rows, None, INT32))
    if rows.size and not x.shape[:1] > (0,):
        raise ValueError(f"{op}: x {x.shape} has no rows, but rows {rows.shape} has indices of rows")
    return output(op, empty, out, (*rows.shape, *x.shape[1:]), x.dtype, x=(x, None, x.dtype))


def columns_of(op, empty, x, columns, shift, out):
    return output(op, empty, out, ("N", "K"), x=(x, ("N", "I")), columns=(columns, ("K",), INT32), shift=(shift, ("K",)))


def repeated(op, empty, x, times):
    expect(op, x=(x, ("K",), INT32))
    if times < 1:
        raise ValueError(f"{op}: times must be at least 1, not {times}")
    return empty((x.size * times,), np.int32)


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
