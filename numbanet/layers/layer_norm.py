"""LayerNorm: normalisation of each sample by its own statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..arguments import is_integer
from ..device import Device
from ..tensor import Tensor
from .base import Layer
from .flow import ActivationSpec, Cost


class LayerNorm(Layer):
    """y = weight (x - mean) / sqrt(variance + eps) + bias, mean and variance over the last axes of x (…, *normalized_shape)

    Each sample, and each time step, is normalised separately. So training and prediction compute the same, a batch may have one
    sample, and there are no running values (Ba, Kiros & Hinton 2016, "Layer normalization", eq. 3). Names, shapes, values and
    positional arguments are PyTorch's. The mean and the variance are those of all features: compact activations are expanded,
    and dropped entries count as 0.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The last axes of x; an integer stands for the last axis alone.
    eps : float, default=1e-5
        A number that is added to the variance; the variance is the sum of squares divided by n, the number of features.
    elementwise_affine : bool, default=True
        Whether there are a weight and a bias, of shape `normalized_shape`; they start at 1 and 0.
    bias : bool, default=True
        Whether there is a bias beside the weight.
    device : str or Device, default="cpu"
        Device of the tensors.

    Raises
    ------
    ValueError
        If there is no length or one is not positive, or eps is not above 0; when called, if x does not end with these axes.
    TypeError
        If a length is not an integer.
    """

    recordable = True
    units = ("weight", "bias")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        device: str | Device = "cpu",
    ) -> None:
        given: tuple[Any, ...] = tuple(normalized_shape) if isinstance(normalized_shape, Iterable) else (normalized_shape,)
        if any(not is_integer(n) for n in given):
            raise TypeError(f"LayerNorm: normalized_shape must be an integer or a sequence of them, got {normalized_shape!r}")
        self.normalized_shape = tuple(int(n) for n in given)
        if not given or min(given) < 1 or not eps > 0:
            raise ValueError(
                f"LayerNorm: normalized_shape {normalized_shape} must be positive, one axis at least, and eps {eps} above 0"
            )
        self.eps, self.elementwise_affine = eps, bool(elementwise_affine)
        self.weight, self.bias = (
            Tensor(np.full(self.normalized_shape, value), device, requires_grad=True) if exists else None
            for value, exists in ((1.0, elementwise_affine), (0.0, elementwise_affine and bias))
        )

    def forward(self, flow, context):
        x = flow.dense()
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise ValueError(f"{self!r}: x {x.shape} does not end with the axes {self.normalized_shape}")
        return flow.with_(ops.layer_norm(x, self.weight, self.bias, shape=self.normalized_shape, eps=self.eps))

    def cost(self, spec, plans):
        axes = spec.shape[-len(self.normalized_shape) :]
        if len(axes) != len(self.normalized_shape) or any(n not in (None, m) for n, m in zip(axes, self.normalized_shape)):
            raise ValueError(f"{self!r}: its input is of shape {spec.shape[1:]} a sample")
        size = 4.0 * math.prod(n or 1 for n in spec.shape)
        return Cost(0.0, 0.0, 2 * size, 3 * size), ActivationSpec(
            spec.shape, None, spec.differentiable or self.elementwise_affine
        )

    def config(self):
        return {
            "normalized_shape": self.normalized_shape,
            "eps": self.eps,
            "elementwise_affine": self.elementwise_affine,
            "bias": self.bias is not None,
        }

    @classmethod
    def shapes(cls, config):
        return (("weight", tuple(config["normalized_shape"])),) if config["elementwise_affine"] else ()

    def __repr__(self) -> str:
        shape = self.normalized_shape[0] if len(self.normalized_shape) == 1 else self.normalized_shape
        options = ["elementwise_affine=False"] if not self.elementwise_affine else ["bias=False"] * (self.bias is None)
        return f"LayerNorm({', '.join([f'{shape}', *options])})"
