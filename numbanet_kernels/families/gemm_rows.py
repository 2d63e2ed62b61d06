"""Matrix product with the kept rows and columns of a weight w (O, I): rows (K,) and cols (J,) are the kept indices.

    forward   y[n, k]  = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]])      x (N, J) -> y (N, K)
    dx        dx[n, j] = scale * sum_k dy[n, k] w[rows[k], cols[j]]                          dy (N, K) -> dx (N, J)
              if an array `where` (N, J) is given, 0 unless where[n, j] > 0
    dw        dw[k, j] = sum_n dy[n, k] x[n, j]: a dense product (gemm_dw), because activations are compact

The work is 2 N K J FLOPs instead of 2 N O I. Each of `rows` and `cols` is a slice up to the end of the axis, an int32 array on
the device, a `layouts.rows.Period` or `Window`, or None for the whole axis. On CUDA, "masked" is for teaching only: blocks of
dropped rows return before their first barrier. "listed" takes any index lists, and its grid has only the kept outputs.
On a GPU that has `gemm_block`, it multiplies: in place if the kept indices have constant strides, else what "packed" copies,
which is K J numbers, a small part of the time of the product.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import float32

from ..blocks import gemm_block
from ..host.gather import copy_rows, gather, gather_entries, gather_rows, gathered
from ..host.gathered_gemm import multiply_listed
from ..host.window_gemm import check_runs, multiply_window, multiply_window_back
from ..layouts.rows import Period, Window
from ..runtime.arrays import device_cache, to_device
from ..runtime.declare import cuda, kernel, kernels, tape
from ..runtime.expect import BOOL, INT32, expect, shapes
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda, flat, output
from .elementwise import relu_grad_cpu, relu_grad_cuda
from .gemm import multiply_back, multiply_forward


# --- reference --------------------------------------------------------------------------------------------------------
def _submatrix(w, rows, cols):
    """Return w[rows][:, cols]; rows and cols are index arrays or slices, or None, which stands for all."""
    w = w if rows is None else w[rows]
    return w if cols is None else w[:, cols]


def gemm_rows_reference(x, w, rows, cols, bias=None, relu=False, scale=1.0):
    """y[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]]) in float64."""
    y = np.float64(x) @ _submatrix(np.float64(w), rows, cols).T
    if bias is not None:
        y = y + np.float64(bias)[slice(None) if rows is None else rows]
    return scale * (np.maximum(y, 0) if relu else y)


def gemm_rows_dx_reference(dy, w, rows, cols, where=None, scale=1.0):
    """dx[n, j] = scale * sum_k dy[n, k] w[rows[k], cols[j]] in float64, 0 unless where > 0."""
    dx = scale * (np.float64(dy) @ _submatrix(np.float64(w), rows, cols))
    return dx if where is None else np.where(np.asarray(where) > 0, dx, 0)


ALL = slice(None)


def _chosen(op, index, n):
    """Return (the kept indices of an axis of length n, as a slice or an int32 array; the number of kept indices)."""
    if index is None:
        return ALL, n
    if isinstance(index, Window):
        expect(op, indices=(index.indices, (index.count,), INT32))
        if index.n != n:
            raise ValueError(f"{op}: a window of an axis of length {index.n}, not {n}")
        return index, index.count
    chosen, indices = (index.slice, index.indices) if isinstance(index, Period) else (index, index)
    if isinstance(chosen, slice):
        count = len(range(*chosen.indices(n)))
        fits = chosen.stop in (None, n) and (chosen.step or 1) > 0
    else:
        count = expect(op, indices=(index, ("K",), INT32))["K"]
        fits = count <= n
    if indices is not chosen and not (indices.dtype is INT32 and indices.shape == (count,)):
        expect(op, indices=(indices, (count,), INT32))
    if not fits:
        raise ValueError(f"{op}: {chosen} do not index an axis of length {n}; a slice must end at the end of its axis")
    return chosen, count


_CHECKS = {
    op: shapes(op, x="NP", w="OI", bias="O")
    for op in ("gemm_rows (cpu)", "gemm_rows (cuda)", "gemm_rows_dx (cpu)", "gemm_rows_dx (cuda)")
}


def _arguments(op, empty, x, w, rows, cols, bias=None, where=None, out=None):
    """Return ((rows, number of rows), (cols, number of cols), output array); `_chosen` returns the first two."""
    n, width, height, depth = _CHECKS[op](x, w, bias)
    rows, cols = _chosen(op, rows, height), _chosen(op, cols, depth)
    inner, outer = (rows[1], cols[1]) if "_dx" in op else (cols[1], rows[1])
    if width != inner or where is not None or out is not None:
        expect(op, x=(x, (n, inner)), where=(where, (n, outer)), out=(out, (n, outer)), w=(w, (height, depth)))
    return rows, cols, empty((n, outer)) if out is None else out


# --- CPU --------------------------------------------------------------------------------------------------------------
# BLAS reads rows with a constant stride without a copy. Kept columns are gathered, each thread gathering its own rows. Index
# lists of rows use `multiply_listed` in the forward pass and are gathered for dx.
_numbers = functools.lru_cache(maxsize=64)(lambda *indices: np.arange(*indices, dtype=np.int32))


def _numbered(op, index, n):
    """Return the indices as an array; raise ValueError if one is out of range, except in a recording: plans checked them."""
    if isinstance(index, slice):
        return _numbers(*index.indices(n))
    index = index.indices if isinstance(index, Window) else index
    if index.size and tape.get() is None and not 0 <= index.min() <= index.max() < n:
        raise ValueError(f"{op}: {index} has indices outside an axis of length {n}")
    return index if index.flags.c_contiguous else np.ascontiguousarray(index)


LISTED = 1 << 17  # submatrices with fewer elements are gathered by index arrays, even if a view is possible


def _lists(op, w, rows, cols):
    """Return (rows, cols) as arrays; None if one is a slice, or if the submatrix is large. cols is None for all columns."""
    if isinstance(rows, slice) or isinstance(cols, slice) or (rows is None and cols is None):
        return None
    rows, cols = (index.indices if isinstance(index, (Period, Window)) else index for index in (rows, cols))
    height, width = w.shape[0] if rows is None else rows.size, w.shape[1] if cols is None else cols.size
    if height * width > LISTED:
        return None
    rows = _numbers(w.shape[0]) if rows is None else _numbered(op, rows, w.shape[0])
    return rows, None if cols is None else _numbered(op, cols, w.shape[1])


def _view(array, given):
    """Return the view of an array that slices, periods or None select. In a recorded step, each replay moves the beginning of
    the view to the first indices of the periods, because another plan of the same kind selects another view.
    """
    view = array[tuple(ALL if index is None else index.slice if isinstance(index, Period) else index for index in given)]
    if (writer := tape.get()) is None:
        return view
    if any(isinstance(index, slice) for index in given):
        writer.refuse(f"a product with a view of w {array.shape}")
    return writer.moving(view, array, [index and index.indices for index in given])


def _windows(op, w, given):
    """Return True if one axis has a window, and the other a window or None; one or two views per window are then multiplied. If
    the other axis has a list, the window is used as a list, too.
    """
    windows = {type(index) for index in given if index is not None} == {Window}
    for index, n in zip(given, w.shape, strict=True) if windows else ():
        index is None or check_runs(op, _numbered(op, index, n), index.times)
    return windows


def _weight_of(op, w, rows, cols, given):
    """Return a function that maps a thread's part to its rows of w[rows][:, cols], as a view if possible, else as a copy."""
    sliced, whole = isinstance(rows, slice) and isinstance(cols, slice), isinstance(cols, slice) and cols == ALL
    if not sliced:
        rows, cols = (_numbered(op, index, n) for index, n in zip((rows, cols), w.shape, strict=True))
    view = _view(w, given) if sliced else np.broadcast_to(w[:1, :1], (rows.size, cols.size))

    def rows_of(part):
        span = part.of(view.shape[0])
        if sliced and cols.step in (None, 1):
            return view[span]
        out = empty_cpu(view[span].shape)
        if sliced:
            copy_rows(view[span], out)
        elif whole:
            gather_rows(w, rows[span], out)
        else:
            gather(w, rows[span], cols, out)
        return out

    return rows_of


