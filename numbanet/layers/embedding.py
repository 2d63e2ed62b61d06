"""Embedding: a trained vector for each symbol."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..arguments import check_counts
from ..device import Device
from ..plans import AxisPlan, BernoulliPlan, DeviceAxis, DrawnPlan, Site, on_device as placed
from ..tensor import Tensor
from .base import Layer, only
from .flow import DENSE, ActivationSpec, Columns, Cost, Symbols, Tags


def sequence_lengths(ids: np.ndarray, padding: int) -> np.ndarray:
    """Return the lengths (N,) of the symbol sequences ids (N, T) without the padding at their ends; they are at least 1."""
    if not ids.shape[1]:
        return np.ones(len(ids), np.intp)
    real = ids != padding
    return np.where(real.any(axis=1), ids.shape[1] - np.argmax(real[:, ::-1], axis=1), 1)


class Embedding(Layer):
    """y[…, d] = weight[x[…], d].   x (…) integers -> y (…, D)

    The gradient holds only the rows of the weight that were looked up; `SGD` defers the updates of the other rows. Under an
    `AxisPlan` y holds only the kept components, the same for all symbols of the batch. Under a `BernoulliPlan` y holds all
    components, and a random mask is pending (`Flow.pending`). Names, shapes and positional arguments are PyTorch's.

    Parameters
    ----------
    num_embeddings : int
        Number of symbols, V: x is in 0 … V - 1.
    embedding_dim : int
        Length of a vector, D.
    padding_idx : int, optional
        The symbol that pads sequences; negative values count from the end. Its vector is 0 and is not trained. A row of x
        (N, T) without the padding at its end is a sequence; later layers use the length of the sequence, which is at least 1.
    max_norm, norm_type, scale_grad_by_freq, sparse
        Arguments of PyTorch; only their defaults are supported.
    rng : numpy.random.Generator or int, optional
        Source of the initial weights, which have a standard normal distribution, as in PyTorch.
    device : str or Device, default="cpu"
        Device of the weight.

    Raises
    ------
    ValueError
        If a size is not a positive integer, or padding_idx is not a symbol.
    TypeError
        If padding_idx is not an integer.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        rng: np.random.Generator | int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        only("Embedding", "scale the rows of its weight between steps", max_norm=(max_norm, None), norm_type=(norm_type, 2.0))
        only("Embedding", "a row's gradient is the sum over its look-ups", scale_grad_by_freq=(scale_grad_by_freq, False))
        only("Embedding", "its gradient holds only the rows that were looked up", sparse=(sparse, False))
        self._shape = check_counts("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.padding_idx = ops.padding_row("Embedding: padding_idx", padding_idx, num_embeddings)
        self.weight = Tensor(self.initial(self.generator(rng))["weight"], device, requires_grad=True)

    recordable = True

    def initial(self, rng):
        values = rng.standard_normal(self._shape, np.float32)
        if self.padding_idx is not None:
            values[self.padding_idx] = 0
        return {"weight": values}

    @property
    def records(self) -> bool:
        """False if there is a padding symbol: the host then computes the lengths of the sequences in each step."""
        return super().records and self.padding_idx is None

    @property
    def symbols(self) -> int:
        return self.weight.shape[0]

    @property
    def padding(self) -> int | None:
        return self.padding_idx

    def sites(self):
        return (Site("output", "output", self.weight.shape[::-1], (AxisPlan, BernoulliPlan)),)

    def forward(self, flow, context):
        plan, x = context.plans.at(self), flow.dense()
        indices = plan if isinstance(plan, DeviceAxis) else None
        host = flow.layout.host if isinstance(flow.layout, Symbols) else None
        y = ops.embedding(self.weight, ids=x.data, cols=indices, padding=self.padding_idx, checked=host is not None)
        pending = plan is not None and (indices is None or plan.plan.scale != 1.0)
        flow = flow._replace(tags=self._tags(flow, host))
        return flow.with_(y, DENSE if indices is None else Columns(indices), (plan.pending,) if pending else ())

    def _tags(self, flow, host):
        """Return `Tags` with the lengths of the symbol sequences (N, T), without the padding at their ends."""
        if self.padding_idx is None or flow.x.ndim != 2:
            return flow.tags
        ids = np.asarray(flow.x.device.download(flow.x.data)) if host is None else host
        return Tags(sequence_lengths(ids, self.padding_idx))

    def cost(self, spec, plans):
        width, plan = self.weight.shape[1], plans.of(self)
        size = 4.0 * width * np.prod([n or 1 for n in spec.shape])
        axis = plan if isinstance(plan, AxisPlan) else None
        return Cost(0.0, 0.0, 2 * size, 2 * size), ActivationSpec((*spec.shape, width), axis, True)

    def reads(self, plans, symbols=None):
        if symbols is None:
            return {}
        plan = DrawnPlan(self.weight.shape[0], np.unique(symbols))
        return {} if plan.region(self.weight.shape) is None else {self.weight: placed(plan, plans.device)}

    def config(self):
        return {"num_embeddings": self.weight.shape[0], "embedding_dim": self.weight.shape[1], "padding_idx": self.padding_idx}

    @classmethod
    def shapes(cls, config):
        return (("weight", (config["num_embeddings"], config["embedding_dim"])),)

    def __repr__(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"Embedding({self.weight.shape[0]}, {self.weight.shape[1]}{padding})"
