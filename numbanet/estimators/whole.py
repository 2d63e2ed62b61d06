"""The decorator `whole`: a training call is completed, or has no effect, or is interrupted and keeps its complete epochs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbanet_kernels.runtime.interrupt import deferred

from ..parallel.checks import equalise
from ..training.loop import Interrupted
from ..training.run import Run, Snapshot
from .joint import together


def whole(train: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training method. If the method raises an exception, the estimator is unchanged, unless an interrupted fit
    keeps complete epochs.

    The method calls `self._undo.copy(run)` before it changes a trained network. While the method runs, signals are handled only
    when the training loop polls for them, and in callbacks. If a signal handler raises an exception at the end of the call, the
    call is undone, as for any other error. Ctrl-C at this point does not undo it: the trained estimator stays.
    """

    @functools.wraps(train)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, undo, done = None, None, False
        try:
            with deferred:
                before = dict(vars(self))
                undo = self._undo = Undo(before.get("_undo"))
                with together(self, train, args, kwargs) as (args, kwargs):
                    result = train(self, *args, **kwargs)
                    equalise(self.model_)
                done = True
        except Interrupted as interrupted:
            raise interrupted.args[0] from interrupted.__cause__
        except BaseException as error:
            if undo is not None and not (done and isinstance(error, KeyboardInterrupt)):
                undo(self, before)
            raise
        return result

    return run


class Undo:
    """Undoes the changes that a call has made to the objects to which the attributes of an estimator refer.

    The copies of these objects are on the device of the network, and reuse the memory of the copies of the previous call.
    """

    def __init__(self, last: Undo | None) -> None:
        # the copies of the previous call, whose memory this call overwrites
        self.saved: Snapshot | None = None if last is None else last.saved
        self.copied = False

    def copy(self, run: Run) -> None:
        """Copy the state of `run`, which is about to continue from trained weights."""
        self.saved, self.copied = run.snapshot(into=self.saved), True

    def forget(self) -> None:
        """Delete the copies: the call trains new objects, so nothing must be restored."""
        self.saved = None

    @deferred
    def __call__(self, estimator: Any, attributes: dict[str, Any]) -> None:
        """Restore the estimator's attributes, and the copied state of the objects to which they refer."""
        vars(estimator).clear()
        vars(estimator).update(attributes)
        if self.copied and self.saved is not None:
            self.saved.restore()
