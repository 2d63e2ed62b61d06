"""whole: a call that trains an estimator is done whole, or not at all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbanet_kernels.runtime.interrupt import deferred

from ..training.loop import Interrupted
from ..training.run import Run, Snapshot


def whole(train: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that trains: if it raises, the estimator is as it was before, unless an interrupted fit keeps what it
    learned.

    The method calls `self._undo.copy(run)` before it changes a network that was trained before. Signals wait while it runs,
    but at the polls of the loops and in callbacks. What the handler of one raises at its very end undoes the call like any
    other error; Ctrl-C comes too late then, and the trained estimator stays.
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
    """What a call changes of the objects behind an estimator's attributes.

    The copies lie on the device of the network, and those of the next call in the same memory.
    """

    def __init__(self, last: Undo | None) -> None:
        # of the call before, until there is one of this call
        self.saved: Snapshot | None = None if last is None else last.saved
        self.copied = False

    def copy(self, run: Run) -> None:
        """The run is about to go on from weights that were trained."""
        self.saved, self.copied = run.snapshot(into=self.saved), True

    def forget(self) -> None:
        """The call trains new objects."""
        self.saved = None

    @deferred
    def __call__(self, estimator: Any, attributes: dict[str, Any]) -> None:
        """Put all back."""
        vars(estimator).clear()
        vars(estimator).update(attributes)
        if self.copied and self.saved is not None:
            self.saved.restore()
