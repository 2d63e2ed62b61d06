"""GRU through time as one operation; dy is the gradient of the result."""

from __future__ import annotations

from typing import Any

from ..autograd import op
from ..device import Device
from ..gradients import Packed
from ..plans import AxisPlan, DevicePlan
from ..plans.on_device import DeviceAxis, full_axis, on, packing
from .linear import memoize


class _Product:
    """s = scale h w.T + b, the recurrent product, which reads only the units of h that a plan keeps."""

    def __init__(self, dev: Device, w: Any, units: AxisPlan | DevicePlan | None) -> None:
        self.dev, self.shape, self.weight, self.scale, self.axis = dev, tuple(w.shape), w, 1.0, None
        if units is not None:
            self.axis = on("gru", units, dev, DeviceAxis, w.shape[1:])
            self.weight, self.scale = dev.compact(w, self.axis.indices), self.axis.plan.scale

    def _read(self, h):
        return h if self.axis is None else self.dev.compact(h, self.axis.indices)

    def compute(self, h, b, s) -> None:
        """Write the product of h (N, H) to s."""
        self.dev.gemm(self._read(h), self.weight, tb=True, bias=b, scale=self.scale, out=s)

    def dh(self, ds):
        """The gradient of h (N, H)."""
        dh = self.dev.gemm(ds, self.weight, scale=self.scale)
        return dh if self.axis is None else self.dev.expand(dh, self.axis.inverse)

    def dw(self, ds, h):
        """The gradient of w, from the ds and h of all time steps."""
        product = self.dev.gemm(ds, self._read(h), ta=True, scale=self.scale)
        if self.axis is None:
            return product
        return Packed(product, packing(full_axis(self.shape[0], self.dev), self.axis), self.shape)


def _at(dev: Device, a: Any, t: int) -> Any:
    """a[t]"""
    return dev.reshape(dev.part(a, t, t + 1), a.shape[1:])


def _forward(dev: Device, product: _Product, gates: Any, b: Any, h0: Any, lengths: Any) -> tuple[Any, Any]:
    """(s (T, N, 3H), h (T + 1, N, H)); `gates` (T, N, 3H) holds the input products, which the gates overwrite."""
    s, h = dev.empty(gates.shape), dev.empty((gates.shape[0] + 1, *h0.shape))
    dev.copy(h0, out=_at(dev, h, 0))
    for t in range(gates.shape[0]):
        product.compute(_at(dev, h, t), b, _at(dev, s, t))
        dev.gru_cell(gates, s, h, t, lengths)
    return s, h


def _backward(dev: Device, product: _Product, dy: Any, gates: Any, s: Any, h: Any, lengths: Any) -> Any:
    """dh0; overwrites the gates by dz, and s by its gradient."""
    dh, carried = dev.full(dy.shape[1:], 0.0), dev.full(dy.shape[1:], 0.0)
    for t in reversed(range(gates.shape[0])):
        dev.gru_cell_grad(dy, dh, carried, gates, s, h, t, lengths)
        dh = product.dh(_at(dev, s, t))
    return dev.add(dh, carried)


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
    product = _Product(dev, w, units)
    gates = dev.reshape(z, (steps, n, 3 * hidden))
    s, h = _forward(dev, product, gates, b, h0, lengths)
    if left is not None:
        dev.copy(_at(dev, h, steps), out=left[0])

    @memoize
    def back(dy):
        """(dz, ds, dh0)"""
        dh0 = _backward(dev, product, dy.dense(dev), gates, s, h, lengths)
        return dev.reshape(gates, z.shape), dev.reshape(s, z.shape), dh0

    def dw(dy):
        return product.dw(back(dy)[1], dev.reshape(dev.part(h, 0, steps), (steps * n, hidden)))

    return dev.part(h, 1, steps + 1), (lambda dy: back(dy)[0], dw, lambda dy: dev.sum_rows(back(dy)[1]), lambda dy: back(dy)[2])
