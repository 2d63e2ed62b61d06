"""Detection of races: this module stores the last accesses of each word of memory, and finds two threads that access a word
without a defined order.

    race    two threads access a word, one of them writes it by a plain access, and no barrier of their block (for threads
            of one warp, no barrier of both) is in between, nor, also for threads of two blocks, what `fences` describes

Atomic instructions and strong accesses (ld.relaxed) do not race with each other. Two writes of the same value are a race, too,
because PTX leaves their result undefined; a caller who allows them passes the others as writes, and these as `kept`. A thread
has the code block << 12 | warp << 6 | lane. If several threads of a warp accessed a word, the lane in the code is SEVERAL; if
several warps did, so is the warp.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from .fences import OF_BLOCK, OF_WARP, Fences, Moment

NOBODY, SEVERAL, EVERYWHERE = -1, 32, 1 << 62  # codes: no thread; several lanes or warps; threads of several blocks
WARP = 32
BIT_OF_LANE = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
COARSE = 16  # bytes of a unit at first; units are split when an access is narrower
# at most this many reads of memory that is never written are stored before they are checked; checking takes longer than storing
LOG = 1 << 24
AGAINST = {
    "read": ("written", "changed"),
    "written": ("written", "read", "changed", "looked at", "kept"),
    "changed": ("written", "read", "kept"),
    "looked at": ("written",),
    "kept": (),  # written with the value that was there: it races with later writes, because these may as well be earlier
}


class Fault(Exception):
    """The problem of an access, and the index of the access; the interpreter adds thread and line. `other` is the index of the
    instruction of the other access of a race, if it is known.
    """

    def __init__(self, problem: str, number: int, other: int = -1) -> None:
        super().__init__(problem)
        self.problem, self.number, self.other = problem, number, other


class Who(NamedTuple):
    """The accessing threads, one entry per thread, and what they have in common."""

    codes: np.ndarray  # the code of each thread
    epochs: np.ndarray  # the number of barriers that the block of each thread has passed
    warp_epochs: np.ndarray  # the number of barriers that the warp of each thread has passed
    pc: int = -1  # the index of the instruction
    fences: Fences | None = None  # those of the launch, if the kernel has fences
    stamp: int = 0  # their clock
    parts: Parts | None = None  # if the kernel has barriers of parts of warps

    def of(self, lanes: np.ndarray) -> Who:
        return Who(*(part[lanes] for part in self[:3]), *self[3:])

    def moment(self, k: int) -> Moment:
        """Return when thread k does what it does."""
        return Moment(int(self.codes[k]), self.stamp, int(self.epochs[k]), int(self.warp_epochs[k]))


class Parts:
    """What barriers of parts of warps order, in `warps` warps of a block, from block `first` on. `clock` counts the barriers;
    `seen` (threads, lane) holds the clock up to which the accesses of each lane of its warp are before those of a thread now.
    """

    def __init__(self, first: int, warps: int, threads: int) -> None:
        self.first, self.warps, self.clock = first, warps, 0
        self.seen = np.full((threads, WARP), NOBODY, np.int32)

    def meet(self, threads: np.ndarray, masks: np.ndarray) -> None:
        """Note that `threads` (bool) meet the lanes of their masks (uint32). Lanes of a mask that have ended count as well."""
        before = self.seen.reshape(-1, WARP, WARP).copy()
        before[:, np.arange(WARP), np.arange(WARP)] = self.clock
        after, masks, here = self.seen.reshape(before.shape), masks.reshape(-1, WARP), threads.reshape(-1, WARP)
        for mask in np.unique(masks[here]):
            some = here & (masks == mask)
            count = np.count_nonzero(some, axis=1)
            met = before[np.ix_(np.flatnonzero(count), np.flatnonzero(mask & BIT_OF_LANE))].max(axis=1)
            after[some] = np.repeat(met, count[count > 0], axis=0)
        self.clock += 1

    def ordered(self, lanes: np.ndarray, clocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return whether accesses by `lanes` (uint32, a bit for each) of the warp of each thread are before what the thread now
        does; `clocks` holds that of the last of these accesses.
        """
        row = ((codes >> OF_BLOCK) - self.first) * self.warps + (codes >> OF_WARP & 63)
        others = (lanes & ~BIT_OF_LANE[codes & 63])[:, None] & BIT_OF_LANE != 0
        return (~others | (self.seen[row * WARP + (codes & 63)] >= clocks[:, None])).all(axis=1)


_numbers = itertools.count()


