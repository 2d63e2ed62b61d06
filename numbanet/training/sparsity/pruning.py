"""`MagnitudePruning` sets the smallest weights to zero, gradually during training (Zhu & Gupta 2017, "To prune, or not to
prune: exploring the efficacy of pruning for model compression", section 3).

After the last pruning the products of `Linear` layers use lists of entries; convolutions and LSTMs stay dense, with a mask.
Structured sparsity (`lasso`) is compared with pruning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from ...layers import LSTM, Conv2d, Layer, Linear, Sequential, Tree
from ...layers.sparse import sparse_layers
from ...tensor import Tensor
from ..optim import Proximal
from . import compaction
from .base import Sparsity, Thinning, check_share
from .joints import places, trainable


def cubic(progress: float) -> float:
    """Return 1 - (1 - progress)³: most weights are pruned early, when many are redundant (Zhu & Gupta 2017, eq. 1)."""
    return 1 - (1 - progress) ** 3


@dataclasses.dataclass(frozen=True)
class MagnitudePruning(Sparsity):
    """Unstructured sparsity: the smallest entries of the weights of `Linear`, `Conv2d` and `LSTM` layers become zero, except in
    the last layer.

    At the end of each epoch, more entries are set to zero; they stay zero. After the last pruning, each pruned `Linear` layer
    of a `Sequential` becomes a `SparseLinear`, which is fine-tuned. Convolutions and LSTMs keep a mask. So do layers that are
    attributes of another layer, and instances of subclasses that override `forward` or `__call__`. Layers inside other layers
    are pruned, too.

    Parameters
    ----------
    sparsity : float, default=0.9
        In [0, 1): the share of the entries of each weight that becomes zero.
    fine_tuning : float, default=0.5
        In [0, 1): share of the epochs, at the end, without further pruning.
    schedule : callable, default=cubic
        Maps the progress of pruning, in [0, 1], to the share of `sparsity` that is reached; it must map 1 to 1.

    Raises
    ------
    ValueError
        If a number is out of range; before training, if there is no layer to prune, if the schedule returns a value outside
        [0, 1], or if it does not map 1 to 1.
    """

    name: ClassVar[str] = "magnitude"
    sparsity: float = 0.9
    fine_tuning: float = 0.5
    schedule: Callable[[float], float] = cubic

    def __post_init__(self) -> None:
        check_share("MagnitudePruning: sparsity", self.sparsity, open_end=True)
        check_share("MagnitudePruning: fine_tuning", self.fine_tuning, open_end=True)
        if not callable(self.schedule):
            raise ValueError(f"MagnitudePruning: schedule must be a function of the share of epochs, got {self.schedule!r}")

    def begin(self, model, shape, epochs, dev):
        if not _weights(model):
            raise ValueError(f"MagnitudePruning: there is no layer to prune in {model!r}")
        return self.again(model, shape, epochs, dev)

    def again(self, model, shape, epochs, dev):
        return Pruning(self, model, shape, epochs)

    def further(self, model, shape, epochs, dev):
        weights = _weights(model)
        if not weights and not sparse_layers(model):
            return self.begin(model, shape, epochs, dev)  # raises its error
        left = [weight.size - round(self.sparsity * weight.size) for weight in weights]
        pruned = all(np.count_nonzero(weight.numpy()) <= most for weight, most in zip(weights, left))
        return Pruning(self, model, shape, 0 if pruned else epochs)


def _layers(model: Sequential) -> Sequence[Layer]:
    """Return the layers that can be pruned, in the order of the tree: not the last one with weights, even if these are frozen
    or shared.
    """
    found = trainable(model)
    weighted = [layer for layer in dict.fromkeys(Tree(model).layers.values()) if isinstance(layer, (Linear, Conv2d, LSTM))]
    return [layer for layer in weighted[:-1] if layer in found or isinstance(layer, LSTM)]


def _weights(model: Sequential) -> list[Tensor]:
    """Return the tensors that are pruned: trainable matrices that are not shared."""
    shared = Tree(model).shared
    return [
        tensor
        for layer in _layers(model)
        for name, tensor, _ in layer.named()
        if name.startswith("weight") and tensor.requires_grad and tensor not in shared
    ]


class Masking(Proximal):
    """Keeps zero entries of weights at zero: w *= mask."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.masks = {weight: weight.device.full(weight.shape, 1.0) for weight in weights}

    def serves(self, weights: list[Tensor]) -> bool:
        """Return True if the step masks these weights, and their shapes have not changed."""
        return list(self.masks) == weights and all(weight.shape == tuple(mask.shape) for weight, mask in self.masks.items())

    def hosted(self) -> list[np.ndarray]:
        """Return the masks on the host."""
        return [weight.device.download(mask) != 0 for weight, mask in self.masks.items()]

    def set(self, masks: list[np.ndarray]) -> None:
        """Set masks that `hosted` returned."""
        for (weight, mask), given in zip(self.masks.items(), masks, strict=True):
            weight.device.copy(weight.device.upload(np.float32(given)), out=mask)

    def keep(self) -> None:
        """Let the entries that are zero now stay zero."""
        for weight, mask in self.masks.items():
            weight.device.copy(weight.device.upload(np.float32(weight.numpy() != 0)), out=mask)

    def apply(self, numbers):
        for weight, mask in self.masks.items():
            weight.device.mul(weight.data, mask, out=weight.data)


