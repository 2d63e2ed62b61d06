"""whole: a call that trains an estimator is done whole, or not at all."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbanet_kernels.runtime.interrupt import deferred

from ..training.loop import Interrupted


def whole(train: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that trains: if it raises, the estimator is as it was before, unless an interrupted fit keeps what it
    learned.

    Signals wait while it runs, but at the polls of the loops and in callbacks. What the handler of one raises at its very end
    undoes the call like any other error; Ctrl-C comes too late then, and the trained estimator stays.
    """
    @functools.wraps(train)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, done = None, False
        try:
            with deferred:
                before = _Before(self)
                result = train(self, *args, **kwargs)
                done = True
        except Interrupted as interrupted:
            raise KeyboardInterrupt(*interrupted.args) from None
        except BaseException as error:
            if before is not None and not (done and isinstance(error, KeyboardInterrupt)):
                before.restore(self)
            raise
        return result

    return run


class _Before:
    """An estimator's attributes, and what training changes of the objects behind them."""

    def __init__(self, net: Any) -> None:
        self.attributes, self.fitted = dict(vars(net)), hasattr(net, "model_")
        if self.fitted:
            self.layers, self.parameters = list(net.model_.layers), list(net.optimizer_.parameters)
            self.weights = [(tensor, tensor.device, tensor.numpy().copy()) for _, tensor, _ in net.model_.named()]
            self.optimizer, self.history, self.streams = net.optimizer_.snapshot(), list(net.history_), net._streams.state()

    @deferred
    def restore(self, net: Any) -> None:
        """Put all back."""
        vars(net).clear()
        vars(net).update(self.attributes)
        if self.fitted:
            net.model_.layers[:] = self.layers
            for tensor, dev, saved in self.weights:
                tensor.move(dev)
                tensor.assign(dev.upload(saved))
            net.optimizer_.parameters[:] = self.parameters
            net.optimizer_.zero_grad()
            net.optimizer_.restore(self.optimizer)
            net.history_[:] = self.history
            net._streams.restore(self.streams)
