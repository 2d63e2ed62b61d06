"""Order: a fixed permutation and centring of features."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..device import Device


class Order:
    """A fixed permutation and centring of I features: y[n, j] = x[n, order[j]] - mean[order[j]].

    Orders compare by identity, because the index arrays for kernels are cached for each object and device.

    Parameters
    ----------
    order : array_like of int
        A permutation of 0 … I - 1.
    mean : array_like of float, optional
        Mean of each feature, in the order of x; 0 by default.

    Raises
    ------
    ValueError
        If the order is not a permutation, or the mean not I finite numbers.
    """

    def __init__(self, order: Any, mean: Any = None) -> None:
        index = np.array(order)
        if not (index.ndim == 1 and index.dtype.kind in "iu" and np.array_equal(np.sort(index), np.arange(index.size))):
            raise ValueError(f"order must be a permutation of 0 … n - 1, got {order!r}")
        self.order = index.astype(np.int32)
        self.mean = None if mean is None else np.array(mean, np.float32)
        if self.mean is not None and not (self.mean.shape == index.shape and np.isfinite(self.mean).all()):
            raise ValueError(f"mean must be {index.size} finite numbers, one for each feature, got {mean}")

    @property
    def size(self) -> int:
        """I, the number of features."""
        return self.order.size

    def views(self, dev: Device) -> tuple:
        """Return (order, the inverse permutation, mean[order] or None) as arrays of the device."""
        return _order_views(self, dev)


@functools.lru_cache(maxsize=16)
def _order_views(of: Order, dev: Device) -> tuple:
    order = np.array(of.order)  # copied, because kernels take no read-only arrays, such as memory-mapped ones
    return dev.upload(order), dev.upload(np.argsort(order), np.int32), None if of.mean is None else dev.upload(of.mean[order])
