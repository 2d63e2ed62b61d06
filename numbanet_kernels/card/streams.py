"""The order of kernels in streams, to find races between kernels of two streams.

A stream has a clock: for each stream, how many of its kernels have ended before what comes next. An event keeps the clock of
its stream, and a stream or the host that waits for it takes the larger numbers (vector clocks, Mattern 1989). The default
stream waits for all streams, and all wait for it. Copies are not noted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..ptx.program import Program
from ..ptx.races import AGAINST, Shadow, name_of
from .faults import value_in
from .heap import Allocation

DEFAULT = (0, 1)  # the handles of the default stream
MOST = 256  # accesses of kernels that are kept: if nothing is ever synchronized, the oldest are forgotten
KEPT = 1 << 28  # bytes of the codes of threads that are kept, which only messages need
Clock = dict[int, int]


class Touched(NamedTuple):
    """What a kernel did to an allocation: for each kind of access, and for each unit of some bytes, 0 or the number of one of
    `instructions`, from 1 on.
    """

    allocation: Allocation
    stream: int
    number: int  # of the kernel in its stream
    kernel: str
    program: Program
    unit: int
    masks: dict[str, tuple[np.ndarray, list[int]]]
    threads: dict[str, np.ndarray]  # the code of the thread (`races`) of each unit; {} if it is not kept

    def did(self, kind: str, unit: int) -> str:
        """Return who did this to a unit, such as "written by thread 3 of block 0 of scale in stream 0x10"."""
        how = "written, with what was there," if kind == "kept" else kind
        thread = f"{name_of(int(self.threads[kind][unit]), -1)} of " if kind in self.threads else ""
        return f"{how} by {thread}{self.kernel} in stream {self.stream:#x}"

    def where(self, kind: str, unit: int) -> str:
        """Return the kernel, and the line that accessed a unit."""
        numbers, instructions = self.masks[kind]
        return f"{self.kernel}, {self.program.where(self.program.instructions[instructions[int(numbers[unit]) - 1]])}"


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
    def ran(self, kernel: str, stream: int, touched: Iterable[Allocation], program: Program) -> str | None:
        """Note what a kernel has done. Return a sentence if it races with a kernel of another stream."""
        if stream in DEFAULT:
            self.all_ended()
            return None
        clock = self.clocks.setdefault(stream, {})
        _merge(clock, self.host)
        clock[stream] = clock.get(stream, 0) + 1
        problem = None
        for allocation in touched:
            now = Touched(allocation, stream, clock[stream], kernel, program, *_masks(allocation.store.shadow))
            for before in self.noted:
                if before.allocation is allocation and clock.get(before.stream, 0) < before.number:
                    problem = problem or _conflict(now, before)
            self.noted.append(now)
        del self.noted[:-MOST]
        kept = 0
        for before in reversed(self.noted):
            kept += sum(codes.nbytes for codes in before.threads.values())
            if kept > KEPT:
                before.threads.clear()
        return problem


def _merge(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def _masks(shadow: Shadow) -> tuple[int, dict[str, tuple[np.ndarray, list[int]]], dict[str, np.ndarray]]:
    """Return the bytes of a unit, `Touched.masks` and `Touched.threads`."""
    log, shadow.log = shadow.log, []
    for earlier in log:
        shadow._note("read", *shadow._units(*earlier))  # noqa: SLF001  the log is a part of the shadow
    masks = {kind: _numbered(last.pc) for kind, last in shadow.last.items()}
    return shadow.unit, masks, {kind: last.who for kind, last in shadow.last.items()}


def _numbered(pc: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return the number of each instruction in a list, from 1 on, and the list; 0 stands for none. The last number is 255."""
    there = np.zeros(pc.max(initial=0) + 2, bool)
    there[pc + 1] = True
    numbers = np.minimum(np.cumsum(there[1:]), 255).astype(np.uint8)
    return np.where(pc < 0, np.uint8(0), numbers[pc]), np.flatnonzero(there[1:]).tolist()


def _conflict(now: Touched, before: Touched) -> str | None:
    """Return a sentence about the first byte that two kernels, which nothing orders, access in ways that race."""
    unit = min(now.unit, before.unit)
    for kind, (mine, _) in now.masks.items():
        for other in AGAINST[kind]:
            if other in before.masks:
                both = mine.repeat(now.unit // unit), before.masks[other][0].repeat(before.unit // unit)
                length = min(both[0].size, both[1].size)
                at = np.flatnonzero((both[0][:length] > 0) & (both[1][:length] > 0))
                if at.size:
                    first = int(at[0]) * unit
                    here, there = first // now.unit, first // before.unit
                    return (
                        f"{now.where(kind, here)}: race between streams: {_place(now.allocation, first)}, is "
                        f"{now.did(kind, here)}, and {before.did(other, there)}, and nothing orders them: let a stream wait "
                        f"for an event of the other, or synchronize; the other access: {before.where(other, there)}"
                    )
    return None


def _place(allocation: Allocation, first: int) -> str:
    """Return the byte at an offset of an allocation's memory, the element that holds it, and its value."""
    byte = first - allocation.lead
    text = f"byte {byte} of {allocation.what}"
    if not allocation.arrays or not (element := allocation.arrays[-1].element(allocation.start + byte)):
        return text
    start, dtype = allocation.arrays[-1].value(allocation.start + byte)
    value = value_in(allocation.store.data, allocation.lead + start - allocation.start, dtype)
    return f"{text}, at {element}" + (f", which holds {value}" if value else "")
