"""A `Gradient` is the object that `backward` stores at a tensor. There are several forms; a vjp returns the one that is
cheapest to compute and to use:

Dense     an array of the tensor's shape
Packed    the values at the rows and columns, or the tiles, of a weight that a plan kept; all other elements are
          zero
LookedUp  the values at the rows of a table that samples have looked up
Columns   the values of some columns of a matrix; all other columns are zero
Pending   a matrix product that is not computed yet, so that a ReLU mask or a scale can be fused into its epilogue
One       the gradient 1 of a tensor of one value, with which `backward` starts
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numbanet_kernels.layouts.packed import Packing

from .device import Device


class Gradient:
    """Base class of the forms. `shape` is the shape of the dense gradient. `values` is the array of its stored values; if
    several processes train one model, they exchange this array.
    """

    values: Any

    if TYPE_CHECKING:  # most subclasses have `shape` as a field, so it must not be defined at run time

        @property
        def shape(self) -> tuple[int, ...]:
            """The shape of the dense gradient."""

    def dense(self, dev: Device) -> Any:
        """Return the gradient as an array of shape `shape`."""
        raise NotImplementedError

    def through(self, dev: Device, where: Any = None, scale: float = 1.0) -> Any:
        """Return scale * gradient as an array. If `where` is given, elements are 0 unless where > 0: this is the gradient of
        the input of a ReLU whose output is `where`.
        """
        array = self.dense(dev)
        if where is not None:
            return dev.relu_grad(array, where, scale)
        return array if scale == 1.0 else dev.affine(array, mul=scale)

    def add(self, other: Gradient, dev: Device) -> Gradient:
        """Return the sum of two gradients. It is packed if both are packed in the same way, else dense."""
        return Dense(dev.add(self.dense(dev), other.dense(dev)))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Dense(Gradient):
    """A gradient that is stored as an array of the shape of its tensor."""

    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the gradient."""
        return tuple(self.values.shape)

    def dense(self, dev):
        return self.values


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Packed(Gradient):
    """A gradient that is zero except for the part that a plan kept: its `values`, and their positions as a `packing`."""

    values: Any
    packing: Packing
    shape: tuple[int, ...]

    def dense(self, dev):
        matrix = (1, *self.shape) if len(self.shape) < 2 else (self.shape[0], math.prod(self.shape[1:]))
        return dev.reshape(dev.unpack_gradient(self.values, self.packing, matrix), self.shape)

    def add(self, other, dev):
        alike = isinstance(other, Packed) and all(a is b for a, b in zip(self.packing, other.packing, strict=True))
        return dataclasses.replace(self, values=dev.add(self.values, other.values)) if alike else Gradient.add(self, other, dev)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LookedUp(Packed):
    """A packed gradient of the rows of a table that samples have looked up: processes that train one model have other rows."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Columns(Gradient):
    """A gradient of a matrix that is zero except in K columns: their `values` (N, K), and the `DeviceAxis` that lists them."""

    values: Any
    axis: Any
    shape: tuple[int, ...]

    def dense(self, dev):
        return dev.expand(self.values, self.axis.inverse)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pending(Gradient):
    """A gradient that is not computed yet: product(where=None, scale=1.0) computes it and returns it as an array. `through`
    passes the ReLU mask `where` and the scale to the product, which fuses them.
    """

    product: Callable[..., Any]
    shape: tuple[int, ...]

    def dense(self, dev):
        return self.product()

    def through(self, dev, where=None, scale=1.0):
        return self.product(where=where, scale=scale)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class One(Gradient):
    """The gradient dy/dy = 1 of a tensor y of one value."""

    shape: tuple[int, ...]

    def dense(self, dev):
        return dev.full(self.shape, 1.0)  # an operation of the device, so that it can be recorded
