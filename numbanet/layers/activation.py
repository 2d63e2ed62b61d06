"""Activation functions, element by element; they work on compact activations directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from .. import ops
from ..tensor import Tensor
from .base import Layer, only
from .flow import Cost


class Activation(Layer):
    """An elementwise function of its input. Entries that a plan dropped are zero in its output, even if f(0) != 0."""

    function: ClassVar[Callable[[Tensor], Tensor]]
    unitwise = True

    def forward(self, flow, context):
        return flow._replace(x=type(self).function(flow.x))

    def cost(self, spec, plans):
        return Cost(), spec

    def config(self):
        return {}

    def commutes(self, plan):
        return True


class ReLU(Activation):
    """y = max(x, 0)"""

    recordable = True
    function = ops.relu

    def __init__(self, inplace: bool = False) -> None:
        only("ReLU", "the output is the same", inplace=(inplace, False))


class Tanh(Activation):
    """y = tanh x"""

    recordable = True
    function = ops.tanh


class Sigmoid(Activation):
    """y = 1 / (1 + e^-x)"""

    recordable = True
    function = ops.sigmoid


class GELU(Activation):
    """y = x Φ(x), where Φ is the cumulative distribution function of the standard normal distribution"""

    recordable = True
    function = ops.gelu

    def __init__(self, approximate: str = "none") -> None:
        only("GELU", "Phi is exact", approximate=(approximate, "none"))


ACTIVATIONS: dict[str, type[Activation]] = {"relu": ReLU, "tanh": Tanh, "sigmoid": Sigmoid, "gelu": GELU}
