"""A `GatePlan` says which gradients of the gates of an LSTM a backward pass computes."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device import Device
from .base import Plan
from .on_device import DeviceAxis
from .rows import IndexPlan


class GateChoice(abc.ABC):
    """Chooses which gate gradients one backward pass through one LSTM layer computes (the argument `gates` of `ops.lstm`)."""

    @abc.abstractmethod
    def choose(
        self, dev: Device, dy: Any, gates: Any, c: Any, lengths: Any, dense: Callable[[], Any]
    ) -> IndexPlan | DeviceAxis | float:
        """Return a plan of the gate columns to compute, on the host or on the device, or a threshold: gate gradients up to this
        magnitude become 0.
        """

    @abc.abstractmethod
    def done(self, dev: Device, dz: Any, columns: DeviceAxis | None) -> None:
        """Called after the backward pass with dz, which holds only the columns `columns`, or all columns if it is None."""


class GatePlan(Plan):
    """Compute a part of the gate gradients, which is chosen during the backward pass. Subclasses are immutable values that
    define the choice.

    The forward pass computes everything, so the mask of the plan keeps everything.
    """

    def mask(self) -> np.ndarray:
        return np.ones((), bool)

    @abc.abstractmethod
    def of(self, cells: int) -> GateChoice:
        """Return the `GateChoice` for the LSTM layer with this index."""
