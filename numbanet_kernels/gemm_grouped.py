"""The kept tiles of `gemm_tiles` as dense products, one for each class, in one launch: for compute capability 8.0 and above.

Block z of the grid works on class z, in blocks as those of `gemm_block`, and meets its rows and columns by their numbers: in
the forward pass and dx the inner index and the column of the result come from a list, in dw its row and its column.
"""
from __future__ import annotations

import numpy as np
from numba import float32, int32

from . import gemm_block
from .gemm_block import THREADS, tile_for, walk
from .intrinsics import DEPTH, address, commit, copy, shared_address, sums_of, wait_for_all_but_one
from .launch import ceil_div, cuda, device_array, device_cache, kernel, kernels, launch, to_device, trusted
from .memory import flat, upload_cuda
from .tiles import elements, grid_of, kept_tiles, packed_shape, packed_tiles, row_places


@kernels
def _grouped(inner=True, tile=128, a_along_k=True, b_along_k=True):
    side, pitch = tile // 16, tile + 4
    stage = DEPTH * pitch
    buffers = 2 * stage
    zeros, multiply, store, scatter = sums_of(side, pitch)
    (a_deep, a_wide), (b_deep, b_wide) = walk(tile, a_along_k), walk(tile, b_along_k)

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], i4, i4,"
            " i4, i4, i4, i4, i4, i4, b1, b1, b1, f4)", least=(8, 0))
    def gemm_tiles_grouped(a, b, bias, where, c, a_sums, first, second, firsts, seconds, starts, most_first, most_second, plain,
                           am, ak, bk, bn, width, biased, masked, relu, scale):
        """inner: c[m, N] = act(scale sum_K a[m am + K ak] b[K bk + N bn] + bias[N]), if masked 0 unless where[m, N] > 0; else:
        c[start + m, n] = scale sum_k a[M am + k ak] b[k bk + N bn] and a_sums[M] = sum_k a[M am + k ak]; K or M from the part
        of the class in `first`, N from that in `second`: as many numbers as `firsts` and `seconds` say, of room for the most.
        The other axis has `plain` numbers."""
        a_tile = cuda.shared.array(buffers, float32, 16)
        b_tile = cuda.shared.array(buffers, float32, 16)
        t, z = int32(cuda.threadIdx.x), int32(cuda.blockIdx.z)
        first_at, second_at = z * most_first, z * most_second
        row0, col0 = int32(cuda.blockIdx.y) * int32(tile), int32(cuda.blockIdx.x) * int32(tile)
        rows, depth, cols = (plain, firsts[z], seconds[z]) if inner else (firsts[z], plain, seconds[z])
        if row0 >= rows or (col0 >= cols and (inner or col0 > 0)):  # of a class without columns, too, rows are summed
            return
        a_k, a_m = (t % int32(a_deep), t // int32(a_deep)) if a_along_k else (t // int32(a_wide), t % int32(a_wide))
        b_k, b_n = (t % int32(b_deep), t // int32(b_deep)) if b_along_k else (t // int32(b_wide), t % int32(b_wide))
        a_to, b_to = shared_address(a_tile, a_k * int32(pitch) + a_m), shared_address(b_tile, b_k * int32(pitch) + b_n)
        sums, a_sum, summing = zeros(), float32(0), not inner and col0 == 0 and t < int32(tile)
        tiles = (depth + int32(DEPTH - 1)) // int32(DEPTH)
        for step in range(tiles + 1):
            if step < tiles:
                k0, to = int32(step) * int32(DEPTH), (int32(step) & int32(1)) * int32(4 * stage)
                if inner:
                    for i in range(DEPTH // a_deep):
                        k = k0 + a_k + int32(i * a_deep)
                        at = (first[first_at + k] if k < depth else int32(0)) * ak
                        for j in range(tile // a_wide):
                            m = row0 + a_m + int32(j * a_wide)
                            copy(a_to + to + int32(4 * (i * a_deep * pitch + j * a_wide)), address(a, m * am + at),
                                 k < depth and m < rows)
                else:
                    for j in range(tile // a_wide):
                        m = row0 + a_m + int32(j * a_wide)
                        at = (first[first_at + m] if m < rows else int32(0)) * am
                        for i in range(DEPTH // a_deep):
                            k = k0 + a_k + int32(i * a_deep)
                            copy(a_to + to + int32(4 * (i * a_deep * pitch + j * a_wide)), address(a, at + k * ak),
                                 k < depth and m < rows)
                for j in range(tile // b_wide):
                    n = col0 + b_n + int32(j * b_wide)
                    at = (second[second_at + n] if n < cols else int32(0)) * bn
                    for i in range(DEPTH // b_deep):
                        k = k0 + b_k + int32(i * b_deep)
                        at_k = (first[first_at + k] if inner and k < depth else k) * bk
                        copy(b_to + to + int32(4 * (i * b_deep * pitch + j * b_wide)), address(b, at_k + at),
                             k < depth and n < cols)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                at = (int32(step - 1) & int32(1)) * int32(stage)
                sums = multiply(sums, a_tile, at + (t >> int32(4)) * int32(4), b_tile, at + (t & int32(15)) * int32(4))
                if summing:
                    for k in range(DEPTH):
                        a_sum += a_tile[at + int32(k * pitch) + t]
                cuda.syncthreads()
        if summing and row0 + t < rows:
            a_sums[first[first_at + row0 + t]] = a_sum
        row, col = row0 + (t >> int32(4)) * int32(4), col0 + (t & int32(15)) * int32(4)
        if inner:
            scatter(sums, c, row * width, width, rows - row, cols - col, second, second_at + col, bias, biased, where,
                    masked, relu, scale, float32(1))
        else:
            store(sums, c, (starts[z] + row) * width + col, width, rows - row, cols - col, width % int32(4) == int32(0), bias,
                  int32(0), int32(0), False, where, False, False, scale, float32(1))

    return gemm_tiles_grouped


@device_cache(maxsize=1024)
def groups(shape, tile, dp, bias, mix):
    """((numbers of the rows that each class keeps, then 0; how many; the most), the same of columns, first packed row)"""
    packed = packed_tiles(grid_of(shape, tile), dp, bias, mix)

    def listed(tile_numbers, length):
        found = [elements(numbers, tile, length) for numbers in tile_numbers]
        most = max([1, *(numbers.size for numbers in found)])
        lists = np.zeros((len(found), most), np.int32)
        for z, numbers in enumerate(found):
            lists[z, :numbers.size] = numbers
        return upload_cuda(lists.reshape(-1)), upload_cuda(np.array([n.size for n in found], np.int32)), most

    starts = packed.row_place[packed.rows[:, :1].ravel()] * tile
    return listed(packed.rows, shape[0]), listed(packed.cols, shape[1]), upload_cuda(starts.astype(np.int32))


def available(*arrays):
    """Whether `gemm_block` is, and classes of tiles give right results."""
    return gemm_block.available(*arrays) and _agrees()


@trusted
def _agrees():
    """Forward and dw of ragged weights."""
    rng, shape, pattern = np.random.default_rng(0), (150, 133), (8, 3, 1, 2)
    x, w, dy = (rng.standard_normal(s, np.float32) for s in ((45, 133), shape, (45, 150)))
    kept = np.kron(kept_tiles(grid_of(shape, 8), *pattern[1:]), np.ones((8, 8)))[:150, :133]
    rows, cols, starts = groups(shape, *pattern)
    y = device_array((45, 150))
    launch_grouped(True, to_device(x), to_device(w), y, cols, rows, starts, 45, (133, 1), (1, 133))
    dw, db = device_array(packed_shape(shape, *pattern[:2])), device_array((150,))
    launch_grouped(False, to_device(dy), to_device(x), dw, rows, cols, starts, 45, (1, 150), (133, 1), a_sums=db)
    packed, expected = dw.copy_to_host(), (dy.T.astype(float) @ x) * kept
    places = row_places(packed_tiles(grid_of(shape, 8), *pattern[1:]), 8, 150)
    worst = max(np.abs(y.copy_to_host() - x.astype(float) @ (w * kept).T).max(),
                np.abs(db.copy_to_host() - dy.astype(float).sum(0)).max())
    for o in range(150):
        columns = np.flatnonzero(kept[o])
        worst = max(worst, np.abs(packed[places[o], :columns.size] - expected[o, columns]).max(initial=0.0))
    return float(worst) / 45


def launch_grouped(inner, a, b, c, first, second, starts, plain, a_at, b_at, bias=None, relu=False, scale=1.0, where=None,
                   a_sums=None):
    """One launch for all classes; first and second as `groups` gives them, a_at and b_at the strides (am, ak) and (bk, bn).
    Where not inner, the sums of A's rows go to a_sums."""
    (firsts, first_counts, most_first), (seconds, second_counts, most_second) = first, second
    rows, classes = plain if inner else most_first, first_counts.size
    tile = tile_for(rows, most_second, classes)
    (am, ak), (bk, bn) = a_at, b_at
    launch(_grouped(inner, tile, ak <= am, bk <= bn), (ceil_div(most_second, tile), ceil_div(rows, tile), classes), THREADS,
           flat(a), flat(b), flat(b) if bias is None else bias, flat(b) if where is None else flat(where), flat(c),
           flat(c) if a_sums is None else a_sums, firsts, seconds, first_counts, second_counts, starts,
           most_first, most_second, plain, *a_at, *b_at, c.shape[1], bias is not None, where is not None, relu, scale)
    return c
