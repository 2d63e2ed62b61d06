"""Max pooling of WIDTH images at a time, each in a lane of a vector, between the products of `cpu_direct_loops`.

The outputs of a convolution are pooled while they are in the cache, and only the maxima leave it. For the gradient, a mark is
kept of each maximum: the number of its tap, or CLOSED if a ReLU has no slope there. `pool` holds the window and the numbers of
positions before and after (`described`).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import boolean, int64, void
from numba.core import cgutils
from numba.extending import intrinsic

from ...host.simd import FLOATS, NUMBER, REAL, WIDTH, data_of, vector_at
from ...runtime.declare import host_function, host_kernel

CLOSED = 255  # a mark that is the number of no tap
USUAL = 4  # taps of the usual window, 2 x 2, for which a loop is unrolled
MARKS = ir.VectorType(ir.IntType(8), WIDTH)
ALIGNED = 4 * WIDTH


def described(window, positions):
    """(kh, kw, sh, sw, ph, pw, OH, OW, PH, PW): the window, and the numbers of positions before and after pooling."""
    (kernel, stride, padding, _), after = window, window.positions(*positions)
    return np.array([*kernel, *stride, *padding, *positions, *after], np.int64)


def _mark(builder, number):
    """A vector with the mark `number` in all lanes."""
    alone = builder.insert_element(ir.Constant(MARKS, ir.Undefined), builder.trunc(number, ir.IntType(8)), ir.IntType(32)(0))
    lanes = ir.VectorType(ir.IntType(32), WIDTH)([0] * WIDTH)
    return builder.shuffle_vector(alone, ir.Constant(MARKS, ir.Undefined), lanes)


@intrinsic
def _largest(typing_context, values, places, taps, count, outs, gated, keeps, best, marks, at):
    """best[at + o] = the maximum of values[places[t] + o] over t < count, vectors, for o < outs; if `keeps`, marks[at + o] =
    taps[t] of the first maximum or the last NaN, but CLOSED if `gated` and the maximum is not positive.
    """

    def generate(context, builder, signature, arguments):
        values, places, taps, count, outs, gated, keeps, best, marks, at = data_of(context, builder, signature, arguments)
        zero, shut = FLOATS([REAL(0.0)] * WIDTH), _all(builder, builder.not_(gated))

        def first(t):
            return builder.gep(values, [builder.mul(builder.load(builder.gep(places, [t])), NUMBER(WIDTH))])

        def number(t):
            return _mark(builder, builder.load(builder.gep(taps, [t])))

        def larger(value, before):
            return builder.or_(builder.fcmp_ordered(">", value, before), builder.fcmp_unordered("uno", value, value))

        def stored(o, value, mark):
            place = builder.mul(builder.add(at, o), NUMBER(WIDTH))
            builder.store(value, vector_at(builder, best, place), align=ALIGNED)
            with builder.if_then(keeps):
                opened = builder.or_(builder.fcmp_ordered(">", value, zero), shut)
                mark = builder.select(opened, mark, MARKS([ir.IntType(8)(CLOSED)] * WIDTH))
                builder.store(mark, vector_at(builder, marks, place, MARKS), align=1)

        def unrolled():
            begins, numbers = ([of(NUMBER(t)) for t in range(USUAL)] for of in (first, number))
            with cgutils.for_range(builder, outs) as loop:
                found = [
                    builder.load(vector_at(builder, begin, builder.mul(loop.index, NUMBER(WIDTH))), align=ALIGNED)
                    for begin in begins
                ]
                value, mark = found[0], numbers[0]
                for other, own in zip(found[1:], numbers[1:]):
                    wins = larger(other, value)
                    value, mark = builder.select(wins, other, value), builder.select(wins, own, mark)
                stored(loop.index, value, mark)

        def looped():
            held, mark = cgutils.alloca_once(builder, FLOATS), cgutils.alloca_once(builder, MARKS)
            with cgutils.for_range(builder, outs) as loop:
                offset = builder.mul(loop.index, NUMBER(WIDTH))
                builder.store(builder.load(vector_at(builder, first(NUMBER(0)), offset), align=ALIGNED), held)
                builder.store(number(NUMBER(0)), mark)
                with cgutils.for_range_slice(builder, NUMBER(1), count, NUMBER(1)) as (t, _):
                    value = builder.load(vector_at(builder, first(t), offset), align=ALIGNED)
                    wins = larger(value, builder.load(held))
                    builder.store(builder.select(wins, value, builder.load(held)), held)
                    builder.store(builder.select(wins, number(t), builder.load(mark)), mark)
                stored(loop.index, builder.load(held), builder.load(mark))

        with builder.if_else(builder.icmp_signed("==", count, NUMBER(USUAL)), likely=True) as (usual, others):
            with usual:
                unrolled()
            with others:
                looped()
        return context.get_dummy_value()

    return void(values, places, taps, int64, int64, boolean, boolean, best, marks, int64), generate


def _all(builder, flag):
    """A mask with the flag in all lanes."""
    kind = ir.VectorType(ir.IntType(1), WIDTH)
    return builder.select(builder.icmp_unsigned("!=", flag, flag.type(0)), kind([1] * WIDTH), kind([0] * WIDTH))


@intrinsic
def _spread(typing_context, slopes, marks, at, places, taps, count, outs, adds, out):
    """out[places[t] + o] = slopes[at + o] where marks[at + o] is taps[t], else 0, for t < count and o < outs, vectors; if
    `adds`, this is added.
    """

    def generate(context, builder, signature, arguments):
        slopes, marks, at, places, taps, count, outs, adds, out = data_of(context, builder, signature, arguments)
        zero = FLOATS([REAL(0.0)] * WIDTH)
        with cgutils.for_range(builder, count) as loop:
            first = builder.load(builder.gep(places, [loop.index]))
            number = _mark(builder, builder.load(builder.gep(taps, [loop.index])))
            with cgutils.for_range(builder, outs) as inner:
                place = builder.mul(builder.add(at, inner.index), NUMBER(WIDTH))
                here = builder.icmp_unsigned("==", builder.load(vector_at(builder, marks, place, MARKS), align=1), number)
                value = builder.select(here, builder.load(vector_at(builder, slopes, place), align=ALIGNED), zero)
                target = vector_at(builder, out, builder.mul(builder.add(first, inner.index), NUMBER(WIDTH)))
                with builder.if_else(adds) as (more, alone):
                    with more:
                        builder.store(builder.fadd(builder.load(target, align=ALIGNED), value), target, align=ALIGNED)
                    with alone:
                        builder.store(value, target, align=ALIGNED)
        return context.get_dummy_value()

    return void(slopes, marks, int64, places, taps, int64, int64, boolean, out), generate


@host_function
def taps_of(pool):
    """The number of taps of the window."""
    return pool[0] * pool[1] if pool.size else 1


@host_function
def _seen(pool, row, col, line, step, places, taps):
    """List the pixels inside the image that window (row, col) reads: their first vectors, and the numbers of their taps;
    return how many they are. Neighbouring lines are `line` vectors apart, neighbouring pixels `step`.
    """
    top, left, count = row * pool[2] - pool[4], col * pool[3] - pool[5], 0
    for i in range(pool[0]):
        for j in range(pool[1]):
            if 0 <= top + i < pool[6] and 0 <= left + j < pool[7]:
                places[count], taps[count] = (top + i) * line + (left + j) * step, i * pool[1] + j
                count += 1
    return count


@host_function
def pool_lines(out, outs, pool, r0, r1, gated, keeps, seen, best, marks):
    """The maxima of the lines r0 … r1 - 1 after pooling: best (P O, WIDTH) and marks, of the outputs `out`."""
    places, taps = seen[0], seen[1]
    for row in range(r0, r1):
        for col in range(pool[9]):
            count = _seen(pool, row, col, pool[7] * outs, outs, places, taps)
            _largest(out, places, taps, count, outs, gated, keeps, best, marks, (row * pool[9] + col) * outs)


@host_function
def lines_read(pool, row):
    """The number of lines before pooling that the lines 0 … row after pooling read."""
    return min(max(row * pool[2] - pool[4] + pool[0], 0), pool[6])


@host_function
def spread_lines(slopes, marks, outs, pool, line, first, seen, out):
    """out[first + h line + w O + o] = the gradient of pixel (h, w): the sum of `slopes` over the maxima that it is, by
    `marks`. All of `out` but these vectors stays as it is.
    """
    places, taps = seen[0], seen[1]
    adds = pool[2] < pool[0] or pool[3] < pool[1]
    whole = pool[8] * pool[2] == pool[6] and pool[9] * pool[3] == pool[7] and pool[2] == pool[0] and pool[3] == pool[1]
    if not whole or pool[4] or pool[5]:
        width = pool[7] * outs * out.shape[1]
        flat = out.reshape(out.size)
        for h in range(pool[6]):
            begin = (first + h * line) * out.shape[1]
            for i in range(begin, begin + width):
                flat[i] = 0
    for row in range(pool[8]):
        for col in range(pool[9]):
            count = _seen(pool, row, col, line, outs, places, taps)
            for t in range(count):
                places[t] += first
            _spread(slopes, marks, (row * pool[9] + col) * outs, places, taps, count, outs, adds, out)


@host_kernel("void(u1[:, :, ::1], u1[:, ::1])")
def places_of(marks, places):
    """places (N, P O) of `max_pool` from marks (tiles, P O, WIDTH); CLOSED stays."""
    for n in range(places.shape[0]):
        own = marks[n // WIDTH]
        for k in range(places.shape[1]):
            places[n, k] = own[k, n % WIDTH]
