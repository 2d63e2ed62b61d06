"""Rates: sets the dropout rates of each epoch."""

from __future__ import annotations

from ..tensor import Tensor
from .hooks import Hook


class Rates(Hook):
    """Gives the stepper the policy with each epoch's rates, calibrated on some samples (`Dropout.calibrated`).

    Adds what was dropped to the record.

    Parameters
    ----------
    samples : Tensor, optional
        Training samples on the device, for a data-dependent policy.
    """

    watches = False

    def __init__(self, samples: Tensor | None = None) -> None:
        self.samples = samples

    def epoch_start(self, run, epoch):
        stepper, policy = run.stepper, run.stepper.policy
        stepper.report()  # discard what an interrupted epoch has left
        if self.samples is not None:
            with run.session():
                policy = policy.calibrated(run.model, self.samples)
        stepper.enter(epoch, policy)

    def epoch_end(self, run, record):
        return {"dropout_rate": run.stepper.rate(), **run.stepper.report()}
