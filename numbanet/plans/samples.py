"""Plans of single activations: what is kept differs from sample to sample."""
from __future__ import annotations

import dataclasses

import numpy as np

from .base import Plan


@dataclasses.dataclass(frozen=True)
class BernoulliPlan(Plan):
    """Keep each element of an (N, n) activation with probability 1 - rate: conventional dropout, which skips no work.

    Parameters
    ----------
    n : int
        Length of the activation's last axis.
    rate : float
        Probability to drop, in [0, 1).
    key : int
        Key of the counter-based random bits that decide, in [0, 2**64): the same bits on every device.
    scale : float, default=1.0
        What the kept values are multiplied by.
    """

    n: int
    rate: float
    key: int
    scale: float = 1.0

    def mask(self) -> np.ndarray:
        """(n,) True: no part of a product is left out. Which activations are zeroed, `ops.dropout` says."""
        return np.ones(self.n, bool)
