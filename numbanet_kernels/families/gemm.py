"""Matrix product with a fused epilogue: c[m, n] = act(scale * sum_k A[m, k] B[k, n] + bias[n]), and its gradient.

A (M, K) is a or, if `ta`, a.T; B (K, N) is b or, if `tb`, b.T. act is ReLU if `relu`, else the identity. If an array `where`
(M, N) is given, c is 0 unless where[m, n] > 0: this is the gradient of a ReLU with output `where`. The gradient of a weight is
computed together with that of its bias:

    gemm_dw     dw[o, i] = sum_n dy[n, o] x[n, i],   db[o] = db_scale * sum_n dy[n, o]

2 M N K FLOPs on 4 (M K + K N + M N) bytes. Each version below computes the same result, with fewer loads from memory than the
one before.

    1 naive      a thread per output, every operand from global memory: 2 loads for each multiply-add
    2 tiled      a block keeps a tile x tile piece of A and B in shared memory: `tile` times fewer global loads
    3 register   each thread keeps 4 x 4 outputs in registers: 8 shared loads for 16 multiply-adds
    4 block      8 x 8 outputs, 16-byte loads, double buffering: `gemm_block`, the default on devices that support it
    5 tensor     the same on tensor cores, with the error of float32; tf32: operands rounded to 10 bits
"""

from __future__ import annotations

import numpy as np
from numba import float32

from ..blocks import gemm_block
from ..host import blas, threads
from ..host.few_gemm import multiply_few
from ..host.threads import WHOLE
from ..host.transpose import EMPTY, transpose_back
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import shapes
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import empty_cpu, empty_cuda, flat
from .elementwise import relu_grad_cpu, relu_grad_cuda
from .reduce import sum_rows_cpu, sum_rows_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def gemm_reference(a, b, ta=False, tb=False, bias=None, relu=False, scale=1.0, where=None):
    """c = act(scale * A B + bias) in float64, 0 unless where > 0."""
    a, b = np.float64(a), np.float64(b)
    c = scale * ((a.T if ta else a) @ (b.T if tb else b))
    c = c if bias is None else c + np.float64(bias)
    c = np.maximum(c, 0) if relu else c
    return c if where is None else np.where(np.asarray(where) > 0, c, 0)


def gemm_dw_reference(dy, x, db_scale=1.0):
    """Return (dw, db) of gemm_dw, in float64."""
    return np.float64(dy).T @ np.float64(x), db_scale * np.float64(dy).sum(0)


def _checks(op):
    """Return a table of checks of the shapes, at [ta][tb], which return (M, K, N), or (K, M, N) if `ta`."""
    return [
        [shapes(op, a="KM" if ta else "MK", b="NK" if tb else "KN", bias="N", where="MN", out="MN") for tb in (0, 1)]
        for ta in (0, 1)
    ]


_CHECKS = {empty_cpu: _checks("gemm (cpu)"), empty_cuda: _checks("gemm (cuda)")}


def _output(empty, a, b, ta, tb, bias, where, out):
    first, second, n = _CHECKS[empty][bool(ta)][bool(tb)](a, b, bias, where, out)
    return empty((second if ta else first, n)) if out is None else out


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], f4[::1], b1, b1, f4, f4)")
def _epilogue(c, bias, biased, relu, scale, alpha):
    """c = scale * act(alpha * c + bias)"""
    for m in range(c.shape[0]):
        for n in range(c.shape[1]):
            value = alpha * c[m, n]
            if biased:
                value += bias[n]
            if relu and value < 0:  # not max(value, 0), because NaN must stay NaN
                value = float32(0)
            c[m, n] = scale * value


# Each thread multiplies with its own rows of the weight (`threads`): these are rows of c in dw = dy.T x, columns of c in y = x
# w.T, and a part of the sum in dx = dy w. A weight with few rows, such as a classifier's last layer, is divided by columns
# instead: those of the activations that the thread computed or will read. BLAS is up to 1.7 times faster on w x.T and w.T dy.T
# than on x w.T and dy w (1.15 times at batch 128), so these are computed transposed; the pass that adds bias and ReLU
# transposes back. Many samples, whose activations have more elements than the weight, are divided instead: each thread reads
# the whole weight. With fewer samples, writing to a weight that the other threads have read (`threads`) would take longer.
LEAST_ROWS, LEAST_DEPTH = 32, 64  # smallest number of rows of a weight per thread, and smallest length of a part of a sum
MANY = 512  # smallest number of samples that are divided


