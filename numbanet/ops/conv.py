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


def _selected(dev: Device, w: Any, rows: DeviceAxis, cols: DeviceAxis) -> tuple[Any, DeviceAxis]:
    """(the weight w restricted to the kept filters and channels, w itself if all are kept; the kept columns of its matrix)."""
    outs, channels, *kernel = w.shape
    taps = math.prod(kernel)
    columns = full_axis(channels * taps, dev) if cols.plan.count == channels else cols.repeated(taps)
    selected = w if rows.plan.count == outs else dev.take_rows(w, rows.indices)
    if cols.plan.count < channels:
        matrix = dev.compact(dev.reshape(selected, (rows.plan.count, columns.plan.n)), columns.indices)
        selected = dev.reshape(matrix, (rows.plan.count, cols.plan.count, *kernel))
    return selected, columns


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

    The sum is over kh, kw and the channels c of o's group; `window` holds kernel, stride, padding and dilation. Plans leave out
    part of the work:

    rows, cols   filters and input channels: x and y are compact and hold only the kept channels
    positions    rows of the im2col matrix (N OH OW, KH KW C): y is 0 at all other positions
    blocks       blocks of the im2col matrix

    With rows or positions, y is multiplied by the plan's scale; with blocks, the sum is.

    Parameters
    ----------
    x : (N, H, W, C)
    w : (O, C / groups, KH, KW)
    b : (O,) or None

    Raises
    ------
    ValueError
        If shapes or plans do not match, or there are groups together with plans of channels or blocks.
    TypeError
        If a plan is of the wrong kind.
    """
    shape = tuple(w.shape)
    if (rows is not None or cols is not None) and (groups > 1 or blocks is not None):
        raise ValueError(f"conv2d: channels of {groups} groups{' and blocks' * (blocks is not None)} cannot be left out")
    rows, cols = (
        (full_axis(n, dev) if plan is None else on("conv2d", plan, dev, DeviceAxis, (n,)))
        for plan, n in ((rows, shape[0]), (cols, shape[1]))
    )
    options: dict[str, Any] = {"window": window, "groups": groups}
    scale, (weight, columns) = rows.plan.scale, _selected(dev, w, rows, cols)
    bias = b if b is None or weight is w else dev.take_rows(b, rows.indices)
    if positions is not None:
        size = x.shape[0] * int(np.prod(window.positions(*x.shape[1:3])))
        axis = on("conv2d", positions, dev, DeviceAxis, (size,))
        options["rows"], scale = axis.indices, scale * axis.plan.scale
    sums_scale = scale
    if blocks is not None:
        parts = on("conv2d", blocks, dev, DeviceBlocks)
        options["blocks"], sums_scale = parts.blocks, scale * parts.plan.scale
    biased = bias if bias is None or scale == 1.0 else dev.affine(bias, mul=scale)
    y = dev.conv2d(x, weight, bias=biased, relu=relu, scale=sums_scale, **options)
    computed: dict[str, Any] = {}  # dw and db, which one call computes together with dx

    def gradients(dy, wants_dx=False):
        dx, computed["w"], computed["b"] = dev.conv2d_grad(
            dy.dense(dev), x, weight, where=y if relu else None, scale=sums_scale, wants_dx=wants_dx, **options
        )
        return dx

    def dw(dy):
        if "w" not in computed:
            gradients(dy)
        values = computed.pop("w")
        if weight is w:
            return values
        return Packed(dev.reshape(values, (rows.plan.count, columns.plan.count)), packing(rows, columns), shape)

    def db(dy):
        if "b" not in computed:
            gradients(dy)
        sums = computed.pop("b") if scale == 1.0 else dev.affine(computed.pop("b"), mul=scale)
        return sums if weight is w else vector_gradient(sums, rows)

    return y, (lambda dy: gradients(dy, True), dw, db)
