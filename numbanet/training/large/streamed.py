"""Streamed: the samples of a fit as batches that an iterable yields; a batch is a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ...device import Device
from ..data import Batch, Data, on_device, on_host
from ..hooks import Hook

Part = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]  # samples, targets and weights, in the form for training


class Streamed(Data):
    """Batches, in the order in which they come. Only one batch of samples, and the targets of an epoch, are in memory.

    Parameters
    ----------
    passes : callable
        passes(epoch) -> iterable of (X, y, weights): the batches of an epoch.
    first : tuple
        The samples of the first batches, examples for what needs samples.
    every : tuple
        The targets and the weights of all samples of an epoch.
    largest : int
        Number of samples of the largest batch.
    digest : str
        What distinguishes the batches from others, for checkpoints.
    repeats : bool
        True if two readings of the first batches were equal.
    """

    def __init__(
        self,
        passes: Callable[[int], Iterable[Part]],
        first: Part,
        every: tuple[np.ndarray, np.ndarray | None],
        largest: int,
        digest: str,
        repeats: bool,
    ) -> None:
        super().__init__(*first)
        self.passes, self.first, self.every, self.largest, self.epoch = passes, first, every, largest, 0
        self.digest, self.repeats = digest, repeats

    def __len__(self) -> int:
        return len(self.every[0])

    def targets(self):
        return self.every

    def on(self, dev: Device) -> Data:
        return self

    def hook(self) -> Hook:
        return Epochs(self)

    def enter(self, epoch: int) -> None:
        """Let the next pass be that of an epoch."""
        self.epoch = epoch

    def sample(self, dev: Device) -> Data:
        """Return the samples of the first batches, on the device."""
        X, y, weights = self.first
        return Data(on_device(X, dev), y, weights)

    def batches(self, size: int, rng: np.random.Generator, dev: Device) -> Iterator[Batch]:
        """Yield the batches of the epoch; `size` and `rng` are not used. Batches in which all weights are 0 are left out."""
        targets: list[np.ndarray] = []
        weights: list[Any] = []
        first = 0
        for X, y, own in self.passes(self.epoch):
            total = float(len(y) if own is None else own.sum())
            if total == 0:
                continue
            targets.append(y)
            weights.append(own)
            rows = np.arange(first, first + len(y), dtype=np.int32)
            first += len(y)
            share = None if own is None else dev.upload(own / np.float32(total), np.float32)
            ids, values = (X, None) if on_host(X) else (None, X)
            yield Batch(rows, None, dev.upload(y), share, total, ids, values=values)
        if not targets:
            raise ValueError(f"batches: in epoch {self.epoch + 1} there is none with weight, unlike before training")
        self.y = np.concatenate(targets)  # for the record of the epoch
        self.weights = None if weights[0] is None else np.concatenate(weights)


class Epochs(Hook):
    """The hook that tells `Streamed` the epoch."""

    watches = False

    def __init__(self, data: Streamed) -> None:
        self.data = data

    def epoch_start(self, run, epoch):
        self.data.enter(epoch)
