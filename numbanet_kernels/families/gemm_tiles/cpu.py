"""`gemm_tiles` on the CPU."""

from __future__ import annotations

import functools

from ...host import blas, threads
from ...host.search import before
from ...host.transpose import transpose_back, transpose_in
from ...layouts.packed import Into
from ...layouts.tiles import row_positions, tile_lists
from ...runtime.declare import host_kernel
from ...runtime.expect import expect, pair
from ...runtime.memory import empty_cpu, full_cpu, output
from ..elementwise import relu_grad_cpu
from .family import checked, valid

_cached_lists = functools.lru_cache(maxsize=1024)(tile_lists)


def _lists(op, lists, pattern):
    """Return the argument `lists`, after a check; if it is None, return the lists of the pattern, which are cached."""
    return _cached_lists(pattern) if lists is None else checked(op, lists, pattern)


# Rows of w and of the transposed activations are sorted by class. Each class is then a dense block: one BLAS call per class and
# thread, on the thread's rows of the weight (`threads`).
# The loop runs over slices, because indices of a slice are known not to be negative, so that LLVM vectorises.
@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], i8, i8, i8, f4[:, ::1])")
def _pack(w, row_positions, row_class, tile_cols, tile, first, stop, packed):
    """packed[row_positions[o], :] = w[o] in the tile columns tile_cols[row_class[o // tile]], for first <= o < stop."""
    for o in range(first, stop):
        z = row_class[o // tile]
        for k in range(tile_cols.shape[1]):
            i0 = tile_cols[z, k] * tile
            if i0 < 0:
                break
            tile_row = w[o, i0 : i0 + tile]
            out = packed[row_positions[o], k * tile : (k + 1) * tile]
            for i in range(tile_row.size):
                out[i] = tile_row[i]


FORWARD, DX, DW = range(3)


@host_kernel("void(i8, i8, f4[:, ::1], f4[:, ::1], i4[:, ::1], i4[::1], i4[::1], i4[::1], i8, i8, f4[:, ::1])")
def _multiply(entry, kind, a, b, rows, row_counts, col_counts, starts, first, stop, out):
    """Compute the products of all classes; of each class, only the rows that are among the rows first … stop - 1 of the weight.

    `kind` is the product, which determines the operands a and b. FORWARD: a are the blocks, b the inputs. DX: a are the blocks,
    b the outputs. DW: a are the outputs, b the inputs.
    """
    left = 0
    for z in range(starts.size):
        own, right = rows[z, : row_counts[z]], left + col_counts[z]
        top, end = starts[z] + before(own, first), starts[z] + before(own, stop)
        p = a[top:end, : a.shape[1] if kind == DW else right - left]
        q = b[top:end] if kind == DX else b[left:right]
        y = out[left:right, : out.shape[1]] if kind == DX else out[top:end, : right - left if kind == DW else out.shape[1]]
        blas.multiply(entry, p, q, y, kind == DX, kind == DW)  # one call, which compiles once
        left = right


def _products(kind, a, b, lists, part, out):
    span = part.of(lists.row_positions.size)
    given = lists.rows, lists.row_counts, lists.col_counts, lists.starts
    _multiply(blas.entry(), kind, a, b, *given, span.start, span.stop, out)


def tile_blocks_cpu(w, pattern, lists=None):
    """blocks = the kept tiles of w, packed like dw, for the forward pass and dx"""
    shape, packed_shape = valid("tile_blocks (cpu)", pattern)
    expect("tile_blocks (cpu)", w=(w, shape))
    lists, packed = _lists("tile_blocks (cpu)", lists, pattern), empty_cpu(packed_shape)

    def gather(part):
        span = part.of(w.shape[0])
        _pack(w, lists.row_positions, lists.row_class, lists.tile_cols, pattern.tile, span.start, span.stop, packed)

    threads.share(gather, packed.size)
    return packed


def tile_room_cpu(pattern):
    """Return an `Into`: an uninitialised array for `tile_blocks`, and, for each row of the weight, its row in this array."""
    return Into(empty_cpu(valid("tile_room (cpu)", pattern)[1]), _room_rows(pattern))


_room_rows = functools.lru_cache(maxsize=1024)(row_positions)


def tile_inputs_cpu(x, pattern, lists=None):
    """inputs = x (N, I), transposed, with its columns sorted by class, for the forward pass and dw"""
    (_, cols), _ = valid("tile_inputs (cpu)", pattern)
    expect("tile_inputs (cpu)", x=(x, ("N", cols)))
    return transpose_in(x, cols, _lists("tile_inputs (cpu)", lists, pattern).col_positions)


def tile_outputs_cpu(dy, pattern, scale=1.0, y=None, lists=None):
    """Return (dy, outputs), where outputs is (scale * dz, transposed and sorted by class; sum_n dz[n, o]). dx and dw use the
    same outputs.

    dz (N, O) is dy if y is None, else dy * (y > 0). dy may also be a product that is not computed
    yet, as a function of `where` and `scale`.
    """
    (rows, _), (outputs, _) = valid("tile_outputs (cpu)", pattern)
    dy = dy() if callable(dy) else dy
    expect("tile_outputs (cpu)", dy=(dy, ("N", rows)), y=(y, ("N", rows)))
    sums, positions = full_cpu((rows,), 0.0), _lists("tile_outputs (cpu)", lists, pattern).row_positions
    return dy, (transpose_in(dy, outputs, positions, scale, y, sums), sums)


def gemm_tiles_cpu(x, w, pattern, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None, lists=None):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o]), where M is the pattern's mask."""
    (rows, cols), packed = valid("gemm_tiles (cpu)", pattern)
    out = output(
        "gemm_tiles (cpu)",
        empty_cpu,
        out,
        ("N", rows),
        x=(x, ("N", cols)),
        w=(w, (rows, cols)),
        b=(b, (rows,)),
        blocks=(blocks, packed),
        inputs=(inputs, (cols, "N")),
    )
    lists = _lists("gemm_tiles (cpu)", lists, pattern)
    blocks = tile_blocks_cpu(w, pattern, lists) if blocks is None else blocks
    inputs = tile_inputs_cpu(x, pattern, lists) if inputs is None else inputs
    transposed = empty_cpu((1, packed[0], x.shape[0]))

    def multiply(part):
        _products(FORWARD, blocks, inputs, lists, part, transposed[0])
        transpose_back(transposed, out, part.of(rows), b, relu, alpha=scale, positions=lists.row_positions)

    threads.share(multiply, flops=2 * x.shape[0] * blocks.size)
    return out


