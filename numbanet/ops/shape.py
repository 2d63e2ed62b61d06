"""Operations that reshape, move or select elements; dy is the gradient of the result."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbanet_kernels.layouts.packed import Packing

from ..arguments import host_array, is_array, is_integer
from ..autograd import op
from ..device import Device, device
from ..gradients import LookedUp
from ..plans import AxisPlan, DevicePlan
from ..plans.on_device import DeviceAxis, full_axis, on
from ..tensor import Tensor
from .order import Order


def axes_of(name: str, x: Any, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return `axis` as a sorted tuple of non-negative numbers of axes of x; None stands for all axes."""
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else axis
    if any(not -x.ndim <= a < x.ndim for a in axes):
        raise ValueError(f"{name}: axis {axis} is not among the {x.ndim} axes of {tuple(x.shape)}")
    return tuple(sorted({a % x.ndim for a in axes}))


def broadcast_shape(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which arrays of the shapes a and b broadcast; raise ValueError if they do not."""
    width = max(len(a), len(b))
    pairs = list(zip((1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ValueError(f"{name}: shapes {a} and {b} do not broadcast")
    return tuple(n if m == 1 else m for m, n in pairs)


@op
def reshape(dev: Device, x, *, shape: Sequence[int]):
    """y = x with another shape; one entry may be -1."""
    shape, before = tuple(map(operator.index, shape)), x.shape
    known, open_ = math.prod(n for n in shape if n != -1), shape.count(-1)
    if min(shape, default=0) < -1 or open_ > 1 or (known == 0 or x.size % known if open_ else known != x.size):
        raise ValueError(f"reshape: a tensor of shape {tuple(before)} cannot take the shape {shape}")
    return dev.reshape(x, shape), (lambda dy: dev.reshape(dy, before),)


@op
def transpose(dev: Device, x, *, axes: Sequence[int] | None = None):
    """y[i_axes[0], i_axes[1], …] = x[i_0, i_1, …]; by default y has the axes of x in reversed order."""
    axes = tuple(range(x.ndim))[::-1] if axes is None else tuple(a + x.ndim if a < 0 else a for a in axes)
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {x.ndim} axes of {tuple(x.shape)}")
    inverse = tuple(axes.index(i) for i in range(x.ndim))
    return dev.transpose(x, axes), (lambda dy: dev.transpose(dy, inverse),)


@op
def broadcast_to(dev: Device, x, *, shape: Sequence[int]):
    """y[…, i, …] = x[…, 0, …] along every axis that is missing in x or has length 1 there."""
    shape, before = tuple(shape), tuple(x.shape)
    if broadcast_shape("broadcast_to", before, shape) != shape:
        raise ValueError(f"broadcast_to: a tensor of shape {before} cannot take the shape {shape}")
    added = len(shape) - len(before)
    spread = tuple(i for i, n in enumerate(shape) if i < added or (before[i - added] == 1 and n != 1))
    return dev.broadcast_to(x, shape), (lambda dy: dev.reshape(dev.sum(dy, axis=spread), before) if spread else dy,)


@op
def getitem(dev: Device, x, *, key):
    """y = x[key]; key as in NumPy: integers, slices, integer arrays and tensors, boolean masks.

    Raises
    ------
    TypeError
        If a key is a float tensor, for example the mask of a comparison.
    """
    key, shape = tuple(map(_index, key)) if isinstance(key, tuple) else _index(key), x.shape
    return dev.getitem(x, key), (lambda dy: dev.putitem(dy, key, shape),)


def _index(key: Any) -> Any:
    """Convert one part of a key to an index of NumPy."""
    if not isinstance(key, Tensor):
        return host_array("x[key]", key) if is_array(key) and not isinstance(key, (np.ndarray, np.generic)) else key
    if key.dtype == np.float32:
        raise TypeError("x[key]: a float tensor is not an index; for a mask m write x[m.numpy() != 0], or where(m, x, 0)")
    return key.numpy()


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """y = the tensors joined along `axis`; their lengths along all other axes must be equal."""
    if not tensors:
        raise ValueError("concatenate: needs at least one tensor")
    return _concatenate(*tensors, axis=axis)


@op
def _concatenate(dev: Device, *xs, axis):
    (axis,) = axes_of("concatenate", xs[0], axis)
    others = {tuple(n for i, n in enumerate(x.shape) if i != axis) for x in xs}
    if len(others) > 1:
        raise ValueError(f"concatenate: shapes {[tuple(x.shape) for x in xs]} differ in another axis than {axis}")
    stops = [sum(x.shape[axis] for x in xs[: i + 1]) for i in range(len(xs))]
    before = (slice(None),) * axis
    keys = [(*before, slice(stop - x.shape[axis], stop)) for x, stop in zip(xs, stops)]
    return dev.concatenate(xs, axis), tuple(lambda dy, key=key: dev.getitem(dy, key) for key in keys)


# --- compact and dense activations ------------------------------------------------------------------------------------
def expand(x: Tensor, *, plan: AxisPlan | DevicePlan) -> Tensor:
    """y[…, i_k] = x[…, k], where i_k is the k-th index that the plan keeps; y is 0 at dropped indices.   (…, K) -> (…, n)

    y is the dense form of the compact activation x.

    Raises
    ------
    ValueError
        If the last axis of x does not have the plan's number of kept entries.
    """
    if x.ndim == 2:
        return _expand(x, plan=plan)
    rows = _expand(reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1] if x.ndim else 1)), plan=plan)
    return reshape(rows, shape=(*x.shape[:-1], rows.shape[-1]))


@op
def _expand(dev: Device, x, *, plan):
    axis = on("expand", plan, dev, DeviceAxis)  # TypeError for another kind of plan
    if x.shape[1] != axis.plan.count:
        raise ValueError(f"expand: x {tuple(x.shape)} does not hold the {axis.plan.count} entries that {axis.plan} keeps")
    return dev.expand(x, axis.inverse), (lambda dy: dev.compact(dy, axis.indices),)


def compact(x: Tensor, *, plan: AxisPlan | DevicePlan) -> Tensor:
    """y[…, k] = x[…, i_k], where i_k is the k-th index that the plan keeps.   (…, n) -> (…, K)

    y is the compact form of the dense activation x.

    Raises
    ------
    ValueError
        If the last axis of x does not have the plan's length.
    """
    if x.ndim == 2:
        return _compact(x, plan=plan)
    rows = _compact(reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1] if x.ndim else 1)), plan=plan)
    return reshape(rows, shape=(*x.shape[:-1], rows.shape[-1]))


@op
def _compact(dev: Device, x, *, plan):
    axis = on("compact", plan, dev, DeviceAxis, (x.shape[1],))
    return dev.compact(x, axis.indices), (lambda dy: dev.expand(dy, axis.inverse),)


@op
def shuffle(dev: Device, x, *, order: Order):
    """y[n, j] = (x - order.mean)[n, order.order[j]].   x (N, I) -> y (N, I)

    Raises
    ------
    ValueError
        If x is not (N, I).
    """
    if len(x.shape) != 2 or x.shape[1] != order.size:
        raise ValueError(f"shuffle: x {tuple(x.shape)} must have two axes, the last one of {order.size} features")
    forwards, back, shift = order.views(dev)
    return dev.compact(x, forwards, shift), (lambda dy: dev.compact(dy, back),)


# --- rows of a table --------------------------------------------------------------------------------------------------
def padding_row(name: str, padding: int | None, rows: int) -> int | None:
    """Return the index `padding` of a row as a non-negative number, if it is not None; a negative index counts from the end."""
    if padding is None:
        return None
    if not is_integer(padding):
        raise TypeError(f"{name} must be an integer or None, got {padding!r}")
    if not -rows <= padding < rows:
        raise ValueError(f"{name} must be a row of the table, from {-rows} to {rows - 1}, got {padding}")
    return int(padding) % rows


@op
def embedding(
    dev: Device, w, *, ids: Any, cols: AxisPlan | DevicePlan | None = None, padding: int | None = None, checked: bool = False
):
    """y[…, k] = w[ids[…], c_k], where c_k is the k-th column that `cols` keeps; by default all columns.

    w (V, D), ids (…) integers of the host or int32 of the device -> y (…, K). The gradient holds only the rows of w that were
    looked up, without the row `padding`: row v is the sum of dy[…] over all look-ups with ids[…] = v.

    Parameters
    ----------
    padding : int, optional
        A row of w; a negative one counts from the end.
    checked : bool, default=False
        True if ids are int32 on the device and already checked. Then they are not downloaded, so that the pass can be recorded,
        and an id that is out of range is clamped.

    Raises
    ------
    ValueError
        If an id is not in 0 … V - 1, padding not in -V … V - 1, or `cols` does not match the second axis of w.
    TypeError
        If the ids, or padding, are not integers.
    """
    padding = padding_row("embedding: padding", padding, w.shape[0])
    cols = full_axis(w.shape[1], dev) if cols is None else on("embedding", cols, dev, DeviceAxis, (w.shape[1],))
    host = None if checked else _symbols(dev, ids, w.shape[0])
    ids = ids if checked else dev.upload(host)
    flat = dev.reshape(ids, (ids.size,))
    width, y = cols.plan.count, dev.take_rows(w, flat)
    y = dev.reshape(y if width == w.shape[1] else dev.compact(y, cols.indices), (*ids.shape, width))

    def dw(dy):
        grouped = (
            dev.group_rows(flat, w.shape[0], padding)
            if checked
            else map(dev.upload, device("cpu").group_rows(host.reshape(-1), w.shape[0], padding))
        )  # this sorts only the rows that were looked up
        order, starts, inverse = grouped
        values = dev.sum_by_row(dev.reshape(dy, (flat.size, width)), order, starts)
        return LookedUp(values, Packing(inverse, full_axis(w.shape[0], dev).lists.classes, *cols.columns), tuple(w.shape))

    return y, (dw,)


def _symbols(dev: Device, ids: Any, rows: int) -> np.ndarray:
    """Return the ids as an int32 array on the host; raise an error unless they are integers in 0 … rows - 1."""
    host = dev.download(ids) if hasattr(ids, "copy_to_host") else host_array("embedding: ids", ids)
    if host.dtype.kind not in "iu":
        raise TypeError(
            f"embedding: ids are {host.dtype}, not integers; Tensor(...) makes float32, use Tensor.wrap(integers, "
            "device) instead; in a network, a layer of your own that calls an Embedding sets its attribute `symbols`, the "
            "number of different integers that it takes"
        )
    if host.size and not (host.min() >= 0 and host.max() < rows):
        raise ValueError(f"embedding: ids from {host.min()} to {host.max()} do not fit a table of {rows} rows")
    return host.astype(np.int32)
