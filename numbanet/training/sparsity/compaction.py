"""Compaction: removes units that do nothing, with their weights and the optimiser's state for these.

A unit, that is a neuron of a `Linear` or a filter of a `Conv2d`, is removed if

    nothing reads it     all weights of the next layer for it are zero
    it is constant       all its incoming weights are zero, and its constant output, such as relu(bias), can be added to the
    next
                         layer's bias, or subtracted from the mean of its batch norm

so that the network computes the same function. If a following convolution pads a constant filter's output with zeros, the
padded output is not constant: the filter stays, unless its output is zero. Features that no weight reads, such as pixels at the
margin, are removed by a `Select` before the layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeGuard

import numpy as np

from numbanet_kernels.layouts.sparse import BSR, CSR

from ...autograd import no_grad
from ...layers import (
    ActivationSpec,
    BatchNorm1d,
    BatchNorm2d,
    Context,
    Conv2d,
    Flatten,
    Flow,
    Layer,
    Linear,
    Select,
    Sequential,
    SparseLinear,
    Tree,
)
from ...plans import IndexPlan, Plans
from ...tensor import Tensor
from ..optim import Optimizer

NORMS = BatchNorm1d, BatchNorm2d


def changeable(layer: Layer) -> TypeGuard[Linear | Conv2d]:
    """True if a layer's weights may be changed; a subclass is excluded, because it may use them in other ways."""
    return type(layer) in (Linear, Conv2d)


@dataclasses.dataclass(frozen=True)
class Joint:
    """A point of the network where units may be removed: between two layers with weights, or before the first.

    Attributes
    ----------
    source : Linear, Conv2d or None
        The layer that computes the units; None if that is not a known layer, or if its biases or batch norms are used elsewhere
        too.
    between : tuple of Layer
        Layers between source and reader, which process each unit by itself.
    reader : Linear or Conv2d
        The layer that reads the units.
    after : Layer or None
        The layer after the reader.
    spec : ActivationSpec
        The source's output.
    flat : bool
        True if the reader's input is (N, features), so that a `Select` may be inserted before it.
    owner : ndarray
        For each input of the reader, the unit that it comes from; without a source, the input itself.
    """

    source: Linear | Conv2d | None
    between: tuple[Layer, ...]
    reader: Linear | Conv2d
    after: Layer | None
    spec: ActivationSpec
    flat: bool
    owner: np.ndarray

    @property
    def select(self) -> Select | None:
        """The `Select` before the reader, if there is one."""
        return self.between[-1] if self.between and type(self.between[-1]) is Select else None

    @property
    def pixels(self) -> int:
        """Number of features per unit at the reader, or at the `Select` before it."""
        inputs = self.select.plan.n if self.select else self.owner.size
        return inputs // self.source.weight.shape[0] if self.source else 1


def trainable(model: Sequential) -> set[Linear | Conv2d]:
    """The layers whose weights may be changed: trainable `Linear`, and `Conv2d` without groups, that share no weights."""
    shared = Tree(model).shared
    return {
        layer
        for layer in model.layers
        if changeable(layer) and getattr(layer, "groups", 1) == 1 and layer.weight.requires_grad and layer.weight not in shared
    }


def joints(model: Sequential, shape: tuple[int, ...]) -> list[Joint]:
    """All joints, front to back, for inputs of a shape (N, …)."""
    joints, readers, shared, spec = [], trainable(model), Tree(model).shared, ActivationSpec(shape)
    source: Linear | Conv2d | None = None
    between: list[Layer] = []
    given = spec
    for i, layer in enumerate(model.layers):
        if changeable(layer) and layer in readers:
            after = model.layers[i + 1] if i + 1 < len(model.layers) else None
            parts = filter(None, (source, *between, layer, after if type(after) in NORMS else None))
            known = shared.isdisjoint(tensor for part in parts for _, tensor, _ in part.named())
            joints.append(_joint(source if known else None, tuple(between), layer, after, given, len(spec.shape) == 2))
            source, between = layer, []
        else:
            between.append(layer)
        spec = layer.cost(spec, Plans())[1]
        given = spec if layer in readers else given
    return joints


