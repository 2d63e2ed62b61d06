"""Rewire: sparse layers whose entries change places while a network learns, as many as there are staying the same."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ...arguments import is_integer, is_real
from ...layers import Sequential, SparseLinear, Tree
from ..run import Run
from .base import Sparsity, Thinning


@dataclasses.dataclass(frozen=True)
class Rewire(Sparsity):
    """The weights of `SparseLinear` layers, but those of tiles, are rewired: the smallest are dropped, and as many grow where
    the dense gradient of the batch is largest (`Net`, sparsity).

    It is RigL (Evci et al. 2020, "Rigging the lottery: making all tickets winners", algorithm 1), with its numbers as
    defaults. Two things are simpler: the share follows the epoch, not the step, and the step that rewires is an update, too.

    Parameters
    ----------
    share : float, default=0.3
        In (0, 1]: how much of a layer is rewired at a time in the first epoch; later share / 2 (1 + cos(pi epoch / last)).
    every : int, default=100
        Steps from one time to the next. Each takes a dense product a layer, and about as long on the host.
    until : float, default=0.75
        In (0, 1]: share of the epochs, the first ones, after which the structure is fixed.

    Raises
    ------
    ValueError
        If a number is out of range; before training, if the network has no such layer, or uses one in several places.
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
            raise ValueError(f"Rewire: every must be a whole number of steps from 1 on, got {self.every!r}")

    def begin(self, model, shape, epochs, dev):
        if not _learning(model):
            raise ValueError(f"Rewire: there is no SparseLinear of single entries that learns in {model!r}")
        uses = collections.Counter(tensor for _, tensor, _ in model.named())
        for layer in _layers(model):
            if uses[layer.values] > 1:
                raise ValueError(f"Rewire: {layer!r} is used in several places; its gradient is known of one alone")
        for layer in _learning(model):
            layer.keep_trace(True)  # before the stepper asks whether steps may be recorded
        return Rewiring(self, max(1, round(self.until * epochs)))


class Rewiring(Thinning):
    """Rewires a network as a `Rewire` says, until an epoch."""

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
            places = layer.rewire(round(share * layer.values.size))
            for parameter, state in zip(run.optimizer.parameters, run.optimizer.state):
                if parameter is layer.values:
                    state[:] = [_moved(run, array, places) for array in state]
        self._rewired += share

    def compact(self, run):
        self.fit_end(run)
        return False

    def report(self):
        return {"rewired": self._rewired}

    def fit_end(self, run):
        for layer in _layers(run.model):
            layer.keep_trace(False)  # activations of the last batch


def _layers(model: Sequential) -> list[SparseLinear]:
    """Those that can be rewired, each once."""
    layers = dict.fromkeys(Tree(model).layers.values())
    return [layer for layer in layers if isinstance(layer, SparseLinear) and layer.tile is None]


def _learning(model: Sequential) -> list[SparseLinear]:
    """Those of them that are not frozen."""
    return [layer for layer in _layers(model) if layer.values.requires_grad]


def _moved(run: Run, array: Any, places: np.ndarray) -> Any:
    """What an optimiser carries along for values that are elsewhere now: 0 for new ones."""
    return run.dev.upload(np.append(run.dev.download(array), np.float32(0))[places])
