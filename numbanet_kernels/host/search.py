"""`before`: a search for compiled loops; NumPy's `searchsorted` takes a second to compile."""

from __future__ import annotations

from numba import int64

from ..runtime.declare import host_function


@host_function
def before(rows, row):
    """Return the number of entries of an increasing list that are less than `row`."""
    low, high = int64(0), int64(rows.size)
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low
