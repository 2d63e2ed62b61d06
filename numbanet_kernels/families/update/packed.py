"""Gradients as updates take them: dense, (R, C) like the weight, or packed, only the rows and columns that a plan kept.

A packed gradient g comes with kept, a `layouts.packed.Packing` of int32 arrays:

    row_pos (R,)     row of g that belongs to row r, or -1: no gradient
    row_class (R,)   which list of columns row r keeps
    cols (L, K)      column of w of the k-th value in a row of class l, in order, or -1: nothing there
    col_pos (L, C)   its inverse: place of column c in a row of class l, or -1: no gradient

    unpack_gradient   dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0
    packed_squares    the sum of g[row_pos[r], k]^2 over all r and k with row_pos[r] >= 0 and cols[row_class[r], k] >= 0: of g
                      itself it would not be, whose other places hold anything

`check_update`, `packing` and `unread` are for updates (`family` says what a weight's state and its lazy blocks are).
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32

from ...host import threads
from ...layouts.packed import AdamUpdate, Into, LazyBlocks, Packing, SGDUpdate
from ...runtime.arrays import device_cache, to_device
from ...runtime.declare import cuda, host_kernel, kernel, kernels
from ...runtime.expect import BOOL, FLOAT32, INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat
from ..reduce import sum_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def unpack_gradient_reference(g, kept, shape):
    if kept is None:
        return np.float64(g)
    row_pos, row_class, _, col_pos = map(np.asarray, kept)
    places = col_pos[row_class]
    there = (row_pos >= 0) & (row_pos < g.shape[0])
    rows, cols = np.nonzero(there[:, None] & (places >= 0) & (places < g.shape[1]))
    dense = np.zeros(shape)
    dense[rows, cols] = g[row_pos[rows], places[rows, cols]]
    return dense


def packed_squares_reference(g, kept):
    if kept is None:
        return np.sum(np.square(g, dtype=np.float64))
    row_pos, row_class, cols, _ = map(np.asarray, kept)
    there = row_pos >= 0
    values = np.where(cols[row_class[there]] >= 0, np.float64(g)[row_pos[there]], 0)
    return np.sum(values * values)


LARGEST = 2**31 - 2**16  # elements of a weight: their numbers are 32 bits


def _expected(kept):
    """What `expect` takes of a packing of a gradient (G, K) of a weight (R, C)."""
    shapes = ("R",), ("R",), ("L", "K"), ("L", "C")
    return {name: (array, shape, INT32) for name, array, shape in zip(Packing._fields, kept, shapes, strict=True)}


def check_update(op, update):
    """An error unless weight, state, gradient and blocks of an `SGDUpdate` or `AdamUpdate` fit together."""
    if not isinstance(update, (SGDUpdate, AdamUpdate)):
        raise TypeError(f"{op}: updates are SGDUpdates or AdamUpdates, not {type(update).__name__}s")
    kept, lazy, into = update.kept, getattr(update, "lazy", None), getattr(update, "into", None)
    if lazy is None and into is None and _fits(update, kept):
        return
    arrays = {name: (array, ("R", "C")) for name, array in zip(update._fields, update) if len(name) == 1}
    for part, kind in ((kept, Packing), (lazy, LazyBlocks), (into, Into)):
        if part is not None and not isinstance(part, kind):
            raise TypeError(f"{op}: a {kind.__name__} is asked for, not a {type(part).__name__}")
    if kept is not None:
        arrays |= {"g": (update.g, ("G", "K")), **_expected(kept)}
    if lazy is not None:
        arrays |= {
            name: (array, ("U", "B"), BOOL if name in ("current", "wanted") else INT32)
            for name, array in zip(LazyBlocks._fields[:4], lazy)
        }
        arrays["powers"] = lazy.powers, ("steps", 4)
    if into is not None:
        arrays |= {"packed": (into.packed, ("P", "Q")), "places": (into.places, ("R",), np.dtype(np.int64))}
    found = expect(op, **arrays)
    if found["R"] * found["C"] > LARGEST:
        raise ValueError(f"{op}: a weight has {LARGEST} elements at most, not {found['R'] * found['C']}")
    if lazy is not None:
        (height, width), blocks = lazy.block, (found["U"], found["B"])
        if min(lazy.block) < 1 or blocks != (ceil_div(found["R"], height), ceil_div(found["C"], width)):
            raise ValueError(f"{op}: w {found['R'], found['C']} is not divided into blocks {blocks} of {lazy.block}")
        if not found["steps"]:
            raise ValueError(f"{op}: powers {lazy.powers.shape} have none")
    if into is not None and (lazy is None or found["P"] != found["U"] * height or found["Q"] % width):
        raise ValueError(f"{op}: packed {found['P'], found['Q']} has no room for blocks of {lazy and lazy.block}")


def _fits(update, kept):
    """Whether an update without lazy blocks is well-formed: sooner found than what is wrong."""
    try:
        states, g = update[: update._fields.index("g")], update.g
        rows, cols = shape = states[0].shape
        for array in (*states, g):
            if array.dtype is not FLOAT32 or not array.flags["C_CONTIGUOUS"]:
                return False
        for array in states:
            if array.shape != shape:
                return False
        if kept is None:
            return g.shape == shape and rows * cols <= LARGEST
        for array in kept:
            if array.dtype is not INT32 or not array.flags["C_CONTIGUOUS"]:
                return False
        row_pos, row_class, kept_cols, col_pos = kept
        return (
            kept.__class__ is Packing
            and len(g.shape) == 2
            and rows * cols <= LARGEST
            and row_pos.shape == row_class.shape == (rows,)
            and kept_cols.shape[1:] == g.shape[1:]
            and col_pos.shape == (kept_cols.shape[0], cols)
        )
    except (AttributeError, ValueError):
        return False


def _check_gradient(op, g, kept, shape):
    found = expect(op, g=(g, ("G", "K")), **_expected(kept))
    if tuple(shape) != (found["R"], found["C"]):
        raise ValueError(f"{op}: shape {shape} is not {found['R'], found['C']}, as of the packing")


# --- CPU --------------------------------------------------------------------------------------------------------------
def unpack_gradient_cpu(g, kept, shape):
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0"""
    _check_gradient("unpack_gradient (cpu)", g, kept, shape)
    row_pos, row_class, _, col_pos = kept
    dense = empty_cpu(shape)

    def work(part):
        own = part.of(dense.shape[0])
        _unpack(g, row_pos, row_class, col_pos, dense, own.start, own.stop)

    threads.share(work, dense.size)
    return dense


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[:, ::1], i8, i8)")
def _unpack(g, row_pos, row_class, col_pos, dense, first, stop):
    """The rows first … stop - 1; 0 where a place is none of g."""
    for r in range(first, stop):
        out, place, kind = dense[r], row_pos[r], row_class[r]
        if 0 <= place < g.shape[0] and 0 <= kind < col_pos.shape[0]:
            row, places = g[place], col_pos[kind]
            for c in range(out.size):
                out[c] = row[np.uint64(places[c])] if 0 <= places[c] < row.size else float32(0)
        else:
            for c in range(out.size):
                out[c] = float32(0)


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f8[::1], i8, i8)")
def _row_squares(g, row_pos, row_class, cols, sums, first, stop):
    """sums[r] of the rows first … stop - 1"""
    for r in range(first, stop):
        total = float32(0)
        if 0 <= row_pos[r] < g.shape[0] and 0 <= row_class[r] < cols.shape[0]:
            row, there = g[row_pos[r]], cols[row_class[r]]
            for k in range(row.size):
                total += row[k] * row[k] if there[k] >= 0 else float32(0)
        sums[r] = total


