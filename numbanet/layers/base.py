"""Layer: the contract of all layers; Flow: what passes between them; Form and Cost: what is known of it beforehand.

A layer of one's own is whole with `__call__`, which maps a tensor to a tensor. What else it may say:

    sites()             places that dropout may thin out
    forward(flow, step) how it takes compact activations; by default it is called with the dense one
    cost(form, step)    shapes, FLOPs and bytes; shapes that do not fit are refused here, before training starts
    reads(step)         what of its weights a step reads, so that updates may leave the rest for later
    named()             tensors by PyTorch's names; by default its attributes that are tensors
    commutes(plan)      whether it may act before what is due is applied
    absorb(following)   fusion with the next layer
"""
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import ops
from ..device import Device, device
from ..plans import AxisPlan, BernoulliPlan, Kept, Plan
from ..plans.kept import KeptAxis, KeptSamples
from ..tensor import Tensor
from .step import Site, Step


class Flow(NamedTuple):
    """What passes from layer to layer."""

    x: Tensor
    kept: KeptAxis | None = None    # which entries of the last axis x holds; None: all
    due: tuple[Plan, ...] = ()      # what is still to be multiplied in: a scale, random bits
    channels_last: bool = False     # x is (N, H, W, C) and stands for (N, C, H, W)
    lengths: np.ndarray | None = None   # of samples that are sequences: how many steps each has, on the host; None: all
    sampled: KeptSamples | None = None  # each sample keeps outputs of its own, and x holds them one after the other

    def settled(self) -> Flow:
        """With all that was due applied."""
        x = self.x
        for plan in self.due:
            if isinstance(plan, BernoulliPlan):
                x = ops.dropout(x, plan=plan)
            elif isinstance(plan, AxisPlan):
                x = ops.affine(x, mul=plan.scale)
            else:
                raise TypeError(f"Flow: it does not know how {plan!r} is multiplied in")
        return self._replace(x=x, due=())

    def dense(self) -> Tensor:
        """The activation itself: what was due applied, zeros where entries were dropped, channels on the second axis."""
        flow = self.settled() if self.due else self
        if flow.sampled is not None:
            return ops.expand_samples(flow.x, plan=flow.sampled)
        x = flow.x if flow.kept is None else ops.expand(flow.x, plan=flow.kept)
        return x.transpose(0, 3, 1, 2) if self.channels_last else x

    def images(self) -> Flow:
        """The same with channels last: what layers of images work on."""
        if self.channels_last:
            return self
        return Flow(self.dense().transpose(0, 2, 3, 1), channels_last=True)


class Form(NamedTuple):
    """What is known of a Flow before it is computed."""

    shape: tuple[int | None, ...]   # of the dense activation; a length that is not known is None
    kept: AxisPlan | None = None    # which features, of images channels, will be held
    differentiable: bool = False    # whether a gradient will flow to it


