"""Functions for labels (n, T), one for each of the T time steps of n sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..layers import ActivationSpec, Layer, Sequential, sequence_lengths
from ..plans import Plans


def given(layers: Sequence[Layer], X: np.ndarray, y: np.ndarray, batch: int) -> bool:
    """Return True if y has a label for each time step, because the layers return outputs for each time step of X (n, T, …)."""
    if X.ndim < 2 or (y.ndim < 2 and X.shape[1] != 1):
        return False
    shape = Sequential(layers).cost(ActivationSpec((batch, *X.shape[1:])), Plans())[1].shape
    return len(shape) == 3 and shape[1] in (None, X.shape[1])


def labels(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return y as an array (n, T); raise ValueError if it has another shape."""
    if y.ndim == 1 and X.shape[1] == 1:
        return y.reshape(-1, 1)
    if y.shape != X.shape[:2]:
        raise ValueError(
            f"y has shape {y.shape}, but the layers give an output for each of the {X.shape[1]} time steps of X "
            f"{X.shape}: give a label for each, {X.shape[:2]}"
        )
    return y


def counted(X: np.ndarray, model: Sequential) -> np.ndarray:
    """Return an array (n, T) of bool that is True for time steps before the end of a sequence. All elements are True unless the
    first layer defines padding (`padding_idx` of `Embedding`).
    """
    steps = np.arange(X.shape[1])
    if model.padding is None or X.ndim != 2:
        return np.ones(X.shape[:2], bool)
    return steps < sequence_lengths(X, model.padding)[:, None]
