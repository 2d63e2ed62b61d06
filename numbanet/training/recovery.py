"""Recovery: where training goes back to when an epoch has broken the weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from .run import Run, Snapshot
from .user_warnings import warn

APART = 512  # steps between copies to go back to: then they take a few hundredths of the time at most


class Recovery:
    """The last good state of a run, and how to return to it.

    Weights are copied after each epoch where a hook looks at them then, else when `APART` steps were done. From such a copy the
    epochs up to the one before the broken one are trained again, which gives the same weights: nothing but what was copied
    decides them.

    Attributes
    ----------
    watched : bool
        Whether weights are copied after each epoch, without the optimiser's state: training then ends where it goes back.
    good : Snapshot or None
        What can be gone back to.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.first, self.watched = run, run.epoch, run.watched
        self.good: Snapshot | None = None

    def start(self) -> None:
        """Training begins."""
        if len(self.run.epochs) > 1 and not self.watched:
            self._copy()

    def needs_whole(self) -> bool:
        """Whether all weights have to be up to date at the end of the epoch that begins."""
        return self.watched or self.run.epoch + 1 == self.run.epochs.stop or self.run.changing

    def accepts(self, record: dict[str, Any], whole: bool) -> bool:
        """Whether an epoch has left the weights finite, as far as it is looked at: each time where they are whole."""
        known = None if self.good is None else self.good.state
        self._due = whole or known is None or self.run.optimizer.steps >= known["steps"] + APART
        if self._due:
            with np.errstate(over="ignore", invalid="ignore"):
                self.run.settle()
        return math.isfinite(record["loss"]) and not (self._due and not self.run.finite())

    def keep(self) -> None:
        """Copy what the epoch has given, where that is due: it is about to be recorded."""
        if self._due and self.run.epoch + 1 < self.run.epochs.stop:
            self._copy(1)

    def recorded(self) -> None:
        """What hooks have decided since belongs to the epoch."""
        if self.good is not None and self.good.epoch == self.run.epoch:
            self.good = dataclasses.replace(self.good, hooks=self.run.states())

    def _copy(self, more: int = 0) -> None:
        found = self.run.snapshot(weights_only=self.watched, into=self.good)
        self.good = dataclasses.replace(found, epoch=found.epoch + more)

    def go_back(self, step: int | None) -> None:
        """An epoch was broken, at a step if that is known: end with the weights of the one before, or train up to it again.

        Raises
        ------
        FloatingPointError
            If it was the first one.
        """
        run, number, good = self.run, self.run.epoch, self.good
        where = "" if step is None else f", from step {step} on"
        advice = "try a smaller learning_rate, or scale the inputs"
        if number == self.first or good is None:
            raise FloatingPointError(f"the loss was not finite in the first epoch of this fit{where}; {advice}")
        run.restore(good)
        if good.epoch == number:
            warn(
                f"the loss was not finite in epoch {number + 1}{where}: the fit ended with the weights of epoch {number}; "
                f"{advice}"
            )
            run.stop()
        self.watched = True

    def after_interrupt(self) -> bool:
        """Go back if an interrupt has left weights that are not finite; returns whether an epoch remains."""
        run = self.run
        run.optimizer.zero_grad()
        run.settle()
        if run.epoch > self.first and not run.finite():
            if self.good is None:
                return False
            run.restore(self.good)
            del run.history[self.good.epoch :]
        return run.epoch > self.first
