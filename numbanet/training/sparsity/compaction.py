"""Compaction: units of a network that do nothing leave it, with their weights and what the optimiser carries for these.

A unit, a neuron of a `Linear` or a filter of a `Conv2d`, leaves where

    nothing reads it     all weights that the next layer has for it are zero
    it is constant       all its own weights are zero, and what it gives the next layer, such as relu(bias), can be put into
                         that layer's bias, or the mean of its batch norm

and the network computes the same function as before. Where zeros are padded around what a constant filter gives, it is no
constant to the next convolution: it stays, unless it gives zero. Features that no weight reads, such as the pixels of a margin,
are left out by a `Select` in front of the layer.
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
    """Whether a layer is one of those whose weights may be changed; a subclass may do something else with them."""
    return type(layer) in (Linear, Conv2d)


@dataclasses.dataclass(frozen=True)
class Joint:
    """Where units may leave: between two layers with weights, or in front of the first.

    Attributes
    ----------
    source : Linear, Conv2d or None
        The layer whose units these are; None where they are not those of a layer that is known, or where what changes as they
        leave is used elsewhere, too: biases, batch norms.
    between : tuple of Layer
        What they pass through, each by itself.
    reader : Linear or Conv2d
        What reads them.
    after : Layer or None
        The layer behind the reader.
    spec : ActivationSpec
        What the source gives.
    flat : bool
        Whether the reader's input is (N, features), so that a `Select` may stand before it.
    owner : ndarray
        Of each input of the reader, the unit that it comes from; without a source itself.
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
        """The features that the reader is given, where they are selected."""
        return self.between[-1] if self.between and type(self.between[-1]) is Select else None

    @property
    def pixels(self) -> int:
        """How many features a unit has where the reader, or a `Select` before it, takes them."""
        inputs = self.select.plan.n if self.select else self.owner.size
        return inputs // self.source.weight.shape[0] if self.source else 1


def trainable(model: Sequential) -> set[Linear | Conv2d]:
    """The layers whose weights may be changed: `Linear` and `Conv2d` without groups, that train and share no weight."""
    shared = Tree(model).shared
    return {
        layer
        for layer in model.layers
        if changeable(layer) and getattr(layer, "groups", 1) == 1 and layer.weight.requires_grad and layer.weight not in shared
    }


def joints(model: Sequential, shape: tuple[int, ...]) -> list[Joint]:
    """Front to back, for inputs of a shape (N, …)."""
    found, own, shared, spec = [], trainable(model), Tree(model).shared, ActivationSpec(shape)
    source: Linear | Conv2d | None = None
    between: list[Layer] = []
    given = spec
    for place, layer in enumerate(model.layers):
        if changeable(layer) and layer in own:
            after = model.layers[place + 1] if place + 1 < len(model.layers) else None
            parts = filter(None, (source, *between, layer, after if type(after) in NORMS else None))
            known = shared.isdisjoint(tensor for part in parts for _, tensor, _ in part.named())
            found.append(_joint(source if known else None, tuple(between), layer, after, given, len(spec.shape) == 2))
            source, between = layer, []
        else:
            between.append(layer)
        spec = layer.cost(spec, Plans())[1]
        given = spec if layer in own else given
    return found


def _joint(
    source: Linear | Conv2d | None,
    between: tuple[Layer, ...],
    reader: Linear | Conv2d,
    after: Layer | None,
    spec: ActivationSpec,
    flat: bool,
) -> Joint:
    """With the source, where each of its units passes to the reader by itself."""
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


# --- what leaves ------------------------------------------------------------------------------------------------------
def compact(model: Sequential, optimizer: Optimizer, shape: tuple[int, ...]) -> bool:
    """Let units leave that do nothing, front to back, until there are no more; returns whether any have left.

    Of each layer at least one unit stays. The shape is that of a batch of inputs.
    """
    count = 0
    while any([_leave(model, joint, optimizer) for joint in joints(model, shape)]):  # a list: every joint is looked at
        count += 1
    return count > 0


