"""Convolutions, dense and with rows or blocks of the im2col matrix skipped, pooling and batch norm, against PyTorch.

Layers of LeNet-5 and AlexNet on 28 x 28 at batch 128, and of VGG19 on 32 x 32 at batch 64. PyTorch always computes the dense
result: conv2d and ReLU, or the backward pass of conv2d, on images with channels first, the usual layout in PyTorch. The first
layer of a network, with 1 or 3 channels, computes no dx. On CUDA the suite also times the version that stores the im2col
matrix in global memory, which exists for teaching. `--only vgg19` times the forward pass of each of the sixteen convolutions of
VGG19; GFLOP/s count the multiplications and additions of the definition, 2 N H W C O 9, however a result is computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from numbanet.dropout import BlockSensitiveDropout, RowSensitiveDropout
from numbanet.plans import BlockPlan, IndexPlan, on_device
from numbanet_kernels.families.conv import (
    conv2d_grad_reference,
    conv2d_materialised,
    conv2d_max_pool_grad_reference,
    conv2d_max_pool_reference,
    conv2d_reference,
)
from numbanet_kernels.families.norm import batch_norm_grad_reference, batch_norm_reference
from numbanet_kernels.families.pooling import max_pool_grad_reference, max_pool_reference
from numbanet_kernels.layouts.windows import Blocks, Window

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "conv"
RECORDED = (
    "--against torch --json bench/results/conv.json",
    "--only vgg19 --against torch --json bench/results/conv-vgg19.json",
)
RATE, EPS, POOL = 0.6, 1e-5, Window((2, 2), (2, 2))
LAYERS = (  # n images of side x side pixels, c channels, o filters of k x k, padding p
    (128, 28, 1, 6, 5, 2),
    (128, 14, 6, 16, 5, 0),  # LeNet-5
    (128, 28, 1, 64, 3, 1),
    (128, 14, 64, 192, 3, 1),
    (128, 7, 192, 384, 3, 1),  # AlexNet
    (128, 7, 384, 256, 3, 1),
    (128, 7, 256, 256, 3, 1),
    (64, 32, 3, 64, 3, 1),
    (64, 32, 64, 64, 3, 1),
    (64, 16, 128, 128, 3, 1),
    (64, 8, 256, 256, 3, 1),  # VGG19
    (64, 4, 512, 512, 3, 1),
    (64, 2, 512, 512, 3, 1),
)
FIELDS = "n", "side", "c", "o", "k", "p"
VGG19 = {  # name and layer: the pixels shrink, and the filters change, from group to group
    f"vgg19 conv{group}_{number}": (64, 64 >> group, before if number == 1 else filters, filters, 3, 1)
    for group, (before, filters, count) in enumerate(((3, 64, 2), (64, 128, 2), (128, 256, 4), (256, 512, 4), (512, 512, 4)), 1)
    for number in range(1, count + 1)
}
BEFORE_POOLING = LAYERS[0], LAYERS[1], LAYERS[3], LAYERS[8]
IMAGES = (128, 28, 6), (128, 14, 192), (64, 32, 64), (64, 8, 256)
SHAPED = False  # layers have more sizes than N, I and O


def _window(k, p):
    return Window((k, k), (1, 1), (p, p))


# --- plans: rows or blocks of the im2col matrix -----------------------------------------------------------------------
@functools.cache
def _plan(kind, n, side, c, o, k, p):
    """A random plan, with the group size and block size that the policies use by default. How the rows or blocks were chosen
    does not change the time of a product."""
    positions = math.prod(_window(k, p).positions(side, side))
    shape, rng = (n * positions, k * k * c), np.random.default_rng(7)
    if kind == "rows":
        together = RowSensitiveDropout(RATE).together
        drawn = np.repeat(rng.random((-(-n // together), positions)), together, axis=0)[:n]
        return IndexPlan(shape[0], np.flatnonzero(drawn >= RATE))
    policy, given = BlockSensitiveDropout(RATE), (positions, _window(k, p), c)
    region, together = policy.region(n, *given), policy.group(*given)
    rows, columns = (-(-length // side) for length, side in zip(shape, region))
    own, keep = (rows if together == 1 else rows // n), max(round((1 - RATE) * columns), 1)
    groups = 1 if together == 1 else -(-n // together)
    drawn = np.sort(rng.permuted(np.tile(np.arange(columns), (groups * own, 1)), axis=1)[:, :keep], axis=1)
    chosen = np.repeat(drawn.reshape(groups, own, keep), together, axis=0).reshape(-1, keep)[:rows]
    return BlockPlan(shape, *region, chosen, together=together)


def _on_device(dev, kind, sizes):
    if kind is None:
        return {}
    uploaded = on_device(_plan(kind, **sizes), dev)
    return {"rows": uploaded.indices} if kind == "rows" else {"blocks": uploaded.blocks}


def _on_host(kind, sizes):
    if kind is None:
        return {}
    plan = _plan(kind, **sizes)
    return (
        {"rows": plan.indices()}
        if kind == "rows"
        else {"blocks": Blocks(plan.chosen, plan.height, plan.width, together=plan.together)}
    )


# --- convolutions -----------------------------------------------------------------------------------------------------
def _images(rng, n, side, c, o, k, p):
    """x, w, b"""
    w = rng.standard_normal((o, c, k, k), np.float32) / np.float32(math.sqrt(c * k * k))
    return rng.standard_normal((n, side, side, c), np.float32), w, rng.standard_normal(o, np.float32)


def _grad_inputs(rng, n, side, c, o, k, p):
    """dy, x, w"""
    x, w, _ = _images(rng, n, side, c, o, k, p)
    return rng.standard_normal((n, *_window(k, p).positions(side, side), o), np.float32), x, w


def _without_none(*arrays):
    return tuple(array for array in arrays if array is not None)


def _forward(kind):
    def prepare(dev, x, w, b, **sizes):
        window, options = _window(sizes["k"], sizes["p"]), _on_device(dev, kind, sizes)
        return lambda: dev.conv2d(x, w, window, bias=b, relu=True, **options)

    def reference(x, w, b, **sizes):
        return conv2d_reference(x, w, _window(sizes["k"], sizes["p"]), bias=b, relu=True, **_on_host(kind, sizes))

    return prepare, reference


def _backward(kind):
    def prepare(dev, dy, x, w, **sizes):
        window, options = _window(sizes["k"], sizes["p"]), _on_device(dev, kind, sizes)
        return lambda: _without_none(*dev.conv2d_grad(dy, x, w, window, wants_dx=sizes["c"] > 3, **options))

    def reference(dy, x, w, **sizes):
        return _without_none(
            *conv2d_grad_reference(dy, x, w, _window(sizes["k"], sizes["p"]), wants_dx=sizes["c"] > 3, **_on_host(kind, sizes))
        )

    return prepare, reference


def _first(x):
    """Copy images with channels last to channels first."""
    return x.permute(0, 3, 1, 2).contiguous()


def _last(x):
    """View images with channels first as images with channels last."""
    return x.permute(0, 2, 3, 1)


def _torch_forward(t, x, w, b, p, **_):
    x = _first(x)
    return lambda: _last(t.relu(t.nn.functional.conv2d(x, w, b, padding=p)))


def _torch_gradients(t, dy, x, w, c, o, p):
    dx, dw, db = t.ops.aten.convolution_backward(dy, x, w, [o], [1, 1], [p, p], [1, 1], False, [0, 0], 1, [c > 3, True, True])
    return (_last(dx), dw, db) if c > 3 else (dw, db)


def _torch_backward(t, dy, x, w, c, o, p, **_):
    dy, x = _first(dy), _first(x)
    return lambda: _torch_gradients(t, dy, x, w, c, o, p)


def _flops(kind, products):
    """FLOPs of a convolution; products(c) is the number of matrix products for images with c channels."""

    def flops(**sizes):
        n, side, c, o, k, p = sizes.values()
        density = 1.0 if kind is None else _plan(kind, **sizes).density
        return 2.0 * products(c) * density * n * math.prod(_window(k, p).positions(side, side)) * o * c * k * k

    return flops


def _convolution(kind, backward=False):
    prepare, reference = (_backward if backward else _forward)(kind)
    flops = _flops(kind, lambda c: 1 if not backward else 2 if c > 3 else 1)
    return Kernel(
        _grad_inputs if backward else _images,
        prepare,
        _torch_backward if backward else _torch_forward,
        reference,
        peer_reference=(_backward if backward else _forward)(None)[1],
        flops=flops,
        ceiling=lambda **sizes: 1.0 if kind is None else 1 / _plan(kind, **sizes).density,
        op="conv2d_grad" if backward else "conv2d",
    )


def _materialised(dev, x, w, b, k, p, **_):
    return lambda: conv2d_materialised(x, w, _window(k, p), bias=b)


def _torch_without_relu(t, x, w, b, p, **_):
    x = _first(x)
    return lambda: _last(t.nn.functional.conv2d(x, w, b, padding=p))


# --- with max pooling -------------------------------------------------------------------------------------------------
def _pooled_images(rng, n, side, c, o, k, p):
    """dy, x, w, b"""
    shape = n, *POOL.positions(*_window(k, p).positions(side, side)), o
    return rng.standard_normal(shape, np.float32), *_images(rng, n, side, c, o, k, p)


def _pooled_backward(dev, dy, x, w, b, c, k, p, **_):
    window = _window(k, p)
    y, places = dev.conv2d_max_pool(x, w, window, POOL, bias=b, relu=True)
    return lambda: _without_none(*dev.conv2d_max_pool_grad(dy, y, places, x, w, window, POOL, relu=True, wants_dx=c > 3))


def _torch_pooled(t, x, w, b, p, **_):
    x, functions = _first(x), t.nn.functional
    return lambda: _last(functions.max_pool2d(t.relu(functions.conv2d(x, w, b, padding=p)), 2))


def _torch_pooled_backward(t, dy, x, w, b, c, o, p, **_):
    dy, x, aten = _first(dy), _first(x), t.ops.aten
    z = t.relu(t.nn.functional.conv2d(x, w, b, padding=p))
    places = aten.max_pool2d_with_indices(z, 2, 2)[1]

    def run():
        dz = aten.max_pool2d_with_indices_backward(dy, z, [2, 2], [2, 2], [0, 0], [1, 1], False, places)
        return _torch_gradients(t, aten.threshold_backward(dz, z, 0), x, w, c, o, p)

    return run


# --- pooling and batch norm on images ---------------------------------------------------------------------------------
def _pixels(rng, n, side, c):
    return (rng.standard_normal((n, side, side, c), np.float32),)


def _pooled(rng, n, side, c):
    """dy, x"""
    return rng.standard_normal((n, *POOL.positions(side, side), c), np.float32), *_pixels(rng, n, side, c)


def _normed(rng, n, side, c):
    """dy, x, gamma, beta"""
    vectors = rng.standard_normal((2, c), np.float32)
    return *_pixels(rng, n, side, c), *_pixels(rng, n, side, c), *vectors


def _rows(x):
    return x.reshape(-1, x.shape[-1])


def _max_pool_grad(dev, dy, x, **_):
    places = dev.max_pool(x, POOL)[1]
    return lambda: dev.max_pool_grad(dy, places, POOL, x.shape)


def _torch_max_pool_grad(t, dy, x, **_):
    dy, x = _first(dy), _first(x)
    places = t.ops.aten.max_pool2d_with_indices(x, 2, 2)[1]
    return lambda: _last(t.ops.aten.max_pool2d_with_indices_backward(dy, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places))


def _torch_max_pool(t, x, **_):
    x = _first(x)
    return lambda: _last(t.ops.aten.max_pool2d_with_indices(x, 2, 2)[0])


def _batch_norm(dev, dy, x, gamma, beta, n, side, c):
    x = dev.reshape(x, (n * side * side, c))
    return lambda: dev.batch_norm(x, gamma, beta, EPS)[0]


def _batch_norm_grad(dev, dy, x, gamma, beta, n, side, c):
    dy, x = (dev.reshape(part, (n * side * side, c)) for part in (dy, x))
    _, mean, variance = dev.batch_norm(x, gamma, beta, EPS)
    return lambda: dev.batch_norm_grad(dy, x, gamma, mean, variance, EPS)


def _batch_norm_grad_reference(dy, x, gamma, beta, **_):
    rows = _rows(np.float64(x))
    return batch_norm_grad_reference(_rows(dy), rows, gamma, rows.mean(0), rows.var(0), EPS)


def _torch_batch_norm(t, dy, x, gamma, beta, **_):
    x = _first(x)
    return lambda: _last(t.native_batch_norm(x, gamma, beta, None, None, True, 0.1, EPS)[0])


def _torch_batch_norm_grad(t, dy, x, gamma, beta, **_):
    dy, x = _first(dy), _first(x)
    _, mean, inverse = t.native_batch_norm(x, gamma, beta, None, None, True, 0.1, EPS)

    def run():
        dx, *others = t.ops.aten.native_batch_norm_backward(dy, x, gamma, None, None, mean, inverse, True, EPS, [True] * 3)
        return _last(dx), *others

    return run


def _dense(value, n, side, c):
    """Flatten images to (rows, channels), the shape of numbanet's result."""
    return value.reshape(-1, c) if value.ndim == 4 else value