def gemm_tiles_dx_cpu(dy, w, pattern, scale=1.0, blocks=None, outputs=None, where=None, out=None, lists=None):
    """dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i] with the pattern's mask M; if `where` is given, 0 unless it is > 0"""
    (rows, cols), packed = valid("gemm_tiles_dx (cpu)", pattern)
    transposed, _ = pair("gemm_tiles_dx (cpu)", "outputs", outputs)
    out = output(
        "gemm_tiles_dx (cpu)",
        empty_cpu,
        out,
        ("N", cols),
        dy=(dy, ("N", rows)),
        w=(w, (rows, cols)),
        where=(where, ("N", cols)),
        blocks=(blocks, packed),
        outputs=(transposed, (packed[0], "N")),
    )
    lists = _lists("gemm_tiles_dx (cpu)", lists, pattern)
    blocks = tile_blocks_cpu(w, pattern, lists) if blocks is None else blocks
    transposed = tile_outputs_cpu(dy, pattern, scale, lists=lists)[1][0] if transposed is None else transposed
    flops, positions = 2 * dy.shape[0] * blocks.size, lists.col_positions
    with threads.held(flops):
        terms = empty_cpu((threads.parts(flops=flops), cols, dy.shape[0]))

        def multiply(part):
            _products(DX, blocks, transposed, lists, part, terms[part.number])

        threads.share(multiply, flops=flops)
        threads.share(lambda part: transpose_back(terms, out, part.of(cols), positions=positions), flops=flops)
    return out if where is None else relu_grad_cpu(out, where, out=out)


def gemm_tiles_dw_cpu(dy, x, pattern, scale=1.0, blocks=None, inputs=None, outputs=None, out=None, lists=None):
    """Return (dw, db), where dw = scale * (dy.T x) on kept tiles, packed, and db[o] = sum_n dy[n, o]."""
    (rows, cols), packed = valid("gemm_tiles_dw (cpu)", pattern)
    transposed, db = pair("gemm_tiles_dw (cpu)", "outputs", outputs)
    out = output(
        "gemm_tiles_dw (cpu)",
        empty_cpu,
        out,
        packed,
        dy=(dy, ("N", rows)),
        x=(x, ("N", cols)),
        inputs=(inputs, (cols, "N")),
        outputs=(transposed, (packed[0], "N")),
        sums=(db, (rows,)),
    )
    lists = _lists("gemm_tiles_dw (cpu)", lists, pattern)
    inputs = tile_inputs_cpu(x, pattern, lists) if inputs is None else inputs
    transposed, db = tile_outputs_cpu(dy, pattern, scale, lists=lists)[1] if transposed is None else (transposed, db)

    def multiply(part):
        _products(DW, transposed, inputs, lists, part, out)

    threads.share(multiply, flops=2 * dy.shape[0] * out.size)
    return out, db
