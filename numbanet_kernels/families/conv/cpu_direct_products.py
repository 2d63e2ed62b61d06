"""The products of `cpu_direct_loops`: WIDTH images at a time, each in a lane of a vector.

If a patch has few columns or the weight few outputs, gathering patches takes as long as multiplying them, and SGEMM is slow on
such narrow matrices. Here the images of a tile are transposed, pixels first: a vector holds the same pixel of each image. Then
patches are multiplied in place, by factors that are equal in all lanes, and all vectors are full even with few channels.

    out[p, o] = sum_k pixels[base[p] + offset[k]] w[k, o]       vectors of WIDTH images; positions p, columns k, outputs o

`bases` holds the first float of each position's patch among the transposed pixels, `offsets` those of its columns, `targets`
the index of its outputs. Dropped positions are not listed. Padding of lists has unused outputs or gradients.
"""

from __future__ import annotations

from numba import float32, int64, void
from numba.core import cgutils
from numba.extending import intrinsic

from ...host.simd import FLOATS, NUMBER, REAL, WIDTH, data_of, multiply_add, spread, vector_at

REGISTERS = 24 if WIDTH == 16 else 12  # sums in registers
OUTPUTS = 8  # largest number of outputs of a position among them
POSITIONS = 8  # largest number of positions among them; lists are padded to a multiple of it
PIECE = 256  # columns per partial sum, because errors grow with the number of terms
ROWS = 4  # largest number of outputs in registers for the gradient of the weight
COLUMNS = 6 if WIDTH == 16 else 3  # columns in registers for it; their lists are padded to a multiple of it
STRETCH = 64  # positions that are summed over all columns before the next ones
ALIGNED = 4 * WIDTH


