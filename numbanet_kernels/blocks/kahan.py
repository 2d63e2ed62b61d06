"""Long sums of one thread."""

from __future__ import annotations

from numba import float32

from ..runtime.declare import inlined


def kahan():
    """(sum, what its rounding has added) after one value more, made anew for each factory, as `inlined` says (Kahan 1965).

    Infinities stay what they are: what their rounding adds is no number, and counts as 0.
    """

    @inlined
    def add(total, missed, value):
        value -= missed
        after = total + value
        missed = (after - total) - value
        return after, missed if missed == missed else float32(0)

    return add
