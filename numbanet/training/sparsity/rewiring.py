"""Rewire: moves the entries of sparse layers during training; the number of entries stays the same."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ...arguments import is_integer, is_real
from ...layers import Sequential, SparseLinear
from ...layers.sparse import sparse_layers
from ...parallel.scores import joint_scores
from ..run import Run
from .base import Sparsity, Thinning


@dataclasses.dataclass(frozen=True)
class Rewire(Sparsity):
    """Moves entries of the weights of `SparseLinear` layers (single entries, not tiles): it removes the smallest entries, and
    adds as many at the positions with the largest dense gradient of the batch, which is that of all processes with `parallel`.
    Use it as `Net(sparsity=Rewire())`.

    This is the method RigL (Evci et al. 2020, "Rigging the lottery: making all tickets winners", algorithm 1), and the defaults
    are those of the paper. Two details are simpler here: the share depends on the epoch, not on the step, and a step that
    rewires also updates the weights.

    Parameters
    ----------
    share : float, default=0.3
        In (0, 1]: the share of the entries of a layer that each rewiring moves in the first epoch. In later epochs the share is
        share / 2 (1 + cos(pi epoch / last)), where `last` is the number of epochs after which the structure is fixed.
    every : int, default=100
        Number of steps between rewirings. A rewiring takes a dense product per layer, and about as much time on the host.
    until : float, default=0.75
        In (0, 1]: share of the epochs after which the structure is fixed.

    Raises
    ------
    ValueError
        If a number is out of range; before training, if the network has no such layer, or uses one more than once.
    """

    name: ClassVar[str] = "rewire"
    share: float = 0.3
    every: int = 100
    until: float = 0.75

    def __post_init__(self) -> None:
        for name in ("share", "until"):
            value = getattr(self, name)
            if not is_real(value) or not 0 < value <= 1:
                raise ValueError(f"Rewire: {name} must be a number in (0, 1], got {value!r}")
        if not is_integer(self.every) or self.every < 1:
            raise ValueError(f"Rewire: every must be a positive integer, got {self.every!r}")

    def begin(self, model, shape, epochs, dev):
        if not _learning(model):
            raise ValueError(f"Rewire: there is no trainable SparseLinear of single entries in {model!r}")
        uses = collections.Counter(tensor for _, tensor, _ in model.named())
        for layer in _layers(model):
            if uses[layer.values] > 1:
                raise ValueError(f"Rewire: {layer!r} is used more than once; its trace holds the gradient of one use only")
        for layer in _learning(model):
            layer.keep_trace(True)  # called here, because afterwards the stepper asks whether steps may be recorded
        return Rewiring(self, max(1, round(self.until * epochs)))


class Rewiring(Thinning):
    """The hook that applies a `Rewire` until the structure is fixed."""

    def __init__(self, chosen: Rewire, until: int) -> None:
        self.chosen, self.until, self._rewired = chosen, until, 0.0

    def epoch_start(self, run, epoch):
        self.changes, self._rewired = epoch < self.until, 0.0
        for layer in _learning(run.model):
            layer.keep_trace(self.changes)

    def after_update(self, run):
        if not self.changes or run.optimizer.steps % self.chosen.every:
            return
        share = self.chosen.share / 2 * (1 + math.cos(math.pi * run.epoch / self.until))
        for layer in _learning(run.model):
            previous = layer.rewire(round(share * layer.values.size), joint_scores)
            for parameter, state in zip(run.optimizer.parameters, run.optimizer.state):
                if parameter is layer.values:
                    state[:] = [_moved(run, array, previous) for array in state]
        self._rewired += share

    def checkpoint(self, run):
        return self._rewired

    def resume(self, run, saved):
        self._rewired = saved

    def compact(self, run):
        self.fit_end(run)
        return False

    def report(self):
        return {"rewired": self._rewired}

    def fit_end(self, run):
        for layer in _layers(run.model):
            layer.keep_trace(False)  # this also frees the activations of the last batch


def _layers(model: Sequential) -> list[SparseLinear]:
    """Return the layers that can be rewired, each of them once."""
    return [layer for layer in sparse_layers(model) if layer.tile is None]


def _learning(model: Sequential) -> list[SparseLinear]:
    """Return the layers of `_layers` whose values are not frozen."""
    return [layer for layer in _layers(model) if layer.values.requires_grad]


def _moved(run: Run, array: Any, previous: np.ndarray) -> Any:
    """Return an array of the state of the optimiser, reordered like the entries; it is 0 for new entries."""
    return run.dev.upload(np.append(run.dev.download(array), np.float32(0))[previous])
