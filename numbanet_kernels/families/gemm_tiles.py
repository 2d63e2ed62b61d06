"""Matrix product with kept tiles of a weight: w (O, I) in tiles of T x T, the tile at (r, c) kept where
(a[r] + b[c]) mod dp = bias (`tiles` says more); M is the mask of kept elements:

    forward   y[n, o]  = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o])          x (N, I) -> y (N, O)
    dx        dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i]                     dy (N, O) -> dx (N, I)
              with an array `where` (N, I), 0 unless where[n, i] > 0
    dw        dw       = scale * (dy.T x) on kept tiles only, packed (below)      dy (N, O), x (N, I)
    db        db[o]    = sum_n dy[n, o], beside dw

Tile rows with the same a[r] mod dp keep the same tile columns: they are a class, no two classes share a column, and up to a
permutation the kept matrix is block-diagonal: dp dense products. 2 N O I / dp FLOPs.

Packed dw (R T, ceil(C / dp) T): tile rows sorted by class (class 0 first), then by r; in each row its kept columns, in order.
Elements of tiles that stick out over the edges of w are unset. What several of the products need is prepared once, if asked:
`blocks` by `tile_blocks`, on the CPU what is kept of w, which dw does not need, on CUDA the lists of it; `inputs` of x by
`tile_inputs`; `outputs` of dy by `tile_outputs`.
Versions: masked (a teaching step: every tile is visited, dropped ones skipped by a test that is uniform over the block), listed
(a block walks the list of the tiles that its class keeps, dropped work is never launched; both in `listed`) and grouped
(the one used where a card has it: each class is a dense product, all in one launch; `grouped`).
"""
from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..blocks import listed
from ..blocks.grouped import available, groups, launch_grouped
from ..host import blas, threads
from ..host.transposition import turn_back, turn_in
from ..layouts.packed import Into
from ..layouts.tiles import Pattern, TileLists, arrangement, elements, list_shapes, packed_tiles, row_places, tile_lists
from ..runtime.arrays import device_cache
from ..runtime.declare import host_kernel
from ..runtime.expect import INT32, expect, pair
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import empty_cpu, empty_cuda, flat, full_cpu, full_cuda, output, upload_cuda
from .elementwise import relu_grad_cpu, relu_grad_cuda
from .reduce import sum_rows_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def tile_mask_reference(pattern):
    """M[o, i] = [(a[o // T] + b[i // T]) mod dp = bias]"""
    a, b = arrangement(pattern.grid, pattern.mix)
    o, i = np.indices(pattern.shape) // pattern.tile
    return (a[o] + b[i]) % pattern.dp == pattern.bias


