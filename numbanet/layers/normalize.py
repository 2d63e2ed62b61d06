"""`Normalize` shifts and scales inputs by given constants, so that they have mean 0 and standard deviation 1."""

from __future__ import annotations

import numpy as np

from ..device import Device
from ..tensor import Tensor
from .base import Layer
from .flow import Cost


class Normalize(Layer):
    """y[n, c, …] = (x[n, c, …] - mean[c]) / std[c].   x, y (N, C, …): images, or rows of features

    Use this as the first layer of a network: samples are then normalised in the same way for training and prediction, and the
    constants are saved with the network. The constants are not trained; in `state_dict` they are `mean` and `std`.

    Parameters
    ----------
    mean, std : array_like of shape (C,), or float
        The mean and the standard deviation of each channel or feature over the training samples, such as X.mean((0, 2, 3)) and
        X.std((0, 2, 3)) for images. A single number is used for all channels.
    device : str or Device, default="cpu"
        Device of the tensors.

    Raises
    ------
    ValueError
        If `mean` and `std` are not finite or differ in length, or if a deviation is not positive.
    """

    buffers = ("mean", "std")
    recordable = True

    def __init__(self, mean: np.ndarray | float, std: np.ndarray | float, device: str | Device = "cpu") -> None:
        given = np.atleast_1d(np.float32(mean)), np.atleast_1d(np.float32(std))
        if given[0].ndim != 1 or given[0].shape != given[1].shape or not given[0].size:
            raise ValueError(f"Normalize: mean {given[0].shape} and std {given[1].shape} must have one number per channel")
        if not np.isfinite(given).all() or not (given[1] > 0).all():
            raise ValueError(
                f"Normalize: mean {given[0]} and std {given[1]} must be finite, and std positive; use std 1 for a "
                "constant feature"
            )
        self.mean, self.std = (Tensor(values, device) for values in given)

    def __call__(self, x, context=None):
        self._check(x.shape)
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return (x - self.mean.reshape(*shape)) / self.std.reshape(*shape)

    def _check(self, shape):
        """Raise ValueError unless a batch of shape `shape` (None: an unknown length) has the right number of channels."""
        if len(shape) < 2 or self.mean.shape[0] != 1 and shape[1] not in (None, self.mean.shape[0]):
            raise ValueError(f"{self!r}: x {shape} must be (N, C, …) with C = {self.mean.shape[0]} on its second axis")

    def cost(self, spec, plans):
        self._check(spec.shape)
        size = 4.0 * np.prod([n or 1 for n in spec.shape])
        return Cost(0.0, 0.0, 2 * size, 2 * size * spec.differentiable), spec._replace(plan=None)

    def config(self):
        return {"mean": self.mean.numpy(), "std": self.std.numpy()}

    def __repr__(self) -> str:
        return f"Normalize({self.mean.shape[0]} channels)"