def _positions(outputs):
    """The number of positions that are multiplied together: a power of 2, because lists are padded."""
    return min(1 << max((REGISTERS // outputs).bit_length() - 1, 0), POSITIONS)


def _number(builder, data, at):
    return builder.load(builder.gep(data, [at]))


def _by_outputs(builder, size, most, body):
    """Generate body(n) for each n from 1 to `most`, and a switch that runs the one with n = size."""
    for n in range(1, most + 1):
        with builder.if_then(builder.icmp_signed("==", size, NUMBER(n))):
            body(n)


def _sums(builder, count):
    return [cgutils.alloca_once_value(builder, FLOATS([REAL(0.0)] * WIDTH)) for _ in range(count)]


def _zero(builder, sums):
    for total in sums:
        builder.store(FLOATS([REAL(0.0)] * WIDTH), total)


@intrinsic
def multiply(typing_context, pixels, bases, targets, count, offsets, depth, w, outs, o0, size, bias, low, out):
    """out[targets[i] outs + o] = max(sum_k pixels[bases[i] + offsets[k]] w[k outs + o] + bias[o], low) for i < count, a
    multiple of POSITIONS, and `size` outputs o from o0 on; bases and offsets count floats."""

    def generate(context, builder, signature, arguments):
        pixels, bases, targets, count, offsets, depth, w, outs, o0, size, bias, low, out = data_of(
            context, builder, signature, arguments
        )
        least = spread(builder, low).value

        def products(n):
            together = _positions(n)
            sums, totals = _sums(builder, n * together), _sums(builder, n * together)

            def add_column(begins, k):
                offset, factors = _number(builder, offsets, k), builder.gep(w, [builder.add(builder.mul(k, outs), o0)])
                vectors = [builder.load(vector_at(builder, begin, offset), align=ALIGNED) for begin in begins]
                for o in range(n):
                    factor = spread(builder, _number(builder, factors, NUMBER(o))).value
                    for p, vector in enumerate(vectors):
                        own = sums[o * together + p]
                        builder.store(multiply_add(builder, vector, factor, builder.load(own)), own)

            with cgutils.for_range_slice(builder, NUMBER(0), count, NUMBER(together)) as (i, _):
                begins = [builder.gep(pixels, [_number(builder, bases, builder.add(i, NUMBER(p)))]) for p in range(together)]
                _zero(builder, totals)
                with cgutils.for_range_slice(builder, NUMBER(0), depth, NUMBER(PIECE)) as (first, _):
                    _zero(builder, sums)
                    stop = builder.add(first, NUMBER(PIECE))
                    stop = builder.select(builder.icmp_signed("<", stop, depth), stop, depth)
                    with cgutils.for_range_slice(builder, first, stop, NUMBER(1)) as (k, _):
                        add_column(begins, k)
                    for own, total in zip(sums, totals):
                        builder.store(builder.fadd(builder.load(total), builder.load(own)), total)
                for p in range(together):
                    place = builder.add(builder.mul(_number(builder, targets, builder.add(i, NUMBER(p))), outs), o0)
                    for o in range(n):
                        added = spread(builder, _number(builder, bias, builder.add(o0, NUMBER(o)))).value
                        value = builder.fadd(builder.load(totals[o * together + p]), added)
                        # in this order, NaN stays NaN
                        value = builder.select(builder.fcmp_ordered("<", value, least), least, value)
                        at = builder.mul(builder.add(place, NUMBER(o)), NUMBER(WIDTH))
                        builder.store(value, vector_at(builder, out, at), align=ALIGNED)

        _by_outputs(builder, size, OUTPUTS, products)
        return context.get_dummy_value()

    return void(pixels, bases, targets, int64, offsets, int64, w, int64, int64, int64, bias, float32, out), generate


@intrinsic
def add_products(typing_context, pixels, bases, targets, count, offsets, numbers, depth, dz, outs, o0, size, dw):
    """dw[numbers[k] outs + o] += sum_i pixels[bases[i] + offsets[k]] dz[targets[i] outs + o] for `size` outputs o from o0 on
    and k < depth, a multiple of COLUMNS; separately per lane.
    """

    def generate(context, builder, signature, arguments):
        pixels, bases, targets, count, offsets, numbers, depth, dz, outs, o0, size, dw = data_of(
            context, builder, signature, arguments
        )

        def products(n):
            sums = _sums(builder, n * COLUMNS)
            with cgutils.for_range_slice(builder, NUMBER(0), depth, NUMBER(COLUMNS)) as (k, _):
                columns = [builder.gep(pixels, [_number(builder, offsets, builder.add(k, NUMBER(c)))]) for c in range(COLUMNS)]
                _zero(builder, sums)
                with cgutils.for_range(builder, count) as loop:
                    i = loop.index
                    base = _number(builder, bases, i)
                    place = builder.add(builder.mul(_number(builder, targets, i), outs), o0)
                    slopes = builder.gep(dz, [builder.mul(place, NUMBER(WIDTH))])
                    slopes = [builder.load(vector_at(builder, slopes, NUMBER(o * WIDTH)), align=ALIGNED) for o in range(n)]
                    for c, column in enumerate(columns):
                        vector = builder.load(vector_at(builder, column, base), align=ALIGNED)
                        for o in range(n):
                            total = sums[o * COLUMNS + c]
                            builder.store(multiply_add(builder, vector, slopes[o], builder.load(total)), total)
                for c in range(COLUMNS):
                    place = builder.add(builder.mul(_number(builder, numbers, builder.add(k, NUMBER(c))), outs), o0)
                    for o in range(n):
                        at = vector_at(builder, dw, builder.mul(builder.add(place, NUMBER(o)), NUMBER(WIDTH)))
                        value = builder.fadd(builder.load(at, align=ALIGNED), builder.load(sums[o * COLUMNS + c]))
                        builder.store(value, at, align=ALIGNED)

        _by_outputs(builder, size, ROWS, products)
        return context.get_dummy_value()

    return void(pixels, bases, targets, int64, offsets, numbers, int64, dz, int64, int64, int64, dw), generate


@intrinsic
def add_slopes(typing_context, targets, count, dz, outs, o0, size, db):
    """db[o] += sum_i dz[targets[i] outs + o] for `size` outputs o from o0 on; separately per lane."""

    def generate(context, builder, signature, arguments):
        targets, count, dz, outs, o0, size, db = data_of(context, builder, signature, arguments)

        def added(n):
            sums = _sums(builder, n)
            _zero(builder, sums)
            with cgutils.for_range(builder, count) as loop:
                place = builder.add(builder.mul(_number(builder, targets, loop.index), outs), o0)
                slopes = builder.gep(dz, [builder.mul(place, NUMBER(WIDTH))])
                for o, total in enumerate(sums):
                    slope = builder.load(vector_at(builder, slopes, NUMBER(o * WIDTH)), align=ALIGNED)
                    builder.store(builder.fadd(builder.load(total), slope), total)
            for o, total in enumerate(sums):
                at = vector_at(builder, db, builder.mul(builder.add(o0, NUMBER(o)), NUMBER(WIDTH)))
                builder.store(builder.fadd(builder.load(at, align=4), builder.load(total)), at, align=4)

        _by_outputs(builder, size, ROWS, added)
        return context.get_dummy_value()

    return void(targets, int64, dz, int64, int64, int64, db), generate


@intrinsic
def add_back(typing_context, dz, bases, targets, count, offsets, depth, w, outs, o0, size, changes):
    """changes[bases[i] + offsets[k]] += sum_o dz[targets[i] outs + o] w[k outs + o] over `size` outputs o from o0 on."""

    def generate(context, builder, signature, arguments):
        dz, bases, targets, count, offsets, depth, w, outs, o0, size, changes = data_of(context, builder, signature, arguments)

        def products(n):
            with cgutils.for_range(builder, count) as loop:
                i = loop.index
                begin = builder.gep(changes, [_number(builder, bases, i)])
                place = builder.add(builder.mul(_number(builder, targets, i), outs), o0)
                slopes = builder.gep(dz, [builder.mul(place, NUMBER(WIDTH))])
                slopes = [builder.load(vector_at(builder, slopes, NUMBER(o * WIDTH)), align=ALIGNED) for o in range(n)]
                with cgutils.for_range(builder, depth) as inner:
                    k = inner.index
                    factors = builder.gep(w, [builder.add(builder.mul(k, outs), o0)])
                    at = vector_at(builder, begin, _number(builder, offsets, k))
                    value = builder.load(at, align=ALIGNED)
                    for o, slope in enumerate(slopes):
                        value = multiply_add(builder, slope, spread(builder, _number(builder, factors, NUMBER(o))).value, value)
                    builder.store(value, at, align=ALIGNED)

        _by_outputs(builder, size, OUTPUTS, products)
        return context.get_dummy_value()

    return void(dz, bases, targets, int64, offsets, int64, w, int64, int64, int64, changes), generate
