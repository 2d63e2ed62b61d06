"""Learning rates that change: by a schedule of the epochs, or where nothing improves."""
from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from .hooks import Hook


def named(schedule: Any, epochs: int) -> Callable[[int], float] | None:
    """The factor on the learning rate by epoch, from a name ("cosine", "linear"), a function of the epoch, or None.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    def progress(epoch: int) -> float:
        return min(epoch, epochs - 1) / epochs  # `partial_fit` after the last epoch goes on at its rate

    known = {"cosine": lambda epoch: 0.5 * (1 + math.cos(math.pi * progress(epoch))),
             "linear": lambda epoch: 1 - progress(epoch)}
    if schedule is None or callable(schedule):
        return schedule
    if schedule not in known:
        raise ValueError(f"schedule must be None, 'cosine', 'linear' or a function of the epoch, got {schedule!r}")
    return known[schedule]


def factor_of(schedule: Callable[[int], float] | None, epoch: int) -> float:
    """The factor for an epoch, 1 without a schedule; ValueError where the function gives none."""
    factor = schedule(epoch) if schedule else 1.0
    if not (isinstance(factor, numbers.Real) and 0 <= factor < math.inf):
        raise ValueError(f"schedule gave the factor {factor!r} for epoch {epoch}; it must be a number, finite and not negative")
    return float(factor)


class LearningRate(Hook):
    """Multiplies the optimiser's learning rate, in each epoch, by a schedule's factor.

    Between epochs the optimiser has its own rate: what a callback makes of it holds from then on.
    """

    watches = False

    def __init__(self, schedule: Callable[[int], float]) -> None:
        self.schedule = schedule
        self.rate: float | None = None  # the optimiser's own, in an epoch

    def epoch_start(self, run, epoch):
        factor = factor_of(self.schedule, epoch)
        self.rate = run.optimizer.learning_rate
        run.optimizer.learning_rate = self.rate * factor

    def epoch_end(self, run, record):
        self.fit_end(run)

    def fit_end(self, run):
        if self.rate is not None:
            run.optimizer.learning_rate = self.rate
            self.rate = None