def _entries(bias, indices):
    """Return bias[indices], from a loop that can be recorded; if one of both is None, return `bias`."""
    if bias is None or indices is None:
        return bias
    out = empty_cpu(indices.shape)
    gather_entries(bias, indices, out)
    return out


def gemm_rows_cpu(x, w, rows, cols, bias=None, relu=False, scale=1.0, out=None):
    """y[n, k] = scale * act(sum_j x[n, j] w[rows[k], cols[j]] + bias[rows[k]])"""
    op, given = "gemm_rows (cpu)", (rows, cols)
    (rows, _), (cols, _), out = _arguments(op, empty_cpu, x, w, rows, cols, bias, out=out)
    if (lists := _lists(op, w, *given)) is not None:
        weight = gathered(w, *lists)
        return multiply_forward(x, lambda part: weight[part.of(weight.shape[0])], out, _entries(bias, lists[0]), relu, scale)
    if _windows(op, w, given):
        return multiply_window(x, w, *given, out, _entries(bias, given[0] and given[0].indices), relu, scale)
    sliced, whole = isinstance(rows, slice) and isinstance(cols, slice), isinstance(cols, slice) and cols == ALL
    if not sliced:
        rows, cols = _numbered(op, rows, w.shape[0]), None if whole else _numbered(op, cols, w.shape[1])
    kept = None if given[0] is None else given[0].indices if isinstance(given[0], Period) else _numbered(op, rows, w.shape[0])
    if sliced:
        return multiply_forward(x, _weight_of(op, w, rows, cols, given), out, _entries(bias, kept), relu, scale)
    return multiply_listed(x, w, rows, cols, out, _entries(bias, kept), relu, scale)


