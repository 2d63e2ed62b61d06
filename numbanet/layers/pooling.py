"""Pooling of images: MaxPool2d, AvgPool2d, AdaptiveAvgPool2d."""

from __future__ import annotations

from numbanet_kernels.layouts.windows import Bins, CeilWindow, Window, check_pooling

from .. import ops
from ..arguments import is_integer
from ..plans import AxisPlan
from ..tensor import Tensor
from .base import Layer, only
from .flow import ChannelsLast, Cost

Pair = int | tuple[int, int]


def pair(name: str, value: Pair) -> tuple[int, int]:
    """Return (value, value) if `value` is an int, and `value` itself if it is a pair of ints; else raise TypeError."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(is_integer(n) for n in both):
        raise TypeError(f"{name} must be an int or a pair of ints, got {value!r}")
    return int(both[0]), int(both[1])


class Pooling(Layer):
    """Base class: pooling of each channel separately. Compact channels stay compact."""

    window: Window | Bins
    unitwise = True

    @property
    def ceil_mode(self) -> bool:
        """True if the last windows may extend beyond the image."""
        return isinstance(self.window, CeilWindow)

    def pool(self, x: Tensor) -> Tensor:
        """Pool images with channels last: x (N, H, W, C) -> y (N, OH, OW, C)."""
        raise NotImplementedError

    def forward(self, flow, context):
        if not isinstance(flow.layout, ChannelsLast) and flow.x.ndim != 4:
            raise ValueError(self._misfit(flow.x.shape[1:]))
        flow = flow.images()
        return flow._replace(x=self.pool(flow.x))

    def _misfit(self, shape):
        return f"{self!r}: its input is of shape {tuple(shape)} a sample; it takes (C, H, W)"

    def cost(self, spec, plans):
        if len(spec.shape) != 4:
            raise ValueError(self._misfit(spec.shape[1:]))
        n, channels, height, width = spec.shape
        if height is None or width is None:
            return Cost(), spec._replace(shape=(n, channels, None, None))
        positions = self.window.positions(height, width)
        if min(height, width, *positions) < 1:
            raise ValueError(f"{self!r}: its window is larger than its input, images of {height} x {width} pixels")
        held = 4.0 * (n or 1) * ((channels or 1) if spec.plan is None else spec.plan.count)
        size = held * (height * width + positions[0] * positions[1])
        return Cost(0.0, 0.0, size, size), spec._replace(shape=(n, channels, *positions))

    def commutes(self, plan):
        return isinstance(plan, AxisPlan) and plan.scale > 0


class MaxPool2d(Pooling):
    """y = the largest value in each window.   x (N, C, H, W) -> y (N, C, OH, OW)

    Arguments, values and gradients are PyTorch's. Padding is never the maximum. If a window has equal maxima, the first one
    gets the gradient; if it has several NaNs, the last NaN does.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), optional
        Distance between windows; by default kernel_size, so that they do not overlap.
    padding : int or (int, int), default=0
        Pixels added at each edge, at most half the kernel.
    dilation : int or (int, int), default=1
        Distance between the pixels of a window.
    return_indices : bool, default=False
        Only False is supported.
    ceil_mode : bool, default=False
        If True, the last windows may extend beyond the padded image, if they begin before the padding at the end; else they are
        left out.

    Raises
    ------
    ValueError
        If an argument is out of range.
    TypeError
        If a length is not an int.
    """

    recordable = True
    window: Window

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        dilation: Pair = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        only("MaxPool2d", "max_pool of a device returns the indices as well", return_indices=(return_indices, False))
        self.window = (CeilWindow if ceil_mode else Window)(
            pair("MaxPool2d: kernel_size", kernel_size),
            pair("MaxPool2d: stride", kernel_size if stride is None else stride),
            pair("MaxPool2d: padding", padding),
            pair("MaxPool2d: dilation", dilation),
        )
        check_pooling("MaxPool2d", self.window)

    def pool(self, x):
        return ops.max_pool2d(x, window=self.window)

    def config(self):
        return {
            "kernel_size": self.window.kernel,
            "stride": self.window.stride,
            "padding": self.window.padding,
            "dilation": self.window.dilation,
            "ceil_mode": self.ceil_mode,
        }

    def __repr__(self) -> str:
        kernel, stride, padding, dilation = self.window
        beyond = ", ceil_mode=True" * self.ceil_mode
        return f"MaxPool2d({kernel}, stride={stride}, padding={padding}, dilation={dilation}{beyond})"


class AvgPool2d(Pooling):
    """y = the mean of each window.   x (N, C, H, W) -> y (N, C, OH, OW)

    Arguments, values and gradients are PyTorch's.

    Parameters
    ----------
    kernel_size, stride, padding, ceil_mode
        As for `MaxPool2d`, with the same errors; but the padding consists of zeros.
    count_include_pad : bool, default=True
        Whether the zeros of the padding count in the mean.
    divisor_override : None
        Only None is supported.
    """

    recordable = True
    window: Window

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        only("AvgPool2d", "multiply its output", divisor_override=(divisor_override, None))
        self.window = (CeilWindow if ceil_mode else Window)(
            pair("AvgPool2d: kernel_size", kernel_size),
            pair("AvgPool2d: stride", kernel_size if stride is None else stride),
            pair("AvgPool2d: padding", padding),
        )
        self.count_include_pad = bool(count_include_pad)
        check_pooling("AvgPool2d", self.window)

    def pool(self, x):
        return ops.avg_pool2d(x, window=self.window, count_include_pad=self.count_include_pad)

    def config(self):
        return {
            "kernel_size": self.window.kernel,
            "stride": self.window.stride,
            "padding": self.window.padding,
            "count_include_pad": self.count_include_pad,
            "ceil_mode": self.ceil_mode,
        }

    def __repr__(self) -> str:
        kernel, stride, padding, _ = self.window
        counted = ("" if self.count_include_pad else ", count_include_pad=False") + ", ceil_mode=True" * self.ceil_mode
        return f"AvgPool2d({kernel}, stride={stride}, padding={padding}{counted})"


class AdaptiveAvgPool2d(Pooling):
    """y[n, c, i, j] = the mean of region (i, j) of an image of any size.   x (N, C, H, W) -> y (N, C, OH, OW)

    An image is divided into OH x OW regions. Region (i, j) has the pixels (h, w) with floor(i H / OH) <= h <
    ceil((i + 1) H / OH) and floor(j W / OW) <= w < ceil((j + 1) W / OW), as in PyTorch.

    Parameters
    ----------
    output_size : int or (int, int)
        OH and OW.

    Raises
    ------
    ValueError
        If a size is not positive.
    TypeError
        If a size is not an int.
    """

    recordable = True

    def __init__(self, output_size: Pair) -> None:
        self.window = Bins(*pair("AdaptiveAvgPool2d: output_size", output_size))
        check_pooling("AdaptiveAvgPool2d", self.window)

    def pool(self, x):
        return ops.adaptive_avg_pool2d(x, size=self.window)

    def config(self):
        return {"output_size": tuple(self.window)}

    def __repr__(self) -> str:
        return f"AdaptiveAvgPool2d({tuple(self.window)})"
