"""Transposition of activations (N, K) to features first, (K, N), and back, for products with rows and tiles on the CPU.

BLAS is faster if features come first. If they are also sorted by the classes of a tile pattern, each class is one dense block.
Bias, ReLU and their gradients are computed in the same pass.

A block of SAMPLES x COLUMNS is transposed into a buffer in the L1 cache, 8 x 8 at a time in registers. Bias and ReLU are then
applied along the rows of the buffer, in loops that LLVM vectorises. COLUMNS is two cache lines: if rows have 2048 floats, the
lines of a column map to few sets of the L1 cache and displace each other, so all of a line is read when it is loaded.
"""

from __future__ import annotations

import functools

import numba
import numpy as np
from llvmlite import ir
from numba import float32
from numba.extending import intrinsic, overload

from ..runtime.declare import host_function, host_kernel
from ..runtime.memory import empty_cpu
from . import threads
from .stack import least, stack_array

COLUMNS, SAMPLES = 32, 128  # shape of a buffer, which takes 16 KiB
VECTOR = 8  # number of floats in a register
NONE, YES, NO = np.int64(0), np.bool_(True), np.bool_(False)  # Numba compiles a function anew for each literal argument
EMPTY, NO_INDICES = np.zeros(0, np.float32), np.zeros(0, np.int32)  # compiled loops take them in place of None


@intrinsic
def _transpose_vectors(typing_context, a, n, i, b, r, c):
    """`_transpose` in registers; rounds s = 1, 2, 4 swap the lanes with bit s in row k and those without it in row k + s."""

    def generate(context, builder, signature, arguments):
        floats, lanes = ir.VectorType(ir.FloatType(), VECTOR), ir.VectorType(ir.IntType(32), VECTOR)

        def rows(kind, value, first, column):
            array = context.make_array(kind)(context, builder, value)
            width = builder.extract_value(array.shape, 1)
            indices = [builder.add(builder.mul(builder.add(first, first.type(k)), width), column) for k in range(VECTOR)]
            return [builder.bitcast(builder.gep(array.data, [index]), floats.as_pointer()) for index in indices]

        kinds = signature.args
        held = [builder.load(row, align=4) for row in rows(kinds[0], *arguments[:3])]
        for s in (1, 2, 4):
            low = lanes([j if not j & s else VECTOR + j - s for j in range(VECTOR)])
            high = lanes([j + s if not j & s else VECTOR + j for j in range(VECTOR)])
            for k in (k for k in range(VECTOR) if not k & s):
                pair = held[k], held[k + s]
                held[k], held[k + s] = builder.shuffle_vector(*pair, low), builder.shuffle_vector(*pair, high)
        for vector, row in zip(held, rows(kinds[3], *arguments[3:])):
            builder.store(vector, row, align=4)
        return context.get_dummy_value()

    return numba.types.void(a, numba.int64, numba.int64, b, numba.int64, numba.int64), generate


def _transpose(a, n, i, b, r, c):
    """b[r + j, c + k] = a[n + k, i + j] for j, k < 8."""
    b[r : r + VECTOR, c : c + VECTOR] = a[n : n + VECTOR, i : i + VECTOR].T


@overload(_transpose)
def _compiled_transpose(a, n, i, b, r, c):
    return lambda a, n, i, b, r, c: _transpose_vectors(a, n, i, b, r, c)


@host_function
def transpose_block(a, n0, n1, i0, i1, b, r0, c0, reading):
    """b[r0 + i - i0, c0 + n - n0] = a[n, i] for n0 <= n < n1, i0 <= i < i1; the loop runs along the rows of a if `reading`,
    else along those of b.
    """
    n8, i8 = n1 - VECTOR, i1 - VECTOR  # start of the last square, which may overlap the square before
    if n8 < n0 or i8 < i0:
        for n in range(n0, n1):
            for i in range(i0, i1):
                b[r0 + i - i0, c0 + n - n0] = a[n, i]
    elif reading:
        for n in range(n0, n1, VECTOR):
            for i in range(i0, i1, VECTOR):
                _transpose(a, least(n, n8), least(i, i8), b, r0 + least(i, i8) - i0, c0 + least(n, n8) - n0)
    else:
        for i in range(i0, i1, VECTOR):
            for n in range(n0, n1, VECTOR):
                _transpose(a, least(n, n8), least(i, i8), b, r0 + least(i, i8) - i0, c0 + least(n, n8) - n0)


