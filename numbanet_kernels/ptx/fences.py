"""Order by fences and atomic instructions, between threads that no barrier orders.

    release   a fence, and later an atomic instruction or a strong write of the same thread to a location
    acquire   a later atomic instruction whose result is used, or a strong read, of this location by another thread

What was before the fence is ordered before what follows the acquire (PTX ISA, "Memory Consistency Model": release and acquire
patterns). "Before" and "follows" include barriers: a fence of one thread, after a barrier, is that of its whole block. The
acquiring thread needs a fence, too; the machine does not ask for it, because it loads nothing early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .program import Instruction

RELEASES = {"release", "acq_rel"}  # accesses with these modifiers are a fence and an access
MOST_WAITING = 1 << 12  # accesses of a memory by instructions of all threads of a block that wait to be looked at
OF_WARP, OF_BLOCK = 6, 12  # number of bits in the code of a thread below the warp, and below the block
Location = tuple[int, int]  # a memory (the number of its shadow), and an offset


def is_fence(i: Instruction) -> bool:
    """Return True for an instruction that orders accesses of its thread, as a fence or before its own access."""
    if i.opcode == "mbarrier":
        return i.modifiers[0] in ("arrive", "arrive_drop") and "relaxed" not in i.modifiers
    return i.opcode == "membar" or (i.opcode == "fence" and "proxy" not in i.modifiers) or not RELEASES.isdisjoint(i.modifiers)


class Moment(NamedTuple):
    """When a thread did something: the number of events in the launch so far, and of barriers of its block and its warp."""

    code: int
    stamp: int
    epoch: int
    warp_epoch: int

    def before(self, later: Moment) -> bool:
        """Return True if a barrier, or the order of one thread, puts this moment before a later one."""
        return (
            (self.code == later.code and self.stamp < later.stamp)
            or (self.code >> OF_BLOCK == later.code >> OF_BLOCK and self.epoch < later.epoch)
            or (self.code >> OF_WARP == later.code >> OF_WARP and self.warp_epoch < later.warp_epoch)
        )


class Release(NamedTuple):
    """An atomic instruction or a strong write, and the last fence of its thread of the whole card, and of its block alone."""

    stamp: int
    wide: Moment | None
    narrow: Moment | None


class Fences:
    """The fences, releases and acquires of one launch of `blocks` blocks of `threads` threads."""

    def __init__(self, blocks: int, threads: int = 1024) -> None:
        self.blocks, self.threads, self.clock = blocks, threads, 0
        self.wide: dict[int, Moment] = {}  # the last fence of each thread, by its code
        self.narrow: dict[int, Moment] = {}
        self.releases: dict[Location, list[Release]] = {}
        # by block, and by thread and location: acquires, each with the number of releases at the location before it
        self.acquires: dict[int, dict[tuple[int, Location], list[tuple[Moment, int]]]] = {}
        self.latest: dict[Location, int] = {}  # the stamp of the last atomic instruction or strong access
        self.newest: dict[tuple[int, Location], Moment] = {}  # the last acquire by a thread of each block
        self.found: dict[tuple[int, ...], dict[int, Moment]] = {}  # results of `_reached`
        self.released: dict[int, set[int]] = {}  # the offsets with releases, by memory
        # by memory: accesses that are not yet in `latest` and `newest`, which few memories are asked for
        self.waiting: dict[int, list[tuple[np.ndarray, np.ndarray, int, bool]]] = {}

    # --- called by the machine ----------------------------------------------------------------------------------------
    def fence(self, threads: Iterable[tuple[int, int, int]], wide: bool) -> None:
        """Note a fence of threads (code, epoch, epoch of the warp), of the whole card or of their blocks."""
        self.clock += 1
        noted = self.wide if wide else self.narrow
        for code, epoch, warp_epoch in threads:
            noted[code] = Moment(code, self.clock, epoch, warp_epoch)

    def touch(self, memory: int, offsets: np.ndarray, threads: np.ndarray, reads: bool, writes: bool) -> None:
        """Note an atomic instruction or a strong access of threads, each to its offset, one after the other.

        offsets (n,), threads (n, 3): code, epoch, epoch of the warp.
        """
        offsets, threads = np.asarray(offsets), np.asarray(threads)
        first, released = self.clock, self.released.get(memory)
        self.clock += offsets.size
        if offsets.size:
            waiting = self.waiting.setdefault(memory, [])
            waiting.append((offsets, threads, first, reads))
            if len(waiting) == MOST_WAITING:
                self._settle(memory)
        codes = threads[:, 0].tolist() if writes else []
        releases = not (self.wide.keys().isdisjoint(codes) and self.narrow.keys().isdisjoint(codes))
        if releases or not (released is None or released.isdisjoint(offsets.tolist())):
            self._order(memory, offsets, threads, first, reads, writes)

    def _order(self, memory: int, offsets: np.ndarray, threads: np.ndarray, first: int, reads: bool, writes: bool) -> None:
        """Note the releases, and the acquires of what was released, of accesses after the clock `first`."""
        for stamp, (offset, thread) in enumerate(zip(offsets.tolist(), threads.tolist(), strict=True), first + 1):
            location, code = (memory, offset), thread[0]
            releases = self.releases.get(location, [])
            if reads and releases:
                before = self.acquires.setdefault(code >> OF_BLOCK, {}).setdefault((code, location), [])
                if not before or before[-1][1] < len(releases):  # else it has seen what the last one has
                    before.append((Moment(code, stamp, *thread[1:]), len(releases)))
            if writes and (code in self.wide or code in self.narrow):
                made = Release(stamp, self.wide.get(code), self.narrow.get(code))
                self.releases.setdefault(location, releases).append(made)
                self.released.setdefault(memory, set()).add(offset)

    def _settle(self, memory: int) -> None:
        """Note the accesses of a memory that wait: when a location was touched last, and when each block read it last."""
        for offsets, threads, clock, reads in self.waiting.pop(memory, ()):
            for stamp, (offset, thread) in enumerate(zip(offsets.tolist(), threads.tolist(), strict=True), clock + 1):
                self.latest[memory, offset] = stamp
                if reads:
                    self.newest[thread[0] >> OF_BLOCK, (memory, offset)] = Moment(thread[0], stamp, *thread[1:])

    # --- called by the detection of races -----------------------------------------------------------------------------
    def ordered(self, earlier: Moment, now: Moment, one: bool, everywhere: bool) -> bool:
        """Return True if fences order an access before one that happens `now`. `one` says whether `earlier` is of one thread:
        else it is the last of several, of one block, or, if `everywhere`, of several blocks.
        """
        fences = self._reached(now)
        if everywhere:  # the blocks are not known: all must be ordered before
            blocks = {code >> OF_BLOCK for code in fences} - {now.code >> OF_BLOCK}
            return len(blocks) >= self.blocks - 1
        if one:
            return any(earlier.before(fence) for fence in fences.values())
        block = earlier.code >> OF_BLOCK
        if any(code >> OF_BLOCK == block and earlier.epoch < fence.epoch for code, fence in fences.items()):
            return True
        after = {code for code, fence in fences.items() if earlier.stamp < fence.stamp} | {now.code}
        return all(block << OF_BLOCK | thread // 32 << OF_WARP | thread % 32 in after for thread in self._several(earlier.code))

    def _several(self, code: int) -> range:
        """Return the threads of a block that a code of several threads may stand for: those of its warp, or of the block."""
        warp = code >> OF_WARP & 63
        return range(self.threads) if warp == 32 else range(32 * warp, min(32 * warp + 32, self.threads))

    def observed(self, location: Location, now: Moment) -> bool:
        """Return True if all atomic instructions at a location come before one that is before `now`, and has read them."""
        self._settle(location[0])
        newest = self.newest.get((now.code >> OF_BLOCK, location))
        return newest is not None and newest.stamp >= self.latest[location] and newest.before(_after(now))

    def _acquired(self, now: Moment, passed: dict[tuple[Location, int], int]) -> Iterator[tuple[Moment, Location, int]]:
        """Yield the last acquire of each location, by each thread of the block, that is ordered before `now`: (when, where, the
        number of releases before it), unless so many are `passed`.
        """
        block = now.code >> OF_BLOCK
        for (_, location), moments in self.acquires.get(block, {}).items():
            most = passed.get((location, block), 0)
            for moment, count in reversed(moments):
                if count <= most:
                    break
                if moment.before(now):
                    yield moment, location, count
                    break

    def _reached(self, now: Moment) -> dict[int, Moment]:
        """Return the fences that are ordered before `now`: the last one of each thread, by its code."""
        due = list(self._acquired(_after(now), {}))
        key = tuple(moment.stamp for moment, *_ in due)
        if key in self.found:
            return self.found[key]
        fences: dict[int, Moment] = {}
        passed: dict[tuple[Location, int], int] = {}  # the number of releases that were followed, by location and block
        while due:
            moment, location, count = due.pop()
            block = moment.code >> OF_BLOCK
            first = passed.get((location, block), 0)
            passed[location, block] = max(first, count)
            for release in reversed(self.releases[location][first:count]):
                for fence in (release.wide, release.narrow):
                    if fence is None or (fence is release.narrow and fence.code >> OF_BLOCK != block):
                        continue
                    if fence.code not in fences or fences[fence.code].stamp < fence.stamp:
                        fences[fence.code] = fence
                        due += self._acquired(fence, passed)
        self.found[key] = fences
        return fences


def _after(now: Moment) -> Moment:
    return now._replace(stamp=now.stamp + 1)