def gemm_tiles_reference(x, w, pattern, b=None, relu=False, scale=1.0):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o]) in float64."""
    y = scale * (np.float64(x) @ (np.float64(w) * tile_mask_reference(pattern)).T)
    y = y if b is None else y + np.float64(b)
    return np.maximum(y, 0) if relu else y


def gemm_tiles_dx_reference(dy, w, pattern, scale=1.0, where=None):
    """dx = scale * dy (w * M) in float64, 0 unless where > 0."""
    dx = scale * (np.float64(dy) @ (np.float64(w) * tile_mask_reference(pattern)))
    return dx if where is None else np.where(np.asarray(where) > 0, dx, 0)


def gemm_tiles_dw_reference(dy, x, pattern, scale=1.0):
    """dw = scale * (dy.T x) * M in float64, dense (the kernels return it packed)."""
    return scale * (np.float64(dy).T @ np.float64(x)) * tile_mask_reference(pattern)


def _valid(op, pattern):
    """(shape, packed shape) of a pattern that makes sense."""
    if not isinstance(pattern, Pattern):
        raise TypeError(f"{op}: {pattern!r} is no Pattern")
    _, tile, dp, bias, mix = pattern
    if not (tile >= 1 and 0 <= bias < dp and min(mix, *pattern.shape) >= 0):
        raise ValueError(f"{op}: of {pattern} the tile must be at least 1, bias in 0 … dp - 1 = {dp - 1}, all else at least 0")
    return pattern.shape, pattern.packed_shape


# --- CPU --------------------------------------------------------------------------------------------------------------
# Rows of w, and activations turned features first, are brought into the order of the classes: then a class is one dense
# block, and the product a BLAS call a class and thread, on the thread's own rows of the weight (`threads`).
class _Layout(NamedTuple):
    """Where rows and columns of a weight go in the order of the classes."""

    classes: tuple          # a class: (the first place of its rows, the first place of its columns, how many these are)
    row_place: np.ndarray   # (O,)
    row_class: np.ndarray   # (R,)
    class_cols: np.ndarray  # (classes, most tiles) the tile columns that a class keeps, then -1
    col_place: np.ndarray   # (I,) -1 where no row keeps the column


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
            kept = w[o, i0:i0 + tile]
            out = packed[place[o], k * tile:(k + 1) * tile]
            for i in range(kept.size):
                out[i] = kept[i]


def tile_blocks_cpu(w, pattern, lists=None):
    """The kept tiles, packed as dw is: prepared once for the forward pass and dx."""
    shape, packed_shape = _valid("tile_blocks (cpu)", pattern)
    expect("tile_blocks (cpu)", w=(w, shape))
    layout, packed = _layout(pattern), empty_cpu(packed_shape)

    def gather(part):
        own = part.of(w.shape[0])
        _pack(w, layout.row_place, layout.row_class, layout.class_cols, pattern.tile, own.start, own.stop, packed)

    threads.share(gather, packed.size)
    return packed


def tile_room_cpu(pattern):
    """`Into`: an unset array for what `tile_blocks` gives, and in which of its rows each row of the weight goes."""
    return Into(empty_cpu(_valid("tile_room (cpu)", pattern)[1]), _layout(pattern).row_place)


def tile_inputs_cpu(x, pattern):
    """x (N, I) in the form that the kept tiles of a weight meet it: prepared once for the forward pass and dw."""
    (_, cols), _ = _valid("tile_inputs (cpu)", pattern)
    expect("tile_inputs (cpu)", x=(x, ("N", cols)))
    return turn_in(x, cols, _layout(pattern).col_place)


def tile_outputs_cpu(dy, pattern, scale=1.0, y=None):
    """(dy, outputs) for dx and dw: outputs are (scale * dz as the kept tiles meet it, sum_n dz[n, o]), dz (N, O) is dy, with a
    y given only where y > 0, else 0. dy may be a function of `where` and `scale`: a product that is still to be done."""
    (rows, _), (places, _) = _valid("tile_outputs (cpu)", pattern)
    dy = dy() if callable(dy) else dy
    expect("tile_outputs (cpu)", dy=(dy, ("N", rows)), y=(y, ("N", rows)))
    sums = full_cpu((rows,), 0.0)
    return dy, (turn_in(dy, places, _layout(pattern).row_place, scale, y, sums), sums)


def gemm_tiles_cpu(x, w, pattern, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o])"""
    (rows, cols), packed = _valid("gemm_tiles (cpu)", pattern)
    out = output("gemm_tiles (cpu)", empty_cpu, out, ("N", rows), x=(x, ("N", cols)), w=(w, (rows, cols)), b=(b, (rows,)),
                 blocks=(blocks, packed), inputs=(inputs, (cols, "N")))
    blocks = tile_blocks_cpu(w, pattern) if blocks is None else blocks
    inputs = tile_inputs_cpu(x, pattern) if inputs is None else inputs
    turned, place = empty_cpu((1, packed[0], x.shape[0])), _layout(pattern).row_place

    def multiply(part):
        for own, kept, width in _products(pattern, part):
            blas.matmul(blocks[own, :width], inputs[kept], out=turned[0, own])
        turn_back(turned, out, part.of(rows), b, relu, alpha=scale, place=place)

    threads.share(multiply, flops=2 * x.shape[0] * blocks.size)
    return out


