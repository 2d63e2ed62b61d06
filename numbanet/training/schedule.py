"""Hooks that set rates at the start of an epoch: dropout rates, and learning rates, which follow a schedule or are reduced on a
plateau."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from ..arguments import check_count, check_takes
from ..tensor import Tensor
from .hooks import Hook, monitored


def named(schedule: Any, epochs: int) -> Callable[[int], float] | None:
    """Return the function that maps an epoch, counted from 0, to the factor of the learning rate; None if there is no schedule.
    `schedule` is the name "cosine" or "linear" of a schedule that extends over `epochs` epochs, a function, or None.

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If a function does not take an epoch, or is a class.
    """

    def progress(epoch: int) -> float:
        return min(epoch, epochs - 1) / epochs  # after the last epoch of the schedule, `partial_fit` keeps the last rate

    known = {
        "cosine": lambda epoch: 0.5 * (1 + math.cos(math.pi * progress(epoch))),
        "linear": lambda epoch: 1 - progress(epoch),
    }
    if callable(schedule):
        check_takes("learning_rate_schedule", schedule, "one argument, the epoch, counted from 0", 0)
    if schedule is None or callable(schedule):
        return schedule
    if not isinstance(schedule, str) or schedule not in known:
        raise ValueError(
            f"learning_rate_schedule must be None, 'cosine', 'linear' or a function of the epoch, got {schedule!r}"
        )
    return known[schedule]


def factor_of(schedule: Callable[[int], float] | None, epoch: int) -> float:
    """Return the factor of the learning rate, 1 without a schedule; raise ValueError if the schedule returns an invalid one."""
    factor = schedule(epoch) if schedule else 1.0
    if not (isinstance(factor, numbers.Real) and 0 <= factor < math.inf):
        raise ValueError(
            f"learning_rate_schedule gave the factor {factor!r} for epoch {epoch}; it must be a number, finite and not negative"
        )
    return float(factor)


class LearningRate(Hook):
    """The hook that multiplies the learning rate of the optimiser in each epoch by the factor of a schedule.

    Between epochs the optimiser has its learning rate without the factor, so a callback may change this rate permanently.
    """

    watches = False

    def __init__(self, schedule: Callable[[int], float]) -> None:
        self.schedule = schedule
        self.rate: float | None = None  # the optimiser's base rate, during an epoch

    def epoch_start(self, run, epoch):
        factor = factor_of(self.schedule, epoch)
        self.rate = run.optimizer.adjust(run.optimizer.learning_rate * factor)

    def epoch_end(self, run, record):
        self.fit_end(run)

    def fit_end(self, run):
        if self.rate is not None:
            run.optimizer.adjust(self.rate)
            self.rate = None

    def checkpoint(self, run):
        return self.rate

    def resume(self, run, saved):
        self.rate = saved


class DropoutRates(Hook):
    """The hook that gives the stepper, for each epoch, the policy with the rates of this epoch. Before, it calibrates the
    policy on some samples (`Dropout.calibrated`).

    It adds the figures of the policy (`Dropout.report`) to the record of the epoch.

    Parameters
    ----------
    samples : Tensor, optional
        Training samples on the device, for a data-dependent policy.
    """

    watches = False

    def __init__(self, samples: Tensor | None = None) -> None:
        self.samples = samples

    def epoch_start(self, run, epoch):
        stepper, policy = run.stepper, run.stepper.policy
        stepper.report()  # the figures of an interrupted epoch are discarded
        if self.samples is not None:
            with run.session():
                policy = policy.calibrated(run.model, self.samples)
        stepper.enter(epoch, policy)

    def epoch_end(self, run, record):
        reason = run.stepper.policy.reason
        return {"dropout_rate": run.stepper.rate(), **({} if reason is None else {"dropout": reason}), **run.stepper.report()}


class ReduceLROnPlateau(Hook):
    """Reduces the learning rate if a figure of the record stops improving; use `callbacks=[ReduceLROnPlateau()]`. If there is a
    `learning_rate_schedule`, its factor multiplies the reduced rate. Names and defaults are PyTorch's.

    Parameters
    ----------
    factor : float, default=0.1
        Each reduction multiplies the learning rate by this factor, in (0, 1).
    patience : int, default=10
        Number of epochs without improvement that are tolerated: the rate is reduced after the next one.
    monitor : str or None, default=None
        The figure of the record, as for `ModelCheckpoint`; it improves if it falls or rises, depending on its name.
    threshold : float, default=1e-4
        By how much a figure must exceed the best one to count as an improvement.
    cooldown : int, default=0
        Number of epochs after a reduction that do not count as epochs without improvement.
    min_lr : float, default=0.0
        Lower bound of the learning rate.

    Raises
    ------
    ValueError
        If a number is out of range; in training, if the record has no such figure.
    """

    watches = False

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        monitor: str | None = None,
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        for name, given, fits, wanted in (
            ("factor", factor, lambda x: 0 < x < 1, "in (0, 1)"),
            ("threshold", threshold, lambda x: 0 <= x < math.inf, "not negative"),
            ("min_lr", min_lr, lambda x: 0 <= x < math.inf, "not negative"),
        ):
            if isinstance(given, bool) or not (isinstance(given, numbers.Real) and fits(given)):
                raise ValueError(f"ReduceLROnPlateau: {name} must be a number, {wanted}, got {given!r}")
        check_count("ReduceLROnPlateau: patience", patience, least=0)
        check_count("ReduceLROnPlateau: cooldown", cooldown, least=0)
        self.factor, self.patience, self.monitor, self.threshold = factor, patience, monitor, threshold
        self.cooldown, self.min_lr = cooldown, min_lr
        self._begin()

    def _begin(self) -> None:
        self.best, self.waited, self.cooling = -math.inf, 0, 0

    def fit_start(self, run):
        if run.epoch == 0:
            self._begin()

    def epoch_recorded(self, run, record):
        found, rate = monitored("ReduceLROnPlateau", record, self.monitor), run.optimizer.learning_rate
        if found > self.best + self.threshold:
            self.best, self.waited = found, 0
        else:
            self.waited += 1
        if self.cooling:
            self.cooling, self.waited = self.cooling - 1, 0
        if self.waited > self.patience:
            run.optimizer.adjust(max(rate * self.factor, min(self.min_lr, rate)))
            self.cooling, self.waited = self.cooldown, 0

    def state(self):
        return self.best, self.waited, self.cooling

    def restore(self, state):
        self.best, self.waited, self.cooling = state