class Pruning(Thinning):
    """The hook that applies a `MagnitudePruning`."""

    def __init__(self, chosen: MagnitudePruning, model: Sequential, shape: tuple[int, ...], epochs: int) -> None:
        self.chosen, self.shape = chosen, shape
        self.first = compaction.count_nonzero(model), compaction.flops(model, shape)
        self.until = max(1, round(epochs * (1 - chosen.fine_tuning))) if epochs else 0  # 0: it stays as it is
        self.shares = [float(chosen.schedule(epoch / self.until)) for epoch in range(1, self.until + 1)]
        for share in self.shares:
            check_share("MagnitudePruning: what the schedule gives", share)
        if self.shares and not math.isclose(self.shares[-1], 1):
            raise ValueError(f"MagnitudePruning: the schedule must give 1 at 1, not {self.shares[-1]!r}")
        self._left = 1.0
        self.step: Masking | None = None

    def epoch_start(self, run, epoch):
        self.final = epoch >= self.until
        self.share = compaction.flops(run.model, self.shape) / self.first[1]
        weights = _weights(run.model) if epoch or self.final else []
        if not weights:
            self.step = None
        else:
            if self.step is None or not self.step.serves(weights):  # recorded steps are those of an object
                self.step = Masking(weights)
            self.step.keep()
        run.optimizer.end_with(self.step)

    def fit_end(self, run):
        run.optimizer.end_with(None)

    def compact(self, run):
        linear = []
        if not self.final:
            for weight in _weights(run.model):
                _zero(weight, self.chosen.sparsity * self.shares[run.epoch])
            if run.epoch + 1 == self.until:
                known, pruned = places(run.model, self.shape), _layers(run.model)
                linear = [place for layer, place in known.items() if layer in pruned and isinstance(layer, Linear)]
        for place in linear:
            compaction.to_sparse(place, run.optimizer)
        self._left = compaction.count_nonzero(run.model) / self.first[0]
        return bool(linear)

    def checkpoint(self, run):
        return {"first": self.first, "until": self.until, "masks": self.step.hosted() if self.step and run.done else None}

    def resume(self, run, saved):
        self.first, self.until = saved["first"], saved.get("until", self.until)
        if saved["masks"] is not None and self.step is not None:
            self.step.set(saved["masks"])

    def report(self):
        return {"weights_kept": self._left}

    def __getstate__(self):
        return {**vars(self), "step": None}


def _zero(weight: Tensor, share: float) -> None:
    """Set the smallest entries of a weight to zero, so that a share `share` of all entries is zero."""
    values = np.array(weight.numpy())
    values.reshape(-1)[np.argsort(np.abs(values), None)[: round(share * values.size)]] = 0
    weight.assign(weight.device.upload(values))
