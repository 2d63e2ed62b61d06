"""Compaction: units of a network that do nothing leave it, with their weights and what the optimiser carries for these.

A unit, a neuron of a `Linear` or a filter of a `Conv2d`, leaves where

    nothing reads it     all weights that the next layer has for it are zero
    it is constant       all its own weights are zero, and what it gives the next layer, such as relu(bias), can be put into
                         that layer's bias, or the mean of its batch norm

and the network computes the same function as before. Where zeros are padded around what a constant filter gives, it is no
constant to the next convolution: it stays, unless it gives zero. Features that no weight reads, such as the pixels of a margin,
are left out by a `Select` in front of the layer.

That goes for layers inside of others, too, such as the body of a residual block: `joints` says between which layers units may
leave.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbanet_kernels.layouts.sparse import BSR, CSR

from ...autograd import no_grad
from ...layers import ActivationSpec, Context, Conv2d, Flow, Linear, Select, Sequential, SparseLinear
from ...plans import IndexPlan, Plans
from ...tensor import Tensor
from ..optim import Optimizer
from .joints import NORMS, Joint, Place, joints


# --- what leaves ------------------------------------------------------------------------------------------------------
def compact(model: Sequential, optimizer: Optimizer, shape: tuple[int, ...]) -> bool:
    """Let units leave that do nothing, front to back, until there are no more; returns whether any have left.

    Of each layer at least one unit stays. The shape is that of a batch of inputs.
    """
    count = 0
    while any([_leave(joint, optimizer) for joint in joints(model, shape)]):  # a list: every joint is looked at
        count += 1
    return count > 0


def _leave(joint: Joint, optimizer: Optimizer) -> bool:
    weight = joint.reader.weight.numpy()
    read = np.asarray(weight.reshape(*weight.shape[:2], -1).any(axis=(0, 2)))
    if joint.source is not None and _units_leave(joint, joint.source, read, optimizer):
        return True  # the joint is another one now
    read[0] |= not read.any()
    if not joint.flat or (joint.source is not None and joint.pixels == 1) or read.all():
        return False
    given = joint.select.plan if joint.select else IndexPlan(read.size, np.arange(read.size))
    _select(joint, given.indices()[read], given.n)
    resize(joint.reader.weight, read, 1, optimizer)
    return True


def _units_leave(joint: Joint, source: Linear | Conv2d, read: np.ndarray, optimizer: Optimizer) -> bool:
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
        _select(joint, places[joint.select.plan.indices()[stays]], int(places[-1]) + 1)
    resize(joint.reader.weight, stays, 1, optimizer)
    return True


def resize(tensor: Tensor, keep: np.ndarray, axis: int, optimizer: Optimizer) -> None:
    """Keep some entries of an axis of a parameter, with its state, or of a buffer."""
    dev = tensor.device

    def resized(array):
        return dev.upload(np.compress(keep, dev.download(array), axis))

    optimizer.resize(tensor, resized)


def _select(joint: Joint, index: np.ndarray, features: int) -> None:
    """Pass so many features on to the reader by these indices alone, in place of a `Select` that is there."""
    joint.place.replace(Select(features, index), joint.reader, before=int(joint.select is not None))


# --- sparse layers ----------------------------------------------------------------------------------------------------
def to_sparse(place: Place, optimizer: Optimizer, tile: int | None = None) -> None:
    """Put a `SparseLinear` in place of a layer: of its entries that are not zero, or of its tiles that are not all zero."""
    layer = place.layer
    weight, dev = layer.weight.numpy(), layer.weight.device
    matrix = CSR.from_dense(weight) if tile is None else BSR.from_dense(weight, tile)

    def values(array: np.ndarray) -> np.ndarray:
        """Of an array of the weight's shape, what lies where the matrix has entries."""
        return BSR.from_dense(array, matrix.tile, _tiles(matrix)).values if isinstance(matrix, BSR) else array[weight != 0]

    sparse = SparseLinear(layer.in_features, layer.out_features, weight=matrix, bias=False, device=dev)
    sparse.bias = layer.bias
    optimizer.exchange(layer.weight, sparse.values, lambda array: dev.upload(np.array(values(dev.download(array)))))
    place.replace(sparse)


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
    norm = joint.after if joint.after is not None and joint.after.acts_as(*NORMS) else None
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
