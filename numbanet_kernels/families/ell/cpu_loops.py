"""CPU loops of `ell` and `in_slabs`, which `family` defines.

Activations are stored in slabs: a slab is an array (neurons, LANES) that holds LANES samples, a lane is the place of one sample
in a slab, and a vector is WIDTH adjacent lanes. The loops multiply rows of a weight by vectors of samples (`multiply`), move
the samples that are still computed into fewer slabs (`_collect`), and write sparse samples into slabs (`spread_out`).
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import int64
from numba.extending import intrinsic

from ...host.simd import BITS, FLOATS, NUMBER, REAL, WIDTH, Lanes, data_of, multiply_add, spread, vector_at
from ...layouts.slabs import LANES, ROWS
from ...runtime.declare import host_function, host_kernel
from ...runtime.launch import ceil_div

VECTORS = 4 if WIDTH == 16 else 2  # number of vectors of samples for a row; ROWS x VECTORS sums stay in registers
INTEGER = numba.int64


# --- rows of a slab --------------------------------------------------------------------------------------------------
def _sums(builder, rows, count, x, start, indices, at, values, depth, biases):
    """Return, for each row of a weight and each of `count` vectors v of samples, the sum of the row's bias and
    sum_k values[row + k] x[start + v WIDTH + indices[at + k] LANES:] over k < depth. `rows` are offsets in `values`.
    """
    before = builder.block
    loop, done = (builder.append_basic_block(f"{name}{len(rows)}x{count}") for name in ("loop", "done"))
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(NUMBER)
    sums = [[builder.phi(FLOATS) for _ in range(count)] for _ in rows]
    index = builder.sext(builder.load(builder.gep(indices, [builder.add(at, k)])), NUMBER)
    first = builder.add(start, builder.mul(index, NUMBER(LANES)))
    following = builder.add(k, NUMBER(1))
    k.add_incoming(NUMBER(0), before)
    k.add_incoming(following, loop)
    samples = [builder.load(vector_at(builder, x, builder.add(first, NUMBER(v * WIDTH))), align=4) for v in range(count)]
    results = []
    for row, bias, totals in zip(rows, biases, sums):
        value = spread(builder, builder.load(builder.gep(values, [builder.add(row, k)]))).value
        for total, vector in zip(totals, samples):
            results.append(multiply_add(builder, value, vector, total))
            total.add_incoming(bias, before)
            total.add_incoming(results[-1], loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, done)
    builder.position_at_end(done)
    return [results[first : first + count] for first in range(0, len(results), count)]


def _finish(builder, total, ceiling, alive, n, y, at, live):
    """Write min(max(total, 0), ceiling) to the WIDTH elements of y from `at` on; 0 for lanes whose entry of `alive` is 0. Set
    the entries of `live` to 1 whose result is not 0. The entries of `alive` and `live` begin at n. NaN stays NaN.
    """
    total = Lanes(builder, total).where("<", 0.0, 0.0)
    total = total.where(">", spread(builder, ceiling), spread(builder, ceiling)).value
    zeros, marks = FLOATS([REAL(0.0)] * WIDTH), BITS([0] * WIDTH)
    on = builder.icmp_signed("!=", builder.load(vector_at(builder, alive, n, BITS), align=4), marks)
    total = builder.select(on, total, zeros)
    builder.store(total, vector_at(builder, y, at), align=4)
    address = vector_at(builder, live, n, BITS)
    flags = builder.select(builder.fcmp_unordered("!=", total, zeros), BITS([1] * WIDTH), builder.load(address, align=4))
    builder.store(flags, address, align=4)


def _rows(number):
    """Return the intrinsic that computes `number` rows of y with the same inputs, for `count` vectors of samples from n on."""

    @intrinsic
    def rows(typing_context, x, start, indices, values, depth, bias, ceiling, order, r, count, alive, n, y, y_at, live):
        def generate(context, builder, signature, arguments):
            x, start, indices, values, depth, bias, ceiling, order, r, count, alive, n, y, y_at, live = data_of(
                context, builder, signature, arguments
            )
            first = builder.gep(order, [r])
            listed = [builder.sext(builder.load(builder.gep(first, [NUMBER(i)])), NUMBER) for i in range(number)]
            biases = [spread(builder, builder.load(builder.gep(bias, [o]))).value for o in listed]
            offsets = [builder.mul(o, depth) for o in listed]
            after = builder.append_basic_block("after")
            choice = builder.switch(count, after)
            for vectors in range(1, VECTORS + 1):
                block = builder.append_basic_block(f"vectors{vectors}")
                choice.add_case(NUMBER(vectors), block)
                builder.position_at_end(block)
                sums = _sums(builder, offsets, vectors, x, start, indices, offsets[0], values, depth, biases)
                for o, totals in zip(listed, sums):
                    target = builder.add(y_at, builder.mul(o, NUMBER(LANES)))
                    for v, total in enumerate(totals):
                        next_to = NUMBER(v * WIDTH)
                        _finish(builder, total, ceiling, alive, builder.add(n, next_to), y, builder.add(target, next_to), live)
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return numba.void(
            x, INTEGER, indices, values, INTEGER, bias, numba.float32, order, INTEGER, INTEGER, alive, INTEGER, y, INTEGER, live
        ), generate

    return rows


_one, _some = _rows(1), _rows(ROWS)


@intrinsic
def _squeeze(typing_context, x, at, bits, room, position):
    """Write WIDTH floats to room[position:]: those of x[at:at + WIDTH] whose bit in `bits` is 1, then zeros."""

    def generate(context, builder, signature, arguments):
        x, at, bits, room, position = data_of(context, builder, signature, arguments)
        flags, zeros = ir.VectorType(ir.IntType(1), WIDTH), FLOATS([REAL(0.0)] * WIDTH)
        chosen = builder.bitcast(builder.trunc(bits, ir.IntType(WIDTH)), flags)
        samples, target = builder.load(vector_at(builder, x, at), align=4), vector_at(builder, room, position)
        if WIDTH == 16:  # AVX-512 has an instruction for this; for other targets LLVM 22 would abort
            name, kind = f"llvm.experimental.vector.compress.v{WIDTH}f32", ir.FunctionType(FLOATS, [FLOATS, flags, FLOATS])
            squeeze = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            builder.store(builder.call(squeeze, [samples, chosen, zeros]), target, align=4)
            return context.get_dummy_value()
        builder.store(zeros, target, align=4)
        for lane in map(ir.IntType(32), range(WIDTH)):  # a lane that is not selected writes 0, which the next lane overwrites
            some = builder.extract_element(chosen, lane)
            builder.store(
                builder.select(some, builder.extract_element(samples, lane), REAL(0.0)), builder.gep(room, [position])
            )
            position = builder.add(position, builder.zext(some, NUMBER))
        return context.get_dummy_value()

    return numba.void(x, INTEGER, INTEGER, room, INTEGER), generate


# --- slabs ------------------------------------------------------------------------------------------------------------
@host_function
def _collect(x, moves, first, stop, inputs, room):
    """Gather the inputs of one slab of y from x into `room` (inputs, LANES). Each row of `moves`, as `moves_of` returns it,
    moves the chosen lanes of one vector of x. The rows first … stop - 1 belong to the slab.
    """
    for i in range(inputs):
        for m in range(first, stop):
            _squeeze(x, moves[m, 0] + i * LANES, moves[m, 1], room, moves[m, 2] + i * LANES)


@host_function
def _living(alive, n, end):
    """Return how many consecutive vectors, at most VECTORS, from sample n to `end`, each have a living sample."""
    count = int64(0)
    while count < VECTORS and n < end:
        some = False
        for lane in range(n, n + WIDTH):
            some |= alive[lane] != 0
        if not some:
            break
        count += 1
        n += WIDTH
    return count


@host_kernel(
    "void(f4[::1], i4[::1], f4[::1], i8, f4[::1], f4, i4[::1], i8, i4[::1], i8[:, ::1], i8[::1], f4[::1], f4[::1],"
    " i4[::1], i8, i8, i8, i8, i8)"
)
def multiply(
    x,
    indices,
    values,
    depth,
    bias,
    ceiling,
    order,
    groups,
    alive,
    moves,
    starts,
    room,
    y,
    live,
    inputs,
    first,
    stop,
    group0,
    group1,
):
    """Compute the groups group0 … group1 - 1 of rows of y in the slabs first … stop - 1. The first `groups` groups hold ROWS
    rows of the weight, each further one a single row; `order` lists the rows, group by group.
    """
    rows = order.size
    for s in range(first, stop):
        source, at = x, s * inputs * LANES
        if starts.size:
            _collect(x, moves, starts[s], starts[s + 1], inputs, room)
            source, at = room, int64(0)
        n, end = s * LANES, (s + 1) * LANES
        while n < end:
            count, lane = _living(alive, n, end), n % LANES
            y_at = s * rows * LANES + lane
            for g in range(group0, group1):
                r, number = (g * ROWS, int64(ROWS)) if g < groups else (g + groups * (ROWS - 1), int64(1))
                if count == 0:
                    for i in range(r, r + number):
                        y[y_at + order[i] * LANES : y_at + order[i] * LANES + WIDTH] = 0
                elif g < groups:
                    _some(source, at + lane, indices, values, depth, bias, ceiling, order, r, count, alive, n, y, y_at, live)
                else:
                    _one(source, at + lane, indices, values, depth, bias, ceiling, order, r, count, alive, n, y, y_at, live)
            n += max(count, 1) * WIDTH


def moves_of(lanes, inputs):
    """Return (moves, starts): how the samples `lanes` of x are gathered into the slabs of y.

    A row of moves (M, 3) holds the offset of a vector of x, the bits of the lanes to take from it, and the first lane of the
    slab of y to which they go. The moves of slab s of y are the rows starts[s] … starts[s + 1] - 1.
    """
    targets = np.arange(len(lanes))
    vectors, slabs = np.int64(lanes) // WIDTH, targets // LANES
    new = np.ones(len(lanes), bool)
    new[1:] = (vectors[1:] != vectors[:-1]) | (slabs[1:] != slabs[:-1])
    heads = np.flatnonzero(new)
    bits = np.bitwise_or.reduceat(np.int64(1) << (np.int64(lanes) % WIDTH), heads)
    slab, vector = np.divmod(vectors[heads], LANES // WIDTH)
    moves = np.stack([slab * inputs * LANES + vector * WIDTH, bits, heads % LANES], axis=1)
    return moves, np.searchsorted(heads, np.arange(ceil_div(len(lanes), LANES) + 1) * LANES)


@host_kernel("void(i4[::1], i4[::1], f4[::1], f4[:, :, ::1], i8, i8)")
def spread_out(starts, columns, values, x, first, stop):
    for s in range(first, stop):
        x[s] = 0
        for b in range(min(LANES, starts.size - 1 - s * LANES)):
            for k in range(starts[s * LANES + b], starts[s * LANES + b + 1]):
                x[s, columns[k], b] = values[k]
