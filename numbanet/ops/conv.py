"""Convolutions of images with channels last, x (N, H, W, C) -> y (N, OH, OW, O); dy is the gradient of the result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbanet_kernels.layouts.windows import Window

from ..autograd import op
from ..device import Device
from ..gradients import Packed
from ..plans import AxisPlan, BlockPlan, DevicePlan
from ..plans.on_device import DeviceAxis, DeviceBlocks, full_axis, on, packing
from .linear import vector_gradient


def _own(dev: Device, w: Any, rows: DeviceAxis, cols: DeviceAxis) -> tuple[Any, DeviceAxis]:
    """(the kept filters and channels of a weight; its columns, channels and taps, that are kept)"""
    outs, channels, *kernel = w.shape
    columns = cols.repeated(math.prod(kernel))
    own = w if rows.plan.count == outs else dev.take_rows(w, rows.indices)
    if cols.plan.count < channels:
        kept = dev.compact(dev.reshape(own, (rows.plan.count, columns.plan.n)), columns.indices)
        own = dev.reshape(kept, (rows.plan.count, cols.plan.count, *kernel))
    return own, columns


@op(fuses=True)
def conv2d(
    dev: Device,
    x,
    w,
    b=None,
    *,
    window: Window,
    groups: int = 1,
    relu: bool = False,
    rows: AxisPlan | DevicePlan | None = None,
    cols: AxisPlan | DevicePlan | None = None,
    positions: AxisPlan | DevicePlan | None = None,
    blocks: BlockPlan | DevicePlan | None = None,
):
    """y[n, oh, ow, o] = act(sum x[n, oh sh - ph + kh dh, ow sw - pw + kw dw, c] w[o, c, kh, kw] + b[o]), x 0 outside the image.

    The sum is over kh, kw and the channels c of o's group; stride, padding and dilation are those of the window. What plans
    leave out is not computed:

    rows, cols   filters and input channels: x and y are compact, they hold the kept channels alone
    positions    rows of the input matrix (N OH OW, KH KW C): y is 0 at all other positions
    blocks       blocks of the input matrix

    With rows or positions y is multiplied by the plan's scale; with blocks the sum is.

    Parameters
    ----------
    x : (N, H, W, C)
    w : (O, C / groups, KH, KW)
    b : (O,) or None

    Raises
    ------
    ValueError
        If shapes or plans do not fit together, or there are groups and plans of channels or blocks as well.
    TypeError
        If a plan is of another kind.
    """
    shape = tuple(w.shape)
    if (rows is not None or cols is not None) and (groups > 1 or blocks is not None):
        raise ValueError(f"conv2d: channels of {groups} groups{' and blocks' * (blocks is not None)} cannot be left out")
    rows, cols = (
        (full_axis(n, dev) if plan is None else on("conv2d", plan, dev, DeviceAxis, (n,)))
        for plan, n in ((rows, shape[0]), (cols, shape[1]))
    )
    options: dict[str, Any] = {"window": window, "groups": groups}
    scale, (own, columns) = rows.plan.scale, _own(dev, w, rows, cols)
    own_b = b if b is None or own is w else dev.take_rows(b, rows.indices)
    if positions is not None:
        size = x.shape[0] * int(np.prod(window.positions(*x.shape[1:3])))
        places = on("conv2d", positions, dev, DeviceAxis, (size,))
        options["rows"], scale = places.alone, scale * places.plan.scale
    sums_scale = scale
    if blocks is not None:
        parts = on("conv2d", blocks, dev, DeviceBlocks)
        options["blocks"], sums_scale = parts.blocks, scale * parts.plan.scale
    biased = own_b if own_b is None or scale == 1.0 else dev.affine(own_b, mul=scale)
    y = dev.conv2d(x, own, bias=biased, relu=relu, scale=sums_scale, **options)
    found: dict[str, Any] = {}

    def gradients(dy, wants_dx=False):
        dx, found["w"], found["b"] = dev.conv2d_grad(
            dy.dense(dev), x, own, where=y if relu else None, scale=sums_scale, wants_dx=wants_dx, **options
        )
        return dx

    def dw(dy):
        if "w" not in found:
            gradients(dy)
        values = found.pop("w")
        if own is w:
            return values
        return Packed(dev.reshape(values, (rows.plan.count, columns.plan.count)), packing(rows, columns), shape)

    def db(dy):
        if "b" not in found:
            gradients(dy)
        sums = found.pop("b") if scale == 1.0 else dev.affine(found.pop("b"), mul=scale)
        return sums if own is w else vector_gradient(sums, rows)

    return y, (lambda dy: gradients(dy, True), dw, db)