def gemm_tiles_dx_cpu(dy, w, pattern, scale=1.0, blocks=None, outputs=None, where=None, out=None):
    """dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i], given `where` 0 unless where[n, i] > 0"""
    (rows, cols), packed = _valid("gemm_tiles_dx (cpu)", pattern)
    turned, _ = pair("gemm_tiles_dx (cpu)", "outputs", outputs)
    out = output("gemm_tiles_dx (cpu)", empty_cpu, out, ("N", cols), dy=(dy, ("N", rows)), w=(w, (rows, cols)),
                 where=(where, ("N", cols)), blocks=(blocks, packed), outputs=(turned, (packed[0], "N")))
    blocks = tile_blocks_cpu(w, pattern) if blocks is None else blocks
    turned = tile_outputs_cpu(dy, pattern, scale)[1][0] if turned is None else turned
    flops, place = 2 * dy.shape[0] * blocks.size, _layout(pattern).col_place
    with threads.held(flops):
        terms = empty_cpu((threads.parts(flops=flops), cols, dy.shape[0]))

        def multiply(part):
            for own, kept, width in _products(pattern, part):
                blas.matmul(blocks[own, :width].T, turned[own], out=terms[part.number, kept])

        threads.share(multiply, flops=flops)
        threads.share(lambda part: turn_back(terms, out, part.of(cols), place=place), flops=flops)
    return out if where is None else relu_grad_cpu(out, where, out=out)


def gemm_tiles_dw_cpu(dy, x, pattern, scale=1.0, blocks=None, inputs=None, outputs=None, out=None):
    """(dw, db): dw = scale * (dy.T x) on kept tiles, packed, db[o] = sum_n dy[n, o]"""
    (rows, cols), packed = _valid("gemm_tiles_dw (cpu)", pattern)
    turned, db = pair("gemm_tiles_dw (cpu)", "outputs", outputs)
    out = output("gemm_tiles_dw (cpu)", empty_cpu, out, packed, dy=(dy, ("N", rows)), x=(x, ("N", cols)),
                 inputs=(inputs, (cols, "N")), outputs=(turned, (packed[0], "N")), sums=(db, (rows,)))
    inputs = tile_inputs_cpu(x, pattern) if inputs is None else inputs
    turned, db = tile_outputs_cpu(dy, pattern, scale)[1] if turned is None else (turned, db)

    def multiply(part):
        for own, kept, width in _products(pattern, part):
            blas.matmul(turned[own], inputs[kept].T, out=out[own, :width])

    threads.share(multiply, flops=2 * dy.shape[0] * out.size)
    return out, db


# --- CUDA -------------------------------------------------------------------------------------------------------------
@device_cache(maxsize=1024)
def _own_lists(pattern):
    return TileLists(*map(upload_cuda, tile_lists(pattern)))


def _lists(op, lists, pattern):
    """These lists, if they are of such a pattern; its own if there are none."""
    if lists is None:
        return _own_lists(pattern)
    if not isinstance(lists, TileLists):
        raise TypeError(f"{op}: TileLists say which tiles are kept, not a {type(lists).__name__}")
    expect(op, **{name: (array, shape, INT32) for name, array, shape in zip(lists._fields, lists, list_shapes(pattern))})
    return lists


def tile_blocks_cuda(w, pattern, lists=None):
    """The lists by which kernels read kept tiles where they lie (`tiles.TileLists`): these, or some of its own."""
    shape, _ = _valid("tile_blocks (cuda)", pattern)
    expect("tile_blocks (cuda)", w=(w, shape))
    return _lists("tile_blocks (cuda)", lists, pattern)


def tile_room_cuda(pattern):
    """None: kernels read kept tiles where they lie."""
    _valid("tile_room (cuda)", pattern)


def tile_inputs_cuda(x, pattern):
    """None: kernels read x where it lies."""
    (_, cols), _ = _valid("tile_inputs (cuda)", pattern)
    expect("tile_inputs (cuda)", x=(x, ("N", cols)))


def tile_outputs_cuda(dy, pattern, scale=1.0, y=None):
    """(dz, None); dz (N, O) is dy, with a y given only where y > 0, else 0: kernels read it where it lies. dy may be a function
    of `where` and `scale`: a product that is still to be done, and leaves out on its way what y does."""
    (rows, _), _ = _valid("tile_outputs (cuda)", pattern)
    dz = dy(where=y) if callable(dy) else dy
    expect("tile_outputs (cuda)", dy=(dz, ("N", rows)), y=(y, ("N", rows)))
    return dz if y is None or callable(dy) else relu_grad_cuda(dz, y), None


