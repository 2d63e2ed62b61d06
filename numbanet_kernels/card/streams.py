"""The order of kernels in streams, to find races between kernels of two streams.

A stream has a clock: for each stream, how many of its kernels have ended before what comes next. An event keeps the clock of
its stream, and a stream or the host that waits for it takes the larger numbers (vector clocks, Mattern 1989). The default
stream waits for all streams, and all wait for it. Copies are not noted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..ptx.races import AGAINST, NOBODY, Shadow
from .heap import Allocation

DEFAULT = (0, 1)  # the handles of the default stream
MOST = 256  # accesses of kernels that are kept: if nothing is ever synchronized, the oldest are forgotten
Clock = dict[int, int]


class Touched(NamedTuple):
    """What a kernel did to an allocation: a mask for each kind of access, of units of some bytes."""

    allocation: Allocation
    stream: int
    number: int  # of the kernel in its stream
    kernel: str
    unit: int
    masks: dict[str, np.ndarray]


class Order:
    """The clocks of all streams, events and the host, and what kernels did since all were ordered."""

    def __init__(self) -> None:
        self.clocks: dict[int, Clock] = {}
        self.events: dict[int, tuple[int, Clock]] = {}
        self.host: Clock = {}
        self.noted: list[Touched] = []

    # --- what orders --------------------------------------------------------------------------------------------------
    def all_ended(self) -> None:
        """Note that the host has waited for all, or that the default stream did."""
        self.noted.clear()

    def ended(self, stream: int) -> None:
        """Note that the host has waited for a stream."""
        if stream in DEFAULT:
            self.all_ended()
        else:
            _merge(self.host, self.clocks.get(stream, {}))

    def recorded(self, event: int, stream: int) -> None:
        """Note that an event was recorded in a stream."""
        self.events[event] = stream, dict(self.clocks.get(stream, {}))

    def waits(self, stream: int, event: int) -> None:
        """Note that a stream waits for an event."""
        _merge(self.clocks.setdefault(stream, {}), self.events.get(event, (0, {}))[1])

    def event_ended(self, event: int) -> None:
        """Note that the host has waited for an event."""
        stream, clock = self.events.get(event, (None, {}))
        if stream in DEFAULT:
            self.all_ended()
        _merge(self.host, clock)

    # --- what is ordered ----------------------------------------------------------------------------------------------
    def ran(self, kernel: str, stream: int, touched: Iterable[Allocation]) -> str | None:
        """Note what a kernel has done. Return a sentence if it races with a kernel of another stream."""
        if stream in DEFAULT:
            self.all_ended()
            return None
        clock = self.clocks.setdefault(stream, {})
        _merge(clock, self.host)
        clock[stream] = clock.get(stream, 0) + 1
        problem = None
        for allocation in touched:
            now = Touched(allocation, stream, clock[stream], kernel, *_masks(allocation.store.shadow))
            for before in self.noted:
                if before.allocation is allocation and clock.get(before.stream, 0) < before.number:
                    problem = problem or _conflict(now, before)
            self.noted.append(now)
        del self.noted[:-MOST]
        return problem


def _merge(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def _masks(shadow: Shadow) -> tuple[int, dict[str, np.ndarray]]:
    """Return the bytes of a unit, and which units were accessed in each way."""
    log, shadow.log = shadow.log, []
    for earlier in log:
        shadow._note("read", *shadow._units(*earlier))  # noqa: SLF001  the log is a part of the shadow
    return shadow.unit, {kind: last.who != NOBODY for kind, last in shadow.last.items()}


def _conflict(now: Touched, before: Touched) -> str | None:
    """Return a sentence about the first byte that two kernels, which nothing orders, access in ways that race."""
    unit = min(now.unit, before.unit)
    for kind, mine in now.masks.items():
        for other in AGAINST[kind]:
            if other in before.masks:
                both = mine.repeat(now.unit // unit), before.masks[other].repeat(before.unit // unit)
                length = min(both[0].size, both[1].size)
                at = np.flatnonzero(both[0][:length] & both[1][:length])
                if at.size:
                    byte = int(at[0]) * unit - now.allocation.lead
                    return (
                        f"race between streams: byte {byte} of {now.allocation.what} is {kind} by {now.kernel} in stream "
                        f"{now.stream:#x}, and {other} by {before.kernel} in stream {before.stream:#x}, and nothing orders "
                        "them: let a stream wait for an event of the other, or synchronize"
                    )
    return None
