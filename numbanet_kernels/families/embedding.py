"""The gradient of a table whose rows were looked up; `indexing.take_rows` is the look-up.

    sum_by_row   y[u, d] = sum_k dy[order[k], d] for starts[u] <= k < starts[u + 1]      dy (N, D), order (N,), starts (U + 1,)

order puts together the look-ups of the same row: sums have a fixed order, and repeat bit by bit.
"""
from __future__ import annotations

import numpy as np
from numba import float32

from ..host import threads
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat


# --- reference --------------------------------------------------------------------------------------------------------
def sum_by_row_reference(dy, order, starts):
    """y[u] = sum of dy[order[k]] for starts[u] <= k < starts[u + 1], float64"""
    return np.stack([np.float64(dy)[order[a:b]].sum(0) for a, b in zip(starts, starts[1:])]).reshape(-1, dy.shape[1])


def _check(op, dy, order, starts):
    """How many rows there are; ValueError unless the arrays fit. Places beyond dy count as its last or first row."""
    expect(op, dy=(dy, ("N", "D")), order=(order, ("N",), INT32), starts=(starts, ("U + 1",), INT32))
    if not starts.size:
        raise ValueError(f"{op}: starts {starts.shape} must have one number more than there are rows")
    return starts.size - 1, dy.shape[1]


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], f4[:, ::1], i8, i8)")
def _sum_by_row(dy, order, starts, y, first, stop):
    """The rows first … stop - 1."""
    for u in range(first, stop):
        out = y[u]
        out[:] = 0
        for k in range(max(starts[u], 0), min(starts[u + 1], order.size)):
            row = dy[min(max(order[k], 0), dy.shape[0] - 1)]
            for d in range(out.size):
                out[d] += row[d]


def sum_by_row_cpu(dy, order, starts):
    """y[u] = sum of dy[order[k]] for starts[u] <= k < starts[u + 1]"""
    y = empty_cpu(_check("sum_by_row (cpu)", dy, order, starts))

    def work(part):
        own = part.of(y.shape[0])
        _sum_by_row(dy, order, starts, y, own.start, own.stop)

    threads.share(work, dy.size)
    return y


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("embedding")
def _summing():
    @kernel("void(f4[::1], i4[::1], i4[::1], f4[::1], i4, i4)")
    def sum_by_row(dy, order, starts, y, rows, width):
        """One thread, one sum: neighbouring threads read neighbours."""
        i = cuda.grid(1)
        if i < y.size:
            u, d, total = i // width, i % width, float32(0)
            for k in range(max(starts[u], 0), min(starts[u + 1], order.size)):
                total += dy[min(max(order[k], 0), rows - 1) * width + d]
            y[i] = total

    return sum_by_row


def sum_by_row_cuda(dy, order, starts):
    """y[u] = sum of dy[order[k]] for starts[u] <= k < starts[u + 1]"""
    y = empty_cuda(_check("sum_by_row (cuda)", dy, order, starts))
    launch(_summing(), blocks_for(y.size), THREADS, flat(dy), order, starts, flat(y), *dy.shape)
    return y


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def grouped(rows, below):
        counts = np.bincount(rows, minlength=below)
        return np.argsort(rows, kind="stable").astype(np.int32), np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    return {"sum_by_row": lambda: dev.sum_by_row(a(N, O), *grouped(a.indices(9, N), 9))}
