"""Sequences of several lengths in two classes, for networks to learn."""

import numpy as np


def sentences(rng, n=120, steps=9):
    """Rows of 1 … 5, padded with 0 at the end; the class is whether a 5 came before the end."""
    lengths = rng.integers(2, steps + 1, n)
    X = np.where(np.arange(steps) < lengths[:, None], rng.integers(1, 5, (n, steps)), 0)
    y = rng.integers(2, size=n)
    X[np.arange(n), rng.integers(0, lengths)] = np.where(y, 5, X[np.arange(n), 0])
    return X, y
