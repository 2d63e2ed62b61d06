"""Matrix product on tensor cores, version 5 of the ladder in `gemm`: for compute capability 8.0 and above.

    c[m, n] = scale * act(alpha * sum_k A[m, k] B[k, n] + bias[n])       operands as in `gemm_block`

Tensor cores multiply TF32: float32 with 10 bits of mantissa. With three passes a number is the sum of two of them, x = big +
small, and big big + big small + small big leaves out small small alone: the error of float32. One pass keeps 10 bits.
A block of 8 warps computes 128 x 128, a warp 64 x 32: per k-tile of 16, 2 x 4 x 4 products 16 x 8 x 8 by mma, three times.

Fragments of mma.m16n8k8, g = lane // 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k8"):
    A  (g, t) (g + 8, t) (g, t + 4) (g + 8, t + 4)      B  (t, g) (t + 4, g)
    C  (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
A tile lies with k in rows of 16 + 4 floats, or, read across, with k rows of 128 + 8: either way a warp's fragment, 8 g by 4 t,
lies in 32 banks, and so do the floats that a warp copies at once.
"""
from __future__ import annotations

import functools

from llvmlite import ir
from numba import float32, int32, int64, types

from .gemm_block import (
    DEPTH,
    F32,
    I32,
    I64,
    THREADS,
    address,
    commit,
    copy,
    element,
    shared_address,
    store_of,
    wait_for_all_but_one,
)
from .launch import ceil_div, cuda, intrinsic, kernel, kernels, launch

TILE = 128
ALONG, ACROSS = DEPTH + 4, TILE + 8  # floats a row of a tile that lies with k in its rows, or across
SUMS = types.UniTuple(types.float32, 64)


def _steps(along_k):
    """(from one k to the next, from one row or column to the next) in a tile."""
    return (1, ALONG) if along_k else (ACROSS, 1)


