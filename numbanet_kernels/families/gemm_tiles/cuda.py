"""`gemm_tiles` on CUDA."""

from __future__ import annotations

import numpy as np

from ...layouts.tiles import TileLists, tile_lists
from ...runtime.arrays import device_cache
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import empty_cuda, flat, full_cuda, output, upload_cuda
from ..elementwise import relu_grad_cuda
from ..reduce import sum_rows_cuda
from . import cuda_listed
from .cuda_grouped import available, groups, launch_grouped
from .family import checked, valid


@device_cache(maxsize=1024)
def _cached_lists(pattern):
    return TileLists(*map(upload_cuda, tile_lists(pattern)))


def _lists(op, lists, pattern):
    """Return the argument `lists`, after a check; if it is None, return the lists of the pattern, which are cached."""
    return _cached_lists(pattern) if lists is None else checked(op, lists, pattern)


def tile_blocks_cuda(w, pattern, lists=None):
    """blocks = the `TileLists` with which kernels read kept tiles in place: `lists`, or cached lists if it is None."""
    shape, _ = valid("tile_blocks (cuda)", pattern)
    expect("tile_blocks (cuda)", w=(w, shape))
    return _lists("tile_blocks (cuda)", lists, pattern)


def tile_room_cuda(pattern):
    """Return None, because kernels read kept tiles in place."""
    valid("tile_room (cuda)", pattern)


def tile_inputs_cuda(x, pattern, lists=None):
    """Return None, because kernels read x in place."""
    (_, cols), _ = valid("tile_inputs (cuda)", pattern)
    expect("tile_inputs (cuda)", x=(x, ("N", cols)))


def tile_outputs_cuda(dy, pattern, scale=1.0, y=None, lists=None):
    """Return (dz, None), because kernels read dz in place. dz (N, O) is dy if y is None, else dy * (y > 0). dy may also be a
    product that is not computed yet, as a function of `where` and `scale`; the mask is then fused into it.
    """
    (rows, _), _ = valid("tile_outputs (cuda)", pattern)
    dz = dy(where=y) if callable(dy) else dy
    expect("tile_outputs (cuda)", dy=(dz, ("N", rows)), y=(y, ("N", rows)))
    return dz if y is None or callable(dy) else relu_grad_cuda(dz, y), None


def gemm_tiles_cuda(x, w, pattern, b=None, relu=False, scale=1.0, blocks=None, inputs=None, out=None, lists=None):
    ((rows, cols), _), tile = valid("gemm_tiles (cuda)", pattern), pattern.tile
    lists = _lists("gemm_tiles (cuda)", lists if blocks is None else blocks, pattern)
    out = output("gemm_tiles (cuda)", empty_cuda, out, ("N", rows), x=(x, ("N", cols)), w=(w, (rows, cols)), b=(b, (rows,)))
    if available(x, w, out):
        of_rows, of_cols, starts = groups(lists, pattern)
        return launch_grouped(True, x, w, out, of_cols, of_rows, starts, x.shape[0], (cols, 1), (1, cols), b, relu, scale)
    side = cuda_listed.block_side("gemm_tiles (cuda)", tile)
    launch(
        cuda_listed.forwards(tile)[0],
        (ceil_div(rows, tile), ceil_div(x.shape[0], tile)),
        (side, side),
        x,
        w,
        lists.row_class,
        lists.tile_cols,
        flat(w) if b is None else b,
        b is not None,
        relu,
        scale,
        out,
    )
    return out


def gemm_tiles_dx_cuda(dy, w, pattern, scale=1.0, blocks=None, outputs=None, where=None, out=None, lists=None):
    ((rows, cols), _), tile = valid("gemm_tiles_dx (cuda)", pattern), pattern.tile
    lists = _lists("gemm_tiles_dx (cuda)", lists if blocks is None else blocks, pattern)
    out = output(
        "gemm_tiles_dx (cuda)",
        empty_cuda,
        out,
        ("N", cols),
        dy=(dy, ("N", rows)),
        w=(w, (rows, cols)),
        where=(where, ("N", cols)),
    )
    # if there are fewer classes than dp, no tile row keeps some of the columns, and no block writes dx there
    if pattern.grid[0] < pattern.dp:
        full_cuda(out.shape, 0.0, out=out)
    if available(dy, w, out):
        of_rows, of_cols, starts = groups(lists, pattern)
        return launch_grouped(
            True, dy, w, out, of_rows, of_cols, starts, dy.shape[0], (rows, 1), (cols, 1), where=where, scale=scale
        )
    side = cuda_listed.block_side("gemm_tiles_dx (cuda)", tile)
    classes, most = lists.tile_cols.shape
    launch(
        cuda_listed.dx(tile),
        (most, ceil_div(dy.shape[0], tile), classes),
        (side, side),
        dy,
        w,
        lists.tile_rows,
        lists.tile_cols,
        scale,
        out,
    )
    return out if where is None else relu_grad_cuda(out, where, out=out)


def gemm_tiles_dw_cuda(dy, x, pattern, scale=1.0, blocks=None, inputs=None, outputs=None, out=None, lists=None):
    ((rows, cols), packed), tile = valid("gemm_tiles_dw (cuda)", pattern), pattern.tile
    lists = _lists("gemm_tiles_dw (cuda)", lists if blocks is None else blocks, pattern)
    out = output("gemm_tiles_dw (cuda)", empty_cuda, out, packed, dy=(dy, ("N", rows)), x=(x, ("N", cols)))
    if available(dy, x, out):
        db = empty_cuda((rows,))
        launch_grouped(False, dy, x, out, *groups(lists, pattern), dy.shape[0], (1, rows), (cols, 1), a_sums=db, scale=scale)
        return out, db
    side = cuda_listed.block_side("gemm_tiles_dw (cuda)", tile)
    launch(
        cuda_listed.dw(tile),
        (lists.tile_cols.shape[1], lists.row_class.shape[0]),
        (side, side),
        dy,
        x,
        lists.row_class,
        lists.row_position,
        lists.tile_cols,
        scale,
        out,
    )
    return out, sum_rows_cuda(dy)


def gemm_tiles_masked(x, w, mask, tile, out=None):
    """For teaching only: y = x (w * M).T, where the int32 array mask says which tiles M keeps; the grid covers every tile."""
    side, grid = cuda_listed.block_side("gemm_tiles_masked (cuda)", tile), tuple(ceil_div(n, tile) for n in w.shape)
    out = output(
        "gemm_tiles_masked (cuda)", empty_cuda, out, ("N", "O"), x=(x, ("N", "I")), w=(w, ("O", "I")), mask=(mask, grid, INT32)
    )
    launch(
        cuda_listed.forwards(tile)[1],
        (grid[0], ceil_div(x.shape[0], tile)),
        (side, side),
        x,
        w,
        upload_cuda(np.arange(grid[0], dtype=np.int32)),
        mask,
        flat(w),
        False,
        False,
        1.0,
        out,
    )
    return out
