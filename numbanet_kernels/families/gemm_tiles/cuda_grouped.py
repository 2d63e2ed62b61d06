"""The products of `gemm_tiles` as one dense product per class, in a single launch; this needs compute capability 8.0.

A class is a set of tile rows that keep the same tile columns (`layouts.tiles`). The blocks with index z along the third axis of
the grid compute class z as `gemm_block` does, but on gathered rows and columns. In the forward pass and for dx, lists of the
class give the inner indices and the columns of the result. For dw, they give the rows and the columns of the result.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import float32, int32

from ...blocks import gemm_block
from ...blocks.accumulate import rows_of
from ...blocks.copies import DEPTH, THREADS, copies_of, layout
from ...blocks.gemm_block import TILES, blocks_at_once, exact_enough, sums_for, tile_for, way_for
from ...blocks.intrinsics import commit, wait_for_all_but_one
from ...layouts.tiles import Pattern, TileLists, kept_tiles, row_positions, tile_lists
from ...runtime.arrays import device_array, to_device
from ...runtime.declare import cuda, inlined, kernel, kernels
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import flat
from ...runtime.trust import trusted


def _products_of(of_a, of_b, inner, tile, passes):
    """Return a device function that computes the sums of a block; each factory makes its own (`inlined`)."""
    (first_a, _, copy_a), (first_b, _, copy_b) = copies_of(of_a, inner, not inner), copies_of(of_b, inner, True)
    corner, zeros, multiply, _, _ = sums_for(tile, of_a, of_b, passes)
    first_sum, add_rows, total = rows_of(tile, of_a)
    a_room, b_room = 2 * of_a.stage, 2 * of_b.stage

    @inlined
    def products(a, b, t, row0, col0, shape, steps, first, first_at, second, second_at):
        """Return (sums, a_sum) for the block of the result whose first element is (row0, col0): the sums of this thread, and,
        if not `inner`, the sum of one row of A.
        """
        (rows, depth, cols), (am, ak, bk, bn) = shape, steps
        a_tile, b_tile = cuda.shared.array(a_room, float32, 16), cuda.shared.array(b_room, float32, 16)
        position, _, _, a_at, b_at = corner(t)
        a_k, a_m, a_to = first_a(t, position, a_tile)
        b_k, b_n, b_to = first_b(t, position, b_tile)
        a_m, b_n = row0 + a_m, col0 + b_n
        sums, a_sum, sum_at = zeros(), float32(0), first_sum(t)
        tiles = int32((depth + DEPTH - 1) // DEPTH)
        for step in range(int32(tiles + 1)):
            if step < tiles:
                copy_a(a_to, step, a, a_k, a_m, ak, am, depth, rows, first, first_at, first, first_at)
                copy_b(b_to, step, b, b_k, b_n, bk, bn, depth, cols, first, first_at, second, second_at)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                sums = multiply(sums, a_tile, a_at, b_tile, b_at, step - 1)
                if not inner:
                    a_sum = add_rows(a_sum, a_tile, sum_at, step - 1)
                cuda.syncthreads()
        if not inner:
            a_sum = total(a_tile, t, a_sum)
        return sums, a_sum

    return products


@kernels("gemm_tiles")
def _grouped(inner=True, tile=128, a_along_k=True, b_along_k=True, passes=0):
    of_a, of_b = (layout(tile, along_k, passes) for along_k in (a_along_k, b_along_k))
    corner, _, _, store, scatter = sums_for(tile, of_a, of_b, passes)
    products, together = _products_of(of_a, of_b, inner, tile, passes), 2 if passes else 4

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], UniTuple(i4[::1], 2), UniTuple(i4[::1], 2), i4[::1],"
        " UniTuple(i4, 2), i4, UniTuple(i4, 4), i4, b1, b1, b1, f4)",
        least=(8, 0),
        bounds=(THREADS, blocks_at_once(passes)),
    )
    def gemm_tiles_grouped(
        a, b, bias, where, c, a_sums, lists, counts, starts, rooms, plain, steps, width, biased, masked, relu, scale
    ):
        """Multiply the gathered matrices of each class; `steps` is (am, ak, bk, bn).

        if inner    c[m, N] = act(scale sum_K a[m am + K ak] b[K bk + N bn] + bias[N]); if masked, 0 unless where[m, N] > 0
        else        c[start + m, n] = scale sum_k a[M am + k ak] b[k bk + N bn]
                    a_sums[M] = sum_k a[M am + k ak]

        Capital K, M and N are indices that are read from the two arrays `lists`: K or M from the first, N (for column n) from
        the second. For class z, array i holds counts[i][z] indices from position z rooms[i] on. The remaining axis, m or k,
        has length `plain`; `start` is starts[z].
        """
        (first, second), (firsts, seconds), t, z = lists, counts, int32(cuda.threadIdx.x), int32(cuda.blockIdx.z)
        first_at, second_at = z * rooms[0], z * rooms[1]
        row0, col0 = int32(cuda.blockIdx.y * tile), int32(cuda.blockIdx.x * tile)
        rows, depth, cols = (plain, firsts[z], seconds[z]) if inner else (firsts[z], plain, seconds[z])
        if row0 >= rows or (col0 >= cols and (inner or col0 > 0)):  # a class without columns still sums the rows of a
            return
        shape = rows, depth, cols
        sums, a_sum = products(a, b, t, row0, col0, shape, steps, first, first_at, second, second_at)
        if not inner and col0 == 0 and t < tile and row0 + t < rows:
            a_sums[first[first_at + row0 + t]] = a_sum
        _, row, col, _, _ = corner(t)
        row, col, scales = row0 + row, col0 + col, (scale, float32(1))
        if inner:
            place = row * width, width, rows - row, cols - col
            scatter(sums, c, place, bias, where, biased, masked, relu, scales, second, second_at + col)
        else:
            place, at_bias = ((starts[z] + row) * width + col, width, rows - row, cols - col), (int32(0), int32(0))
            aligned = width % int32(together) == int32(0)
            store(sums, c, place, bias, where, False, False, False, scales, at_bias, aligned)

    return gemm_tiles_grouped


def groups(lists, pattern):
    """Return (rows, cols, starts) of the `TileLists` lists. `rows` and `cols` are arguments of `launch_grouped`: (index lists
    of the classes, length of each list, largest length that any pattern of this kind has). starts[z] is the first packed row of
    class z.
    """
    rows, cols = (max(min(n * pattern.tile, length), 1) for n, length in zip(pattern.most, pattern.shape, strict=True))
    return (flat(lists.rows), lists.row_counts, rows), (flat(lists.cols), lists.col_counts, cols), lists.starts


def available(*arrays):
    """Return True if `gemm_block` is available and the grouped products pass the self-test."""
    return gemm_block.available(*arrays) and _agrees()


@trusted
def _agrees():
    """Return the largest error of both tile sizes against NumPy, on a weight whose sides are no multiples of the tile; the
    decorator turns it into the result of a self-test.
    """
    return float(np.max([_error(tile, 0) for tile in TILES]))


_tensor_agrees = {3: trusted(lambda: exact_enough(functools.partial(_error, 128))), 1: trusted(lambda: _error(128, 1) / 1000)}


def _error(tile, passes, samples=45):
    """Return the largest error of the forward pass, dx and dw with their epilogues, divided by the number of samples."""
    rng, pattern = np.random.default_rng(0), Pattern((150, 133), 8, 3, 1, 2)
    x, w, dy = (rng.standard_normal(s, np.float32) for s in ((samples, 133), pattern.shape, (samples, 150)))
    mask = np.kron(kept_tiles(pattern), np.ones((8, 8)))[:150, :133]
    rows, cols, starts = groups(TileLists(*map(to_device, tile_lists(pattern))), pattern)
    on_card = to_device(x), to_device(w), to_device(dy)
    y, dx, db = device_array((samples, 150)), device_array((samples, 133)), device_array((150,))
    dw, ways = device_array(pattern.packed_shape), {"tile": tile, "passes": passes}
    launch_grouped(True, on_card[0], on_card[1], y, cols, rows, starts, samples, (133, 1), (1, 133), **ways)
    launch_grouped(True, on_card[2], on_card[1], dx, rows, cols, starts, samples, (150, 1), (133, 1), where=on_card[0], **ways)
    launch_grouped(False, on_card[2], on_card[0], dw, rows, cols, starts, samples, (1, 150), (133, 1), a_sums=db, **ways)
    packed, expected = dw.copy_to_host(), (dy.T.astype(float) @ x) * mask
    errors = [
        np.abs(y.copy_to_host() - x.astype(float) @ (w * mask).T).max(),
        np.abs(dx.copy_to_host() - np.where(x > 0, dy.astype(float) @ (w * mask), 0)).max(),
        np.abs(db.copy_to_host() - dy.astype(float).sum(0)).max(),
    ]
    for o, position in enumerate(row_positions(pattern)):
        columns = np.flatnonzero(mask[o])
        errors.append(np.abs(packed[position, : columns.size] - expected[o, columns]).max(initial=0.0))
    return float(np.max(errors)) / samples  # NaN if an error is NaN


def launch_grouped(
    inner,
    a,
    b,
    c,
    first,
    second,
    starts,
    plain,
    a_at,
    b_at,
    bias=None,
    relu=False,
    scale=1.0,
    where=None,
    a_sums=None,
    tile=None,
    passes=None,
):
    """Launch `gemm_tiles_grouped` once for all classes: if `inner`, for the forward pass or dx, else for dw.

    `first` and `second` are index lists, the rows or the columns that `groups` returns: `first` gives the inner indices if
    `inner`, else the rows of the result; `second` gives the columns of the result. `plain` is the length of the axis without a
    list. a_at and b_at are the strides (am, ak) of a and (bk, bn) of b. If not `inner`, the sums of the rows of a are written
    to a_sums.
    """
    (firsts, first_counts, most_first), (seconds, second_counts, most_second) = first, second
    rows, classes = plain if inner else most_first, first_counts.size
    if passes is None:
        tile, passes = way_for(rows, most_second, classes, _tensor_agrees) if tile is None else (tile, 0)
    tile = 128 if passes else tile or tile_for(rows, most_second, classes)
    (am, ak), (bk, bn) = a_at, b_at
    grid = ceil_div(most_second, tile), ceil_div(rows, tile), classes
    operands = a, b, b if bias is None else bias, b if where is None else where, c, c if a_sums is None else a_sums
    launch(
        _grouped(inner, tile, ak <= am, bk <= bn, passes),
        grid,
        THREADS,
        *map(flat, operands),
        (firsts, seconds),
        (first_counts, second_counts),
        starts,
        (firsts.size // classes, seconds.size // classes),
        plain,
        (*a_at, *b_at),
        c.shape[1],
        bias is not None,
        where is not None,
        relu,
        scale,
    )
    return c
