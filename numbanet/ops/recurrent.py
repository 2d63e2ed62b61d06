"""LSTM over all time steps as one operation; reversal of time steps. dy is the gradient of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import op
from ..device import Device
from ..gradients import Columns, Packed
from ..plans import AxisPlan, DevicePlan, TimePlan
from ..plans.on_device import DeviceAxis, DeviceTimes, full_axis, on, packing, upload_plan
from .linear import memoize


def _units(dev: Device, plan: Any, hidden: int, steps: int) -> tuple[DevicePlan | None, Any, float]:
    """(plan on the device, its indices as int32 (1 or T, K), its scale); None as a plan keeps everything."""
    if plan is None:
        return None, None, 1.0
    if not isinstance(plan.plan if isinstance(plan, DevicePlan) else plan, TimePlan):
        axis = on("lstm", plan, dev, DeviceAxis, (hidden,))
        return axis, dev.reshape(axis.indices, (1, axis.plan.count)), axis.plan.scale
    times = on("lstm", plan, dev, DeviceTimes)
    planned, n = times.plan.shape
    if n != hidden or planned < steps:
        raise ValueError(f"lstm: a plan of {planned} time steps for {n} units does not fit {steps} steps of {hidden} units")
    return times, dev.part(times.units, 0, steps), times.plan.scale


@op(fuses=True)
def lstm(
    dev: Device,
    z,
    w,
    h0,
    c0,
    *,
    steps: int,
    units: AxisPlan | TimePlan | DevicePlan | None = None,
    lengths: Any = None,
    gates: Any = None,
    cell: bool = False,
    left: list[Any] | None = None,
):
    """i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of z[t] + h[t-1] w.T;   c[t] = f c[t-1] + i g;   y[t] = h[t] = o tanh c[t]

    z (T N, 4H) are the input products of all time steps, with biases; w (4H, H), h0 and c0 (N, H) -> y (T, N, H). z is
    overwritten by the gates, so the backward pass needs no other copy of them.

    Parameters
    ----------
    steps : int
        T.
    units : AxisPlan or TimePlan, optional
        The units of h[t - 1] that the recurrent product of step t reads, times the plan's scale; all units have a state. A
        `TimePlan` of T steps or more selects different units at each step; dw is then a dense product.
    lengths : (N,) int32 array of the device, optional
        Lengths of the sequences: from there on y is 0 and c does not change.
    gates : GateChoice, optional
        Its `choose(dev, dy, gates, c, lengths, dense)` returns an IndexPlan of the 4H columns of dz that the backward pass
        computes, or a threshold on the elements of dz; `dense()` computes the full dz. `done(dev, dz, columns)` is called with
        the result.
    cell : bool, default=False
        Whether y has one more step, which is c[T].
    left : list of two arrays (N, H), optional
        Receive h[T] and c[T], without a gradient; they may be h0 and c0.

    Raises
    ------
    ValueError
        If shapes or plans do not match.
    TypeError
        If a plan is neither an AxisPlan nor a TimePlan.
    """
    hidden, n = w.shape[-1], h0.shape[0]
    if z.shape != (steps * n, 4 * hidden):
        raise ValueError(f"lstm: z {tuple(z.shape)} must be ({steps} x {n}, 4 x {hidden})")
    chosen, listed, scale = _units(dev, units, hidden, steps)
    passed = dev.reshape(z, (steps, n, 4 * hidden))
    h, c = dev.lstm(passed, w, h0, c0, listed, scale, lengths)
    last = dev.part(c, steps, steps + 1)
    if left is not None:
        for state, final in zip((h, c), left):
            dev.affine(dev.reshape(dev.part(state, steps, steps + 1), (n, hidden)), out=final)
    y = dev.part(h, 1, steps + 1)
    y = dev.concatenate([y, last], 0) if cell else y

    @memoize
    def back(dy):
        """(dz, the plan of its columns or None, dh0, dc0)"""
        dy = dy.dense(dev)
        dc = dev.reshape(dev.copy(dev.part(dy, steps, steps + 1)), (n, hidden)) if cell else None
        dy = dev.part(dy, 0, steps)

        def run(gates=passed, **options):
            return dev.lstm_grad(dy, gates, c, w, listed, scale, lengths, dc, **options)

        choice = gates and gates.choose(dev, dy, passed, c, lengths, lambda: run(dev.copy(passed))[0])
        columns = upload_plan(choice, dev) if isinstance(choice, AxisPlan) else None  # not cached: it rarely repeats
        dz, *first = run(columns=columns.indices) if columns else run(threshold=choice or 0.0)
        if gates:
            gates.done(dev, dz, columns and columns.plan)
        return dev.reshape(dz, (steps * n, dz.shape[2])), columns, *first

    def dz(dy):
        values, columns, *_ = back(dy)
        return values if columns is None else Columns(values, columns, tuple(z.shape))

    def dw(dy):
        values, columns, *_ = back(dy)
        seen, cols = dev.part(h, 0, steps), chosen if isinstance(chosen, DeviceAxis) else None
        if cols is None and chosen is not None:
            seen = dev.lstm_seen(seen, listed)
        seen = dev.reshape(seen, (steps * n, hidden))
        product = dev.gemm(values, seen if cols is None else dev.compact(seen, cols.indices), ta=True, scale=scale)
        if columns is None and cols is None:
            return product
        return Packed(product, packing(columns or full_axis(4 * hidden, dev), cols or full_axis(hidden, dev)), tuple(w.shape))

    return y, (dz, dw, lambda dy: back(dy)[2], lambda dy: back(dy)[3])


@op
def reverse_steps(dev: Device, x, *, lengths: np.ndarray | None = None):
    """y[t, n] = x[L - 1 - t, n] for t < L = lengths[n], x[t, n] otherwise.   x, y (T, N, W)

    Used by layers that read sequences backwards, each from its own end. It is its own inverse.

    Parameters
    ----------
    lengths : (N,) integers of the host, optional
        From 1 to T; T by default.
    """
    if lengths is None:

        def turn(a):
            return dev.getitem(a, slice(None, None, -1))
    else:
        (steps, n), t = x.shape[:2], np.arange(x.shape[0])[:, None]
        rows = np.where(t < lengths, lengths - 1 - t, t) * n + np.arange(n)
        rows = dev.upload(rows.reshape(-1).astype(np.int32))

        def turn(a):
            return dev.reshape(dev.take_rows(dev.reshape(a, (steps * n, a.shape[2])), rows), a.shape)

    return turn(x), (turn,)