def _joint(
    source: Linear | Conv2d | None,
    between: tuple[Layer, ...],
    reader: Linear | Conv2d,
    after: Layer | None,
    spec: ActivationSpec,
    flat: bool,
) -> Joint:
    """A joint; its source is kept if each of its units reaches the reader by itself."""
    inputs = reader.weight.shape[1]
    alone = Joint(None, between, reader, after, spec, flat, np.arange(inputs))
    through = between[:-1] if alone.select else between
    if source is None or not all(layer.passes_units for layer in through):
        return alone
    units, features = source.weight.shape[0], alone.select.plan.n if alone.select else inputs
    images = len(spec.shape) == 4
    flattened = images and type(reader) is Linear and Flatten in map(type, through)
    if (
        not (len(spec.shape) == 2 or flattened or (images and type(reader) is Conv2d))
        or features % units
        or (features != units and not flattened)
    ):
        return alone
    owner = np.repeat(np.arange(units), features // units)
    return dataclasses.replace(alone, source=source, owner=owner[alone.select.plan.indices()] if alone.select else owner)


# --- removal ----------------------------------------------------------------------------------------------------------
def compact(model: Sequential, optimizer: Optimizer, shape: tuple[int, ...]) -> bool:
    """Remove units that do nothing, front to back, until there are none; returns True if any were removed.

    Each layer keeps at least one unit. `shape` is that of a batch of inputs.
    """
    count = 0
    while any([_leave(model, joint, optimizer) for joint in joints(model, shape)]):  # a list: every joint is processed
        count += 1
    return count > 0


def _leave(model: Sequential, joint: Joint, optimizer: Optimizer) -> bool:
    weight = joint.reader.weight.numpy()
    read = np.asarray(weight.reshape(*weight.shape[:2], -1).any(axis=(0, 2)))
    if joint.source is not None and _units_leave(model, joint, joint.source, read, optimizer):
        return True  # the joint has changed
    read[0] |= not read.any()
    if not joint.flat or (joint.source is not None and joint.pixels == 1) or read.all():
        return False
    given = joint.select.plan if joint.select else IndexPlan(read.size, np.arange(read.size))
    _select(model, joint, given.indices()[read], given.n)
    resize(joint.reader.weight, read, 1, optimizer)
    return True


def _units_leave(model: Sequential, joint: Joint, source: Linear | Conv2d, read: np.ndarray, optimizer: Optimizer) -> bool:
    units = source.weight.shape[0]
    constant = ~source.weight.numpy().reshape(units, -1).any(axis=1)
    unread = np.bincount(joint.owner[read], minlength=units) == 0
    leave, values = unread | constant, None
    if (constant & ~unread).any():
        values = _constants(joint, source)
        leave &= unread | _foldable(joint, units, values)
    leave[0] &= not leave.all()
    if not leave.any():
        return False
    if values is not None:
        _fold(joint, values, leave[joint.owner] & read)
    index = np.cumsum(np.repeat(~leave, joint.pixels)) - 1  # new indices of the features
    resize(source.weight, ~leave, 0, optimizer)
    if source.bias is not None:
        resize(source.bias, ~leave, 0, optimizer)
    for tensor in (getattr(layer, name) for layer in joint.between for name in layer.units):
        resize(tensor, np.repeat(~leave, tensor.size // units), 0, optimizer)
    stays = ~leave[joint.owner]
    if joint.select:
        _select(model, joint, index[joint.select.plan.indices()[stays]], int(index[-1]) + 1)
    resize(joint.reader.weight, stays, 1, optimizer)
    return True


def resize(tensor: Tensor, keep: np.ndarray, axis: int, optimizer: Optimizer) -> None:
    """Keep some entries of an axis of a buffer, or of a parameter and its optimiser state."""
    dev = tensor.device

    def resized(array):
        return dev.upload(np.compress(keep, dev.download(array), axis))

    optimizer.resize(tensor, resized)


def _select(model: Sequential, joint: Joint, index: np.ndarray, features: int) -> None:
    """Pass only the features `index` of n to the reader, replacing an existing `Select`."""
    layer, at = Select(features, index), model.layers.index(joint.reader)
    model.layers[at - (joint.select is not None) : at] = [layer]


# --- sparse layers ----------------------------------------------------------------------------------------------------
def to_sparse(model: Sequential, layer: Linear, optimizer: Optimizer, tile: int | None = None) -> None:
    """Replace a layer by a `SparseLinear` with its nonzero entries, or with its tiles that are not all zero."""
    weight, dev = layer.weight.numpy(), layer.weight.device
    matrix = CSR.from_dense(weight) if tile is None else BSR.from_dense(weight, tile)

    def values(array: np.ndarray) -> np.ndarray:
        """The entries of an array of the weight's shape at the matrix's positions."""
        return BSR.from_dense(array, matrix.tile, _tiles(matrix)).values if isinstance(matrix, BSR) else array[weight != 0]

    sparse = SparseLinear(layer.in_features, layer.out_features, weight=matrix, bias=False, device=dev)
    sparse.bias = layer.bias
    optimizer.exchange(layer.weight, sparse.values, lambda array: dev.upload(np.array(values(dev.download(array)))))
    model.layers[model.layers.index(layer)] = sparse


def _tiles(matrix: BSR) -> np.ndarray:
    """(block rows, block columns) bool: which tiles are stored."""
    mask = np.zeros(matrix.grid, bool)
    mask[np.repeat(np.arange(matrix.grid[0]), np.diff(matrix.indptr)), matrix.indices] = True
    return mask


# --- constant units ---------------------------------------------------------------------------------------------------
def _constants(joint: Joint, source: Linear | Conv2d) -> np.ndarray:
    """Each input of the reader if all units equal their bias: (features,), or (channels, H, W)."""
    units, *others = (n or 1 for n in joint.spec.shape[1:])
    bias = np.zeros(units, np.float32) if source.bias is None else source.bias.numpy()
    x = np.broadcast_to(bias.reshape(1, units, *(1 for _ in others)), (1, units, *others))
    dev = source.weight.device
    with no_grad():
        flow = Flow(Tensor(np.array(x), dev))
        for layer in joint.between:
            flow = layer.forward(flow, Context(dev))
        return np.array(flow.dense().numpy()[0])


def _foldable(joint: Joint, units: int, values: np.ndarray) -> np.ndarray:
    """Which units, if constant, can be replaced by a change of the reader's bias."""
    zero = np.bincount(joint.owner, values.reshape(joint.owner.size, -1).any(axis=1), units) == 0
    norm = joint.after if type(joint.after) in NORMS else None
    if joint.reader.bias is None and norm is None:
        return zero
    if not isinstance(joint.reader, Conv2d):
        return np.ones_like(zero)
    same = np.ptp(values.reshape(len(values), -1), axis=1) == 0
    return zero | (same & (joint.reader.window.padding == (0, 0)))


def _fold(joint: Joint, values: np.ndarray, inputs: np.ndarray) -> None:
    """Add the contribution of these constant inputs to the reader's bias; without a bias, subtract it from its batch norm's
    mean."""
    reader, weight = joint.reader, joint.reader.weight.numpy().astype(np.float64)
    constants = values.reshape(inputs.size, -1)[inputs, 0].astype(np.float64)
    sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2)[:, inputs] @ constants
    target: Any = reader.bias if reader.bias is not None else getattr(joint.after, "running_mean", None)
    sign = 1 if reader.bias is not None else -1
    if sums.any():
        target.assign(target.device.upload((target.numpy().astype(np.float64) + sign * sums).astype(np.float32)))


# --- counting ---------------------------------------------------------------------------------------------------------
def count_nonzero(model: Sequential) -> int:
    """Number of nonzero weights of products, biases excluded."""
    return sum(
        int(np.count_nonzero(tensor.numpy()))
        for name, tensor, trained in model.named()
        if trained and (tensor.ndim > 1 or name.endswith(".values"))
    )


def flops(model: Sequential, shape: tuple[int, ...]) -> float:
    """FLOPs of a dense training step with a batch of this shape."""
    return model.cost(ActivationSpec(shape), Plans(next(model.parameters()).device))[0].flops
