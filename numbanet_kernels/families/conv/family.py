"""Convolution of images with channels last, x (N, H, W, C), by a weight w (O, C / groups, KH, KW):

    conv2d        y[r, o] = act(scale sum_k A[r, k] w[o, k] + bias[o]), where act is ReLU if `relu`, else the identity
    conv2d_grad   dz[r, o] = dy[r, o]; but if `where` is given, dz[r, o] = 0 unless where[r, o] > 0
                  dA = scale dz w,   dw = scale dz.T A,   db[o] = sum_r dz[r, o]
                  dx[pixel] = the sum of dA[r, k] over all (r, k) for which A[r, k] is this pixel

    conv2d_max_pool, conv2d_max_pool_grad   of max_pool(conv2d(…)) (`families.pooling`). What is pooled is not kept for the
                  gradient, and not stored if images go abreast: a ReLU has a slope where the maximum is positive

The im2col matrix A has a row for each output position, r = (n, oh, ow), and a column k = (kh, kw, c) for each tap and channel
of the group: A[r, k] = x[n, oh stride - padding + kh dilation, ow stride - padding + kw dilation, c], 0 outside the image. A is
KH KW times as large as x and is never built: tiles of it are gathered and used at once, on the CPU at most 4 MB per thread (at
least 32 rows), on CUDA in shared memory. Nothing is gathered if the window is 3 x 3 with stride 1, channels and positions are
many, and there are no groups and no plan: then Winograd's filtering (`winograd`) is used, on the CPU and on CUDA. The CPU does
not gather either (`cpu_direct`) if there are at least two vectors of images and 32 positions and no groups, a tile of WIDTH
images fits into 10 MB, and its images keep the same blocks: it then multiplies the pixels directly, with one image per lane of
a vector. A plan may keep part of A:

    rows     an increasing int32 list: only these rows of A are computed, and other rows of y are 0 (without bias); on the CPU
             this is faster if many images have wide channels: these are multiplied where they lie, for the images of a block
             that keep a position at once (`cpu_position`); if the images of a tile keep the same rows; or if rows are those of
             whole tiles (`Positions`), for which Winograd's filtering is then used. If so many rows are kept that their
             products take longer than filtering all positions, all are computed, and the others are set to 0
    blocks   `Blocks`: each block row of A keeps some block columns; the number is the same for all block rows. If blocks have
             all taps of their channels, and whole images, the CPU uses Winograd's filtering for them. If not, wide blocks read
             pixels and the packed weight where they lie (`cpu_blocks`)
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ...layouts.windows import Blocks, Positions, Window, pooled
from ...runtime.expect import INT32, expect
from ..pooling import BYTE, in_bytes, max_pool_grad_reference, max_pool_reference


def positions_of(rows):
    """Return the argument `rows` of an operation as `Positions`; it may be an increasing list, or None for all rows."""
    return rows if isinstance(rows, Positions) else Positions(rows)


# --- reference --------------------------------------------------------------------------------------------------------
def kept_reference(positions, depth, rows=None, blocks=None):
    """Return an array (positions, depth) that is 1 for kept elements of A, else 0."""
    kept, rows = np.ones((positions, depth)), positions_of(rows).kept
    if rows is not None:
        kept[np.setdiff1d(np.arange(positions), rows)] = 0
    if blocks is not None:
        kept[:] = 0
        for b, columns in enumerate(np.asarray(blocks.kept)):
            for column in columns:
                kept[b * blocks.height : (b + 1) * blocks.height, column * blocks.width : (column + 1) * blocks.width] = 1
    return kept


def im2col_reference(x, window, groups=1):
    """Return A (groups, N P, KH KW C / groups) in float64; P is the number of output positions of an image."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    n, h, w, c = x.shape
    oh, ow = window.positions(h, w)
    padded = np.pad(np.float64(x), ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    taps = [
        padded[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    found = np.stack(taps, 3).reshape(n * oh * ow, kh * kw, groups, c // groups)
    return found.transpose(2, 0, 1, 3).reshape(groups, n * oh * ow, kh * kw * (c // groups))


def _matrix(w, groups):
    """Return w as an array (groups, O / groups, KH KW C / groups), float64."""
    outs, channels, kh, kw = w.shape
    return np.float64(w).transpose(0, 2, 3, 1).reshape(groups, outs // groups, kh * kw * channels)


def conv2d_reference(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    """Return y (N, OH, OW, O) of conv2d, in float64."""
    a, matrix = im2col_reference(x, window, groups), _matrix(w, groups)
    y = scale * np.concatenate([(part * kept_reference(*part.shape, None, blocks)) @ own.T for part, own in zip(a, matrix)], 1)
    y = y if bias is None else y + bias
    y = (np.maximum(y, 0) if relu else y) * kept_reference(len(y), 1, rows)
    return y.reshape(x.shape[0], *window.positions(*x.shape[1:3]), w.shape[0])


def conv2d_grad_reference(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    """Return (dx, dw, db) of conv2d_grad, in float64."""
    dz = np.float64(dy if where is None else dy * (where > 0)).reshape(math.prod(dy.shape[:3]), w.shape[0])
    dz = dz * kept_reference(len(dz), 1, rows)
    a, outs = im2col_reference(x, window, groups), w.shape[0] // groups
    kept = kept_reference(*a.shape[1:], None, blocks)
    parts = [scale * dz[:, g * outs : (g + 1) * outs] for g in range(groups)]
    dw = np.concatenate([part.T @ (own * kept) for part, own in zip(parts, a)])
    dw = dw.reshape(w.shape[0], *window.kernel, w.shape[1]).transpose(0, 3, 1, 2)
    numbers = im2col_reference(np.arange(x.size).reshape(x.shape) + 1, window, groups).astype(int)
    da = np.stack([part @ own for part, own in zip(parts, _matrix(w, groups))]) * kept
    dx = np.bincount(numbers.ravel(), da.ravel(), x.size + 1)[1:].reshape(x.shape)
    return dx if wants_dx else None, dw, dz.sum(0)


def conv2d_max_pool_reference(x, w, window, pool, **options):
    """Return y of conv2d_max_pool, in float64; `options` are those of conv2d."""
    return max_pool_reference(conv2d_reference(x, w, window, **options), pool)[0]


def conv2d_max_pool_grad_reference(dy, x, w, window, pool, bias=None, relu=False, wants_dx=True, **options):
    """Return (dx, dw, db) of conv2d_max_pool, in float64."""
    z = conv2d_reference(x, w, window, bias=bias, relu=relu, **options)
    dz = max_pool_grad_reference(dy, max_pool_reference(z, pool)[1], pool, z.shape)
    return conv2d_grad_reference(dz, x, w, window, where=z if relu else None, wants_dx=wants_dx, **options)


# --- checks, for CPU and CUDA -----------------------------------------------------------------------------------------
def check(op, x, w, window, groups, bias=None, dy=None, where=None, rows=None, blocks=None):
    """Check the arguments, and return the numbers of output positions along the height and along the width of images x; raise
    an error if the arguments do not fit.
    """
    if not isinstance(window, Window) or not (blocks is None or isinstance(blocks, Blocks)):
        raise TypeError(f"{op}: expected a Window and Blocks, got {window!r} and {type(blocks).__name__}")
    rows, _, tiles, side, _ = positions_of(rows)
    found = expect(
        op,
        x=(x, ("N", "H", "W", "C")),
        w=(w, ("O", "D", "KH", "KW")),
        bias=(bias, ("O",)),
        rows=(rows, ("R",), INT32),
        tiles=(tiles, ("T",), INT32),
        kept=(None if blocks is None else blocks.kept, ("B", "Q"), INT32),
        channels=(None if blocks is None else blocks.channels, ("B", "G"), INT32),
    )
    outs, channels, kernel = found["O"], found["D"], (found["KH"], found["KW"])
    if groups < 1 or channels * groups != found["C"] or outs % groups or kernel != tuple(window.kernel):
        raise ValueError(f"{op}: x {x.shape} does not match w {w.shape} with {groups} groups and {window}")
    if min(*window.kernel, *window.stride, *window.dilation) < 1 or min(window.padding) < 0:
        raise ValueError(f"{op}: {window} must have sizes from 1 and paddings from 0 on")
    positions = window.positions(*x.shape[1:3])
    if not min(positions):
        raise ValueError(f"{op}: the window {window} is larger than the images {x.shape[1:3]}")
    shape, depth = (found["N"], *positions, outs), channels * math.prod(kernel)
    expect(op, dy=(dy, shape), where=(where, shape))
    total = math.prod(shape[:3])
    if rows is not None and (blocks is not None or found["R"] > total):
        raise ValueError(f"{op}: {found['R']} rows are listed of {total}{' and blocks as well' if blocks is not None else ''}")
    if tiles is not None and (
        rows is None or side < 1 or found["T"] > found["N"] * math.prod(-(-n // side) for n in positions)
    ):
        raise ValueError(f"{op}: {found['T']} tiles of side {side} are not those of {positions} positions, or have no rows")
    if blocks is not None and (
        groups > 1
        or min(*blocks[1:3], blocks.together) < 1
        or found["B"] != -(-total // blocks.height)
        or found["Q"] > -(-depth // blocks.width)
    ):
        raise ValueError(
            f"{op}: blocks {blocks.kept.shape} of {blocks[1:3]} do not divide a matrix {total, depth}"
            f"{' of several groups' if groups > 1 else ''}"
        )
    if blocks is not None and blocks.channels is not None:
        places, (_, height, width, kept, _) = math.prod(positions), blocks
        if height % places or channels % width or found["Q"] != kept.shape[1] * math.prod(kernel):
            raise ValueError(f"{op}: {blocks[1:3]} are not blocks of {places} positions and {channels} channels with all taps")
    return positions


def check_pool(op, pool, shape):
    """Check the window of pooling of outputs of this shape; return the shape after it."""
    in_bytes(op, pool)
    return pooled(op, pool, shape)


def check_pool_grad(op, pool, shape, dy, y, places, marks=None):
    """Check the arrays after pooling; `marks` is the shape of `places` if they have a form of their own, of bytes."""
    if places is None:
        raise TypeError(f"{op}: places must be those of conv2d_max_pool with wants_places, not None")
    after = check_pool(op, pool, shape)
    kind = BYTE if marks or in_bytes(op, pool) else INT32
    expect(op, dy=(dy, after), y=(y, after), places=(places, marks or after, kind))


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    """Examples with images of 7 x 10 pixels, for which each kernel has several blocks."""
    window = Window((3, 3), (1, 1), (1, 1))
    images, channels, outs = max(N // 16, 1), max(I // 16, 1), max(O // 4, 1)
    shape, total, depth = (images, 7, 10, channels), images * 70, 9 * channels
    rows = np.arange(0, total, 3, dtype=np.int32)
    blocks = Blocks(np.tile(np.arange(0, -(-depth // 8), 2, dtype=np.int32), (-(-total // 4), 1)), 4, 8)
    found = {}
    for name, plan in (("", {}), (", rows", {"rows": rows}), (", blocks", {"blocks": blocks})):
        found[f"conv2d{name}"] = functools.partial(
            lambda plan: dev.conv2d(a(*shape), a(outs, channels, 3, 3), window, bias=a(outs), relu=True, **plan), plan
        )
        found[f"conv2d_grad{name}"] = functools.partial(
            lambda plan: dev.conv2d_grad(
                a(images, 7, 10, outs), a(*shape), a(outs, channels, 3, 3), window, where=a(images, 7, 10, outs), **plan
            ),
            plan,
        )
    wide, many = max(I // 4, 1), (images, 7, 10, outs)  # channels: enough for Winograd's filtering on CUDA
    found["conv2d, wide"] = lambda: dev.conv2d(
        a(*shape[:3], wide), a(outs, wide, 3, 3), window, bias=a(outs), relu=True, scale=1.5
    )
    found["conv2d_grad, wide"] = lambda: dev.conv2d_grad(
        a(*many), a(*shape[:3], wide), a(outs, wide, 3, 3), window, where=a(*many), scale=1.5
    )
    pool, after = Window((2, 2), (2, 2)), (images, 3, 5, outs)

    def given():
        return a(*shape), a(outs, channels, 3, 3), window, pool

    found["conv2d_max_pool"] = lambda: dev.conv2d_max_pool(*given(), bias=a(outs), relu=True)
    found["conv2d_max_pool_grad"] = lambda: dev.conv2d_max_pool_grad(
        a(*after), a(*after), a.indices(4, *after).astype(np.uint8), *given(), relu=True
    )
    return found
