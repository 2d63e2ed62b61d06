"""Matrix products with a dense weight, or with the part of a weight that a plan keeps.

The vjps of these ops take the gradient dy of the result in any form. If dy is a product that is not computed yet (`Pending`),
the vjp fuses a ReLU mask and a scale into that product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ..autograd import as_floats, common_device, op
from ..device import Device
from ..gradients import Columns, Gradient, Packed, Pending
from ..plans import AxisPlan, DevicePlan, TilePlan
from ..plans.on_device import DeviceAxis, DeviceTiles, full_axis, on, packing
from ..tensor import Tensor
from .shape import broadcast_shape, broadcast_to, reshape


def memoize(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls f(dy) once and caches the result, which several vjps of an op share."""
    memory: list[Any] = []

    def shared(dy: Any) -> Any:
        if not memory:
            memory.append(f(dy))
        return memory[0]

    return shared


def _weight_vjps(dev: Device, x: Any, b: Any, dz: Callable[[Any], Any], db_scale: float = 1.0) -> tuple[Callable, Callable]:
    """Return the two functions dy -> dw and dy -> db for z = x w.T + b, where dz(dy) is the gradient of z. The product for dw
    also computes db; if w is frozen, no such product is made, and db is summed alone.
    """
    pending: list[Any] = []

    def dw(dy):
        if b is None:
            return dev.gemm(dz(dy), x, ta=True)
        values, sums = dev.gemm_dw(dz(dy), x, db_scale)
        pending.append(sums)
        return values

    return dw, lambda dy: pending.pop() if pending else dev.sum_rows(dz(dy), db_scale)


def _check(name: str, x: Any, w: Any, b: Any, width: int | None = None) -> None:
    """Raise ValueError unless the shapes x (N, width), w (O, I) and b (O,) match; if `width` is None, it is I."""
    fits = len(x.shape) == len(w.shape) == 2 and (b is None or tuple(b.shape) == (w.shape[0],))
    if not (fits and x.shape[1] == (w.shape[1] if width is None else width)):
        extra = ("" if b is None else f" and b {tuple(b.shape)}") + ("" if width is None else f" with {width} inputs kept")
        raise ValueError(f"{name}: x {tuple(x.shape)} does not match w {tuple(w.shape)}{extra}")


# --- dense ------------------------------------------------------------------------------------------------------------
@op
def _matmul(dev: Device, a, b):
    return dev.gemm(a, b), (lambda dy: dev.gemm(dy, b, tb=True), lambda dy: dev.gemm(a, dy, ta=True))


def matmul(a: Any, b: Any) -> Tensor:
    """y[…, m, n] = sum_k a[…, m, k] b[…, k, n]. Axes before the last two broadcast. Vectors are treated as by NumPy's matmul.

    Raises
    ------
    ValueError
        If the inner lengths differ, or the axes before do not broadcast.
    """
    dev = common_device("matmul", (a, b))
    a, b = (as_floats(x) if isinstance(x, Tensor) else Tensor(x, dev) for x in (a, b))
    if not (a.ndim and b.ndim and a.shape[-1] == b.shape[max(b.ndim - 2, 0)]):
        raise ValueError(f"matmul: a {a.shape} does not match b {b.shape}")
    if b.ndim > 2:
        return _batched(a, b)
    rows = reshape(a, shape=(math.prod(a.shape[:-1]), a.shape[-1]))
    columns = b if b.ndim == 2 else reshape(b, shape=(b.shape[0], 1))
    return reshape(_matmul(rows, columns), shape=a.shape[:-1] + b.shape[1:])


def _batched(a: Tensor, b: Tensor) -> Tensor:
    """y[…, m, n] = sum_k a[…, m, k] b[…, k, n] for b with more than two axes."""
    rows = a if a.ndim > 1 else reshape(a, shape=(1, a.shape[0]))
    before = broadcast_shape("matmul", rows.shape[:-2], b.shape[:-2])
    x, w = (
        reshape(broadcast_to(part, shape=(*before, *part.shape[-2:])), shape=(math.prod(before), *part.shape[-2:]))
        for part in (rows, b)
    )
    return reshape(_products(x, w), shape=(*before, *a.shape[-2:-1], b.shape[-1]))


