"""Reductions: sums, means, maxima, softmax; dy is the gradient of the result."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autograd import op
from ..tensor import Tensor
from .elementwise import affine
from .shape import axes_of


def _with_ones(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


@op
def sum(dev, x, *, axis: int | Sequence[int] | None = None, keepdims: bool = False):
    """y = sum of x over the axes (all by default)."""
    axes, shape = axes_of("sum", x, axis), x.shape
    kept = _with_ones(x, axes)
    return (dev.sum(x, axis=axes, keepdims=keepdims),
            (lambda dy: dev.broadcast_to(dev.reshape(dy, kept), shape),))


def mean(x: Tensor, *, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """y = mean of x over the axes (all by default)."""
    count = math.prod(x.shape[a] for a in axes_of("mean", x, axis))
    return affine(sum(x, axis=axis, keepdims=keepdims), mul=1.0 / count if count else math.nan)


@op
def max(dev, x, *, axis: int | Sequence[int] | None = None, keepdims: bool = False):
    """y = largest of x over the axes (all by default); equal ones share the gradient."""
    axes, shape = axes_of("max", x, axis), x.shape
    kept = _with_ones(x, axes)
    y = dev.max(x, axis=axes, keepdims=True)

    def vjp(dy):
        below = dev.greater(dev.broadcast_to(y, shape), x)
        winners = dev.affine(below, mul=-1.0, add=1.0)
        share = dev.div(dev.reshape(dy, kept), dev.sum(winners, axis=axes, keepdims=True))
        return dev.mul(winners, dev.broadcast_to(share, shape))

    return y if keepdims else dev.reshape(y, tuple(n for i, n in enumerate(shape) if i not in axes)), (vjp,)


@op
def softmax(dev, x):
    """y[…, c] = e^x[…, c] / sum_k e^x[…, k], over the last axis"""
    y = dev.softmax(x)
    return y, (lambda dy: dev.softmax_grad(dy, y),)


@op
def log_softmax(dev, x):
    """y[…, c] = x[…, c] - ln sum_k e^x[…, k], over the last axis"""
    y = dev.log_softmax(x)
    return y, (lambda dy: dev.log_softmax_grad(dy, y),)
