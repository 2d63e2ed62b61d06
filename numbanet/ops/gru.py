"""GRU through time as one operation; dy is the gradient of the result."""

from __future__ import annotations

from typing import Any

from ..autograd import op
from ..device import Device
from ..gradients import Packed
from ..plans import AxisPlan, DevicePlan
from ..plans.on_device import DeviceAxis, full_axis, on, packing
from .linear import memoize


@op(fuses=True)
def gru(
    dev: Device,
    z,
    w,
    b,
    h0,
    *,
    steps: int,
    units: AxisPlan | DevicePlan | None = None,
    lengths: Any = None,
    left: list[Any] | None = None,
):
    """s[t] = h[t-1] w.T + b;   r, u = sigmoid of z[t] + s[t], m = tanh(z_m[t] + r s_m[t]);   y[t] = h[t] = m + u (h[t-1] - m)

    z (T N, 3H) are the input products of all time steps, with biases; w (3H, H), b (3H,) or None, h0 (N, H) -> y (T, N, H).
    z and s are overwritten, by the gates and then by their gradients, so the op needs only two arrays (T, N, 3H).

    Parameters
    ----------
    steps : int
        T.
    units : AxisPlan, optional
        The units of h[t - 1] that the recurrent product reads, times the plan's scale; all units have a state.
    lengths : (N,) int32 array of the device, optional
        Lengths of the sequences: y is 0 from there on.
    left : list of an array (N, H), optional
        Receives h[T], without a gradient; it may be h0.

    Raises
    ------
    ValueError
        If shapes or the plan do not match.
    TypeError
        If the plan is not an AxisPlan.
    """
    hidden, n = w.shape[-1], h0.shape[0]
    if z.shape != (steps * n, 3 * hidden) or w.shape != (3 * hidden, hidden) or h0.shape != (n, hidden):
        raise ValueError(
            f"gru: z {tuple(z.shape)}, w {tuple(w.shape)} and h0 {tuple(h0.shape)} must be ({steps} N, 3 H), "
            "(3 H, H) and (N, H)"
        )
    axis = None if units is None else on("gru", units, dev, DeviceAxis, (hidden,))
    scale, weight = (1.0, w) if axis is None else (axis.plan.scale, dev.compact(w, axis.indices))

    def at(states, t):
        return dev.reshape(dev.part(states, t, t + 1), states.shape[1:])

    def seen(states):
        return states if axis is None else dev.compact(states, axis.indices)

    gates, s, h = dev.reshape(z, (steps, n, 3 * hidden)), dev.empty((steps, n, 3 * hidden)), dev.empty((steps + 1, n, hidden))
    dev.copy(h0, out=at(h, 0))
    for t in range(steps):
        dev.gemm(seen(at(h, t)), weight, tb=True, bias=b, scale=scale, out=at(s, t))
        dev.gru_cell(gates, s, h, t, lengths)
    if left is not None:
        dev.copy(at(h, steps), out=left[0])

    @memoize
    def back(dy):
        """(dz, ds, dh0)"""
        dy, dh, carried = dy.dense(dev), dev.full((n, hidden), 0.0), dev.full((n, hidden), 0.0)
        for t in reversed(range(steps)):
            dev.gru_cell_grad(dy, dh, carried, gates, s, h, t, lengths)
            dh = dev.gemm(at(s, t), weight, scale=scale)
            dh = dh if axis is None else dev.expand(dh, axis.inverse)
        return dev.reshape(gates, (steps * n, 3 * hidden)), dev.reshape(s, (steps * n, 3 * hidden)), dev.add(dh, carried)

    def dw(dy):
        product = dev.gemm(back(dy)[1], seen(dev.reshape(dev.part(h, 0, steps), (steps * n, hidden))), ta=True, scale=scale)
        return product if axis is None else Packed(product, packing(full_axis(3 * hidden, dev), axis), tuple(w.shape))

    return dev.part(h, 1, steps + 1), (lambda dy: back(dy)[0], dw, lambda dy: dev.sum_rows(back(dy)[1]), lambda dy: back(dy)[2])
