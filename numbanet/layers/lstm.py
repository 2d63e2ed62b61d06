"""LSTM: long short-term memory layers."""

from __future__ import annotations

import numpy as np

from .. import ops
from ..device import Device
from ..plans import AxisPlan, GatePlan, Site, TimePlan
from .base import only
from .recurrent import Recurrent


class LSTM(Recurrent):
    """y[t] = h[t] = o tanh c[t], where c[t] = f c[t-1] + i g. Gates are computed from W_ih x[t] + b_ih + W_hh h[t-1] + b_hh:
    i, f and o are the sigmoid, g is the tanh; each gate has its own rows of W_ih, W_hh, b_ih and b_hh.

    An LSTM is called as in PyTorch, `y, (h, c) = lstm(x, (h0, c0))`, and has PyTorch's names and shapes (Hochreiter &
    Schmidhuber 1997, with forget gates). `numbanet.layers.Recurrent` describes which parts plans drop. In addition:

    recurrent_l0, …  these sites also take a `TimePlan`, which drops a different set of units at each time step
    gates            this site, of the kind "gates", takes a `GatePlan`, which selects the gate gradients that the backward pass
                     of all layers computes

    Parameters
    ----------
    input_size, hidden_size : int
        Widths I of x and H of h.
    num_layers : int, default=1
        Number of layers; each takes the outputs of the previous one.
    bias : bool, default=True
        If True, there are two biases b_ih and b_hh, as in PyTorch, although only their sum matters.
    batch_first : bool, default=False
        If True, x and y are (N, T, …), else (T, N, …). In both cases states are (num_layers, N, H).
    dropout : float, default=0.0
        An argument of PyTorch; only 0 is supported.
    bidirectional : bool, default=False
        If True, a second cell per layer, with separate weights (`weight_ih_l0_reverse`, …), reads the input backwards (Schuster
        & Paliwal 1997, "Bidirectional recurrent neural networks"). Then y is (…, 2H), and states are (2 num_layers, N, H). Each
        sequence is read from its own end, also if lengths differ. States cannot be carried over to the next batch.
    proj_size : int, default=0
        An argument of PyTorch; only 0 is supported.
    rng : numpy.random.Generator or int, optional
        Source of the initial weights: uniform in ±1 / sqrt(H), as in PyTorch.
    device : str or Device, default="cpu"
        Device of the parameters.

    Raises
    ------
    ValueError
        If a size is not positive, or an argument has an unsupported value.
    """

    recordable = thins = True
    gates, states, seen = 4, 2, (AxisPlan, TimePlan)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        rng: np.random.Generator | int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        only("LSTM", "use the estimator's dropout, which draws a plan for each step", dropout=(dropout, 0))
        only("LSTM", "put a Linear after it", proj_size=(proj_size, 0))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, bidirectional, rng, device)

    def input_bias(self, cell):
        return ops.add(self._of("bias_ih", cell), self._of("bias_hh", cell)) if self.has_bias else None

    def act(self, z, cell, first, plans, ends, *, steps, **options):
        gates = plans.of(self, "gates")
        units = None if ends else self.unit_window(cell, plans)
        y = ops.lstm(
            z,
            self._of("weight_hh", cell),
            *first,
            steps=steps,
            cell=ends,
            gates=gates and gates.of(sum(self._layers(), ()).index(cell)),
            active=units and units.gates,
            **options,
        )
        return (y[:steps], y[steps]) if ends else (y,)

    def sites(self):
        return *super().sites(), Site("gates", "gates", (4 * self.hidden_size,), (GatePlan,))

    def cost(self, spec, plans):
        total, spec = super().cost(spec, plans)
        gates = plans.of(self, "gates")  # keeps columns of dz; the products that read dz use only these columns
        return total if gates is None else total._replace(backward=gates.density * total.backward), spec
