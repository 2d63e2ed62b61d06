"""The gradient of an embedding table; `indexing.take_rows` is the look-up.

    group_rows   groups N look-ups by the row that they read: ids (N,), in 0 … V - 1 -> order (N,), starts (U + 1,),
                 ranks (V,), all int32. U rows are used by a look-up. The look-ups order[k] with starts[u] <= k < starts[u + 1]
                 read the u-th used row. ranks[v] = u if row v is the u-th used row, and -1 if row v is unused.
                 Look-ups of the same row keep their order. Look-ups of the row `padding` come last and belong to no group.
    sum_by_row   y[u, d] = sum_k dy[order[k], d] for starts[u] <= k < starts[u + 1]      dy (N, D), order (N,), starts (U + 1,)

Sums over grouped look-ups have a fixed order, so results are bitwise reproducible. On CUDA U is unknown until the look-ups are
counted, and a recorded step needs fixed sizes. So on CUDA and in recorded steps, `starts` has N + 1 elements, and the groups
after the last used row are empty. A CUDA thread finds the place of its look-up by reading all other look-ups, N^2 reads from
cache in total: for the thousands of look-ups of a step this is cheaper than the launches of a sort. If there are more than
`MOST` ids, they are copied to the host and grouped there, which cannot be recorded.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32

from ..blocks.kahan import kahan
from ..host import threads
from ..runtime.declare import cuda, host_kernel, inlined, kernel, kernels, tape
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, download_cuda, empty_cpu, empty_cuda, flat, upload_cuda

# This limit follows from counted reads, not from a timing: for 8192 look-ups the kernels read 3 N^2 numbers, 0.8 GB, in less
# than a millisecond on a device that reads 1 TB/s; for 65,536 they would read 52 GB.
MOST = 8192
FEW = 16  # number of look-ups of a row that are summed in float32


# --- reference --------------------------------------------------------------------------------------------------------
def sum_by_row_reference(dy, order, starts):
    """y[u] = sum of dy[order[k]] for starts[u] <= k < starts[u + 1], in float64"""
    return np.stack([np.float64(dy)[order[a:b]].sum(0) for a, b in zip(starts, starts[1:])]).reshape(-1, dy.shape[1])


def group_rows_reference(ids, rows, padding=None):
    """Return (order, starts, ranks) of group_rows, where U is the number of used rows."""
    keys = np.clip(ids, 0, rows - 1)
    keys = np.where(keys == padding, rows, keys)  # padding comes last and belongs to no row
    used, counts = np.unique(keys[keys < rows], return_counts=True)
    ranks = np.full(rows, -1, np.int32)
    ranks[used] = np.arange(used.size)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return np.argsort(keys, kind="stable").astype(np.int32), starts.astype(np.int32), ranks


def _check_ids(op, ids, rows):
    expect(op, ids=(ids, ("N",), INT32))
    if rows < 1:
        raise ValueError(f"{op}: cannot look up rows of a table with {rows} rows")


def _check(op, dy, order, starts):
    """Check the arguments of `sum_by_row`, and return the shape of y, (U, D); raise ValueError unless the arrays fit. The
    entries of `order` are not checked: kernels clamp those that are outside dy.
    """
    expect(op, dy=(dy, ("N", "D")), order=(order, ("N",), INT32), starts=(starts, ("U + 1",), INT32))
    if not starts.size:
        raise ValueError(f"{op}: starts {starts.shape} must have one more element than there are rows")
    return starts.size - 1, dy.shape[1]


# --- CPU --------------------------------------------------------------------------------------------------------------
def group_rows_cpu(ids, rows, padding=None):
    """Return (order, starts, ranks): order[starts[u]:starts[u + 1]] are the look-ups of the row v with ranks[v] = u."""
    _check_ids("group_rows (cpu)", ids, rows)
    order, starts, places = (empty_cpu((size,), np.int32) for size in (ids.size, ids.size + 1, rows))
    _group_rows(ids, rows if padding is None else padding, order, starts, places)
    if tape.get() is None:
        starts = starts[: places.max() + 2]
    return order, starts, places


@host_kernel("void(i4[::1], i8, i4[::1], i4[::1], i4[::1])")
def _group_rows(ids, padding, order, starts, places):
    """Group the look-ups by row, as in `group_rows`; `places` is its result `ranks`. First `places` counts the look-ups of each
    row. Then ends[u] is the position in `order` at which the next look-up of the u-th used row is written.
    """
    n, last = ids.size, places.size - 1
    ends, at, u = np.empty(n + 1, np.int32), int32(0), 0
    for row in range(places.size):
        places[row] = 0
    for k in range(n):
        places[min(max(ids[k], 0), last)] += 1
    for row in range(places.size):
        count = places[row]
        places[row] = -1
        if count and row != padding:
            starts[u], ends[u], places[row] = at, at, u
            at, u = at + count, u + 1
    for rest in range(u, n + 1):
        starts[rest] = at
    for k in range(n):
        place = places[min(max(ids[k], 0), last)]
        if place >= 0:
            order[ends[place]] = k
            ends[place] += 1
        else:
            order[at] = k
            at += 1


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], f4[:, ::1], i8, i8)")
def _sum_by_row(dy, order, starts, y, first, stop):
    """Compute the rows y[first], …, y[stop - 1] of `sum_by_row`."""
    few, sums = np.empty(dy.shape[1], np.float32), np.empty(dy.shape[1], np.float64)
    for u in range(first, stop):
        begin, end = max(starts[u], 0), min(starts[u + 1], order.size)
        sums[:] = 0
        for some in range(begin, end, FEW):
            few[:] = 0
            for k in range(some, min(some + FEW, end)):
                row = dy[min(max(order[k], 0), dy.shape[0] - 1)]
                for d in range(few.size):
                    few[d] += row[d]
            for d in range(few.size):
                sums[d] += few[d]
        y[u] = sums


def sum_by_row_cpu(dy, order, starts):
    """y[u] = sum of dy[order[k]] for starts[u] <= k < starts[u + 1]"""
    y = empty_cpu(_check("sum_by_row (cpu)", dy, order, starts))

    def work(part):
        span = part.of(y.shape[0])
        _sum_by_row(dy, order, starts, y, span.start, span.stop)

    threads.share(work, dy.size)
    return y


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("embedding")
def _grouping():
    @inlined
    def row_of(ids, k, rows, padding):
        row = min(max(ids[k], 0), rows - 1)
        return rows if row == padding else row

    @kernel("void(i4[::1], i4, i4, i4[::1], i4[::1], i4[::1])")
    def rank_lookups(ids, rows, padding, order, first, ranks):
        """Each thread k finds the position of look-up k in `order`, and sets first[k] to 1 if no earlier look-up reads the same
        row, else to 0. All elements of `ranks` are set to -1.
        """
        k = int32(cuda.grid(1))
        if k < rows:
            ranks[k] = -1
        if k < ids.size:
            row, rank, is_first = row_of(ids, k, rows, padding), int32(0), int32(1)
            for j in range(ids.size):
                other = row_of(ids, j, rows, padding)
                if other < row or (other == row and j < k):
                    rank += int32(1)
                    if other == row:
                        is_first = int32(0)
            order[rank] = k
            first[k] = is_first if row < rows else int32(0)

    @kernel("void(i4[::1], i4, i4, i4[::1], i4[::1], i4[::1])")
    def rank_rows(ids, rows, padding, first, starts, ranks):
        """Thread k writes starts[u] and ranks[v] = u if look-up k is the first one of the used row v; u is the number of used
        rows below v. It also writes starts[k], the end of the last group, if there are at most k used rows.
        """
        k, inside, groups, before, smaller = int32(cuda.grid(1)), int32(0), int32(0), int32(0), int32(0)
        if k < starts.size:
            row = row_of(ids, k, rows, padding) if k < ids.size else rows
            for j in range(ids.size):
                other = row_of(ids, j, rows, padding)
                inside += int32(1) if other < rows else int32(0)
                groups += first[j]
                if other < row:
                    smaller += int32(1)
                    before += first[j]
            if k < ids.size and first[k]:
                starts[before], ranks[row] = smaller, before
            if k >= groups:
                starts[k] = inside

    return rank_lookups, rank_rows


def group_rows_cuda(ids, rows, padding=None):
    _check_ids("group_rows (cuda)", ids, rows)
    if ids.size > MOST:
        return tuple(map(upload_cuda, group_rows_reference(download_cuda(ids), rows, padding)))
    order, first, starts, ranks = (empty_cuda((n,), INT32) for n in (ids.size, ids.size, ids.size + 1, rows))
    padding = -1 if padding is None else padding
    rank, rank_rows = _grouping()
    launch(rank, blocks_for(max(ids.size, rows)), THREADS, ids, rows, padding, order, first, ranks)
    launch(rank_rows, blocks_for(starts.size), THREADS, ids, rows, padding, first, starts, ranks)
    return order, starts, ranks


@kernels("embedding")
def _summing():
    add = kahan()

    @kernel("void(f4[::1], i4[::1], i4[::1], f4[::1], i4, i4)")
    def sum_by_row(dy, order, starts, y, rows, width):
        """Each thread computes one entry of y; adjacent threads read adjacent addresses."""
        i = cuda.grid(1)
        if i < y.size:
            u, d, total, missed = i // width, i % width, float32(0), float32(0)
            for k in range(max(starts[u], 0), min(starts[u + 1], order.size)):
                total, missed = add(total, missed, dy[min(max(order[k], 0), rows - 1) * width + d])
            y[i] = total

    return sum_by_row


def sum_by_row_cuda(dy, order, starts):
    y = empty_cuda(_check("sum_by_row (cuda)", dy, order, starts))
    launch(_summing(), blocks_for(y.size), THREADS, flat(dy), order, starts, flat(y), *dy.shape)
    return y


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    def grouped(rows, below):
        counts = np.bincount(rows, minlength=below)
        return np.argsort(rows, kind="stable").astype(np.int32), np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    return {
        # enough look-ups for more than one block
        "group_rows": lambda: dev.group_rows(a.rng.permutation(300).astype(np.int32), 300 + I),
        "sum_by_row": lambda: dev.sum_by_row(a(N, O), *grouped(a.indices(9, N), 9)),
    }
