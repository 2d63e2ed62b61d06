"""Layers that move elements: Flatten, Shuffle, Select."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import ops
from ..ops import Order
from ..plans import IndexPlan, widened
from .base import Cost, Flow, Form, Layer, only


class Flatten(Layer):
    """y[n, …] = x[n, …] as (N, everything else), of images in the order (C, H, W). Compact channels become compact features."""

    recordable = True

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        only("Flatten", "a layer of one's own reshapes in another way", start_dim=(start_dim, 1), end_dim=(end_dim, -1))

    def forward(self, flow, step):
        flow = flow.settled()
        compact = flow.channels_last and flow.kept is not None and not step.placed
        x = flow.x.transpose(0, 3, 1, 2) if compact else flow.dense()
        kept = step.on(widened(flow.kept.plan, math.prod(x.shape[2:]))) if compact else None
        return Flow(x.reshape(x.shape[0], math.prod(x.shape[1:])), kept)

    def cost(self, form, step):
        """Where passes are recorded (`step.placed`), lists of features would have to be made from those of channels on the
        device: there, the features are dense."""
        width = None if None in form.shape[1:] else math.prod(form.shape[1:])
        images = len(form.shape) == 4 and width is not None and form.kept is not None and form.kept.n == form.shape[1]
        compact = images and not step.placed
        kept = widened(form.kept, math.prod(form.shape[2:])) if compact else None
        return Cost(), Form((form.shape[0], width), kept, form.differentiable)


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


class Select(Layer):
    """y[n, k] = x[n, index[k]]: some of the features.   x (N, I) -> y (N, K)

    Where a network has learned not to read all features (`GroupLasso`), the next layer has no weights for the others.

    Parameters
    ----------
    features : int
        I.
    index : array_like of int
        The features that are passed on, increasing, in 0 … I - 1.

    Raises
    ------
    ValueError
        If the indices are not increasing integers of that range.
    """

    recordable = True

    def __init__(self, features: int, index: Sequence[int] | np.ndarray) -> None:
        self.plan = IndexPlan(features, index)

    def forward(self, flow, step):
        return Flow(ops.compact(flow.dense(), plan=step.on(self.plan)))

    def cost(self, form, step):
        if len(form.shape) != 2 or form.shape[1] not in (None, self.plan.n):
            raise ValueError(f"{self!r}: its input is of shape {form.shape[1:]} a sample")
        return Cost(), Form((form.shape[0], self.plan.count), None, form.differentiable)

    def __repr__(self) -> str:
        return f"Select({self.plan.count} of {self.plan.n} features)"
