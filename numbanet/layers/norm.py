"""Batch normalisation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from .. import ops
from ..arguments import check_count
from ..device import Device
from ..plans import AxisPlan, BernoulliPlan, SamplePlan
from ..plans.on_device import DeviceAxis, DeviceSamples
from ..tensor import Tensor
from .base import Layer, only
from .context import Context
from .flow import Cost, PerSample


class BatchNorm(Layer):
    """Base class: y = weight (x - mean) / sqrt(variance + eps) + bias, for each channel of x (N, C) or (N, C, …)."""

    buffers = ("running_mean", "running_var", "num_batches_tracked")
    units = ("weight", "bias", "running_mean", "running_var")
    unitwise = True
    axes: ClassVar[tuple[int, ...]]  # the allowed numbers of axes of x
    takes: ClassVar[str]  # the shapes of a sample, with a place for C, and the layer for other shapes

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        device: str | Device = "cpu",
    ) -> None:
        name = type(self).__name__
        only(name, "use ops.batch_norm, which has no running values", track_running_stats=(track_running_stats, True))
        num_features = check_count(f"{name}: num_features", num_features)
        if not eps > 0 or not (momentum is None or 0 <= momentum <= 1):
            raise ValueError(f"{name}: eps {eps} must be above 0 and momentum {momentum} None or in [0, 1]")
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = (
            Tensor(np.full(num_features, value), device, requires_grad=True) if affine else None for value in (1.0, 0.0)
        )
        self.running_mean, self.running_var = (Tensor(np.full(num_features, value), device) for value in (0.0, 1.0))
        self.num_batches_tracked = Tensor(0.0, device)

    @property
    def num_features(self) -> int:
        """C, the number of channels."""
        return self.running_mean.shape[0]

    @contextlib.contextmanager
    def averaging(self) -> Iterator[None]:
        """A context in which running values become the means over its batches, as with momentum=None in a new layer."""
        dev, momentum, tracked = self.running_mean.device, self.momentum, self.num_batches_tracked
        self.momentum, self.num_batches_tracked = None, Tensor(0.0, dev)
        try:
            yield
        finally:
            self.momentum, self.num_batches_tracked = momentum, tracked

    def normed(self, x: Tensor, channels: DeviceAxis | None, context: Context, sampled: DeviceSamples | None = None) -> Tensor:
        """Return y for x (N, C). If `channels` is given, x (N, K) holds only these channels. If `sampled` is given, x holds
        only the values that each sample keeps.
        """
        samples = x.shape[0] if sampled is None else sampled.plan.samples
        if not context.training:
            whole = x if sampled is None else ops.expand_samples(x, plan=sampled)
            y = ops.batch_norm_apply(
                whole,
                self.weight,
                self.bias,
                mean=self.running_mean.data,
                variance=self.running_var.data,
                eps=self.eps,
                channels=channels,
            )
            return y if sampled is None else ops.compact_samples(y, plan=sampled)
        if samples < 2 and context.ranks is None:
            raise ValueError(
                f"{type(self).__name__}: a batch in training needs more than one value for each channel, got x {x.shape}; "
                "train with more samples in a batch (batch_size), or without this layer"
            )

        if self.momentum is None and channels is not None:
            raise ValueError(
                f"{self!r}: momentum=None averages over all batches, but {channels.plan} drops channels in some of "
                "them; give it a momentum, such as 0.1"
            )

        def follow(mean, variance):
            dev, count = self.num_batches_tracked.device, self.num_batches_tracked.data
            dev.affine(count, add=1.0, out=count)
            self._follow(self.running_mean, mean, 1.0, channels)
            self._follow(self.running_var, variance, 1.0 if context.ranks else samples / (samples - 1), channels)

        if sampled is not None and context.ranks is not None:
            whole = ops.expand_samples(x, plan=sampled)
            y = ops.batch_norm(whole, self.weight, self.bias, seen=follow, eps=self.eps, ranks=context.ranks)
            return ops.compact_samples(y, plan=sampled)
        if sampled is not None:
            return ops.batch_norm_samples(x, self.weight, self.bias, seen=follow, eps=self.eps, plan=sampled)
        return ops.batch_norm(x, self.weight, self.bias, seen=follow, eps=self.eps, channels=channels, ranks=context.ranks)

    def _follow(self, running, batch, factor, channels):
        """Update running values r by the values b of a batch: r <- r + momentum (factor b - r) for the computed channels. If
        `self.momentum` is None, 1 / (number of batches) is used instead. This number is read from device memory, because a
        recorded step must not contain it as a constant.
        """
        dev, m = running.device, self.momentum
        if m is None:
            batches = dev.broadcast_to(dev.reshape(self.num_batches_tracked.data, (1,)), running.shape)
            change = dev.sub(dev.affine(batch, mul=factor), running.data)
            dev.add(running.data, dev.div(change, batches), out=running.data)
            return
        if channels is None:
            dev.add(dev.affine(running.data, mul=1 - m), dev.affine(batch, mul=m * factor), out=running.data)
            return
        row = dev.compact(dev.reshape(running.data, (1, self.num_features)), channels.indices)
        change = dev.add(dev.affine(row, mul=-m), dev.affine(dev.reshape(batch, row.shape), mul=m * factor))
        dev.add(running.data, dev.reshape(dev.expand(change, channels.inverse), running.shape), out=running.data)

    def cost(self, spec, plans):
        if len(spec.shape) not in self.axes or spec.shape[1] not in (None, self.num_features):
            raise ValueError(self._misfit(spec.shape[1:]))
        spec = spec._replace(plan=None if len(spec.shape) == 3 else spec.plan, differentiable=True)
        size = 4.0 * math.prod(n or 1 for n in spec.shape) * (1.0 if spec.plan is None else spec.plan.density)
        return Cost(0.0, 0.0, 2 * size, 3 * size), spec

    def _misfit(self, shape):
        return f"{self!r}: its input is of shape {tuple(shape)} a sample; it takes {self.takes.format(self.num_features)}"

    def commutes(self, plan):
        return isinstance(plan, (AxisPlan, BernoulliPlan)) or (isinstance(plan, SamplePlan) and plan.double)

    def config(self):
        affine = self.weight is not None
        return {"num_features": self.num_features, "eps": self.eps, "momentum": self.momentum, "affine": affine}

    @classmethod
    def shapes(cls, config):
        return (("running_mean", (config["num_features"],)),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_features}{', affine=False' * (self.weight is None)})"


class BatchNorm1d(BatchNorm):
    """y = weight (x - mean) / sqrt(variance + eps) + bias, for each channel.   x, y (N, C) or (N, C, L)

    In training, the mean and the variance are those of the batch. They also update the running mean and the running variance:
    r <- (1 - momentum) r + momentum b, where r is a running value and b the value of the batch; for this update the sum of
    squares of the variance is divided by N - 1. Predictions use the running values (Ioffe & Szegedy 2015, algorithms 1 and 2).
    After an epoch with dropout, an estimator computes them anew without dropout (`training.validation.BatchStatistics`).
    Names, shapes, values and positional arguments are PyTorch's. Compact x (N, C) stays compact, and compact x (N, C, L) is
    expanded and multiplied by its scale; channels that a step drops keep their running values. Other pending scales and random
    masks are applied after the next activation, so that the statistics are those of prediction.

    Parameters
    ----------
    num_features : int
        Number of channels, C.
    eps : float, default=1e-5
        A number that is added to the variance.
    momentum : float or None, default=0.1
        Weight of a batch in the running values, in [0, 1]. If it is None, the running values are means over all batches; this
        is allowed only if no channels are dropped.
    affine : bool, default=True
        If False, there are no weight and bias; they count as 1 and 0.
    track_running_stats : bool, default=True
        Only True is supported.
    device : str or Device, default="cpu"
        Device of the tensors.

    Raises
    ------
    ValueError
        If an argument is out of range; when called in training, if a channel has only one value.
    """

    recordable = True
    unitwise = True
    axes = (2, 3)
    takes = "(C,) or (C, L) with C = {}; for images (C, H, W) use BatchNorm2d"

    def forward(self, flow, context):
        samples = flow.layout.samples if isinstance(flow.layout, PerSample) else None
        if samples is None and flow.x.ndim not in self.axes:
            raise ValueError(self._misfit(flow.dense().shape[1:]))
        if flow.x.ndim == 3 and flow.indices is not None:  # they are of the last axis, and the channels are the second one
            flow = flow.with_(flow.dense())
        if flow.x.ndim == 3:
            n, channels, length = flow.x.shape
            y = self.forward(flow._replace(x=flow.x.transpose(0, 2, 1).reshape(n * length, channels)), context)
            return y._replace(x=y.x.reshape(n, length, channels).transpose(0, 2, 1))
        return flow._replace(x=self.normed(flow.x, flow.indices, context, samples))


class BatchNorm2d(BatchNorm):
    """y = weight (x - mean) / sqrt(variance + eps) + bias, for each channel of images.   x, y (N, C, H, W)

    This layer is like `BatchNorm1d`, but the mean and the variance are those of all N H W values of a channel. Names, shapes
    and values are PyTorch's. Compact channels stay compact, and channels that a step drops keep their running values.
    `Conv2d` applies the scale of kept filters before this layer, which divides by the deviation of the batch and so removes the
    scale. After `Linear` the scale is applied behind `BatchNorm1d` and the activation.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats, device
        As for `BatchNorm1d`, with the same errors. When the layer is called, it refuses an x that is not a batch of images.
    """

    recordable = True
    unitwise = True
    axes = (4,)
    takes = "images (C, H, W) with C = {}; for (C,) or (C, L) use BatchNorm1d"

    def forward(self, flow, context):
        if flow.x.ndim not in self.axes:
            raise ValueError(self._misfit(flow.dense().shape[1:]))
        flow = flow.images()
        rows = flow.x.reshape(math.prod(flow.x.shape[:3]), flow.x.shape[3])
        return flow._replace(x=self.normed(rows, flow.indices, context).reshape(*flow.x.shape))
