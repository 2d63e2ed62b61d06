"""Initial weights."""

from __future__ import annotations

import numpy as np

BLOCK = 1 << 15  # numbers that are drawn at a time: 256 KiB of float64, which stay in the cache


def uniform(rng: np.random.Generator, bound: float, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return float32 numbers of the uniform distribution from -bound to bound: those of `rng.uniform`, rounded.

    An array of float64 of the size of a large weight is not made: its memory, which the system clears, would take five times as
    long as the numbers.
    """
    weights = np.empty(shape, np.float32)
    flat = weights.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        block[:] = rng.uniform(-bound, bound, block.size)
    return weights
