"""GatePlan: what a backward pass computes of the gradients of an LSTM's gates."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device import Device
from .base import Plan
from .rows import IndexPlan


class GateChoice(abc.ABC):
    """What one backward pass through one layer of cells leaves out (`ops.lstm`, gates)."""

    @abc.abstractmethod
    def choose(self, dev: Device, dy: Any, gates: Any, c: Any, lengths: Any, dense: Callable[[], Any]) -> IndexPlan | float:
        """The columns that are computed, or what elements have to exceed."""

    @abc.abstractmethod
    def done(self, dev: Device, dz: Any, columns: IndexPlan | None) -> None:
        """It was computed: dz of these columns, or of all."""


class GatePlan(Plan):
    """Compute a share of the gates' gradients, chosen in the backward pass. Subclasses are values, and say how.

    The forward pass computes all: the mask leaves out nothing.
    """

    def mask(self) -> np.ndarray:
        return np.ones((), bool)

    @abc.abstractmethod
    def of(self, cells: int) -> GateChoice:
        """The choice for one layer of cells of the LSTM, from 0."""