def _by_rows(a, b, out, bias=None, relu=False, scale=1.0, alpha=1.0):
    """out = scale * act(alpha * a b + bias); each thread computes a part of the rows of a."""

    def work(part):
        rows = part.of(a.shape[0])
        blas.matmul(a[rows], b, out=out[rows])
        if bias is not None or relu or scale != 1.0 or alpha != 1.0:
            _epilogue(out[rows], EMPTY if bias is None else bias, bias is not None, relu, scale, alpha)

    threads.share(work, flops=2 * out.size * a.shape[1])
    return out


def _by_columns(a, b, out, bias=None, relu=False, scale=1.0, alpha=1.0):
    """out = scale * act(alpha * a b + bias); each thread computes a part of the columns of b."""

    def work(part):
        cols = part.of(b.shape[1])
        blas.matmul(a, b[:, cols], out=out[:, cols])

    threads.share(work, max(out.size, b.size), 2 * out.size * a.shape[1])
    if bias is not None or relu or scale != 1.0 or alpha != 1.0:
        _epilogue(out, EMPTY if bias is None else bias, bias is not None, relu, scale, alpha)
    return out


def _few(rows):
    """Return True if a weight with this number of rows is too small to be divided by rows among the threads."""
    return rows < LEAST_ROWS * threads.count()


def multiply_forward(x, weight, out, bias=None, relu=False, scale=1.0, alpha=1.0):
    """out = scale * act(alpha * x w.T + bias); weight(part) returns a thread's rows of w."""
    n, depth = out.shape[1], x.shape[1]
    shared = threads.worthwhile(flops=2 * out.size * depth)
    if (shared or threads.worthwhile(x.size)) and _few(n):
        return _forward_by_columns(x, weight(WHOLE), out, bias, relu, scale, alpha)
    if not shared or (len(x) >= MANY and x.size + out.size > n * depth):
        return _by_rows(x, weight(WHOLE).T, out, bias, relu, scale, alpha)
    transposed = empty_cpu((1, n, x.shape[0]))

    def work(part):
        cols = part.of(n)
        blas.matmul(weight(part), x.T, out=transposed[0, cols])
        transpose_back(transposed, out, cols, bias, relu, scale, alpha)

    threads.share(work)
    return out


def _forward_by_columns(x, w, out, bias, relu, scale, alpha):
    """out = scale * act(alpha * x w.T + bias); each thread computes a part of the sum over the columns of w."""
    depth = x.shape[1]
    if depth < LEAST_DEPTH * threads.count():
        return _by_rows(x, w.T, out, bias, relu, scale, alpha)
    with threads.session():
        terms = empty_cpu((threads.count(), out.shape[1], out.shape[0]))

        def work(part):
            cols = part.of(depth)
            blas.matmul(w[:, cols], x[:, cols].T, out=terms[part.number])

        threads.share(work)
    transpose_back(terms, out, slice(0, out.shape[1]), bias, relu, scale, alpha)
    return out


def multiply_back(dy, weight, out, bias=None, relu=False, alpha=1.0):
    """out = act(alpha * dy w + bias); weight(part) returns a thread's rows of w."""
    depth = dy.shape[1]
    if not threads.worthwhile(flops=2 * out.size * depth) or _few(depth):
        return _by_columns(dy, weight(WHOLE), out, bias, relu, alpha=alpha)
    if len(dy) >= MANY and dy.size + out.size > depth * out.shape[1]:
        return _by_rows(dy, weight(WHOLE), out, bias, relu, alpha=alpha)
    with threads.session():
        terms = empty_cpu((threads.count(), out.shape[1], out.shape[0]))

        def work(part):
            blas.matmul(weight(part).T, dy[:, part.of(depth)].T, out=terms[part.number])

        threads.share(work)
        threads.share(lambda part: transpose_back(terms, out, part.of(out.shape[1]), bias, relu, alpha=alpha))
    return out


def gemm_cpu(a, b, ta=False, tb=False, bias=None, relu=False, scale=1.0, where=None, out=None):
    """c[m, n] = act(scale * sum_k A[m, k] B[k, n] + bias[n]); if `where` is given, 0 unless where[m, n] > 0"""
    out = _output(empty_cpu, a, b, ta, tb, bias, where, out)
    if ta:
        (_by_columns if _few(out.shape[0]) else _by_rows)(a.T, b.T if tb else b, out, bias, relu, alpha=scale)
    else:
        (multiply_forward if tb else multiply_back)(a, lambda part: b[part.of(b.shape[0])], out, bias, relu, alpha=scale)
    return out if where is None else relu_grad_cpu(out, where, out=out)


def gemm_few_cpu(x, w, bias=None, relu=False, scale=1.0):
    """y[n, o] = act(scale * sum_i x[n, i] w[o, i] + bias[o]); on the CPU, y[n] is equal to the last bit for any N"""
    return multiply_few(x, w, bias, relu, scale)


_CHECK_DW = shapes("gemm_dw", dy="NO", x="NI")


