"""Kernels that write the whole im2col matrix of a convolution, one thread per element: the teaching step before
`cuda_implicit_gemm`.

im2col   A[g, r, k] = x[n, oh stride - padding + kh dilation, ow stride - padding + kw dilation, g C / groups + c]
col2im   dx[n, h, w, c] = scale times the sum of dA[g, r, k] over the (r, k) that read this pixel. A thread enumerates these
         (r, k) in the order of k, so that no atomics are needed. Dropped elements of the matrix add nothing
transpose   w (O, C, KH, KW) <-> wt (KH KW C, O): the columns of A are k = (kh, kw, c)
"""

from __future__ import annotations

from numba import float32, int32

from ...blocks.index_views import block_inverse, row_inverse
from ...layouts.windows import Blocks
from ...runtime.declare import cuda, kernel, kernels
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, blocks_for, empty_cuda, flat
from .cuda_gather import split

WHOLE, ROWS, BLOCKS = range(3)  # kept part of the matrix
WINDOW = "UniTuple(i4, 8)"  # a `Window`'s pairs in order


def pairs_of(window):
    """Return the kernel, stride, padding and dilation of a window as one tuple, each along the height and along the width."""
    return tuple(number for pair in window for number in pair)


# --- im2col and back --------------------------------------------------------------------------------------------------
@kernels("conv")
def _im2col():
    @kernel(f"void(f4[:, :, :, ::1], f4[:, :, ::1], {WINDOW}, i4, i4)")
    def im2col(x, matrix, window, grid_height, grid_width):
        i = int32(cuda.grid(1))
        if i < matrix.size:
            _, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w = window
            channels, _ = split(int32(x.shape[3]), int32(matrix.shape[0]))
            row, k = split(i, int32(matrix.shape[2]))
            g, r = split(row, int32(matrix.shape[1]))
            row, ow = split(r, grid_width)
            n, oh = split(row, grid_height)
            tap, c = split(k, channels)
            kh, kw = split(tap, kernel_w)
            h = int32(oh * stride_h - padding_h + kh * dilation_h)
            w = int32(ow * stride_w - padding_w + kw * dilation_w)
            inside = 0 <= h < x.shape[1] and 0 <= w < x.shape[2]
            matrix[g, r, k] = x[n, h, w, g * channels + c] if inside else float32(0)

    return im2col


@kernels("conv")
def _col2im(plan=ROWS):
    @kernel(f"void(f4[::1], f4[:, :, :, ::1], i4[::1], {WINDOW}, i4, i4, i4, i4, i4, i4, i4, i4, f4)")
    def col2im(
        matrix, dx, places, window, rows, cols, channels, grid_height, grid_width, block_height, block_width, block_cols, scale
    ):
        i = int32(cuda.grid(1))
        if i < dx.size:
            kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w = window
            pixel, c = split(i, int32(dx.shape[3]))
            row, w = split(pixel, int32(dx.shape[2]))
            n, h = split(row, int32(dx.shape[1]))
            g, k = split(c, channels)
            # pixel h = oh stride - padding + kh dilation: from kh to kh + 1, oh and the remainder decrease by a constant
            (down, down_over), (across, across_over) = split(dilation_h, stride_h), split(dilation_w, stride_w)
            oh, over_h = split(int32(h + padding_h), stride_h)
            total = float32(0)
            for _ in range(kernel_h):
                ow, over_w = split(int32(w + padding_w), stride_w)
                for _ in range(kernel_w):
                    if over_h == 0 and over_w == 0 and 0 <= oh < grid_height and 0 <= ow < grid_width:
                        r, col = int32((n * grid_height + oh) * grid_width + ow), k
                        if plan == ROWS:
                            r = places[r]
                        elif plan == BLOCKS:
                            j, col = split(k, block_width)
                            col = int32(col + places[split(r, block_height)[0] * block_cols + j] * block_width)
                        if r >= 0 and col >= 0:
                            total += matrix[int32((g * rows + r) * cols + col)]
                    ow, over_w, k = int32(ow - across), int32(over_w - across_over), int32(k + channels)
                    if over_w < 0:
                        ow, over_w = int32(ow - 1), int32(over_w + stride_w)
                oh, over_h = int32(oh - down), int32(over_h - down_over)
                if over_h < 0:
                    oh, over_h = int32(oh - 1), int32(over_h + stride_h)
            dx[n, h, w, c] = scale * total

    return col2im


