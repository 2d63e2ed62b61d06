"""`SparseLinear`: a product with a sparse weight, of which single entries or tiles are stored."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from numbanet_kernels.layouts.sparse import BSR, CSR, ELL

from .. import ops
from ..arguments import check_counts, is_real
from ..device import Device, device as named  # imported as `named`, because a parameter is called `device`
from ..plans import AxisPlan, BernoulliPlan, DeviceAxis, Site
from ..tensor import Tensor
from .activation import ReLU
from .base import Layer
from .context import Context
from .flow import DENSE, ActivationSpec, Columns, Flow, product_cost
from .tree import Tree

# Sparse products with a higher density take longer than dense ones on the CPU, forward and backward together (measured by
# `python -m bench csr`, 2048 x 2048 at batch 128).
BREAK_EVEN = 0.3


class SparseLinear(Layer):
    """y = x wᵀ + b with a sparse weight w.   x (…, in) -> y (…, out)

    Training changes the values of the stored entries, which are a tensor with one axis; no mask and no dense weight is stored.
    The positions of the entries are fixed, unless the `sparsity` of the network is a `Rewire`.

    Under an `AxisPlan` of its neurons or of its inputs, the entries of dropped neurons or inputs are skipped. The state has the
    names of PyTorch's sparse tensors: crow_indices, col_indices, values.

    Parameters
    ----------
    in_features, out_features : int
        Widths of the input and the output.
    density : float, default=0.1
        Share of the weight that is stored, in (0, 1]. Each neuron has other random inputs, and the numbers of inputs of two
        neurons differ by at most one. The default is 0.1, because sparse products are clearly faster at this density
        (`bench csr`).
    weight : CSR, ELL or BSR, optional
        The initial weight; it replaces `density`. If it is a BSR, whole tiles are stored and trained; the values are
        (tiles, T, T).
    bias : bool, default=True
        Whether to add b.
    init : {"he", "glorot"}, default="he"
        The variance of the initial values if `weight` is None. It is that of `Linear`, but the number of inputs is that of the
        entries of a neuron, and for "glorot" the number of outputs is the mean number of entries of an input (He et al. 2015,
        eq. 10, which is derived for the number of connections). Evci et al. 2022, "Gradient flow in sparse neural networks and
        how lottery tickets win", find that sparse networks need this.
    variance_factor : float, default=1.0
        As for `Linear`.
    rng, device
        As for `Linear`; rng is also the source of the structure.

    Raises
    ------
    ValueError
        If a width is not a positive integer, the density not in (0, 1], the weight of another shape, or `init` or
        `variance_factor` invalid.
    TypeError
        If the weight is not a CSR, ELL or BSR.

    Warns
    -----
    UserWarning
        If the weight is a CSR or an ELL so dense that a dense `Linear` is faster on a CPU.
    """

    recordable = True
    transient = ("_made", "trace")
    buffers = ("crow_indices", "col_indices")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        density: float = 0.1,
        weight: CSR | ELL | BSR | None = None,
        bias: bool = True,
        init: str = "he",
        variance_factor: float = 1.0,
        rng: np.random.Generator | int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        in_features, out_features = check_counts("SparseLinear", in_features=in_features, out_features=out_features)
        shape, dev = (out_features, in_features), named(device)
        if weight is None:
            self._drawn = shape, density, init, variance_factor
            weight = drawn(*self._drawn, self.generator(rng))
        elif not isinstance(weight, (CSR, ELL, BSR)):
            raise TypeError(
                f"SparseLinear: weight must be a CSR, ELL or BSR, got {type(weight).__name__}; "
                "CSR.from_dense or CSR.from_scipy makes one"
            )
        elif weight.shape != shape:
            raise ValueError(f"SparseLinear: the weight is {weight.shape}, not (out_features, in_features) = {shape}")
        weight = weight.to_csr() if isinstance(weight, ELL) else weight
        if isinstance(weight, CSR) and round(weight.density, 2) > BREAK_EVEN:
            warnings.warn(
                f"SparseLinear({in_features}, {out_features}): its density is {weight.density:.0%}; "
                f"above {BREAK_EVEN:.0%} a dense Linear is faster on a CPU (python -m bench csr)",
                stacklevel=2,
            )
        self.in_features, self.out_features = in_features, out_features
        self._made: tuple[tuple[Any, Any, Device], ops.Layout] | None = None
        self.trace: list | None = None  # arrays that backward passes store for `rewire`; None if they store nothing
        self.crow_indices, self.col_indices = (
            Tensor.wrap(dev.upload(np.array(part)), dev) for part in (weight.indptr, weight.indices)
        )
        self.values = Tensor(weight.values, device, requires_grad=True)
        self.bias = Tensor(np.zeros(out_features), device, requires_grad=True) if bias else None

    def initial(self, rng):
        weight = drawn(*self._drawn, rng)
        return {"crow_indices": weight.indptr, "col_indices": weight.indices, "values": weight.values}

    @property
    def tile(self) -> int | None:
        """The side of a tile; None if single entries are stored."""
        return self.values.shape[1] if self.values.ndim == 3 else None

    @property
    def weight(self) -> CSR | BSR:
        """A copy of the current weight, on the host."""
        kind = CSR if self.tile is None else BSR
        crow, col, values = (np.array(tensor.numpy()) for tensor in (self.crow_indices, self.col_indices, self.values))
        return kind(crow, col, values, (self.out_features, self.in_features))

    def check_state(self, arrays):
        self._structure(arrays[self.crow_indices], arrays[self.col_indices])

    def _structure(self, crow: np.ndarray, col: np.ndarray) -> CSR | BSR:
        """Return a weight whose entries at `crow` and `col` are 0; raise ValueError if these are not the indices of a CSR
        matrix."""
        kind = CSR if self.tile is None else BSR
        zeros = np.zeros(self.values.shape, np.float32)
        return kind(np.array(crow), np.array(col), zeros, (self.out_features, self.in_features))

    @property
    def layout(self) -> ops.Layout:
        """Return the structure on the device. It is cached until `crow_indices` or `col_indices` get other values
        (`Tensor.assign`).

        Raises
        ------
        ValueError
            If the indices do not form a valid structure.
        """
        of = self.crow_indices.data, self.col_indices.data, self.values.device  # devices may share arrays
        if self._made is None or any(a is not b for a, b in zip(self._made[0], of)):
            matrix = self._structure(self.crow_indices.numpy(), self.col_indices.numpy())
            self._made = of, ops.Layout(matrix, self.values.device)
        return self._made[1]

    def keep_trace(self, keep: bool) -> None:
        """Set whether backward passes store the arrays that `rewire` needs; arrays stored so far are deleted."""
        self.trace = [] if keep else None

    def rewire(self, count: int, total: Callable[[Device, Any], Any] | None = None) -> np.ndarray:
        """Remove the `count` entries of smallest magnitude, and add as many where the magnitude of the last gradient is
        largest.

        This is the step of RigL (Evci et al. 2020, "Rigging the lottery: making all tickets winners", algorithm 1). The method
        SET (Mocanu et al. 2018) adds entries at random and needs no gradient; the RigL paper finds it less accurate at equal
        FLOPs. New entries have the value 0. Call `keep_trace(True)` before the backward pass: it then stores dz and x, from
        which the dense gradient is computed.

        Parameters
        ----------
        count : int
            At most the number of entries.
        total : callable, optional
            A function (device, dense gradient) -> gradient to add entries by, such as `numbanet.parallel.joint_scores`, which
            adds up those of processes that train together. By default the gradient of this process.

        Returns
        -------
        ndarray of int
            For each entry its previous index, or -1 if the entry is new. The state of the optimiser for the values must be
            reordered in the same way. If the values or the gradient are not finite, no entry is moved.

        Raises
        ------
        ValueError
            If no backward pass stored a trace, or count is out of range.
        TypeError
            If the weight consists of tiles.
        """
        if self.tile is not None:
            raise TypeError("SparseLinear.rewire: only single entries can be rewired, and this weight consists of tiles")
        if not self.trace:
            raise ValueError("SparseLinear.rewire: no gradient is stored; call keep_trace(True) before a backward pass")
        dev, (dz, x) = self.values.device, self.trace
        gradient = dev.gemm(dz, x, ta=True)
        gradient = np.array(dev.download(gradient if total is None else total(dev, gradient)))
        if not (np.isfinite(self.values.numpy()).all() and np.isfinite(gradient).all()):
            return np.arange(self.values.size)
        weight = self.weight
        assert isinstance(weight, CSR)
        crow, col, previous = rewired(weight, gradient, count)
        before = np.append(self.values.numpy(), np.float32(0))  # index -1 stands for a new entry, whose value is 0
        for tensor, array in ((self.crow_indices, crow), (self.col_indices, col), (self.values, before[previous])):
            tensor.assign(dev.upload(array))
        return previous

    @property
    def records(self) -> bool:
        return super().records and self.trace is None

    def sites(self):
        """Return the same sites as `Linear`, so that site numbers stay the same; the site "tiles" takes no plan."""
        shape = self.out_features, self.in_features
        return Site("output", "output", shape, (AxisPlan, BernoulliPlan)), Site("tiles", "tiles", shape, ())

    def forward(self, flow: Flow, context: Context, relu: bool = False) -> Flow:
        """Return act(x wᵀ + b) for the neurons that the plan keeps; act is ReLU if `relu`. The plan's scale is pending."""
        flow = flow.with_(flow.dense()) if self.tile or flow.layout.plan is not None else flow.features()
        width = self.in_features if flow.indices is None else flow.indices.plan.count
        if flow.x.ndim < 1 or flow.x.shape[-1] != width:
            raise ValueError(
                f"SparseLinear: x {flow.x.shape} does not match the weight {(self.out_features, self.in_features)}"
                f"{'' if flow.indices is None else f' under {flow.indices.plan}'}: its last axis must be {width}"
            )
        if flow.x.ndim != 2:
            lead = flow.x.shape[:-1]
            out = self.forward(flow._replace(x=flow.x.reshape(math.prod(lead), width)), context, relu)
            return out._replace(x=out.x.reshape(*lead, out.x.shape[-1]))
        plan = context.plans.at(self)
        rows = plan if isinstance(plan, DeviceAxis) else None
        y = ops.linear_sparse(
            flow.x,
            self.values,
            self.bias,
            layout=self.layout,
            relu=relu,
            cols=flow.indices,
            rows=None if self.tile else rows,
            trace=self.trace,
        )
        y = ops.compact(y, plan=rows) if self.tile and rows is not None else y
        pending = () if plan is None or (rows is not None and plan.plan.scale == 1.0) else (plan.pending,)
        return flow.with_(y, DENSE if rows is None else Columns(rows), pending)

    def fuse_with(self, following):
        return functools.partial(self.forward, relu=True) if type(following) is ReLU else None

    def cost(self, spec, plans):
        """Return (cost, specification of the output). The cost is that of products with the stored entries. If single entries
        are stored, it is multiplied by the shares of neurons and inputs that dropout keeps; tiles are always all computed.
        Raise ValueError if the input does not have `in_features` features.
        """
        if not spec.shape or spec.shape[-1] not in (None, self.in_features):
            raise ValueError(f"{self!r}: it takes {self.in_features} features, and its input has {spec.shape[-1:]}")
        plan = plans.of(self)
        rows = plan if isinstance(plan, AxisPlan) else None
        inner = self.in_features if spec.plan is None else spec.plan.count
        outer = self.out_features if rows is None else rows.count
        share = 1.0 if self.tile else inner / self.in_features * outer / self.out_features
        return (
            product_cost(spec.samples, inner, outer, share * self.layout.nnz, spec),
            ActivationSpec((*spec.shape[:-1], self.out_features), rows, True),
        )

    def config(self):
        return {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}

    def __repr__(self) -> str:
        density = self.layout.nnz / (self.in_features * self.out_features)
        tiles = "" if self.tile is None else f", tiles of {self.tile}"
        return (
            f"SparseLinear({self.in_features}, {self.out_features}, density={density:.3g}{tiles}"
            f"{'' if self.bias is not None else ', bias=False'})"
        )


