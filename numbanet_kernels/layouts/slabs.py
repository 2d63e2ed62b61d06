"""Activations of sparse layers are stored in slabs of LANES samples, as an array (slabs, neurons, LANES). A lane is the place
of a sample in a slab: sample n is in slab n // LANES at lane n % LANES.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LANES = 64  # number of samples of a slab
ROWS = 4  # number of rows of a weight that read the same inputs and are multiplied at the same time


class Grouped(NamedTuple):
    """An order (O,), int32, of the rows of a weight: first come `count` groups of ROWS rows that read the same inputs."""

    order: Any
    count: int


def grouped(indices):
    """Return the order that groups rows with the same inputs; indices (O, K), on the host, holds the inputs of each row."""
    if not len(indices):
        return Grouped(np.zeros(0, np.int32), 0)
    # a hash of each row, which may overflow; equal rows have equal hashes
    keys = indices @ np.random.default_rng(0).integers(1, 1 << 62, indices.shape[1])
    order = np.lexsort((keys, indices[:, 0]))
    new = np.ones(len(order), bool)
    new[1:] = (indices[order[1:]] != indices[order[:-1]]).any(axis=1)
    heads = np.flatnonzero(new)
    within = np.arange(len(order)) - np.repeat(heads, np.diff([*heads, len(order)]))
    whole = np.repeat(np.diff([*heads, len(order)]) // ROWS * ROWS, np.diff([*heads, len(order)]))
    chosen = within < whole
    return Grouped(np.concatenate([order[chosen], order[~chosen]]).astype(np.int32), int(chosen.sum()) // ROWS)