def gemm_rows_dx_cpu(dy, w, rows, cols, where=None, scale=1.0, out=None):
    """dx[n, j] = scale * sum_k dy[n, k] w[rows[k], cols[j]]; if `where` is given, 0 unless where[n, j] > 0"""
    op, given = "gemm_rows_dx (cpu)", (rows, cols)
    (rows, _), (cols, _), out = _arguments(op, empty_cpu, dy, w, rows, cols, where=where, out=out)
    if (lists := _lists(op, w, *given)) is not None:
        copy = gathered(w, *lists)
        weight = lambda part: copy[part.of(copy.shape[0])]  # noqa: E731
    else:
        if _windows(op, w, given):
            dx = multiply_window_back(dy, w, *given, out, scale)
            return dx if where is None else relu_grad_cpu(dx, where, 1.0, out=out)
        weight = _weight_of(op, w, rows, cols, given)
    if where is None:
        return multiply_back(dy, weight, out, alpha=scale)
    return relu_grad_cpu(multiply_back(dy, weight, out), where, scale, out=out)


# --- CUDA -------------------------------------------------------------------------------------------------------------
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


def _packed(x, w, rows, cols, bias, outer, inner):
    """Return (w[rows][:, cols], bias[rows] or None), which the faster kernel for dense products multiplies; None if the device
    lacks it. Lists and windows, which may be of two parts, have no constant strides.
    """
    if not gemm_block.available(w, x) or not outer * inner:
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
    (_, outer), (_, inner), out = _arguments("gemm_rows (cuda)", empty_cuda, x, w, rows, cols, bias, out=out)
    if strides := _strided(w, rows, cols, x, out):
        *along, lists = strides
        return gemm_block.launch_block(
            flat(x), flat(w), (x.shape[0], outer, inner), (inner, 1), along[::-1], out, bias, relu, scale=scale, indices=lists
        )
    if packed := _packed(x, w, rows, cols, bias, outer, inner):
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
    (_, inner), (_, outer), out = _arguments("gemm_rows_dx (cuda)", empty_cuda, dy, w, rows, cols, where=where, out=out)
    if strides := _strided(w, rows, cols, dy, out):
        *along, lists = strides
        return gemm_block.launch_block(
            flat(dy), flat(w), (dy.shape[0], outer, inner), (inner, 1), along, out, where=where, alpha=scale, indices=lists
        )
    if packed := _packed(dy, w, rows, cols, None, inner, outer):
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


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    slices = slice(1, None, 3), slice(0, None, 2)
    rows, cols = (
        Period(np.arange(each.start, n, each.step, dtype=np.int32), slice(each.start, n, each.step))
        for each, n in zip(slices, (3 * O, I), strict=True)
    )
    lists = np.array([0, 2, 3, 7], np.int32) % (3 * O), np.array([0, 1, 4], np.int32) % I
    return {
        "gemm_rows": lambda: dev.gemm_rows(a(N, ceil_div(I, 2)), a(3 * O, I), *slices, a(3 * O), relu=True),
        "gemm_rows_dx": lambda: dev.gemm_rows_dx(a(N, O), a(3 * O, 2 * I), *slices),
        "gemm_rows, lists": lambda: dev.gemm_rows(a(N, 3), a(3 * O, I), lists[0], lists[1], a(3 * O)),
        "gemm_rows_dx, lists": lambda: dev.gemm_rows_dx(a(N, 4), a(3 * O, I), *lists),
        "gemm_rows, periods": lambda: dev.gemm_rows(a(N, cols.size), a(3 * O, I), rows, cols, a(3 * O), relu=True),
        "gemm_rows_dx, periods": lambda: dev.gemm_rows_dx(a(N, rows.size), a(3 * O, I), rows, cols),
    }
