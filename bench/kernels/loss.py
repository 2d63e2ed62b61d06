"""Losses with their gradients, n samples of `width` outputs, against PyTorch's losses, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet_kernels.families import loss as L

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "loss"


def _labels(rng, n, width):
    return rng.standard_normal((n, width), np.float32), rng.integers(width, size=n).astype(np.int32)


def _values(rng, n, width):
    return rng.standard_normal((n, width), np.float32), rng.uniform(size=(n, width)).astype(np.float32)


def _torch(function, integers=False):
    """run: (mean loss, its gradient)"""

    def prepare(t, x, target, **_):
        loss, target = getattr(t.nn.functional, function), target.long() if integers else target
        x.requires_grad_()

        def run():
            x.grad = None
            y = loss(x, target)
            y.backward()
            return y, x.grad

        return run

    return prepare


def _loss(name, inputs, reference, torch):
    def prepare(dev, x, target, **_):
        def run():
            losses, gradient = getattr(dev, name)(x, target)
            return dev.sum(losses), gradient

        return run

    def mean(x, target, **_):
        losses, gradient = reference(x, target)
        return losses.sum(), gradient

    # arrays of n x width: logits, gradient, and targets unless these are labels
    arrays = 2 if inputs is _labels else 3
    return Kernel(inputs, prepare, torch, mean, bytes=lambda n, width: 4.0 * arrays * n * width)


KERNELS = {
    "softmax_cross_entropy": _loss(
        "softmax_cross_entropy", _labels, L.softmax_cross_entropy_reference, _torch("cross_entropy", integers=True)
    ),
    "squared_error": _loss("squared_error", _values, L.squared_error_reference, _torch("mse_loss")),
    "absolute_error": _loss("absolute_error", _values, L.absolute_error_reference, _torch("l1_loss")),
    "huber_error": _loss("huber_error", _values, L.huber_error_reference, _torch("huber_loss")),
    "sigmoid_cross_entropy": _loss(
        "sigmoid_cross_entropy", _values, L.sigmoid_cross_entropy_reference, _torch("binary_cross_entropy_with_logits")
    ),
}


def cases(options: Options) -> Iterator[Case]:
    """Each loss for 10 and for 10000 outputs."""
    shapes = options.sizes((32, 1, 10), (128, 1, 10), (128, 1, 10000))  # (n, unused, width)
    return kernels.cases(SUITE, [(op, {"n": n, "width": width}) for op in KERNELS for n, _, width in shapes], options)
