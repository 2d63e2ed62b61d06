"""`Recovery` returns to earlier weights if an epoch made them non-finite."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ..user_warnings import warn
from .run import Run, Snapshot

APART = 512  # number of steps between copies, so that copying takes at most a few percent of the time


class Recovery:
    """Holds the last good state of a run, and returns to it if an epoch fails.

    If a hook reads the weights after each epoch, they are copied after each epoch; otherwise after every `APART` steps. If an
    epoch fails, training returns to the copy and repeats the epochs before the failed one. The repeated epochs give the same
    weights, because these depend only on the copied state.

    Attributes
    ----------
    watched : bool
        True if only the weights are copied, after each epoch, and not the state of the optimiser. A return to them then ends
        training.
    good : Snapshot or None
        The state to return to.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.first, self.watched = run, run.epochs.start, run.watched
        self.good: Snapshot | None = None

    def start(self) -> None:
        """Called when training starts."""
        if len(self.run.epochs) > 1 and not self.watched and self.run.position is None:
            self._copy()

    def needs_whole(self) -> bool:
        """Return True if all weights must be up to date at the end of the epoch that starts."""
        run = self.run
        last = run.epoch + 1 == run.epochs.stop
        return self.watched or last or run.settling or run.changing or run.optimizer.proximal is not None

    def accepts(self, record: dict[str, Any], whole: bool) -> bool:
        """Return True if the loss of an epoch and the weights are finite. The weights are checked only if a copy of the
        state is due, or if all weights are up to date (`whole`).
        """
        known = None if self.good is None else self.good.state
        self._due = whole or known is None or self.run.optimizer.steps >= known["steps"] + APART
        if self._due:
            with np.errstate(over="ignore", invalid="ignore"):
                self.run.settle()
        return math.isfinite(record["loss"]) and not (self._due and not self.run.finite())

    def keep(self) -> None:
        """Copy the state after an epoch, if a copy is due; called just before the epoch is recorded."""
        if self._due and self.run.epoch + 1 < self.run.epochs.stop:
            self._copy(1)

    def recorded(self) -> None:
        """Renew what hooks may have changed when the epoch was recorded, such as the learning rate, in the copy."""
        if self.good is not None and self.good.epoch == self.run.epoch:
            self.good = self.run.renewed(self.good)

    def _copy(self, more: int = 0) -> None:
        copied = self.run.snapshot(weights_only=self.watched, into=self.good)
        self.good = dataclasses.replace(copied, epoch=copied.epoch + more)

    def go_back(self, step: int | str | None) -> None:
        """Called after an epoch with a non-finite loss: restore the weights of the previous epoch, or train from an earlier
        copy up to this epoch again. `step` is the first step with a non-finite loss, as `loop.epoch` returns it.

        Raises
        ------
        FloatingPointError
            If the first epoch has failed, or the one within which a run was resumed.
        """
        run, number, good = self.run, self.run.epoch, self.good
        where = "" if step is None else f", from step {step} on"
        advice = "try a smaller learning_rate, or scale the inputs"
        if number == self.first or good is None:
            which = "the first epoch of this fit" if number == self.first else f"epoch {number + 1}, the first after a resume"
            raise FloatingPointError(f"the loss was not finite in {which}{where}; {advice}")
        run.restore(good)
        if good.epoch == number:
            warn(
                f"the loss was not finite in epoch {number + 1}{where}: the fit ended with the weights of epoch {number}; "
                f"{advice}"
            )
            run.stop()
        self.watched = True

    def after_interrupt(self) -> bool:
        """Called after an interrupt: restore a copy if weights are not finite. Return False if no complete epoch is left."""
        run = self.run
        run.optimizer.zero_grad()
        run.settle()
        if run.epoch > self.first and not run.finite():
            if self.good is None:
                return False
            run.restore(self.good)
            del run.history[self.good.epoch :]
        return run.epoch > self.first
