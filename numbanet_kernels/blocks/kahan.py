"""Compensated summation of many terms in one thread."""

from __future__ import annotations

from numba import float32

from ..runtime.declare import inlined


def kahan():
    """Make the device function that adds a value to (sum, rounding error); each factory makes its own (`inlined`; Kahan 1965).

    Infinite sums stay infinite, because a rounding error that is NaN counts as 0.
    """

    @inlined
    def add(total, missed, value):
        value -= missed
        after = total + value
        missed = (after - total) - value
        return after, missed if missed == missed else float32(0)

    return add
