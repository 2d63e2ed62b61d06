"""LastStep: the last output of each sequence."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..plans import AxisPlan
from .base import Layer
from .flow import Cost


class LastStep(Layer):
    """y[n] = x[n, length[n] - 1], where length[n] is the number of time steps of sequence n, T by default.   x (N, T, H) -> y
    (N, H)

    Put this layer between an `LSTM` or `GRU` and a `Linear` to classify sequences.

    Parameters
    ----------
    bidirectional : bool, default=False
        If True, the second half of the features comes from x[n, 0], where the backward direction ends. Set this after a
        bidirectional layer: at the last time step, the backward direction of that layer has read only one element.
    """

    recordable = True

    def __init__(self, bidirectional: bool = False) -> None:
        self.bidirectional = bool(bidirectional)

    def forward(self, flow, context):
        if flow.x.ndim != 3 or not flow.x.shape[1]:
            raise ValueError(f"LastStep: x must be (N, T, H), T at least 1, got {tuple(flow.x.shape)}")
        lengths = flow.tags.lengths
        last = flow.x[:, -1] if lengths is None else flow.x[np.arange(flow.x.shape[0]), lengths - 1]
        ended = flow._replace(x=last, tags=flow.tags._replace(lengths=None))
        if not self.bidirectional:
            return ended
        ahead, back = ended.dense(), flow._replace(x=flow.x[:, 0]).dense()
        half = self._half(ahead.shape[1])
        return ended.with_(ops.concatenate([ahead[:, :half], back[:, half:]], axis=1))

    def _half(self, width: int) -> int:
        if width % 2:
            raise ValueError(f"{self!r}: its input has {width} features a step; two directions have an even number")
        return width // 2

    def cost(self, spec, plans):
        if len(spec.shape) != 3:
            raise ValueError(f"{self!r}: it takes sequences (T, H), and its input is of shape {spec.shape[1:]} a sample")
        if self.bidirectional:
            self._half(spec.shape[2] or 0)
        return Cost(), spec._replace(shape=(spec.shape[0], spec.shape[2]), plan=None if self.bidirectional else spec.plan)

    def commutes(self, plan):
        return isinstance(plan, AxisPlan)

    def __repr__(self) -> str:
        return f"LastStep({'bidirectional=True' * self.bidirectional})"