@op
def _products(dev: Device, a, b):
    """y[i] = a[i] b[i] for each matrix."""

    def each(x: Any, w: Any, ta: bool = False, tb: bool = False) -> Any:
        shape = x.shape[2 if ta else 1], w.shape[1 if tb else 2]
        y = dev.empty((x.shape[0], *shape))
        for i in range(x.shape[0]):
            left, right, out = (dev.reshape(dev.part(array, i, i + 1), array.shape[1:]) for array in (x, w, y))
            dev.gemm(left, right, ta, tb, out=out)
        return y

    return each(a, b), (lambda dy: each(dy, b, tb=True), lambda dy: each(a, dy, ta=True))


@op(fuses=True)
def linear(dev: Device, x, w, b=None, *, relu: bool = False, scale: float = 1.0, columns: bool = False, few: bool = False):
    """y[n, o] = act(scale sum_i x[n, i] w[o, i] + b[o]).   x (N, I), w (O, I), b (O,) or None -> y (N, O), scale > 0

    act is ReLU if `relu`, else the identity. If `few`, the y of a sample on the CPU does not depend on N, to the last bit, and
    a product of few samples is fast. If `columns`, the gradient dy may be a `Columns`, which holds only some columns; dx, dw
    and db are then products of these columns. This requires relu=False and scale=1.
    """
    _check("linear", x, w, b)
    y = dev.gemm_few(x, w, b, relu, scale) if few else dev.gemm(x, w, tb=True, bias=b, relu=relu, scale=scale)
    dz = memoize(lambda dy: dy.through(dev, y if relu else None, scale))
    dw, db = _weight_vjps(dev, x, b, dz, 1 / scale)  # dz contains the factor `scale`, which dx and dw need and db must not have
    vjps = lambda dy: Pending(functools.partial(dev.gemm, dz(dy), w), tuple(x.shape)), dw, db
    return y, _of_columns(dev, x, w, b, None, vjps) if columns else vjps


# --- planned ----------------------------------------------------------------------------------------------------------
def _listed_vjps(dev: Device, x: Any, w: Any, b: Any, dz: Callable[[Any], Any], rows: DeviceAxis, cols: DeviceAxis) -> tuple:
    """Return the vjps of y = x w[rows, cols].T + b[rows]; dz(dy) is the gradient of this product without act and scale."""
    shape, at = tuple(w.shape), (rows.index, cols.index)
    dw, sums = _weight_vjps(dev, x, b, dz)
    return (
        lambda dy: Pending(functools.partial(dev.gemm_rows_dx, dz(dy), w, *at), tuple(x.shape)),
        lambda dy: Packed(dw(dy), packing(rows, cols), shape),
        lambda dy: vector_gradient(sums(dy), rows),
    )


def _of_columns(dev: Device, x: Any, w: Any, b: Any, cols: DeviceAxis | None, vjps: tuple) -> tuple:
    """Return vjps that take a dense dy as `vjps` do, and also a `Columns` dy, of which they use only the stored columns."""
    listed = memoize(lambda dy: _listed_vjps(dev, x, w, b, lambda dy: dy.values, dy.axis, cols or full_axis(w.shape[1], dev)))
    return tuple(
        (lambda dy, i=i, vjp=vjp: listed(dy)[i](dy) if isinstance(dy, Columns) else vjp(dy)) for i, vjp in enumerate(vjps)
    )


def _axis(plan: AxisPlan | DevicePlan | None, n: int, dev: Device) -> DeviceAxis:
    return full_axis(n, dev) if plan is None else on("linear_rows", plan, dev, DeviceAxis, (n,))


