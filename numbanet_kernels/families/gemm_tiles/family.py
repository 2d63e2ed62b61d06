"""Matrix product with the kept tiles of a weight w (O, I). The weight is divided into tiles of T x T; the tile at (r, c) is
kept if (a[r] + b[c]) mod dp = bias (`layouts.tiles`). M is the mask of kept elements:

    forward   y[n, o]  = act(scale * sum_i x[n, i] (w * M)[o, i] + b[o])          x (N, I) -> y (N, O)
    dx        dx[n, i] = scale * sum_o dy[n, o] (w * M)[o, i]                     dy (N, O) -> dx (N, I)
              if an array `where` (N, I) is given, 0 unless where[n, i] > 0
    dw        dw       = scale * (dy.T x) on kept tiles only, packed (below)      dy (N, O), x (N, I)
    db        db[o]    = sum_n dy[n, o], which is computed together with dw

Tile rows with the same a[r] mod dp keep the same tile columns; such tile rows form a class. No two classes share a column, so
the kept matrix is block-diagonal up to a permutation, and a product consists of dp dense products: 2 N O I / dp FLOPs.

The packed dw is (R T, ceil(C / dp) T), for R x C tiles: its tile rows are sorted by class, then by r, and each row holds its
kept columns, increasing. Elements of tiles beyond the edges of w are uninitialised. Intermediates that several products share
can be computed once and passed in: `tile_blocks` returns `blocks` (the kept tiles on the CPU, which dw does not need; their
lists on CUDA), `tile_inputs` returns the `inputs` of x, and `tile_outputs` returns the `outputs` of dy. `lists`, a
`layouts.tiles.TileLists` on the device, hold the kept tiles. A recorded step reads them, so that it can be replayed with
another pattern of the same kind; if they are None, they are computed and cached.

There are three kinds of CUDA kernels. "masked" is for teaching only: every tile is visited, and dropped tiles are skipped by a
test that has the same result in the whole block. "listed": a block walks the list of the tiles that its class keeps, so dropped
work is never launched. Both are in `cuda_listed`. "grouped", in `cuda_grouped`, is used if the device supports it: each class
is a dense product, and all products are one launch.
"""

from __future__ import annotations

import numpy as np

from ...layouts.tiles import Pattern, TileLists, arrangement, list_shapes
from ...runtime.expect import INT32, expect


# --- reference --------------------------------------------------------------------------------------------------------
def tile_mask_reference(pattern):
    """Return M, bool (O, I): M[o, i] is True if (a[o // T] + b[i // T]) mod dp = bias."""
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


def valid(op, pattern):
    """Check a pattern, and return (its shape, its packed shape)."""
    if not isinstance(pattern, Pattern):
        raise TypeError(f"{op}: {pattern!r} is not a Pattern")
    _, tile, dp, bias, mix = pattern
    if not (tile >= 1 and 0 <= bias < dp and min(mix, *pattern.shape) >= 0):
        raise ValueError(f"{op}: in {pattern} the tile must be at least 1, bias in 0 … {dp - 1} (dp - 1), all else at least 0")
    return pattern.shape, pattern.packed_shape


def checked(op, lists, pattern):
    """Return the lists; raise TypeError or ValueError unless they are `TileLists` with the shapes of the pattern."""
    if not isinstance(lists, TileLists):
        raise TypeError(f"{op}: the lists of tiles must be TileLists, not a {type(lists).__name__}")
    expect(op, **{name: (array, shape, INT32) for name, array, shape in zip(lists._fields, lists, list_shapes(pattern))})
    return lists


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    pattern = Pattern((O, I), 8, 3, 1)
    return {
        "gemm_tiles": lambda: dev.gemm_tiles(a(N, I), a(O, I), pattern, b=a(O), relu=True),
        "gemm_tiles_dx": lambda: dev.gemm_tiles_dx(a(N, O), a(O, I), pattern),
        "gemm_tiles_dw": lambda: dev.gemm_tiles_dw(a(N, O), a(N, I), pattern, out=np.zeros(pattern.packed_shape, np.float32)),
    }
