"""Matrix product in blocks, versions 4 and 5 of the ladder in `gemm`: for compute capability 8.0 and above.

    c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n])        given `where`: 0 unless where[m, n] > 0
    A[m, k] = a[m am + k ak],   B[k, n] = b[b0 + k bk + n bn]        given `a_sums`: a_sums[m] = sums_scale * sum_k A[m, k]

Any strides: transposes, and kept rows, columns and inner indices of a pattern are the same kernel. The period of a pattern is a
stride; its bias, which says where b begins, is read from the lists of what is kept: a recorded launch serves every bias. A
block of 256 threads computes 128 x 128 outputs, 8 x 8 a thread, or 64 x 64, 4 x 4 a thread. 2 M N K FLOPs:

    copies      global -> shared by cp.async, 4 bytes a thread, zeros beyond the edges: the k-tile after this one is on its way
                while this one is multiplied. Neighbouring threads walk along the axis that is contiguous
    tiles       16 rows of 128 (or 64) floats and 4 more: threads that walk along k, 8 of them in 4 columns, meet 32 banks
    multiply    at 128, four 16-byte loads and 64 fused multiply-adds for each k; the sums are one tuple: it stays in registers

Where there are too few blocks for the card, several share one product along k: each parks its sums, and the one that is done
last adds up all of them, in the order of k, so that the result is the same each time.

On tensor cores (version 5) a warp computes 64 x 32 of the 128 x 128: per k-tile 2 x 4 x 4 products 16 x 8 x 8 by mma. They
multiply TF32: float32 with 10 bits of mantissa. With three passes a number is the sum of two of them, x = big + small, and
big big + big small + small big leaves out small small alone: the error of float32, but NaN where an operand is infinite. One
pass keeps 10 bits. A tile lies there
with k in rows of 16 + 4 floats, or, read across, with k rows of 128 + 8: either way a warp's fragment, 8 by 4, lies in 32
banks, and so do the floats that a warp copies at once.
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
from ..runtime.memory import empty_cuda
from ..runtime.precision import imprecise
from ..runtime.trust import trusted
from .accumulate import fragments, rows_of, sums_of
from .copies import DEPTH, THREADS, address, copies_of, layout
from .intrinsics import commit, fence, parking, wait_for_all_but_one


def values_of(tile, summed):
    """How many sums a thread has."""
    return (tile // 16) ** 2 + summed


def sums_for(tile, a, b, passes):
    """What a thread does with its sums, for these layouts of the operands."""
    return fragments(passes, a, b) if passes else sums_of(tile // 16, a)


# --- kernel -----------------------------------------------------------------------------------------------------------
def _shared_products(zeros, each, summed):
    """What blocks do with their sums that share one product along k, made anew for each factory, as `inlined` says."""
    park, add_parked = parking(THREADS)

    @inlined
    def last_to_park(sums, a_sum, parked, at, tickets, ticket, number, parts, t):
        """Park a block's sums; whether those of all others are there."""
        park(sums, parked, at)
        if summed:
            park((a_sum,), parked, at + (each - 1) * THREADS)
        cuda.syncthreads()
        if t == 0:  # release: what all threads parked is there before the ticket is; acquire: and after it for them
            fence()
            ticket[0] = cuda.atomic.add(tickets, number, int32(1))
            fence()
        cuda.syncthreads()
        last = ticket[0] == parts - 1
        if last and t == 0:
            cuda.atomic.exch(tickets, number, int32(0))
        return last

    @inlined
    def all_parked(parked, at, further, parts):
        """The sums of all parts, in the order of k."""
        sums, a_sum = zeros(), float32(0)
        for _ in range(parts):
            sums = add_parked(sums, parked, at)
            if summed:
                (a_sum,) = add_parked((a_sum,), parked, at + (each - 1) * THREADS)
            at += further
        return sums, a_sum

    return last_to_park, all_parked