def launch_im2col(x, window, groups=1, out=None):
    """Return the im2col matrix A (groups, N P, KH KW C / groups) of images x (N, H, W, C) with P output positions each."""
    (grid_height, grid_width), (kernel_h, kernel_w) = window.positions(*x.shape[1:3]), window.kernel
    shape = groups, x.shape[0] * grid_height * grid_width, kernel_h * kernel_w * (x.shape[3] // groups)
    expect("im2col (cuda)", x=(x, ("N", "H", "W", "C")), out=(out, shape))
    out = empty_cuda(shape) if out is None else out
    launch(_im2col(), blocks_for(out.size), THREADS, x, out, pairs_of(window), grid_height, grid_width)
    return out


def launch_col2im(matrix, shape, window, scale=1.0, rows=None, blocks=None):
    """Return dx of shape `shape`, (N, H, W, C), given dA. `matrix` is the whole dA (groups, N P, K), or the kept rows (groups,
    R, K), or the kept blocks (groups, N P, Q width), in which column q width + j is column j of the q-th kept block."""
    grid_height, grid_width = window.positions(*shape[1:3])
    total, depth = shape[0] * grid_height * grid_width, window.kernel[0] * window.kernel[1] * (shape[3] // matrix.shape[0])
    plan, places, (_, height, width) = WHOLE, None, (Blocks(None, 1, 1) if blocks is None else blocks)[:3]
    if rows is not None:
        plan, places = ROWS, row_inverse(rows, total)
    elif blocks is not None:
        plan, places = BLOCKS, flat(block_inverse(blocks, depth))
    dx = empty_cuda(shape)
    launch(
        _col2im(plan),
        blocks_for(dx.size),
        THREADS,
        flat(matrix),
        dx,
        empty_cuda((1,), INT32) if places is None else places,
        pairs_of(window),
        *matrix.shape[1:],
        shape[3] // matrix.shape[0],
        grid_height,
        grid_width,
        height,
        width,
        ceil_div(depth, width),
        scale,
    )
    return dx


# --- the weight transposed ------------------------------------------------------------------------------------------------
SIDE, LINES = 32, 8  # a block's tile, and the number of its rows that are read at once


@kernels("conv")
def _transposes():
    """Return two kernels, which compute wt from w and w from wt. A tile passes through shared memory, so that reads and writes
    are coalesced.
    """
    pitch = SIDE + 1

    def declared(back):
        @kernel("void(f4[:, ::1], f4[:, ::1], i4)")
        def transpose(w, wt, taps):
            """w (O, C KH KW); its column c taps + tap becomes row tap C + c of wt."""
            tile = cuda.shared.array((SIDE, pitch), float32)
            tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
            o0, k0 = int32(cuda.blockIdx.x * SIDE), int32(cuda.blockIdx.y * SIDE)
            channels = w.shape[1] // taps
            for i in range(ty, SIDE, LINES):
                k, o = (k0 + i, o0 + tx) if back else (k0 + tx, o0 + i)
                if k < w.shape[1] and o < w.shape[0]:
                    if back:
                        tile[tx, i] = wt[k % taps * channels + k // taps, o]
                    else:
                        tile[i, tx] = w[o, k]
            cuda.syncthreads()
            for i in range(ty, SIDE, LINES):
                k, o = (k0 + tx, o0 + i) if back else (k0 + i, o0 + tx)
                if k < w.shape[1] and o < w.shape[0]:
                    if back:
                        w[o, k] = tile[i, tx]
                    else:
                        wt[k % taps * channels + k // taps, o] = tile[tx, i]

        return transpose

    return declared(False), declared(True)


def _transpose(back, w, wt):
    outs, channels, height, width = w.shape
    launch(
        _transposes()[back],
        (ceil_div(outs, SIDE), ceil_div(channels * height * width, SIDE)),
        (SIDE, LINES),
        w.reshape(outs, channels * height * width),
        wt,
        height * width,
    )


def transpose_weight(w):
    """Return wt (KH KW C, O), the transposed w (O, C, KH, KW)."""
    found = expect("transpose_weight (cuda)", w=(w, ("O", "C", "KH", "KW")))
    wt = empty_cuda((found["KH"] * found["KW"] * found["C"], found["O"]))
    _transpose(False, w, wt)
    return wt


def transpose_gradient(dwt, shape, out=None):
    """Return dw of shape `shape`, (O, C, KH, KW), given dwt (KH KW C, O)."""
    outs, channels, height, width = shape
    expect("transpose_gradient (cuda)", dwt=(dwt, (height * width * channels, outs)), out=(out, tuple(shape)))
    out = empty_cuda(shape) if out is None else out
    _transpose(True, out, dwt)
    return out
