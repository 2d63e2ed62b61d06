"""Matrix product in blocks, versions 4 and 5 of the ladder in `gemm`: needs compute capability 8.0.

    c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n])        with `where`: 0 unless where[m, n] > 0
    A[m, k] = a[m am + k ak],   B[k, n] = b[b0 + k bk + n bn]        with `a_sums`: a_sums[m] = sums_scale * sum_k A[m, k]

Any strides: one kernel serves transposes, and kept rows, columns and inner indices of a pattern. The period of a pattern is a
stride; its bias, which determines b0, is read from the index lists, so that a recorded launch serves every bias. A block of 256
threads computes 128 x 128 outputs, 8 x 8 a thread, or 64 x 64, 4 x 4 a thread. 2 M N K FLOPs:

    copies      global -> shared by cp.async, 4 bytes a thread, zeros beyond the edges: the next k-tile is copied while this
                one is multiplied. Neighbouring threads walk along the contiguous axis
    tiles       16 rows of 128 (or 64) floats with padding 4: threads that walk along k, 8 of them in 4 columns, use 32 banks
    multiply    at 128, four 16-byte loads and 64 fused multiply-adds for each k; the sums are one tuple: it stays in registers

If there are too few blocks for the device, several blocks divide one product along k: each stores its sums, and the last one
adds up all of them, in the order of k, so that results are reproducible.

On tensor cores (version 5) a warp computes 64 x 32 of the 128 x 128: per k-tile 2 x 4 x 4 products 16 x 8 x 8 by mma. They
multiply TF32: float32 with 10 bits of mantissa. With three passes a number is the sum of two of them, x = big + small, and
big big + big small + small big leaves out only small small: the error of float32, but NaN if an operand is infinite. One pass
keeps 10 bits. A tile is stored with k in rows of 16 + 4 floats, or, read across, with k rows of 128 + 8: either way a warp's
fragment, 8 by 4, lies in 32 banks, and so do the floats that a warp copies at once.
"""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
from numba import float32, int32

from ..runtime.arrays import device_array, device_cache, to_device
from ..runtime.availability import capability, multiprocessors
from ..runtime.declare import cuda, inlined, kernel, kernels
from ..runtime.emulation import emulating
from ..runtime.interrupt import deferred
from ..runtime.launch import NotRecorded, ceil_div, launch
from ..runtime.memory import empty_cuda, flat
from ..runtime.precision import imprecise
from ..runtime.trust import trusted
from .accumulate import fragments, rows_of, sums_of
from .copies import DEPTH, THREADS, address, copies_of, layout
from .intrinsics import commit, wait_for_all_but_one
from .split_k import split_products


