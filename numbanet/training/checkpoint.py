"""Checkpoint: where a training run can go back to."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from .trainer import Trainer


class Checkpoint:
    """Copies of a model's parameters and buffers, on the device, and where all else that training depends on was.

    No steps of the trainer's weights may be missed. The arrays of an old checkpoint are used again.
    """

    def __init__(self, trainer: Trainer, epoch: int, whole: bool = True, old: Checkpoint | None = None) -> None:
        self.epoch, optimizer = epoch, trainer.optimizer  # how many epochs are done
        self.whole = whole  # whether training can go on as if nothing had come after; else the optimiser starts anew
        self.streams, self.steps, self.counts = trainer.streams.state(), optimizer.steps, optimizer.counts
        self.upcoming = trainer.upcoming and dict(trainer.upcoming.assigned)
        self.layers, self.parameters = list(trainer.model.layers), list(optimizer.parameters)
        self.arrays: list[Any] = []
        old_arrays = old.arrays if old else []
        state = [array for arrays in optimizer.state for array in arrays] if whole else []
        for i, array in enumerate([*(tensor.data for _, tensor, _ in trainer.model.named()), *state]):
            old_array = old_arrays[i] if i < len(old_arrays) else None
            self.arrays.append(trainer.dev.copy(array, out=old_array if _alike(array, old_array) else None))

    def restore(self, trainer: Trainer) -> None:
        """Go back."""
        dev, optimizer, arrays = trainer.dev, trainer.optimizer, iter(self.arrays)
        changed = trainer.model.layers != self.layers
        trainer.model.layers[:] = self.layers
        for _, tensor, _ in trainer.model.named():
            array = next(arrays)
            changed |= tensor.shape != tuple(array.shape)
            tensor.assign(array)
        if changed:
            trainer.reshaped()
        optimizer.parameters[:] = self.parameters
        optimizer.reset()
        optimizer.zero_grad()
        if self.whole and self.steps:
            optimizer.steps, optimizer.counts = self.steps, self.counts
            optimizer.state = [[dev.copy(next(arrays)) for _ in range(optimizer.states)] for _ in optimizer.parameters]
        if self.whole:
            trainer.streams.restore(self.streams)
        trainer.resume(self.upcoming if self.whole else None)


def _alike(a: Any, b: Any) -> bool:
    """Whether one array's values fit into another one, if there is one."""
    return b is not None and tuple(a.shape) == tuple(b.shape) and a.dtype == b.dtype


def finite(trainer: Trainer) -> bool:
    """Whether every parameter and buffer is: a step may have broken them after its loss was taken."""
    dev = trainer.dev
    floats = [tensor for _, tensor, _ in trainer.model.named() if tensor.dtype == np.float32]
    return all(math.isfinite(float(dev.download(dev.sum(tensor.data)))) for tensor in floats)