def gemm_dw_cpu(dy, x, db_scale=1.0):
    """Return (dw, db), where dw[o, i] = sum_n dy[n, o] x[n, i] and db[o] = db_scale * sum_n dy[n, o]."""
    _CHECK_DW(dy, x)
    return gemm_cpu(dy, x, ta=True), sum_rows_cpu(dy, db_scale)


# --- CUDA -------------------------------------------------------------------------------------------------------------
# Operands are flat, with two strides, A[m, k] = a[m * am + k * ak]: a transpose only swaps the strides. Loads walk along the
# axis with stride 1, so that they are coalesced.
SIGNATURE = "void(f4[::1], f4[::1], f4[::1], f4[:, ::1], i4, i4, i4, i4, i4, b1, b1, f4)"


@kernels("gemm")
def _naive():
    @kernel(SIGNATURE)
    def gemm_naive(a, b, bias, c, depth, am, ak, bk, bn, biased, relu, scale):
        """Version 1: each thread computes one output."""
        col, row = cuda.grid(2)
        if row < c.shape[0] and col < c.shape[1]:
            acc = float32(0)
            for k in range(depth):
                acc += a[row * am + k * ak] * b[k * bk + col * bn]
            acc *= scale
            if biased:
                acc += bias[col]
            if relu and acc < float32(0):
                acc = float32(0)
            c[row, col] = acc

    return gemm_naive


