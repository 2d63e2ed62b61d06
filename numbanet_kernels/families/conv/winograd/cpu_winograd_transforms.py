"""Winograd's minimal filtering (Lavin and Gray 2016) for windows of 3 x 3 with stride 1: matrices, transforms and products.

A tile of m x m outputs, m = 2 or 4, reads n x n pixels, n = m + 2. With d the pixels and g the taps of one channel, the outputs
Y and, from their gradient dY, the gradients of the taps and of the pixels are

    Y  = A^T [(G g G^T) * (B^T d B)] A        (* is elementwise; sums over channels come before the outer transform)
    dg = G^T [(A dY A^T) * (B^T d B)] G       summed over tiles before the outer transform
    dd = B [(G g G^T) * (A dY A^T)] B^T       (sums over filters come before the outer transform; overlapping tiles are added)

The sums are n² matrix products, one for each element of a tile of n x n pixels. They need n² / (9 m²) of the multiplications
of the direct form: 4/9 for m = 2, 1/4 for m = 4. The matrices interpolate polynomials, for m = 2 at the points 0, 1, -1 and
infinity, for m = 4 at 0, a, -a, b, -b and infinity. The paper takes a = 1, b = 2. Here a = 5/8, b = 3/2, as in oneDNN: powers
of these points are closer to 1, and so errors are less than half as large. With 512 channels, and relative to the largest
element, they are at most 1e-6 for m = 2, and 4e-6 for m = 4.
"""

from __future__ import annotations

import numba
from numba.core import cgutils
from numba.extending import intrinsic

from ....host.simd import FLOATS, NUMBER, REAL, WIDTH, Lanes, data_of, for_lanes, load, multiply_add, spread, store

