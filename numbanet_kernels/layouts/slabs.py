"""Activations of sparse layers: slabs of LANES samples, (slabs, neurons, LANES).

Sample n is in slab n // LANES at lane n % LANES.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LANES = 64  # samples of a slab
ROWS = 4  # rows of a weight with the same inputs that are multiplied at the same time


class Grouped(NamedTuple):
    """An order of rows (O,), int32, that begins with `count` groups of ROWS rows with the same inputs."""

    order: Any
    count: int


def grouped(indices):
    """The order that groups rows with the same inputs; indices (O, K) on the host."""
    if not len(indices):
        return Grouped(np.zeros(0, np.int32), 0)
    keys = indices @ np.random.default_rng(0).integers(1, 1 << 62, indices.shape[1])  # wraps; equal rows have equal keys
    order = np.lexsort((keys, indices[:, 0]))
    new = np.ones(len(order), bool)
    new[1:] = (indices[order[1:]] != indices[order[:-1]]).any(axis=1)
    heads = np.flatnonzero(new)
    within = np.arange(len(order)) - np.repeat(heads, np.diff([*heads, len(order)]))
    whole = np.repeat(np.diff([*heads, len(order)]) // ROWS * ROWS, np.diff([*heads, len(order)]))
    chosen = within < whole
    return Grouped(np.concatenate([order[chosen], order[~chosen]]).astype(np.int32), int(chosen.sum()) // ROWS)
