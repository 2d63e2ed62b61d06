"""Matrix product in blocks, version 4 of the ladder in `gemm`: for compute capability 8.0 and above.

    c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n])
    A[m, k] = a[a0 + m am + k ak],   B[k, n] = b[b0 + k bk + n bn]

Any strides: transposes, and kept rows, columns and inner indices of a pattern (its period a stride, its bias an offset) are the
same kernel. A block of 256 threads computes 128 x 128 outputs, 8 x 8 a thread, or 64 x 64, 4 x 4 a thread. 2 M N K FLOPs:

    copies      global -> shared by cp.async, 4 bytes a thread, zeros beyond the edges: the k-tile after this one is on its way
                while this one is multiplied. Neighbouring threads walk along the axis that is contiguous
    tiles       16 rows of 128 (or 64) floats and 4 more: threads that walk along k, 8 of them in 4 columns, meet 32 banks
    multiply    at 128, four 16-byte loads and 64 fused multiply-adds for each k; the sums are one tuple: it stays in registers
"""
from __future__ import annotations

import functools

import numpy as np
from llvmlite import ir
from numba import float32, int32, int64, types

from .launch import (
    capability,
    ceil_div,
    cuda,
    device_array,
    intrinsic,
    kernel,
    kernels,
    launch,
    multiprocessors,
    to_device,
    trusted,
)

DEPTH = 16
THREADS = 256
F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
QUAD = ir.VectorType(F32, 4)


# --- intrinsics -------------------------------------------------------------------------------------------------------
def _number(value):
    return ir.Constant(I32, value)


