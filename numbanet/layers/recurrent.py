"""LSTM: layers of memory cells through time; LastStep: what they end with."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..device import Device
from ..plans import AxisPlan, BernoulliPlan, Plan, TilePlan, TimePlan
from ..tensor import Tensor
from .base import Cost, Flow, Form, Layer, only, part_of, product_cost, samples_of
from .step import Site, Step

WEIGHTS, BIASES = ("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")


class LSTM(Layer):
    """i, f, o = sigmoid, g = tanh of W_ih x[t] + b_ih + W_hh h[t-1] + b_hh;   c[t] = f c[t-1] + i g, y[t] = h[t] = o tanh c[t]

    Called as PyTorch's, `y, (h, c) = lstm(x, (h0, c0))`, with its names and shapes. The input products of all time steps are
    one product, and what plans drop in it is not computed:

    output_l0, …     kind "output": of a layer's y, an `AxisPlan` keeps some units, the same at all time steps; y is compact,
                     and the next layer's product has their columns alone. The layer itself computes all: they are its
                     memory (Zaremba et al. 2014, "Recurrent neural network regularization": dropout on non-recurrent
                     connections). A `BernoulliPlan` drops others at each time step
    input_l0, …      kind "tiles": a `TilePlan` of W_ih
    recurrent_l0, …  kind "recurrent": an `AxisPlan` of h[t-1], for one sequence, or a `TimePlan`, which drops others at each
                     time step. The units that it drops keep their state, are computed, and come out in y; only the product
                     with W_hh does not see them, and the others are multiplied by the plan's scale. So h and c stay what they
                     are in prediction, where all are seen, and the mean of the sum is the same. (Dropping the state itself
                     would wipe out, at each step, what a cell remembers.)

    Parameters
    ----------
    input_size, hidden_size : int
        Widths of x, I, and of h, H.
    num_layers : int, default=1
        Each takes the outputs of the one before.
    bias : bool, default=True
        Whether there are b_ih and b_hh: two, as in PyTorch; their sum counts.
    batch_first : bool, default=False
        Whether x and y are (N, T, …); else (T, N, …). States are (num_layers, N, H) either way.
    dropout, bidirectional, proj_size
        PyTorch's; nothing but their defaults, 0, False and 0, is supported.
    rng : numpy.random.Generator or int, optional
        Where the initial weights come from: uniform in ±1 / sqrt(H), as PyTorch's.
    device : str or Device, default="cpu"
        Where the parameters live.

    Raises
    ------
    ValueError
        If a size is not positive.
    """

    recordable = True

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *,
                 rng: np.random.Generator | int | None = None, device: str | Device = "cpu") -> None:
        only("LSTM", "plans of a step say what is dropped, which an estimator's dropout draws", dropout=(dropout, 0))
        only("LSTM", "a second LSTM reads the reversed sequences", bidirectional=(bidirectional, False))
        only("LSTM", "a Linear after it projects what comes out", proj_size=(proj_size, 0))
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"LSTM: {name} must be a positive integer, got {value!r}")
        self.input_size, self.hidden_size, self.num_layers = int(input_size), int(hidden_size), int(num_layers)
        self.has_bias, self.batch_first = bool(bias), bool(batch_first)
        for name, values in self.initial(self.generator(rng)).items():
            setattr(self, name, Tensor(values, device, requires_grad=True))

    def initial(self, rng):
        found, bound, hidden = {}, 1 / math.sqrt(self.hidden_size), self.hidden_size
        for layer in range(self.num_layers):
            shapes = [(4 * hidden, hidden if layer else self.input_size), (4 * hidden, hidden),
                      *[(4 * hidden,)] * (2 * self.has_bias)]
            found |= {f"{name}_l{layer}": rng.uniform(-bound, bound, shape) for name, shape in zip((*WEIGHTS, *BIASES), shapes)}
        return found

    def _of(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """(W_ih, W_hh, b_ih + b_hh) of a layer."""
        w_ih, w_hh = (getattr(self, f"{name}_l{layer}") for name in WEIGHTS)
        return w_ih, w_hh, ops.add(*(getattr(self, f"{name}_l{layer}") for name in BIASES)) if self.has_bias else None

    # --- calls --------------------------------------------------------------------------------------------------------
    def __call__(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, lengths: Any = None,
                 step: Step | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(y, (h, c)): the outputs of the last layer, and the states of all layers after the last step.

        Parameters
        ----------
        x : Tensor of shape (T, N, input_size), or (N, T, input_size) with batch_first
        state : (h0, c0), each of shape (num_layers, N, hidden_size), optional
            What the layers begin with; zeros by default.
        lengths : array_like of int of shape (N,), optional
            How many steps a sample has, 1 to T: y is 0 after them, h and c are those of the last one.
        step : Step, optional
            What is dropped.

        Raises
        ------
        ValueError
            If shapes do not fit, there are no time steps, or a length is not in 1 … T.
        TypeError
            If x is no Tensor.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"LSTM: x must be a Tensor, got {type(x).__name__}; write Tensor(x)")
        step = Step(x.device) if step is None else step
        flow = self._time_major(Flow(x))
        steps, n, _ = flow.x.shape
        shape = (self.num_layers, n, self.hidden_size)
        for given in state or ():
            if tuple(given.shape) != shape:
                raise ValueError(f"LSTM: states must be of shape {shape}, got {tuple(given.shape)}")
        lengths = self._lengths(lengths, steps, n)
        last, hs, cs = np.full(n, steps - 1) if lengths is None else lengths - 1, [], []
        for layer in range(self.num_layers):
            first = [s[layer] for s in state] if state is not None else None
            both = self._layer(layer, flow, step, first, lengths, cell=True)
            y, c = both[:steps], both[steps]
            hs.append(y[last, np.arange(n)])
            cs.append(c)
            flow = self._thinned(layer, y, step)
        y = flow.dense()
        h, c = (ops.concatenate([part.reshape(1, n, self.hidden_size) for part in parts]) for parts in (hs, cs))
        return y.transpose(1, 0, 2) if self.batch_first else y, (h, c)

    def forward(self, flow: Flow, step: Step) -> Flow:
        """y, compact where the step drops units of the last layer; begins with the states that the step remembers, which those
        after the last step overwrite."""
        flow = self._time_major(flow.settled())
        steps, n, _ = flow.x.shape
        lengths = self._lengths(flow.lengths, steps, n)
        for layer in range(self.num_layers):
            left = None if step.memory is None else self._remembered(step, layer, n)
            first = left and [Tensor.wrap(array, step.device) for array in left]
            y = self._layer(layer, flow, step, first, lengths, left=left)
            flow = self._thinned(layer, y, step)
        return flow._replace(x=flow.x.transpose(1, 0, 2) if self.batch_first else flow.x, lengths=lengths)

    def _remembered(self, step: Step, layer: int, n: int) -> list[Any]:
        """(h, c) of n samples, zeros where the step remembers none."""
        if (self, layer, n) not in step.memory:
            step.memory[self, layer, n] = [step.device.full((n, self.hidden_size), 0.0) for _ in range(2)]
        return step.memory[self, layer, n]

    def _time_major(self, flow: Flow) -> Flow:
        """x as (T, N, …); ValueError where it is of another shape."""
        width = self.input_size if flow.kept is None else flow.kept.plan.count
        if flow.x.ndim != 3 or flow.x.shape[2] != width or (flow.kept and flow.kept.plan.n != self.input_size):
            axes = "(N, T, I)" if self.batch_first else "(T, N, I)"
            raise ValueError(f"LSTM: x must be {axes} with I = {width}, got {tuple(flow.x.shape)}")
        if not flow.x.shape[self.batch_first]:
            raise ValueError(f"LSTM: x {tuple(flow.x.shape)} has no time steps; sequences need one at least")
        return flow._replace(x=flow.x.transpose(1, 0, 2)) if self.batch_first else flow

    @staticmethod
    def _lengths(lengths: Any, steps: int, n: int) -> np.ndarray | None:
        if lengths is None:
            return None
        found = np.asarray(lengths)
        if found.shape != (n,) or found.dtype.kind not in "iu":
            raise ValueError(f"LSTM: lengths must be {n} integers, got {found.dtype} {found.shape}")
        if found.size and not 1 <= found.min() <= found.max() <= steps:
            raise ValueError(f"LSTM: lengths must be from 1 to {steps}, got {found.min()} to {found.max()}")
        return found.astype(np.int32)

    def _layer(self, layer: int, flow: Flow, step: Step, first: list[Tensor] | None, lengths: np.ndarray | None,
               **options: Any) -> Tensor:
        """y (T, N, H) of one layer for x (T, N, I), compact or not."""
        (w_ih, w_hh, b), dev = self._of(layer), flow.x.device
        steps, n, width = flow.x.shape
        x, plan = flow.x.reshape(steps * n, width), self._plan(step, f"input_l{layer}", TilePlan, w_ih.shape)
        gates = step.gates and step.gates.of((self, layer))
        if plan is not None:
            dense = Flow(x, flow.kept).dense()
            z = ops.linear_tiles(dense, w_ih, b, plan=step.kept(self, f"input_l{layer}"), blocks=step.ready.get(w_ih))
        elif flow.kept is None:
            z = ops.linear(x, w_ih, b, columns=gates is not None)
        else:
            z = ops.linear_rows(x, w_ih, b, cols=flow.kept, scale=1.0, columns=gates is not None)
        recurrent = self._plan(step, f"recurrent_l{layer}", (AxisPlan, TimePlan), (self.hidden_size,))
        h0, c0 = first or [Tensor.wrap(dev.full((n, self.hidden_size), 0.0), dev) for _ in range(2)]
        return ops.lstm(z, w_hh, h0, c0, steps=steps, lengths=None if lengths is None else dev.upload(lengths), gates=gates,
                        units=None if recurrent is None else step.kept(self, f"recurrent_l{layer}"), **options)

    def _thinned(self, layer: int, y: Tensor, step: Step) -> Flow:
        """What comes to the next layer."""
        plan = self._plan(step, f"output_l{layer}", (AxisPlan, BernoulliPlan), (self.hidden_size,))
        if plan is None:
            return Flow(y)
        if isinstance(plan, BernoulliPlan):
            return Flow(y, None, (plan,)).settled()
        kept = step.kept(self, f"output_l{layer}")
        return Flow(ops.compact(y, plan=kept), kept, (plan,) if plan.scale != 1.0 else ()).settled()

    # --- what it says of itself ---------------------------------------------------------------------------------------
    def _plan(self, step: Step, name: str, kinds: Any, shape: tuple[int, ...]) -> Any:
        """The plan of a site; TypeError or ValueError where it is of another kind or another size."""
        plan = step.plan(self, name)
        if plan is None:
            return None
        if not isinstance(plan, kinds):
            raise TypeError(f"{self!r}: it does not know the plan {plan!r} at {name}")
        if (plan.shape if isinstance(plan, TilePlan) else (plan.n,)) != shape:
            raise ValueError(f"{self!r}: {plan} is not made for {name}, of shape {shape}")
        return plan

    def sites(self):
        found: list[Site] = []
        for layer in range(self.num_layers):
            w_ih, w_hh = (getattr(self, f"{name}_l{layer}") for name in WEIGHTS)
            found += [Site(self, f"output_l{layer}", "output", (self.hidden_size, w_ih.shape[1])),
                      Site(self, f"input_l{layer}", "tiles", w_ih.shape),
                      Site(self, f"recurrent_l{layer}", "recurrent", w_hh.shape[::-1])]
        return tuple(found)

    def cost(self, form, step):
        if len(form.shape) != 3 or form.shape[2] not in (None, self.input_size):
            raise ValueError(f"{self!r}: it takes sequences of {self.input_size} features, and its input has "
                             f"{form.shape[1:]} a sample")
        total, n, hidden, kept = Cost(), samples_of(form), self.hidden_size, form.kept
        for layer in range(self.num_layers):
            plan, recurrent, out = (step.plan(self, f"{name}_l{layer}") for name in ("input", "recurrent", "output"))
            size = self.input_size if layer == 0 else hidden
            inner = size if kept is None or plan is not None else kept.count
            total = total.plus(product_cost(n, inner, 4 * hidden, 4 * hidden * inner if plan is None else plan.size,
                                            form._replace(differentiable=form.differentiable or layer > 0)))
            total = total.plus(self._recurrent_cost(n, recurrent))
            kept = out if isinstance(out, AxisPlan) else None
        if step.gates is not None:  # only columns of dz are computed, and what is computed from them
            total = total._replace(backward=step.gates.computed * total.backward)
        return total, Form((*form.shape[:2], hidden), kept, True)

    def _recurrent_cost(self, n: int, plan: Plan | None) -> Cost:
        """Of the products with W_hh in n positions. Under a `TimePlan` the forward one alone is smaller: dw is one product for
        all time steps, and on the CPU they share the packed weight of dh."""
        def products(seen: int) -> Cost:
            return product_cost(n, seen, 4 * self.hidden_size, 4 * self.hidden_size * seen, Form((n, seen), None, True))

        thinned, dense = products(self.hidden_size if plan is None else plan.count), products(self.hidden_size)
        return Cost(thinned.forward, dense.backward, thinned.bytes_forward, dense.bytes_backward) if isinstance(
            plan, TimePlan) else thinned

    def reads(self, step):
        found = {}
        for layer in range(self.num_layers):
            plan, w_ih = step.plan(self, f"input_l{layer}"), getattr(self, f"weight_ih_l{layer}")
            found.update(part_of(w_ih, plan, step) if plan else {})
        return found

    def __repr__(self) -> str:
        options = [f"{self.num_layers}"] * (self.num_layers > 1) + ["bias=False"] * (not self.has_bias)
        options += ["batch_first=True"] * self.batch_first
        return f"LSTM({', '.join([f'{self.input_size}', f'{self.hidden_size}', *options])})"


class LastStep(Layer):
    """y[n] = x[n, T - 1], or, where the flow says how long samples are, x[n, length[n] - 1].   x (N, T, H) -> y (N, H)

    What an `LSTM` ends with, for a `Linear` to classify.
    """

    recordable = True

    def forward(self, flow, step):
        if flow.x.ndim != 3 or not flow.x.shape[1]:
            raise ValueError(f"LastStep: x must be (N, T, H), T at least 1, got {tuple(flow.x.shape)}")
        n, steps, _ = flow.x.shape
        last = np.full(n, steps - 1) if flow.lengths is None else flow.lengths - 1
        return flow._replace(x=flow.x[np.arange(n), last], lengths=None)

    def cost(self, form, step):
        if len(form.shape) != 3:
            raise ValueError(f"{self!r}: it takes sequences (T, H), and its input is of shape {form.shape[1:]} a sample")
        return Cost(), form._replace(shape=(form.shape[0], form.shape[2]))

    def commutes(self, plan):
        return isinstance(plan, AxisPlan)
