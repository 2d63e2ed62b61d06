"""Matrix product in blocks, versions 4 and 5 of the ladder in `gemm`: for compute capability 8.0 and above.

    c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n])        given `where`: 0 unless where[m, n] > 0
    A[m, k] = a[a0 + m am + k ak],   B[k, n] = b[b0 + k bk + n bn]        given `a_sums`: a_sums[m] = sums_scale * sum_k A[m, k]

Any strides: transposes, and kept rows, columns and inner indices of a pattern (its period a stride, its bias an offset) are the
same kernel. A block of 256 threads computes 128 x 128 outputs, 8 x 8 a thread, or 64 x 64, 4 x 4 a thread. 2 M N K FLOPs:

    copies      global -> shared by cp.async, 4 bytes a thread, zeros beyond the edges: the k-tile after this one is on its way
                while this one is multiplied. Neighbouring threads walk along the axis that is contiguous
    tiles       16 rows of 128 (or 64) floats and 4 more: threads that walk along k, 8 of them in 4 columns, meet 32 banks
    multiply    at 128, four 16-byte loads and 64 fused multiply-adds for each k; the sums are one tuple: it stays in registers

On tensor cores (version 5) a warp computes 64 x 32 of the 128 x 128: per k-tile 2 x 4 x 4 products 16 x 8 x 8 by mma. They
multiply TF32: float32 with 10 bits of mantissa. With three passes a number is the sum of two of them, x = big + small, and
big big + big small + small big leaves out small small alone: the error of float32. One pass keeps 10 bits. A tile lies there
with k in rows of 16 + 4 floats, or, read across, with k rows of 128 + 8: either way a warp's fragment, 8 by 4, lies in 32
banks, and so do the floats that a warp copies at once.
"""
from __future__ import annotations

import numpy as np
from numba import float32, int32, int64

from .intrinsics import DEPTH, address, commit, copy, fragments, shared_address, sums_of, wait_for_all_but_one
from .launch import (
    capability,
    ceil_div,
    cuda,
    device_array,
    kernel,
    kernels,
    launch,
    multiprocessors,
    to_device,
    trusted,
)

THREADS = 256