class Shadow:
    """The last accesses of each unit of some memory: reads, writes and atomic changes. If `across`, threads of several blocks
    may access the memory.
    """

    def __init__(self, size: int, across: bool) -> None:
        self.size, self.across, self.unit = size, across, COARSE
        self.number = next(_numbers)  # a barrier of the grid makes new shadows, some of them where old ones were
        self.last: dict[str, _Last] = {}
        self.log: list[tuple[np.ndarray, int, Who]] = []
        self.logged = 0

    def touch(self, offset: np.ndarray, width: int, who: Who, writing: bool, atomic: bool = False, kept: bool = False) -> None:
        """Record reads, writes or atomic changes; raise Fault if one conflicts with the access of another thread. `kept` says
        that what is written was there.
        """
        kind = ("changed" if writing else "looked at") if atomic else "read" if not writing else "kept" if kept else "written"
        # reads are stored and not checked yet, because most arrays are never written
        if kind == "read" and not self.last and self.logged < LOG and who.parts is None:
            self.log.append((offset if self.size >> 31 else offset.astype(np.int32), width, who))
            self.logged += offset.size
            return
        log, self.log = self.log, []
        for earlier in log:
            self._note("read", *self._units(*earlier))
        at, whole = self._units(offset, width, who)
        for other_kind in filter(self.last.get, AGAINST[kind]):
            last = self.last[other_kind]
            other = last.conflict(at, whole)
            if other is not None and whole.fences is not None:
                other = self._unordered(last, other, at, whole, atomic=other_kind == "changed")
            if other is not None:
                i = int(np.flatnonzero(other != NOBODY)[0])
                by = name_of(int(other[i]), int(whole.codes[i]))
                did = "written, with what was there," if other_kind == "kept" else other_kind
                raise Fault(f"race: {kind} here, and {did} by {by}", i % offset.size, int(last.pc[at[i]]))
        self._note(kind, at, whole)
        if kind == "written" and (wrong := self.last[kind].who[at] != whole.codes).any():
            i = int(np.flatnonzero(wrong)[0])
            other = whole.codes[(at == at[i]) & (whole.codes != whole.codes[i])][0]
            among = name_of(int(other), int(whole.codes[i])).removesuffix(" with no barrier between")
            raise Fault(f"race: written by several threads at once, {among} among them,", i % offset.size)

    def note_equal(self, offset: np.ndarray, width: int, who: Who, kept: bool) -> None:
        """Record writes that are equal to one that was checked in the same instruction."""
        self._note("kept" if kept else "written", *self._units(offset, width, who))

    def _unordered(self, last: _Last, other: np.ndarray, at: np.ndarray, who: Who, atomic: bool) -> np.ndarray | None:
        """Return `other`, a result of `last.conflict`, without those that fences order; None if nobody is left."""
        fences = who.fences
        for k in np.flatnonzero(other != NOBODY):
            if not atomic and int(who.codes[k]) >> OF_BLOCK not in fences.acquires:
                continue  # its block has acquired nothing that was released, so that no fence orders it after others
            now, code, unit = who.moment(k), int(other[k]), int(at[k])
            earlier = Moment(code, int(last.stamp[unit]), int(last.epoch[unit]), int(last.warp_epoch[unit]))
            one = code != EVERYWHERE and SEVERAL not in (code >> OF_WARP & 63, code & 63)
            places = {unit * self.unit, unit * self.unit & -8} if atomic else ()
            if fences.ordered(earlier, now, one, code == EVERYWHERE) or any(
                fences.observed((self.number, place), now) for place in places
            ):
                other[k] = NOBODY
        return other if (other != NOBODY).any() else None

    def _units(self, offset: np.ndarray, width: int, who: Who) -> tuple[np.ndarray, Who]:
        """Return the accessed units and the threads that access them. If an access has several units, all first units come
        first, then all second units, and so on.
        """
        while width % self.unit:
            self.unit //= 2
            for last in self.last.values():
                last.split()
        at, parts = offset >> self.unit.bit_length() - 1, width // self.unit
        if parts == 1:
            return at, who
        return (at + np.arange(parts)[:, None]).ravel(), Who(*(np.concatenate((part,) * parts) for part in who[:3]), *who[3:])

    def _note(self, kind: str, at: np.ndarray, who: Who) -> None:
        if kind not in self.last:
            self.last[kind] = _Last(-(-self.size // self.unit), self.across)
        last = self.last[kind]
        earlier = last.conflict(at, who)
        if earlier is not None and who.fences is not None and kind in ("read", "written", "kept"):
            earlier = self._unordered(last, earlier, at, who, atomic=False)
        last.note(at, who, earlier)


class _Last:
    """For every unit of memory, the thread that accessed it last, and the barrier interval of this access."""

    def __init__(self, units: int, across: bool) -> None:
        self.across, self.who = across, np.full(units, NOBODY, np.int64)
        self.epoch, self.warp_epoch, self.pc = (np.full(units, NOBODY, np.int32) for _ in range(3))
        self.stamp: np.ndarray = self.epoch  # of kernels that have fences, the clock at the access
        # of kernels with barriers of parts of warps: the lanes that `who` stands for in its warp, and the clock of `Parts`
        self.lanes, self.clock = np.zeros(0, np.uint32), np.zeros(0, np.int32)

    def split(self) -> None:
        """Split each unit into two units of half the size."""
        stamped = self.stamp is not self.epoch
        self.who, self.epoch, self.warp_epoch, self.pc = (a.repeat(2) for a in (self.who, self.epoch, self.warp_epoch, self.pc))
        self.stamp = self.stamp.repeat(2) if stamped else self.epoch
        self.lanes, self.clock = self.lanes.repeat(2), self.clock.repeat(2)

    def conflict(self, at: np.ndarray, who: Who) -> np.ndarray | None:
        """Return, for each unit, another thread that accessed it since the last barrier, or NOBODY; None if all are NOBODY."""
        there = self.epoch[at] == who.epochs
        if not self.across and not there.any():
            return None
        other = self.who[at]
        others = (other != who.codes) & (other != NOBODY)
        if not others.any():
            return None
        if self.across:
            there |= other >> OF_BLOCK != who.codes >> OF_BLOCK
        there &= others
        apart = other >> OF_WARP != who.codes >> OF_WARP
        there &= apart | (self.warp_epoch[at] == who.warp_epochs)
        if who.parts is not None:
            k = np.flatnonzero(there & ~apart)
            there[k] = ~who.parts.ordered(self.lanes[at[k]], self.clock[at[k]], who.codes[k])
        return np.where(there, other, NOBODY) if there.any() else None

    def note(self, at: np.ndarray, who: Who, earlier: np.ndarray | None) -> None:
        """Note accesses; `earlier` is the result of `conflict`, without what fences order."""
        codes = who.codes
        if who.fences is not None:
            if self.stamp is self.epoch:
                self.stamp = np.zeros(self.epoch.size, np.int64)
            self.stamp[at] = who.stamp
        if who.parts is not None:
            self._note_lanes(at, who, earlier)
        if earlier is not None:
            codes = np.where(earlier == NOBODY, codes, _together(codes, earlier))
        self.who[at], self.epoch[at], self.warp_epoch[at], self.pc[at] = codes, who.epochs, who.warp_epochs, who.pc
        stays = self.who[at]
        lost = stays != codes  # several threads of this instruction access the unit
        if lost.any():
            np.maximum.at(self.who, at[lost], _together(codes[lost], stays[lost]))

    def _note_lanes(self, at: np.ndarray, who: Who, earlier: np.ndarray | None) -> None:
        """Note the lanes of accesses, beside those of earlier ones that are not ordered before, and the clock."""
        if not self.lanes.size:
            self.lanes, self.clock = np.zeros(self.who.size, np.uint32), np.zeros(self.who.size, np.int32)
        bits = BIT_OF_LANE[who.codes & 63]
        if earlier is not None:
            bits = bits | np.where(earlier == NOBODY, np.uint32(0), self.lanes[at])
        self.lanes[at], self.clock[at] = 0, who.parts.clock
        np.bitwise_or.at(self.lanes, at, bits)


def changing(now: np.ndarray, unset: np.ndarray, offset: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the indices of the writes of one instruction that change memory: not those of the bits that are there, unless
    other threads write other bits to the same place, and of equal writes to one place one alone. now, values (n, k) are bits
    before and after, unset (n,) is True where nobody wrote.
    """
    loud = (now != values).any(axis=1) | unset
    if loud.any() and not loud.all() and not (np.diff(offset) > 0).all():
        _, first, place = np.unique(offset, return_index=True, return_inverse=True)
        unequal = np.zeros(first.size, bool)
        unequal[place[(values != values[first[place]]).any(axis=1)]] = True
        loud |= unequal[place]
    found = np.flatnonzero(loud)
    if found.size > 1 and not (np.diff(offset[found]) > 0).all():
        rows = np.column_stack([offset[found].astype(np.uint64), values[found].astype(np.uint64)])
        found = found[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    return found


def _together(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the code that stands for two threads: that of several threads of a warp, of a block, or of the launch."""
    differ = a ^ b
    found = np.where(differ < 1 << OF_WARP, a & -1 << OF_WARP | SEVERAL, a & -1 << OF_BLOCK | SEVERAL << OF_WARP | SEVERAL)
    across = differ >= 1 << OF_BLOCK
    if across.any():
        found[across] = EVERYWHERE
    return found


def name_of(code: int, mine: int) -> str:
    block, warp, lane = code >> OF_BLOCK, code >> OF_WARP & 63, code & 63
    if code == EVERYWHERE:
        return "threads of several blocks"
    named = "several threads" if SEVERAL in (warp, lane) else f"thread {warp * 32 + lane}"
    return f"{named} with no barrier between" if block == mine >> OF_BLOCK else f"{named} of block {block}"
