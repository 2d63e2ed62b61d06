"""Sparsity: describes how a network becomes sparse during training; Thinning: the hook that does it.

The decisions of a thinning hook depend only on the weights and the epoch. So a fit can return to an earlier state
(`Run.restore`); `epoch_start` then computes the decisions again. Arrays change shape through `Optimizer.resize`, which also
resizes the optimiser's state.
"""

from __future__ import annotations

import abc
import time
from typing import Any, ClassVar

from ...device import Device
from ...layers import Sequential
from ..hooks import Hook
from ..run import Run


class Sparsity(abc.ABC):
    """Base of the values of an estimator's `sparsity` parameter; immutable."""

    name: ClassVar[str]

    @abc.abstractmethod
    def begin(self, model: Sequential, shape: tuple[int, ...], epochs: int, dev: Device) -> Hook:
        """Make the hook that makes a network sparse during a fit; it is pickled with the estimator.

        Parameters
        ----------
        model : Sequential
            The model before training.
        shape : tuple of int
            Shape of a batch of inputs.
        epochs : int
            Number of epochs to train.
        dev : Device
            The model's device.

        Raises
        ------
        ValueError
            If the model has no layer to which it applies.
        """


class Thinning(Hook):
    """Base of the hooks that change shapes or layers after an epoch; a subclass defines `compact`.

    Attributes
    ----------
    share : float
        FLOPs of a dense step of the current network relative to the initial one, for the record.
    """

    watches = changes = False
    share = 1.0

    def compact(self, run: Run) -> bool:
        """Change shapes or layers after an epoch; returns True if any has changed."""
        return False

    def report(self) -> dict[str, Any]:
        """Entries for the record, after `compact`."""
        return {}

    def epoch_end(self, run, record):
        began = time.perf_counter()
        with run.session():
            if self.compact(run):
                run.reshaped()
        return {
            **self.report(),
            "flops_share": record["flops_share"] * self.share,
            "seconds": record["seconds"] + time.perf_counter() - began,
        }