class Cost(NamedTuple):
    """FLOPs and bytes of a pass, forward and backward: of matrix products, and of what they read and write once."""

    forward: float = 0.0
    backward: float = 0.0
    bytes_forward: float = 0.0
    bytes_backward: float = 0.0

    @property
    def flops(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward

    def plus(self, other: Cost) -> Cost:
        """The cost of both."""
        return Cost(*(a + b for a, b in zip(self, other)))


class Layer:
    """Base of the layers. A subclass defines `__call__` or `forward`; all else has a default."""

    buffers: ClassVar[tuple[str, ...]] = ()  # names of tensors that are kept and moved, but not trained
    recordable: ClassVar[bool] = False       # see `records`
    symbols: int | None = None               # it takes integers below this; None: numbers
    seed: int | None = None                  # of the initial weights, where the layer was made without `rng`

    def __call__(self, x: Tensor, step: Step | Mapping[Any, Plan] | None = None) -> Tensor:
        """The output for a tensor, dense; `step`, or the plans of one, says what is kept."""
        if not isinstance(x, Tensor):
            raise TypeError(f"{type(self).__name__}: x must be a Tensor, got {type(x).__name__}; write Tensor(x)")
        return self.forward(Flow(x), step if isinstance(step, Step) else Step(x.device, step)).dense()

    def forward(self, flow: Flow, step: Step) -> Flow:
        """What the layer makes of what comes to it."""
        return Flow(self(flow.dense()))

    def sites(self) -> tuple[Site, ...]:
        """The places that dropout may thin out."""
        return ()

    def cost(self, form: Form, step: Step) -> tuple[Cost, Form]:
        """What a pass under this step costs, and what comes out; ValueError where the layer cannot take what comes.

        By default a layer costs what the layers among its attributes do, each on what the one before gives, or on what comes to
        this layer where it takes that alone; what comes out is not known.
        """
        total, first = Cost(), form._replace(kept=None)
        last = first
        for layer in _held(vars(self).values()):
            for given in (last, first):
                with contextlib.suppress(ValueError):
                    own, last = layer.cost(given, step)
                    total = total.plus(own)
                    break
        return total, Form((*form.shape[:1], None), None, True)

    def reads(self, step: Step) -> dict[Tensor, Kept]:
        """By weight, the part that a step reads, for those of which it does not read all."""
        return {}

    def commutes(self, plan: Plan) -> bool:
        """Whether the layer may act before what this plan leaves due is applied."""
        return False

    def absorb(self, following: Layer) -> Callable[[Flow, Step], Flow] | None:
        """This layer and the following one as one; None: they are not fused."""
        return None

    @property
    def records(self) -> bool:
        """Whether equal kinds of plans always mean equal launches, so that passes may be recorded. A class says so for itself
        alone (`recordable = True`): a subclass may do something else."""
        return bool(vars(type(self)).get("recordable", False))

    # --- initial weights ----------------------------------------------------------------------------------------------
    def generator(self, rng: np.random.Generator | int | None) -> np.random.Generator:
        """Where a constructor draws from: what it is given, or a seed that the layer keeps (`redraw`)."""
        if rng is None:
            rng = self.seed = np.random.SeedSequence().entropy
        return np.random.default_rng(rng)

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial values of the tensors that are drawn, by their attributes."""
        return {}

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw initial weights anew, if the layer was made without `rng` and they are still those that it drew then: what was
        trained or loaded stays. So do the layers that it holds."""
        for layer in _held(vars(self).values()):
            layer.redraw(rng)
        if self.seed is None:
            return
        own = self.initial(np.random.default_rng(self.seed))
        if all(np.array_equal(getattr(self, name).numpy(), values.astype(getattr(self, name).dtype))
               for name, values in own.items()):
            for name, values in self.initial(rng).items():
                tensor = getattr(self, name)
                tensor.assign(tensor.device.upload(values.astype(tensor.dtype)))
            self.seed = None

    # --- tensors ------------------------------------------------------------------------------------------------------
    def named(self) -> Iterator[tuple[str, Tensor, bool]]:
        """(name, tensor, whether it is trained) of each parameter and buffer, in PyTorch's names."""
        own = {id(value): name for name, value in vars(self).items() if isinstance(value, Tensor)}
        given = list(self.parameters()) if type(self).parameters is not Layer.parameters else []
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield name, value, name not in self.buffers
        yield from ((f"parameters.{i}", p, True) for i, p in enumerate(given) if id(p) not in own)

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that training changes, each once."""
        return iter({id(tensor): tensor for _, tensor, trained in self.named() if trained}.values())

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, by PyTorch's names."""
        return {name: np.array(tensor.numpy()) for name, tensor, _ in self.named()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters and buffers, from arrays or anything that NumPy reads, such as PyTorch's tensors.

        Raises
        ------
        ValueError
            If a name is missing or unknown, a shape is another one, or indices make no structure; nothing is changed then.
        TypeError
            If an entry is no array of numbers.
        """
        own, found = {name: tensor for name, tensor, _ in self.named()}, {}
        for problem, names in (("lacks", own.keys() - state.keys()), ("has unknown entries:", state.keys() - own.keys())):
            if names:
                raise ValueError(f"load_state_dict: the state {problem} {', '.join(sorted(names))}")
        for name, tensor in own.items():
            try:
                found[name] = np.asarray(state[name]).astype(tensor.dtype, order="C")
            except (TypeError, ValueError) as error:
                raise TypeError(f"load_state_dict: {name} is no array of numbers ({error})") from error
            if tensor.dtype != np.float32 and not np.array_equal(found[name], state[name]):
                raise ValueError(f"load_state_dict: {name} has numbers that are no {tensor.dtype}")
            if found[name].shape != tensor.shape:
                raise ValueError(f"load_state_dict: {name} has shape {found[name].shape}, the layer's is {tensor.shape}")
        self.check_state({tensor: found[name] for name, tensor in own.items()})
        for name, tensor in own.items():
            tensor.assign(tensor.device.upload(found[name]))

    def check_state(self, arrays: Mapping[Tensor, np.ndarray]) -> None:
        """ValueError unless the layer can take these arrays for its tensors, whose shapes they have."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def only(layer: str, out: str, **given: tuple[Any, Any]) -> None:
    """ValueError with the way out where an argument of PyTorch's, (its value, the one that is supported), has another value."""
    for name, (value, supported) in given.items():
        if value != supported:
            raise ValueError(f"{layer}: {name}={value!r} is not supported, only {name}={supported!r}: {out}")


def _held(values: Iterable[Any]) -> Iterator[Layer]:
    """The layers among some values, also those in lists and tuples."""
    for value in values:
        if isinstance(value, Layer):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _held(value)


def to(layer: Layer, where: str | Device) -> None:
    """Move a layer's parameters and buffers to a device, in place; their gradients are forgotten."""
    for _, tensor, _ in layer.named():
        tensor.move(device(where))


def part_of(weight: Tensor, plan: Plan, step: Step) -> dict[Tensor, Kept]:
    """What `Layer.reads` says of a weight of which a step reads what the plan says."""
    return {} if plan.region(weight.shape) is None else {weight: step.on(plan)}


def product_cost(samples: int, inner: int, outer: int, kept: float, form: Form) -> Cost:
    """Of y = x w.T with `kept` elements of w: forward, dW, and dx where a gradient flows on; 4 bytes a number."""
    flops, ends = 2.0 * samples * kept, 4.0 * samples * (inner + outer)
    others = 2 if form.differentiable else 1
    return Cost(flops, others * flops, ends + 4.0 * kept, others * (ends + 4.0 * kept))


def samples_of(form: Form) -> int:
    """How many samples, and positions of them, an activation has."""
    return math.prod(n or 1 for n in form.shape[:-1])
