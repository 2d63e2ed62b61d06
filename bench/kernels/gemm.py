"""Dense matrix products of a layer, batch n, weight (o, i): forward with bias and ReLU, dx, dW, against PyTorch.

On CUDA the suite also times each version of the kernel: naive, tiled, register, block, tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet_kernels.families.gemm import gemm_reference, gemm_version

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "gemm"
LADDER = {
    "linear_naive": ("naive", 16),
    "linear_tiled": ("tiled", 32),
    "linear_register": ("register", 64),
    "linear_block": ("block", 128),
    "linear_tensor": ("tensor", None),
}


def _layer(rng, n, o, i):
    """x, w, b"""
    w = rng.standard_normal((o, i), np.float32) / np.float32(np.sqrt(i))
    return rng.standard_normal((n, i), np.float32), w, rng.standard_normal(o, np.float32)


def _back(rng, n, o, i):
    """dy, w, x"""
    x, w, _ = _layer(rng, n, o, i)
    return rng.standard_normal((n, o), np.float32), w, x


def _torch_linear(t, x, w, b, **_):
    return lambda: t.relu(t.nn.functional.linear(x, w, b))


def _linear_reference(x, w, b, **_):
    return gemm_reference(x, w, tb=True, bias=b, relu=True)


def _flops(n, o, i):
    return 2.0 * n * o * i


def _bytes(n, o, i):
    return 4.0 * (n * i + o * i + n * o)


def _linear(numbanet):
    return Kernel(_layer, numbanet, _torch_linear, _linear_reference, flops=_flops, bytes=_bytes, op="gemm")


def _version(name):
    version, tile = LADDER[name]
    return _linear(lambda dev, x, w, b, **_: lambda: gemm_version(version, tile, x, w, tb=True, bias=b, relu=True))


KERNELS = {
    "linear": _linear(lambda dev, x, w, b, **_: lambda: dev.gemm(x, w, tb=True, bias=b, relu=True)),
    "dx": Kernel(
        _back,
        lambda dev, dy, w, x, **_: lambda: dev.gemm(dy, w),
        lambda t, dy, w, x, **_: lambda: dy @ w,
        lambda dy, w, x, **_: gemm_reference(dy, w),
        flops=_flops,
        bytes=_bytes,
        op="gemm",
    ),
    "dw": Kernel(
        _back,
        lambda dev, dy, w, x, **_: lambda: dev.gemm(dy, x, ta=True),
        lambda t, dy, w, x, **_: lambda: dy.T @ x,
        lambda dy, w, x, **_: gemm_reference(dy, x, ta=True),
        flops=_flops,
        bytes=_bytes,
        op="gemm",
    ),
    **{name: _version(name) for name in LADDER},
}


def cases(options: Options) -> Iterator[Case]:
    """The products of the layers of 784-2048-2048-10 at batch 128, and products of square matrices."""
    shapes = options.sizes((32, 48, 64), (128, 784, 2048), (128, 2048, 2048), (128, 2048, 10), (1024, 1024, 1024))
    ops = [op for op in KERNELS if op not in LADDER or options.device == "cuda"]
    return kernels.cases(SUITE, [(op, {"n": n, "o": o, "i": i}) for op in ops for n, i, o in shapes], options)
