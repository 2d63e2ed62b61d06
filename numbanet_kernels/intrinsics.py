"""Instructions that Numba has no name for, as LLVM code: what `gemm_block`, `gemm_grouped` and `update` are made of.

    address, shared_address, copy, commit, wait_for_all_but_one     cp.async: copies that go on while something is multiplied
    sums_of      8 x 8 (or 4 x 4) sums a thread: fused multiply-adds
    fragments    4 x 4 fragments a warp: tensor cores, mma.sync.m16n8k8 in TF32
    park, add_parked, fence     sums that other blocks add up: strong stores and loads
    chosen, owner    one of several arrays or numbers that a kernel was given as a tuple, and which one

Sums are one tuple, so that they stay in registers. Fragments of m16n8k8, g = lane // 4 and t = lane % 4 (PTX ISA, "Matrix
fragments for mma.m16n8k8"):

    A  (g, t) (g + 8, t) (g, t + 4) (g + 8, t + 4)      B  (t, g) (t + 4, g)
    C  (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir
from numba import types

from .launch import SIMULATED, intrinsic

DEPTH = 16  # of a k-tile
F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
QUAD = ir.VectorType(F32, 4)
FRAGMENTS = types.UniTuple(types.float32, 64)


def _number(value):
    return ir.Constant(I32, value)


def element(context, builder, kind, array, index):
    """Where element `index` of an array argument lies."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [builder.sext(index, I64)])


@intrinsic()
def chosen(typing_context, several, number):
    """several[number], both known at run time: selp, where indexing would be a branch."""
    def generate(context, builder, signature, arguments):
        several, number = arguments
        found = builder.extract_value(several, 0)
        for i in range(1, signature.args[0].count):
            is_it = builder.icmp_signed("==", number, _number(i))
            found = builder.select(is_it, builder.extract_value(several, i), found)
        return found

    return several.dtype(several, types.int32), generate


@intrinsic()
def owner(typing_context, firsts, number):
    """Which of several ranges a number is in; firsts[k] is where range k begins, increasing from 0: the last one that is not
    above it, found without a branch."""
    def generate(context, builder, signature, arguments):
        firsts, number = arguments
        later = (builder.extract_value(firsts, i) for i in range(1, signature.args[0].count))
        return functools.reduce(builder.add, (builder.zext(builder.icmp_signed(">=", number, first), I32) for first in later))

    return types.int32(firsts, types.int32), generate


if SIMULATED:  # the simulator runs Python
    chosen, owner = operator.getitem, lambda firsts, number: sum(number >= first for first in firsts[1:])


def _statement(text):
    """An intrinsic that is one instruction without operands."""
    @intrinsic(text)
    def run(typing_context):
        def generate(context, builder, signature, arguments):
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), generate

    return run


fence = _statement("fence.acq_rel.gpu;")
commit, wait_for_all_but_one = _statement("cp.async.commit_group;"), _statement("cp.async.wait_group 1;")


def _address_in(space, integer, kind):
    """The intrinsic (array, at) -> the address of array[at] in global (1) or shared (3) memory, as an integer."""
    @intrinsic(space)
    def address(typing_context, array, at):
        def generate(context, builder, signature, arguments):
            place = element(context, builder, signature.args[0], *arguments)
            return builder.ptrtoint(builder.addrspacecast(place, ir.PointerType(F32, space)), integer)

        return kind(array, types.int32), generate

    return address


address, shared_address = _address_in(1, I64, types.int64), _address_in(3, I32, types.int32)


@intrinsic()
def copy(typing_context, to, source, inside):
    """cp.async.ca.shared.global [to], [source], 4, inside ? 4 : 0: one float, or 0, soon; nothing is read where not inside.

    That memory changes is said by `wait_for_all_but_one`, so that what is loaded between copies is loaded once.
    """
    def generate(context, builder, signature, arguments):
        to, source, inside = arguments
        assembly = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [I32, I64, I32]), "cp.async.ca.shared.global [$0], [$1], 4, $2;",
                                "r,l,r", side_effect=True)
        builder.call(assembly, [to, source, builder.select(inside, _number(4), _number(0))])
        return context.get_dummy_value()

    return types.void(types.int32, types.int64, types.boolean), generate


@intrinsic()
def park(typing_context, values, to, at, step):
    """to[at + i step] = values[i]: st.relaxed.gpu, so that other blocks may read it after a `fence`."""
    def generate(context, builder, signature, arguments):
        values, to, at, step = arguments
        assembly = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [I64, F32]), "st.relaxed.gpu.global.f32 [$0], $1;", "l,f",
                                side_effect=True)
        for i in range(signature.args[0].count):
            place = element(context, builder, signature.args[1], to, builder.add(at, builder.mul(_number(i), step)))
            builder.call(assembly, [builder.ptrtoint(place, I64), builder.extract_value(values, i)])
        return context.get_dummy_value()

    return types.void(values, to, types.int32, types.int32), generate