@kernels("gemm")
def _block(tile=128, a_along_k=True, b_along_k=True, passes=0, summed=False, padding=4):
    """Along which of its axes neighbouring threads read each operand; passes of TF32, or 0 for fused multiply-adds, where
    threads without padding wait for each other's banks; whether the rows of A are summed as well."""
    of_a, of_b = (layout(tile, along_k, passes, padding) for along_k in (a_along_k, b_along_k))
    (first_a, copy_a, _), (first_b, copy_b, _) = copies_of(of_a), copies_of(of_b)
    corner, zeros, multiply, store, _ = sums_for(tile, of_a, of_b, passes)
    a_room, b_room, each = 2 * of_a.stage, 2 * of_b.stage, values_of(tile, summed)
    (last_to_park, all_parked), (first_sum, add_rows, total) = _shared_products(zeros, each, summed), rows_of(tile, of_a)

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], i4[::1], i4[::1], i4[::1], f4[::1], i4, i4, i4, i4, i4,"
        " i4, i4, i4, i4, i4, b1, b1, b1, b1, f4, f4, f4)",
        least=(8, 0),
        bounds=(THREADS, 2) if passes or summed else None,
    )  # else ptxas keeps to it, with more in registers
    def gemm_block(
        a,
        b,
        bias,
        where,
        c,
        a_sums,
        kept_rows,
        kept_cols,
        tickets,
        parked,
        span,
        rows,
        cols,
        depth,
        am,
        ak,
        bk,
        bn,
        along,
        bias_step,
        aligned,
        biased,
        masked,
        relu,
        alpha,
        scale,
        sums_scale,
    ):
        """Versions 4 and 5: the next k-tile is copied while this one is multiplied."""
        a_tile, b_tile = cuda.shared.array(a_room, float32, 16), cuda.shared.array(b_room, float32, 16)
        ticket, t = cuda.shared.array(1, int32), int32(cuda.threadIdx.x)
        row0, col0 = int32(cuda.blockIdx.y * tile), int32(cuda.blockIdx.x * tile)
        # the part of k that is this block's
        part, parts = int32(cuda.blockIdx.z), int32(cuda.gridDim.z)
        a0, b0, depth = part * span * ak, part * span * bk, min(span, depth - part * span)
        if not summed and along > 0:  # the length of a row of the weight, of which b is a part
            b0 += kept_rows[0] * along + kept_cols[0]
        # where this thread copies from and to, and how much there is from there on
        place, row, col, a_at, b_at = corner(t)
        a_k, a_m, a_to = first_a(t, place, a_tile)
        b_k, b_n, b_to = first_b(t, place, b_tile)
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
        if parts > 1:
            number, blocks = int32(cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x), int32(cuda.gridDim.x * cuda.gridDim.y)
            at, further = (part * blocks + number) * int32(each * THREADS) + t, blocks * int32(each * THREADS)
            if not last_to_park(sums, a_sum, parked, at, tickets, ticket, number, parts, t):
                return
            sums, a_sum = all_parked(parked, at - part * further, further, parts)
        if summed and col0 == 0 and t < tile and row0 + t < rows:
            a_sums[row0 + t] = sums_scale * a_sum
        row, col = row0 + row, col0 + col
        bias0 = kept_rows[0] if not summed and along > 0 else int32(0)  # read again: a register less meanwhile
        store(
            sums,
            c,
            row * cols + col,
            cols,
            rows - row,
            cols - col,
            aligned,
            bias,
            bias0 + col * bias_step,
            bias_step,
            biased,
            where,
            masked,
            relu,
            alpha,
            scale,
        )

    return gemm_block


# what an output costs in blocks of each size, if there are blocks for all multiprocessors; no card has confirmed it
TILES = {128: 1.0, 64: 1.5}


def _cost(rows, cols, products, tile, each):
    """Of so many products in blocks of a size: a multiprocessor works on two at a time, which no card has confirmed."""
    return ceil_div(products * ceil_div(rows, tile) * ceil_div(cols, tile), 2 * multiprocessors()) * tile * tile * each


def tile_for(rows, cols, products=1):
    """The size of blocks by which so many products are done first, by fused multiply-adds."""
    return min(TILES, key=lambda tile: _cost(rows, cols, products, tile, TILES[tile]))


def way_for(rows, cols, products=1, right=None):
    """(size of blocks, passes of TF32): one pass where that precision will do, else three where products of this size are done
    first that way; none where the card gets them wrong, which `right` tells of other kernels than these."""
    right, tile = right or _tensor_agrees, tile_for(rows, cols, products)
    if imprecise():
        return (128, 1) if right[1]() else (tile, 0)
    sooner = _cost(rows, cols, products, 128, three_passes()) < _cost(rows, cols, products, tile, TILES[tile])
    return (128, 3) if sooner and right[3]() else (tile, 0)


LEAST_SPAN = 16 * DEPTH  # of k, for one block; no card has confirmed it
TICKETS = 1024


