"""Hook: changes training, or observes it. The loop (`loop.train`) calls all hooks and knows none by name.

    fit_start(run)                  before the first epoch of a call of `fit` or `partial_fit`
    epoch_start(run, epoch)         before each epoch, counted from 0
    before_step(run, batch)         before each step: returns the batch to train on
    after_update(run)               after each update: may change weights in place
    epoch_end(run, record)          after the last update of an epoch: may change weights and layers; returns entries for the
                                    epoch's record
    epoch_recorded(run, record)     the record is complete and in the history, and a state to return to was copied
    fit_end(run)                    when training ends for any reason

For an epoch with a non-finite loss, `epoch_end` and `epoch_recorded` are not called.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from .data import Batch
from .run import Run

LESS = ("loss", "perplexity", "seconds")  # figures with these endings are better if smaller


class Hook:
    """Base of hooks, for `callbacks=[...]` of an estimator; by default every method does nothing.

    A hook is given the `Run`: model, optimizer, history, hooks, estimator, and `stop()`. An exception in a hook undoes the call
    of `fit` or `partial_fit`.

    Attributes
    ----------
    watches : bool
        Whether it reads the weights after an epoch, or changes them in `epoch_recorded`. True by default: all weights are then
        brought up to date and copied after each epoch, a cost that hooks that read only the record can avoid.
    changes : bool
        Whether `after_update` changes weights in the current epoch; by default True if the class defines it. Updates are then
        not deferred (`SGD`).
    final : bool
        Whether the network of the current epoch may be the result: early stopping chooses among such epochs.

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
        """True if it does something after updates, so that weights must be up to date."""
        return self.defines("after_update")

    def defines(self, event: str) -> bool:
        """True if its class overrides the method of this name."""
        return getattr(type(self), event) is not getattr(Hook, event)

    def fit_start(self, run: Run) -> None:
        """Training starts: `run.epochs` are the epochs of this call, from 0 in a new fit."""

    def epoch_start(self, run: Run, epoch: int) -> None:
        """An epoch starts, counted from 0; it may be one that is trained again (`recovery`)."""

    def before_step(self, run: Run, batch: Batch) -> Batch:
        """Return the batch to train on; inputs, targets and weights are arrays of `run.dev`."""
        return batch

    def after_update(self, run: Run) -> None:
        """An update is done; the epoch has trained on `run.seen` samples."""

    def epoch_end(self, run: Run, record: dict[str, Any]) -> dict[str, Any] | None:
        """The updates of an epoch are done; returns entries for its record. Call `run.reshaped()` if layers, or shapes of
        weights, have changed."""

    def epoch_recorded(self, run: Run, record: dict[str, Any]) -> None:
        """The record of an epoch is complete; `run.stop()` ends training."""

    def fit_end(self, run: Run) -> None:
        """Training ends: regularly, by an interrupt or by an error, possibly within an epoch."""

    def state(self) -> Any:
        """A copy of what must be restored if training returns to an earlier state; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Restore what `state` returned."""


class Callback(Hook):
    """A function callback(estimator, record), called after each epoch; training stops if it returns True.

    Signals are not deferred while it runs.
    """

    def __init__(self, function: Callable[[Any, dict], Any]) -> None:
        self.function = function

    def epoch_recorded(self, run, record):
        answer = deferred.outside(self.function, run.estimator, record)
        if isinstance(answer, (bool, np.bool_)) and answer:
            run.stop()


def monitored(hook: str, record: dict[str, Any], name: str | None) -> float:
    """The value of a figure in a record, negated if smaller is better, -inf if it is NaN. The name None stands for
    validation_score if that is recorded, else for loss.

    Raises
    ------
    ValueError
        If the record has no such figure.
    """
    name = name or ("validation_score" if "validation_score" in record else "loss")
    if not isinstance(record.get(name), numbers.Real):
        known = ", ".join(key for key, found in record.items() if isinstance(found, numbers.Real))
        raise ValueError(
            f"{hook}: there is no figure {name!r} in the record, which has {known}; fit with validation=... for "
            "validation_loss and validation_score"
        )
    found = -record[name] if name.endswith(LESS) else record[name]
    return -math.inf if math.isnan(found) else float(found)
