"""`csr` on CUDA.

Activations are transposed, (neurons, samples). The 32 lanes of a warp are 32 samples: an entry reads 128 contiguous bytes of x,
and all lanes share one load of its value and index.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32

from ...runtime.declare import cuda, kernel, kernels
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import empty_cuda, full_cuda
from ..indexing import transpose_cuda
from .family import check, lists_of

# Indices are clamped to their axis, as on the CPU.
# samples and neurons of the tile of y that a block computes; number of its rows that are computed at the same time
SIDE, ROWS = 32, 8
WARPS = 8  # number of warps of a block of `dots`; neither number is tuned on a device


@kernels("csr")
def _product():
    padded = SIDE + 1

    @kernel(
        "void(f4[:, ::1], i4[::1], i4[::1], i4[::1], f4[::1], i4[::1], b1, i4[::1], b1, i4[::1], b1, f4[::1], b1, b1, "
        "f4[:, ::1])"
    )
    def csr_product(x, starts, stops, ids, values, through, indirect, rows, listed, inverse, selected, bias, biased, relu, y):
        """Each block computes 32 neurons for 32 samples, and each warp 4 of these neurons in turn. Results are transposed in
        shared memory, so that writes to y are coalesced.
        """
        piece = cuda.shared.array((SIDE, padded), float32)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n0, j0 = int32(cuda.blockIdx.y) * SIDE, int32(cuda.blockIdx.x) * SIDE
        n = n0 + tx
        for r in range(ty, SIDE, ROWS):
            total = float32(0)
            if j0 + r < y.shape[1] and n < y.shape[0]:
                o = min(max(rows[j0 + r] if listed else j0 + r, 0), starts.size - 1)
                for k in range(max(starts[o], 0), min(stops[o], ids.size) if x.shape[0] else 0):
                    i = inverse[min(max(ids[k], 0), inverse.size - 1)] if selected else min(max(ids[k], 0), x.shape[0] - 1)
                    if 0 <= i < x.shape[0]:
                        total += values[min(max(through[k], 0), values.size - 1) if indirect else k] * x[i, n]
            piece[r, tx] = total
        cuda.syncthreads()
        j = j0 + tx
        if j < y.shape[1]:
            added = bias[min(max(rows[j] if listed else j, 0), bias.size - 1)] if biased else float32(0)
            for r in range(ty, SIDE, ROWS):
                if n0 + r < y.shape[0]:
                    value = piece[tx, r] + added
                    y[n0 + r, j] = float32(0) if relu and value < float32(0) else value

    return csr_product


@kernels("csr")
def _dots():
    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[::1], i4[::1], b1, i4[::1], b1, f4[::1])")
    def csr_dots(dy, x, starts, stops, ids, rows, listed, inverse, selected, dw):
        """Each warp computes one row of the weight: its lanes divide the samples of an entry, and add up their sums."""
        tx, j = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x) * WARPS + int32(cuda.threadIdx.y)
        if j >= dy.shape[0]:
            return
        o = min(max(rows[j] if listed else j, 0), starts.size - 1)
        for k in range(max(starts[o], 0), min(stops[o], ids.size) if x.shape[0] else 0):
            i = inverse[min(max(ids[k], 0), inverse.size - 1)] if selected else min(max(ids[k], 0), x.shape[0] - 1)
            total = float32(0)
            if 0 <= i < x.shape[0]:
                for n in range(tx, dy.shape[1], SIDE):
                    total += dy[j, n] * x[i, n]
                for half in (16, 8, 4, 2, 1):
                    total += cuda.shfl_down_sync(0xFFFFFFFF, total, half)
            if tx == 0:
                dw[k] = total

    return csr_dots


def csr_transposed_cuda(x):
    expect("csr_transposed (cuda)", x=(x, ("N", "I")))
    return transpose_cuda(x, (1, 0))


def _columns(op, x, transposed):
    """Return x.T: the checked argument `transposed`, or a new array if it is None."""
    if transposed is None:
        return transpose_cuda(x, (1, 0))
    expect(op, transposed=(transposed, x.shape[::-1]))
    return transposed


def _given(array, dtype=np.float32):
    """Return two arguments of kernels: the array or, if it is None, an empty one; and True if there is an array."""
    return (empty_cuda((0,), dtype), False) if array is None else (array, True)


def _launch(transposed, starts, stops, ids, values, through, rows, inverse, bias, relu, y):
    """Launch the kernel for y = act(x w.T + bias); an entry has the value at its position, or at through[position]."""
    grid = tuple(ceil_div(n, SIDE) for n in y.shape[::-1])
    launch(
        _product(),
        grid,
        (SIDE, ROWS),
        transposed,
        starts,
        stops,
        ids,
        values,
        *_given(through, INT32),
        *_given(rows, INT32),
        *_given(inverse, INT32),
        *_given(bias),
        relu,
        y,
    )


def csr_cuda(x, values, at, bias=None, relu=False, rows=None, cols=None, transposed=None):
    sizes = check("csr (cuda)", at, rows, cols, x=(x, ("N", "J")), values=(values, ("V",)), bias=(bias, ("O",)))
    transposed, y = _columns("csr (cuda)", x, transposed), empty_cuda((sizes["N"], sizes["K"]))
    _launch(transposed, at.starts, at.stops, at.ids, values, None, lists_of(rows)[0], lists_of(cols)[1], bias, relu, y)
    return y


def csr_dx_cuda(dy, values, at, rows=None, cols=None, transposed=None):
    sizes = check("csr_dx (cuda)", at, rows, cols, dy=(dy, ("N", "K")), values=(values, ("V",)))
    transposed, dx = _columns("csr_dx (cuda)", dy, transposed), empty_cuda((sizes["N"], sizes["J"]))
    _launch(
        transposed,
        at.col_starts,
        at.col_stops,
        at.col_ids,
        values,
        at.order,
        lists_of(cols)[0],
        lists_of(rows)[1],
        None,
        False,
        dx,
    )
    return dx


def csr_dw_cuda(dy, x, at, rows=None, cols=None, dy_transposed=None, x_transposed=None):
    sizes = check("csr_dw (cuda)", at, rows, cols, dy=(dy, ("N", "K")), x=(x, ("N", "J")))
    dys, xs = _columns("csr_dw (cuda)", dy, dy_transposed), _columns("csr_dw (cuda)", x, x_transposed)
    all_written = rows is None and sizes["V"] == sizes["B"] and sizes["J"]
    dw = empty_cuda((sizes["V"],)) if all_written else full_cuda((sizes["V"],), 0.0)
    launch(
        _dots(),
        ceil_div(sizes["K"], WARPS),
        (SIDE, WARPS),
        dys,
        xs,
        at.starts,
        at.stops,
        at.ids,
        *_given(lists_of(rows)[0], INT32),
        *_given(lists_of(cols)[1], INT32),
        dw,
    )
    return dw
