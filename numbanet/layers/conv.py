"""Conv2d: a product with patches of images; plans may drop filters, output positions, or blocks of the im2col matrix."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from numbanet_kernels.layouts.windows import Window

from .. import ops
from ..arguments import check_counts
from ..device import Device
from ..initial import uniform
from ..ops.border import BORDERS
from ..plans import AxisPlan, BernoulliPlan, BlockPlan, DeviceAxis, DeviceBlocks, Site
from ..tensor import Tensor
from .activation import ReLU
from .base import Layer
from .context import Context
from .flow import CHANNELS_LAST, ActivationSpec, ChannelsLast, Cost, Flow
from .pooling import MaxPool2d, Pair, pair


def positions_of(layer: Layer, spec: ActivationSpec, window: Window, channels: int) -> tuple[int, int]:
    """Return the numbers (OH, OW) of positions of a window; raise ValueError if the layer cannot take images of this `spec`."""
    if len(spec.shape) != 4 or spec.shape[1] not in (None, channels) or None in spec.shape[2:]:
        what = f"{layer!r}: it takes images ({channels}, H, W), and its input is of shape {spec.shape[1:]} a sample"
        gray = "; for images of one channel give X[:, None], or set the estimator's image_shape"
        flat = f"; flat samples become images by the estimator's image_shape=({channels}, H, W)"
        given = len(spec.shape) == 4 and not spec.differentiable  # images as the user gave them
        last = "; channels come first: X.transpose(0, 3, 1, 2)" * (given and spec.shape[3] == channels)
        raise ValueError(what + gray * (len(spec.shape) == 3 and channels == 1) + flat * (len(spec.shape) == 2) + last)
    positions = window.positions(*(n or 0 for n in spec.shape[2:]))
    if not min(positions):
        raise ValueError(f"{layer!r}: its window is larger than the images {spec.shape[2:]} with their padding")
    return positions


@dataclasses.dataclass(frozen=True)
class _Fused:
    """A convolution and the layers after it that are computed with it: ReLU, MaxPool2d, or both in this order."""

    layer: Conv2d
    relu: bool = False

    def __call__(self, flow: Flow, context: Context) -> Flow:
        return self.layer.forward(flow, context, relu=self.relu)

    def fuse_with(self, following: Layer) -> Callable[[Flow, Context], Flow] | None:
        if type(following) is ReLU and not self.relu:
            return dataclasses.replace(self, relu=True)
        if type(following) is MaxPool2d and not following.ceil_mode:
            return functools.partial(self.layer.forward, relu=self.relu, pool=following)
        return None


class Conv2d(Layer):
    """y[n, o, oh, ow] = sum x[n, c, oh sh - ph + kh dh, ow sw - pw + kw dw] w[o, c, kh, kw] + b[o].   x (N, C, H, W)

    The sum is over kh, kw and the channels c of the group of o; (sh, sw) is the stride, (ph, pw) the padding, (dh, dw) the
    dilation. Internally, images have their channels last, and the sum is a product with the im2col matrix (N OH OW, KH KW C),
    which is never built (`numbanet_kernels.families.conv`). At the site "output" an `AxisPlan` keeps some filters: y then holds
    only the channels of these filters. At the site "input" an `AxisPlan` keeps rows of the im2col matrix, which are output
    positions, and a `BlockPlan` keeps blocks of the im2col matrix. Positional arguments, names and shapes are PyTorch's.

    Parameters
    ----------
    in_channels, out_channels : int
        Number of channels of the input, C, and of the output, O.
    kernel_size : int or pair
        KH and KW, the size of the kernel along the height and the width.
    stride, padding, dilation : int or pair, default=1, 0, 1
        Distance between windows, zeros added at each edge, and distance between the pixels of a window.
    groups : int, default=1
        The channels are split into this number of groups; each output channel reads only the input channels of its group. With
        more than one, filters and blocks cannot be left out: "bernoulli" and "rsdp" drop here, and `fit` warns of other kinds.
    bias : bool, default=True
        Whether to add b.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default="zeros"
        The pixels around the image: zeros, its mirror image without the edge, its edge, or its opposite side.
    init : {"he", "glorot"}, default="he"
        As for `Linear`, with C KH KW / groups inputs.
    rng : numpy.random.Generator or int, optional
        Source of the initial weights.
    device : str or Device, default="cpu"
        Device of the parameters.

    Raises
    ------
    ValueError
        If a size is out of range, or the groups do not divide the channels; before training, if the images do not fit.
    TypeError
        If a size is not an int.
    """

    recordable = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        init: str = "he",
        rng: np.random.Generator | int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        if padding_mode not in ("zeros", *BORDERS):
            modes = ", ".join(map(repr, BORDERS))
            raise ValueError(f"Conv2d: padding_mode must be 'zeros', {modes}, got {padding_mode!r}")
        check_counts("Conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"Conv2d: {groups} groups do not divide {in_channels} and {out_channels} channels")
        if init not in ("he", "glorot"):
            raise ValueError(f"Conv2d: init must be 'he' or 'glorot', got {init!r}")
        self.window = Window(
            pair("Conv2d: kernel_size", kernel_size),
            pair("Conv2d: stride", stride),
            pair("Conv2d: padding", padding),
            pair("Conv2d: dilation", dilation),
        )
        if min(*self.window.kernel, *self.window.stride, *self.window.dilation) < 1 or min(self.window.padding) < 0:
            raise ValueError(f"Conv2d: kernel_size, stride and dilation must be positive, and padding from 0 on: {self.window}")
        self.border, self.padding_mode = (0, 0), padding_mode
        if padding_mode != "zeros":  # images are padded before the convolution, whose window then has no padding
            self.border, self.window = self.window.padding, self.window._replace(padding=(0, 0))
        self.groups = int(groups)
        self._shape = (out_channels, in_channels // groups, *self.window.kernel)
        taps = math.prod(self.window.kernel)
        self._bound = math.sqrt(6 / (self._shape[1] * taps + (0 if init == "he" else out_channels // groups * taps)))
        self.weight = Tensor(self.initial(self.generator(rng))["weight"], device, requires_grad=True)
        self.bias = Tensor(np.zeros(out_channels), device, requires_grad=True) if bias else None

    def initial(self, rng):
        return {"weight": uniform(rng, self._bound, self._shape)}

    @property
    def out_channels(self) -> int:
        """O, the number of output channels (filters)."""
        return self.weight.shape[0]

    @property
    def in_channels(self) -> int:
        """C, the number of input channels."""
        return self.weight.shape[1] * self.groups

    @property
    def padding_2d(self) -> tuple[int, int]:
        """The pixels that are added at each edge, along the height and the width."""
        return self.border if any(self.border) else self.window.padding

    def sites(self):
        shape, ungrouped = (self.out_channels, math.prod(self.weight.shape[1:])), self.groups == 1
        return (
            Site("output", "output", shape, (AxisPlan, BernoulliPlan) if ungrouped else (BernoulliPlan,), chosen=True),
            Site("input", "patches", shape, (AxisPlan, BlockPlan) if ungrouped else (AxisPlan,), True, True),
        )

    def forward(self, flow: Flow, context: Context, relu: bool = False, pool: MaxPool2d | None = None) -> Flow:
        """Return act(conv(x) + b), where act is ReLU if `relu`, else the identity, for the parts that the plans keep; if `pool`
        is given, return its output for that.
        """
        flow, channels_last = flow.applied(), isinstance(flow.layout, ChannelsLast)
        if flow.x.ndim != 4 or (flow.indices is None and flow.x.shape[3 if channels_last else 1] != self.in_channels):
            raise ValueError(f"{self!r}: x {flow.x.shape} is not a batch of images ({self.in_channels}, H, W)")
        flow = flow.images() if self.groups == 1 or flow.indices is None else flow.with_(flow.dense()).images()
        if any(self.border):
            flow = flow._replace(x=ops.pad2d(flow.x, padding=self.border, mode=self.padding_mode))
        positions = math.prod((flow.x.shape[0], *self.window.positions(*flow.x.shape[1:3])))
        filters = context.plans.at(self, "output", flow)
        inner = context.plans.at(self, "input", flow, (positions, math.prod(self.weight.shape[1:])))
        rows, blocks = filters if isinstance(filters, DeviceAxis) else None, isinstance(inner, DeviceBlocks)
        apart = None if rows else filters  # random factors come before pooling
        if blocks and flow.indices is not None:
            flow = flow.with_(flow.expanded(), CHANNELS_LAST)
        y = ops.conv2d(
            flow.x,
            self.weight,
            self.bias,
            window=self.window,
            groups=self.groups,
            relu=relu,
            pool=pool.window if pool and not apart else None,
            rows=rows,
            cols=flow.indices,
            **{"blocks" if blocks else "positions": inner},
        )
        flow = flow.with_(y, ChannelsLast(rows), (apart.pending,) if apart else ())
        return pool.forward(flow.before(pool.commutes), context) if pool and apart else flow

    def fuse_with(self, following):
        return _Fused(self).fuse_with(following)

    def cost(self, spec, plans):
        positions = positions_of(self, spec, self.window._replace(padding=self.padding_2d), self.in_channels)
        if self.padding_mode == "reflect" and any(p >= n for p, n in zip(self.border, spec.shape[2:])):
            raise ValueError(f"{self!r}: images {spec.shape[2:]} are too small to be mirrored")
        filters, inner = plans.of(self), plans.of(self, "input")
        rows = filters if isinstance(filters, AxisPlan) else None
        outer = self.out_channels if rows is None else rows.count
        share = 1.0 if spec.plan is None or self.groups > 1 else spec.plan.density
        count = (spec.shape[0] or 1) * math.prod(positions)
        flops = 2.0 * count * outer * math.prod(self.weight.shape[1:]) * share * (1.0 if inner is None else inner.density)
        ends = 4.0 * (math.prod(n or 1 for n in spec.shape) * share + count * outer)
        size, others = 4.0 * self.weight.size, 2 if spec.differentiable else 1
        return (
            Cost(flops, others * flops, ends + size, others * (ends + size)),
            ActivationSpec((spec.shape[0], self.out_channels, *positions), rows, True),
        )

    def reads(self, plans, symbols=None):
        return plans.region(self, self.weight)

    def config(self):
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "kernel_size": self.window.kernel,
            "stride": self.window.stride,
            "padding": self.padding_2d,
            "dilation": self.window.dilation,
            "groups": self.groups,
            "bias": self.bias is not None,
            "padding_mode": self.padding_mode,
        }

    @classmethod
    def shapes(cls, config):
        return (("weight", (config["out_channels"], config["in_channels"] // config["groups"], *config["kernel_size"])),)

    def __repr__(self) -> str:
        kernel, *others = (both[0] if both[0] == both[1] else both for both in self.window._replace(padding=self.padding_2d))
        said = [str(self.in_channels), str(self.out_channels), str(kernel)]
        said += [f"{name}={value}" for name, value, usual in zip(Window._fields[1:], others, (1, 0, 1)) if value != usual]
        said += [f"groups={self.groups}"] * (self.groups > 1) + ["bias=False"] * (self.bias is None)
        said += [f"padding_mode={self.padding_mode!r}"] * (self.padding_mode != "zeros")
        return f"Conv2d({', '.join(said)})"
