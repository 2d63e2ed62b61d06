"""Products with a sparse weight. A tensor holds the values of the weight, and a `Layout` holds their positions."""

from __future__ import annotations

from typing import Any

from numbanet_kernels.layouts.entries import Entries
from numbanet_kernels.layouts.sparse import BSR, CSR, ELL

from ..autograd import common_device, op
from ..device import Device
from ..plans import AxisPlan, DevicePlan
from ..plans.on_device import DeviceAxis, on
from ..tensor import Tensor
from .linear import memoize, vector_gradient


class Layout:
    """The positions of the entries of a sparse weight, on a device.

    Parameters
    ----------
    of : CSR, ELL or BSR
        A matrix (O, I) that has this structure; its values are not used.
    dev : Device
        The device of the products.

    Attributes
    ----------
    shape : tuple of int
        (O, I)
    values : tuple of int
        The shape of the values: (entries,) for a CSR, (O K,) for an ELL with K entries a row, (tiles, T, T) for a BSR.
    nnz : int
        Number of stored elements of the weight.
    """

    def __init__(self, of: CSR | ELL | BSR, dev: Device) -> None:
        self.shape, self.nnz, self.device = of.shape, of.nnz, dev
        self.values = of.values.shape if isinstance(of, BSR) else (of.values.size,)
        self.at = Entries(*map(dev.upload, of.entries()))

    def __repr__(self) -> str:
        return f"Layout(shape={self.shape}, nnz={self.nnz}) on {self.device.name}"


def _whole(dev: Device, x: Any, axis: DeviceAxis | None) -> Any:
    """Return the dense form of an activation x, which holds only the entries that `axis` keeps; x itself if `axis` is None."""
    return x if axis is None else dev.expand(x, axis.inverse)


@op(fuses=True)
def _linear_csr(
    dev: Device, x, values, b=None, *, at, relu: bool, rows: DeviceAxis | None, cols: DeviceAxis | None, trace: list | None
):
    lists, transposed = (rows and rows.lists, cols and cols.lists), dev.csr_transposed(x)
    y = dev.csr(x, values, at, b, relu, *lists, transposed)
    dz = memoize(lambda dy: dy.through(dev, y if relu else None))
    dz_transposed = memoize(lambda dy: dev.csr_transposed(dz(dy)))

    def dw(dy):
        if trace is not None:
            trace[:] = _whole(dev, dz(dy), rows), _whole(dev, x, cols)
        return dev.csr_dw(dz(dy), x, at, *lists, dz_transposed(dy), transposed)

    def db(dy):
        sums = dev.sum_rows(dz(dy))
        return sums if rows is None else vector_gradient(sums, rows)

    return y, (lambda dy: dev.csr_dx(dz(dy), values, at, *lists, dz_transposed(dy)), dw, db)


@op(fuses=True)
def _linear_bsr(dev: Device, x, values, b=None, *, at, outputs: int, relu: bool):
    y = dev.bsr(x, values, at, outputs, b, relu)
    dz = memoize(lambda dy: dy.through(dev, y if relu else None))
    return y, (
        lambda dy: dev.bsr_dx(dz(dy), values, at, x.shape[1]),
        lambda dy: dev.bsr_dw(dz(dy), x, at, values.shape[1]),
        lambda dy: dev.sum_rows(dz(dy)),
    )


def linear_sparse(
    x: Any,
    values: Any,
    b: Any = None,
    *,
    layout: Layout,
    relu: bool = False,
    rows: AxisPlan | DevicePlan | None = None,
    cols: AxisPlan | DevicePlan | None = None,
    trace: list | None = None,
) -> Tensor:
    """y[n, o] = act(sum_i x[n, i] w[o, i] + b[o]), where w has `values` at the positions of `layout`, and is 0 elsewhere.

    x (N, I), b (O,) or None -> y (N, O). act is ReLU if `relu`, else the identity.

    The gradient of w is computed only for its stored entries. If `rows` is given, y holds only the kept neurons; if `cols` is
    given, x holds only the kept inputs. Entries of dropped neurons and inputs are skipped. The scale of a plan is not applied:
    layers multiply by it later. The backward pass stores dz and x in `trace`, so that the dense gradient dw = dz.T x can be
    computed later. A layout of tiles supports none of these.

    Raises
    ------
    ValueError
        If the shapes do not match, the layout is on another device, or a plan has another length.
    TypeError
        If a plan is not an AxisPlan, or is given with a layout of tiles.
    """
    dev = common_device("linear_sparse", (x, values, b))
    x, values, b = (a if a is None or isinstance(a, Tensor) else Tensor(a, dev) for a in (x, values, b))
    (outputs, inputs), tiles = layout.shape, len(layout.values) == 3
    if layout.device is not dev:
        raise ValueError(f"linear_sparse: the layout is on {layout.device.name}, the arrays on {dev.name}")
    if tiles and not (rows is None and cols is None and trace is None):
        raise TypeError("linear_sparse: a layout of tiles supports no plan and no trace; pass the dense activation")
    rows, cols = (
        None if plan is None else on("linear_sparse", plan, dev, DeviceAxis, (n,))
        for plan, n in ((rows, outputs), (cols, inputs))
    )
    width = inputs if cols is None else cols.plan.count
    if x.ndim != 2 or x.shape[1] != width or values.shape != layout.values or (b is not None and b.shape != (outputs,)):
        extra = "" if b is None else f" and b {tuple(b.shape)}"
        raise ValueError(
            f"linear_sparse: x {x.shape}, values {values.shape}{extra} do not match a weight {layout.shape} "
            f"with values {layout.values}{'' if cols is None else f' and {width} inputs kept'}"
        )
    if tiles:
        return _linear_bsr(x, values, b, at=layout.at, outputs=outputs, relu=relu)
    return _linear_csr(x, values, b, at=layout.at, relu=relu, rows=rows, cols=cols, trace=trace)
