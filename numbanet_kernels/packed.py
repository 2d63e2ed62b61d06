"""Gradients as updates take them: dense, (R, C) like the weight, or packed, only the rows and columns that a plan kept.

A packed gradient g comes with kept = (row_pos, row_class, cols, col_pos), int32 arrays:

    row_pos (R,)     row of g that belongs to row r, or -1: no gradient
    row_class (R,)   which list of columns row r keeps
    cols (L, K)      column of w of the k-th value in a row of class l, in order, or -1: nothing there
    col_pos (L, C)   its inverse: place of column c in a row of class l, or -1: no gradient

    unpack   dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0

`check_fit`, `packing` and `unread` are for updates (`update` says what a weight's state and its late blocks are).
"""
from __future__ import annotations

import numpy as np
from numba import float32

from .launch import ceil_div, cuda, device_cache, kernel, kernels, launch, to_device
from .memory import THREADS, blocks_for, empty_cuda, flat


# --- reference --------------------------------------------------------------------------------------------------------
def unpack_gradient_reference(g, kept, shape):
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0."""
    if kept is None:
        return np.float64(g)
    row_pos, row_class, _, col_pos = map(np.asarray, kept)
    places = col_pos[row_class]
    rows, cols = np.nonzero((row_pos[:, None] >= 0) & (places >= 0))
    dense = np.zeros(shape)
    dense[rows, cols] = g[row_pos[rows], places[rows, cols]]
    return dense


LARGEST = 2**31 - 2**16  # elements of a weight: their numbers are 32 bits


def check_fit(op, w, states, g, kept, late=None):
    """ValueError unless weight, state, gradient and blocks fit together."""
    fits = w.ndim == 2 and all(state.shape == w.shape for state in states)
    if kept is None:
        fits = fits and g.shape == w.shape
    else:
        row_pos, row_class, _, col_pos = kept
        fits = fits and g.ndim == 2 and row_pos.shape == row_class.shape == w.shape[:1] and col_pos.shape[1:] == w.shape[1:]
    if late is not None:
        behind, after, held, wanted, _, (height, width) = late
        blocks = (ceil_div(w.shape[0], height), ceil_div(w.shape[1], width))
        fits = fits and behind.shape == after.shape == held.shape == wanted.shape == blocks
    if w.size > LARGEST:
        raise ValueError(f"{op}: a weight has {LARGEST} elements at most, not {w.size}")
    if not fits:
        raise ValueError(f"{op}: w {w.shape}, state {[state.shape for state in states]} and gradient {g.shape} do not match"
                         f"{'' if kept is None else ' under the given rows and columns'}"
                         f"{'' if late is None else f' in blocks {late[0].shape} of {late[5]}'}")


# --- CPU --------------------------------------------------------------------------------------------------------------
def unpack_gradient_cpu(g, kept, shape):
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0"""
    return unpack_gradient_reference(g, kept, shape).astype(np.float32)


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels
def _unpacking():
    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4[:, ::1])")
    def unpack(g, row_pos, row_class, col_pos, dense):
        """One thread, one weight: its gradient, zero where the plan kept nothing."""
        i = cuda.grid(1)
        if i < dense.size:
            r, c = i // dense.shape[1], i % dense.shape[1]
            row, col = row_pos[r], col_pos[row_class[r], c]
            dense[r, c] = g[row, col] if row >= 0 and col >= 0 else float32(0)

    return unpack


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
    """The dense gradient: dense[r, c] = g[row_pos[r], col_pos[row_class[r], c]] where both are >= 0, else 0"""
    row_pos, row_class, _, col_pos = kept
    dense = empty_cuda(shape)
    launch(_unpacking(), blocks_for(dense.size), THREADS, g, row_pos, row_class, col_pos, dense)
    return dense
