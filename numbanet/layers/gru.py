"""GRU: gated recurrent layers."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..device import Device
from .base import only
from .recurrent import Recurrent


class GRU(Recurrent):
    """r, u = sigmoid of W_ih x[t] + b_ih + W_hh h[t-1] + b_hh, m = tanh(W_ih x[t] + b_ih + r (W_hh h[t-1] + b_hh));
    y[t] = h[t] = m + u (h[t-1] - m)

    Called as in PyTorch, `y, h = gru(x, h0)`, with its names and shapes; r, u and m are its r, z and n (Cho et al. 2014,
    "Learning phrase representations using RNN encoder-decoder"). It has three gates and one state, while an `LSTM` has four
    gates and two states, so its products cost three quarters of the FLOPs. `numbanet.layers.Recurrent` describes which parts
    plans drop.

    Parameters
    ----------
    input_size, hidden_size : int
        Widths I of x and H of h.
    num_layers : int, default=1
        Number of layers; each takes the outputs of the previous one.
    bias : bool, default=True
        If True, there are two biases b_ih and b_hh, as in PyTorch; two are needed, because r multiplies only b_hh in m.
    batch_first : bool, default=False
        Whether x and y are (N, T, …); else (T, N, …). States are (num_layers, N, H) either way.
    dropout : float, default=0.0
        PyTorch's; only 0 is supported.
    bidirectional : bool, default=False
        Whether a second cell reads the input backwards, as in `LSTM`.
    rng : numpy.random.Generator or int, optional
        Source of the initial weights: uniform in ±1 / sqrt(H), as in PyTorch.
    device : str or Device, default="cpu"
        Device of the parameters.

    Raises
    ------
    ValueError
        If a size is not positive, or an argument has an unsupported value.
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
