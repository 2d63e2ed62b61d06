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
    """The recurrent product s = scale h w.T + b, which reads only the units of h that a plan keeps."""

    def __init__(self, dev: Device, w: Any, units: AxisPlan | DevicePlan | None) -> None:
        self.dev, self.shape, self.weight, self.scale, self.axis = dev, tuple(w.shape), w, 1.0, None
        if units is not None:
            self.axis = on("gru", units, dev, DeviceAxis, w.shape[1:])
            self.weight, self.scale = dev.compact(w, self.axis.indices), self.axis.plan.scale

    def _read(self, h):
        return h if self.axis is None else self.dev.compact(h, self.axis.indices)

    def compute(self, h, b, s) -> None:
        """Write scale h w.T + b to s, for h (N, H)."""
        self.dev.gemm(self._read(h), self.weight, tb=True, bias=b, scale=self.scale, out=s)

    def dh(self, ds):
        """Return dh (N, H), given ds, the gradient of s."""
        dh = self.dev.gemm(ds, self.weight, scale=self.scale)
        return dh if self.axis is None else self.dev.expand(dh, self.axis.inverse)

    def dw(self, ds, h):
        """Return the gradient of w, given ds and h of all time steps."""
        product = self.dev.gemm(ds, self._read(h), ta=True, scale=self.scale)
        if self.axis is None:
            return product
        return Packed(product, packing(full_axis(self.shape[0], self.dev), self.axis), self.shape)


def _at(dev: Device, a: Any, t: int) -> Any:
    """Return a[t]."""
    return dev.reshape(dev.part(a, t, t + 1), a.shape[1:])


def _forward(dev: Device, product: _Product, gates: Any, b: Any, h0: Any, lengths: Any) -> tuple[Any, Any]:
    """Run all time steps; return s (T, N, 3H) and h (T + 1, N, H). The gates overwrite the products in `gates` (T, N, 3H)."""
    s, h = dev.empty(gates.shape), dev.empty((gates.shape[0] + 1, *h0.shape))
    dev.copy(h0, out=_at(dev, h, 0))
    for t in range(gates.shape[0]):
        product.compute(_at(dev, h, t), b, _at(dev, s, t))
        dev.gru_cell(gates, s, h, t, lengths)
    return s, h


def _backward(dev: Device, product: _Product, dy: Any, gates: Any, s: Any, h: Any, lengths: Any) -> Any:
    """Return dh0. Overwrite `gates` by dz, the gradient of the input products, and s by ds."""
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
    """y[t] = h[t] = m + u (h[t-1] - m), where r, u = sigmoid(z[t] + s[t]), m = tanh(z_m[t] + r s_m[t]), s[t] = h[t-1] w.T + b

    The 3H columns of z and s belong to the gates r and u and to the candidate m; z_m and s_m are the columns of m. z (T N, 3H)
    holds the input products of all time steps, with biases; w (3H, H), b (3H,) or None, h0 (N, H) -> y (T, N, H). The gates
    overwrite z, and later the gradients overwrite z and s. So the op needs only two arrays (T, N, 3H).

    Parameters
    ----------
    steps : int
        T, the number of time steps.
    units : AxisPlan, optional
        The units of h[t - 1] that the recurrent product reads. The product is multiplied by the plan's scale. Dropped units
        have a state, too.
    lengths : (N,) int32 array of the device, optional
        The number of time steps of each sequence; y is 0 after its last one.
    left : list of one array (N, H), optional
        h[T] is copied to this array, without a gradient; the array may be h0.

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
        """Return (dz, ds, dh0): the gradients of z, s and h0."""
        dh0 = _backward(dev, product, dy.dense(dev), gates, s, h, lengths)
        return dev.reshape(gates, z.shape), dev.reshape(s, z.shape), dh0

    def dw(dy):
        return product.dw(back(dy)[1], dev.reshape(dev.part(h, 0, steps), (steps * n, hidden)))

    return dev.part(h, 1, steps + 1), (lambda dy: back(dy)[0], dw, lambda dy: dev.sum_rows(back(dy)[1]), lambda dy: back(dy)[2])
