"""Gathered GEMM: products with listed rows and columns of a weight. They need no copy of the whole kept part of the weight.

    out[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[k])

BLAS would need a copy of the listed rows, and would then copy them once more into its packed format. Here a register holds one
feature of WIDTH samples, one in each lane, and an element of w is broadcast to all lanes. A thread copies a block of ROWS rows
and BLOCK columns of w to the L1 cache, and multiplies it there with its samples. If all columns are used, the thread prefetches
the next rows meanwhile.
"""

from __future__ import annotations

import contextlib

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.declare import host_function, host_kernel
from . import threads
from .simd import FLOATS, LINE, NUMBER, WIDTH, aligned, copy_floats, data_of, fetch, multiply_add, spread, vector_at
from .transpose import EMPTY, NO_INDICES, transpose_block

ROWS = 16 if WIDTH == 16 else 12  # largest number of sums that fit into registers
BLOCK = 256  # number of columns in one pass; ROWS x BLOCK floats take at most 16 KiB, and so do WIDTH x BLOCK floats
UNROLL = 4  # a divisor of BLOCK


@intrinsic
def _fetch(typing_context, w, first, length):
    """Prefetch w[first:first + length], where w is indexed as a flat array."""

    def generate(context, builder, signature, arguments):
        data, first, length = data_of(context, builder, signature, arguments)
        with cgutils.for_range_slice(builder, NUMBER(0), length, NUMBER(LINE)) as (at, _):
            fetch(builder, builder.gep(data, [builder.add(first, at)]))
        return context.get_dummy_value()

    return numba.void(w, numba.int64, numba.int64), generate


@intrinsic
def _add_products(typing_context, x, at, room, length, sums, first, step):
    """sums[first + r step + v] += sum_k room[r, k] x[at + k WIDTH + v] for k < length, r < ROWS, v < WIDTH.

    length is greater than 0 and rounded up to a multiple of UNROLL; x and sums are indexed as flat arrays, room is (ROWS,
    BLOCK).
    """

    def generate(context, builder, signature, arguments):
        x, at, room, length, sums, first, step = data_of(context, builder, signature, arguments)

        addresses = [vector_at(builder, sums, builder.add(first, builder.mul(step, NUMBER(r)))) for r in range(ROWS)]
        firsts = [builder.load(address, align=4) for address in addresses]
        before, loop, done = builder.block, *(builder.append_basic_block(name) for name in ("loop", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(NUMBER)
        k.add_incoming(NUMBER(0), before)
        phis = [builder.phi(FLOATS) for _ in range(ROWS)]
        values = list(phis)
        for u in range(UNROLL):
            number = builder.add(k, NUMBER(u))
            samples = builder.load(vector_at(builder, x, builder.add(at, builder.mul(number, NUMBER(WIDTH)))), align=4 * WIDTH)
            for r in range(ROWS):
                factor = builder.load(builder.gep(room, [builder.add(number, NUMBER(r * BLOCK))]))
                values[r] = multiply_add(builder, samples, spread(builder, factor).value, values[r])
        following = builder.add(k, NUMBER(UNROLL))
        k.add_incoming(following, loop)
        for phi, first, value in zip(phis, firsts, values):
            phi.add_incoming(first, before)
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, length), loop, done)
        builder.position_at_end(done)
        for address, value in zip(addresses, values):
            builder.store(value, address, align=4)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(x, integer, room, integer, sums, integer, integer), generate


@host_function
def _pack_samples(x, tiles, first, stop):
    """tiles[t - first, j, v] = x[t WIDTH + v, j] for first <= t < stop, padded with zeros."""
    depth = x.shape[1]
    for t in range(first, stop):
        n0, n1, tile = t * WIDTH, min((t + 1) * WIDTH, x.shape[0]), tiles[t - first]
        if n1 - n0 < WIDTH:
            tile[:] = 0
        tile[depth:] = 0
        transpose_block(x, n0, n1, 0, depth, tile, 0, 0, True)


@host_function
def _finish(sums, k0, k1, first, n0, n1, bias, relu, scale, out):
    """out[n, k] = scale * act(sums[k - first, n - n0] + bias[k]) for k0 <= k < k1, n0 <= n < n1."""
    for k in range(k0, k1):
        row, added = sums[k - first], bias[k] if bias.size else np.float32(0)
        for n in range(n1 - n0):
            value = row[n] + added
            row[n] = scale * (np.float32(0) if relu and value < 0 else value)  # not max(value, 0), because NaN must stay NaN
    transpose_block(sums, k0 - first, k1 - first, 0, n1 - n0, out, n0, k0, False)


