"""Products with listed rows of a weight, as they lie in memory:

    out[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]])

BLAS would need a copy of the rows, and pack that once more. Here samples lie in the lanes of a register, and numbers of w are
spread over it: ROWS rows at a time, BLOCK columns of them, are copied to the nearest cache and multiplied there with all
samples, while the rows that follow are on their way.
"""
from __future__ import annotations

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.declare import host_kernel
from . import threads
from .lanes import FLOATS, NUMBER, WIDTH, data_of, fetch, spread, vector_at
from .narrow import LINE, aligned
from .transposition import _turn, turn_back

ROWS = 16 if WIDTH == 16 else 12    # as many sums as there are registers for
BLOCK = 256  # columns that are together: ROWS of them are 16 KiB, as is what WIDTH samples have there
UNROLL = 4  # a multiple of which BLOCK is
ALL = np.zeros(0, np.int32)


@intrinsic
def _fetch(typing_context, w, first, length):
    """Have w[first:first + length], as it lies in memory, on its way."""
    def generate(context, builder, signature, arguments):
        data, first, length = data_of(context, builder, signature, arguments)
        with cgutils.for_range_slice(builder, NUMBER(0), length, NUMBER(LINE)) as (at, _):
            fetch(builder, builder.gep(data, [builder.add(first, at)]))
        return context.get_dummy_value()

    return numba.void(w, numba.int64, numba.int64), generate


@intrinsic
def copy_floats(typing_context, w, first, room, at, length):
    """room[at:at + length] = w[first:first + length], as both lie in memory."""
    def generate(context, builder, signature, arguments):
        data, first, room, at, length = data_of(context, builder, signature, arguments)
        cgutils.raw_memcpy(builder, builder.gep(room, [at]), builder.gep(data, [first]), length, 4)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(w, integer, room, integer, integer), generate


@intrinsic
def _add_products(typing_context, x, at, room, length, sums, place, step):
    """sums[place + r step + v] += sum_k room[r, k] x[at + k WIDTH + v] over length > 0 numbers k, in steps of UNROLL; x, sums
    as they lie in memory, room (ROWS, BLOCK)."""
    def generate(context, builder, signature, arguments):
        x, at, room, length, sums, place, step = data_of(context, builder, signature, arguments)

        places = [vector_at(builder, sums, builder.add(place, builder.mul(step, NUMBER(r)))) for r in range(ROWS)]
        firsts = [builder.load(spot, align=4) for spot in places]
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
                product = builder.fmul(samples, spread(builder, factor).value, flags=("contract",))
                values[r] = builder.fadd(values[r], product, flags=("contract",))
        following = builder.add(k, NUMBER(UNROLL))
        k.add_incoming(following, loop)
        for phi, first, value in zip(phis, firsts, values):
            phi.add_incoming(first, before)
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, length), loop, done)
        builder.position_at_end(done)
        for spot, value in zip(places, values):
            builder.store(value, spot, align=4)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(x, integer, room, integer, sums, integer, integer), generate


@host_kernel("void(f4[:, ::1], f4[:, :, ::1], i8, i8)")
def _pack_samples(x, tiles, first, stop):
    """tiles[t, j, v] = x[t WIDTH + v, j] for first <= t < stop, 0 where there is none."""
    depth = x.shape[1]
    for t in range(first, stop):
        n0, n1 = t * WIDTH, min((t + 1) * WIDTH, x.shape[0])
        if n1 - n0 < WIDTH:
            tiles[t] = 0
        tiles[t, depth:] = 0
        _turn(x, n0, n1, 0, depth, tiles[t], 0, 0, True)


@host_kernel("void(f4[:, :, ::1], f4[:, ::1], i4[::1], i4[::1], b1, f4[:, ::1], f4[:, ::1], i8, i8)")
def _multiply(x, w, rows, cols, listed, room, sums, first, stop):
    """sums[k, n] for first <= k < stop, ROWS at a time; cols are those of w where they are listed, else all."""
    depth = cols.size if listed else w.shape[1]
    sums[first:stop] = 0
    for d0 in range(0, depth, BLOCK):
        length = min(BLOCK, depth - d0)
        for k0 in range(first, stop, ROWS):
            k1 = min(k0 + ROWS, rows.size, stop)
            for k in range(k0, k1):
                row, own = np.uint64(rows[k]), k - k0
                if listed:
                    for j in range(length):
                        room[own, j] = w[row, np.uint32(cols[d0 + j])]
                else:
                    copy_floats(w, rows[k] * w.shape[1] + d0, room, own * BLOCK, length)
                for j in range(length, BLOCK):
                    room[own, j] = 0
            for t in range(x.shape[0]):
                for k in range(k1 + t, min(k1 + ROWS, rows.size, stop), x.shape[0]):
                    _fetch(w, rows[k] * w.shape[1] + d0, 0 if listed else length)
                place = k0 * sums.shape[1] + t * WIDTH
                _add_products(x, (t * x.shape[1] + d0) * WIDTH, room, length, sums, place, sums.shape[1])


def multiply_listed(x, w, rows, cols, out, bias=None, relu=False, scale=1.0):
    """out[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[k]); lists of int32, cols None for all. No index lies
    outside of w: nobody looks."""
    (n, depth), listed = x.shape, cols is not None
    tiles = aligned(-(-n // WIDTH), -(-depth // UNROLL) * UNROLL, WIDTH)
    blocks = -(-rows.size // ROWS)
    sums = aligned(1, blocks * ROWS, len(tiles) * WIDTH)

    def pack(part):
        own = part.of(len(tiles))
        _pack_samples(x, tiles, own.start, own.stop)

    def multiply(part):
        own = part.of(blocks)
        first, stop = own.start * ROWS, own.stop * ROWS
        _multiply(tiles, w, rows, cols if listed else ALL, listed, aligned(ROWS, BLOCK), sums[0], first, stop)
        turn_back(sums, out, slice(first, min(stop, rows.size)), bias, relu, scale)

    flops = 2 * out.size * depth
    with threads.held(flops):
        threads.share(pack, flops=flops)
        threads.share(multiply, flops=flops)
    return out
