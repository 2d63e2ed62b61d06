"""GatePlan: which gradients of an LSTM's gates a backward pass computes."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device import Device
from .base import Plan
from .rows import IndexPlan


class GateChoice(abc.ABC):
    """The choice for one backward pass through one LSTM layer (`ops.lstm`, gates)."""

    @abc.abstractmethod
    def choose(self, dev: Device, dy: Any, gates: Any, c: Any, lengths: Any, dense: Callable[[], Any]) -> IndexPlan | float:
        """The columns to compute, or the threshold of elements."""

    @abc.abstractmethod
    def done(self, dev: Device, dz: Any, columns: IndexPlan | None) -> None:
        """Called after the backward pass with dz of these columns, or of all."""


class GatePlan(Plan):
    """Compute a share of the gates' gradients, chosen during the backward pass. Subclasses are immutable values that define the
    choice.

    The forward pass computes everything, so the mask keeps everything.
    """

    def mask(self) -> np.ndarray:
        return np.ones((), bool)

    @abc.abstractmethod
    def of(self, cells: int) -> GateChoice:
        """The choice for the LSTM layer with this index."""