def gemm_tiles_cuda(x, w, pattern, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None):
    ((rows, cols), _), tile = _valid("gemm_tiles (cuda)", pattern), pattern.tile
    lists = _lists("gemm_tiles (cuda)", blocks, pattern)
    out = output("gemm_tiles (cuda)", empty_cuda, out, ("N", rows), x=(x, ("N", cols)), w=(w, (rows, cols)), b=(b, (rows,)))
    if available(x, w, out):
        of_rows, of_cols, starts = groups(lists, pattern)
        return launch_grouped(True, x, w, out, of_cols, of_rows, starts, x.shape[0], (cols, 1), (1, cols), b, relu, scale)
    side = listed.block_side("gemm_tiles (cuda)", tile)
    launch(listed.forwards(tile)[0], (ceil_div(rows, tile), ceil_div(x.shape[0], tile)), (side, side),
           x, w, lists.row_class, lists.tile_cols, flat(w) if b is None else b, b is not None, relu, scale, out)
    return out


def gemm_tiles_dx_cuda(dy, w, pattern, scale=1.0, blocks=None, outputs=None, where=None, out=None):
    ((rows, cols), _), tile = _valid("gemm_tiles_dx (cuda)", pattern), pattern.tile
    lists = _lists("gemm_tiles_dx (cuda)", blocks, pattern)
    out = output("gemm_tiles_dx (cuda)", empty_cuda, out, ("N", cols), dy=(dy, ("N", rows)), w=(w, (rows, cols)),
                 where=(where, ("N", cols)))
    if pattern.grid[0] < pattern.dp:  # there are fewer classes: some columns are kept by no tile row
        full_cuda(out.shape, 0.0, out=out)
    if available(dy, w, out):
        of_rows, of_cols, starts = groups(lists, pattern)
        return launch_grouped(True, dy, w, out, of_rows, of_cols, starts, dy.shape[0], (rows, 1), (cols, 1), where=where,
                              scale=scale)
    side = listed.block_side("gemm_tiles_dx (cuda)", tile)
    classes, most = lists.tile_cols.shape
    launch(listed.dx(tile), (most, ceil_div(dy.shape[0], tile), classes), (side, side),
           dy, w, lists.tile_rows, lists.tile_cols, scale, out)
    return out if where is None else relu_grad_cuda(out, where, out=out)


def gemm_tiles_dw_cuda(dy, x, pattern, scale=1.0, blocks=None, inputs=None, outputs=None, out=None):
    ((rows, cols), packed), tile = _valid("gemm_tiles_dw (cuda)", pattern), pattern.tile
    lists = _lists("gemm_tiles_dw (cuda)", blocks, pattern)
    out = output("gemm_tiles_dw (cuda)", empty_cuda, out, packed, dy=(dy, ("N", rows)), x=(x, ("N", cols)))
    if available(dy, x, out):
        db = empty_cuda((rows,))
        launch_grouped(False, dy, x, out, *groups(lists, pattern), dy.shape[0], (1, rows), (cols, 1), a_sums=db, scale=scale)
        return out, db
    side = listed.block_side("gemm_tiles_dw (cuda)", tile)
    launch(listed.dw(tile), (lists.tile_cols.shape[1], lists.row_class.shape[0]), (side, side),
           dy, x, lists.row_class, lists.row_place, lists.tile_cols, scale, out)
    return out, sum_rows_cuda(dy)


def gemm_tiles_masked(x, w, mask, tile, out=None):
    """Teaching step: y = x (w * mask of tiles).T; mask (tile rows, tile columns) int32, the grid covers every tile."""
    side, grid = listed.block_side("gemm_tiles_masked (cuda)", tile), tuple(ceil_div(n, tile) for n in w.shape)
    out = output("gemm_tiles_masked (cuda)", empty_cuda, out, ("N", "O"), x=(x, ("N", "I")), w=(w, ("O", "I")),
                 mask=(mask, grid, INT32))
    launch(listed.forwards(tile)[1], (grid[0], ceil_div(x.shape[0], tile)), (side, side), x, w,
           upload_cuda(np.arange(grid[0], dtype=np.int32)), mask, flat(w), False, False, 1.0, out)
    return out


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    pattern = Pattern((O, I), 8, 3, 1)
    return {
        "gemm_tiles": lambda: dev.gemm_tiles(a(N, I), a(O, I), pattern, b=a(O), relu=True),
        "gemm_tiles_dx": lambda: dev.gemm_tiles_dx(a(N, O), a(O, I), pattern),
        "gemm_tiles_dw": lambda: dev.gemm_tiles_dw(a(N, O), a(N, I), pattern, out=np.zeros(pattern.packed_shape, np.float32)),
    }
