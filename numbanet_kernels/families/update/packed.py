"""Gradients are arguments of updates. A gradient is dense, with the shape (R, C) of the weight, or packed: a packed gradient g
holds only the rows and columns that a plan keeps.

A packed gradient comes with a `layouts.packed.Packing` of int32 arrays. All rows of the weight with the same list of kept
columns form a class; there are L classes, and a list has up to K columns:

    row_pos (R,)     the row of g that holds row r of the weight; -1 if row r has no gradient
    row_class (R,)   the class of row r
    cols (L, K)      the k-th kept column of class l, increasing; -1 is padding
    col_pos (L, C)   the column of g that holds column c in a row of class l; -1 if column c has no gradient

    unpack_gradient   dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] if both positions are >= 0, else 0

`expected`, `check_update`, `packing` and `unread` serve the kernels of updates (`family` describes weights and lazy blocks).
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


# --- reference --------------------------------------------------------------------------------------------------------
def unpack_gradient_reference(g, packing, shape):
    if packing is None:
        return np.float64(g)
    row_pos, row_class, _, col_pos = map(np.asarray, packing)
    columns = col_pos[row_class]
    in_g = (row_pos >= 0) & (row_pos < g.shape[0])
    rows, cols = np.nonzero(in_g[:, None] & (columns >= 0) & (columns < g.shape[1]))
    dense = np.zeros(shape)
    dense[rows, cols] = g[row_pos[rows], columns[rows, cols]]
    return dense


LARGEST = 2**31 - 2**16  # largest number of elements of a weight; indices of elements must fit into 32 bits


def expected(packing):
    """Return a dict of the arrays of a packing, with shapes and types for `expect`: a gradient (G, K) of a weight (R, C)."""
    shapes = ("R",), ("R",), ("L", "K"), ("L", "C")
    return {name: (array, shape, INT32) for name, array, shape in zip(Packing._fields, packing, shapes, strict=True)}


def check_update(op, update):
    """Raise an error unless weight, state, gradient and blocks of an `SGDUpdate` or `AdamUpdate` fit together."""
    if not isinstance(update, (SGDUpdate, AdamUpdate)):
        raise TypeError(f"{op}: each update must be an SGDUpdate or AdamUpdate, not {type(update).__name__}")
    packing, lazy, into = update.packing, getattr(update, "lazy", None), getattr(update, "into", None)
    if lazy is None and into is None and _fits(update, packing):
        return
    arrays = {name: (array, ("R", "C")) for name, array in zip(update._fields, update) if len(name) == 1}
    for part, kind in ((packing, Packing), (lazy, LazyBlocks), (into, Into)):
        if part is not None and not isinstance(part, kind):
            raise TypeError(f"{op}: expected a {kind.__name__}, got a {type(part).__name__}")
    if packing is not None:
        arrays |= {"g": (update.g, ("G", "K")), **expected(packing)}
    if lazy is not None:
        arrays |= {
            name: (array, ("U", "B"), BOOL if name in ("current", "wanted") else INT32)
            for name, array in zip(LazyBlocks._fields[:4], lazy)
        }
        arrays["powers"] = lazy.powers, ("steps", 4)
    if into is not None:
        arrays |= {"packed": (into.packed, ("P", "Q")), "rows": (into.rows, ("R",), np.dtype(np.int64))}
    sizes = expect(op, **arrays)
    if sizes["R"] * sizes["C"] > LARGEST:
        raise ValueError(f"{op}: a weight may have at most {LARGEST} elements, not {sizes['R'] * sizes['C']}")
    if lazy is not None:
        (height, width), blocks = lazy.block, (sizes["U"], sizes["B"])
        if min(lazy.block) < 1 or blocks != (ceil_div(sizes["R"], height), ceil_div(sizes["C"], width)):
            raise ValueError(f"{op}: w {sizes['R'], sizes['C']} is not divided into blocks {blocks} of {lazy.block}")
        if not sizes["steps"]:
            raise ValueError(f"{op}: powers {lazy.powers.shape} is empty")
    if into is not None and (lazy is None or sizes["P"] != sizes["U"] * height or sizes["Q"] % width):
        raise ValueError(f"{op}: packed {sizes['P'], sizes['Q']} does not hold whole blocks of {lazy and lazy.block}")


def _fits(update, packing):
    """Return True, in little time, if an update without lazy blocks is well-formed; if not, `check_update` finds the error."""
    try:
        states, g = update[: update._fields.index("g")], update.g
        rows, cols = shape = states[0].shape
        for array in (*states, g):
            if array.dtype is not FLOAT32 or not array.flags["C_CONTIGUOUS"]:
                return False
        for array in states:
            if array.shape != shape:
                return False
        if packing is None:
            return g.shape == shape and rows * cols <= LARGEST
        for array in packing:
            if array.dtype is not INT32 or not array.flags["C_CONTIGUOUS"]:
                return False
        row_pos, row_class, kept_cols, col_pos = packing
        return (
            packing.__class__ is Packing
            and len(g.shape) == 2
            and rows * cols <= LARGEST
            and row_pos.shape == row_class.shape == (rows,)
            and kept_cols.shape[1:] == g.shape[1:]
            and col_pos.shape == (kept_cols.shape[0], cols)
        )
    except (AttributeError, TypeError, ValueError):
        return False


def _check_gradient(op, g, packing, shape):
    sizes = expect(op, g=(g, ("G", "K")), **expected(packing))
    if tuple(shape) != (sizes["R"], sizes["C"]):
        raise ValueError(f"{op}: shape {shape} is not {sizes['R'], sizes['C']} of the packing")


# --- CPU --------------------------------------------------------------------------------------------------------------
def unpack_gradient_cpu(g, packing, shape):
    """dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] if both positions are >= 0, else 0"""
    _check_gradient("unpack_gradient (cpu)", g, packing, shape)
    row_pos, row_class, _, col_pos = packing
    dense = empty_cpu(shape)

    def work(part):
        span = part.of(dense.shape[0])
        _unpack(g, row_pos, row_class, col_pos, dense, span.start, span.stop)

    threads.share(work, dense.size)
    return dense


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[:, ::1], i8, i8)")
def _unpack(g, row_pos, row_class, col_pos, dense, first, stop):
    """Compute the rows first … stop - 1 of `dense`; an element is 0 if its position is outside g."""
    for r in range(first, stop):
        out, position, kind = dense[r], row_pos[r], row_class[r]
        if 0 <= position < g.shape[0] and 0 <= kind < col_pos.shape[0]:
            row, positions = g[position], col_pos[kind]
            for c in range(out.size):
                out[c] = row[np.uint64(positions[c])] if 0 <= positions[c] < row.size else float32(0)
        else:
            for c in range(out.size):
                out[c] = float32(0)


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("update")
def _unpacking():
    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[:, ::1])")
    def unpack(g, row_pos, row_class, col_pos, dense):
        """Each thread writes the gradient of one element of the weight, 0 if the plan dropped the element."""
        i = cuda.grid(1)
        if i < dense.size:
            r, c = i // dense.shape[1], i % dense.shape[1]
            row, col = row_pos[r], col_pos[row_class[r], c] if 0 <= row_class[r] < col_pos.shape[0] else int32(-1)
            dense[r, c] = g[row, col] if 0 <= row < g.shape[0] and 0 <= col < g.shape[1] else float32(0)

    return unpack


@device_cache(maxsize=16)
def unread(dtype, axes=1):
    """Return a placeholder for an array argument that the kernel does not read."""
    return to_device(np.zeros((1,) * axes, dtype))


def packing(w, g, packed_as):
    """Return ((row_pos, row_class, col_pos) as flat arrays, (columns of w, columns of the packed gradient)); for a dense
    gradient the last number is -1.
    """
    if packed_as is None:
        return (unread(np.int32),) * 3, (w.shape[1], -1)
    row_pos, row_class, _, col_pos = packed_as
    return (row_pos, row_class, flat(col_pos)), (w.shape[1], g.shape[1])


def unpack_gradient_cuda(g, packing, shape):
    _check_gradient("unpack_gradient (cuda)", g, packing, shape)
    row_pos, row_class, _, col_pos = packing
    dense = empty_cuda(shape)
    launch(_unpacking(), blocks_for(dense.size), THREADS, g, row_pos, row_class, col_pos, dense)
    return dense


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def packed_example(a, O, I):
    """Return a gradient of every third row and every second column of a weight (O, I), and its packing."""
    (row_pos, rows), (col_pos, cols) = (
        (np.where(np.isin(np.arange(n), indices), np.arange(n) // step, -1).astype(np.int32), indices.astype(np.int32))
        for n, step, indices in ((O, 3, np.arange(1, O, 3)), (I, 2, np.arange(0, I, 2)))
    )
    return a(rows.size, cols.size), Packing(row_pos, np.zeros(O, np.int32), cols[None], col_pos[None])


def examples(dev, a, N, I, O):
    return {"unpack_gradient": lambda: dev.unpack_gradient(*packed_example(a, O, I), (O, I))}
