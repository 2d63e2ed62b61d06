"""Validation: samples that are not trained on are scored after every epoch; EarlyStopping: the best weights stay."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from .data import Data
from .hooks import Hook
from .run import Snapshot
from .user_warnings import warn

TOLERANCE = 1e-4  # by how much a validation score has to be better than the best one


class Validation(Hook):
    """Adds validation_loss and validation_score to the record of each epoch.

    Parameters
    ----------
    data : Data
        The samples, as those that are trained on.
    score : callable, optional
        score() gives the score, larger is better, in place of the task's own.

    Raises
    ------
    TypeError
        In training, if the score is no number.
    """

    def __init__(self, data: Data, score: Callable[[], float] | None = None) -> None:
        self.data, self.score = data, score

    def epoch_end(self, run, record):
        with np.errstate(over="ignore", invalid="ignore"):  # weights about to break: the next epoch's loss will tell
            loss, score = run.stepper.task.validate(run.stepper, self.data)
        if self.score is not None:
            score = self.score()
            if not isinstance(score, numbers.Real):
                raise TypeError(f"scoring must give a number, larger is better, and gave {score!r}")
        return {"validation_loss": loss, "validation_score": float(score)}


class EarlyStopping(Hook):
    """Stops training when validation_score has not improved for some epochs; goes back to the weights that had the best one.

    The optimiser then starts anew: its state is not that of these weights.

    Parameters
    ----------
    patience : int
        How many epochs.
    """

    def __init__(self, patience: int) -> None:
        self.patience, self.waited = patience, 0
        self.best: tuple[float, int, Snapshot] | None = None  # the best score, the number of its epoch, the weights then

    @property
    def best_epoch(self) -> int | None:
        """The epoch whose weights stay, as the history numbers it; None where no epoch could be the result."""
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
                "early_stopping: no epoch could be the result, for the network was becoming sparse in all of them; train for "
                "more epochs, or give sparsity a larger fine_tuning"
            )

    def state(self) -> Any:
        return self.best, self.waited

    def restore(self, state: Any) -> None:
        self.best, self.waited = state
