"""GRU: layers of gated cells through time."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..device import Device
from .base import only
from .recurrent import Recurrent


class GRU(Recurrent):
    """r, u = sigmoid of W_ih x[t] + b_ih + W_hh h[t-1] + b_hh, m = tanh(W_ih x[t] + b_ih + r (W_hh h[t-1] + b_hh));
    y[t] = h[t] = m + u (h[t-1] - m)

    Called as PyTorch's, `y, h = gru(x, h0)`, with its names and shapes; r, u and m are its r, z and n (Cho et al. 2014,
    "Learning phrase representations using RNN encoder-decoder"). Three gates and one state, where an `LSTM` has four and two:
    three quarters of its products. What plans drop in it is said by `numbanet.layers.Recurrent`.

    Parameters
    ----------
    input_size, hidden_size : int
        Widths of x, I, and of h, H.
    num_layers : int, default=1
        Each takes the outputs of the one before.
    bias : bool, default=True
        Whether there are b_ih and b_hh: two, as in PyTorch; in m they do different things.
    batch_first : bool, default=False
        Whether x and y are (N, T, …); else (T, N, …). States are (num_layers, N, H) either way.
    dropout : float, default=0.0
        PyTorch's; only 0 is supported.
    bidirectional : bool, default=False
        Whether a layer reads its input backwards as well, as `LSTM` says.
    rng : numpy.random.Generator or int, optional
        Where the initial weights come from: uniform in ±1 / sqrt(H), as PyTorch's.
    device : str or Device, default="cpu"
        Where the parameters live.

    Raises
    ------
    ValueError
        If a size is not positive, or an argument has a value that is not supported.
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
        only("GRU", "plans of a step say what is dropped, which an estimator's dropout draws", dropout=(dropout, 0))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, bidirectional, rng, device)

    def act(self, z, cell, first, plans, ends, **options):
        return (ops.gru(z, self._of("weight_hh", cell), self._of("bias_hh", cell), *first, **options),)
