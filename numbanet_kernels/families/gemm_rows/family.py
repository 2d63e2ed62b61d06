"""Matrix product with the kept rows and columns of a weight w (O, I): rows (K,) and cols (J,) are the kept indices.

    forward   y[n, k]  = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]])      x (N, J) -> y (N, K)
    dx        dx[n, j] = scale * sum_k dy[n, k] w[rows[k], cols[j]]                          dy (N, K) -> dx (N, J)
              if an array `where` (N, J) is given, 0 unless where[n, j] > 0
    dw        dw[k, j] = sum_n dy[n, k] x[n, j]: a dense product (gemm_dw), because activations are compact

The work is 2 N K J FLOPs instead of 2 N O I. Each of `rows` and `cols` is a slice up to the end of the axis, an int32 array on
the device, a `layouts.rows.Period` or `Window`, or None for the whole axis. On CUDA, "masked" is for teaching only: blocks of
dropped rows return before their first barrier. "listed" takes any index lists, and its grid has only the kept outputs.
On a GPU that has `gemm_block`, it multiplies: in place if the kept indices have constant strides, else what "packed" copies,
which is K J numbers, a small part of the time of the product.
"""

from __future__ import annotations

import numpy as np

from ...layouts.rows import Period, Window
from ...runtime.expect import INT32, expect, shapes
from ...runtime.launch import ceil_div


# --- reference --------------------------------------------------------------------------------------------------------
def _submatrix(w, rows, cols):
    """Return w[rows][:, cols]; rows and cols are index arrays or slices, or None, which stands for all."""
    w = w if rows is None else w[rows]
    return w if cols is None else w[:, cols]


def gemm_rows_reference(x, w, rows, cols, bias=None, relu=False, scale=1.0):
    """y[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]]) in float64."""
    y = np.float64(x) @ _submatrix(np.float64(w), rows, cols).T
    if bias is not None:
        y = y + np.float64(bias)[slice(None) if rows is None else rows]
    return scale * (np.maximum(y, 0) if relu else y)


def gemm_rows_dx_reference(dy, w, rows, cols, where=None, scale=1.0):
    """dx[n, j] = scale * sum_k dy[n, k] w[rows[k], cols[j]] in float64, 0 unless where > 0."""
    dx = scale * (np.float64(dy) @ _submatrix(np.float64(w), rows, cols))
    return dx if where is None else np.where(np.asarray(where) > 0, dx, 0)


# --- checks -----------------------------------------------------------------------------------------------------------
ALL = slice(None)


def _chosen(op, index, n):
    """Return (the kept indices of an axis of length n, as a slice or an int32 array; the number of kept indices)."""
    if index is None:
        return ALL, n
    if isinstance(index, Window):
        expect(op, indices=(index.indices, (index.count,), INT32))
        if index.n != n:
            raise ValueError(f"{op}: a window of an axis of length {index.n}, not {n}")
        return index, index.count
    chosen, indices = (index.slice, index.indices) if isinstance(index, Period) else (index, index)
    if isinstance(chosen, slice):
        count = len(range(*chosen.indices(n)))
        fits = chosen.stop in (None, n) and (chosen.step or 1) > 0
    else:
        count = expect(op, indices=(index, ("K",), INT32))["K"]
        fits = count <= n
    if indices is not chosen and not (indices.dtype is INT32 and indices.shape == (count,)):
        expect(op, indices=(indices, (count,), INT32))
    if not fits:
        raise ValueError(f"{op}: {chosen} do not index an axis of length {n}; a slice must end at the end of its axis")
    return chosen, count


_CHECKS = {
    op: shapes(op, x="NP", w="OI", bias="O")
    for op in ("gemm_rows (cpu)", "gemm_rows (cuda)", "gemm_rows_dx (cpu)", "gemm_rows_dx (cuda)")
}


def arguments(op, empty, x, w, rows, cols, bias=None, where=None, out=None):
    """Return ((rows, number of rows), (cols, number of cols), output array); `_chosen` returns the first two."""
    n, width, height, depth = _CHECKS[op](x, w, bias)
    rows, cols = _chosen(op, rows, height), _chosen(op, cols, depth)
    inner, outer = (rows[1], cols[1]) if "_dx" in op else (cols[1], rows[1])
    if width != inner or where is not None or out is not None:
        expect(op, x=(x, (n, inner)), where=(where, (n, outer)), out=(out, (n, outer)), w=(w, (height, depth)))
    return rows, cols, empty((n, outer)) if out is None else out


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    slices = slice(1, None, 3), slice(0, None, 2)
    rows, cols = (
        Period(np.arange(each.start, n, each.step, dtype=np.int32), slice(each.start, n, each.step))
        for each, n in zip(slices, (3 * O, I), strict=True)
    )
    lists = [np.flatnonzero(np.arange(n) % 4).astype(np.int32) for n in (3 * O, I)]
    return {
        "gemm_rows": lambda: dev.gemm_rows(a(N, ceil_div(I, 2)), a(3 * O, I), *slices, a(3 * O), relu=True),
        "gemm_rows_dx": lambda: dev.gemm_rows_dx(a(N, O), a(3 * O, 2 * I), *slices),
        "gemm_rows, lists": lambda: dev.gemm_rows(a(N, lists[1].size), a(3 * O, I), *lists, a(3 * O)),
        "gemm_rows_dx, lists": lambda: dev.gemm_rows_dx(a(N, lists[0].size), a(3 * O, I), *lists),
        "gemm_rows, periods": lambda: dev.gemm_rows(a(N, cols.size), a(3 * O, I), rows, cols, a(3 * O), relu=True),
        "gemm_rows_dx, periods": lambda: dev.gemm_rows_dx(a(N, rows.size), a(3 * O, I), rows, cols),
    }
