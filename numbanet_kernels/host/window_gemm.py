"""Window GEMM: products with a window of contiguous rows and columns of a weight. BLAS takes views, so the
weight is not copied.

    forward    out[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[k])
    back       out[n, j] = alpha * sum_k dy[n, k] w[rows[k], cols[j]]

The indices of a window (`layouts.rows.Window`) are one run of adjacent integers, or two if the window wraps around the end of
its axis; for a recurrent layer, each gate has one or two runs. A product is one call of BLAS for each pair of a run of rows and
a run of columns; results for the runs of the summed axis are added up, other runs give other outputs. The compiled loops find
the runs themselves, because each replay of a recorded step has other lists of indices. act is ReLU or the identity.
"""

from __future__ import annotations

import numpy as np

from ..runtime.declare import host_function, host_kernel
from ..runtime.memory import empty_cpu
from . import blas, threads
from .blas import multiply
from .transpose import transpose_back

ALL = np.zeros(0, np.int32)  # compiled loops take it in place of a list of all indices


def check_runs(op, indices, times=1):
    """Raise ValueError if the indices have more than two runs of adjacent integers for each of `times` windows."""
    if np.count_nonzero(np.diff(indices) != 1) > 2 * times - 1:
        windows = (
            "a window: they have more than two runs" if times == 1 else f"{times} windows: they have more than two runs each"
        )
        raise ValueError(f"{op}: {indices} are not {windows} of adjacent integers")


@host_function
def _run_end(indices, everything, begin, stop):
    """Return the end, at most `stop`, of the run of adjacent integers that starts at position `begin`. If `everything`, the
    indices are all integers, and `indices` is not read.
    """
    if everything:
        return stop
    low, high = begin + 1, stop  # bisection: indices[i] - i is constant within a run
    while low < high:
        middle = (low + high) // 2
        if indices[middle] - middle == indices[begin] - begin:
            low = middle + 1
        else:
            high = middle
    return low


@host_kernel("void(i8, f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], b1, b1, f4[:, ::1], i8, i8)")
def _forward(entry, x, w, rows, cols, all_rows, all_cols, out, first, stop):
    """out[k, n] = sum_j w[rows[k], cols[j]] x[n, j] for first <= k < stop"""
    inner, begin = x.shape[1], first
    if not inner:
        out[first:stop] = 0
        return
    while begin < stop:
        end, left = _run_end(rows, all_rows, begin, stop), 0
        row = begin if all_rows else rows[begin]
        while left < inner:
            right = _run_end(cols, all_cols, left, inner)
            col = left if all_cols else cols[left]
            part = w[row : row + end - begin, col : col + right - left]
            multiply(entry, part, x[:, left:right], out[begin:end], False, True, 0.0 if left == 0 else 1.0)
            left = right
        begin = end


@host_kernel("void(i8, f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], b1, b1, f4[:, ::1], i8, i8)")
def _back(entry, dy, w, rows, cols, all_rows, all_cols, out, first, stop):
    """out[j, n] = sum_k w[rows[k], cols[j]] dy[n, k], with the sum over k from `first` to stop - 1"""
    outer, left = out.shape[0], 0
    if first == stop:
        out[:] = 0
        return
    while left < outer:
        right, begin = _run_end(cols, all_cols, left, outer), first
        col = left if all_cols else cols[left]
        while begin < stop:
            end = _run_end(rows, all_rows, begin, stop)
            row = begin if all_rows else rows[begin]
            part = w[row : row + end - begin, col : col + right - left]
            multiply(entry, part, dy[:, begin:end], out[left:right], True, True, 0.0 if begin == first else 1.0)
            begin = end
        left = right


def _lists(rows, cols):
    """Return the arguments of the loops for a `Window` of each axis; None instead of a window stands for the whole axis."""
    return [ALL if window is None else window.indices for window in (rows, cols)] + [rows is None, cols is None]


def multiply_window(x, w, rows, cols, out, bias=None, relu=False, scale=1.0):
    """out = scale * act(x w[rows, cols].T + bias), with act = ReLU if `relu`.

    Each of rows and cols is a `Window`, or None, which stands for the whole axis. bias has a value for each row of the window.
    """
    terms, given = empty_cpu((1, out.shape[1], x.shape[0])), _lists(rows, cols)

    def work(part):
        own = part.of(out.shape[1])
        _forward(blas.entry(), x, w, *given, terms[0], own.start, own.stop)
        transpose_back(terms, out, own, bias, relu, scale)

    threads.share(work, flops=2 * out.size * x.shape[1])
    return out


def multiply_window_back(dy, w, rows, cols, out, alpha=1.0):
    """out = alpha * dy w[rows, cols], with rows and cols as for `multiply_window`; each thread sums over its part of rows."""
    flops, given = 2 * out.size * dy.shape[1], _lists(rows, cols)
    with threads.held(flops):
        terms = empty_cpu((threads.parts(flops=flops), out.shape[1], dy.shape[0]))

        def work(part):
            own = part.of(dy.shape[1])
            _back(blas.entry(), dy, w, *given, terms[part.number], own.start, own.stop)

        threads.share(work, flops=flops)
        threads.share(lambda part: transpose_back(terms, out, part.of(out.shape[1]), alpha=alpha), flops=flops)
    return out
