"""whole: makes a training call atomic: complete, or without effect."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbanet_kernels.runtime.interrupt import deferred

from ..training.loop import Interrupted
from ..training.run import Run, Snapshot


def whole(train: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training method: if it raises, the estimator is unchanged, unless an interrupted fit keeps complete epochs.

    The method calls `self._undo.copy(run)` before it changes a trained network. Signals are deferred while it runs, except at
    the loops' polls and in callbacks. An exception of a signal handler at the very end undoes the call like any other error;
    Ctrl-C then comes too late, and the trained estimator stays.
    """

    @functools.wraps(train)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, undo, done = None, None, False
        try:
            with deferred:
                before = dict(vars(self))
                undo = self._undo = Undo(before.get("_undo"))
                result = train(self, *args, **kwargs)
                done = True
        except Interrupted as interrupted:
            raise KeyboardInterrupt(*interrupted.args) from None
        except BaseException as error:
            if undo is not None and not (done and isinstance(error, KeyboardInterrupt)):
                undo(self, before)
            raise
        return result

    return run


class Undo:
    """Undoes the changes of a call to the objects that an estimator's attributes refer to.

    The copies are on the network's device, and reuse the memory of the previous call's copies.
    """

    def __init__(self, last: Undo | None) -> None:
        # copies of the previous call, until this call makes its own
        self.saved: Snapshot | None = None if last is None else last.saved
        self.copied = False

    def copy(self, run: Run) -> None:
        """Copy the run, which is about to continue from trained weights."""
        self.saved, self.copied = run.snapshot(into=self.saved), True

    def forget(self) -> None:
        """Drop the copies: the call trains new objects."""
        self.saved = None

    @deferred
    def __call__(self, estimator: Any, attributes: dict[str, Any]) -> None:
        """Restore everything."""
        vars(estimator).clear()
        vars(estimator).update(attributes)
        if self.copied and self.saved is not None:
            self.saved.restore()
