"""`gemm_tiles` on the CPU."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ...host import blas, threads
from ...host.transpose import transpose_back, transpose_in
from ...layouts.packed import Into
from ...layouts.tiles import elements, packed_tiles, row_positions
from ...runtime.declare import host_kernel
from ...runtime.expect import expect, pair
from ...runtime.memory import empty_cpu, full_cpu, output
from ..elementwise import relu_grad_cpu
from .family import valid


# Rows of w and of the transposed activations are sorted by class. Each class is then a dense block: one BLAS call per class and
# thread, on the thread's rows of the weight (`threads`).
class _Layout(NamedTuple):
    """Positions of the rows and columns of a weight when sorted by class."""

    classes: tuple  # for each class (its first row, its first column, number of columns), all in sorted order
    row_position: np.ndarray  # (O,)
    row_class: np.ndarray  # (R,)
    class_cols: np.ndarray  # (classes, most tiles) kept tile columns of a class, then -1
    col_position: np.ndarray  # (I,) -1 if no row keeps the column


@functools.lru_cache(maxsize=1024)
def _layout(pattern):
    packed, tile, width = packed_tiles(pattern), pattern.tile, pattern.shape[1]
    classes, offset, col_position = [], 0, np.full(width, -1)
    for first, tile_cols in zip(packed.rows[:, :1].ravel(), packed.cols, strict=True):
        cols = elements(tile_cols, tile, width)
        col_position[cols] = np.arange(cols.size) + offset
        classes.append((int(packed.row_position[first]) * tile, offset, cols.size))
        offset += cols.size
    return _Layout(tuple(classes), row_positions(pattern), packed.row_class, packed.cols, col_position)


@functools.lru_cache(maxsize=4096)
def _products(pattern, part):
    """[(slice of the part's rows, slice of the columns, number of columns), …] in sorted order, one for each class"""
    layout, span, products = _layout(pattern), part.of(pattern.shape[0]), []
    row_class = layout.row_class[np.arange(pattern.shape[0]) // pattern.tile]
    for z, (row_offset, col_offset, width) in enumerate(layout.classes):
        first, stop = np.searchsorted(np.flatnonzero(row_class == z), (span.start, span.stop))
        products.append((slice(row_offset + first, row_offset + stop), slice(col_offset, col_offset + width), width))
    return products


# The loop runs over slices, because indices of a slice are known not to be negative, so that LLVM vectorises.
@host_kernel("void(f4[:, ::1], i8[::1], i8[::1], i8[:, ::1], i8, i8, i8, f4[:, ::1])")
def _pack(w, row_position, row_class, class_cols, tile, first, stop, packed):
    """packed[row_position[o], :] = w[o] in the tile columns class_cols[row_class[o // tile]], for first <= o < stop."""
    for o in range(first, stop):
        z = row_class[o // tile]
        for k in range(class_cols.shape[1]):
            i0 = class_cols[z, k] * tile
            if i0 < 0:
                break
            tile_row = w[o, i0 : i0 + tile]
            out = packed[row_position[o], k * tile : (k + 1) * tile]
            for i in range(tile_row.size):
                out[i] = tile_row[i]


def tile_blocks_cpu(w, pattern, lists=None):
    """The kept tiles, packed like dw; computed once for the forward pass and dx."""
    shape, packed_shape = valid("tile_blocks (cpu)", pattern)
    expect("tile_blocks (cpu)", w=(w, shape))
    layout, packed = _layout(pattern), empty_cpu(packed_shape)

    def gather(part):
        span = part.of(w.shape[0])
        _pack(w, layout.row_position, layout.row_class, layout.class_cols, pattern.tile, span.start, span.stop, packed)

    threads.share(gather, packed.size)
    return packed


def tile_room_cpu(pattern):
    """`Into`: an empty array for the result of `tile_blocks`, and the row of it that holds each row of the weight."""
    return Into(empty_cpu(valid("tile_room (cpu)", pattern)[1]), _layout(pattern).row_position)


def tile_inputs_cpu(x, pattern):
    """x (N, I) transposed, its columns sorted by class; computed once for the forward pass and dw."""
    (_, cols), _ = valid("tile_inputs (cpu)", pattern)
    expect("tile_inputs (cpu)", x=(x, ("N", cols)))
    return transpose_in(x, cols, _layout(pattern).col_position)


def tile_outputs_cpu(dy, pattern, scale=1.0, y=None):
    """(dy, outputs) for dx and dw: outputs are (scale * dz transposed and sorted by class, sum_n dz[n, o]); dz (N, O) is dy, or
    dy * (y > 0) with y. dy may be a function of `where` and `scale` that computes the pending product.
    """
    (rows, _), (outputs, _) = valid("tile_outputs (cpu)", pattern)
    dy = dy() if callable(dy) else dy
    expect("tile_outputs (cpu)", dy=(dy, ("N", rows)), y=(y, ("N", rows)))
    sums = full_cpu((rows,), 0.0)
    return dy, (transpose_in(dy, outputs, _layout(pattern).row_position, scale, y, sums), sums)


def gemm_tiles_cpu(x, w, pattern, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o])"""
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
    blocks = tile_blocks_cpu(w, pattern) if blocks is None else blocks
    inputs = tile_inputs_cpu(x, pattern) if inputs is None else inputs
    transposed, positions = empty_cpu((1, packed[0], x.shape[0])), _layout(pattern).row_position

    def multiply(part):
        for rows_of_class, cols_of_class, width in _products(pattern, part):
            blas.matmul(blocks[rows_of_class, :width], inputs[cols_of_class], out=transposed[0, rows_of_class])
        transpose_back(transposed, out, part.of(rows), b, relu, alpha=scale, positions=positions)

    threads.share(multiply, flops=2 * x.shape[0] * blocks.size)
    return out


def gemm_tiles_dx_cpu(dy, w, pattern, scale=1.0, blocks=None, outputs=None, where=None, out=None):
    """dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i]; with `where`, 0 unless where[n, i] > 0"""
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
    blocks = tile_blocks_cpu(w, pattern) if blocks is None else blocks
    transposed = tile_outputs_cpu(dy, pattern, scale)[1][0] if transposed is None else transposed
    flops, positions = 2 * dy.shape[0] * blocks.size, _layout(pattern).col_position
    with threads.held(flops):
        terms = empty_cpu((threads.parts(flops=flops), cols, dy.shape[0]))

        def multiply(part):
            for rows_of_class, cols_of_class, width in _products(pattern, part):
                blas.matmul(blocks[rows_of_class, :width].T, transposed[rows_of_class], out=terms[part.number, cols_of_class])

        threads.share(multiply, flops=flops)
        threads.share(lambda part: transpose_back(terms, out, part.of(cols), positions=positions), flops=flops)
    return out if where is None else relu_grad_cpu(out, where, out=out)


def gemm_tiles_dw_cpu(dy, x, pattern, scale=1.0, blocks=None, inputs=None, outputs=None, out=None):
    """(dw, db): dw = scale * (dy.T x) on kept tiles, packed, db[o] = sum_n dy[n, o]"""
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
    inputs = tile_inputs_cpu(x, pattern) if inputs is None else inputs
    transposed, db = tile_outputs_cpu(dy, pattern, scale)[1] if transposed is None else (transposed, db)

    def multiply(part):
        for rows_of_class, cols_of_class, width in _products(pattern, part):
            blas.matmul(transposed[rows_of_class], inputs[cols_of_class].T, out=out[rows_of_class, :width])

    threads.share(multiply, flops=2 * dy.shape[0] * out.size)
    return out, db
