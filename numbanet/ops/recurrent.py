"""Operations on sequences: an LSTM over all time steps, and the reversal of time steps. dy is the gradient of the result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..autograd import op
from ..device import Device
from ..gradients import Columns, Packed
from ..plans import AxisPlan, DevicePlan, TimePlan
from ..plans.on_device import DeviceAxis, DeviceTimes, full_axis, on, packing, upload_plan
from .linear import memoize


class _Units(NamedTuple):
    """The units of h[t - 1] that the recurrent product reads at each time step."""

    plan: DevicePlan | None  # None if all units are read
    indices: Any = None  # (1, K) or (T, K) int32
    scale: float = 1.0


def _units(dev: Device, plan: Any, hidden: int, steps: int) -> _Units:
    """Return the units of h that `plan` keeps; if it is None, all units are kept."""
    if plan is None:
        return _Units(None)
    if not isinstance(plan.plan if isinstance(plan, DevicePlan) else plan, TimePlan):
        axis = on("lstm", plan, dev, DeviceAxis, (hidden,))
        return _Units(axis, dev.reshape(axis.indices, (1, axis.plan.count)), axis.plan.scale)
    times = on("lstm", plan, dev, DeviceTimes)
    planned, n = times.plan.shape
    if n != hidden or planned < steps:
        raise ValueError(f"lstm: a plan of {planned} time steps for {n} units does not fit {steps} steps of {hidden} units")
    return _Units(times, dev.part(times.units, 0, steps), times.plan.scale)


class _Pass(NamedTuple):
    """What the backward pass reads: the gates (T, N, 4H), the states h and c (T + 1, N, H), and the arguments."""

    dev: Device
    gates: Any
    h: Any
    c: Any
    w: Any
    units: _Units
    lengths: Any

    def copy_last(self, left: list[Any]) -> None:
        """Copy h[T] and c[T] to the two arrays (N, H) of `left`."""
        steps = self.gates.shape[0]
        for states, last in zip((self.h, self.c), left):
            self.dev.affine(self.dev.reshape(self.dev.part(states, steps, steps + 1), states.shape[1:]), out=last)

    def backward(self, dy: Any, choice: Any, cell: bool, active: DeviceAxis | None) -> tuple[Any, Any, Any]:
        """Return (dz (T N, 4H), dh0, dc0). dz overwrites the gates. If `choice` chooses a plan of gate columns, or if only the
        gates `active` have a gradient, dz is a `Columns` gradient.
        """
        dev, (steps, n, width) = self.dev, self.gates.shape
        dc = dev.reshape(dev.copy(dev.part(dy, steps, steps + 1)), dy.shape[1:]) if cell else None
        dy = dev.part(dy, 0, steps)

        def run(gates, **options):
            return dev.lstm_grad(dy, gates, self.c, self.w, self.units.indices, self.units.scale, self.lengths, dc, **options)

        chosen = choice and choice.choose(dev, dy, self.gates, self.c, self.lengths, lambda: run(dev.copy(self.gates))[0])
        # a chosen plan is not cached, because it rarely repeats
        chosen = upload_plan(chosen, dev) if isinstance(chosen, AxisPlan) else chosen
        columns = active if choice is None else chosen if isinstance(chosen, DeviceAxis) else None
        options = {"columns": columns.indices} if columns else {"threshold": chosen or 0.0}
        dz, dh0, dc0 = run(self.gates, **options)
        if choice:
            choice.done(dev, dz, columns)
        dz = dev.reshape(dz, (steps * n, dz.shape[2]))
        return dz if columns is None else Columns(dz, columns, (steps * n, width)), dh0, dc0

    def dw(self, dz: Any) -> Any:
        """Return dw, the sum over t of dz[t].T h[t - 1], for the columns of dz and the units of h that products read."""
        dev, (width, hidden) = self.dev, self.w.shape
        rows, dz = (dz.axis, dz.values) if isinstance(dz, Columns) else (None, dz)
        cols = self.units.plan if isinstance(self.units.plan, DeviceAxis) else None
        h = dev.part(self.h, 0, self.gates.shape[0])
        if cols is None and self.units.plan is not None:
            h = dev.lstm_seen(h, self.units.indices)
        h = dev.reshape(h, (dz.shape[0], hidden))
        product = dev.gemm(dz, h if cols is None else dev.compact(h, cols.indices), ta=True, scale=self.units.scale)
        if rows is None and cols is None:
            return product
        return Packed(product, packing(rows or full_axis(width, dev), cols or full_axis(hidden, dev)), (width, hidden))


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
    active: DeviceAxis | None = None,
):
    """y[t] = h[t] = o tanh c[t], where c[t] = f c[t-1] + i g, and the gates i, f, g, o are computed from z[t] + h[t-1] w.T

    Each gate has H columns; i, f and o are the sigmoid of theirs, g is the tanh. z (T N, 4H) holds the input products of all
    time steps, with biases; w (4H, H), h0 and c0 (N, H) -> y (T, N, H). The gates overwrite z, so the backward pass needs no
    other copy of them.

    Parameters
    ----------
    steps : int
        T, the number of time steps.
    units : AxisPlan or TimePlan, optional
        The units of h[t - 1] that the recurrent product of time step t reads. The product is multiplied by the plan's scale.
        Dropped units have a state, too. A `TimePlan` of at least T steps selects different units at each; dw is then dense.
    lengths : (N,) int32 array of the device, optional
        The number of time steps of each sequence. After its last one, y is 0 and c does not change.
    gates : GateChoice, optional
        Chooses the part of dz (T N, 4H) that the backward pass computes. Its method choose(dev, dy, gates, c, lengths, dense)
        returns an IndexPlan or a DeviceAxis of the 4H columns of dz, or a threshold: elements of dz up to it become 0. dense()
        computes the full dz. Afterwards done(dev, dz, columns) is called with the result.
    cell : bool, default=False
        If True, y has one more time step, y[T] = c[T].
    left : list of two arrays (N, H), optional
        h[T] and c[T] are copied to these arrays, without a gradient; the arrays may be h0 and c0.
    active : DeviceAxis, optional
        The gates, of 4H, whose gradients may differ from 0; by default all. Others are not computed, unless `gates` is given.

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
    read, entered = _units(dev, units, hidden, steps), dev.reshape(z, (steps, n, 4 * hidden))
    h, c = dev.lstm(entered, w, h0, c0, read.indices, read.scale, lengths)
    forward = _Pass(dev, entered, h, c, w, read, lengths)
    if left is not None:
        forward.copy_last(left)
    y = dev.part(h, 1, steps + 1)
    y = dev.concatenate([y, dev.part(c, steps, steps + 1)], 0) if cell else y
    back = memoize(lambda dy: forward.backward(dy.dense(dev), gates, cell, active))
    return y, (lambda dy: back(dy)[0], lambda dy: forward.dw(back(dy)[0]), lambda dy: back(dy)[1], lambda dy: back(dy)[2])


@op
def reverse_steps(dev: Device, x, *, lengths: np.ndarray | None = None):
    """y[t, n] = x[L - 1 - t, n] if t < L, where L = lengths[n]; else y[t, n] = x[t, n].   x, y (T, N, W)

    Layers use it that read each sequence backwards, from its own last time step. The operation is its own inverse.

    Parameters
    ----------
    lengths : (N,) integers of the host, optional
        The number of time steps of each sequence, from 1 to T; by default T.
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