def walk(tile, along_k):
    """(k, rows or columns) that a block's threads copy at once: neighbours along k, or across."""
    return (8, 32) if along_k else (THREADS // tile, tile)


def _steps(along_k, tile, padding, passes):
    """(from one k to the next, from one row or column to the next) in a tile, and how many floats it is."""
    if not passes:
        return tile + padding, 1, DEPTH * (tile + padding)
    return (1, DEPTH + 4, tile * (DEPTH + 4)) if along_k else (tile + 8, 1, DEPTH * (tile + 8))


# --- kernel -----------------------------------------------------------------------------------------------------------
@kernels
def _block(tile=128, a_along_k=True, b_along_k=True, passes=0, summed=False, padding=4):
    """Along which of its axes neighbouring threads read each operand; passes of TF32, or 0 for fused multiply-adds, where
    threads without padding wait for each other's banks; whether the rows of A are summed as well."""
    (a_step, a_side, a_stage), (b_step, b_side, b_stage) = (_steps(along, tile, padding, passes)
                                                            for along in (a_along_k, b_along_k))
    (a_deep, a_wide), (b_deep, b_wide) = walk(tile, a_along_k), walk(tile, b_along_k)
    a_buffers, b_buffers = 2 * a_stage, 2 * b_stage
    if passes:
        zeros, multiply, store = fragments(passes, (a_step, a_side), (b_step, b_side))
    else:
        zeros, multiply, store, _ = sums_of(tile // 16, tile + padding)

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], i4, i4, i4, i4, i4, i4, i4, i4, i4, i4, i4, b1, b1, b1,"
            " b1, f4, f4, f4)", least=(8, 0))
    def gemm_block(a, b, bias, where, c, a_sums, rows, cols, depth, a0, am, ak, b0, bk, bn, bias0, bias_step, aligned, biased,
                   masked, relu, alpha, scale, sums_scale):
        """Versions 4 and 5: the next k-tile is copied while this one is multiplied."""
        a_tile = cuda.shared.array(a_buffers, float32, 16)
        b_tile = cuda.shared.array(b_buffers, float32, 16)
        t = int32(cuda.threadIdx.x)
        row0, col0 = int32(cuda.blockIdx.y) * int32(tile), int32(cuda.blockIdx.x) * int32(tile)
        # where this thread copies from, how much there is from there on, and where to
        place = t // int32(8)
        if passes:  # rows 0 2 4 6 of eight, then 1 3 5 7: four rows of 20 floats begin 8 banks apart
            place = (place & int32(24)) | ((place & int32(3)) << int32(1)) | ((place >> int32(2)) & int32(1))
        a_k, a_m = (t % int32(8), place) if a_along_k else (t // int32(tile), t % int32(tile))
        b_k, b_n = (t % int32(8), place) if b_along_k else (t // int32(tile), t % int32(tile))
        a_from, b_from = address(a, a0 + (row0 + a_m) * am + a_k * ak), address(b, b0 + b_k * bk + (col0 + b_n) * bn)
        a_rows, b_cols, a_depth, b_depth = rows - row0 - a_m, cols - col0 - b_n, depth - a_k, depth - b_k
        a_to = shared_address(a_tile, a_k * int32(a_step) + a_m * int32(a_side))
        b_to = shared_address(b_tile, b_k * int32(b_step) + b_n * int32(b_side))
        # where its sums begin in the block, and its numbers in the tiles
        if passes:  # warps stand 2 x 4; fragments as in `intrinsics`
            warp, lane = t >> int32(5), t & int32(31)
            row, col = (warp >> int32(2)) * int32(64) + (lane >> int32(2)), (warp & int32(3)) * int32(32)
            a_at = (lane & int32(3)) * int32(a_step) + row * int32(a_side)
            b_at = (lane & int32(3)) * int32(b_step) + (col + (lane >> int32(2))) * int32(b_side)
            col += (lane & int32(3)) * int32(2)
        else:
            row, col = (t >> int32(4)) * int32(4), (t & int32(15)) * int32(4)
            a_at, b_at = row, col
        sums, a_sum, summing = zeros(), float32(0), summed and col0 == 0 and t < int32(tile)
        tiles = (depth + int32(DEPTH - 1)) // int32(DEPTH)
        for step in range(tiles + 1):
            if step < tiles:
                odd = int32(step) & int32(1)
                for i in range(DEPTH // a_deep):
                    for j in range(tile // a_wide):
                        copy(a_to + odd * int32(4 * a_stage) + int32(4 * (i * a_deep * a_step + j * a_wide * a_side)),
                             a_from + int64(4) * int64(int32(i * a_deep) * ak + int32(j * a_wide) * am),
                             int32(i * a_deep) < a_depth and int32(j * a_wide) < a_rows)
                for i in range(DEPTH // b_deep):
                    for j in range(tile // b_wide):
                        copy(b_to + odd * int32(4 * b_stage) + int32(4 * (i * b_deep * b_step + j * b_wide * b_side)),
                             b_from + int64(4) * int64(int32(i * b_deep) * bk + int32(j * b_wide) * bn),
                             int32(i * b_deep) < b_depth and int32(j * b_wide) < b_cols)
                a_from, b_from = a_from + int64(4 * DEPTH) * int64(ak), b_from + int64(4 * DEPTH) * int64(bk)
                a_depth, b_depth = a_depth - int32(DEPTH), b_depth - int32(DEPTH)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                odd = int32(step - 1) & int32(1)
                sums = multiply(sums, a_tile, odd * int32(a_stage) + a_at, b_tile, odd * int32(b_stage) + b_at)
                if summing:
                    for k in range(DEPTH):
                        a_sum += a_tile[odd * int32(a_stage) + int32(k * a_step) + t * int32(a_side)]
                cuda.syncthreads()
        if summing and row0 + t < rows:
            a_sums[row0 + t] = sums_scale * a_sum
        row, col = row0 + row, col0 + col
        store(sums, c, row * cols + col, cols, rows - row, cols - col, aligned, bias, bias0 + col * bias_step, bias_step,
              biased, where, masked, relu, alpha, scale)

    return gemm_block


TILES = {128: 1.0, 64: 1.5}  # what an output costs in blocks of each size, where there are blocks for all multiprocessors


def tile_for(rows, cols, products=1):
    """The size of blocks by which so many products are done first: a multiprocessor works on two at a time."""
    def cost(tile):
        waves = ceil_div(products * ceil_div(rows, tile) * ceil_div(cols, tile), 2 * multiprocessors())
        return waves * tile * tile * TILES[tile]

    return min(TILES, key=cost)


def available(*arrays):
    """Whether this card has the instructions and gives right results, and 32 bits count the elements of the arrays."""
    return capability() >= _block().least and all(array.size < 2**31 for array in arrays) and _agrees()


@trusted
def _agrees():
    """Of both tiles and every walk, on ragged operands."""
    rng, worst = np.random.default_rng(0), 0.0
    x, y = rng.standard_normal((150, 45), np.float32), rng.standard_normal((45, 133), np.float32)
    for tile in TILES:
        for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
            a, b = (to_device(np.ascontiguousarray(m.T if t else m).reshape(-1)) for m, t in ((x, ta), (y, tb)))
            out = device_array((150, 133))
            gemm_block_cuda(a, b, (150, 133, 45), (0, 1, 150) if ta else (0, 45, 1), (0, 1, 45) if tb else (0, 133, 1), out,
                            tile=tile)
            worst = max(worst, float(np.abs(out.copy_to_host() - np.float64(x) @ y).max()) / 45)
    return worst


def gemm_block_cuda(a, b, shape, a_at, b_at, out, bias=None, bias_at=(0, 1), relu=False, alpha=1.0, scale=1.0, where=None,
                    a_sums=None, sums_scale=1.0, tile=None, passes=0, padding=4):
    """c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n]), shape (M, N, K); a_at, b_at and bias_at say where the
    elements lie: (a0, am, ak), (b0, bk, bn) and (start, step). `where` and `a_sums` as above.
    passes of TF32, in tiles of 128: 3, with the error of float32, or 1. To look at what they do: a tile of 64 or 128, and
    padding by a multiple of 4."""
    (rows, cols, _), (_, am, ak), (_, bk, bn) = shape, a_at, b_at
    tile, together = (128, 2) if passes else (tile_for(rows, cols) if tile is None else tile, 4)
    c = out.reshape(out.size)
    launch(_block(tile, ak <= am, bk <= bn, passes, a_sums is not None, padding), (ceil_div(cols, tile), ceil_div(rows, tile)),
           THREADS, a, b, b if bias is None else bias, b if where is None else where.reshape(where.size), c,
           c if a_sums is None else a_sums, *shape, *a_at, *b_at, *bias_at, cols % together == 0, bias is not None,
           where is not None, relu, alpha, scale, sums_scale)
    return out