@host_function
def _multiply(tiles, w, rows, first, stop, cols, listed, bias, relu, scale, out, n0, n1, room, sums):
    """Compute out[n, k] for n0 <= n < n1, the samples of all tiles, and first <= k < stop, ROWS at a time.

    If `listed`, the columns are those in `cols`, else all. room (ROWS, BLOCK) and sums are buffers.
    """
    depth = cols.size if listed else w.shape[1]
    for d0 in range(0, max(depth, 1), BLOCK):
        length = min(BLOCK, depth - d0)
        for k0 in range(first, stop, ROWS):
            k1 = min(k0 + ROWS, stop)
            for k in range(k0, k1):
                row, slot = np.uint64(rows[k]), k - k0
                if listed:
                    for j in range(length):
                        room[slot, j] = w[row, np.uint32(cols[d0 + j])]
                else:
                    copy_floats(w, rows[k] * w.shape[1] + d0, room, slot * BLOCK, length)
                for j in range(length, BLOCK):
                    room[slot, j] = 0
            if d0 == 0:
                sums[k0 - first : k0 - first + ROWS] = 0
            for t in range(tiles.shape[0] if length else 0):
                for k in range(k1 + t, min(k1 + ROWS, stop), tiles.shape[0]):
                    _fetch(w, rows[k] * w.shape[1] + d0, 0 if listed else length)
                target = (k0 - first) * sums.shape[1] + t * WIDTH
                _add_products(tiles, (t * tiles.shape[1] + d0) * WIDTH, room, length, sums, target, sums.shape[1])
            if d0 + BLOCK >= depth:
                _finish(sums, k0, k1, first, n0, n1, bias, relu, scale, out)


@host_kernel(
    "void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], b1, f4[::1], b1, f4, f4[:, ::1], b1, i8, i8, f4[:, :, ::1],"
    "f4[:, ::1], f4[:, ::1])"
)
def _multiply_squares(x, w, rows, cols, listed, bias, relu, scale, out, across, first, stop, tiles, room, sums):
    """Compute the blocks first … stop - 1 of out. A block is ROWS listed rows by one tile of samples; blocks are numbered row
    by row or, if `across`, tile by tile. tiles, room and sums are buffers.
    """
    blocks, count = -(-rows.size // ROWS), -(-x.shape[0] // WIDTH)
    inner = blocks if across else count
    t0, t1 = (first // inner, -(-stop // inner)) if across else (0, count)
    _pack_samples(x, tiles, t0, t1)
    while first < stop:
        line, begin = first // inner, first % inner
        end = min(inner, begin + stop - first)
        lines = max((stop - first) // inner, 1) if begin == 0 else 1
        first += lines * (end - begin)
        k0, k1, n0, n1 = (begin, end, line, line + lines) if across else (line, line + lines, begin, end)
        _multiply(
            tiles[n0 - t0 : n1 - t0],
            w,
            rows,
            k0 * ROWS,
            min(k1 * ROWS, rows.size),
            cols,
            listed,
            bias,
            relu,
            scale,
            out,
            n0 * WIDTH,
            min(n1 * WIDTH, x.shape[0]),
            room,
            sums,
        )


def multiply_listed(x, w, rows, cols, out, bias=None, relu=False, scale=1.0, alone=False):
    """out[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[k]), where act is ReLU if `relu`, else the identity.

    rows and cols are int32 arrays, which are not checked; if cols is None, all columns are used. If `alone`, the calling thread
    does all the work. Else each thread computes the same number of blocks. Each thread transposes the samples that it needs,
    because waiting for other threads to transpose them takes as long. Each thread makes one compiled call, so that it needs the
    GIL only once.
    """
    (n, depth), flops, added = x.shape, 2 * out.size * x.shape[1], EMPTY if bias is None else bias
    blocks, count = -(-rows.size // ROWS), -(-n // WIDTH)
    across, squares = count > blocks, blocks * count
    with contextlib.nullcontext() if alone else threads.held(flops):
        parts = 1 if alone or not threads.worthwhile(flops=flops) else threads.count()
        most = -(-squares // parts)
        high, wide = (blocks, -(-most // max(blocks, 1)) + 1) if across else (-(-most // max(count, 1)) + 1, count)
        tiles = aligned(parts, min(wide, count), -(-depth // UNROLL) * UNROLL, WIDTH)
        room, sums = aligned(parts, ROWS, BLOCK), aligned(parts, min(high, blocks) * ROWS, min(wide, count) * WIDTH)

        def work(part):
            span, t = part.of(squares), part.number
            if span.stop > span.start:
                _multiply_squares(
                    x,
                    w,
                    rows,
                    NO_INDICES if cols is None else cols,
                    cols is not None,
                    added,
                    relu,
                    scale,
                    out,
                    across,
                    span.start,
                    span.stop,
                    tiles[t],
                    room[t],
                    sums[t],
                )

        if parts > 1:
            threads.share(work)
        else:
            work(threads.WHOLE)
    return out
