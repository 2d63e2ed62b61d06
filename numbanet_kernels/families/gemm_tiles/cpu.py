"""`gemm_tiles` on the CPU."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ...host import blas, threads
from ...host.transpose import transpose_back, transpose_in
from ...layouts.packed import Into
from ...layouts.tiles import elements, packed_tiles, row_places
from ...runtime.declare import host_kernel
from ...runtime.expect import expect, pair
from ...runtime.memory import empty_cpu, full_cpu, output
from ..elementwise import relu_grad_cpu
from .family import valid


# Rows of w, and activations transposed features first, are brought into the order of the classes: then a class is one dense
# block, and the product a BLAS call a class and thread, on the thread's own rows of the weight (`threads`).
class _Layout(NamedTuple):
    """Where rows and columns of a weight go in the order of the classes."""

    classes: tuple  # a class: (the first place of its rows, the first place of its columns, how many these are)
    row_place: np.ndarray  # (O,)
    row_class: np.ndarray  # (R,)
    class_cols: np.ndarray  # (classes, most tiles) the tile columns that a class keeps, then -1
    col_place: np.ndarray  # (I,) -1 where no row keeps the column


@functools.lru_cache(maxsize=1024)
def _layout(pattern):
    packed, tile, width = packed_tiles(pattern), pattern.tile, pattern.shape[1]
    classes, placed, col_place = [], 0, np.full(width, -1)
    for first, tile_cols in zip(packed.rows[:, :1].ravel(), packed.cols, strict=True):
        cols = elements(tile_cols, tile, width)
        col_place[cols] = np.arange(cols.size) + placed
        classes.append((int(packed.row_place[first]) * tile, placed, cols.size))
        placed += cols.size
    return _Layout(tuple(classes), row_places(pattern), packed.row_class, packed.cols, col_place)


@functools.lru_cache(maxsize=4096)
def _products(pattern, part):
    """[(places of the part's rows, places of the columns, how many columns), …], one a class"""
    layout, own, found = _layout(pattern), part.of(pattern.shape[0]), []
    row_class = layout.row_class[np.arange(pattern.shape[0]) // pattern.tile]
    for z, (place, col_place, width) in enumerate(layout.classes):
        first, stop = np.searchsorted(np.flatnonzero(row_class == z), (own.start, own.stop))
        found.append((slice(place + first, place + stop), slice(col_place, col_place + width), width))
    return found


# Pieces of rows are taken as arrays of their own, because their indices are then known not to be negative, and the loops
# become vector instructions.
@host_kernel("void(f4[:, ::1], i8[::1], i8[::1], i8[:, ::1], i8, i8, i8, f4[:, ::1])")
def _pack(w, place, row_class, class_cols, tile, first, stop, packed):
    """packed[place[o], :] = w[o] in the tile columns class_cols[row_class[o // tile]], for first <= o < stop."""
    for o in range(first, stop):
        z = row_class[o // tile]
        for k in range(class_cols.shape[1]):
            i0 = class_cols[z, k] * tile
            if i0 < 0:
                break
            kept = w[o, i0 : i0 + tile]
            out = packed[place[o], k * tile : (k + 1) * tile]
            for i in range(kept.size):
                out[i] = kept[i]


def tile_blocks_cpu(w, pattern, lists=None):
    """The kept tiles, packed as dw is: prepared once for the forward pass and dx."""
    shape, packed_shape = valid("tile_blocks (cpu)", pattern)
    expect("tile_blocks (cpu)", w=(w, shape))
    layout, packed = _layout(pattern), empty_cpu(packed_shape)

    def gather(part):
        own = part.of(w.shape[0])
        _pack(w, layout.row_place, layout.row_class, layout.class_cols, pattern.tile, own.start, own.stop, packed)

    threads.share(gather, packed.size)
    return packed


def tile_room_cpu(pattern):
    """`Into`: an unset array for what `tile_blocks` gives, and in which of its rows each row of the weight goes."""
    return Into(empty_cpu(valid("tile_room (cpu)", pattern)[1]), _layout(pattern).row_place)


def tile_inputs_cpu(x, pattern):
    """x (N, I) in the form that the kept tiles of a weight meet it: prepared once for the forward pass and dw."""
    (_, cols), _ = valid("tile_inputs (cpu)", pattern)
    expect("tile_inputs (cpu)", x=(x, ("N", cols)))
    return transpose_in(x, cols, _layout(pattern).col_place)


def tile_outputs_cpu(dy, pattern, scale=1.0, y=None):
    """(dy, outputs) for dx and dw: outputs are (scale * dz as the kept tiles meet it, sum_n dz[n, o]), dz (N, O) is dy, with a
    y given only where y > 0, else 0. dy may be a function of `where` and `scale`: a product that is still to be done."""
    (rows, _), (places, _) = valid("tile_outputs (cpu)", pattern)
    dy = dy() if callable(dy) else dy
    expect("tile_outputs (cpu)", dy=(dy, ("N", rows)), y=(y, ("N", rows)))
    sums = full_cpu((rows,), 0.0)
    return dy, (transpose_in(dy, places, _layout(pattern).row_place, scale, y, sums), sums)


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
    transposed, place = empty_cpu((1, packed[0], x.shape[0])), _layout(pattern).row_place

    def multiply(part):
        for own, kept, width in _products(pattern, part):
            blas.matmul(blocks[own, :width], inputs[kept], out=transposed[0, own])
        transpose_back(transposed, out, part.of(rows), b, relu, alpha=scale, place=place)

    threads.share(multiply, flops=2 * x.shape[0] * blocks.size)
    return out


def gemm_tiles_dx_cpu(dy, w, pattern, scale=1.0, blocks=None, outputs=None, where=None, out=None):
    """dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i], given `where` 0 unless where[n, i] > 0"""
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
    flops, place = 2 * dy.shape[0] * blocks.size, _layout(pattern).col_place
    with threads.held(flops):
        terms = empty_cpu((threads.parts(flops=flops), cols, dy.shape[0]))

        def multiply(part):
            for own, kept, width in _products(pattern, part):
                blas.matmul(blocks[own, :width].T, transposed[own], out=terms[part.number, kept])

        threads.share(multiply, flops=flops)
        threads.share(lambda part: transpose_back(terms, out, part.of(cols), place=place), flops=flops)
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
        for own, kept, width in _products(pattern, part):
            blas.matmul(transposed[own], inputs[kept].T, out=out[own, :width])

    threads.share(multiply, flops=2 * dy.shape[0] * out.size)
    return out, db