@kernels("gemm")
def _tiled(tile=16):
    padded = tile + 1  # one column more than needed, which avoids bank conflicts

    @kernel(SIGNATURE)
    def gemm_tiled(a, b, bias, c, depth, am, ak, bk, bn, biased, relu, scale):
        """Version 2: tile x tile threads share their loads."""
        a_tile = cuda.shared.array((tile, padded), float32)
        b_tile = cuda.shared.array((tile, padded), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row0, col0 = cuda.blockIdx.y * tile, cuda.blockIdx.x * tile
        acc = float32(0)
        for k0 in range(0, depth, tile):
            # load one tile of each operand, zeros beyond the edges
            m, k = (ty, tx) if ak == 1 else (tx, ty)
            inside = row0 + m < c.shape[0] and k0 + k < depth
            a_tile[m, k] = a[(row0 + m) * am + (k0 + k) * ak] if inside else float32(0)
            n, k = (tx, ty) if bn == 1 else (ty, tx)
            inside = col0 + n < c.shape[1] and k0 + k < depth
            b_tile[k, n] = b[(k0 + k) * bk + (col0 + n) * bn] if inside else float32(0)
            cuda.syncthreads()
            # multiply
            for k in range(tile):
                acc += a_tile[ty, k] * b_tile[k, tx]
            cuda.syncthreads()
        row, col = row0 + ty, col0 + tx
        if row < c.shape[0] and col < c.shape[1]:
            acc *= scale
            if biased:
                acc += bias[col]
            if relu and acc < float32(0):
                acc = float32(0)
            c[row, col] = acc

    return gemm_tiled


@kernels("gemm")
def _register(tile=64):
    side = tile // 4  # threads along each axis of the block; thread (ty, tx) computes rows ty + i*side, columns tx + j*side
    threads = side * side
    depth_tile = max(tile // 4, 1)
    padded = tile + 1

    @kernel(SIGNATURE)
    def gemm_register(a, b, bias, c, depth, am, ak, bk, bn, biased, relu, scale):
        """Version 3: each thread computes 4 x 4 outputs, as four rows of four scalars, so that they stay in registers."""
        a_tile = cuda.shared.array((depth_tile, padded), float32)
        b_tile = cuda.shared.array((depth_tile, padded), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        t = ty * side + tx
        row0, col0 = cuda.blockIdx.y * tile, cuda.blockIdx.x * tile
        zero = float32(0)
        c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = zero
        c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = zero
        for k0 in range(0, depth, depth_tile):
            # load: consecutive threads walk along the contiguous axis of each operand
            for i in range(t, tile * depth_tile, threads):
                m, k = (i // depth_tile, i % depth_tile) if ak == 1 else (i % tile, i // tile)
                inside = row0 + m < c.shape[0] and k0 + k < depth
                a_tile[k, m] = a[(row0 + m) * am + (k0 + k) * ak] if inside else zero
                n, k = (i % tile, i // tile) if bn == 1 else (i // depth_tile, i % depth_tile)
                inside = col0 + n < c.shape[1] and k0 + k < depth
                b_tile[k, n] = b[(k0 + k) * bk + (col0 + n) * bn] if inside else zero
            cuda.syncthreads()
            # multiply
            for k in range(depth_tile):
                b0, b1, b2, b3 = (b_tile[k, tx], b_tile[k, tx + side], b_tile[k, tx + 2 * side], b_tile[k, tx + 3 * side])
                a0, a1, a2, a3 = (a_tile[k, ty], a_tile[k, ty + side], a_tile[k, ty + 2 * side], a_tile[k, ty + 3 * side])
                c00, c01, c02, c03 = c00 + a0 * b0, c01 + a0 * b1, c02 + a0 * b2, c03 + a0 * b3
                c10, c11, c12, c13 = c10 + a1 * b0, c11 + a1 * b1, c12 + a1 * b2, c13 + a1 * b3
                c20, c21, c22, c23 = c20 + a2 * b0, c21 + a2 * b1, c22 + a2 * b2, c23 + a2 * b3
                c30, c31, c32, c33 = c30 + a3 * b0, c31 + a3 * b1, c32 + a3 * b2, c33 + a3 * b3
            cuda.syncthreads()
        # unrolled, so that tuples of registers need no local memory
        for i, r in (
            (0, (c00, c01, c02, c03)),
            (1, (c10, c11, c12, c13)),
            (2, (c20, c21, c22, c23)),
            (3, (c30, c31, c32, c33)),
        ):
            row = row0 + ty + i * side
            for j in range(4):
                col = col0 + tx + j * side
                if row < c.shape[0] and col < c.shape[1]:
                    value = scale * r[j]
                    if biased:
                        value += bias[col]
                    if relu and value < zero:
                        value = zero
                    c[row, col] = value

    return gemm_register


LADDER = ("naive", "tiled", "register", "block", "tensor", "tf32")  # the last three need compute capability 8.0
PASSES = {"block": 0, "tensor": 3, "tf32": 1}


def gemm_version(version, tile, a, b, ta=False, tb=False, bias=None, relu=False, scale=1.0, where=None, out=None):
    """Return the product, computed by the version with this name (see the module); the first four take a tile size, and "tf32"
    rounds operands to 10 bits. If `version` is None, the last version is used, in the precision of the session.
    """
    out = _output(empty_cuda, a, b, ta, tb, bias, where, out)
    (m, n), k = out.shape, a.shape[0 if ta else 1]
    am, ak = (1, m) if ta else (k, 1)
    bk, bn = (1, k) if tb else (n, 1)
    if version in (None, *LADDER[3:]):
        return gemm_block.launch_block(
            flat(a),
            flat(b),
            (m, n, k),
            (am, ak),
            (bk, bn),
            out,
            bias,
            where=where,
            relu=relu,
            alpha=scale,
            tile=tile,
            passes=PASSES.get(version),
        )
    chosen = {"naive": _naive, "tiled": lambda: _tiled(tile), "register": lambda: _register(tile)}[version]()
    side = tile // 4 if version == "register" else tile
    launch(
        chosen,
        (ceil_div(n, tile), ceil_div(m, tile)),
        (side, side),
        flat(a),
        flat(b),
        flat(b) if bias is None else bias,
        out,
        k,
        am,
        ak,
        bk,
        bn,
        bias is not None,
        relu,
        scale,
    )
    return out if where is None else relu_grad_cuda(out, where, out=out)


TILE = 64  # tile of the register version, which has 256 threads with 4 x 4 outputs each


def gemm_cuda(a, b, ta=False, tb=False, bias=None, relu=False, scale=1.0, where=None, out=None):
    out = _output(empty_cuda, a, b, ta, tb, bias, where, out)
    version, tile = (None, None) if gemm_block.available(a, b, out) else ("register", TILE)
    return gemm_version(version, tile, a, b, ta, tb, bias, relu, scale, where, out=out)


def gemm_few_cuda(x, w, bias=None, relu=False, scale=1.0):
    return gemm_cuda(x, w, tb=True, bias=bias, relu=relu, scale=scale)


def gemm_dw_cuda(dy, x, db_scale=1.0):
    k, m, n = _CHECK_DW(dy, x)
    if not gemm_block.available(dy, x) or m * n >= 2**31 or not m * n * k:
        return gemm_cuda(dy, x, ta=True), sum_rows_cuda(dy, db_scale)
    dw, db = empty_cuda((m, n)), empty_cuda((m,))
    return gemm_block.launch_block(flat(dy), flat(x), (m, n, k), (1, m), (n, 1), dw, a_sums=db, sums_scale=db_scale), db


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "gemm": lambda: dev.gemm(a(N, I), a(O, I), tb=True, bias=a(O), relu=True),
        "gemm, back": lambda: dev.gemm(a(N, O), a(O, I), where=a(N, I)),
        "gemm_few": lambda: dev.gemm_few(a(N // 8, I), a(O, I), bias=a(O), relu=True),
        "gemm_dw": lambda: dev.gemm_dw(a(N, O), a(N, I)),
    }
