"""LLVM code for the sums of a thread: it multiplies tiles of A and B in shared memory, and stores the results.

    sums_of      a thread computes 8 x 8 (or 4 x 4) sums with fused multiply-adds
    fragments    a warp computes 4 x 4 fragments on tensor cores, with mma.sync.m16n8k8 in TF32
    rows_of      the threads of a block sum the rows of A, from the same tiles

The sums of a thread are one tuple, so that they stay in registers. A fragment is the part of a small matrix that a warp holds
in registers. For m16n8k8, lane l has these elements (row, column), where g = l // 4 and t = l % 4 (PTX ISA, "Matrix fragments
for mma.m16n8k8"):

    A  (g, t) (g + 8, t) (g, t + 4) (g + 8, t + 4)      B  (t, g) (t + 4, g)
    C  (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)

Tensor cores round the sum of a product and C toward zero: errors of one sign, which grow with k. With three passes they sum 8
values of k, from zero on, and add.f32, which rounds to nearest, adds that to the sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir
from numba import float32, types

from ..runtime.declare import cuda, inlined, intrinsic
from .copies import DEPTH, THREADS
from .intrinsics import F32, I32, I64, constant, data_of, element, gates_of, loaded, numbers_of

QUAD = ir.VectorType(F32, 4)
FRAGMENTS = types.UniTuple(types.float32, 64)


PLACE, PAIR, SCALES = types.UniTuple(types.int32, 4), types.UniTuple(types.int32, 2), types.UniTuple(types.float32, 2)
EPILOGUE = types.boolean, types.boolean, types.boolean, SCALES  # types of the arguments biased, masked, relu and (alpha, scale)


def _unpacked(builder, values, count):
    return [builder.extract_value(values, i) for i in range(count)]


def _inside(builder, place, cols_at):
    """Return a flag for each of the columns `cols_at`, which is True if the column is inside the matrix."""
    return [builder.icmp_signed("<", constant(j), builder.extract_value(place, 3)) for j in cols_at]


def _rows(context, builder, signature, arguments, rows_at, index_of, inside, columns, bias_columns):
    """Yield, for each row i inside the matrix, the indices of its columns in c, and a function of j that returns
    scale act(alpha sums[i, j] + bias[j]). If masked, the value is 0 unless `where` > 0 at this element. NaN stays NaN.
    """
    sums, _, place, bias, where, biased, masked, relu, scales = arguments[:9]
    bias, where = (data_of(context, builder, signature.args[n], array) for n, array in ((3, bias), (4, where)))
    (at, width, rows, _), (alpha, scale) = _unpacked(builder, place, 4), _unpacked(builder, scales, 2)
    zero, biases = ir.Constant(F32, 0.0), loaded(builder, bias, bias_columns, inside, biased)
    for i, row in enumerate(rows_at):
        with builder.if_then(builder.icmp_signed("<", constant(row), rows)):
            start = builder.add(at, builder.mul(constant(row), width))
            indices = [builder.add(start, column) for column in columns]
            gates = gates_of(builder, where, masked, indices, inside)

            def result(j):
                sum_ = builder.fadd(builder.fmul(alpha, builder.extract_value(sums, index_of(i, j))), biases[j])
                negative = builder.and_(relu, builder.fcmp_ordered("<", sum_, zero))
                return builder.select(gates[j], builder.fmul(scale, builder.select(negative, zero, sum_)), zero)

            yield indices, result


def _store_together(builder, first, values):
    """Store values to adjacent addresses, from `first` on, by one instruction."""
    kind = ir.VectorType(F32, len(values))
    vector = ir.Constant(kind, ir.Undefined)
    for k, value in enumerate(values):
        vector = builder.insert_element(vector, value, constant(k))
    builder.store(vector, builder.bitcast(first, ir.PointerType(kind, first.type.addrspace)), align=4 * len(values))


def store_of(kind, rows_at, cols_at, index_of, group):
    """Return the intrinsic that writes a thread's sums, those of the rows `rows_at` and the columns `cols_at` of its block. If
    its argument `aligned` is set, one instruction stores `group` adjacent columns.
    """

    @intrinsic(str(kind), *rows_at, *cols_at, group)
    def store(typing_context, sums, c, place, bias, where, biased, masked, relu, scales, bias_place, aligned):
        """c[at + i width + j] = scale act(alpha sums[i, j] + bias[bias_at + j bias_step]) for i < rows and j < cols; if masked,
        0 where `where` is not above 0. `place` is (at, width, rows, cols). The instruction is st.global.v4.f32 (or v2) if
        `aligned`, else st.global.f32.
        """

        def generate(context, builder, signature, arguments):
            *_, bias_place, aligned = arguments
            columns, (bias_at, bias_step) = [constant(j) for j in cols_at], _unpacked(builder, bias_place, 2)
            biases = [builder.add(bias_at, builder.mul(j, bias_step)) for j in columns]
            c, inside = data_of(context, builder, signature.args[1], arguments[1]), _inside(builder, arguments[2], cols_at)
            for indices, result in _rows(context, builder, signature, arguments, rows_at, index_of, inside, columns, biases):
                for j in range(0, len(cols_at), group):
                    first, values = element(builder, c, indices[j]), [result(k) for k in range(j, j + group)]
                    with builder.if_else(builder.and_(aligned, inside[j + group - 1])) as (together, apart):
                        with together:
                            _store_together(builder, first, values)
                        with apart:
                            for k, value in enumerate(values):
                                with builder.if_then(inside[j + k]):
                                    builder.store(value, builder.gep(first, [ir.Constant(I64, k)]))
            return context.get_dummy_value()

        return types.void(kind, c, PLACE, bias, where, *EPILOGUE, PAIR, types.boolean), generate

    return store


def _scatter_of(kind, rows_at, cols_at, index_of):
    @intrinsic(str(kind), *rows_at, *cols_at)
    def scatter(typing_context, sums, c, place, bias, where, biased, masked, relu, scales, to, to_at):
        """c[at + i width + n] = scale act(alpha sums[i, j] + bias[n]), where n = to[to_at + j]; all else is as for `store`."""

        def generate(context, builder, signature, arguments):
            columns = numbers_of(context, builder, signature.args[9], *arguments[9:], [constant(j) for j in cols_at])
            c, inside = data_of(context, builder, signature.args[1], arguments[1]), _inside(builder, arguments[2], cols_at)
            for indices, result in _rows(context, builder, signature, arguments, rows_at, index_of, inside, columns, columns):
                for j, index in enumerate(indices):
                    with builder.if_then(inside[j]):
                        builder.store(result(j), element(builder, c, index))
            return context.get_dummy_value()

        return types.void(kind, c, PLACE, bias, where, *EPILOGUE, to, types.int32), generate

    return scatter


def _writes(*of):
    """Return the intrinsics (store, scatter) for sums at the given rows and columns."""
    return store_of(*of), _scatter_of(*of[:-1])


class Sums(NamedTuple):
    """Intrinsics on a thread's sums.

    corner(t) gives, for thread t: the row or column that it copies if adjacent threads copy along k; the row and the column of
    its first sum; and the offsets of its operands in a tile of A and in a tile of B. The last bit of the argument `step` of
    `multiply` selects one of two tiles. zeros, multiply, store and scatter are documented at their definitions.
    """

    corner: Callable
    zeros: Callable
    multiply: Callable
    store: Callable
    scatter: Callable


CORNER = types.UniTuple(types.int32, 5)


def _current(context, builder, kind, array, at, step, layout):
    """Return the address of a thread's operands in the tile of the current step."""
    stage = builder.mul(builder.and_(step, constant(1)), constant(layout.stage))
    return element(builder, data_of(context, builder, kind, array), builder.add(stage, at))


