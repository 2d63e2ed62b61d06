"""Two base classes: a `Sparsity` describes how a network becomes sparse during training, and a `Thinning` is a hook that
changes the network accordingly.

What a thinning hook decides depends only on the weights and the epoch. So a fit can return to an earlier state (`Run.restore`):
`epoch_start` then computes the decisions again. Arrays change their shape through `Optimizer.resize`, which also resizes the
state of the optimiser.
"""

from __future__ import annotations

import abc
import math
import time
from typing import Any, ClassVar

from ...arguments import is_real
from ...device import Device
from ...layers import Sequential
from ..hooks import Hook
from ..run import Run


def check_share(name: str, value: Any, open_end: bool = False) -> None:
    """Raise ValueError unless `value` is a number in [0, 1], or, if `open_end`, in [0, 1)."""
    if not is_real(value) or not 0 <= value <= 1 or (open_end and value == 1):
        raise ValueError(f"{name} must be a number in [0, 1{')' if open_end else ']'}, got {value!r}")


def rounded_up(value: float) -> float:
    """Return the smallest number of one significant digit that is not below a positive value."""
    unit = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / unit - 1e-9) * unit


class Sparsity(abc.ABC):
    """Base class of the values that the parameter `sparsity` of an estimator accepts. Such a value is immutable: what changes
    during a fit belongs to the hook that `begin` returns.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def begin(self, model: Sequential, shape: tuple[int, ...], epochs: int, dev: Device) -> Hook:
        """Return the hook that makes a network sparse during a fit. The hook is pickled with the estimator.

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

    def again(self, model: Sequential, shape: tuple[int, ...], epochs: int, dev: Device) -> Hook:
        """Return the hook for a fit that goes on from a checkpoint, which has the hook's state (`Hook.checkpoint`). The model
        may be one that training has made sparse already.
        """
        return self.begin(model, shape, epochs, dev)

    def further(self, model: Sequential, shape: tuple[int, ...], epochs: int, dev: Device) -> Hook:
        """Return the hook for a fit that starts with a trained model (`warm_start`). If this value has made the model sparse,
        the model stays as sparse as it is; else it becomes sparse as in `begin`.
        """
        return self.begin(model, shape, epochs, dev)


class Thinning(Hook):
    """Base class of the hooks that change shapes or layers after an epoch; a subclass defines `compact`.

    Attributes
    ----------
    share : float
        FLOPs of a dense step of the current network relative to the initial one, for the record.
    """

    watches = changes = False
    share = 1.0

    def compact(self, run: Run) -> bool:
        """Change shapes or layers after an epoch, and return True if any has changed."""
        return False

    def report(self) -> dict[str, Any]:
        """Return the entries that the hook adds to the record of an epoch; it is called after `compact`."""
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
