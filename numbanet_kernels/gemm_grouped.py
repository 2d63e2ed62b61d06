"""The kept tiles of `gemm_tiles` as dense products, one for each class, in one launch: for compute capability 8.0 and above.

Block z of the grid works on class z, in blocks as those of `gemm_block`, and meets its rows and columns by their numbers: in
the forward pass and dx the inner index and the column of the result come from a list, in dw its row and its column.
"""
from __future__ import annotations

import numpy as np
from numba import float32, int32

from . import gemm_block
from .gemm_block import THREADS, TILES, layout, sums_for, tile_for
from .intrinsics import DEPTH, address, commit, copy, shared_address, wait_for_all_but_one
from .launch import ceil_div, cuda, device_array, device_cache, imprecise, kernel, kernels, launch, to_device, trusted
from .memory import flat, upload_cuda
from .tiles import elements, grid_of, kept_tiles, packed_shape, packed_tiles, row_places


@kernels
def _grouped(inner=True, tile=128, a_along_k=True, b_along_k=True, passes=0):
    of_a, of_b = (layout(tile, along_k, passes) for along_k in (a_along_k, b_along_k))
    (a_deep, a_wide, a_step, a_side, a_stage), (b_deep, b_wide, b_step, b_side, b_stage) = of_a, of_b
    corner, zeros, multiply, store, scatter = sums_for(tile, of_a, of_b, passes)
    a_buffers, b_buffers, together = 2 * a_stage, 2 * b_stage, 2 if passes else 4

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], i4[::1], i4[::1], i4[::1], i4[::1], i4[::1], i4, i4,"
            " i4, i4, i4, i4, i4, i4, b1, b1, b1, f4)", least=(8, 0), bounds=(THREADS, 2))
    def gemm_tiles_grouped(a, b, bias, where, c, a_sums, first, second, firsts, seconds, starts, most_first, most_second, plain,
                           am, ak, bk, bn, width, biased, masked, relu, scale):
        """inner: c[m, N] = act(scale sum_K a[m am + K ak] b[K bk + N bn] + bias[N]), if masked 0 unless where[m, N] > 0; else:
        c[start + m, n] = scale sum_k a[M am + k ak] b[k bk + N bn] and a_sums[M] = sum_k a[M am + k ak]; K or M from the part
        of the class in `first`, N from that in `second`: as many numbers as `firsts` and `seconds` say, of room for the most.
        The other axis has `plain` numbers."""
        a_tile = cuda.shared.array(a_buffers, float32, 16)
        b_tile = cuda.shared.array(b_buffers, float32, 16)
        t, z = int32(cuda.threadIdx.x), int32(cuda.blockIdx.z)
        first_at, second_at = z * most_first, z * most_second
        row0, col0 = int32(cuda.blockIdx.y * tile), int32(cuda.blockIdx.x * tile)
        rows, depth, cols = (plain, firsts[z], seconds[z]) if inner else (firsts[z], plain, seconds[z])
        if row0 >= rows or (col0 >= cols and (inner or col0 > 0)):  # of a class without columns, too, rows are summed
            return
        place, row, col, a_at, b_at = corner(t)
        a_k, a_m = (t % int32(8), place) if a_along_k else (t // int32(tile), t % int32(tile))
        b_k, b_n = (t % int32(8), place) if b_along_k else (t // int32(tile), t % int32(tile))
        a_to = shared_address(a_tile, a_k * int32(a_step) + a_m * int32(a_side))
        b_to = shared_address(b_tile, b_k * int32(b_step) + b_n * int32(b_side))
        sums, a_sum = zeros(), float32(0)
        summing = not inner and col0 == 0 and t < int32(tile)
        to_sum = int32(DEPTH if summing else 0)  # a count, not a branch, which the compiler would take away at the cost of all
        tiles = int32((depth + DEPTH - 1) // DEPTH)
        for step in range(tiles + 1):
            if step < tiles:
                k0, odd = int32(step * DEPTH), int32(step & 1)
                if inner:
                    for i in range(DEPTH // a_deep):
                        k = int32(k0 + a_k + i * a_deep)
                        at = (first[first_at + k] if k < depth else int32(0)) * ak
                        for j in range(tile // a_wide):
                            m = int32(row0 + a_m + j * a_wide)
                            copy(a_to + odd * int32(4 * a_stage) + int32(4 * (i * a_deep * a_step + j * a_wide * a_side)),
                                 address(a, m * am + at), k < depth and m < rows)
                else:
                    for j in range(tile // a_wide):
                        m = int32(row0 + a_m + j * a_wide)
                        at = (first[first_at + m] if m < rows else int32(0)) * am
                        for i in range(DEPTH // a_deep):
                            k = int32(k0 + a_k + i * a_deep)
                            copy(a_to + odd * int32(4 * a_stage) + int32(4 * (i * a_deep * a_step + j * a_wide * a_side)),
                                 address(a, at + k * ak), k < depth and m < rows)
                for j in range(tile // b_wide):
                    n = int32(col0 + b_n + j * b_wide)
                    at = (second[second_at + n] if n < cols else int32(0)) * bn
                    for i in range(DEPTH // b_deep):
                        k = int32(k0 + b_k + i * b_deep)
                        at_k = (first[first_at + k] if inner and k < depth else k) * bk
                        copy(b_to + odd * int32(4 * b_stage) + int32(4 * (i * b_deep * b_step + j * b_wide * b_side)),
                             address(b, at_k + at), k < depth and n < cols)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                odd = int32(step - 1) & int32(1)
                sums = multiply(sums, a_tile, odd * int32(a_stage) + a_at, b_tile, odd * int32(b_stage) + b_at)
                for k in range(to_sum):
                    a_sum += a_tile[odd * int32(a_stage) + int32(k * a_step) + t * int32(a_side)]
                cuda.syncthreads()
        if summing and row0 + t < rows:
            a_sums[first[first_at + row0 + t]] = a_sum
        row, col = row0 + row, col0 + col
        if inner:
            scatter(sums, c, row * width, width, rows - row, cols - col, second, second_at + col, bias, biased, where,
                    masked, relu, scale, float32(1))
        else:
            aligned = width % int32(together) == int32(0)
            store(sums, c, (starts[z] + row) * width + col, width, rows - row, cols - col, aligned, bias, int32(0), int32(0),
                  False, where, False, False, scale, float32(1))

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
    """Of both tiles, on a ragged weight."""
    return float(np.max([_error(tile, 0) for tile in TILES]))


@trusted
def _tensor_agrees():
    """In one pass of TF32, which may be a thousand times as far off."""
    return _error(128, 1) / 1000


def _error(tile, passes):
    """Of the three products of a training step, with what they do on the way."""
    rng, shape, pattern, samples = np.random.default_rng(0), (150, 133), (8, 3, 1, 2), 45
    x, w, dy = (rng.standard_normal(s, np.float32) for s in ((samples, 133), shape, (samples, 150)))
    kept = np.kron(kept_tiles(grid_of(shape, 8), *pattern[1:]), np.ones((8, 8)))[:150, :133]
    rows, cols, starts = groups(shape, *pattern)
    on_card = to_device(x), to_device(w), to_device(dy)
    y, dx, db = device_array((samples, 150)), device_array((samples, 133)), device_array((150,))
    dw, ways = device_array(packed_shape(shape, *pattern[:2])), {"tile": tile, "passes": passes}
    launch_grouped(True, on_card[0], on_card[1], y, cols, rows, starts, samples, (133, 1), (1, 133), **ways)
    launch_grouped(True, on_card[2], on_card[1], dx, rows, cols, starts, samples, (150, 1), (133, 1), where=on_card[0], **ways)
    launch_grouped(False, on_card[2], on_card[0], dw, rows, cols, starts, samples, (1, 150), (133, 1), a_sums=db, **ways)
    packed, expected = dw.copy_to_host(), (dy.T.astype(float) @ x) * kept
    places = row_places(packed_tiles(grid_of(shape, 8), *pattern[1:]), 8, 150)
    errors = [np.abs(y.copy_to_host() - x.astype(float) @ (w * kept).T).max(),
              np.abs(dx.copy_to_host() - np.where(x > 0, dy.astype(float) @ (w * kept), 0)).max(),
              np.abs(db.copy_to_host() - dy.astype(float).sum(0)).max()]
    for o in range(150):
        columns = np.flatnonzero(kept[o])
        errors.append(np.abs(packed[places[o], :columns.size] - expected[o, columns]).max(initial=0.0))
    return float(np.max(errors)) / samples  # NaN, too


def launch_grouped(inner, a, b, c, first, second, starts, plain, a_at, b_at, bias=None, relu=False, scale=1.0, where=None,
                   a_sums=None, tile=None, passes=None):
    """One launch for all classes; first and second as `groups` gives them, a_at and b_at the strides (am, ak) and (bk, bn).
    Where not inner, the sums of A's rows go to a_sums."""
    (firsts, first_counts, most_first), (seconds, second_counts, most_second) = first, second
    rows, classes = plain if inner else most_first, first_counts.size
    passes = (1 if imprecise() and _tensor_agrees() else 0) if passes is None else passes
    tile = 128 if passes else tile_for(rows, most_second, classes) if tile is None else tile
    (am, ak), (bk, bn) = a_at, b_at
    grid = ceil_div(most_second, tile), ceil_div(rows, tile), classes
    launch(_grouped(inner, tile, ak <= am, bk <= bn, passes), grid, THREADS, flat(a), flat(b),
           flat(b) if bias is None else bias, flat(b) if where is None else flat(where), flat(c),
           flat(c) if a_sums is None else a_sums, firsts, seconds, first_counts, second_counts, starts, most_first, most_second,
           plain, *a_at, *b_at, c.shape[1], bias is not None, where is not None, relu, scale)
    return c
