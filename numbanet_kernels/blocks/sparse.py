"""Products with listed entries of a matrix on CUDA: the kernels of `families.csr` and `families.bsr`.

Activations come turned, (neurons, samples): the 32 lanes of a warp are 32 samples, so that what an entry brings of x is 128
bytes in a row, and its value and index are one read that all lanes share.
"""
from __future__ import annotations

from numba import float32, int32

from ..runtime.declare import cuda, kernel, kernels

# Lists are not trusted: a number beyond an axis counts as its end, as on the CPU.
SIDE, ROWS = 32, 8  # samples and neurons of a block's piece of y, and how many of these at the same time
WARPS = 8           # of a block of `dots`


@kernels("csr")
def product():
    padded = SIDE + 1

    @kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[::1], f4[::1], i4[::1], b1, i4[::1], b1, i4[::1], b1, f4[::1], b1, b1, "
            "f4[:, ::1])")
    def csr_product(x, starts, stops, ids, values, through, indirect, kept, listed, places, some, bias, biased, relu, y):
        """A block: 32 samples and 32 neurons, a warp 4 of these one after the other; it is turned in shared memory, so that y
        is written along its rows."""
        piece = cuda.shared.array((SIDE, padded), float32)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n0, j0 = int32(cuda.blockIdx.y) * SIDE, int32(cuda.blockIdx.x) * SIDE
        n = n0 + tx
        for r in range(ty, SIDE, ROWS):
            total = float32(0)
            if j0 + r < y.shape[1] and n < y.shape[0]:
                o = min(max(kept[j0 + r] if listed else j0 + r, 0), starts.size - 1)
                for k in range(max(starts[o], 0), min(stops[o], ids.size) if x.shape[0] else 0):
                    i = places[min(max(ids[k], 0), places.size - 1)] if some else min(max(ids[k], 0), x.shape[0] - 1)
                    if 0 <= i < x.shape[0]:
                        total += values[min(max(through[k], 0), values.size - 1) if indirect else k] * x[i, n]
            piece[r, tx] = total
        cuda.syncthreads()
        j = j0 + tx
        if j < y.shape[1]:
            added = bias[min(max(kept[j] if listed else j, 0), bias.size - 1)] if biased else float32(0)
            for r in range(ty, SIDE, ROWS):
                if n0 + r < y.shape[0]:
                    value = piece[tx, r] + added
                    y[n0 + r, j] = float32(0) if relu and value < float32(0) else value

    return csr_product


@kernels("csr")
def dots():
    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[::1], i4[::1], b1, i4[::1], b1, f4[::1])")
    def csr_dots(dy, x, starts, stops, ids, kept, listed, places, some, dw):
        """A warp has a row of the weight: its lanes share the samples of an entry, then add up what each has."""
        tx, j = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x) * WARPS + int32(cuda.threadIdx.y)
        if j >= dy.shape[0]:
            return
        o = min(max(kept[j] if listed else j, 0), starts.size - 1)
        for k in range(max(starts[o], 0), min(stops[o], ids.size) if x.shape[0] else 0):
            i = places[min(max(ids[k], 0), places.size - 1)] if some else min(max(ids[k], 0), x.shape[0] - 1)
            total = float32(0)
            if 0 <= i < x.shape[0]:
                for n in range(tx, dy.shape[1], SIDE):
                    total += dy[j, n] * x[i, n]
                for half in (16, 8, 4, 2, 1):
                    total += cuda.shfl_down_sync(0xffffffff, total, half)
            if tx == 0:
                dw[k] = total

    return csr_dots
