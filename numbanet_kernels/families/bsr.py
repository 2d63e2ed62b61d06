"""Matrix product with a weight w (O, I) of which only some tiles are stored, a BSR (`layouts.sparse`).

values (tiles, T, T) holds the stored tiles. `at` is an `Entries` in which a row is a block row of w, a column is a block column
of w, and an entry is a tile: values[k] is the tile at block column ids[k] of the block row r with starts[r] <= k < stops[r].

    bsr       y[n, o]  = act(sum_i x[n, i] w[o, i] + b[o])     x (N, I) -> y (N, O)
    bsr_dx    dx[n, i] = sum_o dy[n, o] w[o, i]                dy (N, O) -> dx (N, I)
    bsr_dw    dw[k]    = the tile k of dy.T x                  dy (N, O), x (N, I) -> (tiles, T, T)

act is ReLU if `relu`, else the identity. Each product takes 2 N T^2 FLOPs per tile. Elements of tiles beyond the edges of w
have no effect, and their dw is 0. On the CPU each tile is one BLAS product, which reads columns of x in place and adds to
columns of y. On CUDA a block of threads computes a tile of the result, in a loop over the tiles of one block row (bsr) or block
column (bsr_dx), or over the samples (bsr_dw).
"""

from __future__ import annotations

import numpy as np
from numba import float32, int32

from ..host import blas, threads
from ..host.transpose import EMPTY, NO_INDICES, transpose_block
from ..layouts.entries import Entries, entries
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import empty_cpu, empty_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def _dense_reference(values, at, shape):
    """Return the dense weight w of shape `shape`, (O, I), in float64."""
    tile = values.shape[1]
    w = np.zeros((at.starts.size * tile, at.col_starts.size * tile))
    for r, (start, stop) in enumerate(zip(at.starts, at.stops)):
        for k in range(start, stop):
            w[r * tile : (r + 1) * tile, at.ids[k] * tile : (at.ids[k] + 1) * tile] = values[k]
    return w[: shape[0], : shape[1]]


def bsr_reference(x, values, at, outputs, bias=None, relu=False):
    """Return y = act(x w.T + b) in float64, computed with a dense w."""
    y = np.float64(x) @ _dense_reference(values, at, (outputs, x.shape[1])).T
    y = y if bias is None else y + bias
    return np.maximum(y, 0) if relu else y


def bsr_dx_reference(dy, values, at, inputs):
    """Return dx = dy w in float64, computed with a dense w."""
    return np.float64(dy) @ _dense_reference(values, at, (dy.shape[1], inputs))


def bsr_dw_reference(dy, x, at, tile):
    """Return dy.T x in float64, at the stored tiles."""
    dw, dense = np.zeros((at.ids.size, tile, tile)), np.float64(dy).T @ np.float64(x)
    for r, (start, stop) in enumerate(zip(at.starts, at.stops)):
        for k in range(start, stop):
            tile_of_dw = dense[r * tile : (r + 1) * tile, at.ids[k] * tile : (at.ids[k] + 1) * tile]
            dw[k, : tile_of_dw.shape[0], : tile_of_dw.shape[1]] = tile_of_dw
    return dw


def _check(op, at, tile, outputs, inputs, **arrays):
    """Check the arrays, and return a dict of the sizes by name; raise ValueError or TypeError unless they fit a weight
    (outputs, inputs) in tiles of tile x tile.
    """
    if not isinstance(at, Entries):
        raise TypeError(f"{op}: at must be Entries, not {type(at).__name__}")
    if tile < 1:
        raise ValueError(f"{op}: tile {tile} must be at least 1")
    lists = {f"at.{name}": (array, (length,), INT32) for name, array, length in zip(at._fields, at, "RRBCCBB")}
    sizes = expect(op, **lists, **arrays)
    for n, have in ((outputs, sizes["R"]), (inputs, sizes["C"])):
        if n < 0 or ceil_div(n, tile) != have:
            raise ValueError(f"{op}: {have} tiles of {tile} do not cover {n}")
    return sizes


