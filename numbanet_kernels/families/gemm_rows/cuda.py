"""`gemm_rows` on CUDA."""

from __future__ import annotations

import numpy as np
from numba import float32

from ...blocks import gemm_block
from ...layouts.rows import Period, Window
from ...runtime.arrays import device_cache, to_device
from ...runtime.declare import cuda, kernel, kernels
from ...runtime.expect import BOOL
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for, empty_cuda, flat, output
from ..elementwise import relu_grad_cuda
from .family import arguments


@kernels("gemm_rows")
def _masked(tile=16):
    padded = tile + 1

    @kernel("void(f4[:, ::1], f4[:, ::1], b1[::1], f4[:, ::1])")
    def gemm_rows_masked(x, w, mask, y):
        """For teaching only: y = x (w * mask[:, None]).T with dense x and y. A block computes `tile` samples for one row of w.

        The mask is the same for all threads of a block, so they all return before the first barrier, or none does.
        """
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, n = cuda.blockIdx.x, cuda.blockIdx.y * tile + ty
        if not mask[row]:
            if tx == 0 and n < y.shape[0]:
                y[n, row] = float32(0)
            return
        partial = cuda.shared.array((tile, padded), float32)
        acc = float32(0)
        if n < x.shape[0]:
            for i in range(tx, x.shape[1], tile):
                acc += x[n, i] * w[row, i]
        partial[ty, tx] = acc
        cuda.syncthreads()
        if tx == 0 and n < y.shape[0]:
            for i in range(1, tile):
                acc += partial[ty, i]
            y[n, row] = acc

    return gemm_rows_masked


