"""Layers that move elements: Flatten, Shuffle."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import ops
from ..ops import Order
from .base import Cost, Flow, Form, Layer


class Flatten(Layer):
    """y[n, …] = x[n, …] as (N, everything else)."""

    recordable = True

    def forward(self, flow, step):
        x = flow.dense()
        return Flow(x.reshape(x.shape[0], math.prod(x.shape[1:])))

    def cost(self, form, step):
        width = None if None in form.shape[1:] else math.prod(form.shape[1:])
        return Cost(), Form((form.shape[0], width), None, form.differentiable)


class Shuffle(Layer):
    """y[n, j] = (x - mean)[n, order[j]]: the features centred and in another order, the same for all samples.   x, y (N, I)

    Made for a layer under a tile pattern, which leaves out some of a neuron's inputs. The order brings features from everywhere
    into each tile, where neighbours say much the same. Without their mean, what is left out is only how a sample differs from
    the others: far less noise, where features are not around 0 already. `Net` takes off most of the mean
    (`estimators.build.centre`).

    Parameters
    ----------
    order, mean : array_like
        As for `Order`, which refuses what is none.
    """

    recordable = True

    def __init__(self, order: Sequence[int] | np.ndarray, mean: Sequence[float] | np.ndarray | None = None) -> None:
        self.order = Order(order, mean)

    def forward(self, flow, step):
        return Flow(ops.shuffle(flow.dense(), order=self.order))

    def cost(self, form, step):
        if len(form.shape) != 2 or form.shape[1] not in (None, self.order.size):
            raise ValueError(f"{self!r}: its input is of shape {form.shape[1:]} a sample")
        return Cost(), form._replace(shape=(form.shape[0], self.order.size), kept=None)

    def __repr__(self) -> str:
        return f"Shuffle({self.order.size} features)"
