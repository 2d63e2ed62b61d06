"""Compaction removes units without effect on the output, together with their weights and the state of the optimiser for these
weights.

A unit is a neuron of a `Linear` or a filter of a `Conv2d`. It is removed if

    nothing reads it     all weights of the next layer for it are zero
    it is constant       all its incoming weights are zero, and its constant output, such as relu(bias), can be added to the
                         next layer's bias, or subtracted from the mean of its batch norm

In both cases the network computes the same function without it. If a following convolution pads a constant filter's output with
zeros, the padded output is not constant: the filter stays, unless its output is zero. Features that no weight reads, such as
pixels at the margin, are removed by a `Select` before the layer.

This includes layers inside other layers, such as the body of a residual block: `joints` finds the layers between which units
may be removed.
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


# --- removal ----------------------------------------------------------------------------------------------------------
def compact(model: Sequential, optimizer: Optimizer, shape: tuple[int, ...]) -> bool:
    """Remove units without effect on the output, from the first layer to the last, until there are none. Return True if any
    unit was removed.

    Each layer keeps at least one unit. `shape` is the shape of a batch of inputs.
    """
    count = 0
    while any([_leave(joint, optimizer) for joint in joints(model, shape)]):  # a list, so that every joint is processed
        count += 1
    return count > 0


def _leave(joint: Joint, optimizer: Optimizer) -> bool:
    weight = joint.reader.weight.numpy()
    read = np.asarray(weight.reshape(*weight.shape[:2], -1).any(axis=(0, 2)))
    if joint.source is not None and _units_leave(joint, joint.source, read, optimizer):
        return True  # the joint has changed, so it is processed again
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
    index = np.cumsum(np.repeat(~leave, joint.pixels)) - 1  # new index of each feature that stays
    resize(source.weight, ~leave, 0, optimizer)
    if source.bias is not None:
        resize(source.bias, ~leave, 0, optimizer)
    for tensor in (tensor for layer in joint.between for tensor in layer.by_unit()):
        resize(tensor, np.repeat(~leave, tensor.size // units), 0, optimizer)
    stays = ~leave[joint.owner]
    if joint.select:
        _select(joint, index[joint.select.plan.indices()[stays]], int(index[-1]) + 1)
    resize(joint.reader.weight, stays, 1, optimizer)
    return True


def resize(tensor: Tensor, keep: np.ndarray, axis: int, optimizer: Optimizer) -> None:
    """Keep only the entries `keep` of an axis of a buffer, or of a parameter and of the state of the optimiser for it."""
    dev = tensor.device

    def resized(array):
        return dev.upload(np.compress(keep, dev.download(array), axis))

    optimizer.resize(tensor, resized)


def _select(joint: Joint, index: np.ndarray, features: int) -> None:
    """Insert a `Select` of the features in `index` before the reader of the joint, or change the `Select` that is there."""
    joint.place.replace(Select(features, index), joint.reader, before=int(joint.select is not None))


# --- sparse layers ----------------------------------------------------------------------------------------------------
def to_sparse(place: Place, optimizer: Optimizer, tile: int | None = None) -> None:
    """Replace a layer by a `SparseLinear` with its nonzero entries, or with its tiles that are not all zero."""
    layer = place.layer
    weight, dev = layer.weight.numpy(), layer.weight.device
    matrix = CSR.from_dense(weight) if tile is None else BSR.from_dense(weight, tile)

    def values(array: np.ndarray) -> np.ndarray:
        """Return the entries of `array`, which has the shape of the weight, at the stored positions of the sparse matrix."""
        return BSR.from_dense(array, matrix.tile, _tiles(matrix)).values if isinstance(matrix, BSR) else array[weight != 0]

    sparse = SparseLinear(layer.in_features, layer.out_features, weight=matrix, bias=False, device=dev)
    sparse.bias = layer.bias
    optimizer.exchange(layer.weight, sparse.values, lambda array: dev.upload(np.array(values(dev.download(array)))))
    place.replace(sparse)


def _tiles(matrix: BSR) -> np.ndarray:
    """Return an array (block rows, block columns) of bool that is True for the tiles that the matrix stores."""
    mask = np.zeros(matrix.grid, bool)
    mask[np.repeat(np.arange(matrix.grid[0]), np.diff(matrix.indptr)), matrix.indices] = True
    return mask


# --- constant units ---------------------------------------------------------------------------------------------------
def _constants(joint: Joint, source: Linear | Conv2d) -> np.ndarray:
    """Return the inputs of the reader, (features,) or (channels, H, W), if the outputs of units depend only on their biases."""
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
    """Return a flag for each unit, which is True if a change of the reader's bias can replace the unit when it is constant."""
    zero = np.bincount(joint.owner, values.reshape(joint.owner.size, -1).any(axis=1), units) == 0
    norm = joint.after if joint.after is not None and joint.after.acts_as(*NORMS) else None
    if joint.reader.bias is None and norm is None:
        return zero
    if not isinstance(joint.reader, Conv2d):
        return np.ones_like(zero)
    same = np.ptp(values.reshape(len(values), -1), axis=1) == 0
    return zero | (same & (joint.reader.window.padding == (0, 0)))


def _fold(joint: Joint, values: np.ndarray, inputs: np.ndarray) -> None:
    """Add the contribution of the constant inputs `inputs` to the bias of the reader. If the reader has no bias, subtract it
    from the mean of the batch norm after the reader."""
    reader, weight = joint.reader, joint.reader.weight.numpy().astype(np.float64)
    constants = values.reshape(inputs.size, -1)[inputs, 0].astype(np.float64)
    sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2)[:, inputs] @ constants
    target: Any = reader.bias if reader.bias is not None else getattr(joint.after, "running_mean", None)
    sign = 1 if reader.bias is not None else -1
    if sums.any():
        target.assign(target.device.upload((target.numpy().astype(np.float64) + sign * sums).astype(np.float32)))


# --- counting ---------------------------------------------------------------------------------------------------------
def count_nonzero(model: Sequential) -> int:
    """Return the number of nonzero weights in the layers of a model, without biases."""
    return sum(
        int(np.count_nonzero(tensor.numpy()))
        for name, tensor, trained in model.named()
        if trained and (tensor.ndim > 1 or name.endswith(".values"))
    )


def flops(model: Sequential, shape: tuple[int, ...]) -> float:
    """Return the FLOPs of a dense training step with a batch of shape `shape`."""
    return model.cost(ActivationSpec(shape), Plans(next(model.parameters()).device))[0].flops