@host_kernel("void(f4[:, :, ::1], f4[:, :, ::1], i8, i8)")
def _swap(x, y, first, stop):
    """y[l, c, r] = x[l, r, c] for the pairs of a matrix l and a group of SAMPLES rows with the numbers first … stop - 1."""
    block, groups = stack_array(COLUMNS, SAMPLES, np.float32), -(-x.shape[1] // SAMPLES)
    for number in range(first, stop):
        matrix, r0 = number // groups, number % groups * SAMPLES
        given, found, r1 = x[matrix], y[matrix], least(r0 + SAMPLES, x.shape[1])
        for c0 in range(0, x.shape[2], COLUMNS):
            c1 = least(c0 + COLUMNS, x.shape[2])
            transpose_block(given, r0, r1, c0, c1, block, 0, 0, True)
            for c in range(c0, c1):
                row, out = block[c - c0, : r1 - r0], found[c, r0:r1]
                for r in range(out.size):
                    out[r] = row[r]


def swap(x, y):
    """y[l, c, r] = x[l, r, c] for x (L, R, C) and y (L, C, R). The threads share the matrices and groups of their rows.

    NumPy reads or writes one element in C; if C is a power of two, such as the pixels of an image of 32 x 32, these elements
    displace each other in the caches, and a copy takes five times as long.
    """
    work = len(x) * -(-x.shape[1] // SAMPLES)

    def part_of(part):
        own = part.of(work)
        _swap(x, y, own.start, own.stop)

    threads.share(part_of, x.size)
    return y


@host_kernel("void(f4[:, ::1], f4[:, ::1], b1, i4[::1], f4, i8, i8, f4[:, ::1], f4[::1])")
def _transpose_in(x, y, gated, positions, scale, first, stop, transposed, sums):
    """transposed[positions[i], n] = scale * z[n, i] if positions[i] >= 0, for first <= i < stop.

    z = x * (y > 0) if `gated`, else x. If `sums` is not empty, sums[i] += sum_n z[n, i].
    """
    both = stack_array(2 * COLUMNS, SAMPLES, np.float32)  # a block of x and one of y
    for n0 in range(0, x.shape[0], SAMPLES):
        n1 = least(n0 + SAMPLES, x.shape[0])
        for i0 in range(first, stop, COLUMNS):
            i1 = least(i0 + COLUMNS, stop)
            for k in range(2 if gated else 1):
                # one call, which compiles once
                transpose_block(y if k else x, n0, n1, i0, i1, both, k * COLUMNS, NONE, YES)
            for i in range(i0, i1):
                z, gate, total = both[i - i0, : n1 - n0], both[COLUMNS + i - i0, : n1 - n0], float32(0)
                if gated:
                    for n in range(z.size):
                        z[n] = z[n] if gate[n] > 0 else float32(0)
                if sums.size:
                    for n in range(z.size):
                        total += z[n]
                    sums[i] += total
                if positions[i] >= 0:
                    out = transposed[positions[i], n0:n1]
                    for n in range(z.size):
                        out[n] = scale * z[n]


def transpose_in(x, rows, positions, scale=1.0, y=None, sums=EMPTY):
    """Return a new array (rows, N) whose element [positions[i], n] is scale * z[n, i]; features with positions[i] = -1 are left
    out.

    z is x if y is None, else x * (y > 0), the gradient through a ReLU with output y. If `sums` is given, sums[i] +=
    sum_n z[n, i], which is the gradient of the bias. The threads share the work.
    """
    transposed = empty_cpu((rows, x.shape[0]))

    def work(part):
        span = part.of(x.shape[1])
        _transpose_in(x, x if y is None else y, y is not None, positions, scale, span.start, span.stop, transposed, sums)

    threads.share(work, x.size)
    return transposed


@host_kernel("void(f4[:, :, ::1], i4[::1], f4[:, ::1], i8, i8, f4[::1], b1, b1, f4, f4)")
def _transpose_back(terms, positions, c, first, stop, bias, biased, relu, scale, alpha):
    """c[m, n] = scale * act(alpha * sum_t terms[t, positions[n], m] + bias[n]) for first <= n < stop; if positions[n] < 0, the
    sum is 0.
    """
    rows, nothing = stack_array(COLUMNS, SAMPLES, np.float32), stack_array(1, SAMPLES, np.float32)[0]
    for m in range(SAMPLES):
        nothing[m] = 0
    low = float32(0) if relu else float32(-np.inf)
    for m0 in range(0, c.shape[0], SAMPLES):
        m1 = least(m0 + SAMPLES, c.shape[0])
        for n0 in range(first, stop, COLUMNS):
            n1 = least(n0 + COLUMNS, stop)
            for n in range(n0, n1):
                row, added = rows[n - n0, : m1 - m0], bias[n] if biased else float32(0)
                first_term = terms[0, positions[n], m0:m1] if positions[n] >= 0 else nothing[: m1 - m0]
                for m in range(row.size):
                    row[m] = first_term[m]
                for t in range(1, terms.shape[0] if positions[n] >= 0 else 1):
                    term = terms[t, positions[n], m0:m1]
                    for m in range(row.size):
                        row[m] += term[m]
                for m in range(row.size):
                    value = alpha * row[m] + added
                    row[m] = scale * (low if value < low else value)  # not max(value, low), because NaN must stay NaN
            transpose_block(rows, NONE, n1 - n0, NONE, m1 - m0, c, m0, n0, NO)


_in_order = functools.lru_cache(maxsize=64)(functools.partial(np.arange, dtype=np.int32))


def transpose_back(terms, c, cols, bias=None, relu=False, scale=1.0, alpha=1.0, positions=None):
    """c[m, n] = scale * act(alpha * sum_t terms[t, positions[n], m] + bias[n]) for n in the slice `cols`, on the calling
    thread.

    If positions is None, positions[n] = n.
    """
    positions = _in_order(c.shape[1]) if positions is None else positions
    _transpose_back(
        terms, positions, c, cols.start, cols.stop, EMPTY if bias is None else bias, bias is not None, relu, scale, alpha
    )