def _moved(times):
    return lambda n, side, c: 4.0 * times * n * side * side * c


KERNELS = {
    **{
        f"conv2d{'_grad' * backward}{f', {kind}' if kind else ''}": _convolution(kind, backward)
        for backward in (False, True)
        for kind in (None, "rows", "blocks")
    },
    **dict.fromkeys(VGG19, _convolution(None)),
    "conv2d_max_pool": Kernel(
        _images,
        lambda dev, x, w, b, k, p, **_: lambda: dev.conv2d_max_pool(x, w, _window(k, p), POOL, bias=b, relu=True)[0],
        _torch_pooled,
        lambda x, w, b, k, p, **_: conv2d_max_pool_reference(x, w, _window(k, p), POOL, bias=b, relu=True),
        flops=_flops(None, lambda c: 1),
    ),
    "conv2d_max_pool_grad": Kernel(
        _pooled_images,
        _pooled_backward,
        _torch_pooled_backward,
        lambda dy, x, w, b, c, k, p, **_: _without_none(
            *conv2d_max_pool_grad_reference(dy, x, w, _window(k, p), POOL, bias=b, relu=True, wants_dx=c > 3)
        ),
        flops=_flops(None, lambda c: 2 if c > 3 else 1),
    ),
    "materialised": Kernel(
        _images,
        _materialised,
        _torch_without_relu,
        lambda x, w, b, k, p, **_: conv2d_reference(x, w, _window(k, p), bias=b),
        flops=_flops(None, lambda c: 1),
        op="conv2d",
    ),
    "max_pool": Kernel(
        _pixels,
        lambda dev, x, **_: lambda: dev.max_pool(x, POOL)[0],
        _torch_max_pool,
        lambda x, **_: max_pool_reference(x, POOL)[0],
        bytes=_moved(1.25),
    ),
    "max_pool_grad": Kernel(
        _pooled,
        _max_pool_grad,
        _torch_max_pool_grad,
        lambda dy, x, **_: max_pool_grad_reference(dy, max_pool_reference(x, POOL)[1], POOL, x.shape),
        bytes=_moved(1.25),
    ),
    "batch_norm": Kernel(
        _normed,
        _batch_norm,
        _torch_batch_norm,
        lambda dy, x, gamma, beta, **_: batch_norm_reference(_rows(x), gamma, beta, EPS)[0],
        _dense,
        bytes=_moved(2),
    ),
    "batch_norm_grad": Kernel(
        _normed, _batch_norm_grad, _torch_batch_norm_grad, _batch_norm_grad_reference, _dense, bytes=_moved(3)
    ),
}


def cases(options: Options) -> Iterator[Case]:
    """Each layer forward and backward: dense, with rows and with blocks skipped; then the forward passes of VGG19, some layers
    with ReLU and pooling, and pooling and batch norm.
    """
    small = 3, 8, 8, 4, 3, 1
    layers, images = ([small], [small[:3]]) if options.quick else (LAYERS, IMAGES)
    chosen = [
        (name, layer)
        for layer in layers
        for name, kernel in KERNELS.items()
        if kernel.flops
        and (name != "materialised" or options.device == "cuda")
        and "max_pool" not in name
        and name not in VGG19
    ]
    chosen += [(name, small if options.quick else layer) for name, layer in VGG19.items()]
    chosen += [
        (name, layer)
        for layer in (layers if options.quick else BEFORE_POOLING)
        for name in ("conv2d_max_pool", "conv2d_max_pool_grad")
    ]
    chosen += [(name, shape) for shape in images for name, kernel in KERNELS.items() if not kernel.flops]
    return kernels.cases(SUITE, [(name, dict(zip(FIELDS, sizes))) for name, sizes in chosen], options)
