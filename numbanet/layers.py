"""Layers: what holds parameters or shape, called with a tensor; `Sequential` carries plans and compact activations.

Names, shapes and initial values follow PyTorch: a `Linear` weight is (out, in).
"""
from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from . import ops
from .device import Device, device
from .plan import BernoulliPlan, Order, Plan, RowPlan, TilePlan
from .tensor import Tensor


class Layer:
    """Base of the layers: no parameters, and nothing to move, unless a subclass says so."""

    elementwise = False  # whether it commutes with dropping entries of the last axis

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that training changes."""
        return iter(())

    @property
    def repeatable(self) -> bool:
        """Whether the same plans always mean the same launches (`Replay`): not known of a layer from elsewhere."""
        return type(self).__module__ == __name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Linear(Layer):
    """y = x wᵀ + b.   x (N, in) -> y (N, out)

    Parameters
    ----------
    in_features, out_features : int
        Widths of the input and the output.
    bias : bool, default=True
        Whether to add b.
    init : {"he", "glorot"}, default="he"
        Uniform initial weights of variance 2 / in, for ReLU (He et al. 2015, eq. 10), or 2 / (in + out), for tanh and
        sigmoid (Glorot & Bengio 2010, eq. 16); b starts at 0.
    keep : float, default=1.0
        The variance is multiplied by it: 1 / keep is how many times larger dropout makes the mean square of y's sums. Where a
        share 1 - p of the products is left and scaled by 1 / (1 - p), it is 1 - p (Hendrycks & Gimpel 2016, "Adjusting for
        dropout variance in batch normalization and weight initialization").
    rng : numpy.random.Generator or int, optional
        Where the initial weights come from.
    device : str or Device, default="cpu"
        Where the parameters live.

    Raises
    ------
    ValueError
        If a width is not positive, `init` is unknown or `keep` not in (0, 1].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, init: str = "he", keep: float = 1.0,
                 rng: np.random.Generator | int | None = None, device: str | Device = "cpu") -> None:
        if in_features < 1 or out_features < 1:
            raise ValueError(f"Linear: widths must be positive, got in_features={in_features}, out_features={out_features}")
        if init not in ("he", "glorot"):
            raise ValueError(f"Linear: init must be 'he' or 'glorot', got {init!r}")
        if not 0 < keep <= 1:
            raise ValueError(f"Linear: keep must be in (0, 1], got {keep!r}")
        variance = keep * (2 / in_features if init == "he" else 2 / (in_features + out_features))
        bound = math.sqrt(3 * variance)
        values = np.random.default_rng(rng).uniform(-bound, bound, (out_features, in_features))
        self.weight = Tensor(values, device, requires_grad=True)
        self.bias = Tensor(np.zeros(out_features), device, requires_grad=True) if bias else None

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    def parameters(self) -> Iterator[Tensor]:
        yield from (self.weight,) if self.bias is None else (self.weight, self.bias)

    def __call__(self, x: Tensor, plan: Plan | None = None, kept: RowPlan | None = None, relu: bool = False,
                 before: Shuffle | None = None) -> Tensor:
        """y = act(x wᵀ + b), as far as the plan keeps it.

        Parameters
        ----------
        x : Tensor
            (…, in), or compact (N, kept.count) under the plan `kept` of the layer before.
        plan : Plan, optional
            A `RowPlan` makes the result compact, (N, plan.count); a `TilePlan` leaves out tiles of the weight.
        kept : RowPlan, optional
            Which inputs x holds; under a `TilePlan` the others are put back first, as zeros.
        relu : bool, default=False
            Whether act is ReLU.
        before : Shuffle, optional
            What x, all of it, still has to go through: tiles meet it shuffled at no cost.
        """
        width = self.in_features if kept is None else kept.count
        if x.ndim < 1 or x.shape[-1] != width:
            raise ValueError(f"Linear: x {x.shape} does not match weight {self.weight.shape}"
                             f"{'' if kept is None else f' under {kept}'}: its last axis must be {width}")
        if before is not None and (x.ndim != 2 or not isinstance(plan, TilePlan)):
            x, before = before(x), None
        if x.ndim != 2:
            lead = x.shape[:-1]
            y = self(x.reshape(math.prod(lead), width), plan, kept, relu)
            return y.reshape(*lead, y.shape[-1])
        if isinstance(plan, TilePlan):
            order = None if before is None else before.order
            return ops.linear_tiles(_expand(x, kept), self.weight, self.bias, plan=plan, relu=relu, order=order)
        if isinstance(plan, RowPlan) or kept is not None:
            rows = plan if isinstance(plan, RowPlan) else RowPlan(self.out_features, 1, 0)
            cols = RowPlan(self.in_features, 1, 0) if kept is None else kept
            return ops.linear_rows(x, self.weight, self.bias, rows=rows, cols=cols, relu=relu)
        return ops.linear(x, self.weight, self.bias, relu=relu)

    def __repr__(self) -> str:
        return f"Linear({self.in_features}, {self.out_features}{'' if self.bias is not None else ', bias=False'})"


