"""Embedding: a vector for each of a number of symbols."""
from __future__ import annotations

import numpy as np

from .. import ops
from ..device import Device
from ..plans import IndexPlan
from ..tensor import Tensor
from .base import Cost, Flow, Form, Layer, part_of


class Embedding(Layer):
    """y[…, d] = weight[x[…], d].   x (…) integers -> y (…, D)

    The gradient has the rows that were looked up alone; an update leaves the others for later, as of any weight (`SGD`).

    Parameters
    ----------
    num_embeddings : int
        How many symbols, V: x is in 0 … V - 1.
    embedding_dim : int
        Length of a vector, D.
    rng : numpy.random.Generator or int, optional
        Where the initial weights come from, standard normal as PyTorch's.
    device : str or Device, default="cpu"
        Where the weight lives.

    Raises
    ------
    ValueError
        If a size is not positive.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, rng: np.random.Generator | int | None = None,
                 device: str | Device = "cpu") -> None:
        if num_embeddings < 1 or embedding_dim < 1:
            raise ValueError(f"Embedding: sizes must be positive, got num_embeddings={num_embeddings}, "
                             f"embedding_dim={embedding_dim}")
        values = np.random.default_rng(rng).standard_normal((num_embeddings, embedding_dim), np.float32)
        self.weight = Tensor(values, device, requires_grad=True)

    @property
    def symbols(self) -> int:
        return self.weight.shape[0]

    def forward(self, flow, step):
        return Flow(ops.embedding(self.weight, ids=flow.dense().data))

    def cost(self, form, step):
        width = self.weight.shape[1]
        size = 4.0 * width * np.prod([n or 1 for n in form.shape])
        return Cost(0.0, 0.0, 2 * size, 2 * size), Form((*form.shape, width), None, True)

    def reads(self, step):
        if step.inputs is None:
            return {}
        return part_of(self.weight, IndexPlan(self.weight.shape[0], np.unique(step.inputs)), step)

    def __repr__(self) -> str:
        return f"Embedding({self.weight.shape[0]}, {self.weight.shape[1]})"