def _side(op, values):
    """Return T, the side of a tile, for values (tiles, T, T)."""
    return expect(op, values=(values, ("B", "T", "T")))["T"]


def _width(op, **array):
    """Return the number of columns of a matrix, which is given as a keyword argument under its name for error messages."""
    ((name, given),) = array.items()
    return expect(op, **{name: (given, ("N", "I"))})["I"]


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(i8, f4[:, ::1], f4[:, :, ::1], i4[::1], i4[::1], i4[::1], i4[::1], b1, f4[::1], b1, b1, i8, i8, f4[:, ::1])")
def _product(entry, x, values, starts, stops, ids, order, back, bias, biased, relu, first, stop, y):
    """Compute the block columns first … stop - 1 of y = act(x w.T + bias) or, if `back`, of y = act(x w)."""
    tile, blocks = values.shape[1], -(-x.shape[1] // values.shape[1])
    # for small matrices, BLAS is faster on a transposed copy than with its flag for the transpose
    transposed = np.empty((tile, tile), np.float32)
    for r in range(first, stop):
        block = y[:, r * tile : min((r + 1) * tile, y.shape[1])]
        width = block.shape[1]
        for n in range(block.shape[0]):
            for j in range(width):
                block[n, j] = bias[r * tile + j] if biased else np.float32(0)
        for e in range(max(starts[r], 0), min(stops[r], ids.size) if blocks else 0):
            c, k = min(max(ids[e], 0), blocks - 1), min(max(order[e], 0), values.shape[0] - 1) if back else e
            inputs = x[:, c * tile : min((c + 1) * tile, x.shape[1])]
            depth = inputs.shape[1]
            if not back:
                transpose_block(values[k], 0, width, 0, depth, transposed, 0, 0, True)
            blas.multiply(entry, inputs, (values[k] if back else transposed)[:depth, :width], block, False, False, 1.0)
        if relu:
            for n in range(block.shape[0]):
                for j in range(width):
                    block[n, j] = np.float32(0) if block[n, j] < np.float32(0) else block[n, j]


@host_kernel("void(i8, f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[::1], i8, i8, f4[:, :, ::1])")
def _gradients(entry, dy, x, starts, stops, ids, first, stop, dw):
    """Compute the gradients of the stored tiles in the block rows first … stop - 1."""
    tile, blocks = dw.shape[1], -(-x.shape[1] // dw.shape[1])
    for r in range(first, stop):
        slopes = dy[:, r * tile : min((r + 1) * tile, dy.shape[1])]
        for k in range(max(starts[r], 0), min(stops[r], ids.size) if blocks else 0):
            c = min(max(ids[k], 0), blocks - 1)
            inputs = x[:, c * tile : min((c + 1) * tile, x.shape[1])]
            if slopes.shape[1] < tile or inputs.shape[1] < tile:
                dw[k] = 0
            blas.multiply(entry, slopes, inputs, dw[k, : slopes.shape[1], : inputs.shape[1]], True, False, 0.0)


def _shared(loop, count, flops, *given):
    """Call loop(entry of BLAS, *given[:-1], first, stop, given[-1]) on all threads, each with a range of the `count` block
    rows. Return given[-1], the array of the result.
    """

    def work(part):
        span = part.of(count)
        loop(blas.entry(), *given[:-1], span.start, span.stop, given[-1])

    threads.share(work, flops=flops)
    return given[-1]


def bsr_cpu(x, values, at, outputs, bias=None, relu=False):
    """y[n, o] = act(sum_i x[n, i] w[o, i] + b[o]) over the stored tiles of w"""
    _check(
        "bsr (cpu)",
        at,
        _side("bsr (cpu)", values),
        outputs,
        _width("bsr (cpu)", x=x),
        values=(values, ("B", "T", "T")),
        bias=(bias, (outputs,)),
    )
    given = at.starts, at.stops, at.ids, NO_INDICES, False, EMPTY if bias is None else bias, bias is not None, relu
    return _shared(_product, at.starts.size, 2 * x.shape[0] * values.size, x, values, *given, empty_cpu((x.shape[0], outputs)))


def bsr_dx_cpu(dy, values, at, inputs):
    """dx[n, i] = sum_o dy[n, o] w[o, i] over the stored tiles of w"""
    _check(
        "bsr_dx (cpu)",
        at,
        _side("bsr_dx (cpu)", values),
        _width("bsr_dx (cpu)", dy=dy),
        inputs,
        values=(values, ("B", "T", "T")),
    )
    given = at.col_starts, at.col_stops, at.col_ids, at.order, True, EMPTY, False, False
    return _shared(
        _product, at.col_starts.size, 2 * dy.shape[0] * values.size, dy, values, *given, empty_cpu((dy.shape[0], inputs))
    )


def bsr_dw_cpu(dy, x, at, tile):
    """dw[k] = the elements of dy.T x in stored tile k, 0 beyond the edges of w"""
    _check(
        "bsr_dw (cpu)",
        at,
        tile,
        _width("bsr_dw (cpu)", dy=dy),
        _width("bsr_dw (cpu)", x=x),
        dy=(dy, ("N", "O")),
        x=(x, ("N", "I")),
    )
    dw = empty_cpu((at.ids.size, tile, tile))
    return _shared(_gradients, at.starts.size, 2 * dy.shape[0] * dw.size, dy, x, at.starts, at.stops, at.ids, dw)


# --- CUDA -------------------------------------------------------------------------------------------------------------
# Indices that are out of range are clamped to their axis, as on the CPU.


@kernels("bsr")
def _product_kernel(tile=16):
    padded = tile + 1

    @kernel("void(f4[:, ::1], f4[:, :, ::1], i4[::1], i4[::1], i4[::1], i4[::1], b1, f4[::1], b1, b1, f4[:, ::1])")
    def bsr_product(x, values, starts, stops, ids, order, back, bias, biased, relu, y):
        """Each block computes `tile` samples for one block row of the weight, or one block column if `back`."""
        xs, ws = cuda.shared.array((tile, padded), float32), cuda.shared.array((tile, padded), float32)
        tx, ty, r = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.x)
        n, o, total = int32(cuda.blockIdx.y) * tile + ty, r * tile + tx, float32(0)
        last = (x.shape[1] + tile - 1) // tile - 1
        for e in range(max(starts[r], 0), min(stops[r], ids.size) if last >= 0 else 0):
            k, first = min(max(order[e], 0), values.shape[0] - 1) if back else e, min(max(ids[e], 0), last) * tile
            col = first + tx
            xs[ty, tx] = x[n, col] if n < x.shape[0] and col < x.shape[1] else float32(0)
            if back:
                ws[ty, tx] = values[k, ty, tx]
            else:
                ws[tx, ty] = values[k, ty, tx]  # the tile is stored transposed: column ty of `ws` belongs to output ty
            cuda.syncthreads()
            for i in range(tile):
                if first + i < x.shape[1]:  # elements beyond the edge are never read
                    total += xs[ty, i] * ws[i, tx]
            cuda.syncthreads()
        if n < y.shape[0] and o < y.shape[1]:
            total += bias[o] if biased else float32(0)
            y[n, o] = float32(0) if relu and total < float32(0) else total

    return bsr_product


@kernels("bsr")
def _gradients_kernel(tile=16):
    padded = tile + 1

    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[::1], f4[:, :, ::1])")
    def bsr_gradients(dy, x, rows, order, ids, dw):
        """Each block computes the gradient of one tile of the weight, in a loop over the samples."""
        slopes, xs = cuda.shared.array((tile, padded), float32), cuda.shared.array((tile, padded), float32)
        tx, ty, total = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), float32(0)
        k, r = order[cuda.blockIdx.x], rows[cuda.blockIdx.x]
        if k < 0 or k >= dw.shape[0]:  # the index is out of range, so the block must not write a tile that another block writes
            return
        o = max(min(r, (dy.shape[1] + tile - 1) // tile - 1), 0) * tile + tx
        i = max(min(ids[k], (x.shape[1] + tile - 1) // tile - 1), 0) * tile + tx
        for n0 in range(0, x.shape[0], tile):
            n = n0 + ty
            slopes[ty, tx] = dy[n, o] if n < dy.shape[0] and o < dy.shape[1] else float32(0)
            xs[ty, tx] = x[n, i] if n < x.shape[0] and i < x.shape[1] else float32(0)
            cuda.syncthreads()
            for m in range(tile):
                total += slopes[m, ty] * xs[m, tx]
            cuda.syncthreads()
        dw[k, ty, tx] = total

    return bsr_gradients


def _block_side(op, tile):
    """Return the number of threads along each axis of a block; raise ValueError if the tile is larger than a block."""
    if not 1 <= tile <= 32:
        raise ValueError(f"{op}: tile {tile} must be from 1 to 32 on CUDA")
    return tile


def _launch(x, values, starts, stops, ids, order, back, bias, relu, y):
    """Return y = act(x w.T + bias) or, if `back`, y = x w."""
    tile = values.shape[1]
    side = _block_side("bsr (cuda)", tile)
    launch(
        _product_kernel(side),
        (starts.size, ceil_div(y.shape[0], side)),
        (side, side),
        x,
        values,
        starts,
        stops,
        ids,
        order,
        back,
        empty_cuda((0,)) if bias is None else bias,
        bias is not None,
        relu,
        y,
    )
    return y


def bsr_cuda(x, values, at, outputs, bias=None, relu=False):
    _check(
        "bsr (cuda)",
        at,
        _side("bsr (cuda)", values),
        outputs,
        _width("bsr (cuda)", x=x),
        values=(values, ("B", "T", "T")),
        bias=(bias, (outputs,)),
    )
    return _launch(x, values, at.starts, at.stops, at.ids, at.ids, False, bias, relu, empty_cuda((x.shape[0], outputs)))


def bsr_dx_cuda(dy, values, at, inputs):
    _check(
        "bsr_dx (cuda)",
        at,
        _side("bsr_dx (cuda)", values),
        _width("bsr_dx (cuda)", dy=dy),
        inputs,
        values=(values, ("B", "T", "T")),
    )
    return _launch(
        dy, values, at.col_starts, at.col_stops, at.col_ids, at.order, True, None, False, empty_cuda((dy.shape[0], inputs))
    )


def bsr_dw_cuda(dy, x, at, tile):
    _check(
        "bsr_dw (cuda)",
        at,
        tile,
        _width("bsr_dw (cuda)", dy=dy),
        _width("bsr_dw (cuda)", x=x),
        dy=(dy, ("N", "O")),
        x=(x, ("N", "I")),
    )
    side, dw = _block_side("bsr_dw (cuda)", tile), empty_cuda((at.ids.size, tile, tile))
    launch(_gradients_kernel(side), at.ids.size, (side, side), dy, x, at.col_ids, at.order, at.ids, dw)
    return dw


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O, tile=16):
    def structure():
        """Return the `Entries` of a random third of the tiles; the first block row is empty, and the last one is full."""
        mask = a.indices(3, -(-O // tile), -(-I // tile)) == 0
        mask[0], mask[-1] = False, True
        rows, columns = np.nonzero(mask)
        ends = np.cumsum(np.bincount(rows, minlength=len(mask))).astype(np.int32)
        return entries(np.concatenate([[0], ends[:-1]]), ends, columns.astype(np.int32), mask.shape[1])

    def product(op, width, *others, **options):
        at = structure()
        return getattr(dev, op)(a(N, width), a(at.ids.size, tile, tile), at, *others, **options)

    return {
        "bsr": lambda: product("bsr", I, O, bias=a(O), relu=True),
        "bsr_dx": lambda: product("bsr_dx", O, I),
        "bsr_dw": lambda: dev.bsr_dw(a(N, O), a(N, I), structure(), tile),
    }
