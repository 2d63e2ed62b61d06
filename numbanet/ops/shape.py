"""Operations that change the shape or the place of elements; dy is the gradient of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbanet_kernels.layouts.packed import Packing

from ..arguments import is_integer
from ..autograd import op
from ..device import Device, device
from ..gradients import Packed
from ..plans import AxisPlan, DevicePlan
from ..plans.on_device import DeviceAxis, full_axis, on
from ..tensor import Tensor
from .order import Order


def axes_of(name: str, x: Any, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes, from 0 on and in order; None stands for all."""
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else axis
    if any(not -x.ndim <= a < x.ndim for a in axes):
        raise ValueError(f"{name}: axis {axis} is not among the {x.ndim} axes of {tuple(x.shape)}")
    return tuple(sorted({a % x.ndim for a in axes}))


def broadcast_shape(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that both broadcast to, or ValueError."""
    width = max(len(a), len(b))
    pairs = list(zip((1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ValueError(f"{name}: shapes {a} and {b} do not broadcast")
    return tuple(n if m == 1 else m for m, n in pairs)


@op
def reshape(dev: Device, x, *, shape: Sequence[int]):
    """y = x under another shape; one entry may be -1."""
    shape, before = tuple(shape), x.shape
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1 or (known != x.size if -1 not in shape else known == 0 or x.size % known):
        raise ValueError(f"reshape: a tensor of shape {tuple(before)} cannot take the shape {shape}")
    return dev.reshape(x, shape), (lambda dy: dev.reshape(dy, before),)


@op
def transpose(dev: Device, x, *, axes: Sequence[int] | None = None):
    """y[i_axes[0], i_axes[1], …] = x[i_0, i_1, …]; axes reversed by default."""
    axes = tuple(range(x.ndim))[::-1] if axes is None else tuple(a + x.ndim if a < 0 else a for a in axes)
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the {x.ndim} axes of {tuple(x.shape)}")
    inverse = tuple(axes.index(i) for i in range(x.ndim))
    return dev.transpose(x, axes), (lambda dy: dev.transpose(dy, inverse),)


@op
def broadcast_to(dev: Device, x, *, shape: Sequence[int]):
    """y[…, i, …] = x[…, 0, …] along every axis that x lacks or has with length 1."""
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
        If a key is a tensor of floats, such as a mask that a comparison gave.
    """
    key, shape = tuple(map(_index, key)) if isinstance(key, tuple) else _index(key), x.shape
    return dev.getitem(x, key), (lambda dy: dev.putitem(dy, key, shape),)


def _index(key: Any) -> Any:
    """A part of a key as NumPy takes it."""
    if not isinstance(key, Tensor):
        return key
    if key.dtype == np.float32:
        raise TypeError("x[key]: a tensor of floats is no index; of a mask m write x[m.numpy() != 0], or where(m, x, 0)")
    return key.numpy()


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors joined along one axis; the other axes must agree."""
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
    """y[…, plan's k-th index] = x[…, k], 0 where dropped: the dense form of a compact activation.   (…, K) -> (…, n)

    Raises
    ------
    ValueError
        If the last axis of x has not the length that the plan keeps.
    """
    if x.ndim == 2:
        return _expand(x, plan=plan)
    rows = _expand(reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1] if x.ndim else 1)), plan=plan)
    return reshape(rows, shape=(*x.shape[:-1], rows.shape[-1]))


@op
def _expand(dev: Device, x, *, plan):
    kept = on("expand", plan, dev, DeviceAxis)
    if x.shape[1] != kept.plan.count:
        raise ValueError(f"expand: x {tuple(x.shape)} does not hold the {kept.plan.count} entries that {kept.plan} keeps")
    return dev.expand(x, kept.inverse), (lambda dy: dev.compact(dy, kept.indices),)


def compact(x: Tensor, *, plan: AxisPlan | DevicePlan) -> Tensor:
    """y[…, k] = x[…, plan's k-th index]: what a plan keeps of a dense activation.   (…, n) -> (…, K)

    Raises
    ------
    ValueError
        If the last axis of x is not the plan's.
    """
    if x.ndim == 2:
        return _compact(x, plan=plan)
    rows = _compact(reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1] if x.ndim else 1)), plan=plan)
    return reshape(rows, shape=(*x.shape[:-1], rows.shape[-1]))


@op
def _compact(dev: Device, x, *, plan):
    kept = on("compact", plan, dev, DeviceAxis, (x.shape[1],))
    return dev.compact(x, kept.indices), (lambda dy: dev.expand(dy, kept.inverse),)


@op
def shuffle(dev: Device, x, *, order: Order):
    """y[n, j] = (x - order.mean)[n, order.order[j]].   x (N, I) -> y (N, I)

    Raises
    ------
    ValueError
        If x has another shape.
    """
    if len(x.shape) != 2 or x.shape[1] != order.size:
        raise ValueError(f"shuffle: x {tuple(x.shape)} must have two axes, the last one of {order.size} features")
    there, back, shift = order.views(dev)
    return dev.compact(x, there, shift), (lambda dy: dev.compact(dy, back),)


# --- rows of a table --------------------------------------------------------------------------------------------------
def padding_row(name: str, padding: int | None, rows: int) -> int | None:
    """The row of a table that is padding, from 0 on: a negative number counts from the end. None for None."""
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
    """y[…, k] = w[ids[…], cols_k].   w (V, D), ids (…) integers of the host or int32 of the device -> y (…, K)

    The gradient holds the rows that were looked up, but for that of `padding`, and no others: dw[v] = sum of dy[…] where
    ids[…] = v.

    Parameters
    ----------
    padding : int, optional
        A row of w; a negative one counts from the end.
    checked : bool, default=False
        Whether ids are int32 of the device that somebody looked at before. Then nobody fetches them to look, so that the pass
        may be recorded, and an id that is none counts as the nearest one.

    Raises
    ------
    ValueError
        If an id is not in 0 … V - 1, padding not in -V … V - 1, or `cols` of another axis than the second of w.
    TypeError
        If the ids, or padding, are no integers.
    """
    padding = padding_row("embedding: padding", padding, w.shape[0])
    cols = full_axis(w.shape[1], dev) if cols is None else on("embedding", cols, dev, DeviceAxis, (w.shape[1],))
    host = None if checked else _symbols(dev, ids, w.shape[0])
    ids = ids if checked else dev.upload(host)
    flat = dev.reshape(ids, (ids.size,))
    width, y = cols.plan.count, dev.take_rows(w, flat)
    y = dev.reshape(y if width == w.shape[1] else dev.compact(y, cols.indices), (*ids.shape, width))

    def dw(dy):
        found = (
            dev.group_rows(flat, w.shape[0], padding)
            if checked
            else map(dev.upload, device("cpu").group_rows(host.reshape(-1), w.shape[0], padding))
        )  # as many as there are
        order, starts, places = found
        values = dev.sum_by_row(dev.reshape(dy, (flat.size, width)), order, starts)
        return Packed(values, Packing(places, full_axis(w.shape[0], dev).lists.classes, *cols.columns), tuple(w.shape))

    return y, (dw,)


def _symbols(dev: Device, ids: Any, rows: int) -> np.ndarray:
    """The ids on the host, int32; TypeError or ValueError where one is no row of the table."""
    host = np.asarray(ids if isinstance(ids, np.ndarray) else dev.download(ids))
    if host.dtype.kind not in "iu":
        raise TypeError(
            f"embedding: ids are {host.dtype}, not integers; Tensor(...) makes float32, Tensor.wrap(integers, "
            "device) keeps what they are"
        )
    if host.size and not (host.min() >= 0 and host.max() < rows):
        raise ValueError(f"embedding: ids from {host.min()} to {host.max()} do not fit a table of {rows} rows")
    return host.astype(np.int32)
