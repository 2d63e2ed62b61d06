"""Four classes: a `Flow` is the activation that one layer passes to the next. Its `Layout` says how the array x of the flow
represents the activation. An `ActivationSpec` holds the shape of an activation that is not computed yet. A `Cost` holds FLOPs
and bytes. The layouts are:

    Dense           x is the activation
    Symbols         x holds integers, of which the host has a copy
    Columns         x holds some entries of the last axis; the others are 0
    ChannelsLast    x is (N, H, W, C) and stands for (N, C, H, W); it may hold only some of the channels
    PerSample       each sample keeps its own set of entries, and x holds them one sample after the other

An activation is compact if x holds only the entries that a plan keeps. A layer that supports only dense activations calls
`Flow.dense`. A layer makes its output flow with `Flow.with_`, which keeps the properties of the samples (`Tags`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import ops
from ..autograd import move
from ..device import Device
from ..plans import AxisPlan, BernoulliPlan, Plan
from ..plans.on_device import DeviceAxis, DeviceBits, DeviceSamples
from ..tensor import Tensor


# --- layouts ----------------------------------------------------------------------------------------------------------
class Layout:
    """How the array x represents the activation. `indices` are the entries of an axis that x holds; None stands for all.
    `plan` is the plan that dropped the other entries; a layer may work on x directly if it commutes with this plan
    (`Layer.commutes`).
    """

    __slots__ = ()
    indices: DeviceAxis | None = None
    plan: Plan | None = None

    def dense(self, x: Tensor) -> Tensor:
        """Return the dense activation that x represents."""
        return x


class Dense(Layout):
    """x is the activation."""

    __slots__ = ()


class Symbols(Layout):
    """x holds integers, and `host` is a copy of them on the host."""

    __slots__ = ("host",)

    def __init__(self, host: np.ndarray) -> None:
        self.host = host


class Columns(Layout):
    """x holds the entries `indices` of the activation's last axis."""

    __slots__ = ("indices",)

    def __init__(self, indices: DeviceAxis) -> None:
        self.indices = indices

    def dense(self, x):
        return ops.expand(x, plan=self.indices)


class ChannelsLast(Layout):
    """x (N, H, W, C) stands for (N, C, H, W). x holds only the channels `indices`; None stands for all channels."""

    __slots__ = ("indices",)

    def __init__(self, indices: DeviceAxis | None = None) -> None:
        self.indices = indices

    def dense(self, x):
        return (x if self.indices is None else ops.expand(x, plan=self.indices)).transpose(0, 3, 1, 2)


class PerSample(Layout):
    """x holds the entries that each sample keeps, one sample after the other."""

    __slots__ = ("plan", "samples")

    def __init__(self, samples: DeviceSamples) -> None:
        self.samples, self.plan = samples, samples.plan

    def dense(self, x):
        return ops.expand_samples(x, plan=self.samples)


DENSE, CHANNELS_LAST = Dense(), ChannelsLast()


class Tags(NamedTuple):
    """Properties of the samples, which every layer passes to the next one unchanged."""

    lengths: np.ndarray | None = None  # (N,) on the host: number of time steps of each sequence; None: all time steps


NO_TAGS = Tags()


