"""Comparisons, and selection by masks, with broadcasting.

A comparison returns a mask: a float32 tensor that is 1 where the comparison holds, else 0. Masks have no gradient. As in IEEE
arithmetic, a comparison with NaN does not hold, except !=. Integers are compared as float32, which is exact up to 2^24. dy is
the gradient of the result.
"""

from __future__ import annotations

import functools
import numbers
from typing import Any

from ..autograd import as_floats, common_device, op
from ..device import Device
from ..tensor import Tensor
from .shape import broadcast_shape, broadcast_to


def _taken(name: str, *inputs: Any) -> tuple[Device, list[Tensor | float], tuple[int, ...]]:
    """Return (the device of the inputs, the inputs as tensors or numbers, the shape to which they broadcast)."""
    dev = common_device(name, inputs)
    given = [
        float(x) if isinstance(x, numbers.Real) else as_floats(x) if isinstance(x, Tensor) else Tensor(x, dev) for x in inputs
    ]
    shapes = [x.shape if isinstance(x, Tensor) else () for x in given]
    return dev, given, functools.reduce(functools.partial(broadcast_shape, name), shapes)


def _spread(x: Tensor | float, dev: Device, shape: tuple[int, ...]) -> Any:
    """Return the values of x, broadcast to an array of shape `shape`."""
    if not isinstance(x, Tensor):
        return dev.full(shape, x)
    return x.data if x.shape == shape else dev.broadcast_to(x.data, shape)


def _compared(name: str, a: Any, b: Any, swapped: bool = False, negated: bool = False) -> Tensor:
    """Return the mask of the device operation `name` for (a, b), or for (b, a) if `swapped`; its negation if `negated`."""
    dev, given, shape = _taken(name, a, b)
    a, b = (_spread(x, dev, shape) for x in given)
    mask = getattr(dev, name)(b, a) if swapped else getattr(dev, name)(a, b)
    return Tensor.wrap(dev.affine(mask, mul=-1.0, add=1.0) if negated else mask, dev)


def equal(a: Any, b: Any) -> Tensor:
    """y = 1 if a = b, else 0, element by element."""
    return _compared("equal", a, b)


def not_equal(a: Any, b: Any) -> Tensor:
    """y = 1 if a differs from b or one of them is NaN, else 0, element by element."""
    return _compared("equal", a, b, negated=True)


def greater(a: Any, b: Any) -> Tensor:
    """y = 1 if a > b, else 0, element by element."""
    return _compared("greater", a, b)


def greater_equal(a: Any, b: Any) -> Tensor:
    """y = 1 if a >= b, else 0, element by element."""
    return _compared("greater_equal", a, b)


def less(a: Any, b: Any) -> Tensor:
    """y = 1 if a < b, else 0, element by element."""
    return _compared("greater", a, b, swapped=True)


def less_equal(a: Any, b: Any) -> Tensor:
    """y = 1 if a <= b, else 0, element by element."""
    return _compared("greater_equal", a, b, swapped=True)


def where(mask: Any, a: Any, b: Any) -> Tensor:
    """y = a if the mask is not 0, else b, element by element; all three broadcast.

    Values that are not chosen have no influence, even if they are infinite or NaN.

    Parameters
    ----------
    mask : Tensor, array_like or number
        For example the result of a comparison; it has no gradient.
    a, b : Tensor, array_like or number
        The values to choose from.

    Raises
    ------
    ValueError
        If the shapes do not broadcast, or tensors are on several devices.
    """
    dev, (mask, *given), shape = _taken("where", mask, a, b)
    mask = _spread(mask, dev, shape)
    unset = dev.equal(mask, dev.full(shape, 0.0))
    a, b = (
        x
        if isinstance(x, Tensor) and x.shape == shape
        else broadcast_to(x, shape=shape)
        if isinstance(x, Tensor)
        else Tensor.wrap(dev.full(shape, x), dev)
        for x in given
    )
    return _where(a, b, unset=unset)


@op
def _where(dev: Device, a, b, *, unset):
    """y = b if unset is 1, else a, element by element."""
    chosen = dev.affine(unset, mul=-1.0, add=1.0)
    return dev.add(dev.relu_grad(a, chosen), dev.relu_grad(b, unset)), (
        lambda dy: dev.relu_grad(dy, chosen),
        lambda dy: dev.relu_grad(dy, unset),
    )


@op(floats=True)
def clip(dev: Device, x, *, low: float | None = None, high: float | None = None):
    """y = min(max(x, low), high). A bound that is None is left out. The gradient is dy if low <= x <= high, else 0.

    NaN stays NaN; if low > high, y is high. For bounds that are tensors use `maximum` and `minimum`.

    Raises
    ------
    ValueError
        If both bounds are None.
    TypeError
        If a bound is not a number.
    """
    bounds = {"low": low, "high": high}
    for name, bound in bounds.items():
        if bound is not None and not isinstance(bound, numbers.Real):
            raise TypeError(f"clip: {name} must be a number or None, got {bound!r}; for tensors use maximum and minimum")
    if low is None and high is None:
        raise ValueError("clip: needs low, high, or both")
    lowest, highest = (None if bound is None else dev.full(x.shape, float(bound)) for bound in bounds.values())
    y = x if lowest is None else dev.maximum(x, lowest)

    def vjp(dy):
        dx = dy if lowest is None else dev.relu_grad(dy, dev.greater_equal(x, lowest))
        return dx if highest is None else dev.relu_grad(dx, dev.greater_equal(highest, x))

    return y if highest is None else dev.minimum(y, highest), (vjp,)
