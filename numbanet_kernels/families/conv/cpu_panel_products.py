"""Matrix products of convolutions on the CPU whose results are PANEL columns wide, with sums in registers.

    multiply          c[r] = sum_k a[r, k] b[k], where a is a matrix
    multiply_listed   c[r] = sum_k a[rows[r], k] b[k]
    multiply_columns  c[r] = sum_k a[k, r] b[rows[k]]
    add_scattered     c[to[r]] += sum_k a[places[r] + k] b[k]

The order of the terms of a sum is that of k for any number of rows. BLAS packs both factors in each product: on one core of an
AMD EPYC it computed such products at 175 to 200 GFLOP/s, these loops at 265.
"""

from __future__ import annotations

import numba
from numba import int64
from numba.core import cgutils
from numba.extending import intrinsic

from ...host.simd import FLOATS, NUMBER, REAL, WIDTH, Lanes, below, data_of, load, multiply_add, spread, store
from ...runtime.declare import host_function

PANEL = 2 * WIDTH  # columns of a product: two vectors
ROWS = 12 if WIDTH == 16 else 6  # rows of a product in registers, two sums each
PIECE = 128  # terms per partial sum, because errors grow with the number of terms


def _even(left, most):
    """The size of the next piece, if what is left is cut into as few and as equal pieces as possible."""
    return -(-left // -(-left // most))


even = host_function(_even)


def columns(count):
    """The number of columns of a matrix of `count` columns that are rows of a product at a time (`copy_row`)."""
    return _even(max(count, 1), min(ROWS, WIDTH))


# --- sums in registers ------------------------------------------------------------------------------------------------
def _sum_products(builder, begins, depth, place, right, ends, add):
    """Generate ends[r][v] = sum_k begins[r][place(k)] right(k)[v] for v < PANEL, added to what is there if `add`; `begins`,
    `ends` and right(k) are pointers.
    """
    sums = [[cgutils.alloca_once_value(builder, FLOATS([REAL(0.0)] * WIDTH)) for _ in range(2)] for _ in begins]
    for own in (total for pair in sums for total in pair):
        builder.store(FLOATS([REAL(0.0)] * WIDTH), own)
    with cgutils.for_range(builder, depth) as loop:
        beside, at = right(loop.index), place(loop.index)
        vectors = [load(builder, beside, NUMBER(v * WIDTH)) for v in range(2)]
        for begin, pair in zip(begins, sums):
            factor = spread(builder, builder.load(builder.gep(begin, [at])))
            for vector, own in zip(vectors, pair):
                builder.store(multiply_add(builder, vector.value, factor.value, builder.load(own)), own)
    for out, pair in zip(ends, sums):
        for v, own in enumerate(pair):
            where, value = NUMBER(v * WIDTH), Lanes(builder, builder.load(own))
            with builder.if_else(add) as (adding, setting):
                with adding:
                    store(builder, load(builder, out, where) + value, out, where)
                with setting:
                    store(builder, value, out, where)


def _rows_of(builder, out, n):
    """Pointers to n rows of PANEL columns."""
    return [builder.gep(out, [NUMBER(r * PANEL)]) for r in range(n)]


def _by_rows(builder, rows, products):
    """Generate products(n) for n = 1 … ROWS, and the branch between them."""
    for n in range(1, ROWS + 1):
        with builder.if_then(builder.icmp_signed("==", rows, NUMBER(n))):
            products(n)


@intrinsic
def _multiply_rows(typing_context, a, at, row, step, b, b_at, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + v] = sum_k a[at + r row + k step] b[b_at + k PANEL + v] for v < PANEL and r < rows <= ROWS; added to c
    if `add`.
    """

    def generate(context, builder, signature, arguments):
        a, at, row, step, b, b_at, depth, rows, c, c_at, add = data_of(context, builder, signature, arguments)
        left, right, out = builder.gep(a, [at]), builder.gep(b, [b_at]), builder.gep(c, [c_at])

        def products(n):
            _sum_products(
                builder,
                [builder.gep(left, [builder.mul(row, NUMBER(r))]) for r in range(n)],
                depth,
                lambda k: builder.mul(k, step),
                lambda k: builder.gep(right, [builder.mul(k, NUMBER(PANEL))]),
                _rows_of(builder, out, n),
                add,
            )

        _by_rows(builder, rows, products)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(a, number, number, number, b, number, number, number, c, number, numba.boolean), generate


@intrinsic
def _multiply_listed_rows(typing_context, a, at, row, listed, first, b, b_at, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + v] = sum_k a[at + listed[first + r] row + k] b[b_at + k PANEL + v] for v < PANEL and r < rows <= ROWS;
    added to c if `add`.
    """

    def generate(context, builder, signature, arguments):
        a, at, row, listed, first, b, b_at, depth, rows, c, c_at, add = data_of(context, builder, signature, arguments)
        left, right, out = builder.gep(a, [at]), builder.gep(b, [b_at]), builder.gep(c, [c_at])

        def products(n):
            numbers = [
                builder.sext(builder.load(builder.gep(listed, [builder.add(first, NUMBER(r))])), NUMBER) for r in range(n)
            ]
            _sum_products(
                builder,
                [builder.gep(left, [builder.mul(row, number)]) for number in numbers],
                depth,
                lambda k: k,
                lambda k: builder.gep(right, [builder.mul(k, NUMBER(PANEL))]),
                _rows_of(builder, out, n),
                add,
            )

        _by_rows(builder, rows, products)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(a, number, number, listed, number, b, number, number, number, c, number, numba.boolean), generate


@intrinsic
def _multiply_listed_terms(typing_context, a, at, wide, b, listed, first, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + v] = sum_k a[at + k wide + r] b[listed[first + k] PANEL + v] for v < PANEL and r < rows <= ROWS; added
    to c if `add`.
    """

    def generate(context, builder, signature, arguments):
        a, at, wide, b, listed, first, depth, rows, c, c_at, add = data_of(context, builder, signature, arguments)
        left, numbers, out = builder.gep(a, [at]), builder.gep(listed, [first]), builder.gep(c, [c_at])

        def products(n):
            _sum_products(
                builder,
                [builder.gep(left, [NUMBER(r)]) for r in range(n)],
                depth,
                lambda k: builder.mul(k, wide),
                lambda k: builder.gep(b, [builder.mul(builder.load(builder.gep(numbers, [k])), NUMBER(PANEL))]),
                _rows_of(builder, out, n),
                add,
            )

        _by_rows(builder, rows, products)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(a, number, number, b, listed, number, number, number, c, number, numba.boolean), generate


@intrinsic
def _add_scattered_rows(typing_context, a, at, places, row, b, b_at, depth, first, rows, c, c_at, to, step):
    """c[c_at + to[i] step + v] += sum_k a[at + places[i] row + k] b[b_at + k PANEL + v] for v < PANEL and i = first … first +
    rows - 1, at most ROWS.
    """

    def generate(context, builder, signature, arguments):
        a, at, places, row, b, b_at, depth, first, rows, c, c_at, to, step = data_of(context, builder, signature, arguments)
        left, right, out = builder.gep(a, [at]), builder.gep(b, [b_at]), builder.gep(c, [c_at])

        def pointers(data, listed, by, n):
            numbers = [builder.load(builder.gep(listed, [builder.add(first, NUMBER(r))])) for r in range(n)]
            return [builder.gep(data, [builder.mul(by, number)]) for number in numbers]

        def products(n):
            _sum_products(
                builder,
                pointers(left, places, row, n),
                depth,
                lambda k: k,
                lambda k: builder.gep(right, [builder.mul(k, NUMBER(PANEL))]),
                pointers(out, to, step, n),
                cgutils.true_bit,
            )

        _by_rows(builder, rows, products)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(a, number, places, number, b, number, number, number, number, c, number, to, number), generate


@intrinsic
def copy_row(typing_context, source, first, target, at, count):
    """target[at:at + WIDTH] = source[first:first + count], and then zeros; count <= WIDTH"""

    def generate(context, builder, signature, arguments):
        source, first, target, at, count = data_of(context, builder, signature, arguments)
        store(builder, load(builder, source, first, below(builder, count)), target, at)
        return context.get_dummy_value()

    number = numba.int64
    return numba.void(source, number, target, number, number), generate


# --- products of any size ---------------------------------------------------------------------------------------------
@host_function
def multiply(a, at, row, step, b, b_at, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + o] = sum_k a[at + r row + k step] b[b_at + k PANEL + o] for r < rows; added to c if `add`."""
    r = int64(0)
    while r < rows:
        count = even(rows - r, ROWS)
        for k in range(0, depth, PIECE):
            left, right, terms = at + r * row + k * step, b_at + k * PANEL, min(PIECE, depth - k)
            _multiply_rows(a, left, row, step, b, right, terms, count, c, c_at + r * PANEL, add or k > 0)
        r += count


@host_function
def multiply_listed(a, at, row, listed, first, b, b_at, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + o] = sum_k a[at + listed[first + r] row + k] b[b_at + k PANEL + o] for r < rows; added to c if
    `add`.
    """
    r = int64(0)
    while r < rows:
        count = even(rows - r, ROWS)
        for k in range(0, depth, PIECE):
            right, terms = b_at + k * PANEL, min(PIECE, depth - k)
            _multiply_listed_rows(a, at + k, row, listed, first + r, b, right, terms, count, c, c_at + r * PANEL, add or k > 0)
        r += count


@host_function
def multiply_columns(a, at, wide, b, listed, depth, rows, c, c_at, add):
    """c[c_at + r PANEL + o] = sum_k a[at + k wide + r] b[listed[k] PANEL + o] for r < rows <= ROWS; added to c if `add`."""
    if not (depth or add):
        c[c_at : c_at + rows * PANEL] = 0
    for k in range(0, depth, PIECE):
        _multiply_listed_terms(a, at + k * wide, wide, b, listed, k, min(PIECE, depth - k), rows, c, c_at, add or k > 0)


@host_function
def add_scattered(a, at, places, row, b, b_at, depth, rows, c, c_at, to, step):
    """c[c_at + to[r] step + o] += sum_k a[at + places[r] row + k] b[b_at + k PANEL + o] for r < rows."""
    r = int64(0)
    while r < rows:
        count = even(rows - r, ROWS)
        for k in range(0, depth, PIECE):
            some = min(PIECE, depth - k)
            _add_scattered_rows(a, at + k, places, row, b, b_at + k * PANEL, some, r, count, c, c_at, to, step)
        r += count
