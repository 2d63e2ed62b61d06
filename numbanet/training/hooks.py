"""Hook: what changes training, or looks at it. The loop (`loop.train`) calls each of them and knows none by name.

    fit_start(run)                  before the first epoch of a call of `fit` or `partial_fit`
    epoch_start(run, epoch)         before each epoch, counted from 0
    before_step(run, batch)         before each step: gives the batch that the step trains on
    after_update(run)               after each update: may change weights in place
    epoch_end(run, record)          after the last update of an epoch: may change weights and layers, and gives what the record
                                    of the epoch says of it
    epoch_recorded(run, record)     the record is complete and in the history, and what training can go back to is copied
    fit_end(run)                    however training ends

An epoch whose loss is not finite has no `epoch_end` and no `epoch_recorded`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from .data import Batch
from .run import Run


class Hook:
    """Base of what changes training or looks at it, for `callbacks=[...]` of an estimator; every method does nothing.

    A hook is given the `Run`: model, optimizer, history, hooks, the estimator that is trained, and `stop()`. What it raises
    undoes the call of `fit` or `partial_fit`.

    Attributes
    ----------
    watches : bool
        Whether it looks at the weights after an epoch, or changes them in `epoch_recorded`. True by default: all weights are
        then brought up to date and copied after each epoch, which a hook that looks at the record alone need not pay for.
    changes : bool
        Whether `after_update` changes weights in the present epoch; by default, whether a class defines it. No part of an
        update is then put off (`SGD`).
    final : bool
        Whether the network of the present epoch may be the result: early stopping takes the best one among those.

    Examples
    --------
    >>> from numbanet import Hook, Net
    >>> from numbanet.datasets import load_digits
    >>> class StopAtLoss(Hook):
    ...     watches = False  # the record says all
    ...
    ...     def epoch_recorded(self, run, record):
    ...         if record["loss"] < 1.0:
    ...             run.stop()
    >>> X, y, _, _ = load_digits()
    >>> Net((64,), epochs=50, callbacks=[StopAtLoss()], random_state=0).fit(X, y).n_iter_ < 50
    True
    """

    watches: bool = True
    final: bool = True

    @property
    def changes(self) -> bool:
        """Whether it does something after updates, so that weights have to be up to date."""
        return self.defines("after_update")

    def defines(self, event: str) -> bool:
        """Whether its class does something at an event, the name of a method."""
        return getattr(type(self), event) is not getattr(Hook, event)

    def fit_start(self, run: Run) -> None:
        """Training begins: `run.epochs` are the numbers of the epochs, from 0 on in a new fit."""

    def epoch_start(self, run: Run, epoch: int) -> None:
        """An epoch begins, counted from 0; it may be one that is trained again (`loop`)."""

    def before_step(self, run: Run, batch: Batch) -> Batch:
        """The batch that a step trains on; inputs, targets and weights are arrays of `run.dev`."""
        return batch

    def after_update(self, run: Run) -> None:
        """An update is done; `run.seen` samples of the epoch were trained on."""

    def epoch_end(self, run: Run, record: dict[str, Any]) -> dict[str, Any] | None:
        """The updates of an epoch are done; returns what is added to its record. Call `run.reshaped()` where layers, or shapes
        of weights, have changed."""

    def epoch_recorded(self, run: Run, record: dict[str, Any]) -> None:
        """The record of an epoch is complete; `run.stop()` ends training."""

    def fit_end(self, run: Run) -> None:
        """Training ends: by itself, by an interrupt or by an error, maybe within an epoch."""

    def state(self) -> Any:
        """What has to be put back where training goes back to an earlier moment, a copy; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Go back to what `state` gave."""


class Callback(Hook):
    """A function callback(estimator, record), called after each epoch; training stops where it returns True.

    Signals come at once while it runs.
    """

    def __init__(self, function: Callable[[Any, dict], Any]) -> None:
        self.function = function

    def epoch_recorded(self, run, record):
        answer = deferred.outside(self.function, run.estimator, record)
        if isinstance(answer, (bool, np.bool_)) and answer:
            run.stop()