@kernels("gemm_rows")
def _listed(backward=False, tile=32):
    side = tile // 2  # thread (ty, tx) computes rows ty, ty + side and columns tx, tx + side of the output tile
    padded = tile + 1

    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], f4[::1], f4[:, ::1], b1, b1, f4)")
    def gemm_rows_listed(a, w, rows, cols, bias, c, biased, relu, scale):
        """c[n, q] = sum_p a[n, p] W[q, p], where W is w[rows][:, cols], or for dx its transpose; 2 x 2 outputs a thread."""
        a_tile = cuda.shared.array((tile, padded), float32)
        w_tile = cuda.shared.array((tile, padded), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        n0, q0 = cuda.blockIdx.y * tile, cuda.blockIdx.x * tile
        zero = float32(0)
        c00 = c01 = c10 = c11 = zero
        for p0 in range(0, a.shape[1], tile):
            # load: threadIdx.x walks along a row of a and along a row of w
            for i in range(ty, tile, side):
                for j in range(tx, tile, side):
                    inside = n0 + i < a.shape[0] and p0 + j < a.shape[1]
                    a_tile[i, j] = a[n0 + i, p0 + j] if inside else zero
                    k, m, value = (p0 if backward else q0) + i, (q0 if backward else p0) + j, zero
                    if k < rows.size and m < cols.size:
                        row, col = rows[k], cols[m]
                        if 0 <= row < w.shape[0] and 0 <= col < w.shape[1]:  # lists on a device are not checked before
                            value = w[row, col]
                    w_tile[j if backward else i, i if backward else j] = value
            cuda.syncthreads()
            # multiply
            for p in range(tile):
                a0, a1 = a_tile[ty, p], a_tile[ty + side, p]
                w0, w1 = w_tile[tx, p], w_tile[tx + side, p]
                c00, c01 = c00 + a0 * w0, c01 + a0 * w1
                c10, c11 = c10 + a1 * w0, c11 + a1 * w1
            cuda.syncthreads()
        # store
        for i in range(2):
            for j in range(2):
                n, q = n0 + ty + i * side, q0 + tx + j * side
                if n < c.shape[0] and q < c.shape[1]:
                    value = (c11 if j else c10) if i else (c01 if j else c00)
                    if biased and 0 <= rows[q] < bias.size:
                        value += bias[rows[q]]
                    if relu and value < zero:
                        value = zero
                    c[n, q] = scale * value

    return gemm_rows_listed


@kernels("gemm_rows")
def _packing():
    @kernel("void(f4[:, ::1], i4[::1], i4[::1], f4[::1], f4[::1], f4[::1], b1)")
    def gemm_rows_packed(w, rows, cols, bias, block, of_rows, biased):
        """block[k, m] = w[rows[k], cols[m]], and of_rows[k] = bias[rows[k]] if `biased`; 0 where a list is out of range."""
        i = cuda.grid(1)
        if i < block.size:
            k, m, value = i // cols.size, i % cols.size, float32(0)
            row, col = rows[k], cols[m]
            if 0 <= row < w.shape[0] and 0 <= col < w.shape[1]:  # lists on a device are not checked before
                value = w[row, col]
            block[i] = value
            if biased and m == 0:
                of_rows[k] = bias[row] if 0 <= row < bias.size else float32(0)

    return gemm_rows_packed


TILE = 32  # 256 threads with 2 x 2 outputs each


@device_cache(maxsize=1024)
def _array(start, stop, step):
    return to_device(np.arange(start, stop, step, dtype=np.int32))


def _listed_indices(index, n):
    """Return the indices as an array on the device."""
    if isinstance(index, (Period, Window)):
        return index.indices
    return _array(*index.indices(n)) if isinstance(index, slice) else _array(0, n, 1) if index is None else index


def _strided(w, rows, cols, *arrays):
    """Return (stride between kept rows of flat w, stride between kept columns, `indices` for `launch_block`); None if the
    strides are not constant or the device lacks the kernel.
    """
    both = [index.slice if isinstance(index, Period) else index for index in (rows, cols)]
    if not gemm_block.available(w, *arrays) or not all(index is None or isinstance(index, slice) for index in both):
        return None
    row_step, col_step = (1 if index is None else index.step or 1 for index in both)
    lists = [_array(0, 1, 1) if index is None else _listed_indices(index, n) for index, n in zip((rows, cols), w.shape)]
    # the kernel reads one index even if none is kept
    lists = [indices if indices.size else _array(0, 1, 1) for indices in lists]
    return row_step * w.shape[1], col_step, None if both == [None, None] else (*lists, w.shape[1], row_step)


def _packed(x, w, rows, cols, bias, out, shape):
    """Return (w[rows][:, cols], bias[rows] or None), which the faster kernel for dense products multiplies; None if the device
    lacks it. Lists and windows, which may be of two parts, have no constant strides.
    """
    (outer, inner), indexed = shape, gemm_block.available(w, x, out)
    if not indexed or not outer * inner:
        return None
    block, of_rows = empty_cuda((outer * inner,)), None if bias is None else empty_cuda((outer,))
    launch(
        _packing(),
        blocks_for(block.size),
        THREADS,
        w,
        _listed_indices(rows, w.shape[0]),
        _listed_indices(cols, w.shape[1]),
        block if bias is None else bias,
        block,
        block if bias is None else of_rows,
        bias is not None,
    )
    return block, of_rows


def gemm_rows_cuda(x, w, rows, cols, bias=None, relu=False, scale=1.0, out=None):
    (_, outer), (_, inner), out = arguments("gemm_rows (cuda)", empty_cuda, x, w, rows, cols, bias, out=out)
    if strides := _strided(w, rows, cols, x, out):
        *along, lists = strides
        return gemm_block.launch_block(
            flat(x), flat(w), (x.shape[0], outer, inner), (inner, 1), along[::-1], out, bias, relu, scale=scale, indices=lists
        )
    if packed := _packed(x, w, rows, cols, bias, out, (outer, inner)):
        block, bias = packed
        return gemm_block.launch_block(
            flat(x), block, (x.shape[0], outer, inner), (inner, 1), (1, inner), out, bias, relu, scale=scale
        )
    launch(
        _listed(False, TILE),
        (ceil_div(outer, TILE), ceil_div(x.shape[0], TILE)),
        (TILE // 2, TILE // 2),
        x,
        w,
        _listed_indices(rows, w.shape[0]),
        _listed_indices(cols, w.shape[1]),
        flat(w) if bias is None else bias,
        out,
        bias is not None,
        relu,
        scale,
    )
    return out


def gemm_rows_dx_cuda(dy, w, rows, cols, where=None, scale=1.0, out=None):
    (_, inner), (_, outer), out = arguments("gemm_rows_dx (cuda)", empty_cuda, dy, w, rows, cols, where=where, out=out)
    if strides := _strided(w, rows, cols, dy, out):
        *along, lists = strides
        return gemm_block.launch_block(
            flat(dy), flat(w), (dy.shape[0], outer, inner), (inner, 1), along, out, where=where, alpha=scale, indices=lists
        )
    if packed := _packed(dy, w, rows, cols, None, out, (inner, outer)):
        return gemm_block.launch_block(
            flat(dy), packed[0], (dy.shape[0], outer, inner), (inner, 1), (outer, 1), out, where=where, alpha=scale
        )
    launch(
        _listed(True, TILE),
        (ceil_div(outer, TILE), ceil_div(dy.shape[0], TILE)),
        (TILE // 2, TILE // 2),
        dy,
        w,
        _listed_indices(rows, w.shape[0]),
        _listed_indices(cols, w.shape[1]),
        flat(w),
        out,
        False,
        False,
        scale,
    )
    return out if where is None else relu_grad_cuda(out, where, out=out)


def gemm_rows_masked(x, w, mask, out=None):
    """For teaching only: y = x (w * mask[:, None]).T with dense x and y; the grid covers all rows, also dropped ones."""
    out = output(
        "gemm_rows_masked (cuda)", empty_cuda, out, ("N", "O"), x=(x, ("N", "I")), w=(w, ("O", "I")), mask=(mask, ("O",), BOOL)
    )
    tile = min(TILE // 2, 16)
    launch(_masked(tile), (w.shape[0], ceil_div(x.shape[0], tile)), (tile, tile), x, w, mask, out)
    return out