@functools.cache
def rows_of(tile, layout):
    """Return the intrinsics (first, add, total) for sums of the rows of A. Each thread sums a part of one row of a tile."""
    share = DEPTH * tile // THREADS

    @intrinsic(tile, layout)
    def first(typing_context, t):
        """Return the offset of a thread's part in a tile; the rows are adjacent."""

        def generate(context, builder, signature, arguments):
            (t,) = arguments
            part, row = builder.udiv(t, constant(tile)), builder.urem(t, constant(tile))
            return builder.add(builder.mul(part, constant(share * layout.step)), builder.mul(row, constant(layout.side)))

        return types.int32(types.int32), generate

    @intrinsic(tile, layout)
    def add(typing_context, total, a, at, step):
        """Return `total` plus the thread's elements in the tile of this step, which add.f32 adds in the order of k."""

        def generate(context, builder, signature, arguments):
            total, a, at, step = arguments
            data = _current(context, builder, signature.args[1], a, at, step, layout)
            for k in range(share):
                total = builder.fadd(total, builder.load(builder.gep(data, [ir.Constant(I64, k * layout.step)])))
            return total

        return types.float32(types.float32, a, types.int32, types.int32), generate

    @inlined
    def total(tiles, t, a_sum):
        """Return the sum of row t % tile over all threads, which is computed in the memory of the tiles."""
        tiles[t] = a_sum
        cuda.syncthreads()
        a_sum = float32(0)
        for k in range(THREADS // tile):
            a_sum += tiles[t % tile + k * tile]
        return a_sum

    return first, add, total


@functools.cache
def sums_of(side, layout):
    """Return the `Sums` for side x side sums a thread, where side is 8 or 4. The rows and columns of a thread are 0 … 3 and, if
    side is 8, also 64 … 67. Both tiles have the layout `layout`.
    """
    pitch = layout.step
    kind, offsets = types.UniTuple(types.float32, side * side), [64 * half + i for half in range(side // 4) for i in range(4)]

    def index_of(i, j):
        return side * i + j

    @intrinsic(side, layout)
    def corner(typing_context, t):
        """Return the numbers that `Sums` describes. Threads form a 16 x 16 grid, and copy in rows of 8."""

        def generate(context, builder, signature, arguments):
            (t,) = arguments
            row, col = (builder.shl(n, constant(2)) for n in (builder.lshr(t, constant(4)), builder.and_(t, constant(15))))
            return context.make_tuple(builder, CORNER, [builder.lshr(t, constant(3)), row, col, row, col])

        return CORNER(types.int32), generate

    @intrinsic(side, layout)
    def zeros(typing_context):
        """Return side x side zeros."""

        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, kind, [ir.Constant(F32, 0.0)] * side**2)

        return kind(), generate

    def quads(builder, pointer, k):
        """Return a thread's elements in row k of a tile, which ld.shared.v4.f32 loads at offsets 0 and 64."""
        for half in range(side // 4):
            at = builder.gep(pointer, [ir.Constant(I64, k * pitch + 64 * half)])
            quad = builder.load(builder.bitcast(at, ir.PointerType(QUAD, at.type.addrspace)), align=16)
            yield from (builder.extract_element(quad, constant(i)) for i in range(4))

    @intrinsic(side, layout)
    def multiply(typing_context, sums, a, a_at, b, b_at, step):
        """sums[i, j] += a[k, i] b[k, j] for the 16 values of k in a tile, by fma.rn.f32; i is from a_at on, j from b_at on."""

        def generate(context, builder, signature, arguments):
            values = [builder.extract_value(arguments[0], i) for i in range(side**2)]
            left = _current(context, builder, signature.args[1], *arguments[1:3], arguments[5], layout)
            right = _current(context, builder, signature.args[3], *arguments[3:], layout)
            for k in range(DEPTH):
                row, col = list(quads(builder, left, k)), list(quads(builder, right, k))
                for i in range(side):
                    for j in range(side):
                        values[side * i + j] = builder.fma(row[i], col[j], values[side * i + j])
            return context.make_tuple(builder, kind, values)

        return kind(kind, a, types.int32, b, types.int32, types.int32), generate

    return Sums(corner, zeros, multiply, *_writes(kind, offsets, offsets, index_of, 4))


# --- tensor cores -----------------------------------------------------------------------------------------------------
def _fragment_corner(passes, of_a, of_b):
    a_k, a_m, b_k, b_n = of_a.step, of_a.side, of_b.step, of_b.side

    @intrinsic(passes, of_a, of_b)
    def corner(typing_context, t):
        """Return the numbers that `Sums` describes. Warps form a 2 x 4 grid. Of each eight rows, copies along k go first to the
        rows 0 2 4 6, then to 1 3 5 7: four such rows of 20 floats begin 8 banks apart.
        """

        def generate(context, builder, signature, arguments):
            (t,) = arguments

            def bits(n, first, count, to):
                """Return the bits first … first + count - 1 of n, shifted to bit `to`."""
                field = builder.and_(builder.lshr(n, constant(first)), constant((1 << count) - 1))
                return builder.shl(field, constant(to))

            def at(k, k_step, side, side_step):
                return builder.add(builder.mul(k, constant(k_step)), builder.mul(side, constant(side_step)))

            line = builder.lshr(t, constant(3))
            line = builder.or_(bits(line, 3, 2, 3), builder.or_(bits(line, 0, 2, 1), bits(line, 2, 1, 0)))
            k, g = bits(t, 0, 2, 0), bits(t, 2, 3, 0)
            row, col = builder.add(bits(t, 7, 1, 6), g), bits(t, 5, 2, 5)
            first = builder.add(col, bits(t, 0, 2, 1))
            corner = [line, row, first, at(k, a_k, row, a_m), at(k, b_k, builder.add(col, g), b_n)]
            return context.make_tuple(builder, CORNER, corner)

        return CORNER(types.int32), generate

    return corner


@functools.cache
def fragments(passes, of_a, of_b):
    """Return the `Sums` for a thread's part of 4 x 4 fragments of C; `of_a` and `of_b` are the layouts of the tiles."""
    a_k, a_m, b_k, b_n = of_a.step, of_a.side, of_b.step, of_b.side

    @intrinsic(passes, of_a, of_b)
    def zeros(typing_context):
        """Return 64 zeros."""

        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, FRAGMENTS, [ir.Constant(F32, 0.0)] * 64)

        return FRAGMENTS(), generate

    def split(builder, x):
        """Return (big, small) as bits of TF32: cvt.rna.tf32.f32 of x, and of the remainder x - big."""
        convert = ir.InlineAsm(ir.FunctionType(I32, [F32]), "cvt.rna.tf32.f32 $0, $1;", "=r,f")
        big = builder.call(convert, [x])
        return big, builder.call(convert, [builder.fsub(x, builder.bitcast(big, F32))]) if passes == 3 else None

    @intrinsic(passes, of_a, of_b)
    def multiply(typing_context, sums, a, a_at, b, b_at, step):
        """C += A B for the 16 values of k in a tile, by mma.sync.aligned.m16n8k8; products with small parts come first."""

        def generate(context, builder, signature, arguments):
            sums = [builder.extract_value(arguments[0], i) for i in range(64)]
            left = _current(context, builder, signature.args[1], *arguments[1:3], arguments[5], of_a)
            right = _current(context, builder, signature.args[3], *arguments[3:], of_b)
            result = ir.LiteralStructType([F32] * 4)
            mma = ir.InlineAsm(
                ir.FunctionType(result, [I32] * 6 + [F32] * 4),
                "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13};",
                "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
            )

            def parts(base, offset):
                return split(builder, builder.load(builder.gep(base, [ir.Constant(I64, offset)])))

            for k in (0, 8):
                columns = [[parts(right, (k + dk) * b_k + 8 * j * b_n) for dk in (0, 4)] for j in range(4)]
                for i in range(4):
                    row = [parts(left, (k + dk) * a_k + (16 * i + dm) * a_m) for dk in (0, 4) for dm in (0, 8)]
                    for j, column in enumerate(columns):
                        own = slice(4 * (4 * i + j), 4 * (4 * i + j) + 4)
                        part = [ir.Constant(F32, 0.0)] * 4 if passes == 3 else sums[own]
                        for part_a, part_b in ((1, 0), (0, 1), (0, 0)) if passes == 3 else ((0, 0),):
                            products = builder.call(mma, [f[part_a] for f in row] + [f[part_b] for f in column] + part)
                            part = [builder.extract_value(products, q) for q in range(4)]
                        sums[own] = part if passes < 3 else [builder.fadd(c, p) for c, p in zip(sums[own], part, strict=True)]
            return context.make_tuple(builder, FRAGMENTS, sums)

        return FRAGMENTS(FRAGMENTS, a, types.int32, b, types.int32, types.int32), generate

    rows_at, cols_at = [16 * i + 8 * h for i in range(4) for h in (0, 1)], [8 * j + e for j in range(4) for e in (0, 1)]

    def index_of(i, j):
        return 4 * (4 * (i // 2) + j // 2) + 2 * (i % 2) + j % 2

    return Sums(_fragment_corner(passes, of_a, of_b), zeros, multiply, *_writes(FRAGMENTS, rows_at, cols_at, index_of, 2))