@intrinsic()
def add_parked(typing_context, values, source, at, step):
    """values[i] + source[at + i step]: ld.relaxed.gpu of what other blocks parked, after a `fence`."""
    def generate(context, builder, signature, arguments):
        values, source, at, step = arguments
        assembly = ir.InlineAsm(ir.FunctionType(F32, [I64]), "ld.relaxed.gpu.global.f32 $0, [$1];", "=f,l", side_effect=True)
        sums = []
        for i in range(signature.args[0].count):
            place = element(context, builder, signature.args[1], source, builder.add(at, builder.mul(_number(i), step)))
            sums.append(builder.fadd(builder.extract_value(values, i), builder.call(assembly, [builder.ptrtoint(place, I64)])))
        return context.make_tuple(builder, signature.return_type, sums)

    return values(values, source, types.int32, types.int32), generate


def _loaded(context, builder, kind, array, places, wanted):
    """The elements at some places of an array, 0 where not wanted."""
    found = []
    for place, flag in zip(places, wanted, strict=True):
        before = builder.block
        with builder.if_then(flag):
            loaded, after = builder.load(element(context, builder, kind, array, place)), builder.block
        value = builder.phi(loaded.type)
        value.add_incoming(ir.Constant(loaded.type, 0), before)
        value.add_incoming(loaded, after)
        found.append(value)
    return found


def _gates(context, builder, kind, where, masked, places, wanted):
    """Whether the elements of `where` at some places are above 0; nothing is read unless masked, or where not wanted."""
    flags = [builder.and_(masked, flag) for flag in wanted]
    zero = ir.Constant(F32, 0.0)
    return [builder.or_(builder.not_(masked), builder.fcmp_ordered(">", value, zero))
            for value in _loaded(context, builder, kind, where, places, flags)]


def _results(builder, sums, place_of, biases, relu, alpha, scale):
    """(i, j, open) -> scale act(alpha sums[place_of(i, j)] + biases[j]) if open, else 0; NaN stays."""
    zero = ir.Constant(F32, 0.0)

    def result(i, j, open_):
        sum_ = builder.fadd(builder.fmul(alpha, builder.extract_value(sums, place_of(i, j))), biases[j])
        negative = builder.and_(relu, builder.fcmp_ordered("<", sum_, zero))
        return builder.select(open_, builder.fmul(scale, builder.select(negative, zero, sum_)), zero)

    return result


def stores_of(kind, rows_at, cols_at, place_of, group):
    """(store, scatter): what writes a thread's sums, those of rows rows_at and columns cols_at of its block; `group`
    neighbouring columns are one store where they are aligned."""
    vector = ir.VectorType(F32, group)

    @intrinsic(str(kind), *rows_at, *cols_at, group)
    def store(typing_context, sums, c, at, width, rows, cols, aligned, bias, bias_at, bias_step, biased, where, masked, relu,
              alpha, scale):
        """c[at + i width + j] = scale act(alpha sums[i, j] + bias[bias_at + j bias_step]) for i < rows and j < cols, and if
        masked 0 unless `where` is above 0 there: st.global.v4.f32 (or v2) where `aligned`, else st.global.f32."""
        def generate(context, builder, signature, arguments):
            (sums, c, at, width, rows, cols, aligned, bias, bias_at, bias_step, biased, where, masked, relu, alpha,
             scale) = arguments
            inside = [builder.icmp_signed("<", _number(j), cols) for j in cols_at]
            biases = _loaded(context, builder, signature.args[7], bias,
                             [builder.add(bias_at, builder.mul(_number(j), bias_step)) for j in cols_at],
                             [builder.and_(biased, flag) for flag in inside])
            result = _results(builder, sums, place_of, biases, relu, alpha, scale)
            for i, row in enumerate(rows_at):
                with builder.if_then(builder.icmp_signed("<", _number(row), rows)):
                    start = builder.add(at, builder.mul(_number(row), width))
                    places = [builder.add(start, _number(j)) for j in cols_at]
                    gates = _gates(context, builder, signature.args[11], where, masked, places, inside)
                    for j in range(0, len(cols_at), group):
                        first = element(context, builder, signature.args[1], c, places[j])
                        with builder.if_else(builder.and_(aligned, inside[j + group - 1])) as (together, apart):
                            with together:
                                values = ir.Constant(vector, ir.Undefined)
                                for k in range(group):
                                    values = builder.insert_element(values, result(i, j + k, gates[j + k]), _number(k))
                                at_once = builder.bitcast(first, ir.PointerType(vector, first.type.addrspace))
                                builder.store(values, at_once, align=4 * group)
                            with apart:
                                for k in range(group):
                                    with builder.if_then(inside[j + k]):
                                        value = result(i, j + k, gates[j + k])
                                        builder.store(value, builder.gep(first, [ir.Constant(I64, k)]))
            return context.get_dummy_value()

        return types.void(kind, c, *[types.int32] * 4, types.boolean, bias, types.int32, types.int32, types.boolean, where,
                          types.boolean, types.boolean, types.float32, types.float32), generate

    @intrinsic(str(kind), *rows_at, *cols_at)
    def scatter(typing_context, sums, c, at, width, rows, cols, to, to_at, bias, biased, where, masked, relu, alpha, scale):
        """c[at + i width + n] = scale act(alpha sums[i, j] + bias[n]), n = to[to_at + j], for i < rows and j < cols, and if
        masked 0 unless `where` is above 0 there."""
        def generate(context, builder, signature, arguments):
            sums, c, at, width, rows, cols, to, to_at, bias, biased, where, masked, relu, alpha, scale = arguments
            inside = [builder.icmp_signed("<", _number(j), cols) for j in cols_at]
            listed = [builder.add(to_at, _number(j)) for j in cols_at]
            columns = _loaded(context, builder, signature.args[6], to, listed, inside)
            biases = _loaded(context, builder, signature.args[8], bias, columns, [builder.and_(biased, f) for f in inside])
            result = _results(builder, sums, place_of, biases, relu, alpha, scale)
            for i, row in enumerate(rows_at):
                with builder.if_then(builder.icmp_signed("<", _number(row), rows)):
                    start = builder.add(at, builder.mul(_number(row), width))
                    to_places = [builder.add(start, column) for column in columns]
                    gates = _gates(context, builder, signature.args[10], where, masked, to_places, inside)
                    for j in range(len(cols_at)):
                        with builder.if_then(inside[j]):
                            builder.store(result(i, j, gates[j]), element(context, builder, signature.args[1], c, to_places[j]))
            return context.get_dummy_value()

        return types.void(kind, c, *[types.int32] * 4, to, types.int32, bias, types.boolean, where, types.boolean,
                          types.boolean, types.float32, types.float32), generate

    return store, scatter


