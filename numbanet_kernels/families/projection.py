"""Random projection to fewer dimensions, which nearly preserves inner products and needs only additions. R (k, d) is a random
matrix of -1, 0 and 1 (`layouts.ternary`):

    project    f[n, j] = sqrt(3 / k) sum_i R[j, i] v[n, i]      v (N, d) -> f (N, k)

If f(x) and f(w) are the projections of vectors x and w, E[f(x) . f(w)] = x . w (Achlioptas 2003, theorem 1.1; *Dynamic Sparse
Graph for Efficient Deep Learning*). A third of R is not 0, so a projection takes N k d / 3 additions instead of the 2 N k d
FLOPs of a dense product. A piece of v, some columns of some samples, is transposed into the cache, features first; each sum
then adds and subtracts whole rows of this piece.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from llvmlite import ir
from numba import float32, int32
from numba.core import cgutils
from numba.extending import intrinsic

from ..host import threads
from ..host.simd import FLOATS, NUMBER, REAL, WIDTH, aligned, data_of
from ..host.transpose import transpose_block
from ..layouts.ternary import PIECE, dense, ternary
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import empty_cpu, empty_cuda, flat


# --- reference --------------------------------------------------------------------------------------------------------
def project_reference(v, lists, outputs):
    """Return f = sqrt(3 / k) v R.T in float64; k is `outputs`."""
    return math.sqrt(3 / max(outputs, 1)) * (np.float64(v) @ dense(lists, outputs, v.shape[1]).T)


def _check(op, v, lists, outputs):
    """Return sqrt(3 / k), where k is `outputs`; raise ValueError unless the lists describe a matrix R (k, d)."""
    pieces = ceil_div(expect(op, v=(v, ("N", "d")))["d"], PIECE)
    expect(op, starts=(lists.starts, (2 * outputs * pieces + 1,), INT32), columns=(lists.columns, ("R's",), INT32))
    return math.sqrt(3 / max(outputs, 1))


# --- CPU --------------------------------------------------------------------------------------------------------------
MANY = 2 * WIDTH  # number of samples whose sums stay in registers, if there are more than WIDTH samples


@intrinsic
def _add_rows(typing_context, room, columns, first, middle, stop, sums, at):
    """sums[at + s] += sum of room[columns[p] % PIECE, s] for first <= p < middle, minus the sum for middle <= p < stop."""

    def generate(context, builder, signature, arguments):
        room, columns, first, middle, stop, sums, at = data_of(context, builder, signature, arguments)
        width = builder.extract_value(context.make_array(signature.args[0])(context, builder, arguments[0]).shape, 1)

        def added(vectors, chains):
            """Generate the loop for rows of `vectors` vectors; `chains` independent sums hide the latency of additions."""
            vectors_at = builder.bitcast(builder.gep(sums, [at]), FLOATS.as_pointer())
            totals = [
                cgutils.alloca_once_value(
                    builder,
                    builder.load(builder.gep(vectors_at, [ir.IntType(32)(v)]), align=4)
                    if not c
                    else FLOATS([REAL(0.0)] * WIDTH),
                )
                for c in range(chains)
                for v in range(vectors)
            ]

            def add(p, operation, sums_of):
                column = builder.and_(builder.sext(builder.load(builder.gep(columns, [p])), NUMBER), NUMBER(PIECE - 1))
                row = builder.gep(room, [builder.mul(column, NUMBER(vectors * WIDTH))])
                row = builder.bitcast(row, FLOATS.as_pointer())
                for v, total in enumerate(sums_of):
                    vector = builder.load(builder.gep(row, [ir.IntType(32)(v)]), align=4)
                    builder.store(operation(builder.load(total), vector), total)

            for start, end, operation in ((first, middle, builder.fadd), (middle, stop, builder.fsub)):
                whole = builder.add(start, builder.and_(builder.sub(end, start), NUMBER(-chains)))
                with cgutils.for_range_slice(builder, start, whole, NUMBER(chains)) as (p, _):
                    for c in range(chains):
                        add(builder.add(p, NUMBER(c)), operation, totals[c * vectors : (c + 1) * vectors])
                if chains > 1:
                    with cgutils.for_range_slice(builder, whole, end, NUMBER(1)) as (p, _):
                        add(p, operation, totals[:vectors])
            for v in range(vectors):
                value = builder.load(totals[v])
                for c in range(1, chains):
                    value = builder.fadd(value, builder.load(totals[c * vectors + v]))
                builder.store(value, builder.gep(vectors_at, [ir.IntType(32)(v)]), align=4)

        with builder.if_else(builder.icmp_signed("==", width, NUMBER(MANY))) as (many, few):
            with many:
                added(MANY // WIDTH, 2)
            with few:
                added(1, 4)
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(room, columns, *[integer] * 3, sums, integer), generate


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], f4, f4[:, ::1], i8, i8, i8, f4[:, ::1], f4[:, ::1])")
def _project(v, columns, starts, scale, f, n_first, n_stop, j_first, room, sums):
    """Compute f (as in `project_cpu`) for samples n_first to n_stop and the outputs j_first + j, a row j of `sums` each; T
    samples at a time. room (PIECE, T) and sums (…, T) are buffers.
    """
    outputs, together = f.shape[1], room.shape[1]
    for n0 in range(n_first, n_stop, together):
        n1 = min(n0 + together, n_stop)
        sums[:] = 0
        for i0 in range(0, v.shape[1], PIECE):
            transpose_block(v, n0, n1, i0, min(i0 + PIECE, v.shape[1]), room, 0, 0, True)
            number = 2 * (i0 // PIECE * outputs + j_first)
            for j in range(sums.shape[0]):
                first, middle, stop = starts[number], starts[number + 1], starts[number + 2]
                if 0 <= first <= middle <= stop <= columns.size:
                    _add_rows(room, columns, first, middle, stop, sums, j * together)
                number += 2
        for j in range(sums.shape[0]):
            for n in range(together):
                sums[j, n] *= scale
        transpose_block(sums, 0, sums.shape[0], 0, n1 - n0, f, n0, j_first, False)


def project_cpu(v, lists, outputs):
    """f[n, j] = sqrt(3 / k) sum_i R[j, i] v[n, i]; lists as in `layouts.ternary`, k outputs"""
    scale = _check("project (cpu)", v, lists, outputs)
    f, together = empty_cpu((v.shape[0], outputs)), MANY if v.shape[0] > WIDTH else WIDTH

    def work(part):
        few = v.shape[0] < together * part.count
        samples, span = (slice(0, v.shape[0]), part.of(outputs)) if few else (part.of(v.shape[0]), slice(0, outputs))
        room, sums = aligned(PIECE, together), aligned(span.stop - span.start, together)
        _project(v, *lists, scale, f, samples.start, samples.stop, span.start, room, sums)

    threads.share(work, flops=2 * v.size * outputs)
    return f


# --- CUDA -------------------------------------------------------------------------------------------------------------
LANES, WARPS, SUMS = 32, 8, 4  # samples of a warp, warps of a block, and sums of a thread
SQUARE = PIECE * (LANES + 1)  # rows of LANES + 1 floats avoid bank conflicts


@kernels("projection")
def _projecting():
    @kernel("void(f4[::1], i4[::1], i4[::1], f4[::1], f4, i4, i4, i4)")
    def project(v, columns, starts, f, scale, samples, width, outputs):
        """Each block computes 32 outputs for 32 samples, and each thread four outputs for one sample. All lanes of a warp read
        the same list, and adjacent samples of a row of the piece.
        """
        piece = cuda.shared.array(SQUARE, float32)
        lane, warp = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n0, j0 = int32(cuda.blockIdx.x * LANES), int32(cuda.blockIdx.y * WARPS * SUMS) + warp
        s0 = s1 = s2 = s3 = float32(0)
        for i0 in range(0, width, PIECE):
            # load: adjacent lanes read adjacent columns of a sample
            for n in range(warp, LANES, WARPS):
                for i in range(lane, PIECE, LANES):
                    inside = n0 + n < samples and i0 + i < width
                    piece[i * (LANES + 1) + n] = v[(n0 + n) * width + i0 + i] if inside else float32(0)
            cuda.syncthreads()
            # add
            for s in range(SUMS):
                j = j0 + s * WARPS
                if j < outputs:
                    number, total = 2 * (i0 // PIECE * outputs + j), float32(0)
                    first, middle = max(starts[number], int32(0)), min(starts[number + 1], int32(columns.size))
                    for p in range(first, middle):
                        total += piece[(columns[p] & int32(PIECE - 1)) * (LANES + 1) + lane]
                    for p in range(max(middle, first), min(starts[number + 2], int32(columns.size))):
                        total -= piece[(columns[p] & int32(PIECE - 1)) * (LANES + 1) + lane]
                    s0, s1 = s0 + (total if s == 0 else float32(0)), s1 + (total if s == 1 else float32(0))
                    s2, s3 = s2 + (total if s == 2 else float32(0)), s3 + (total if s == 3 else float32(0))
            cuda.syncthreads()
        # store
        for s in range(SUMS):
            j = j0 + s * WARPS
            if n0 + lane < samples and j < outputs:
                f[(n0 + lane) * outputs + j] = scale * ((s3 if s & 1 else s2) if s & 2 else (s1 if s & 1 else s0))

    return project


def project_cuda(v, lists, outputs):
    scale = _check("project (cuda)", v, lists, outputs)
    f = empty_cuda((v.shape[0], outputs))
    launch(
        _projecting(),
        (ceil_div(v.shape[0], LANES), ceil_div(outputs, WARPS * SUMS)),
        (LANES, WARPS),
        flat(v),
        *lists,
        flat(f),
        scale,
        *v.shape,
        outputs,
    )
    return f


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {"project": lambda: dev.project(a(N, I), ternary(O // 2, I, 0), O // 2)}
