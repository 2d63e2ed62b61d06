"""Products with kept tiles of a matrix on CUDA, the kernels of `families.bsr`: a thread has one element of a tile, and both
operands pass through shared memory."""
from __future__ import annotations

from numba import float32, int32

from ..runtime.declare import cuda, kernel, kernels

# Lists are not trusted: a number beyond an axis counts as its end, as on the CPU.


@kernels("bsr")
def product(tile=16):
    padded = tile + 1

    @kernel("void(f4[:, ::1], f4[:, :, ::1], i4[::1], i4[::1], i4[::1], i4[::1], b1, f4[::1], b1, b1, f4[:, ::1])")
    def bsr_product(x, values, starts, stops, ids, places, back, bias, biased, relu, y):
        """A block: `tile` samples and one block row of the weight, walking its tiles; back, one block column."""
        xs, ws = cuda.shared.array((tile, padded), float32), cuda.shared.array((tile, padded), float32)
        tx, ty, r = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.x)
        n, o, total = int32(cuda.blockIdx.y) * tile + ty, r * tile + tx, float32(0)
        last = (x.shape[1] + tile - 1) // tile - 1
        for e in range(max(starts[r], 0), min(stops[r], ids.size) if last >= 0 else 0):
            k, first = min(max(places[e], 0), values.shape[0] - 1) if back else e, min(max(ids[e], 0), last) * tile
            col = first + tx
            xs[ty, tx] = x[n, col] if n < x.shape[0] and col < x.shape[1] else float32(0)
            if back:
                ws[ty, tx] = values[k, ty, tx]
            else:
                ws[tx, ty] = values[k, ty, tx]  # the row of the tile that is output ty, turned
            cuda.syncthreads()
            for i in range(tile):
                if first + i < x.shape[1]:  # what a tile holds beyond the edge is never read
                    total += xs[ty, i] * ws[i, tx]
            cuda.syncthreads()
        if n < y.shape[0] and o < y.shape[1]:
            total += bias[o] if biased else float32(0)
            y[n, o] = float32(0) if relu and total < float32(0) else total

    return bsr_product


@kernels("bsr")
def gradients(tile=16):
    padded = tile + 1

    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[::1], f4[:, :, ::1])")
    def bsr_gradients(dy, x, rows, places, ids, dw):
        """A block has a tile of the weight, and walks the samples."""
        slopes, xs = cuda.shared.array((tile, padded), float32), cuda.shared.array((tile, padded), float32)
        tx, ty, total = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), float32(0)
        k, r = places[cuda.blockIdx.x], rows[cuda.blockIdx.x]
        if k < 0 or k >= dw.shape[0]:  # two blocks must not write one tile
            return
        o = max(min(r, (dy.shape[1] + tile - 1) // tile - 1), 0) * tile + tx
        i = max(min(ids[k], (x.shape[1] + tile - 1) // tile - 1), 0) * tile + tx
        for n0 in range(0, x.shape[0], tile):
            n = n0 + ty
            slopes[ty, tx] = dy[n, o] if n < dy.shape[0] and o < dy.shape[1] else float32(0)
            xs[ty, tx] = x[n, i] if n < x.shape[0] and i < x.shape[1] else float32(0)
            cuda.syncthreads()
            for m in range(tile):
                total += slopes[m, ty] * xs[m, tx]
            cuda.syncthreads()
        dw[k, ty, tx] = total

    return bsr_gradients


def side(op, tile):
    """Threads along each axis of a block; tiles that no block can cover are refused."""
    if not 1 <= tile <= 32:
        raise ValueError(f"{op}: tile {tile} must be from 1 to 32 on CUDA")
    return tile