class Sums(NamedTuple):
    """What a thread does with its sums: intrinsics.

    corner: t -> (the row or column that it copies, where neighbours copy along k; row and column of its first sum; where its
    numbers begin in a tile of A and of B). zeros, multiply, store and scatter say themselves what they do.
    """

    corner: Callable
    zeros: Callable
    multiply: Callable
    store: Callable
    scatter: Callable


CORNER = types.UniTuple(types.int32, 5)


@functools.cache
def sums_of(side, pitch):
    """Sums of 8 x 8 (or 4 x 4) a thread, in rows and columns 0 … 3 and, if 8, 64 … 67, of tiles with so many floats a row."""
    kind, places = types.UniTuple(types.float32, side * side), [64 * half + i for half in range(side // 4) for i in range(4)]

    def place_of(i, j):
        return side * i + j

    @intrinsic(side, pitch)
    def corner(typing_context, t):
        """Threads stand 16 x 16, and copy in rows of 8."""
        def generate(context, builder, signature, arguments):
            (t,) = arguments
            row, col = (builder.shl(n, _number(2)) for n in (builder.lshr(t, _number(4)), builder.and_(t, _number(15))))
            return context.make_tuple(builder, CORNER, [builder.lshr(t, _number(3)), row, col, row, col])

        return CORNER(types.int32), generate

    @intrinsic(side, pitch)
    def zeros(typing_context):
        """side x side zeros."""
        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, kind, [ir.Constant(F32, 0.0)] * side**2)

        return kind(), generate

    def quads(builder, pointer, k):
        """A thread's numbers in row k of a tile: ld.shared.v4.f32 at 0 and 64."""
        for half in range(side // 4):
            at = builder.gep(pointer, [ir.Constant(I64, k * pitch + 64 * half)])
            quad = builder.load(builder.bitcast(at, ir.PointerType(QUAD, at.type.addrspace)), align=16)
            yield from (builder.extract_element(quad, _number(i)) for i in range(4))

    @intrinsic(side, pitch)
    def multiply(typing_context, sums, a, a_at, b, b_at):
        """sums[i, j] += a[k, i] b[k, j] for the 16 k of a tile, i from a_at and j from b_at on: fma.rn.f32."""
        def generate(context, builder, signature, arguments):
            values = [builder.extract_value(arguments[0], i) for i in range(side**2)]
            left = element(context, builder, signature.args[1], *arguments[1:3])
            right = element(context, builder, signature.args[3], *arguments[3:5])
            for k in range(DEPTH):
                row, col = list(quads(builder, left, k)), list(quads(builder, right, k))
                for i in range(side):
                    for j in range(side):
                        values[side * i + j] = builder.fma(row[i], col[j], values[side * i + j])
            return context.make_tuple(builder, kind, values)

        return kind(kind, a, types.int32, b, types.int32), generate

    return Sums(corner, zeros, multiply, *stores_of(kind, places, places, place_of, 4))


# --- tensor cores -----------------------------------------------------------------------------------------------------
@functools.cache
def fragments(passes, a_steps, b_steps):
    """Sums of a thread's part of 4 x 4 fragments of C; the steps of a tile are (from one k to the next, from one row or column
    to the next)."""
    (a_k, a_m), (b_k, b_n) = a_steps, b_steps

    @intrinsic(passes, *a_steps, *b_steps)
    def corner(typing_context, t):
        """Warps stand 2 x 4. Copies along k go to rows 0 2 4 6 of eight, then 1 3 5 7: four rows of 20 floats begin 8 banks
        apart."""
        def generate(context, builder, signature, arguments):
            (t,) = arguments

            def bits(n, first, count, to):
                """Bits first … first + count - 1 of n, moved to bit `to`."""
                found = builder.and_(builder.lshr(n, _number(first)), _number((1 << count) - 1))
                return builder.shl(found, _number(to))

            def at(k, k_step, side, side_step):
                return builder.add(builder.mul(k, _number(k_step)), builder.mul(side, _number(side_step)))

            place = builder.lshr(t, _number(3))
            place = builder.or_(bits(place, 3, 2, 3), builder.or_(bits(place, 0, 2, 1), bits(place, 2, 1, 0)))
            k, g = bits(t, 0, 2, 0), bits(t, 2, 3, 0)
            row, col = builder.add(bits(t, 7, 1, 6), g), bits(t, 5, 2, 5)
            first = builder.add(col, bits(t, 0, 2, 1))
            corner = [place, row, first, at(k, a_k, row, a_m), at(k, b_k, builder.add(col, g), b_n)]
            return context.make_tuple(builder, CORNER, corner)

        return CORNER(types.int32), generate

    @intrinsic(passes, *a_steps, *b_steps)
    def zeros(typing_context):
        """64 zeros."""
        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, FRAGMENTS, [ir.Constant(F32, 0.0)] * 64)

        return FRAGMENTS(), generate

    def split(builder, x):
        """(big, small) as bits of TF32: cvt.rna.tf32.f32 of x and of what it leaves."""
        convert = ir.InlineAsm(ir.FunctionType(I32, [F32]), "cvt.rna.tf32.f32 $0, $1;", "=r,f")
        big = builder.call(convert, [x])
        return big, builder.call(convert, [builder.fsub(x, builder.bitcast(big, F32))]) if passes == 3 else None

    @intrinsic(passes, *a_steps, *b_steps)
    def multiply(typing_context, sums, a, a_at, b, b_at):
        """C += A B for the 16 k of a tile: mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32, the small parts first."""
        def generate(context, builder, signature, arguments):
            sums = [builder.extract_value(arguments[0], i) for i in range(64)]
            left = element(context, builder, signature.args[1], *arguments[1:3])
            right = element(context, builder, signature.args[3], *arguments[3:5])
            result = ir.LiteralStructType([F32] * 4)
            mma = ir.InlineAsm(
                ir.FunctionType(result, [I32] * 6 + [F32] * 4),
                "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13};",
                "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f")

            def loaded(base, offset):
                return split(builder, builder.load(builder.gep(base, [ir.Constant(I64, offset)])))

            for k in (0, 8):
                columns = [[loaded(right, (k + dk) * b_k + 8 * j * b_n) for dk in (0, 4)] for j in range(4)]
                for i in range(4):
                    row = [loaded(left, (k + dk) * a_k + (16 * i + dm) * a_m) for dk in (0, 4) for dm in (0, 8)]
                    for part_a, part_b in ((1, 0), (0, 1), (0, 0)) if passes == 3 else ((0, 0),):
                        for j in range(4):
                            at = 4 * (4 * i + j)
                            fragments = [f[part_a] for f in row] + [f[part_b] for f in columns[j]] + sums[at:at + 4]
                            found = builder.call(mma, fragments)
                            sums[at:at + 4] = [builder.extract_value(found, q) for q in range(4)]
            return context.make_tuple(builder, FRAGMENTS, sums)

        return FRAGMENTS(FRAGMENTS, a, types.int32, b, types.int32), generate

    rows_at, cols_at = [16 * i + 8 * h for i in range(4) for h in (0, 1)], [8 * j + e for j in range(4) for e in (0, 1)]

    def place_of(i, j):
        return 4 * (4 * (i // 2) + j // 2) + 2 * (i % 2) + j % 2

    return Sums(corner, zeros, multiply, *stores_of(FRAGMENTS, rows_at, cols_at, place_of, 2))
