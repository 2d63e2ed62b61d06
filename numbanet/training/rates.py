"""Rates: the dropout of each epoch."""

from __future__ import annotations

from ..tensor import Tensor
from .hooks import Hook


class Rates(Hook):
    """Gives the policy the rates of each epoch, after it has looked at some samples (`Dropout.calibrated`).

    The record says what was dropped.

    Parameters
    ----------
    samples : Tensor, optional
        Training samples on the device, for a policy that looks at them.
    """

    watches = False

    def __init__(self, samples: Tensor | None = None) -> None:
        self.samples = samples

    def epoch_start(self, run, epoch):
        stepper, policy = run.stepper, run.stepper.policy
        stepper.report()  # what an epoch that was broken off has left
        if self.samples is not None:
            with run.session():
                policy = policy.calibrated(run.model, self.samples)
        stepper.enter(epoch, policy)

    def epoch_end(self, run, record):
        return {"dropout_rate": run.stepper.rate(), **run.stepper.report()}
