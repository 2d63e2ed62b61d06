"""Winograd's filtering on the CPU (`matrices` has the formula): transforms of vectors of channels."""

from __future__ import annotations

import numba
from numba.core import cgutils
from numba.extending import intrinsic

from ....host.simd import NUMBER, WIDTH, Lanes, data_of, for_lanes, load, spread, store
from ..cpu_panel_products import PANEL
from .matrices import AT, BT, GT, A, B, G, sandwich


# --- transforms, of WIDTH channels at a time -------------------------------------------------------------------------
def _by_size(builder, m, body):
    """Generate body(2) and body(4), and the branch between them."""
    with builder.if_else(builder.icmp_signed("==", m, NUMBER(4))) as (four, two):
        with four:
            body(4)
        with two:
            body(2)


def _pixels(builder, data, places, side, beside, first):
    """Pointers to channel `first` of side x side pixels, or to zeros where a place is negative."""
    found = {}
    for i in range(side * side):
        place = builder.load(builder.gep(places, [NUMBER(i)]))
        inside = builder.icmp_signed(">=", place, NUMBER(0))
        found[i // side, i % side] = builder.select(inside, builder.gep(data, [builder.add(place, first)]), beside)
    return found


def _gathering(matrices):
    """An intrinsic that transforms a tile of pixels: out[i plane + at + c] = (M X M^T)[i] for channels c from `first` to first
    + count - 1, where X is read at `places`, and is 0 where they are negative. Vectors of `out` are written whole.
    """

    @intrinsic
    def gather(typing_context, m, x, places, zeros, first, count, out, at, plane):
        def generate(context, builder, signature, arguments):
            m, x, places, zeros, first, count, out, at, plane = data_of(context, builder, signature, arguments)

            def body(size):
                matrix = matrices[size]
                pixels = _pixels(builder, x, places, len(matrix[0]), zeros, first)
                with cgutils.for_range_slice(builder, NUMBER(0), count, NUMBER(WIDTH)) as (c, _):

                    def vectors(some):
                        rows = sandwich(matrix, lambda r, s: load(builder, pixels[r, s], c, some))
                        begin = builder.add(at, c)
                        for i, value in enumerate(value for row in rows for value in row):
                            store(builder, value, out, builder.add(begin, builder.mul(plane, NUMBER(i))))

                    for_lanes(builder, builder.sub(count, c), vectors)

            _by_size(builder, m, body)
            return context.get_dummy_value()

        number = numba.int64
        return numba.void(number, x, places, zeros, number, number, out, number, number), generate

    return gather


gather_input = _gathering(BT)  # B^T d B
gather_slopes = _gathering(A)  # A dY A^T


@intrinsic
def scatter_output(typing_context, m, source, at, plane, scale, bias, low, places, first, count, y):
    """y[place + c] = max(scale (A^T S A)[place] + bias[c], low) for channels c from `first` to first + count - 1 and the places
    that are not negative; S[i] is source[i plane + at + c - first].
    """

    def generate(context, builder, signature, arguments):
        m, source, at, plane, scale, bias, low, places, first, count, y = data_of(context, builder, signature, arguments)
        factor, least = spread(builder, scale), spread(builder, low).value

        def body(size):
            matrix = AT[size]
            side = len(matrix[0])
            goals = [builder.load(builder.gep(places, [NUMBER(i)])) for i in range(size * size)]
            begin = builder.gep(source, [at])
            planes = [builder.gep(begin, [builder.mul(plane, NUMBER(i))]) for i in range(side * side)]
            with cgutils.for_range_slice(builder, NUMBER(0), count, NUMBER(WIDTH)) as (c, _):
                channel = builder.add(first, c)

                def vectors(some):
                    added = load(builder, bias, channel, some)
                    rows = sandwich(matrix, lambda r, s: load(builder, planes[r * side + s], c))
                    for goal, value in zip(goals, (value for row in rows for value in row)):
                        value = value * factor + added
                        chosen = builder.fcmp_ordered("<", value.value, least)  # in this order, NaN stays NaN
                        value = Lanes(builder, builder.select(chosen, least, value.value))
                        with builder.if_then(builder.icmp_signed(">=", goal, NUMBER(0))):
                            store(builder, value, y, builder.add(goal, channel), some)

                for_lanes(builder, builder.sub(count, c), vectors)

        _by_size(builder, m, body)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(number, source, number, number, numba.float32, bias, numba.float32, places, number, number, y), generate


@intrinsic
def scatter_pixels(typing_context, m, source, at, plane, scale, places, first, count, x):
    """x[place + c] += scale (B S B^T)[place] for channels c from `first` to first + count - 1 and the places that are not
    negative; S[i] is source[i plane + at + c - first].
    """

    def generate(context, builder, signature, arguments):
        m, source, at, plane, scale, places, first, count, x = data_of(context, builder, signature, arguments)
        factor = spread(builder, scale)

        def body(size):
            matrix = B[size]
            side = len(matrix)
            begin = builder.gep(source, [at])
            planes = [builder.gep(begin, [builder.mul(plane, NUMBER(i))]) for i in range(side * side)]
            goals = [builder.load(builder.gep(places, [NUMBER(i)])) for i in range(side * side)]
            with cgutils.for_range_slice(builder, NUMBER(0), count, NUMBER(WIDTH)) as (c, _):
                channel = builder.add(first, c)

                def vectors(some):
                    rows = sandwich(matrix, lambda r, s: load(builder, planes[r * side + s], c))
                    for goal, value in zip(goals, (value for row in rows for value in row)):
                        with builder.if_then(builder.icmp_signed(">=", goal, NUMBER(0))):
                            place = builder.add(goal, channel)
                            store(builder, load(builder, x, place, some) + value * factor, x, place, some)

                for_lanes(builder, builder.sub(count, c), vectors)

        _by_size(builder, m, body)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(number, source, number, number, numba.float32, places, number, number, x), generate


def _transforming(matrices):
    """An intrinsic that transforms PANEL columns: out[i out_step + to + v] = (M X M^T)[i], X[j] = source[j step + at + v]."""

    @intrinsic
    def transform(typing_context, m, source, at, step, out, to, out_step):
        def generate(context, builder, signature, arguments):
            m, source, at, step, out, to, out_step = data_of(context, builder, signature, arguments)

            def body(size):
                matrix = matrices[size]
                side = len(matrix[0])
                for v in range(0, PANEL, WIDTH):
                    begin, end = (builder.add(place, NUMBER(v)) for place in (at, to))

                    def element(r, s, begin=begin):
                        return load(builder, source, builder.add(begin, builder.mul(step, NUMBER(r * side + s))))

                    rows = sandwich(matrix, element)
                    for i, value in enumerate(value for row in rows for value in row):
                        store(builder, value, out, builder.add(end, builder.mul(out_step, NUMBER(i))))

            _by_size(builder, m, body)
            return context.get_dummy_value()

        number = numba.int64
        return numba.void(number, source, number, number, out, number, number), generate

    return transform


transform_taps = _transforming(G)  # G g G^T
transform_back = _transforming(GT)  # G^T S G
