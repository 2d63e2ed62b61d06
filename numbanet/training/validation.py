"""`Validation` scores held-out samples after every epoch; `EarlyStopping` keeps the best weights."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from ..user_warnings import warn
from .data import Data
from .hooks import Hook
from .run import Snapshot

TOLERANCE = 1e-4  # a score must exceed the best one by this number to count as an improvement


class Validation(Hook):
    """The hook that adds validation_loss and validation_score to the record of each epoch.

    Parameters
    ----------
    data : Data
        The held-out samples, in the form of training samples.
    score : callable, optional
        A function without arguments that returns the score; larger is better. By default the score of the task is used.

    Raises
    ------
    TypeError
        In training, if the score is not a number.
    """

    def __init__(self, data: Data, score: Callable[[], float] | None = None) -> None:
        self.data, self.score = data, score

    def epoch_end(self, run, record):
        # no NumPy warnings here: if weights are no longer finite, the loss of the next epoch shows it
        with np.errstate(over="ignore", invalid="ignore"):
            loss, score = run.stepper.task.validate(run.stepper, self.data)
        if self.score is not None:
            score = self.score()
            if not isinstance(score, numbers.Real):
                raise TypeError(f"scoring must give a number, larger is better, and gave {score!r}")
        return {"validation_loss": loss, "validation_score": float(score)}


class EarlyStopping(Hook):
    """The hook that stops training if validation_score has not improved for `patience` epochs, and restores the weights of the
    best epoch.

    The optimiser then starts with a new state, because its state is not saved with these weights.

    Parameters
    ----------
    patience : int
        Number of epochs without improvement.
    """

    def __init__(self, patience: int) -> None:
        self.patience, self.waited = patience, 0
        self.best: tuple[float, int, Snapshot] | None = None  # the best score, its epoch, the weights of that epoch

    @property
    def best_epoch(self) -> int | None:
        """The number, in the history, of the epoch whose weights are kept; None if no epoch could be the result."""
        return self.best and self.best[1]

    def epoch_recorded(self, run, record):
        if not run.final:
            return
        if self.best is None or not record["validation_score"] <= self.best[0] + TOLERANCE:
            self.best, self.waited = (record["validation_score"], record["epoch"], run.snapshot(weights_only=True)), 0
        else:
            self.waited += 1
        if self.waited >= self.patience:
            run.stop()

    def fit_end(self, run):
        if self.best is not None:
            run.restore(self.best[2])
        elif run.epoch == run.epochs.stop:
            warn(
                "early_stopping: no epoch could be the result, because the network was still becoming sparse; train for "
                "more epochs, or give sparsity a larger fine_tuning"
            )

    def checkpoint(self, run):
        best = self.best and (*self.best[:2], [np.array(tensor.device.download(a)) for tensor, _, a in self.best[2].tensors])
        return best, self.waited

    def resume(self, run, saved):
        best, self.waited = saved
        if best is not None:
            score, epoch, arrays = best
            now = run.snapshot(weights_only=True)
            tensors = [(tensor, dev, dev.upload(a)) for (tensor, dev, _), a in zip(now.tensors, arrays, strict=True)]
            self.best = score, epoch, dataclasses.replace(now, tensors=tensors)

    def state(self) -> Any:
        return self.best, self.waited

    def restore(self, state: Any) -> None:
        self.best, self.waited = state
