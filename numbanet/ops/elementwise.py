"""Elementwise operations, with broadcasting; dy is the gradient of the result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd import as_floats, common_device, op
from ..device import Device
from ..plans import BernoulliPlan
from ..plans.on_device import DeviceBits
from ..tensor import Tensor
from .shape import broadcast_shape, broadcast_to

LARGEST = float(np.finfo(np.float32).max)


def _binary(equal_shapes: Callable[..., Tensor]) -> Callable[[Any, Any], Tensor]:
    """Return an op with broadcasting, made from the op `equal_shapes` on two tensors of equal shapes."""

    @functools.wraps(equal_shapes, ("__name__", "__doc__"), ())
    def run(a: Any, b: Any) -> Tensor:
        name = equal_shapes.__name__.strip("_")
        dev = common_device(name, (a, b))
        a, b = (as_floats(x) if isinstance(x, Tensor) else Tensor(x, dev) for x in (a, b))
        if a.shape != b.shape:
            shape = broadcast_shape(name, a.shape, b.shape)
            a, b = (x if x.shape == shape else broadcast_to(x, shape=shape) for x in (a, b))
        return equal_shapes(a, b)

    del run.__wrapped__  # so that inspect shows the signature of `run`
    return run


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


@_binary
@op
def _add(dev: Device, a, b):
    return dev.add(a, b), (lambda dy: dy, lambda dy: dy)


@_binary
@op
def _sub(dev: Device, a, b):
    return dev.sub(a, b), (lambda dy: dy, lambda dy: dev.affine(dy, mul=-1.0))


@_binary
@op
def _mul(dev: Device, a, b):
    return dev.mul(a, b), (lambda dy: dev.mul(dy, b), lambda dy: dev.mul(dy, a))


@_binary
@op
def _div(dev: Device, a, b):
    y = dev.div(a, b)
    return y, (lambda dy: dev.div(dy, b), lambda dy: dev.affine(dev.div(dev.mul(dy, y), b), mul=-1.0))


def add(a: Any, b: Any) -> Tensor:
    """y = a + b, with broadcasting."""
    a, b = (b, a) if _number(a) else (a, b)
    return affine(a, add=float(b)) if _number(b) else _add(a, b)


def sub(a: Any, b: Any) -> Tensor:
    """y = a - b, with broadcasting."""
    if _number(a):
        return affine(b, mul=-1.0, add=float(a))
    return affine(a, add=-float(b)) if _number(b) else _sub(a, b)


def mul(a: Any, b: Any) -> Tensor:
    """y = a b, with broadcasting."""
    a, b = (b, a) if _number(a) else (a, b)
    return affine(a, mul=float(b)) if _number(b) else _mul(a, b)


def div(a: Any, b: Any) -> Tensor:
    """y = a / b, with broadcasting."""
    # the inverse of a number below about 3e-39 is no float32
    return affine(a, mul=1.0 / float(b)) if _number(b) and b and -LARGEST <= 1.0 / float(b) <= LARGEST else _div(a, b)


def pow(a: Any, b: Any) -> Tensor:
    """y = a ** b, with broadcasting; as in PyTorch, NaN if a is negative and b no integer.

    The gradient of a is 0 where b = 0, and that of b where a = 0 and b >= 0.
    """
    return power(a, exponent=float(b)) if _number(b) else _pow(a, b)


@_binary
@op
def _pow(dev: Device, a, b):
    y, zero = dev.pow(a, b), dev.full(a.shape, 0.0)

    def da(dy):
        less = dev.add(dev.affine(b, add=-1.0), dev.equal(b, zero))  # b - 1, or 0 if b = 0: 0 * inf would be NaN
        return dev.mul(dy, dev.mul(b, dev.pow(a, less)))

    def db(dy):
        nothing = dev.mul(dev.equal(a, zero), dev.greater_equal(b, zero))
        return dev.mul(dy, dev.mul(y, dev.log(dev.add(a, nothing))))  # log(1) in place of log(0)

    return y, (da, db)


@_binary
@op
def maximum(dev: Device, a, b):
    """y = max(a, b), with broadcasting. If a = b, the gradient goes to b."""
    larger = dev.greater(a, b)
    return dev.maximum(a, b), (lambda dy: dev.mul(dy, larger), lambda dy: dev.mul(dy, dev.affine(larger, mul=-1.0, add=1.0)))


@_binary
@op
def minimum(dev: Device, a, b):
    """y = min(a, b), with broadcasting. If a = b, the gradient goes to a."""
    larger = dev.greater(a, b)
    return dev.minimum(a, b), (lambda dy: dev.mul(dy, dev.affine(larger, mul=-1.0, add=1.0)), lambda dy: dev.mul(dy, larger))


@op(floats=True)
def affine(dev: Device, x, *, mul: float = 1.0, add: float = 0.0):
    """y = mul x + add, for numbers mul and add."""
    return dev.affine(x, mul=mul, add=add), (lambda dy: dev.affine(dy, mul=mul),)


@op(floats=True)
def power(dev: Device, x, *, exponent: float):
    """y = x ** exponent, for a number exponent."""
    return dev.power(x, exponent), (
        lambda dy: dev.mul(dy, dev.affine(dev.power(x, exponent - 1.0), mul=exponent)) if exponent else dev.affine(dy, mul=0.0),
    )


@op(floats=True)
def exp(dev: Device, x):
    """y = e^x."""
    y = dev.exp(x)
    return y, (lambda dy: dev.mul(dy, y),)


@op(floats=True)
def log(dev: Device, x):
    """y = ln x."""
    return dev.log(x), (lambda dy: dev.div(dy, x),)


@op(floats=True)
def sqrt(dev: Device, x):
    """y = x ** 0.5."""
    y = dev.sqrt(x)
    return y, (lambda dy: dev.affine(dev.div(dy, y), mul=0.5),)


@op(floats=True)
def abs(dev: Device, x):
    """y = |x|; the gradient at 0 is 0."""
    return dev.abs(x), (lambda dy: dev.mul(dy, dev.sign(x)),)


@op(floats=True)
def tanh(dev: Device, x):
    """y = tanh x."""
    y = dev.tanh(x)
    return y, (lambda dy: dev.tanh_grad(dy, y),)


@op(floats=True)
def sigmoid(dev: Device, x):
    """y = 1 / (1 + e^-x)."""
    y = dev.sigmoid(x)
    return y, (lambda dy: dev.sigmoid_grad(dy, y),)


@op(floats=True)
def relu(dev: Device, x):
    """y = max(x, 0)."""
    y = dev.relu(x)
    return y, (lambda dy: dev.relu_grad(dy, y),)


@op(floats=True)
def gelu(dev: Device, x):
    """y = x Φ(x), where Φ is the cumulative normal distribution function (Hendrycks & Gimpel 2016, eq. 1)."""
    return dev.gelu(x), (lambda dy: dev.gelu_grad(dy, x),)


@op
def dropout(dev: Device, x, *, plan: BernoulliPlan | DeviceBits):
    """y = scale x for elements that the plan's random bits keep, else 0. The backward pass draws the same bits again, so no
    mask is stored. `scale` is plan.scale.

    Raises
    ------
    ValueError
        If the last axis of x does not have the plan's length.
    TypeError
        If the plan is not a BernoulliPlan.
    """
    key, plan = (plan.key, plan.plan) if isinstance(plan, DeviceBits) else (getattr(plan, "key", None), plan)
    if not isinstance(plan, BernoulliPlan):
        raise TypeError(f"dropout: it takes a BernoulliPlan, not {plan!r}")
    if not x.shape or x.shape[-1] != plan.n:
        raise ValueError(f"dropout: x {tuple(x.shape)} does not match {plan}: its last axis must be {plan.n}")
    return (
        dev.dropout(x, plan.rate, key, 0, scale=plan.scale),
        (lambda dy: dev.dropout(dy, plan.rate, key, 0, scale=plan.scale),),
    )
