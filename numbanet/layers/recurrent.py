"""`Recurrent`: the common base class of `LSTM` and `GRU`."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..arguments import check_counts, type_name
from ..device import Device
from ..initial import uniform
from ..plans import AxisPlan, BernoulliPlan, Plan, Plans, Site, TilePlan, TimePlan, UnitWindow
from ..plans.on_device import DeviceAxis, DeviceUnits
from ..tensor import Tensor
from .base import Layer
from .context import Context, entering
from .flow import ActivationSpec, Columns, Cost, Flow, product_cost

WEIGHTS, BIASES = ("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")


class Recurrent(Layer, abc.ABC):
    """Base class of stacked recurrent layers: each layer of the stack takes the outputs y of the previous one.

    A layer has one cell, which runs forwards in time. If `bidirectional`, it has a second cell, which runs backwards from the
    end of each sequence, and y (…, 2H) concatenates the outputs of both; the parameter names of the second cell end in
    `_reverse`. The input products of all time steps are one matrix product per cell. A site has a name and a kind; plans at
    these sites drop part of the computation:

    output_l0, …     kind "output": an `AxisPlan` keeps some units of the y of a layer, the same ones at all time steps. y is
                     then compact, and the products of the next layer read only the kept columns. The layer itself computes all
                     units, because they are its memory (Zaremba et al. 2014, "Recurrent neural network regularization": dropout
                     on non-recurrent connections). A `BernoulliPlan` drops a different set at each time step
    input_l0, …      kind "tiles": a `TilePlan` keeps tiles of the W_ih of a cell
    recurrent_l0, …  kind "recurrent": an `AxisPlan` keeps units of the h[t-1] of a cell, the same for a whole sequence. Dropped
                     units are computed, keep their state and appear in y; only the product with W_hh leaves them out, and is
                     multiplied by the plan's scale. So the states and the expected product are those of prediction. (Dropping
                     the state itself would erase the memory of the cell.) A `UnitWindow` keeps the units of the `WindowPlan` at
                     output_l0; an `LSTM` then does not compute the gradients of the gates of other units

    A subclass defines the numbers of gates and states per unit, and the recurrence of its cells (`act`).
    """

    gates: ClassVar[int]  # number of gates, each of which has one row per unit in each weight
    thins: ClassVar[bool] = False  # True if gradients of the gates of units that are not read are left out (`UnitWindow`)
    states: ClassVar[int] = 1  # number of states per unit: 1 for h, 2 for h and c
    seen: ClassVar[tuple[type[Plan], ...]] = (AxisPlan,)  # kinds of plans at the recurrent sites

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        bidirectional: bool,
        rng: np.random.Generator | int | None,
        device: str | Device,
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        self.input_size, self.hidden_size, self.num_layers = check_counts(type(self).__name__, **sizes)
        self.has_bias, self.batch_first, self.bidirectional = bool(bias), bool(batch_first), bool(bidirectional)
        for name, values in self.initial(self.generator(rng)).items():
            setattr(self, name, Tensor(values, device, requires_grad=True))

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a dict that maps the name of each parameter to initial values."""
        bound, sizes = 1 / math.sqrt(self.hidden_size), (self.input_size, self.hidden_size, self.num_layers)
        return {name: uniform(rng, bound, shape) for name, shape in self._shapes(*sizes, self.bidirectional, self.has_bias)}

    @classmethod
    def _shapes(
        cls, inputs: int, hidden: int, layers: int, bidirectional: bool, bias: bool
    ) -> list[tuple[str, tuple[int, ...]]]:
        """Return (name, shape) of each parameter, in the order in which the initial values are drawn."""
        shapes, rows = [], cls.gates * hidden
        for layer in range(layers):
            width = hidden * (1 + bidirectional) if layer else inputs
            for cell in _cells(layer, bidirectional):
                sizes = (rows, width), (rows, hidden), (rows,), (rows,)
                shapes += [(f"{name}_{cell}", shape) for name, shape in zip((*WEIGHTS, *BIASES * bias), sizes)]
        return shapes

    @property
    def output_size(self) -> int:
        """The width of y."""
        return self.hidden_size * (1 + self.bidirectional)

    @property
    def output_site(self) -> str:  # type: ignore[override]
        """The name of the site of the last layer's outputs."""
        return f"output_l{self.num_layers - 1}"

    def _layers(self) -> list[tuple[str, ...]]:
        """Return, for each layer, the suffixes of the parameter names of its cells."""
        return [_cells(layer, self.bidirectional) for layer in range(self.num_layers)]

    def _of(self, kind: str, cell: str) -> Any:
        """Return the parameter `kind`, such as "weight_ih", of a cell; None if the cell does not have it."""
        return getattr(self, f"{kind}_{cell}", None)

    # --- cells --------------------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def act(self, z: Tensor, cell: str, first: list[Tensor], plans: Plans, ends: bool, **options: Any) -> tuple[Tensor, ...]:
        """Run one cell. Return a tuple of y (T, N, H) and, if `ends`, the states after the last time step, except h.

        Parameters
        ----------
        z : Tensor of shape (T N, gates * H)
            The input products x W_ihᵀ + `input_bias`.
        cell : str
            The suffix of the names of the cell's parameters.
        first : list of Tensor of shape (N, H)
            The states before the first step.
        plans : Plans
            The plans of the pass.
        ends : bool
            If True, the final states are returned.
        options
            Arguments of `ops.lstm` or `ops.gru`: steps, lengths, units and left.
        """

    def input_bias(self, cell: str) -> Tensor | None:
        """Return the bias that is added to the input products of a cell."""
        return self._of("bias_ih", cell)

    # --- calls --------------------------------------------------------------------------------------------------------
    def __call__(  # type: ignore[override]  # called as in PyTorch, with more arguments than other layers
        self, x: Tensor, state: Any = None, lengths: Any = None, context: Context | None = None
    ) -> tuple[Tensor, Any]:
        """Return (y, states): the outputs of the last layer, and the states of all cells after their last time steps.

        Parameters
        ----------
        x : Tensor of shape (T, N, input_size), or (N, T, input_size) with batch_first
            The sequences.
        state : (h0, c0) of an LSTM, h0 of a GRU, each of shape (cells, N, hidden_size), optional
            Initial states of all cells, layer by layer; zeros by default.
        lengths : array_like of int of shape (N,), optional
            Number of time steps of each sample, 1 to T. y is 0 after the last time step of a sample, and the final states are
            those after this time step. By default the lengths that the enclosing pass knows, else T.
        context : Context, optional
            The settings of the pass, with its plans.

        Raises
        ------
        ValueError
            If shapes do not fit, there are no time steps, or a length is not in 1 … T.
        TypeError
            If x is not a Tensor.
        """
        flow, context = entering(self, x, context)
        flow = self._time_major(flow)
        steps, n, _ = flow.x.shape
        cells, shape = sum(self._layers(), ()), (self.num_layers * (1 + self.bidirectional), n, self.hidden_size)
        given = () if state is None else tuple(state) if self.states > 1 and hasattr(state, "__len__") else (state,)
        found = [tuple(part.shape) if hasattr(part, "shape") else type_name(part) for part in given]
        if given and found != [shape] * self.states:
            name, count = type(self).__name__, self.states
            raise ValueError(f"{name}: states must be of shape {shape}, {count} of them, got {', '.join(map(str, found))}")
        first = {cell: [part[i] for part in given] for i, cell in enumerate(cells)}
        lengths = self._lengths(flow.tags.lengths if lengths is None else lengths, steps, n)
        flow, ends = self._through(flow, context, first, lengths, ends=True)
        y = flow.dense()
        final = tuple(ops.concatenate([part.reshape(1, n, self.hidden_size) for part in parts]) for parts in zip(*ends))
        return y.transpose(1, 0, 2) if self.batch_first else y, final if self.states > 1 else final[0]

    def forward(self, flow: Flow, context: Context) -> Flow:
        """Return the flow with y, which is compact if a plan drops units of the last layer. If the context has states, the
        cells start from them and overwrite them with the final states.

        Raises
        ------
        ValueError
            If the context has states, and the layer is bidirectional.
        """
        flow = self._time_major(flow.features())
        steps, n, _ = flow.x.shape
        left = (
            None
            if context.state is None
            else {cell: self._remembered(context.state, cell, n) for cells in self._layers() for cell in cells}
        )
        first = {cell: [Tensor.wrap(array, context.device) for array in arrays] for cell, arrays in (left or {}).items()}
        flow, _ = self._through(flow, context, first, self._lengths(flow.tags.lengths, steps, n), left)
        return flow._replace(x=flow.x.transpose(1, 0, 2) if self.batch_first else flow.x)

    def _remembered(self, state: dict[Any, Any], cell: str, n: int) -> list[Any]:
        """Return the states of a cell for n samples, initially zeros; raise ValueError if the layer is bidirectional."""
        if self.bidirectional:
            raise ValueError(
                f"{self!r}: states are carried over from one segment of a text to the next, but the backward direction"
                " starts at the text's end; use bidirectional=False"
            )
        if (self, cell, n) not in state:
            dev = self._of("weight_ih", cell).device
            state[self, cell, n] = [dev.full((n, self.hidden_size), 0.0) for _ in range(self.states)]
        return state[self, cell, n]

    def _time_major(self, flow: Flow) -> Flow:
        """Return the flow with x as (T, N, …); raise ValueError if the shape of x does not match."""
        indices, name = flow.indices, type(self).__name__
        width = self.input_size if indices is None else indices.plan.count
        if flow.x.ndim != 3 or flow.x.shape[2] != width or (indices and indices.plan.n != self.input_size):
            axes = "(N, T, I)" if self.batch_first else "(T, N, I)"
            raise ValueError(f"{name}: x must be {axes} with I = {width}, got {tuple(flow.x.shape)}")
        if not flow.x.shape[self.batch_first]:
            raise ValueError(f"{name}: x {tuple(flow.x.shape)} has no time steps; sequences need at least one")
        return flow._replace(x=flow.x.transpose(1, 0, 2)) if self.batch_first else flow

    def _lengths(self, lengths: Any, steps: int, n: int) -> np.ndarray | None:
        if lengths is None:
            return None
        array, name = np.asarray(lengths), type(self).__name__
        if array.shape != (n,) or array.dtype.kind not in "iu":
            hint = "; Tensor(...) makes float32, give a list of integers instead" * isinstance(lengths, Tensor)
            raise ValueError(f"{name}: lengths must be {n} integers, got {array.dtype} {array.shape}{hint}")
        if array.size and not 1 <= array.min() <= array.max() <= steps:
            raise ValueError(f"{name}: lengths must be from 1 to {steps}, got {array.min()} to {array.max()}")
        return array.astype(np.int32)

    def _through(
        self,
        flow: Flow,
        context: Context,
        first: dict[str, list[Tensor]],
        lengths: np.ndarray | None,
        left: dict[str, list[Any]] | None = None,
        ends: bool = False,
    ) -> tuple[Flow, list[list[Tensor]]]:
        """Run all layers. Return the flow with the y (T, N, …) of the last layer, compact or not, and, if `ends`, the final
        states of each cell.
        """
        steps, n, _ = flow.x.shape
        last, final = np.full(n, steps - 1) if lengths is None else lengths - 1, []
        for layer, cells in enumerate(self._layers()):
            ys: list[Tensor] = []
            for cell in cells:
                back = len(ys) > 0
                x = flow._replace(x=ops.reverse_steps(flow.x, lengths=lengths)) if back else flow
                y, *others = self._run(cell, x, context, first.get(cell), lengths, ends, None if left is None else left[cell])
                if ends:
                    final.append([y[last, np.arange(n)], *others])
                ys.append(ops.reverse_steps(y, lengths=lengths) if back else y)
            flow = self._thinned(layer, flow.with_(ops.concatenate(ys, axis=2) if self.bidirectional else ys[0]), context)
        return flow, final

    def _run(
        self,
        cell: str,
        flow: Flow,
        context: Context,
        first: list[Tensor] | None,
        lengths: np.ndarray | None,
        ends: bool,
        left: list[Any] | None,
    ) -> tuple[Tensor, ...]:
        """Return the result of `act` for one cell and the x (T, N, I) of `flow`, which may be compact."""
        w, b, dev, plans = self._of("weight_ih", cell), self.input_bias(cell), flow.x.device, context.plans
        steps, n, width = flow.x.shape
        flow = flow._replace(x=flow.x.reshape(steps * n, width))
        tiles = plans.at(self, f"input_{cell}")
        sparse = plans.of(self, "gates") is not None or self.unit_window(cell, plans) is not None
        if tiles is not None:
            z = ops.linear_tiles(flow.dense(), w, b, plan=tiles, blocks=context.packed.get(w))
        elif flow.indices is None:
            z = ops.linear(flow.x, w, b, columns=sparse)
        else:
            z = ops.linear_rows(flow.x, w, b, cols=flow.indices, scale=1.0, columns=sparse)
        first = first or [Tensor.wrap(dev.full((n, self.hidden_size), 0.0), dev) for _ in range(self.states)]
        return self.act(
            z,
            cell,
            first,
            plans,
            ends,
            steps=steps,
            lengths=None if lengths is None else dev.upload(lengths),
            units=plans.at(self, f"recurrent_{cell}"),
            left=left,
        )

    def unit_window(self, cell: str, plans: Plans) -> DeviceUnits | None:
        """Return the window of units that both the recurrent input of a cell and the layer's outputs keep; None if they have
        none. Raise ValueError if the recurrent input has a `UnitWindow`, and the outputs keep other units.
        """
        units = plans.at(self, f"recurrent_{cell}") if self.thins else None
        if not isinstance(units, DeviceUnits):
            return None
        outputs = plans.of(self, f"output_{cell}")
        if not units.plan.same_units(outputs):
            raise ValueError(f"{self!r}: {units.plan} at recurrent_{cell} must keep the units of output_{cell}, not {outputs}")
        return units

    def _thinned(self, layer: int, flow: Flow, context: Context) -> Flow:
        """Return the flow to the next layer: y, to which the plan at the site "output" of the layer is applied."""
        indices = context.plans.at(self, f"output_l{layer}")
        if indices is None:
            return flow
        if not isinstance(indices, DeviceAxis):  # the plan is a random mask
            return flow._replace(pending=(indices.pending,)).applied()
        pending = (indices.pending,) if indices.plan.scale != 1.0 else ()
        return flow.with_(ops.compact(flow.x, plan=indices), Columns(indices), pending).applied()

    # --- description --------------------------------------------------------------------------------------------------
    def sites(self):
        sites: list[Site] = []
        for layer, cells in enumerate(self._layers()):
            shape = self._of("weight_ih", cells[0]).shape
            sites.append(Site(f"output_l{layer}", "output", (self.output_size, shape[1]), (AxisPlan, BernoulliPlan)))
            for cell in cells:
                sites += [
                    Site(f"input_{cell}", "tiles", shape, (TilePlan,)),
                    Site(f"recurrent_{cell}", "recurrent", self._of("weight_hh", cell).shape[::-1], self.seen),
                ]
        return tuple(sites)

    def cost(self, spec, plans):
        if len(spec.shape) != 3 or spec.shape[2] not in (None, self.input_size):
            raise ValueError(
                f"{self!r}: it takes sequences of {self.input_size} features, and its input has {spec.shape[1:]} a sample"
            )
        total, n, rows, axis = Cost(), spec.samples, self.gates * self.hidden_size, spec.plan
        for layer, cells in enumerate(self._layers()):
            size = self.output_size if layer else self.input_size
            for cell in cells:
                plan = plans.of(self, f"input_{cell}")
                inner = size if axis is None or plan is not None else axis.count
                cost = product_cost(
                    n,
                    inner,
                    rows,
                    rows * inner if plan is None else plan.size,
                    spec._replace(differentiable=spec.differentiable or layer > 0),
                ).plus(self._recurrent_cost(n, units := plans.of(self, f"recurrent_{cell}")))
                share = units.density if self.thins and isinstance(units, UnitWindow) else 1.0
                total = total.plus(cost._replace(backward=share * cost.backward))
            out = plans.of(self, f"output_l{layer}")
            axis = out if isinstance(out, AxisPlan) else None
        return total, ActivationSpec((*spec.shape[:2], self.output_size), axis, True)

    def _recurrent_cost(self, n: int, plan: Any) -> Cost:
        """Return the cost of the products with W_hh for n positions. A `TimePlan` reduces only the forward product: dw is one
        product over all time steps, and dh uses the dense packed weight on the CPU."""

        def products(seen: int) -> Cost:
            rows = self.gates * self.hidden_size
            return product_cost(n, seen, rows, rows * seen, ActivationSpec((n, seen), None, True))

        thinned, dense = products(self.hidden_size if plan is None else plan.count), products(self.hidden_size)
        return (
            Cost(thinned.forward, dense.backward, thinned.bytes_forward, dense.bytes_backward)
            if isinstance(plan, TimePlan)
            else thinned
        )

    def reads(self, plans: Plans, symbols=None):
        parts, inputs = {}, plans.inputs(self)
        for layer, cells in enumerate(self._layers()):
            for cell in cells:
                w_ih, w_hh, tiles = self._of("weight_ih", cell), self._of("weight_hh", cell), f"input_{cell}"
                parts.update(plans.region(self, w_ih, tiles) if plans.of(self, tiles) else plans.window(w_ih, None, inputs))
                parts.update(plans.window(w_hh, None, plans.of(self, f"recurrent_{cell}")))
            inputs = plans.of(self, f"output_l{layer}")
        return parts

    def config(self):
        return {
            "input_size": self.input_size,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "bias": self.has_bias,
            "batch_first": self.batch_first,
            "bidirectional": self.bidirectional,
        }

    @classmethod
    def shapes(cls, config):
        return tuple(
            cls._shapes(
                config["input_size"], config["hidden_size"], config["num_layers"], config.get("bidirectional", False), False
            )
        )

    def __repr__(self) -> str:
        options = [f"{self.num_layers}"] * (self.num_layers > 1) + ["bias=False"] * (not self.has_bias)
        options += ["batch_first=True"] * self.batch_first + ["bidirectional=True"] * self.bidirectional
        return f"{type(self).__name__}({', '.join([f'{self.input_size}', f'{self.hidden_size}', *options])})"


def _cells(layer: int, bidirectional: bool) -> tuple[str, ...]:
    """Return the suffixes of the parameter names of a layer's cells: the forward cell, then the backward one, if any."""
    return (f"l{layer}", f"l{layer}_reverse")[: 1 + bidirectional]
