"""Meetings of processes that share memory: each counts in a line of its own, and reads the counters of all others."""

from __future__ import annotations

from ..runtime import atomic
from ..runtime.declare import host_kernel

LOOKS = 2_000  # reads of a counter before `met` returns, about 10 us


@host_kernel("void(i8[:, ::1], i8, i8, i8, b1[::1])")
def met(lines, own, more, least, found):
    """Add `more` to the counter lines[own, 0]; found[0] = whether lines[q, 0] >= least for all q, looking for a while."""
    counters, width = lines.reshape(lines.size), lines.shape[1]
    if more:
        atomic.add(counters, own * width, more)
    for q in range(lines.shape[0]):
        look = 0
        while atomic.load(counters, q * width) < least:
            look += 1
            if look > LOOKS:
                return
    found[0] = True
