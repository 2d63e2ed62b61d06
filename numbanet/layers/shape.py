"""Layers that rearrange or select elements: Flatten, Shuffle, Select."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..ops import Order
from ..plans import IndexPlan, on_device, repeat_indices
from .base import Layer, only
from .flow import ActivationSpec, ChannelsLast, Columns, Cost


class Flatten(Layer):
    """y = x reshaped to (N, F), where F is the product of the lengths of the other axes. The features of an image are in the
    order (C, H, W). If only some channels are kept, y holds only the features of these channels.
    """

    recordable = True
    unitwise = True

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        only("Flatten", "a Layer subclass can reshape in other ways", start_dim=(start_dim, 1), end_dim=(end_dim, -1))

    def forward(self, flow, context):
        flow = flow.applied()
        compact = isinstance(flow.layout, ChannelsLast) and flow.indices is not None
        x = flow.x.transpose(0, 3, 1, 2) if compact else flow.dense()
        y = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        return flow.with_(y, Columns(flow.indices.repeated(math.prod(flow.x.shape[1:3])))) if compact else flow.with_(y)

    def cost(self, spec, plans):
        width = None if None in spec.shape[1:] else math.prod(spec.shape[1:])
        images = len(spec.shape) == 4 and width is not None and spec.plan is not None and spec.plan.n == spec.shape[1]
        longer = repeat_indices(spec.plan, math.prod(spec.shape[2:])) if images else None
        return Cost(), ActivationSpec((spec.shape[0], width), longer, spec.differentiable)

    def config(self):
        return {}


class Shuffle(Layer):
    """y[n, j] = x[n, order[j]] - mean[order[j]]: the features are centred and permuted, in the same way for all samples.

    x, y (N, I). Put this layer before one whose weight has a tile pattern, which drops some inputs of a neuron. Adjacent
    features are often correlated; after the permutation, a tile holds features that were far apart. If the mean of the features
    is not 0, subtracting it reduces the noise of dropped inputs. `Net` subtracts most of the mean (`estimators.build.centre`).

    Parameters
    ----------
    order, mean : array_like
        As for `Order`, which raises if they are invalid.
    """

    recordable = True

    def __init__(self, order: Sequence[int] | np.ndarray, mean: Sequence[float] | np.ndarray | None = None) -> None:
        self.order = Order(order, mean)

    def forward(self, flow, context):
        return flow.with_(ops.shuffle(flow.dense(), order=self.order))

    def config(self):
        return {"order": self.order.order, "mean": self.order.mean}

    def cost(self, spec, plans):
        if len(spec.shape) != 2 or spec.shape[1] not in (None, self.order.size):
            raise ValueError(f"{self!r}: its input is of shape {spec.shape[1:]} a sample")
        return Cost(), spec._replace(shape=(spec.shape[0], self.order.size), plan=None)

    def __repr__(self) -> str:
        return f"Shuffle({self.order.size} features)"


class Select(Layer):
    """y[n, k] = x[n, index[k]]: y holds some of the features.   x (N, I) -> y (N, K)

    If training with `GroupLasso` has made all weights of some features zero, this layer removes these features before the next
    layer.

    Parameters
    ----------
    features : int
        I, the number of features.
    index : array_like of int
        The features that are passed on, increasing, in 0 … I - 1.

    Raises
    ------
    ValueError
        If the indices are not increasing integers in that range.
    """

    recordable = True

    def __init__(self, features: int, index: Any) -> None:
        self.plan = IndexPlan(features, index)

    def forward(self, flow, context):
        return flow.with_(ops.compact(flow.dense(), plan=on_device(self.plan, flow.x.device)))

    def config(self):
        return {"features": self.plan.n, "index": self.plan.indices()}

    def cost(self, spec, plans):
        if len(spec.shape) != 2 or spec.shape[1] not in (None, self.plan.n):
            raise ValueError(f"{self!r}: its input is of shape {spec.shape[1:]} a sample")
        return Cost(), ActivationSpec((spec.shape[0], self.plan.count), None, spec.differentiable)

    def __repr__(self) -> str:
        return f"Select({self.plan.count} of {self.plan.n} features)"