# --- flow -------------------------------------------------------------------------------------------------------------
class Flow(NamedTuple):
    """An activation in the form in which one layer passes it to the next."""

    x: Tensor
    layout: Layout = DENSE
    pending: tuple[Plan | DeviceBits, ...] = ()  # factors with which x is not multiplied yet: scales and random masks
    tags: Tags = NO_TAGS

    @property
    def indices(self) -> DeviceAxis | None:
        """The entries of an axis that x holds; None stands for all."""
        return self.layout.indices

    def with_(self, x: Tensor, layout: Layout = DENSE, pending: tuple[Plan, ...] = ()) -> Flow:
        """Return a flow with other values for the same samples; it has the same tags."""
        return Flow(x, layout, pending, self.tags)

    def applied(self) -> Flow:
        """Return the flow in which x is multiplied by all pending factors."""
        x = self.x
        for plan in self.pending:
            if isinstance(plan, (BernoulliPlan, DeviceBits)):
                x = ops.dropout(x, plan=plan)
            elif isinstance(plan, AxisPlan):
                x = ops.affine(x, mul=plan.scale)
            else:
                raise TypeError(f"Flow: it cannot apply the pending factor of {plan!r}")
        return Flow(x, self.layout, (), self.tags) if self.pending else self

    def before(self, commutes: Callable[[Plan], bool]) -> Flow:
        """Return the flow in a form that a layer reads. If the layer does not commute with the plan of a pending factor, all
        factors are applied; if not with the plan of the layout, the activation becomes dense.
        """
        plans = [plan.plan if isinstance(plan, DeviceBits) else plan for plan in self.pending]
        flow = self if all(map(commutes, plans)) else self.applied()
        return flow if flow.layout.plan is None or commutes(flow.layout.plan) else flow.with_(flow.dense())

    def dense(self) -> Tensor:
        """Return the dense activation: pending factors are applied, dropped entries are 0, channels are on the second axis."""
        flow = self.applied()
        return flow.layout.dense(flow.x)

    def features(self) -> Flow:
        """Return the flow with a layout other than `ChannelsLast`, and with nothing pending."""
        flow = self.applied()
        return flow.with_(flow.dense()) if isinstance(flow.layout, ChannelsLast) else flow

    def images(self) -> Flow:
        """Return the flow with the layout `ChannelsLast`, which image layers read. A flow of this layout is returned as it is,
        with its pending factors; another one becomes dense, with its factors applied.
        """
        return self if isinstance(self.layout, ChannelsLast) else self.with_(self.dense().transpose(0, 2, 3, 1), CHANNELS_LAST)

    def on(self, dev: Device) -> Flow:
        """Return the flow on the device `dev`; a compact activation that is moved becomes dense."""
        if self.x.device is dev:
            return self
        flow = self.applied()
        if flow.indices is not None or flow.layout.plan is not None:
            flow = flow.with_(flow.dense())
        return flow._replace(x=move(flow.x, dev))

    def expanded(self) -> Tensor:
        """Return the values, with zeros for dropped entries; images keep their channels on the last axis."""
        if isinstance(self.layout, ChannelsLast):
            return self.x if self.indices is None else ops.expand(self.x, plan=self.indices)
        return self.dense()


# --- known in advance -------------------------------------------------------------------------------------------------
class ActivationSpec(NamedTuple):
    """Properties of a Flow that are known before it is computed, such as its shape."""

    shape: tuple[int | None, ...]  # shape of the dense activation; None for a length that is unknown
    plan: AxisPlan | None = None  # the plan of the features, or of the channels of images, that x will hold
    differentiable: bool = False  # True if a gradient flows back to the activation

    @property
    def samples(self) -> int:
        """The number of rows of the activation: the product of the lengths of all axes but the last."""
        return math.prod(n or 1 for n in self.shape[:-1])


class Cost(NamedTuple):
    """The FLOPs of the matrix products of both passes, and the bytes that they move if each operand is read or written once."""

    forward: float = 0.0
    backward: float = 0.0
    bytes_forward: float = 0.0
    bytes_backward: float = 0.0

    @property
    def flops(self) -> float:
        """FLOPs of forward and backward together."""
        return self.forward + self.backward

    def plus(self, other: Cost) -> Cost:
        """Return the sum of both costs."""
        return Cost(*(a + b for a, b in zip(self, other)))


def product_cost(samples: int, inner: int, outer: int, size: float, spec: ActivationSpec) -> Cost:
    """Return the cost of y = x w.T for x (samples, inner) and y (samples, outer) if `size` elements of w are used. The backward
    pass computes dw and, if the input requires a gradient, dx. A number has 4 bytes.
    """
    flops, ends = 2.0 * samples * size, 4.0 * samples * (inner + outer)
    others = 2 if spec.differentiable else 1
    return Cost(flops, others * flops, ends + 4.0 * size, others * (ends + 4.0 * size))