def element(context, builder, kind, array, index):
    """Where element `index` of an array argument lies."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [builder.sext(index, I64)])


def _statement(text):
    """An intrinsic that is one instruction without operands."""
    @intrinsic(text)
    def run(typing_context):
        def generate(context, builder, signature, arguments):
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), generate

    return run


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


def _results(builder, sums, place_of, biases, relu, alpha, scale):
    """(i, j) -> scale act(alpha sums[place_of(i, j)] + biases[j]); NaN stays."""
    zero = ir.Constant(F32, 0.0)

    def result(i, j):
        sum_ = builder.fadd(builder.fmul(alpha, builder.extract_value(sums, place_of(i, j))), biases[j])
        negative = builder.and_(relu, builder.fcmp_ordered("<", sum_, zero))
        return builder.fmul(scale, builder.select(negative, zero, sum_))

    return result


def store_of(kind, rows_at, cols_at, place_of, group):
    """The intrinsic that writes a thread's sums, those of rows rows_at and columns cols_at of its block; `group` neighbouring
    columns are one store where they are aligned."""
    vector = ir.VectorType(F32, group)

    @intrinsic(str(kind), *rows_at, *cols_at, group)
    def store(typing_context, sums, c, at, width, rows, cols, aligned, bias, bias_at, bias_step, biased, relu, alpha, scale):
        """c[at + i width + j] = scale act(alpha sums[i, j] + bias[bias_at + j bias_step]) for i < rows and j < cols:
        st.global.v4.f32 (or v2) where `aligned`, else st.global.f32."""
        def generate(context, builder, signature, arguments):
            sums, c, at, width, rows, cols, aligned, bias, bias_at, bias_step, biased, relu, alpha, scale = arguments
            inside = [builder.icmp_signed("<", _number(j), cols) for j in cols_at]
            biases = _loaded(context, builder, signature.args[7], bias,
                             [builder.add(bias_at, builder.mul(_number(j), bias_step)) for j in cols_at],
                             [builder.and_(biased, flag) for flag in inside])
            result = _results(builder, sums, place_of, biases, relu, alpha, scale)
            for i, row in enumerate(rows_at):
                with builder.if_then(builder.icmp_signed("<", _number(row), rows)):
                    start = builder.add(at, builder.mul(_number(row), width))
                    for j in range(0, len(cols_at), group):
                        first = element(context, builder, signature.args[1], c, builder.add(start, _number(cols_at[j])))
                        with builder.if_else(builder.and_(aligned, inside[j + group - 1])) as (together, apart):
                            with together:
                                values = ir.Constant(vector, ir.Undefined)
                                for k in range(group):
                                    values = builder.insert_element(values, result(i, j + k), _number(k))
                                at_once = builder.bitcast(first, ir.PointerType(vector, first.type.addrspace))
                                builder.store(values, at_once, align=4 * group)
                            with apart:
                                for k in range(group):
                                    with builder.if_then(inside[j + k]):
                                        builder.store(result(i, j + k), builder.gep(first, [ir.Constant(I64, k)]))
            return context.get_dummy_value()

        return types.void(kind, c, *[types.int32] * 4, types.boolean, bias, types.int32, types.int32, types.boolean,
                          types.boolean, types.float32, types.float32), generate

    return store


@functools.cache
def sums_of(side, pitch):
    """(zeros, multiply, store, scatter): what a thread does with its side x side sums, in rows and columns 0 … 3 and, if 8,
    64 … 67, of tiles with so many floats a row."""
    kind, places = types.UniTuple(types.float32, side * side), [64 * half + i for half in range(side // 4) for i in range(4)]

    def place_of(i, j):
        return side * i + j

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

    @intrinsic(side, pitch)
    def scatter(typing_context, sums, c, at, width, rows, cols, to, to_at, bias, biased, relu, alpha, scale):
        """c[at + i width + n] = scale act(alpha sums[i, j] + bias[n]), n = to[to_at + j], for i < rows and j < cols."""
        def generate(context, builder, signature, arguments):
            sums, c, at, width, rows, cols, to, to_at, bias, biased, relu, alpha, scale = arguments
            inside = [builder.icmp_signed("<", _number(j), cols) for j in places]
            columns = _loaded(context, builder, signature.args[6], to, [builder.add(to_at, _number(j)) for j in places], inside)
            biases = _loaded(context, builder, signature.args[8], bias, columns, [builder.and_(biased, f) for f in inside])
            result = _results(builder, sums, place_of, biases, relu, alpha, scale)
            for i, row in enumerate(places):
                with builder.if_then(builder.icmp_signed("<", _number(row), rows)):
                    start = builder.add(at, builder.mul(_number(row), width))
                    for j in range(side):
                        with builder.if_then(inside[j]):
                            to_place = element(context, builder, signature.args[1], c, builder.add(start, columns[j]))
                            builder.store(result(i, j), to_place)
            return context.get_dummy_value()

        return types.void(kind, c, *[types.int32] * 4, to, types.int32, bias, types.boolean, types.boolean, types.float32,
                          types.float32), generate

    return zeros, multiply, store_of(kind, places, places, place_of, 4), scatter


# --- kernel -----------------------------------------------------------------------------------------------------------
@kernels
def _block(tile=128, a_along_k=True, b_along_k=True, padding=4):
    """Along which of its axes neighbouring threads read each operand; without padding they wait for each other's banks."""
    side, pitch = tile // 16, tile + padding
    stage = DEPTH * pitch
    buffers = 2 * stage
    zeros, multiply, store, _ = sums_of(side, pitch)
    across = THREADS // tile
    (a_deep, a_wide), (b_deep, b_wide) = ((8, 32) if along_k else (across, tile) for along_k in (a_along_k, b_along_k))

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], i4, i4, i4, i4, i4, i4, i4, i4, i4, i4, i4, b1, b1, b1, f4, f4)",
            least=(8, 0))
    def gemm_block(a, b, bias, c, rows, cols, depth, a0, am, ak, b0, bk, bn, bias0, bias_step, quads, biased, relu,
                   alpha, scale):
        """Version 4: the next k-tile is copied while this one is multiplied."""
        a_tile = cuda.shared.array(buffers, float32, 16)
        b_tile = cuda.shared.array(buffers, float32, 16)
        t = int32(cuda.threadIdx.x)
        row0, col0 = int32(cuda.blockIdx.y) * int32(tile), int32(cuda.blockIdx.x) * int32(tile)
        # where this thread copies from, how much there is from there on, and where to
        a_k, a_m = (t % int32(a_deep), t // int32(a_deep)) if a_along_k else (t // int32(a_wide), t % int32(a_wide))
        b_k, b_n = (t % int32(b_deep), t // int32(b_deep)) if b_along_k else (t // int32(b_wide), t % int32(b_wide))
        a_from, b_from = address(a, a0 + (row0 + a_m) * am + a_k * ak), address(b, b0 + b_k * bk + (col0 + b_n) * bn)
        a_rows, b_cols, a_depth, b_depth = rows - row0 - a_m, cols - col0 - b_n, depth - a_k, depth - b_k
        a_to, b_to = shared_address(a_tile, a_k * int32(pitch) + a_m), shared_address(b_tile, b_k * int32(pitch) + b_n)
        sums = zeros()
        tiles = (depth + int32(DEPTH - 1)) // int32(DEPTH)
        for step in range(tiles + 1):
            if step < tiles:
                to = (int32(step) & int32(1)) * int32(4 * stage)
                for i in range(DEPTH // a_deep):
                    for j in range(tile // a_wide):
                        copy(a_to + to + int32(4 * (i * a_deep * pitch + j * a_wide)),
                              a_from + int64(4) * int64(int32(i * a_deep) * ak + int32(j * a_wide) * am),
                              int32(i * a_deep) < a_depth and int32(j * a_wide) < a_rows)
                for i in range(DEPTH // b_deep):
                    for j in range(tile // b_wide):
                        copy(b_to + to + int32(4 * (i * b_deep * pitch + j * b_wide)),
                              b_from + int64(4) * int64(int32(i * b_deep) * bk + int32(j * b_wide) * bn),
                              int32(i * b_deep) < b_depth and int32(j * b_wide) < b_cols)
                a_from, b_from = a_from + int64(4 * DEPTH) * int64(ak), b_from + int64(4 * DEPTH) * int64(bk)
                a_depth, b_depth = a_depth - int32(DEPTH), b_depth - int32(DEPTH)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                at = (int32(step - 1) & int32(1)) * int32(stage)
                sums = multiply(sums, a_tile, at + (t >> int32(4)) * int32(4), b_tile, at + (t & int32(15)) * int32(4))
                cuda.syncthreads()
        row, col = row0 + (t >> int32(4)) * int32(4), col0 + (t & int32(15)) * int32(4)
        store(sums, c, row * cols + col, cols, rows - row, cols - col, quads, bias, bias0 + col * bias_step, bias_step,
              biased, relu, alpha, scale)

    return gemm_block


TILES = {128: 1.0, 64: 1.5}  # what an output costs in blocks of each size, where there are blocks for all multiprocessors


def tile_for(rows, cols, products=1):
    """The size of blocks by which so many products are done first: a multiprocessor works on two at a time."""
    def cost(tile):
        waves = ceil_div(products * ceil_div(rows, tile) * ceil_div(cols, tile), 2 * multiprocessors())
        return waves * tile * tile * TILES[tile]

    return min(TILES, key=cost)


def available(*arrays):
    """Whether this card has the instructions and gives right results, and 32 bits count the elements of the arrays."""
    return capability() >= _block().least and all(array.size < 2**31 for array in arrays) and _agrees()


@trusted
def _agrees():
    """Of both tiles and every walk, on ragged operands."""
    rng, worst = np.random.default_rng(0), 0.0
    x, y = rng.standard_normal((150, 45), np.float32), rng.standard_normal((45, 133), np.float32)
    for tile in TILES:
        for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
            a, b = (to_device(np.ascontiguousarray(m.T if t else m).reshape(-1)) for m, t in ((x, ta), (y, tb)))
            out = device_array((150, 133))
            gemm_block_cuda(a, b, (150, 133, 45), (0, 1, 150) if ta else (0, 45, 1), (0, 1, 45) if tb else (0, 133, 1), out,
                            tile=tile)
            worst = max(worst, float(np.abs(out.copy_to_host() - np.float64(x) @ y).max()) / 45)
    return worst


def gemm_block_cuda(a, b, shape, a_at, b_at, out, bias=None, bias_at=(0, 1), relu=False, alpha=1.0, scale=1.0, tile=None,
                    padding=4):
    """c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n]), shape (M, N, K); a_at, b_at and bias_at say where the
    elements lie: (a0, am, ak), (b0, bk, bn) and (start, step).
    To look at what they do: a tile of 64 or 128, and padding by a multiple of 4."""
    (rows, cols, _), (_, am, ak), (_, bk, bn) = shape, a_at, b_at
    tile = tile_for(rows, cols) if tile is None else tile
    launch(_block(tile, ak <= am, bk <= bn, padding), (ceil_div(cols, tile), ceil_div(rows, tile)), THREADS,
           a, b, b if bias is None else bias, out.reshape(out.size), *shape, *a_at, *b_at, *bias_at, cols % 4 == 0,
           bias is not None, relu, alpha, scale)
    return out
