"""`gemm_rows` on the CPU.

Submatrices of at most LISTED elements are copied as a whole, unless a slice selects their rows or columns. Of others, BLAS
reads windows, and rows with a constant stride, without a copy; if columns have a stride above 1, each thread copies them for
its own rows. If rows or columns are index lists, the forward pass uses `multiply_listed`, and for dx each thread gathers its
own rows.
"""

from __future__ import annotations

import functools

import numpy as np

from ...host.gather import copy_rows, gather, gather_entries, gather_rows, gathered
from ...host.gathered_gemm import multiply_listed
from ...host.window_gemm import check_runs, multiply_window, multiply_window_back
from ...layouts.rows import Period, Window
from ...runtime.declare import tape
from ...runtime.memory import empty_cpu
from ..elementwise import relu_grad_cpu
from ..gemm import multiply_back, multiply_forward
from .family import ALL, arguments

_numbers = functools.lru_cache(maxsize=64)(lambda *indices: np.arange(*indices, dtype=np.int32))


def _numbered(op, index, n):
    """Return the indices as an array; raise ValueError if one is out of range, except in a recording: plans checked them."""
    if isinstance(index, slice):
        return _numbers(*index.indices(n))
    index = index.indices if isinstance(index, Window) else index
    if index.size and tape.get() is None and not 0 <= index.min() <= index.max() < n:
        raise ValueError(f"{op}: {index} has indices outside an axis of length {n}")
    return index if index.flags.c_contiguous else np.ascontiguousarray(index)


LISTED = 1 << 17  # submatrices with fewer elements are gathered by index arrays, even if a view is possible


def _lists(op, w, rows, cols):
    """Return (rows, cols) as arrays; None if one is a slice, or if the submatrix is large. cols is None for all columns."""
    if isinstance(rows, slice) or isinstance(cols, slice) or (rows is None and cols is None):
        return None
    rows, cols = (index.indices if isinstance(index, (Period, Window)) else index for index in (rows, cols))
    height, width = w.shape[0] if rows is None else rows.size, w.shape[1] if cols is None else cols.size
    if height * width > LISTED:
        return None
    rows = _numbers(w.shape[0]) if rows is None else _numbered(op, rows, w.shape[0])
    return rows, None if cols is None else _numbered(op, cols, w.shape[1])


def _view(array, given):
    """Return the view of an array that slices, periods or None select. In a recorded step, each replay moves the beginning of
    the view to the first indices of the periods, because another plan of the same kind selects another view.
    """
    view = array[tuple(ALL if index is None else index.slice if isinstance(index, Period) else index for index in given)]
    if (writer := tape.get()) is None:
        return view
    if any(isinstance(index, slice) for index in given):
        writer.refuse(f"a product with a view of w {array.shape}")
    return writer.moving(view, array, [index and index.indices for index in given])


def _windows(op, w, given):
    """Return True if one axis has a window, and the other a window or None; one or two views per window are then multiplied. If
    the other axis has a list, the window is used as a list, too.
    """
    windows = {type(index) for index in given if index is not None} == {Window}
    for index, n in zip(given, w.shape, strict=True) if windows else ():
        index is None or check_runs(op, _numbered(op, index, n), index.times)
    return windows


def _weight_of(op, w, rows, cols, given):
    """Return a function that maps a thread's part to its rows of w[rows][:, cols], as a view if possible, else as a copy."""
    sliced, whole = isinstance(rows, slice) and isinstance(cols, slice), isinstance(cols, slice) and cols == ALL
    if not sliced:
        rows, cols = (_numbered(op, index, n) for index, n in zip((rows, cols), w.shape, strict=True))
    view = _view(w, given) if sliced else np.broadcast_to(w[:1, :1], (rows.size, cols.size))

    def rows_of(part):
        span = part.of(view.shape[0])
        if sliced and cols.step in (None, 1):
            return view[span]
        out = empty_cpu(view[span].shape)
        if sliced:
            copy_rows(view[span], out)
        elif whole:
            gather_rows(w, rows[span], out)
        else:
            gather(w, rows[span], cols, out)
        return out

    return rows_of


def _entries(bias, indices):
    """Return bias[indices], from a loop that can be recorded; if one of both is None, return `bias`."""
    if bias is None or indices is None:
        return bias
    out = empty_cpu(indices.shape)
    gather_entries(bias, indices, out)
    return out


def gemm_rows_cpu(x, w, rows, cols, bias=None, relu=False, scale=1.0, out=None):
    """y[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]])"""
    op, given = "gemm_rows (cpu)", (rows, cols)
    (rows, _), (cols, _), out = arguments(op, empty_cpu, x, w, rows, cols, bias, out=out)
    if (lists := _lists(op, w, *given)) is not None:
        weight = gathered(w, *lists)
        return multiply_forward(x, lambda part: weight[part.of(weight.shape[0])], out, _entries(bias, lists[0]), relu, scale)
    if _windows(op, w, given):
        return multiply_window(x, w, *given, out, _entries(bias, given[0] and given[0].indices), relu, scale)
    sliced, whole = isinstance(rows, slice) and isinstance(cols, slice), isinstance(cols, slice) and cols == ALL
    if not sliced:
        rows, cols = _numbered(op, rows, w.shape[0]), None if whole else _numbered(op, cols, w.shape[1])
    kept = None if given[0] is None else given[0].indices if isinstance(given[0], Period) else _numbered(op, rows, w.shape[0])
    if sliced:
        return multiply_forward(x, _weight_of(op, w, rows, cols, given), out, _entries(bias, kept), relu, scale)
    return multiply_listed(x, w, rows, cols, out, _entries(bias, kept), relu, scale)


def gemm_rows_dx_cpu(dy, w, rows, cols, where=None, scale=1.0, out=None):
    """dx[n, j] = scale * sum_k dy[n, k] w[rows[k], cols[j]]; if `where` is given, 0 unless where[n, j] > 0"""
    op, given = "gemm_rows_dx (cpu)", (rows, cols)
    (rows, _), (cols, _), out = arguments(op, empty_cpu, dy, w, rows, cols, where=where, out=out)
    if (lists := _lists(op, w, *given)) is not None:
        copy = gathered(w, *lists)
        weight = lambda part: copy[part.of(copy.shape[0])]  # noqa: E731
    else:
        if _windows(op, w, given):
            dx = multiply_window_back(dy, w, *given, out, scale)
            return dx if where is None else relu_grad_cpu(dx, where, 1.0, out=out)
        weight = _weight_of(op, w, rows, cols, given)
    if where is None:
        return multiply_back(dy, weight, out, alpha=scale)
    return relu_grad_cpu(multiply_back(dy, weight, out), where, scale, out=out)
