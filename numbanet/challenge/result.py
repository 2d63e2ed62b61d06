"""Result and cost of a run of the Sparse DNN Graph Challenge."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class ChallengeResult:
    """Result and cost of a run of the Challenge.

    Attributes
    ----------
    categories : ndarray
        Indices of the inputs that are not 0 after the last layer.
    correct : bool or None
        True if `categories` are those of the Challenge; None if these are unknown.
    seconds : float
        Time of the computation. It starts when the sparse inputs and the layers are in memory and buffers are allocated and
        written, and ends with the categories.
    by_layer : ndarray
        Seconds of each layer; those of the first layer include the time to make the inputs dense.
    live : ndarray
        For each layer, the number of inputs that were not 0 before it; for the first layer, that of all inputs, which are not
        looked at before.
    multiplications : ndarray
        For each layer, the number of multiplications.
    connections : int
        Number of weights of all layers.
    inputs, pieces : int
        Number of inputs, and of pieces in which they were processed.
    way : str
    """

    categories: np.ndarray
    correct: bool | None
    seconds: float
    by_layer: np.ndarray
    live: np.ndarray
    multiplications: np.ndarray
    connections: int
    inputs: int
    pieces: int
    way: str

    @property
    def rate(self) -> float:
        """Edges per second: inputs x connections / seconds. Products that are skipped count as well."""
        return self.inputs * self.connections / self.seconds

    @property
    def share_done(self) -> float:
        """The number of multiplications divided by inputs x connections."""
        return float(self.multiplications.sum()) / max(self.inputs * self.connections, 1)
