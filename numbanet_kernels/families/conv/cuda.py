"""Convolutions on CUDA. If `choose` returns True, Winograd's filtering computes the results (`cuda_winograd`). Else products of
tiles of the im2col matrix do, and each thread block gathers its tiles from the images (`cuda_implicit_gemm`).
"""

from __future__ import annotations

import math

from ..elementwise import relu_grad_cuda
from ..gemm import gemm_cuda
from ..pooling import max_pool_cuda, max_pool_grad_cuda
from .cuda_im2col import launch_im2col, transpose_gradient, transpose_weight
from .cuda_implicit_gemm import launch_dw, launch_dx, launch_forward
from .family import check, check_pool, check_pool_grad, positions_of
from .winograd import cuda_winograd


def choose(window, shape, groups=1, rows=None, blocks=None):
    """True if results for images and outputs (N, H, W, C, O) are computed by Winograd's filtering, which computes all positions
    and channels. Kept filters and channels are those of a smaller weight, so that it serves them as well.
    """
    *images, outs = shape
    return groups == 1 and positions_of(rows).kept is None and blocks is None and cuda_winograd.suits(window, images, outs)


def conv2d_cuda(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    positions = check("conv2d (cuda)", x, w, window, groups, bias, rows=rows, blocks=blocks)
    if choose(window, (*x.shape, len(w)), groups, rows, blocks):
        return cuda_winograd.convolved(x, w, window, positions, bias, relu, scale)
    y = launch_forward(x, transpose_weight(w), window, bias, relu, scale, positions_of(rows).kept, blocks)
    return y.reshape((x.shape[0], *positions, w.shape[0]))


def conv2d_grad_cuda(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    check("conv2d_grad (cuda)", x, w, window, groups, None, dy, where, rows, blocks)
    if choose(window, (*x.shape, len(w)), groups, rows, blocks):
        return cuda_winograd.gradients(dy, where, x, w, window, scale, wants_dx)
    rows = positions_of(rows).kept
    slopes, gate = (None if array is None else array.reshape((math.prod(dy.shape[:3]), w.shape[0])) for array in (dy, where))
    dx = launch_dx(slopes, transpose_weight(w), gate, x.shape, window, scale, rows, blocks) if wants_dx else None
    dwt, db = launch_dw(x, slopes, gate, window, groups, scale, rows, blocks)
    return dx, transpose_gradient(dwt, w.shape), db


def conv2d_max_pool_cuda(
    x, w, window, pool, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None, wants_places=True
):
    op = "conv2d_max_pool (cuda)"
    positions = check(op, x, w, window, groups, bias, rows=rows, blocks=blocks)
    check_pool(op, pool, (x.shape[0], *positions, w.shape[0]))
    y, places = max_pool_cuda(conv2d_cuda(x, w, window, groups, bias, relu, scale, rows, blocks), pool)
    return y, places if wants_places else None


def conv2d_max_pool_grad_cuda(
    dy, y, places, x, w, window, pool, groups=1, relu=False, scale=1.0, rows=None, blocks=None, wants_dx=True
):
    op = "conv2d_max_pool_grad (cuda)"
    positions = check(op, x, w, window, groups, None, rows=rows, blocks=blocks)
    shape = (x.shape[0], *positions, w.shape[0])
    check_pool_grad(op, pool, shape, dy, y, places)
    # a pixel of a maximum has its value, so where y is not positive, the ReLU has no slope
    dz = max_pool_grad_cuda(relu_grad_cuda(dy, y) if relu else dy, places, pool, shape)
    return conv2d_grad_cuda(dz, x, w, window, groups, None, scale, rows, blocks, wants_dx)


def conv2d_materialised(x, w, window, bias=None):
    """Teaching step: return a convolution with one group. `im2col` writes the whole matrix, which is KH KW times as large as x,
    and a product reads it.
    """
    positions = check("conv2d (cuda)", x, w, window, 1, bias)
    return gemm_cuda(launch_im2col(x, window)[0], transpose_weight(w), bias=bias).reshape((x.shape[0], *positions, w.shape[0]))
