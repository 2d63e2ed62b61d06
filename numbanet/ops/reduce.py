"""Reductions: sums, means, variances, maxima, softmax; dy is the gradient of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd import as_floats, op
from ..device import Device
from ..tensor import Tensor
from .elementwise import affine
from .shape import axes_of


def _axes(name: str, x: Any, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes to reduce; a tensor without axes has the axis 0 here, as in PyTorch: it is reduced to itself."""
    return () if not x.ndim and axis in (0, -1) else axes_of(name, x, axis)


def _with_ones(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


@op(floats=True)
def sum(dev: Device, x, *, axis: int | Sequence[int] | None = None, keepdims: bool = False):
    """y = the sum of x over the axes `axis`, by default over all axes."""
    axes, shape = _axes("sum", x, axis), x.shape
    ones = _with_ones(x, axes)
    return (dev.sum(x, axis=axes, keepdims=keepdims), (lambda dy: dev.broadcast_to(dev.reshape(dy, ones), shape),))


def mean(x: Tensor, *, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """y = the mean of x over the axes `axis`, by default over all axes; NaN if they hold no elements.

    If `keepdims` is True, the reduced axes stay, with length 1.

    Raises
    ------
    ValueError
        If x does not have such an axis.
    """
    count = math.prod(x.shape[a] for a in _axes("mean", x, axis))
    return affine(sum(x, axis=axis, keepdims=keepdims), mul=1.0 / count if count else math.nan)


@op(floats=True)
def max(dev: Device, x, *, axis: int | Sequence[int] | None = None, keepdims: bool = False):
    """y = the maximum of x over the axes `axis`, by default over all axes. Equal maxima share the gradient."""
    axes, shape = _axes("max", x, axis), x.shape
    ones = _with_ones(x, axes)
    y = dev.max(x, axis=axes, keepdims=True)

    def vjp(dy):
        below = dev.greater(dev.broadcast_to(y, shape), x)
        winners = dev.affine(below, mul=-1.0, add=1.0)
        share = dev.div(dev.reshape(dy, ones), dev.sum(winners, axis=axes, keepdims=True))
        return dev.mul(winners, dev.broadcast_to(share, shape))

    return y if keepdims else dev.reshape(y, tuple(n for i, n in enumerate(shape) if i not in axes)), (vjp,)


def argmax(x: Tensor, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """y = the index of the maximum of x along an axis, by default in the flattened x.

    If several elements are equal maxima, y is the index of the first one; NaN counts as the largest. The indices are int32 and
    have no gradient; they can be compared, and used as `x[indices]`.

    Raises
    ------
    ValueError
        If there is no such axis, or its length is 0.
    """
    x, dev, axes = as_floats(x), x.device, _axes("argmax", x, axis)
    if axis is not None and len(axes) != 1 and x.ndim:
        raise ValueError(f"argmax: axis must be an integer or None, got {axis!r}")
    ones, others = _with_ones(x, axes), tuple(a for a in range(x.ndim) if a not in axes)
    shape = tuple(x.shape[a] for a in others)
    if not math.prod(x.shape[a] for a in axes):
        raise ValueError(f"argmax: x {x.shape} has nothing along axis {axis}")
    lines = x.data if axes == axes_of("argmax", x, None)[len(others) :] else dev.transpose(x.data, (*others, *axes))
    indices = dev.argmax(dev.reshape(lines, (*shape, -1)))
    return Tensor.wrap(dev.reshape(indices, ones if keepdims else shape), dev)


@op(floats=True)
def var(dev: Device, x, *, axis: int | Sequence[int] | None = None, correction: float = 1, keepdims: bool = False):
    """y = the sum of (x - mean)² over the axes `axis`, by default over all axes, divided by n - correction.

    n is the number of values in the sum. A `correction` of 1, the default, gives the unbiased estimate (Bessel), as in PyTorch;
    0 gives the variance of the values themselves, as in NumPy. If n <= correction, y is NaN.
    """
    y, slope = _variance("var", dev, x, axis, correction)
    return dev.reshape(y, y.shape if keepdims else _without("var", x, axis)), (lambda dy: slope(dev.reshape(dy, y.shape)),)


@op(floats=True)
def std(dev: Device, x, *, axis: int | Sequence[int] | None = None, correction: float = 1, keepdims: bool = False):
    """y = the square root of `var`; its gradient is 0 if y is 0."""
    variance, slope = _variance("std", dev, x, axis, correction)
    y = dev.sqrt(variance)

    def vjp(dy):
        zero = dev.equal(y, dev.full(y.shape, 0.0))
        share = dev.affine(dev.div(dev.reshape(dy, y.shape), dev.add(y, zero)), mul=0.5)
        return slope(dev.relu_grad(share, dev.affine(zero, mul=-1.0, add=1.0)))

    return dev.reshape(y, y.shape if keepdims else _without("std", x, axis)), (vjp,)


def _without(name: str, x: Any, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    axes = _axes(name, x, axis)
    return tuple(n for i, n in enumerate(x.shape) if i not in axes)


def _variance(name: str, dev: Device, x: Any, axis: Any, correction: float) -> tuple[Any, Callable[[Any], Any]]:
    """Return (variance, vjp): the variance, with reduced axes of length 1, and the function that maps its gradient to dx."""
    axes, shape = _axes(name, x, axis), tuple(x.shape)
    n = math.prod(shape[a] for a in axes)
    mean = dev.affine(dev.sum(x, axis=axes, keepdims=True), mul=1.0 / n if n else math.nan)
    deviations = dev.sub(x, dev.broadcast_to(mean, shape))
    share = 1.0 / (n - correction) if n > correction else math.nan

    def slope(dy):
        return dev.mul(dev.affine(deviations, mul=2.0 * share), dev.broadcast_to(dy, shape))

    return dev.affine(dev.sum(dev.mul(deviations, deviations), axis=axes, keepdims=True), mul=share), slope


@op(floats=True)
def softmax(dev: Device, x):
    """y[…, c] = e^x[…, c] / sum_k e^x[…, k], where c and k are indices of the last axis. If x has no axes, y is 1."""
    if not x.size:
        return dev.empty(x.shape), (lambda dy: dy,)
    shape = x.shape
    y = dev.softmax(x if shape else dev.reshape(x, (1,)))
    return dev.reshape(y, shape), (lambda dy: dev.reshape(dev.softmax_grad(dev.reshape(dy, y.shape), y), shape),)


@op(floats=True)
def log_softmax(dev: Device, x):
    """y[…, c] = x[…, c] - ln sum_k e^x[…, k], where c and k are indices of the last axis. If x has no axes, y is 0."""
    if not x.size:
        return dev.empty(x.shape), (lambda dy: dy,)
    shape = x.shape
    y = dev.log_softmax(x if shape else dev.reshape(x, (1,)))
    return dev.reshape(y, shape), (lambda dy: dev.reshape(dev.log_softmax_grad(dev.reshape(dy, y.shape), y), shape),)
