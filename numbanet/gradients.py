"""Gradient: the object that `backward` stores at a tensor; its form is the one that is cheapest to compute and to use.

Dense     an array of the tensor's shape
Packed    values of the rows x columns or tiles of a weight that a plan kept, or of rows of an embedding; zero elsewhere
Columns   some columns of a matrix; zero elsewhere
Pending   a product that is not computed yet, so that a ReLU mask or a scale can be fused into its epilogue
One       ones: the gradient that `backward` starts with, at a tensor of one value
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numbanet_kernels.layouts.packed import Packing

from .device import Device


class Gradient:
    """Base of the forms. `values` is the array that processes exchange if several train one model; `shape` is that of the dense
    gradient.
    """

    values: Any

    if TYPE_CHECKING:  # a field of most forms

        @property
        def shape(self) -> tuple[int, ...]:
            """The shape of the dense gradient."""

    def dense(self, dev: Device) -> Any:
        """The gradient as an array of the tensor's shape."""
        raise NotImplementedError

    def through(self, dev: Device, where: Any = None, scale: float = 1.0) -> Any:
        """scale * gradient as an array; given `where`, 0 unless where > 0: the gradient before a ReLU with output `where`."""
        array = self.dense(dev)
        if where is not None:
            return dev.relu_grad(array, where, scale)
        return array if scale == 1.0 else dev.affine(array, mul=scale)

    def add(self, other: Gradient, dev: Device) -> Gradient:
        """The sum; compact if both are compact in the same way."""
        return Dense(dev.add(self.dense(dev), other.dense(dev)))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Dense(Gradient):
    """An array of the tensor's shape."""

    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.values.shape)

    def dense(self, dev):
        return self.values


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Packed(Gradient):
    """Gradient of the part of a weight that a plan kept: `packing` locates `values` in it; zero elsewhere."""

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
class Columns(Gradient):
    """Gradient of a matrix that is zero except in some columns: `values` (N, K) are the columns that `axis`, a `DeviceAxis`,
    lists."""

    values: Any
    axis: Any
    shape: tuple[int, ...]

    def dense(self, dev):
        return dev.expand(self.values, self.axis.inverse)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pending(Gradient):
    """product(where=None, scale=1.0) -> array computes the product; `through` fuses the mask and the scale into it."""

    product: Callable[..., Any]
    shape: tuple[int, ...]

    def dense(self, dev):
        return self.product()

    def through(self, dev, where=None, scale=1.0):
        return self.product(where=where, scale=scale)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class One(Gradient):
    """dy/dy = 1, for a tensor y of one value."""

    shape: tuple[int, ...]

    def dense(self, dev):
        return dev.full(self.shape, 1.0)  # an operation of the table, so that it can be recorded