class Activation(Layer):
    """An elementwise function of its input."""

    elementwise = True
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(x)


class ReLU(Activation):
    """y = max(x, 0)"""

    function = ops.relu


class Tanh(Activation):
    """y = tanh x"""

    function = ops.tanh


class Sigmoid(Activation):
    """y = 1 / (1 + e^-x)"""

    function = ops.sigmoid


class GELU(Activation):
    """y = x Phi(x), Phi the distribution function of the standard normal"""

    function = ops.gelu


class Flatten(Layer):
    """y[n, …] = x[n, …] as (N, everything else)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], math.prod(x.shape[1:]))


class Shuffle(Layer):
    """y[n, j] = (x - mean)[n, order[j]]: the features centred and in another order, the same for all samples.   x, y (N, I)

    Made for a layer under a tile pattern, which leaves out some of a neuron's inputs. The order brings features from everywhere
    into each tile, where neighbours say much the same. Without their mean, what is left out is only how a sample differs from
    the others: far less noise, where features are not around 0 already. `Net` takes off most of the mean
    (`estimator._centre`).

    Parameters
    ----------
    order, mean : array_like
        As for `Order`, which refuses what is none.
    """

    def __init__(self, order: Sequence[int] | np.ndarray, mean: Sequence[float] | np.ndarray | None = None) -> None:
        self.order = Order(order, mean)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.shuffle(x, order=self.order)

    def __repr__(self) -> str:
        return f"Shuffle({self.order.size} features)"


ACTIVATIONS: dict[str, type[Activation]] = {"relu": ReLU, "tanh": Tanh, "sigmoid": Sigmoid, "gelu": GELU}


class Sequential(Layer):
    """Layers one after the other; with plans, only what they keep is computed, and activations between them stay compact.

    Parameters
    ----------
    layers : sequence of Layer
        Each maps a tensor to a tensor.

    Raises
    ------
    TypeError
        If one of them is no layer.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        for layer in self.layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"Sequential: {layer!r} is not a Layer; make a subclass of numbanet.Layer that calls it")

    def parameters(self) -> Iterator[Tensor]:
        seen = {id(p): p for layer in self.layers for p in layer.parameters()}  # a layer that stands twice counts once
        return iter(seen.values())

    @property
    def repeatable(self) -> bool:
        return super().repeatable and all(layer.repeatable for layer in self.layers)

    def droppable(self) -> list[Linear]:
        """The layers that dropout may thin out: every `Linear` but the last, whose outputs are the answer."""
        return [layer for layer in self.layers if isinstance(layer, Linear)][:-1]

    def __call__(self, x: Tensor, plans: Mapping[Layer, Plan] | None = None) -> Tensor:
        """The output for x (N, …); `plans` says what to keep of some of the `Linear` layers.

        Dropout acts on what comes out of a layer's activation. A ReLU is fused into the `Linear` before it, a `Shuffle` into
        the one after it; what a plan leaves to do after another activation is done before the first following layer that is
        not elementwise.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"Sequential: x must be a Tensor, got {type(x).__name__}; write Tensor(x)")
        plans, i = {layer: plan for layer, plan in (plans or {}).items() if not plan.trivial}, 0
        kept: RowPlan | None = None     # which entries of the last axis x holds
        due: Plan | None = None         # what is still to be applied to x
        before: Shuffle | None = None   # what the next layer, a `Linear`, still has to put it through
        while i < len(self.layers):
            layer, i = self.layers[i], i + 1
            if isinstance(layer, Linear):
                plan = plans.get(layer)
                relu = i < len(self.layers) and type(self.layers[i]) is ReLU
                i += relu
                later = isinstance(plan, BernoulliPlan) or (isinstance(plan, RowPlan) and not relu and plan.scale != 1.0)
                now = dataclasses.replace(plan, scale=1.0) if later and isinstance(plan, RowPlan) else plan
                x, before = layer(_settle(x, due), now, kept, relu, before), None
                kept, due = plan if isinstance(plan, RowPlan) else None, plan if later else None
            elif layer.elementwise:
                x = layer(x)
            else:
                x, kept, due = _expand(_settle(x, due), kept), None, None
                if type(layer) is Shuffle and i < len(self.layers) and isinstance(self.layers[i], Linear):
                    before = layer
                else:
                    x = layer(x)
        return _expand(_settle(x, due), kept)

    def flops(self, samples: int, plans: Mapping[Layer, Plan] | None = None) -> int:
        """FLOPs of the matrix products of one training step: forward, dW, and dx for all but the first `Linear`."""
        plans, total, kept, first = plans or {}, 0, None, True
        for layer in self.layers:
            if isinstance(layer, Linear):
                plan = plans.get(layer)
                inner = layer.in_features if kept is None else kept.count
                if isinstance(plan, TilePlan):
                    forward = plan.flops(samples)
                elif isinstance(plan, RowPlan):
                    forward = plan.flops(samples, inner)
                else:
                    forward = 2 * samples * inner * layer.out_features
                total += forward * (2 if first else 3)
                kept, first = plan if isinstance(plan, RowPlan) else None, False
            elif not layer.elementwise:
                kept = None
        return total

    def reads(self, plans: Mapping[Layer, Plan] | None = None) -> dict[Tensor, RowPlan | TilePlan]:
        """The plans by weight, for those weights of which a step with these plans reads only what they keep."""
        layers = [layer for layer in self.layers if isinstance(layer, Linear)]
        uses = collections.Counter(id(layer.weight) for layer in layers)
        plans = {layer.weight: (plans or {}).get(layer) for layer in layers if uses[id(layer.weight)] == 1}
        return {weight: plan for weight, plan in plans.items() if isinstance(plan, (RowPlan, TilePlan)) and plan.dp > 1}

    def __repr__(self) -> str:
        return f"Sequential([{', '.join(map(repr, self.layers))}])"


def _settle(x: Tensor, due: Plan | None) -> Tensor:
    """What a plan leaves to do after the activation: the random zeros of conventional dropout, or the scale of kept rows."""
    if due is None:
        return x
    return ops.dropout(x, plan=due) if isinstance(due, BernoulliPlan) else ops.affine(x, mul=due.scale)


def _expand(x: Tensor, kept: RowPlan | None) -> Tensor:
    """The dense form of a compact activation."""
    return x if kept is None else ops.expand(x, plan=kept)


def to(layer: Layer, where: str | Device) -> None:
    """Move a layer's parameters to a device, in place; their gradients are forgotten."""
    for parameter in layer.parameters():
        parameter.move(device(where))