def packed_squares_cpu(g, kept):
    """The sum of g[row_pos[r], k]^2 over all r and k with row_pos[r] >= 0 and cols[row_class[r], k] >= 0.   -> ()"""
    found = expect("packed_squares (cpu)", g=(g, ("G", "K")), **_expected(kept))
    sums = np.empty(found["R"])

    def work(part):
        own = part.of(sums.size)
        _row_squares(g, *kept[:3], sums, own.start, own.stop)

    threads.share(work, g.size)
    return np.float32(sums.sum()).reshape(())


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("update")
def _unpacking():
    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[:, ::1])")
    def unpack(g, row_pos, row_class, col_pos, dense):
        """One thread, one weight: its gradient, zero where the plan kept nothing."""
        i = cuda.grid(1)
        if i < dense.size:
            r, c = i // dense.shape[1], i % dense.shape[1]
            row, col = row_pos[r], col_pos[row_class[r], c] if 0 <= row_class[r] < col_pos.shape[0] else int32(-1)
            dense[r, c] = g[row, col] if 0 <= row < g.shape[0] and 0 <= col < g.shape[1] else float32(0)

    return unpack


@kernels("update")
def _squaring():
    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[::1])")
    def row_squares(g, row_pos, row_class, cols, sums):
        """A block, one row."""
        shared = cuda.shared.array(THREADS, float32)
        r, lane = cuda.blockIdx.x, cuda.threadIdx.x
        total, z = float32(0), row_class[r]
        if 0 <= row_pos[r] < g.shape[0] and 0 <= z < cols.shape[0]:
            for k in range(lane, g.shape[1], THREADS):
                value = g[row_pos[r], k] if cols[z, k] >= 0 else float32(0)
                total += value * value
        shared[lane] = total
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if lane < half:
                shared[lane] += shared[lane + half]
            cuda.syncthreads()
            half //= 2
        if lane == 0:
            sums[r] = shared[0]

    return row_squares


