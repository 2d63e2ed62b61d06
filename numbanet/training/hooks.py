"""Hook: an object that observes or changes training. The loop (`loop.train`) calls these methods of each hook:

    fit_start(run)                  before the first epoch of a call of `fit` or `partial_fit`
    epoch_start(run, epoch)         before each epoch, counted from 0
    before_step(run, batch)         before each step: returns the batch to train on
    after_update(run)               after each update: may change weights in place
    between_steps(run)              after each step, when signals were handled: may read what the next step depends on
    epoch_end(run, record)          after the last update of an epoch: may change weights and layers; returns entries for the
                                    epoch's record
    epoch_recorded(run, record)     after the record was appended to the history, and a copy of the state was made
    interrupted(run)                when a signal ends training between two steps
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
    """Base class of hooks, for `callbacks=[...]` of an estimator; by default every method does nothing.

    The methods of a hook get the `Run`, which has the attributes model, optimizer, history, hooks and estimator, and the method
    `stop()`. An exception in a hook undoes the call of `fit` or `partial_fit`.

    Attributes
    ----------
    watches : bool
        True (default) if the hook reads the weights after an epoch, or changes them in `epoch_recorded`. All weights are then
        brought up to date and copied after each epoch, which takes time. Set it to False in hooks that read only the record.
    changes : bool
        True if `after_update` reads or changes weights in the current epoch; by default, if the class defines
        `after_update`. Updates are then not deferred (`SGD`). If it is False, some steps may not be computed yet when
        `after_update` is called for them (`queue.Queue`).
    batched : bool
        True if `after_update` may be called for several steps after all of these are computed, and `between_steps` once for all
        of them: both then only read `run.seen`. False by default.
    settles : bool
        True if all weights must be up to date at the end of each epoch; False by default.
    final : bool
        True if the network of the current epoch may be the result of training; early stopping chooses among such epochs.

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
    batched: bool = False
    settles: bool = False
    final: bool = True

    @property
    def changes(self) -> bool:
        """True if `after_update` reads or changes weights, so that no update may be deferred."""
        return self.defines("after_update")

    def defines(self, event: str) -> bool:
        """Return True if the class of this hook overrides the method with the name `event`."""
        return getattr(type(self), event) is not getattr(Hook, event)

    def fit_start(self, run: Run) -> None:
        """Called when training starts. `run.epochs` is the range of epochs of this call; it starts at 0 in a new fit."""

    def epoch_start(self, run: Run, epoch: int) -> None:
        """Called when an epoch, counted from 0, starts. The same epoch may be trained again (`recovery`)."""

    def before_step(self, run: Run, batch: Batch) -> Batch:
        """Return the batch to train on; inputs, targets and weights are arrays of `run.dev`. If the network reads symbols,
        replace `ids`, its inputs on the host, together with the inputs.
        """
        return batch

    def after_update(self, run: Run) -> None:
        """Called after each update. `run.seen` is the number of samples that were used so far in this epoch."""

    def between_steps(self, run: Run) -> None:
        """Called after `after_update` of all hooks, and after waiting signals were handled. Some steps may not be computed yet,
        until `run.stepper.finish()`, and some updates are deferred (`SGD`).
        """

    def epoch_end(self, run: Run, record: dict[str, Any]) -> dict[str, Any] | None:
        """Called after an epoch's last update; returns entries for its record, which replace those of equal names, such as
        "seconds". If shapes change, call `run.reshaped()`.
        """

    def epoch_recorded(self, run: Run, record: dict[str, Any]) -> None:
        """Called when the record of an epoch is complete; `run.stop()` ends training."""

    def interrupted(self, run: Run) -> None:
        """Called when the handler of a signal raises an exception between two steps, with all steps computed, or when an epoch
        is recorded, after `epoch_recorded` of all hooks.
        """

    def fit_end(self, run: Run) -> None:
        """Called when training ends: after the last epoch, by an interrupt or by an error, possibly within an epoch."""

    def state(self) -> Any:
        """Return a copy of the state that must be restored if training returns to an earlier point; None if there is none."""
        return None

    def restore(self, state: Any) -> None:
        """Restore a state that `state` returned."""

    def checkpoint(self, run: Run) -> Any:
        """Return what a checkpoint must hold of this hook, at the end of an epoch or between two steps (`run.done`); by default
        the state. It consists of numbers, strings, arrays of NumPy, layers of the model, and containers of these. If several
        processes train one model, that of the first is kept for all.
        """
        return self.state()

    def resume(self, run: Run, saved: Any) -> None:
        """Restore what `checkpoint` returned. It is called after `fit_start`, and within an epoch also after `epoch_start`."""
        self.restore(saved)


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
    """Return the value of the figure `name` in a record, negated if smaller values are better; -inf if it is NaN. If `name` is
    None, the figure is validation_score if the record has it, else loss. `hook` is a name for the error message.

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