# --- intrinsics -------------------------------------------------------------------------------------------------------
@functools.cache
def _fragments(passes, a_along_k, b_along_k):
    """(zeros, multiply, store): what a thread does with its part of 4 x 4 fragments of C."""
    (a_k, a_m), (b_k, b_n) = _steps(a_along_k), _steps(b_along_k)

    @intrinsic(passes, a_along_k, b_along_k)
    def zeros(typing_context):
        """64 zeros."""
        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, SUMS, [ir.Constant(F32, 0.0)] * 64)

        return SUMS(), generate

    def split(builder, x):
        """(big, small) as bits of TF32: cvt.rna.tf32.f32 of x and of what it leaves."""
        convert = ir.InlineAsm(ir.FunctionType(I32, [F32]), "cvt.rna.tf32.f32 $0, $1;", "=r,f")
        big = builder.call(convert, [x])
        return big, builder.call(convert, [builder.fsub(x, builder.bitcast(big, F32))]) if passes == 3 else None

    @intrinsic(passes, a_along_k, b_along_k)
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
            return context.make_tuple(builder, SUMS, sums)

        return SUMS(SUMS, a, types.int32, b, types.int32), generate

    rows_at, cols_at = [16 * i + 8 * h for i in range(4) for h in (0, 1)], [8 * j + e for j in range(4) for e in (0, 1)]
    return zeros, multiply, store_of(SUMS, rows_at, cols_at, lambda i, j: 4 * (4 * (i // 2) + j // 2) + 2 * (i % 2) + j % 2, 2)


# --- kernel -----------------------------------------------------------------------------------------------------------
@kernels
def _tensor(passes=3, a_along_k=True, b_along_k=True):
    zeros, multiply, store = _fragments(passes, a_along_k, b_along_k)
    (a_step_k, a_step_m), (b_step_k, b_step_n) = _steps(a_along_k), _steps(b_along_k)
    a_stage, b_stage = (TILE * ALONG if along_k else DEPTH * ACROSS for along_k in (a_along_k, b_along_k))
    a_buffers, b_buffers = 2 * a_stage, 2 * b_stage
    (a_deep, a_wide), (b_deep, b_wide) = ((8, 32) if along_k else (2, TILE) for along_k in (a_along_k, b_along_k))

    @kernel("void(f4[::1], f4[::1], f4[::1], f4[::1], i4, i4, i4, i4, i4, i4, i4, i4, i4, i4, i4, b1, b1, b1, f4, f4)",
            least=(8, 0))
    def gemm_tensor(a, b, bias, c, rows, cols, depth, a0, am, ak, b0, bk, bn, bias0, bias_step, pairs, biased, relu,
                    alpha, scale):
        """Version 5: as version 4, multiplied by tensor cores."""
        a_tile = cuda.shared.array(a_buffers, float32, 16)
        b_tile = cuda.shared.array(b_buffers, float32, 16)
        t = int32(cuda.threadIdx.x)
        row0, col0 = int32(cuda.blockIdx.y) * int32(TILE), int32(cuda.blockIdx.x) * int32(TILE)
        # rows 0 2 4 6 of eight, then 1 3 5 7: four rows of ALONG floats begin 8 banks apart
        place = t // int32(8)
        place = (place & int32(24)) | ((place & int32(3)) << int32(1)) | ((place >> int32(2)) & int32(1))
        a_k, a_m = (t % int32(8), place) if a_along_k else (t // int32(TILE), t % int32(TILE))
        b_k, b_n = (t % int32(8), place) if b_along_k else (t // int32(TILE), t % int32(TILE))
        a_from, b_from = address(a, a0 + (row0 + a_m) * am + a_k * ak), address(b, b0 + b_k * bk + (col0 + b_n) * bn)
        a_rows, b_cols, a_depth, b_depth = rows - row0 - a_m, cols - col0 - b_n, depth - a_k, depth - b_k
        a_to = shared_address(a_tile, a_k * int32(a_step_k) + a_m * int32(a_step_m))
        b_to = shared_address(b_tile, b_k * int32(b_step_k) + b_n * int32(b_step_n))
        # where this thread's fragments begin: warps stand 2 x 4
        warp, lane = t >> int32(5), t & int32(31)
        row, col = (warp >> int32(2)) * int32(64) + (lane >> int32(2)), (warp & int32(3)) * int32(32) + (lane >> int32(2))
        a_at = (lane & int32(3)) * int32(a_step_k) + row * int32(a_step_m)
        b_at = (lane & int32(3)) * int32(b_step_k) + col * int32(b_step_n)
        sums = zeros()
        tiles = (depth + int32(DEPTH - 1)) // int32(DEPTH)
        for step in range(tiles + 1):
            if step < tiles:
                odd = int32(step) & int32(1)
                for i in range(DEPTH // a_deep):
                    for j in range(TILE // a_wide):
                        copy(a_to + odd * int32(4 * a_stage) + int32(4 * (i * a_deep * a_step_k + j * a_wide * a_step_m)),
                             a_from + int64(4) * int64(int32(i * a_deep) * ak + int32(j * a_wide) * am),
                             int32(i * a_deep) < a_depth and int32(j * a_wide) < a_rows)
                for i in range(DEPTH // b_deep):
                    for j in range(TILE // b_wide):
                        copy(b_to + odd * int32(4 * b_stage) + int32(4 * (i * b_deep * b_step_k + j * b_wide * b_step_n)),
                             b_from + int64(4) * int64(int32(i * b_deep) * bk + int32(j * b_wide) * bn),
                             int32(i * b_deep) < b_depth and int32(j * b_wide) < b_cols)
                a_from, b_from = a_from + int64(4 * DEPTH) * int64(ak), b_from + int64(4 * DEPTH) * int64(bk)
                a_depth, b_depth = a_depth - int32(DEPTH), b_depth - int32(DEPTH)
            commit()
            if step > 0:
                wait_for_all_but_one()
                cuda.syncthreads()
                odd = int32(step - 1) & int32(1)
                sums = multiply(sums, a_tile, odd * int32(a_stage) + a_at, b_tile, odd * int32(b_stage) + b_at)
                cuda.syncthreads()
        row, col = row0 + row, col0 + (warp & int32(3)) * int32(32) + (lane & int32(3)) * int32(2)
        store(sums, c, row * cols + col, cols, rows - row, cols - col, pairs, bias, bias0 + col * bias_step, bias_step,
              biased, relu, alpha, scale)

    return gemm_tensor


def gemm_tensor_cuda(a, b, shape, a_at, b_at, out, bias=None, bias_at=(0, 1), relu=False, alpha=1.0, scale=1.0, passes=3):
    """As `gemm_block_cuda`, in three passes of TF32, whose error is that of float32, or in one."""
    (rows, cols, _), (_, am, ak), (_, bk, bn) = shape, a_at, b_at
    launch(_tensor(passes, ak <= am, bk <= bn), (ceil_div(cols, TILE), ceil_div(rows, TILE)), THREADS,
           a, b, b if bias is None else bias, out.reshape(out.size), *shape, *a_at, *b_at, *bias_at, cols % 2 == 0,
           bias is not None, relu, alpha, scale)
    return out