def values_of(tile, summed):
    """Return the number of sums of a thread."""
    return (tile // 16) ** 2 + summed


def sums_for(tile, a, b, passes):
    """Return the `Sums` of a thread, for operands with the layouts a and b."""
    return fragments(passes, a, b) if passes else sums_of(tile // 16, a)


def blocks_at_once(passes):
    """Return how many blocks a multiprocessor must have registers for. Three passes of TF32 need more than a half of them for
    sums that are rounded to nearest; on an H200 one block at a time is as fast as two that put some in memory.
    """
    return 1 if passes == 3 else 2


# --- kernel -----------------------------------------------------------------------------------------------------------
def _products_of(of_a, of_b, tile, passes, summed):
    """Return a device function that multiplies the tiles of a block; each factory makes its own (`inlined`)."""
    (first_a, copy_a, _), (first_b, copy_b, _) = copies_of(of_a), copies_of(of_b)
    corner, zeros, multiply, _, _ = sums_for(tile, of_a, of_b, passes)
    first_sum, add_rows, total = rows_of(tile, of_a)

    @inlined
    def products(a, b, a_tile, b_tile, t, begin, shape, a_steps, b_steps):
        """Return (this thread's sums of the block of A B that begins at `begin`, sum of a row of A). While one k-tile
        is multiplied, the next one is copied.
        """
        (row0, col0, a0, b0), (rows, cols, depth), (am, ak), (bk, bn) = begin, shape, a_steps, b_steps
        # where this thread copies from and to, and how many elements are inside the operands from there on
        line, _, _, a_at, b_at = corner(t)
        a_k, a_m, a_to = first_a(t, line, a_tile)
        b_k, b_n, b_to = first_b(t, line, b_tile)
        a_from, b_from = address(a, a0 + (row0 + a_m) * am + a_k * ak), address(b, b0 + b_k * bk + (col0 + b_n) * bn)
        a_rows, b_cols, a_depth, b_depth = rows - row0 - a_m, cols - col0 - b_n, depth - a_k, depth - b_k
        sums, a_sum = zeros(), float32(0)
        sum_at = first_sum(t)
        tiles = int32((depth + DEPTH - 1) // DEPTH)
        for step in range(int32(tiles + 1)):
            if step < tiles:
                a_from = copy_a(a_to, step, a_from, ak, am, a_depth, a_rows)
                b_from = copy_b(b_to, step, b_from, bk, bn, b_depth, b_cols)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                sums = multiply(sums, a_tile, a_at, b_tile, b_at, step - 1)
                if summed:
                    a_sum = add_rows(a_sum, a_tile, sum_at, step - 1)
                cuda.syncthreads()
        if summed:
            a_sum = total(a_tile, t, a_sum)
        return sums, a_sum

    return products


@kernels("gemm")
def _block(tile=128, a_along_k=True, b_along_k=True, passes=0, summed=False, padding=4):
    """Make the kernel `gemm_block` for tiles of side `tile`.

    If `a_along_k` or `b_along_k`, adjacent threads read this operand along k. `passes` is the number of passes in TF32 on
    tensor cores, or 0 for fused multiply-adds. If `summed`, the rows of A are summed as well. `padding` is that of rows in
    shared memory; with 0 there are bank conflicts.
    """
    of_a, of_b = (layout(tile, along_k, passes, padding) for along_k in (a_along_k, b_along_k))
    corner, zeros, _, store, _ = sums_for(tile, of_a, of_b, passes)
    products, a_room, b_room = _products_of(of_a, of_b, tile, passes, summed), 2 * of_a.stage, 2 * of_b.stage
    add_parts = split_products(zeros, values_of(tile, summed), summed)

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], UniTuple(i4[::1], 2), i4[::1], f4[::1], i4,"
        " UniTuple(i4, 3), UniTuple(i4, 2), UniTuple(i4, 2), i4, i4, UniTuple(b1, 4), UniTuple(f4, 3))",
        least=(8, 0),
        bounds=(THREADS, blocks_at_once(passes)) if passes or summed else None,
    )  # with the default, ptxas would spill registers
    def gemm_block(
        a, b, bias, where, c, a_sums, indices, tickets, parked, span, shape, a_steps, b_steps, along, bias_step, flags, scales
    ):
        """Compute one block of c, or a part of its sums: versions 4 and 5 of the ladder."""
        (rows, cols, depth), (aligned, biased, masked, relu), (alpha, scale, sums_scale) = shape, flags, scales
        a_tile, b_tile = cuda.shared.array(a_room, float32, 16), cuda.shared.array(b_room, float32, 16)
        ticket, t = cuda.shared.array(1, int32), int32(cuda.threadIdx.x)
        row0, col0 = int32(cuda.blockIdx.y * tile), int32(cuda.blockIdx.x * tile)
        first = int32(cuda.blockIdx.z) * span  # the first k of this block
        a0, b0 = first * a_steps[1], first * b_steps[0]
        if not summed and along > 0:  # `along` is the row length of the weight of which b is a submatrix
            b0 += indices[0][0] * along + indices[1][0]
        own = rows, cols, min(span, depth - first)
        sums, a_sum = products(a, b, a_tile, b_tile, t, (row0, col0, a0, b0), own, a_steps, b_steps)
        if cuda.gridDim.z > 1:
            last, sums, a_sum = add_parts(sums, a_sum, parked, tickets, ticket, t)
            if not last:
                return
        if summed and col0 == 0 and t < tile and row0 + t < rows:
            a_sums[row0 + t] = sums_scale * a_sum
        _, row, col, _, _ = corner(t)
        row, col = row0 + row, col0 + col
        # read a second time, which saves a register in the loop
        bias0 = indices[0][0] if not summed and along > 0 else int32(0)
        place = row * cols + col, cols, rows - row, cols - col
        bias_place = bias0 + col * bias_step, bias_step
        store(sums, c, place, bias, where, biased, masked, relu, (alpha, scale), bias_place, aligned)

    return gemm_block


# A model of the time of a product, fitted to times of an H200 by `python -m bench.kernels.gemm_ways`
TILES = {128: 1.0, 64: 2.0}  # time of a step of k in a block of each size, by output, relative to the largest
SLOTS = {128: 2, 64: 3}  # blocks of each size that a multiprocessor runs at a time
FIXED = 16  # steps of k that take as long as the beginning and the end of a block
ADDED = 2  # steps of k that take as long as adding the sums of another block along k
LEAST_SPAN = 8 * DEPTH  # smallest length of k for one block
TICKETS = 1024


def _cost(rows, cols, products, tile, each, depth=1024, parts=1):
    """Return the relative time of `products` products in blocks of size `tile`, `parts` of which divide the k of an output."""
    blocks = products * ceil_div(rows, tile) * ceil_div(cols, tile) * parts
    steps = ceil_div(depth, parts) + FIXED + (FIXED + ADDED * parts if parts > 1 else 0)
    return ceil_div(blocks, SLOTS[tile] * multiprocessors()) * steps * tile * tile * each


def _parts(rows, cols, depth, tile):
    """Return the fastest number of blocks that divide the k of an output."""
    blocks = ceil_div(rows, tile) * ceil_div(cols, tile)
    most = min(depth // LEAST_SPAN, ceil_div(SLOTS[tile] * multiprocessors(), max(blocks, 1))) if blocks <= TICKETS else 1
    return min(range(1, max(most, 1) + 1), key=lambda parts: _cost(rows, cols, 1, tile, 1.0, depth, parts))


def tile_for(rows, cols, products=1, depth=None):
    """Return the fastest block size for `products` products (rows, cols) with fused multiply-adds; if `depth` is given, blocks
    may divide the products along k.
    """
    return min(TILES, key=lambda tile: _divided(rows, cols, products, depth, tile, TILES[tile]))


def _divided(rows, cols, products, depth, tile, each):
    divided = () if depth is None else (depth, _parts(rows, cols, depth, tile))
    return _cost(rows, cols, products, tile, each, *divided)


def way_for(rows, cols, products=1, right=None, depth=None):
    """Return (block size, passes of TF32): one pass if the precision allows it, else three passes if they are faster for this
    size. If the self-test `right` of these passes fails, or if they are slower, passes is 0: fused multiply-adds are used.
    """
    right, tile = right or _tensor_agrees, tile_for(rows, cols, products, depth)
    if imprecise():
        return (128, 1) if right[1]() else (tile, 0)
    times = [_divided(rows, cols, products, depth, *way) for way in ((128, three_passes()), (tile, TILES[tile]))]
    return (128, 3) if times[0] < times[1] and right[3]() else (tile, 0)


def span_for(rows, cols, depth, tile):
    """Return the length of k that a block multiplies: less than `depth` if there are few blocks."""
    return ceil_div(ceil_div(depth, _parts(rows, cols, depth, tile)), DEPTH) * DEPTH


@functools.lru_cache(maxsize=1 << 12)
def _chosen(rows, cols, depth, *device):
    """Return (block size, passes, span) of a product. `device` holds all else that the choice depends on."""
    tile, passes = way_for(rows, cols, depth=depth)
    return tile, passes, span_for(rows, cols, depth, tile)


@device_cache(maxsize=1)
def _tickets():
    """Return a device array with the number of finished blocks of each product; all numbers are 0 between launches."""
    return to_device(np.zeros(TICKETS, np.int32))


def available(*arrays):
    """Return True if this device has the instructions and computes correct results, and 32-bit indices cover the arrays."""
    return capability() >= _block().least and all(array.size < 2**31 for array in arrays) and _agrees()


def three_passes():
    """Return the time of three passes on tensor cores divided by the time of fused multiply-adds, rounded up to quarters, so
    that processes mostly agree; inf on the emulated device, or if it cannot be measured.
    """
    return math.inf if emulating() else _three_passes()


@functools.cache
@deferred
def _three_passes():
    try:
        # the first measurement warms the GPU up, and is left out
        seconds = [[_milliseconds(passes) for passes in (3, 0)] for _ in range(4)][1:]
        three, none = (min(times) for times in zip(*seconds, strict=True))
        return math.ceil(4 * three / none) / 4
    except NotRecorded:
        raise
    except Exception as error:  # without events, a driver cannot measure times
        warnings.warn(f"tensor cores were not measured: {type(error).__name__}: {error}", stacklevel=2)
        return math.inf


def _milliseconds(passes, side=2048, times=4):
    """Return the time of `times` products of square matrices in milliseconds; each takes much longer than a launch."""
    a, b = (to_device(np.random.default_rng(0).standard_normal(side * side, np.float32)) for _ in range(2))
    out, (start, stop) = device_array((side, side)), (cuda.event(), cuda.event())
    start.record()
    for _ in range(times):
        launch_block(a, b, (side,) * 3, (side, 1), (1, side), out, tile=128, passes=passes)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


@trusted
def _agrees():
    """Return the largest error of both tile sizes against NumPy; the decorator makes a self-test of this function."""
    return float(np.max([_error(tile, 0) for tile in TILES]))


DEEP = 4096  # number of k of a product that is long enough to reveal sums with fewer bits than float32


def exact_enough(error):
    """Return the error of three passes; inf if, on a product with many k, it exceeds four times that of fused multiply-adds."""
    deep = [error(passes, DEEP) for passes in (3, 0)]
    return error(3) if deep[0] <= 4 * deep[1] else math.inf


_tensor_agrees = {
    3: trusted(lambda: exact_enough(functools.partial(_error, 128))),
    1: trusted(lambda: _error(128, 1) / 1000),
}  # one pass may be a thousand times less exact, so its tolerance is larger


def _error(tile, passes, k=45):
    """Return the largest error of the three products of a training step: with their epilogues, computed by one and by several
    blocks along k, and with kept rows.
    """
    rng, errors = np.random.default_rng(0), []
    (m, n), shape = (150, 133), (150, 133)
    x, y, gate = (rng.standard_normal(s, np.float32) for s in ((m, k), (k, n), shape))
    for ta, tb, masked, summed in ((False, True, False, False), (False, False, True, False), (True, False, False, True)):
        a, b = (
            to_device(np.ascontiguousarray(operand.T if transposed else operand).reshape(-1))
            for operand, transposed in ((x, ta), (y, tb))
        )
        for span in (ceil_div(k, 3 * DEPTH) * DEPTH, ceil_div(k, DEPTH) * DEPTH):
            out, sums = device_array(shape), device_array((m,))
            launch_block(
                a,
                b,
                (m, n, k),
                (1, m) if ta else (k, 1),
                (1, k) if tb else (n, 1),
                out,
                where=to_device(gate) if masked else None,
                a_sums=sums if summed else None,
                tile=tile,
                passes=passes,
                span=span,
            )
            expected = np.float64(x) @ y
            errors.append(np.abs(out.copy_to_host() - (np.where(gate > 0, expected, 0) if masked else expected)).max())
            if summed:
                errors.append(np.abs(sums.copy_to_host() - np.float64(x).sum(1)).max())
    weight, first_kept = (
        rng.standard_normal((2 * n, k), np.float32),
        (to_device(np.array([first], np.int32)) for first in (1, 0)),
    )
    launch_block(
        to_device(x.reshape(-1)),
        to_device(weight.reshape(-1)),
        (m, n, k),
        (k, 1),
        (1, 2 * k),
        out,
        indices=(*first_kept, k, 2),
        tile=tile,
        passes=passes,
    )
    errors.append(np.abs(out.copy_to_host() - np.float64(x) @ weight[1::2].T).max())
    return float(np.max(errors)) / k  # NaN if an error is NaN


def launch_block(
    a,
    b,
    shape,
    a_at,
    b_at,
    out,
    bias=None,
    relu=False,
    alpha=1.0,
    scale=1.0,
    where=None,
    a_sums=None,
    sums_scale=1.0,
    indices=None,
    tile=None,
    passes=None,
    span=None,
    padding=4,
):
    """c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n]); `shape` is (M, N, K), a_at and b_at are the strides
    (am, ak) and (bk, bn). The module's docstring describes `where` and `a_sums`.

    If b is a submatrix of a weight, pass the whole weight as b and indices = (kept rows, kept columns, row length, step of the
    rows in bias); the kept rows and columns are non-empty device arrays, and a_sums is None. `passes` of TF32, in tiles of 128:
    3, with the error of float32, or 1; if None, `way_for` chooses. Tests also set `tile` (64 or 128), `span` (the k of a block,
    a multiple of 16) and `padding` (a multiple of 4)."""
    (rows, cols, depth), (am, ak), (bk, bn) = shape, a_at, b_at
    if passes is None and tile is None:
        tile, passes, own = _chosen(rows, cols, depth, emulating(), imprecise(), multiprocessors(), three_passes())
        span = own if span is None else span
    tile, together = (128, 2) if passes else (tile or tile_for(rows, cols), 4)
    span = max(span or span_for(rows, cols, depth, tile), DEPTH)
    summed, grid = a_sums is not None, (ceil_div(cols, tile), ceil_div(rows, tile), max(ceil_div(depth, span), 1))
    if grid[2] > 1 and grid[0] * grid[1] > TICKETS:
        raise ValueError(f"gemm_block: {grid[0] * grid[1]} blocks exceed the {TICKETS} that can divide products; omit span")
    c, tickets = out.reshape(out.size), _tickets()
    parked = c if grid[2] == 1 else empty_cuda((math.prod(grid) * THREADS * values_of(tile, summed),))
    *lists, along, bias_step = (tickets, tickets, 0, 1) if indices is None else indices
    operands = a, b, b if bias is None else bias, b if where is None else flat(where), c, a_sums if summed else c
    flags = cols % together == 0, bias is not None, where is not None, relu
    launch(
        _block(tile, ak <= am, bk <= bn, passes or 0, summed, padding),
        grid,
        THREADS,
        *operands,
        tuple(lists),
        tickets,
        parked,
        span,
        (rows, cols, depth),
        (am, ak),
        (bk, bn),
        along,
        bias_step,
        flags,
        (alpha, scale, sums_scale),
    )
    return out
