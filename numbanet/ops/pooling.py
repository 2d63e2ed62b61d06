"""Pooling of images, channels last; dy is the gradient of the result."""

from __future__ import annotations

from numbanet_kernels.layouts.windows import Bins, Window

from ..autograd import op
from ..device import Device


@op
def max_pool2d(dev: Device, x, *, window: Window):
    """y[n, oh, ow, c] = max of x[n, h, w, c] over the pixels in the window; padding is never the maximum.

    x (N, H, W, C) -> y (N, OH, OW, C). The gradient goes to the first maximal pixel, or to the last NaN.

    Raises
    ------
    ValueError
        If x does not have four axes, or is smaller than the window, or padding is more than half the kernel.
    """
    y, argmax = dev.max_pool(x, window)
    shape = tuple(x.shape)
    return y, (lambda dy: dev.max_pool_grad(dy, argmax, window, shape),)


@op
def avg_pool2d(dev: Device, x, *, window: Window | Bins, count_include_pad: bool = True):
    """y[n, oh, ow, c] = mean of x[n, h, w, c] over the pixels in the window.

    x (N, H, W, C) -> y (N, OH, OW, C). If `count_include_pad`, padding counts as pixels of value 0; else it is left out of the
    mean.

    Raises
    ------
    ValueError
        If x does not have four axes, or is smaller than the window, padding is more than half the kernel, or the window is
        dilated.
    """
    y, shape = dev.avg_pool(x, window, count_include_pad), tuple(x.shape)
    return y, (lambda dy: dev.avg_pool_grad(dy, window, shape, count_include_pad),)


def adaptive_avg_pool2d(x, *, size: tuple[int, int]):
    """y[n, i, j, c] = mean of x[n, h, w, c] over floor(i H / OH) <= h < ceil((i + 1) H / OH) and, for the width, over
    floor(j W / OW) <= w < ceil((j + 1) W / OW).

    x (N, H, W, C) -> y (N, OH, OW, C), where size = (OH, OW).

    Raises
    ------
    ValueError
        If x has other axes, or a size is not positive.
    """
    return avg_pool2d(x, window=Bins(*size))
