"""Flow: what passes from layer to layer; Layout: how its values lie; ActivationSpec and Cost: what is known of it beforehand.

    Dense           x is the activation
    Symbols         x holds integers, which are known on the host as well
    Columns         of the last axis x holds some entries alone; the others are 0
    ChannelsLast    x is (N, H, W, C) and stands for (N, C, H, W); of the channels it may hold some alone
    PerSample       each sample keeps entries of its own, and x holds them one after the other

A layer that knows none of this asks for `Flow.dense`. One that makes a new flow makes it with `Flow.with_`, which carries on
what belongs to the samples (`Tags`), whatever becomes of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import ops
from ..plans import AxisPlan, BernoulliPlan, Plan
from ..plans.on_device import DeviceAxis, DeviceBits, DeviceSamples
from ..tensor import Tensor


# --- layouts ----------------------------------------------------------------------------------------------------------
class Layout:
    """How the values of a flow lie. `indices` says which entries of an axis x holds, None for all; `plan` what a layer has to
    commute with to take x as it is."""

    __slots__ = ()
    indices: DeviceAxis | None = None
    plan: Plan | None = None

    def dense(self, x: Tensor) -> Tensor:
        """The activation itself."""
        return x


class Dense(Layout):
    """x is the activation."""

    __slots__ = ()


class Symbols(Layout):
    """x holds integers, and `host` the same ones on the host."""

    __slots__ = ("host",)

    def __init__(self, host: np.ndarray) -> None:
        self.host = host


class Columns(Layout):
    """Of the last axis of the activation, x holds the entries that `indices` keeps."""

    __slots__ = ("indices",)

    def __init__(self, indices: DeviceAxis) -> None:
        self.indices = indices

    def dense(self, x):
        return ops.expand(x, plan=self.indices)


class ChannelsLast(Layout):
    """x (N, H, W, C) stands for (N, C, H, W), and holds the channels that `indices` keeps; None: all."""

    __slots__ = ("indices",)

    def __init__(self, indices: DeviceAxis | None = None) -> None:
        self.indices = indices

    def dense(self, x):
        return (x if self.indices is None else ops.expand(x, plan=self.indices)).transpose(0, 3, 1, 2)


class PerSample(Layout):
    """x holds what each sample keeps, one sample after the other."""

    __slots__ = ("plan", "samples")

    def __init__(self, samples: DeviceSamples) -> None:
        self.samples, self.plan = samples, samples.plan

    def dense(self, x):
        return ops.expand_samples(x, plan=self.samples)


DENSE, CHANNELS_LAST = Dense(), ChannelsLast()


class Tags(NamedTuple):
    """What belongs to the samples of a flow, and stays with them from layer to layer."""

    lengths: np.ndarray | None = None  # of samples that are sequences: how many steps each has, on the host; None: all


NO_TAGS = Tags()


# --- flow -------------------------------------------------------------------------------------------------------------
class Flow(NamedTuple):
    """What passes from layer to layer."""

    x: Tensor
    layout: Layout = DENSE
    pending: tuple[Plan | DeviceBits, ...] = ()  # what is still to be multiplied in: a scale, random bits
    tags: Tags = NO_TAGS

    @property
    def indices(self) -> DeviceAxis | None:
        """Which entries of an axis x holds; None for all."""
        return self.layout.indices

    def with_(self, x: Tensor, layout: Layout = DENSE, pending: tuple[Plan, ...] = ()) -> Flow:
        """Other values of the same samples."""
        return Flow(x, layout, pending, self.tags)

    def applied(self) -> Flow:
        """With all that was pending multiplied in."""
        x = self.x
        for plan in self.pending:
            if isinstance(plan, (BernoulliPlan, DeviceBits)):
                x = ops.dropout(x, plan=plan)
            elif isinstance(plan, AxisPlan):
                x = ops.affine(x, mul=plan.scale)
            else:
                raise TypeError(f"Flow: it does not know how {plan!r} is multiplied in")
        return Flow(x, self.layout, (), self.tags) if self.pending else self

    def before(self, commutes: Callable[[Plan], bool]) -> Flow:
        """As a layer takes it that commutes with some plans: what others leave to do is done first."""
        plans = [plan.plan if isinstance(plan, DeviceBits) else plan for plan in self.pending]
        flow = self if all(map(commutes, plans)) else self.applied()
        return flow if flow.layout.plan is None or commutes(flow.layout.plan) else flow.with_(flow.dense())

    def dense(self) -> Tensor:
        """The activation itself: what was pending multiplied in, 0 where entries were dropped, channels on the second axis."""
        flow = self.applied()
        return flow.layout.dense(flow.x)

    def features(self) -> Flow:
        """The same as `Dense`, `Columns` or `PerSample`, nothing pending."""
        flow = self.applied()
        return flow.with_(flow.dense()) if isinstance(flow.layout, ChannelsLast) else flow

    def images(self) -> Flow:
        """The same with channels last: what layers of images work on. What is pending of such a flow stays so."""
        return self if isinstance(self.layout, ChannelsLast) else self.with_(self.dense().transpose(0, 2, 3, 1), CHANNELS_LAST)

    def expanded(self) -> Tensor:
        """The values as they lie, of images with channels last, zeros where entries were dropped."""
        if isinstance(self.layout, ChannelsLast):
            return self.x if self.indices is None else ops.expand(self.x, plan=self.indices)
        return self.dense()


# --- beforehand -------------------------------------------------------------------------------------------------------
class ActivationSpec(NamedTuple):
    """What is known of a Flow before it is computed."""

    shape: tuple[int | None, ...]  # of the dense activation; a length that is not known is None
    plan: AxisPlan | None = None  # which features, of images channels, will be held
    differentiable: bool = False  # whether a gradient will flow to it

    @property
    def samples(self) -> int:
        """How many samples, and positions of them, an activation has."""
        return math.prod(n or 1 for n in self.shape[:-1])


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


def product_cost(samples: int, inner: int, outer: int, kept: float, spec: ActivationSpec) -> Cost:
    """Of y = x w.T with `kept` elements of w: forward, dW, and dx where a gradient flows on; 4 bytes a number."""
    flops, ends = 2.0 * samples * kept, 4.0 * samples * (inner + outer)
    others = 2 if spec.differentiable else 1
    return Cost(flops, others * flops, ends + 4.0 * kept, others * (ends + 4.0 * kept))
