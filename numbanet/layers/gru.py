"""GRU: gated recurrent layers."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..device import Device
from .base import only
from .recurrent import Recurrent


class GRU(Recurrent):
    """y[t] = h[t] = m + u (h[t-1] - m), where each of r and u is the sigmoid of W_ih x[t] + b_ih + W_hh h[t-1] + b_hh, and
    m = tanh(W_ih x[t] + b_ih + r (W_hh h[t-1] + b_hh)). Each of r, u and m has its own rows of W_ih, W_hh, b_ih and b_hh.

    A GRU is called as in PyTorch, `y, h = gru(x, h0)`, and has PyTorch's names and shapes; PyTorch calls r, u and m r, z and n
    (Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder"). A GRU has three gates and one state, while
    an `LSTM` has four gates and two states, so the products of a GRU cost three quarters of the FLOPs of an LSTM's.
    `numbanet.layers.Recurrent` describes which parts plans drop.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, rng, device
        As for `LSTM`, with the same errors. The two biases are not redundant: in m, r multiplies b_hh but not b_ih.
    """

    recordable = True
    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        rng: np.random.Generator | int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        only("GRU", "use the estimator's dropout, which draws a plan for each step", dropout=(dropout, 0))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, bidirectional, rng, device)

    def act(self, z, cell, first, plans, ends, **options):
        return (ops.gru(z, self._of("weight_hh", cell), self._of("bias_hh", cell), *first, **options),)