@device_cache(maxsize=16)
def unread(dtype, axes=1):
    """What stands for an array that a kernel does not read."""
    return to_device(np.zeros((1,) * axes, dtype))


def packing(w, g, kept):
    """(row_pos, row_class, col_pos), flat, and (columns of w, columns of a packed gradient or -1)"""
    if kept is None:
        return (unread(np.int32),) * 3, (w.shape[1], -1)
    row_pos, row_class, _, col_pos = kept
    return (row_pos, row_class, flat(col_pos)), (w.shape[1], g.shape[1])


def unpack_gradient_cuda(g, kept, shape):
    _check_gradient("unpack_gradient (cuda)", g, kept, shape)
    row_pos, row_class, _, col_pos = kept
    dense = empty_cuda(shape)
    launch(_unpacking(), blocks_for(dense.size), THREADS, g, row_pos, row_class, col_pos, dense)
    return dense


def packed_squares_cuda(g, kept):
    sums = empty_cuda(expect("packed_squares (cuda)", g=(g, ("G", "K")), **_expected(kept))["R"])
    if sums.size:
        launch(_squaring(), sums.size, THREADS, g, *kept[:3], sums)
    return sum_cuda(sums)


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def packed_example(a, O, I):
    """The gradient of every third row and every second column of a weight (O, I), and how it is packed."""
    (row_pos, rows), (col_pos, cols) = (
        (np.where(np.isin(np.arange(n), kept), np.arange(n) // step, -1).astype(np.int32), kept.astype(np.int32))
        for n, step, kept in ((O, 3, np.arange(1, O, 3)), (I, 2, np.arange(0, I, 2)))
    )
    return a(rows.size, cols.size), Packing(row_pos, np.zeros(O, np.int32), cols[None], col_pos[None])


def examples(dev, a, N, I, O):
    return {
        "packed_squares": lambda: dev.packed_squares(*packed_example(a, O, I)),
        "unpack_gradient": lambda: dev.unpack_gradient(*packed_example(a, O, I), (O, I)),
    }