def _leave(model: Sequential, joint: Joint, optimizer: Optimizer) -> bool:
    weight = joint.reader.weight.numpy()
    read = np.asarray(weight.reshape(*weight.shape[:2], -1).any(axis=(0, 2)))
    if joint.source is not None and _units_leave(model, joint, joint.source, read, optimizer):
        return True  # the joint is another one now
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
    places = np.cumsum(np.repeat(~leave, joint.pixels)) - 1  # of features, when others have left
    resize(source.weight, ~leave, 0, optimizer)
    if source.bias is not None:
        resize(source.bias, ~leave, 0, optimizer)
    for tensor in (getattr(layer, name) for layer in joint.between for name in layer.units):
        resize(tensor, np.repeat(~leave, tensor.size // units), 0, optimizer)
    stays = ~leave[joint.owner]
    if joint.select:
        _select(model, joint, places[joint.select.plan.indices()[stays]], int(places[-1]) + 1)
    resize(joint.reader.weight, stays, 1, optimizer)
    return True


def resize(tensor: Tensor, keep: np.ndarray, axis: int, optimizer: Optimizer) -> None:
    """Keep some entries of an axis of a parameter, with its state, or of a buffer."""
    dev = tensor.device

    def resized(array):
        return dev.upload(np.compress(keep, dev.download(array), axis))

    optimizer.resize(tensor, resized)


def _select(model: Sequential, joint: Joint, index: np.ndarray, features: int) -> None:
    """Pass so many features on to the reader by these indices alone, in place of a `Select` that is there."""
    layer, place = Select(features, index), model.layers.index(joint.reader)
    model.layers[place - (joint.select is not None) : place] = [layer]


# --- sparse layers ----------------------------------------------------------------------------------------------------
def to_sparse(model: Sequential, layer: Linear, optimizer: Optimizer, tile: int | None = None) -> None:
    """Put a `SparseLinear` in place of a layer: of its entries that are not zero, or of its tiles that are not all zero."""
    weight, dev = layer.weight.numpy(), layer.weight.device
    matrix = CSR.from_dense(weight) if tile is None else BSR.from_dense(weight, tile)

    def values(array: np.ndarray) -> np.ndarray:
        """Of an array of the weight's shape, what lies where the matrix has entries."""
        return BSR.from_dense(array, matrix.tile, _tiles(matrix)).values if isinstance(matrix, BSR) else array[weight != 0]

    sparse = SparseLinear(layer.in_features, layer.out_features, weight=matrix, bias=False, device=dev)
    sparse.bias = layer.bias
    optimizer.exchange(layer.weight, sparse.values, lambda array: dev.upload(np.array(values(dev.download(array)))))
    model.layers[model.layers.index(layer)] = sparse


def _tiles(matrix: BSR) -> np.ndarray:
    """(block rows, block columns) bool: which tiles there are."""
    mask = np.zeros(matrix.grid, bool)
    mask[np.repeat(np.arange(matrix.grid[0]), np.diff(matrix.indptr)), matrix.indices] = True
    return mask


# --- what constant units give -----------------------------------------------------------------------------------------
def _constants(joint: Joint, source: Linear | Conv2d) -> np.ndarray:
    """What each input of the reader is where all units are their bias: (features,), or (channels, H, W)."""
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
    """Which units, if constant, the reader can do without, given what it would put into its bias."""
    zero = np.bincount(joint.owner, values.reshape(joint.owner.size, -1).any(axis=1), units) == 0
    norm = joint.after if type(joint.after) in NORMS else None
    if joint.reader.bias is None and norm is None:
        return zero
    if not isinstance(joint.reader, Conv2d):
        return np.ones_like(zero)
    same = np.ptp(values.reshape(len(values), -1), axis=1) == 0
    return zero | (same & (joint.reader.window.padding == (0, 0)))


def _fold(joint: Joint, values: np.ndarray, inputs: np.ndarray) -> None:
    """Put what these inputs of the reader always are into its bias; without one, take it off the mean of its batch norm."""
    reader, weight = joint.reader, joint.reader.weight.numpy().astype(np.float64)
    constants = values.reshape(inputs.size, -1)[inputs, 0].astype(np.float64)
    sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2)[:, inputs] @ constants
    target: Any = reader.bias if reader.bias is not None else getattr(joint.after, "running_mean", None)
    sign = 1 if reader.bias is not None else -1
    if sums.any():
        target.assign(target.device.upload((target.numpy().astype(np.float64) + sign * sums).astype(np.float32)))


# --- counting ---------------------------------------------------------------------------------------------------------
def count_nonzero(model: Sequential) -> int:
    """How many weights of products, biases apart, are not zero."""
    return sum(
        int(np.count_nonzero(tensor.numpy()))
        for name, tensor, trained in model.named()
        if trained and (tensor.ndim > 1 or name.endswith(".values"))
    )


def flops(model: Sequential, shape: tuple[int, ...]) -> float:
    """Of a training step with a batch of this shape, nothing dropped."""
    return model.cost(ActivationSpec(shape), Plans(next(model.parameters()).device))[0].flops
