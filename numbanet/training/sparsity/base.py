"""Sparsity: how a network becomes sparse while it trains; Thinning: the hook that does it.

What a thinning decides is read from the weights and the epoch, so that a fit can go back to where it was (`Run.restore`);
`epoch_start` finds it anew. Arrays of other shapes go through `Optimizer.resize`, which takes what the optimiser carries along.
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
    """Base of what an estimator is given as `sparsity`: a pure value, which says how its network becomes sparse."""

    name: ClassVar[str]

    @abc.abstractmethod
    def begin(self, model: Sequential, shape: tuple[int, ...], epochs: int, dev: Device) -> Hook:
        """The hook that makes a network sparse, from its first epoch to its last; it belongs to the network, and pickles.

        Parameters
        ----------
        model : Sequential
            As it is at first.
        shape : tuple of int
            Of a batch of its inputs.
        epochs : int
            How many it will be trained.
        dev : Device
            Where it lives.

        Raises
        ------
        ValueError
            If there is nothing in the model that it is for.
        """


class Thinning(Hook):
    """Base of the hooks that change shapes or layers after an epoch: a subclass defines `compact`.

    Attributes
    ----------
    share : float
        FLOPs of a dense step over those of the network as it was at first: what the record compares with.
    """

    watches = changes = False
    share = 1.0

    def compact(self, run: Run) -> bool:
        """Change shapes or layers after an epoch; returns whether any has changed."""
        return False

    def report(self) -> dict[str, Any]:
        """What the record says of it, after `compact`."""
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
