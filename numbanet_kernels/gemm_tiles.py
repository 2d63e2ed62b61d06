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
(a block walks the list of the tiles that its class keeps, dropped work is never launched; both in `gemm_listed`) and grouped
(the one used where a card has it: each class is a dense product, all in one launch; `gemm_grouped`).
"""
from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from . import gemm_listed, threads
from .elementwise import relu_grad_cpu, relu_grad_cuda
from .gemm_grouped import available, groups, launch_grouped
from .indexing import compact_cuda
from .launch import ceil_div, device_cache, host_kernel, launch
from .memory import empty_cpu, empty_cuda, full_cpu, full_cuda, upload_cuda
from .reduce import sum_rows_cuda
from .tiles import TileLists, arrangement, elements, grid_of, packed_shape, packed_tiles, row_places, tile_lists
from .turn import turn_back, turn_in


# --- reference --------------------------------------------------------------------------------------------------------
def tile_mask_reference(shape, tile, dp, bias, mix):
    """M[o, i] = [(a[o // T] + b[i // T]) mod dp = bias]"""
    a, b = arrangement(grid_of(shape, tile), mix)
    o, i = np.indices(shape) // tile
    return (a[o] + b[i]) % dp == bias


def gemm_tiles_reference(x, w, tile, dp, bias, mix, b=None, relu=False, scale=1.0):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o]) in float64."""
    y = scale * (np.float64(x) @ (np.float64(w) * tile_mask_reference(w.shape, tile, dp, bias, mix)).T)
    y = y if b is None else y + np.float64(b)
    return np.maximum(y, 0) if relu else y


def gemm_tiles_dx_reference(dy, w, tile, dp, bias, mix, scale=1.0, where=None):
    """dx = scale * dy (w * M) in float64, 0 unless where > 0."""
    dx = scale * (np.float64(dy) @ (np.float64(w) * tile_mask_reference(w.shape, tile, dp, bias, mix)))
    return dx if where is None else np.where(np.asarray(where) > 0, dx, 0)


def gemm_tiles_dw_reference(dy, x, tile, dp, bias, mix, scale=1.0):
    """dw = scale * (dy.T x) * M in float64, dense (the kernels return it packed)."""
    return scale * (np.float64(dy).T @ np.float64(x)) * tile_mask_reference((dy.shape[1], x.shape[1]), tile, dp, bias, mix)


def _check(op, x, n_in, n_out, b, out, tile, dp, bias, mix, where=None):
    fits = x.ndim == 2 and x.shape[1] == n_in and (b is None or b.shape == (n_out,))
    if not (fits and all(a is None or a.shape == (x.shape[0], n_out) for a in (where, out))):
        raise ValueError(f"{op}: operand {x.shape} does not match a weight with {n_in} inner and {n_out} outer features"
                         f"{'' if b is None else f', bias {b.shape}'}{'' if where is None else f', where {where.shape}'}"
                         f"{'' if out is None else f', out {out.shape}'}")
    if not (tile >= 1 and 0 <= bias < dp and mix >= 0):
        raise ValueError(f"{op}: tile {tile} must be at least 1, bias {bias} in 0 … dp - 1 = {dp - 1} and mix {mix} at least 0")


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
def _layout(shape, tile, dp, bias, mix):
    packed = packed_tiles(grid_of(shape, tile), dp, bias, mix)
    classes, placed, col_place = [], 0, np.full(shape[1], -1)
    for first, tile_cols in zip(packed.rows[:, :1].ravel(), packed.cols, strict=True):
        cols = elements(tile_cols, tile, shape[1])
        col_place[cols] = np.arange(cols.size) + placed
        classes.append((int(packed.row_place[first]) * tile, placed, cols.size))
        placed += cols.size
    return _Layout(tuple(classes), row_places(packed, tile, shape[0]), packed.row_class, packed.cols, col_place)


@functools.lru_cache(maxsize=4096)
def _products(shape, tile, dp, bias, mix, part):
    """[(places of the part's rows, places of the columns, how many columns), …], one a class"""
    layout, own = _layout(shape, tile, dp, bias, mix), part.of(shape[0])
    found = []
    row_class = layout.row_class[np.arange(shape[0]) // tile]
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


def tile_blocks_cpu(w, tile, dp, bias, mix):
    """The kept tiles, packed as dw is: prepared once for the forward pass and dx."""
    layout = _layout(w.shape, tile, dp, bias, mix)
    packed = empty_cpu(packed_shape(w.shape, tile, dp))

    def gather(part):
        own = part.of(w.shape[0])
        _pack(w, layout.row_place, layout.row_class, layout.class_cols, tile, own.start, own.stop, packed)

    threads.share(gather, threads.worthwhile(packed.size))
    return packed


def tile_room_cpu(shape, tile, dp, bias, mix):
    """(packed, places): an unset array for what `tile_blocks` gives, and in which of its rows each row of the weight goes."""
    return empty_cpu(packed_shape(shape, tile, dp)), _layout(shape, tile, dp, bias, mix).row_place


def tile_order_cpu(order, inverse, shift, shape, tile, dp, bias, mix):
    """What `tile_inputs` takes where tiles meet x[:, order] - shift, shift (I,) or None: where each column of x goes, and what
    is taken off it."""
    return _layout(shape, tile, dp, bias, mix).col_place[inverse], None if shift is None else shift[inverse]


def tile_inputs_cpu(x, shape, tile, dp, bias, mix, order=None):
    """x (N, I) in the form that the kept tiles of a weight of this shape meet it: prepared once for the forward pass and dw.
    They meet its columns as `tile_order` says; None: as they are."""
    place, mean = (_layout(shape, tile, dp, bias, mix).col_place, None) if order is None else order
    return turn_in(x, x.shape[1], place, mean=mean)


def tile_outputs_cpu(dy, shape, tile, dp, bias, mix, scale=1.0, y=None):
    """(dy, outputs) for dx and dw: outputs are (scale * dz as the kept tiles meet it, sum_n dz[n, o]), dz (N, O) is dy, with a
    y given only where y > 0, else 0. dy may be a function of `where` and `scale`: a product that is still to be done."""
    places, _ = packed_shape(shape, tile, dp)
    dy = dy() if callable(dy) else dy
    sums = full_cpu((dy.shape[1],), 0.0)
    return dy, (turn_in(dy, places, _layout(shape, tile, dp, bias, mix).row_place, scale, y, sums), sums)


def gemm_tiles_cpu(x, w, tile, dp, bias, mix, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o])"""
    _check("gemm_tiles (cpu)", x, w.shape[1], w.shape[0], b, out, tile, dp, bias, mix)
    out = empty_cpu((x.shape[0], w.shape[0])) if out is None else out
    layout = _layout(w.shape, tile, dp, bias, mix)
    blocks = tile_blocks_cpu(w, tile, dp, bias, mix) if blocks is None else blocks
    inputs = tile_inputs_cpu(x, w.shape, tile, dp, bias, mix) if inputs is None else inputs
    turned = empty_cpu((1, blocks.shape[0], x.shape[0]))

    def multiply(part):
        for rows, cols, width in _products(w.shape, tile, dp, bias, mix, part):
            np.matmul(blocks[rows, :width], inputs[cols], out=turned[0, rows])
        turn_back(turned, out, part.of(w.shape[0]), b, relu, alpha=scale, place=layout.row_place)

    threads.share(multiply, threads.worthwhile(flops=2 * x.shape[0] * blocks.size))
    return out


def gemm_tiles_dx_cpu(dy, w, tile, dp, bias, mix, scale=1.0, blocks=None, outputs=None, where=None, out=None):
    """dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i], given `where` 0 unless where[n, i] > 0"""
    _check("gemm_tiles_dx (cpu)", dy, w.shape[0], w.shape[1], None, out, tile, dp, bias, mix, where)
    out = empty_cpu((dy.shape[0], w.shape[1])) if out is None else out
    layout = _layout(w.shape, tile, dp, bias, mix)
    blocks = tile_blocks_cpu(w, tile, dp, bias, mix) if blocks is None else blocks
    turned, _ = tile_outputs_cpu(dy, w.shape, tile, dp, bias, mix, scale)[1] if outputs is None else outputs
    shared = threads.worthwhile(flops=2 * dy.shape[0] * blocks.size)
    with threads.session():
        terms = empty_cpu((threads.count() if shared else 1, w.shape[1], dy.shape[0]))

        def multiply(part):
            for rows, cols, width in _products(w.shape, tile, dp, bias, mix, part):
                np.matmul(blocks[rows, :width].T, turned[rows], out=terms[part.number, cols])

        threads.share(multiply, shared)
        threads.share(lambda part: turn_back(terms, out, part.of(w.shape[1]), place=layout.col_place), shared)
    return out if where is None else relu_grad_cpu(out, where, out=out)


def gemm_tiles_dw_cpu(dy, x, tile, dp, bias, mix, scale=1.0, blocks=None, inputs=None, outputs=None, out=None):
    """(dw, db): dw = scale * (dy.T x) on kept tiles, packed, db[o] = sum_n dy[n, o]"""
    shape = (dy.shape[1], x.shape[1])
    _check("gemm_tiles_dw (cpu)", x, shape[1], shape[0], None, None, tile, dp, bias, mix)
    out = empty_cpu(packed_shape(shape, tile, dp)) if out is None else out
    inputs = tile_inputs_cpu(x, shape, tile, dp, bias, mix) if inputs is None else inputs
    turned, db = tile_outputs_cpu(dy, shape, tile, dp, bias, mix, scale)[1] if outputs is None else outputs

    def multiply(part):
        for rows, cols, width in _products(shape, tile, dp, bias, mix, part):
            np.matmul(turned[rows], inputs[cols].T, out=out[rows, :width])

    threads.share(multiply, threads.worthwhile(flops=2 * dy.shape[0] * out.size))
    return out, db


# --- CUDA -------------------------------------------------------------------------------------------------------------
@device_cache(maxsize=1024)
def _lists(*pattern):
    return TileLists(*map(upload_cuda, tile_lists(*pattern)))


def tile_blocks_cuda(w, tile, dp, bias, mix):
    """The lists by which kernels read kept tiles where they lie (`tiles.TileLists`)."""
    return _lists(tuple(w.shape), tile, dp, bias, mix)


def tile_room_cuda(shape, tile, dp, bias, mix):
    """None: kernels read kept tiles where they lie."""
    return None


def tile_order_cuda(order, inverse, shift, shape, tile, dp, bias, mix):
    """What `tile_inputs` takes where tiles meet x[:, order] - shift, shift (I,) or None: both."""
    return order, shift


def tile_inputs_cuda(x, shape, tile, dp, bias, mix, order=None):
    """Nothing: kernels read x where it lies. With an order by `tile_order`, x in that order."""
    return None if order is None else compact_cuda(x, *order)


def tile_outputs_cuda(dy, shape, tile, dp, bias, mix, scale=1.0, y=None):
    """(dz, None); dz (N, O) is dy, with a y given only where y > 0, else 0: kernels read it where it lies. dy may be a function
    of `where` and `scale`: a product that is still to be done, and leaves out on its way what y does."""
    if callable(dy):
        return dy(where=y), None
    return dy if y is None else relu_grad_cuda(dy, y), None


def gemm_tiles_cuda(x, w, tile, dp, bias, mix, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None):
    """y[n, o] = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o])"""
    _check("gemm_tiles (cuda)", x, w.shape[1], w.shape[0], b, out, tile, dp, bias, mix)
    out = empty_cuda((x.shape[0], w.shape[0])) if out is None else out
    lists = _lists(tuple(w.shape), tile, dp, bias, mix) if blocks is None else blocks
    if available(x, w, out):
        rows, cols, starts = groups(lists, w.shape, tile, dp)
        return launch_grouped(True, x if inputs is None else inputs, w, out, cols, rows, starts, x.shape[0], (w.shape[1], 1),
                               (1, w.shape[1]), b, relu, scale)
    side = gemm_listed.block_side("gemm_tiles (cuda)", tile)
    launch(gemm_listed.forward(tile), (ceil_div(w.shape[0], tile), ceil_div(x.shape[0], tile)), (side, side),
           x if inputs is None else inputs, w, lists.row_class, lists.tile_cols, w.reshape(w.size) if b is None else b,
           b is not None, relu, scale, out)
    return out


def gemm_tiles_dx_cuda(dy, w, tile, dp, bias, mix, scale=1.0, blocks=None, outputs=None, where=None, out=None):
    """dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i], given `where` 0 unless where[n, i] > 0"""
    _check("gemm_tiles_dx (cuda)", dy, w.shape[0], w.shape[1], None, out, tile, dp, bias, mix, where)
    if grid_of(w.shape, tile)[0] < dp:  # there are fewer classes: some columns are kept by no tile row
        out = full_cuda((dy.shape[0], w.shape[1]), 0.0, out=out)
    out = empty_cuda((dy.shape[0], w.shape[1])) if out is None else out
    lists = _lists(tuple(w.shape), tile, dp, bias, mix) if blocks is None else blocks
    if available(dy, w, out):
        rows, cols, starts = groups(lists, w.shape, tile, dp)
        return launch_grouped(True, dy, w, out, rows, cols, starts, dy.shape[0], (w.shape[0], 1), (w.shape[1], 1), where=where,
                               scale=scale)
    side = gemm_listed.block_side("gemm_tiles_dx (cuda)", tile)
    classes, most = lists.tile_cols.shape
    launch(gemm_listed.dx(tile), (most, ceil_div(dy.shape[0], tile), classes), (side, side),
           dy, w, lists.tile_rows, lists.tile_cols, scale, out)
    return out if where is None else relu_grad_cuda(out, where, out=out)


def gemm_tiles_dw_cuda(dy, x, tile, dp, bias, mix, scale=1.0, blocks=None, inputs=None, outputs=None, out=None):
    """(dw, db): dw = scale * (dy.T x) on kept tiles, packed, db[o] = sum_n dy[n, o]"""
    shape = (dy.shape[1], x.shape[1])
    _check("gemm_tiles_dw (cuda)", x, shape[1], shape[0], None, None, tile, dp, bias, mix)
    out = empty_cuda(packed_shape(shape, tile, dp)) if out is None else out
    lists = _lists(shape, tile, dp, bias, mix) if blocks is None else blocks
    if available(dy, x, out):
        db = empty_cuda((shape[0],))
        launch_grouped(False, dy, x if inputs is None else inputs, out, *groups(lists, shape, tile, dp), dy.shape[0],
                       (1, shape[0]), (shape[1], 1), a_sums=db, scale=scale)
        return out, db
    side = gemm_listed.block_side("gemm_tiles_dw (cuda)", tile)
    launch(gemm_listed.dw(tile), (lists.tile_cols.shape[1], lists.row_class.shape[0]), (side, side),
           dy, x if inputs is None else inputs, lists.row_class, lists.row_place, lists.tile_cols, scale, out)
    return out, sum_rows_cuda(dy)


def gemm_tiles_masked_cuda(x, w, mask, tile, out=None):
    """Teaching step: y = x (w * mask of tiles).T; mask (tile rows, tile columns), the grid covers every tile."""
    _check("gemm_tiles_masked (cuda)", x, w.shape[1], w.shape[0], None, out, tile, 1, 0, 0)
    side = gemm_listed.block_side("gemm_tiles_masked (cuda)", tile)
    out = empty_cuda((x.shape[0], w.shape[0])) if out is None else out
    launch(gemm_listed.masked(tile), (ceil_div(w.shape[0], tile), ceil_div(x.shape[0], tile)), (side, side), x, w, mask, out)
    return out