a, b = 5 / 8, 3 / 2
BT = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
    4: [
        [a**2 * b**2, 0, -(a**2) - b**2, 0, 1, 0],
        [0, -a * b**2, -(b**2), a, 1, 0],
        [0, a * b**2, -(b**2), -a, 1, 0],
        [0, -b * a**2, -(a**2), b, 1, 0],
        [0, b * a**2, -(a**2), -b, 1, 0],
        [0, a**2 * b**2, 0, -(a**2) - b**2, 0, 1],
    ],
}
p, q = 1 / (2 * a**2 * (a**2 - b**2)), 1 / (2 * b**2 * (b**2 - a**2))
G = {
    2: [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    4: [
        [1 / (a**2 * b**2), 0, 0],
        [p, p * a, p * a**2],
        [p, -p * a, p * a**2],
        [q, q * b, q * b**2],
        [q, -q * b, q * b**2],
        [0, 0, 1],
    ],
}
AT = {
    2: [[1, 1, 1, 0], [0, 1, -1, -1]],
    4: [[1, 1, 1, 1, 1, 0], [0, a, -a, b, -b, 0], [0, a**2, a**2, b**2, b**2, 0], [0, a**3, -(a**3), b**3, -(b**3), 1]],
}


def _turned(matrices):
    return {m: [list(row) for row in zip(*matrix)] for m, matrix in matrices.items()}


A, B, GT = _turned(AT), _turned(BT), _turned(G)
PANEL = 2 * WIDTH  # outputs of a product's panel: two vectors
ROWS = 12 if WIDTH == 16 else 6  # rows of a product in registers, two sums each


# --- transforms, of WIDTH channels at a time -------------------------------------------------------------------------
def _row(row, values):
    """The sum of a row's coefficients times vectors; zeros are left out."""
    total = None
    for coefficient, value in sorted(((c, v) for c, v in zip(row, values) if c), key=lambda term: term[0] != 1):
        if total is None:
            total = value if coefficient == 1 else value * coefficient
        elif abs(coefficient) == 1:
            total = total + value if coefficient == 1 else total - value
        else:
            total = Lanes(total.builder, multiply_add(total.builder, value.value, value.of(coefficient).value, total.value))
    return total


def _alike(row, other):
    """True if two rows differ in signs alone."""
    return row != other and [abs(c) for c in row] == [abs(c) for c in other]


def _times(matrix, values):
    """matrix @ values, vectors. Two columns that differ in signs alone are applied to the sum and to the difference of their
    values; two such rows are the sum and the difference of two parts.
    """
    columns, terms, found = [list(column) for column in zip(*matrix)], list(values), []
    for j in range(len(columns) - 1):
        if _alike(*columns[j : j + 2]):
            pairs = list(zip(*columns[j : j + 2]))
            columns[j : j + 2] = [c if c == d else 0 for c, d in pairs], [c if c != d else 0 for c, d in pairs]
            terms[j : j + 2] = terms[j] + terms[j + 1], terms[j] - terms[j + 1]
    rows = [list(row) for row in zip(*columns)]
    while rows:
        if len(rows) > 1 and _alike(*rows[:2]):
            row, other = rows[:2]
            equal = _row([c if c == d else 0 for c, d in zip(row, other)], terms)
            opposite = _row([c if c != d else 0 for c, d in zip(row, other)], terms)
            found += [equal + opposite, equal - opposite]
            del rows[:2]
        else:
            found.append(_row(rows.pop(0), terms))
    return found


def _sandwich(matrix, element):
    """M X M^T as rows of vectors; element(r, s) is a vector of X."""
    size = len(matrix[0])
    columns = [_times(matrix, [element(r, s) for r in range(size)]) for s in range(size)]
    return [_times(matrix, [column[i] for column in columns]) for i in range(len(matrix))]


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
                        rows = _sandwich(matrix, lambda r, s: load(builder, pixels[r, s], c, some))
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
                    rows = _sandwich(matrix, lambda r, s: load(builder, planes[r * side + s], c))
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
                    rows = _sandwich(matrix, lambda r, s: load(builder, planes[r * side + s], c))
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

                    rows = _sandwich(matrix, element)
                    for i, value in enumerate(value for row in rows for value in row):
                        store(builder, value, out, builder.add(end, builder.mul(out_step, NUMBER(i))))

            _by_size(builder, m, body)
            return context.get_dummy_value()

        number = numba.int64
        return numba.void(number, source, number, number, out, number, number), generate

    return transform


transform_taps = _transforming(G)  # G g G^T
transform_back = _transforming(GT)  # G^T S G


# --- products ---------------------------------------------------------------------------------------------------------
@intrinsic
def multiply_rows(typing_context, a, at, row, step, b, b_at, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + v] = sum_k a[at + r row + k step] b[b_at + k PANEL + v] for v < PANEL and r < rows <= ROWS; added to c
    if `add`. Sums are in registers, and the order of their terms is that of k for any number of rows. BLAS packs both factors
    in each product: on one core of an AMD EPYC it computed such products at 175 to 200 GFLOP/s, this loop at 265.
    """

    def generate(context, builder, signature, arguments):
        a, at, row, step, b, b_at, depth, rows, c, c_at, add = data_of(context, builder, signature, arguments)
        left, right, out = builder.gep(a, [at]), builder.gep(b, [b_at]), builder.gep(c, [c_at])

        def products(n):
            begins = [builder.gep(left, [builder.mul(row, NUMBER(r))]) for r in range(n)]
            sums = [[cgutils.alloca_once_value(builder, FLOATS([REAL(0.0)] * WIDTH)) for _ in range(2)] for _ in range(n)]
            for own in (total for pair in sums for total in pair):
                builder.store(FLOATS([REAL(0.0)] * WIDTH), own)
            with cgutils.for_range(builder, depth) as loop:
                k = loop.index
                vectors = [
                    load(builder, right, builder.add(builder.mul(k, NUMBER(PANEL)), NUMBER(v * WIDTH))) for v in range(2)
                ]
                place = builder.mul(k, step)
                for begin, pair in zip(begins, sums):
                    factor = spread(builder, builder.load(builder.gep(begin, [place])))
                    for vector, own in zip(vectors, pair):
                        builder.store(multiply_add(builder, vector.value, factor.value, builder.load(own)), own)
            for r, pair in enumerate(sums):
                for v, own in enumerate(pair):
                    where = NUMBER(r * PANEL + v * WIDTH)
                    value = Lanes(builder, builder.load(own))
                    with builder.if_else(add) as (adding, setting):
                        with adding:
                            store(builder, load(builder, out, where) + value, out, where)
                        with setting:
                            store(builder, value, out, where)

        for n in range(1, ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", rows, NUMBER(n))):
                products(n)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(a, number, number, number, b, number, number, number, c, number, numba.boolean), generate
