"""Loops that copy the kept rows and columns of a weight, on the calling thread. The caller has checked all indices."""

from __future__ import annotations

import numpy as np

from ..runtime.declare import host_kernel
from ..runtime.memory import empty_cpu


@host_kernel("void(f4[:, :], f4[:, ::1])")
def copy_rows(view, out):
    """out = view"""
    for k in range(view.shape[0]):
        row, target = view[k], out[k]
        for j in range(row.size):
            target[j] = row[j]


@host_kernel("void(f4[:, ::1], i4[::1], f4[:, ::1])", makes_arrays=True)
def gather_rows(w, rows, out):
    """out[k] = w[rows[k]]"""
    for k in range(rows.size):
        out[k] = w[rows[k]]


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], f4[:, ::1])")
def gather(w, rows, cols, copy):
    """copy[k, j] = w[rows[k], cols[j]]"""
    for k in range(rows.size):
        row, out = w[rows[k]], copy[k]
        for j in range(cols.size):
            out[j] = row[np.uint32(cols[j])]


@host_kernel("void(f4[::1], i4[::1], f4[::1])")
def gather_entries(x, indices, out):
    """out[k] = x[indices[k]]"""
    for k in range(indices.size):
        out[k] = x[indices[k]]


def gathered(w, rows, cols):
    """Return a copy of w[rows][:, cols]; rows and cols are int32 arrays. If cols is None, all columns are copied."""
    out = empty_cpu((rows.size, w.shape[1] if cols is None else cols.size))
    if cols is None:
        gather_rows(w, rows, out)
    else:
        gather(w, rows, cols, out)
    return out
