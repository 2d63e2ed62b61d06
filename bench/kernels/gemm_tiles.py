"""Products with kept tiles of a weight (o, i), one tile in dp kept, against a dense product with a masked weight.

The peer is a dense product with a masked weight, as a user would write it in PyTorch. By FLOPs the ratio can be dp at most.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet.device import device
from numbanet.plans import TilePlan, on_device
from numbanet_kernels.families.gemm_tiles import gemm_tiles_dw_reference, gemm_tiles_masked
from numbanet_kernels.families.update import unpack_gradient_reference

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "gemm_tiles"
PERIODS, TILE = (1, 2, 4, 8), 32


def _plan(o, i, dp):
    return TilePlan((o, i), TILE, dp, dp // 2)


def _mask(o, i, dp):
    return _plan(o, i, dp).mask().astype(np.float32)


def _layer(rng, n, o, i, dp):
    """x, w, b, mask of the weight"""
    w = rng.standard_normal((o, i), np.float32) / np.float32(np.sqrt(i))
    return rng.standard_normal((n, i), np.float32), w, rng.standard_normal(o, np.float32), _mask(o, i, dp)


def _masked_layer(rng, n, o, i, dp):
    """x, w, mask of the weight"""
    x, w, _, mask = _layer(rng, n, o, i, dp)
    return x, w, mask


def _back(rng, n, o, i, dp):
    """dy, w, x, mask of the weight"""
    x, w, _, mask = _layer(rng, n, o, i, dp)
    return rng.standard_normal((n, o), np.float32), w, x, mask


def _forward(dev, x, w, b, mask, n, o, i, dp):
    return lambda: dev.gemm_tiles(x, w, _plan(o, i, dp).pattern, b=b, relu=True)


def _dx(dev, dy, w, x, mask, n, o, i, dp):
    return lambda: dev.gemm_tiles_dx(dy, w, _plan(o, i, dp).pattern)


def _dw(dev, dy, w, x, mask, n, o, i, dp):
    return lambda: dev.gemm_tiles_dw(dy, x, _plan(o, i, dp).pattern)[0]


def _masked(dev, x, w, mask, n, o, i, dp):
    tiles = dev.upload(_plan(o, i, dp).tile_mask().astype(np.int32))
    return lambda: gemm_tiles_masked(x, w, tiles, TILE)


def _dense(dw, n, o, i, dp):
    """The dense form of a packed gradient."""
    if dw.shape == (o, i):
        return dw
    return unpack_gradient_reference(dw, on_device(_plan(o, i, dp), device("cpu")).packing, (o, i))


def _flops(n, o, i, dp):
    return 2.0 * n * _plan(o, i, dp).size


def _ceiling(n, o, i, dp):
    return 2.0 * n * o * i / _flops(n, o, i, dp)


_work = {"flops": _flops, "ceiling": _ceiling}

KERNELS = {
    "forward": Kernel(
        _layer,
        _forward,
        lambda t, x, w, b, mask, **_: lambda: t.relu(t.nn.functional.linear(x, w * mask, b)),
        lambda x, w, b, mask, **_: np.maximum(np.float64(x) @ np.float64(w * mask).T + b, 0),
        op="gemm_tiles",
        **_work,
    ),
    "dx": Kernel(
        _back,
        _dx,
        lambda t, dy, w, x, mask, **_: lambda: dy @ (w * mask),
        lambda dy, w, x, mask, **_: np.float64(dy) @ (w * mask),
        op="gemm_tiles_dx",
        **_work,
    ),
    "dw": Kernel(
        _back,
        _dw,
        lambda t, dy, w, x, mask, **_: lambda: (dy.T @ x) * mask,
        lambda dy, w, x, mask, n, o, i, dp: gemm_tiles_dw_reference(dy, x, _plan(o, i, dp).pattern),
        _dense,
        op="gemm_tiles_dw",
        **_work,
    ),
    # the first version of the kernel on CUDA: it visits every tile and skips dropped ones by a test
    "masked": Kernel(
        _masked_layer,
        _masked,
        lambda t, x, w, mask, **_: lambda: t.nn.functional.linear(x, w * mask),
        lambda x, w, mask, **_: np.float64(x) @ np.float64(w * mask).T,
        **_work,
    ),
}


def cases(options: Options) -> Iterator[Case]:
    """The square layer of 784-2048-2048-10 at batch 128, with every period."""
    [(n, i, o)] = options.sizes((32, 160, 96), (128, 2048, 2048))
    ops = [op for op in KERNELS if op != "masked" or options.device == "cuda"]
    chosen = [(op, {"n": n, "o": o, "i": i, "dp": dp}) for op in ops for dp in PERIODS]
    return kernels.cases(SUITE, chosen, options)
