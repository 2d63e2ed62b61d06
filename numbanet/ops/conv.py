"""Convolutions of images with channels last, x (N, H, W, C) -> y (N, OH, OW, O); dy is the gradient of the result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from numbanet_kernels.layouts.windows import Window

from ..autograd import op, recording
from ..device import Device
from ..gradients import Packed
from ..plans import AxisPlan, BlockPlan, DevicePlan
from ..plans.on_device import DeviceAxis, DeviceBlocks, full_axis, on, packing
from .linear import vector_gradient


def _selected(dev: Device, w: Any, rows: DeviceAxis, cols: DeviceAxis) -> tuple[Any, DeviceAxis]:
    """Return (selected, columns). `selected` is the weight w restricted to the filters that `rows` keeps and the channels that
    `cols` keeps; it is w itself if all are kept. `columns` are the kept columns of w as a matrix (O, C KH KW).
    """
    outs, channels, *kernel = w.shape
    taps = math.prod(kernel)
    columns = full_axis(channels * taps, dev) if cols.plan.count == channels else cols.repeated(taps)
    selected = w if rows.plan.count == outs else dev.take_rows(w, rows.indices)
    if cols.plan.count < channels:
        matrix = dev.compact(dev.reshape(selected, (rows.plan.count, columns.plan.n)), columns.indices)
        selected = dev.reshape(matrix, (rows.plan.count, cols.plan.count, *kernel))
    return selected, columns


def _parts(
    dev: Device, x: Any, window: Window, positions: AxisPlan | DevicePlan | None, blocks: BlockPlan | DevicePlan | None
) -> tuple[dict[str, Any], float, float]:
    """Return (lists, scale, sums_scale). `lists` are the keyword arguments that tell the device which part of the im2col matrix
    of x to compute; y is multiplied by `scale`, and the sums of products by `sums_scale`.
    """
    lists, scale, sums_scale = {}, 1.0, 1.0
    if positions is not None:
        size = x.shape[0] * math.prod(window.positions(*x.shape[1:3]))
        axis = on("conv2d", positions, dev, DeviceAxis, (size,))
        lists["rows"], scale = axis.indices, axis.plan.scale
    if blocks is not None:
        kept = on("conv2d", blocks, dev, DeviceBlocks)
        lists["blocks"], sums_scale = kept.blocks, kept.plan.scale
    return lists, scale, sums_scale


def _vjps(dev: Device, db_scale: float, back: Callable[..., tuple]) -> tuple[Callable, Callable, Callable]:
    """Return the vjps of a convolution. The function back(dy, wants_dx=…) computes dx, dw and db in one call."""
    computed: dict[str, Any] = {}  # dw and db, which are computed together with dx

    def gradients(dy, wants_dx):
        dx, computed["w"], computed["b"] = back(dy.dense(dev), wants_dx=wants_dx)
        return dx

    def parameter(name, dy):
        if name not in computed:
            gradients(dy, False)
        return computed.pop(name)

    def db(dy):
        sums = parameter("b", dy)
        return sums if db_scale == 1.0 else dev.affine(sums, mul=db_scale)

    return lambda dy: gradients(dy, True), lambda dy: parameter("w", dy), db


def _gradient(grad: Callable[..., tuple], given: tuple, dy: Any, **options: Any) -> tuple:
    return grad(dy, *given, **options)


def _convolved(
    dev: Device, x: Any, w: Any, bias: Any, relu: bool, pool: Window | None, options: dict[str, Any]
) -> tuple[Any, Callable[..., tuple]]:
    """Return y, after pooling if `pool` is given, and the function that `_vjps` takes."""
    if pool is None:
        y = dev.conv2d(x, w, bias=bias, relu=relu, **options)
        return y, functools.partial(_gradient, dev.conv2d_grad, (x, w), where=y if relu else None, **options)
    options = {**options, "pool": pool, "relu": relu}
    y, places = dev.conv2d_max_pool(x, w, bias=bias, wants_places=recording(), **options)
    return y, functools.partial(_gradient, dev.conv2d_max_pool_grad, (y, places, x, w), **options)


def _packed(vjps: tuple[Callable, Callable, Callable], rows: DeviceAxis, columns: DeviceAxis, shape: tuple[int, ...]) -> tuple:
    """Return vjps whose dw and db are packed gradients of a weight of shape `shape` and its bias. `vjps` compute dw and db of
    the kept part: the rows `rows` and the columns `columns` of the weight's matrix.
    """
    dx, dw, db = vjps

    def packed_dw(dy):
        matrix = rows.device.reshape(dw(dy), (rows.plan.count, columns.plan.count))
        return Packed(matrix, packing(rows, columns), shape)

    return dx, packed_dw, lambda dy: vector_gradient(db(dy), rows)


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
    pool: Window | None = None,
    rows: AxisPlan | DevicePlan | None = None,
    cols: AxisPlan | DevicePlan | None = None,
    positions: AxisPlan | DevicePlan | None = None,
    blocks: BlockPlan | DevicePlan | None = None,
):
    """y[n, oh, ow, o] = act(sum x[n, oh sh - ph + kh dh, ow sw - pw + kw dw, c] w[o, c, kh, kw] + b[o])

    The sum is over kh, kw and the channels c of the group of o; x is 0 outside the image. `window` holds the kernel (KH, KW),
    the stride (sh, sw), the padding (ph, pw) and the dilation (dh, dw). act is ReLU if `relu`, else the identity. If `pool`
    is given, the maximum of y in each of these windows is returned (`max_pool2d`). Plans leave out part of the work:

    rows, cols   keep filters and input channels: y and x are compact and hold only the kept channels
    positions    keeps rows of the im2col matrix (N OH OW, KH KW C): y is 0 at all other positions
    blocks       keeps blocks of the im2col matrix

    If `rows` or `positions` is given, y is multiplied by the scale of the plan; if `blocks` is given, the sum is.

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
    if (rows is not None or cols is not None) and (groups > 1 or blocks is not None):
        raise ValueError(f"conv2d: channels of {groups} groups{' and blocks' * (blocks is not None)} cannot be left out")
    rows, cols = (
        (full_axis(n, dev) if plan is None else on("conv2d", plan, dev, DeviceAxis, (n,)))
        for plan, n in zip((rows, cols), w.shape)
    )
    weight, columns = _selected(dev, w, rows, cols)
    lists, scale, sums_scale = _parts(dev, x, window, positions, blocks)
    scale *= rows.plan.scale
    bias = b if b is None or weight is w else dev.take_rows(b, rows.indices)
    biased = bias if bias is None or scale == 1.0 else dev.affine(bias, mul=scale)
    options = {"window": window, "groups": groups, "scale": scale * sums_scale, **lists}
    y, back = _convolved(dev, x, weight, biased, relu, pool, options)
    vjps = _vjps(dev, scale, back)
    return y, vjps if weight is w else _packed(vjps, rows, columns, tuple(w.shape))