def drawn(shape: tuple[int, int], density: float, init: str, variance_factor: float, rng: np.random.Generator) -> CSR:
    """Return a random weight (O, I) of max(round(density O I), 1) entries; each row has as many as any other, or one more or
    fewer.
    """
    outputs, inputs = shape
    if not is_real(density) or not 0 < density <= 1:
        raise ValueError(f"SparseLinear: density must be in (0, 1], got {density!r}")
    if init not in ("he", "glorot"):
        raise ValueError(f"SparseLinear: init must be 'he' or 'glorot', got {init!r}")
    if not 0 < variance_factor <= 1:
        raise ValueError(f"SparseLinear: variance_factor must be in (0, 1], got {variance_factor!r}")
    total = max(round(density * outputs * inputs), 1)
    counts = np.full(outputs, total // outputs)
    counts[rng.permutation(outputs)[: total % outputs]] += 1
    columns = np.concatenate([np.sort(rng.choice(inputs, count, replace=False)) for count in counts])
    fans = np.repeat(counts if init == "he" else counts + total / inputs, counts)
    bounds = np.sqrt(3 * variance_factor * 2 / fans)
    return CSR(np.concatenate([[0], np.cumsum(counts)]), columns, rng.uniform(-bounds, bounds), shape)


def rewired(weight: CSR, gradient: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Remove the `count` smallest entries of a weight (O, I), and add as many at the positions without an entry at which
    |gradient| is largest. Return (crow_indices, col_indices, previous index of each entry, which is -1 for new ones).
    """
    (outputs, inputs), nnz = weight.shape, weight.nnz
    if not 0 <= count <= nnz:
        raise ValueError(f"SparseLinear.rewire: count must be from 0 to the number of entries, {nnz}, got {count}")
    flat = weight.rows.astype(np.int64) * inputs + weight.indices
    order = np.argsort(np.abs(weight.values), kind="stable")
    stays = np.sort(order[count:])
    size = np.abs(gradient).ravel()
    size[flat[stays]] = -1
    grown = np.argsort(-size, kind="stable")[:count]
    previous = np.concatenate([stays, np.full(count, -1)])
    entries = np.concatenate([flat[stays], grown])
    order = np.argsort(entries)
    rows, columns = np.divmod(entries[order], inputs)
    crow = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=outputs))])
    return crow.astype(np.int32), columns.astype(np.int32), previous[order]


def sparse_layers(model: Layer) -> list[SparseLinear]:
    """Return the sparse layers of a model, each of them once."""
    return [layer for layer in dict.fromkeys(Tree(model).layers.values()) if isinstance(layer, SparseLinear)]