def span_for(rows, cols, depth, tile):
    """How much of k a block multiplies: less than all where there are fewer blocks than multiprocessors."""
    blocks = ceil_div(rows, tile) * ceil_div(cols, tile)
    parts = min(multiprocessors() // max(blocks, 1), depth // LEAST_SPAN) if blocks <= TICKETS else 1
    return ceil_div(ceil_div(depth, max(parts, 1)), DEPTH) * DEPTH


@device_cache(maxsize=1)
def _tickets():
    """How many blocks of each product are done: 0 between launches."""
    return to_device(np.zeros(TICKETS, np.int32))


def available(*arrays):
    """Whether this card has the instructions and gives right results, and 32 bits count the elements of the arrays."""
    return capability() >= _block().least and all(array.size < 2**31 for array in arrays) and _agrees()


def three_passes():
    """How many times as long as fused multiply-adds three passes on tensor cores take here, in quarters, rounded up, so that
    processes seldom differ; inf where nothing could be measured, and on the emulated device."""
    return math.inf if emulating() else _three_passes()


@functools.cache
@deferred
def _three_passes():
    try:
        seconds = [[_milliseconds(passes) for passes in (3, 0)] for _ in range(4)][1:]  # the first turns warm a card up
        three, none = (min(found) for found in zip(*seconds, strict=True))
        return math.ceil(4 * three / none) / 4
    except NotRecorded:
        raise
    except Exception as error:  # a driver without events: nothing was measured
        warnings.warn(f"tensor cores were not measured: {type(error).__name__}: {error}", stacklevel=2)
        return math.inf


def _milliseconds(passes, side=2048, times=4):
    """Of products of squares, each many times as long as a launch."""
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
    """Of both tiles, on ragged operands."""
    return float(np.max([_error(tile, 0) for tile in TILES]))


DEEP = 4096  # of a product whose sums would show that a card adds with fewer bits than float32 has


def exact_enough(error):
    """The error of three passes; inf where, of a deep product, it is more than four times that of fused multiply-adds."""
    deep = [error(passes, DEEP) for passes in (3, 0)]
    return error(3) if deep[0] <= 4 * deep[1] else math.inf


_tensor_agrees = {
    3: trusted(lambda: exact_enough(functools.partial(_error, 128))),
    1: trusted(lambda: _error(128, 1) / 1000),
}  # which may be a thousand times as far off


def _error(tile, passes, k=45):
    """Of the three products of a training step, with what they do on the way, whole and in parts, and with some rows kept."""
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
    weight, kept = rng.standard_normal((2 * n, k), np.float32), (to_device(np.array([first], np.int32)) for first in (1, 0))
    launch_block(
        to_device(x.reshape(-1)),
        to_device(weight.reshape(-1)),
        (m, n, k),
        (k, 1),
        (1, 2 * k),
        out,
        kept=(*kept, k, 2),
        tile=tile,
        passes=passes,
    )
    errors.append(np.abs(out.copy_to_host() - np.float64(x) @ weight[1::2].T).max())
    return float(np.max(errors)) / k  # NaN, too


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
    kept=None,
    tile=None,
    passes=None,
    span=None,
    padding=4,
):
    """c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n]), shape (M, N, K); a_at and b_at say how the elements lie:
    the strides (am, ak) and (bk, bn). `where` and `a_sums` as above. Of a weight of which some is kept, b is all of it, and
    kept = (kept rows, kept columns, length of a row, step of the rows in bias), arrays of the device, not empty, and no a_sums.
    passes of TF32, in tiles of 128: 3, with the error of float32, or 1; None: `way_for`. To look at what they do: a tile of
    64 or 128, the span of k of a block, a multiple of 16, and padding by a multiple of 4."""
    (rows, cols, depth), (am, ak), (bk, bn) = shape, a_at, b_at
    if passes is None:
        tile, passes = way_for(rows, cols) if tile is None else (tile, 0)
    tile, together = (128, 2) if passes else (tile or tile_for(rows, cols), 4)
    span = max(span_for(rows, cols, depth, tile) if span is None else span, DEPTH)
    summed, grid = a_sums is not None, (ceil_div(cols, tile), ceil_div(rows, tile), max(ceil_div(depth, span), 1))
    if grid[2] > 1 and grid[0] * grid[1] > TICKETS:
        raise ValueError(f"gemm_block: {grid[0] * grid[1]} blocks cannot share products, {TICKETS} can; give no span")
    c, tickets = out.reshape(out.size), _tickets()
    parked = c if grid[2] == 1 else empty_cuda((math.prod(grid) * THREADS * values_of(tile, summed),))
    kept_rows, kept_cols, along, bias_step = (tickets, tickets, 0, 1) if kept is None else kept
    launch(
        _block(tile, ak <= am, bk <= bn, passes, summed, padding),
        grid,
        THREADS,
        a,
        b,
        b if bias is None else bias,
        b if where is None else where.reshape(where.size),
        c,
        a_sums if summed else c,
        kept_rows,
        kept_cols,
        tickets,
        parked,
        span,
        *shape,
        *a_at,
        *b_at,
        along,
        bias_step,
        cols % together == 0,
        bias is not None,
        where is not None,
        relu,
        alpha,
        scale,
        sums_scale,
    )
    return out