@op(fuses=True)
def linear_rows(
    dev: Device,
    x,
    w,
    b=None,
    *,
    rows: AxisPlan | DevicePlan | None = None,
    cols: AxisPlan | DevicePlan | None = None,
    relu: bool = False,
    scale: float | None = None,
    columns: bool = False,
):
    """y[n, k] = scale act(sum_j x[n, j] w[r[k], c[j]] + b[r[k]]), where r = rows.indices() and c = cols.indices().

    The plan `rows` keeps K outputs, and `cols` keeps J inputs: x (N, J), w (O, I), b (O,) or None -> y (N, K). x and y are
    compact: x holds only the kept inputs, y only the kept outputs. If a plan is None, the whole axis is kept. act is ReLU if
    `relu`, else the identity. `scale` is rows.scale by default. If `columns`, dy may be a `Columns` gradient, as in `linear`;
    `rows` must then be None.

    Raises
    ------
    ValueError
        If a plan's length does not match the weight's axis, or x does not have the inputs that `cols` keeps.
    TypeError
        If a plan is not an AxisPlan.
    """
    rows, cols = _axis(rows, w.shape[0], dev), _axis(cols, w.shape[1], dev)
    _check("linear_rows", x, w, b, cols.plan.count)
    scale = rows.plan.scale if scale is None else scale
    y = dev.gemm_rows(x, w, rows.index, cols.index, bias=b, relu=relu, scale=scale)
    vjps = _listed_vjps(dev, x, w, b, memoize(lambda dy: dy.through(dev, y if relu else None, scale)), rows, cols)
    return y, _of_columns(dev, x, w, b, cols, vjps) if columns else vjps


def vector_gradient(values: Any, axis: DeviceAxis) -> Packed:
    """Return the gradient of a vector, such as a bias, from its values (K,) at the K indices that `axis` keeps."""
    dev = axis.device
    return Packed(dev.reshape(values, (1, axis.plan.count)), packing(full_axis(1, dev), axis), axis.plan.shape)


@op(fuses=True)
def _linear_tiles(dev: Device, x, w, b=None, *, plan: DeviceTiles, relu: bool, blocks: Any):
    _check("linear_tiles", x, w, b)
    shape, pattern, scale, lists = tuple(w.shape), plan.plan.pattern, plan.plan.scale, plan.tiles
    blocks = dev.tile_blocks(w, pattern, lists) if blocks is None else blocks
    inputs = dev.tile_inputs(x, pattern, lists)
    y = dev.gemm_tiles(x, w, pattern, b=b, relu=relu, scale=scale, blocks=blocks, inputs=inputs, lists=lists)

    @memoize
    def prepared(dy: Gradient):
        given = dy.product if isinstance(dy, Pending) else dy.dense(dev)
        return dev.tile_outputs(given, pattern, scale, y if relu else None, lists)

    def product(like_dy, outputs, where=None, scale=1.0):
        shared = {"blocks": blocks, "outputs": outputs, "lists": lists}
        values = dev.gemm_tiles_dx(like_dy, w, pattern, scale=plan.plan.scale, where=where, **shared)
        return values if scale == 1.0 else dev.affine(values, mul=scale)

    @memoize
    def both(dy):
        like_dy, outputs = prepared(dy)
        shared = {"blocks": blocks, "inputs": inputs, "outputs": outputs, "lists": lists}
        return dev.gemm_tiles_dw(like_dy, x, pattern, scale=scale, **shared)

    return y, (
        lambda dy: Pending(functools.partial(product, *prepared(dy)), tuple(x.shape)),
        lambda dy: Packed(both(dy)[0], plan.packing, shape),
        lambda dy: both(dy)[1],
    )


def linear_tiles(
    x: Any, w: Any, b: Any = None, *, plan: TilePlan | DevicePlan, relu: bool = False, blocks: Any = None
) -> Tensor:
    """y[n, o] = act(scale sum_i x[n, i] (w * M)[o, i] + b[o]), where M = plan.mask() and scale = plan.scale.

    x (N, I), w (O, I), b (O,) or None -> y (N, O). act is ReLU if `relu`, else the identity. If plan.dp is 1, all tiles are
    kept, and this op is `linear`. `blocks` holds the kept tiles if an update has packed them (`Optimizer.launch`); if it is
    None, this op packs them.

    Raises
    ------
    ValueError
        If the plan is for another weight shape, or x does not match.
    TypeError
        If the plan is not a TilePlan.
    """
    dev = common_device("linear_tiles", (x, w, b))
    tiles = on("linear_tiles", plan, dev, DeviceTiles, tuple(w.shape))
    if tiles.plan.dp > 1:
        return _linear_tiles(x, w, b, plan=tiles, relu=relu, blocks=blocks)
    return linear(x, w, b, relu=relu, scale=tiles.plan.scale)
