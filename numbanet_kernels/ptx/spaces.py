"""Memory of the machine: the arrays passed are all the global memory there is, and every access is checked.

    out of bounds   an access that lies in no array, shared variable or local memory
    misaligned      an address that is no multiple of the width of its access
    unset           shared or local memory that is read before it is written
    race            shared: two threads of a block touch a word, one of them writing, with no barrier between;
                    global: two blocks do, in one launch, unless by atomic instructions or by strong accesses (ld.relaxed);
                    whether fences put these in order is not looked at

Generic addresses of shared and local memory lie in windows of their own, as on a card; global ones are those of the host.
Who last read, wrote or changed it by an atomic instruction is kept for every byte.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .arithmetic import BITS

WINDOWS = {"shared": 1 << 60, "local": 1 << 61}  # where these begin among generic addresses
WINDOW = 1 << 59
WORD, WARP, SECTOR, BANKS = 4, 32, 32, 32
NOBODY, MANY, OF_WARP = -1, -2, -3  # OF_WARP - w: several threads of warp w


class Fault(Exception):
    """What is wrong with an access, and which of its accesses it is; the machine says by whom and where."""

    def __init__(self, problem: str, number: int) -> None:
        super().__init__(problem)
        self.problem, self.number = problem, number


class Who(NamedTuple):
    """Who accesses: one entry a thread, except for the last two, which are one a warp of the machine."""

    threads: np.ndarray     # numbers, 32 a warp; of global memory: 32 times the block's
    epochs: np.ndarray      # how many barriers its block has passed
    warp_epochs: np.ndarray  # and how many its warp


class Store:
    """Bytes, which of them are set, and who last touched each word."""

    def __init__(self, data: np.ndarray, unset: bool) -> None:
        self.data, self.unset = data, np.ones(data.size, np.uint8) if unset else None
        self.unit = 16 if unset else math.gcd(data.ctypes.data, 16)  # in which all accesses so far agree
        self.last: dict[str, _Last] = {}

    def _units(self, array: np.ndarray, width: int) -> np.ndarray:
        return array[:array.size // width * width].view(BITS[width])

    def read(self, offset: np.ndarray, width: int) -> np.ndarray:
        """The unsigned integers of so many bytes at some offsets."""
        if self.unset is not None:
            missing = self._units(self.unset, width)[offset // width] != 0
            if missing.any():
                raise Fault("read before it was written", int(np.flatnonzero(missing)[0]))
        return self._units(self.data, width)[offset // width]

    def write(self, offset: np.ndarray, values: np.ndarray, width: int) -> None:
        """The last of several values for one place stays."""
        self._units(self.data, width)[offset // width] = values
        if self.unset is not None:
            self._units(self.unset, width)[offset // width] = 0

    def forget(self, offset: np.ndarray, width: int) -> None:
        """What is there is not set any more: something is on its way."""
        if self.unset is not None:
            for k in range(width):
                self.unset[offset + k] = 1

    def touch(self, offset: np.ndarray, width: int, who: Who, writing: bool, atomic: bool = False) -> None:
        """Notes who reads, writes or changes; Fault if another one did, since the last barrier that both have passed, and it
        matters who comes first."""
        unit = math.gcd(width, self.unit)
        if unit < self.unit:
            for last in self.last.values():
                last.split(self.unit // unit)
            self.unit = unit
        kind = "changed" if atomic else "written" if writing else "read"
        against = {"read": ("written", "changed"), "written": ("written", "read", "changed"),
                   "changed": ("written", "read")}[kind]
        at = offset // unit
        if width > unit:
            at = (at + np.arange(width // unit)[:, None]).ravel()
            who = Who(*(np.tile(part, width // unit) for part in who))
        for other_kind in filter(self.last.get, against):
            other = self.last[other_kind].conflict(at, who)
            if other is not None:
                i = int(np.flatnonzero(other != NOBODY)[0])
                raise Fault(f"race: {kind} here, and {other_kind} by {_name(int(other[i]))} with no barrier between",
                            i % offset.size)
        if kind not in self.last:
            self.last[kind] = _Last(-(-self.data.size // unit))
        self.last[kind].note(at, who)
        if kind == "written" and (wrong := self.last[kind].who[at] != who.threads).any():
            raise Fault("race: written by several threads at once", int(np.flatnonzero(wrong)[0]) % offset.size)


class _Last:
    """Of every unit of memory: who touched it last, and in which stretch between barriers."""

    def __init__(self, units: int) -> None:
        self.who, self.epoch, self.warp_epoch = (np.full(units, NOBODY, np.int32) for _ in range(3))

    def split(self, parts: int) -> None:
        """Into smaller units."""
        self.who, self.epoch, self.warp_epoch = (a.repeat(parts) for a in (self.who, self.epoch, self.warp_epoch))

    def conflict(self, at: np.ndarray, who: Who) -> np.ndarray | None:
        """Who else touched the units in the same stretch, or NOBODY; None where nobody did."""
        there = self.epoch[at] == who.epochs
        if not there.any():
            return None
        other = self.who[at]
        there &= other != who.threads
        if not there.any():
            return None
        there &= (_warp(other) != who.threads // WARP) | (self.warp_epoch[at] == who.warp_epochs)
        return np.where(there, other, NOBODY) if there.any() else None

    def note(self, at: np.ndarray, who: Who) -> None:
        threads, earlier = who.threads, self.conflict(at, who)
        if earlier is not None:
            warps = threads // WARP
            mixed = np.where(_warp(earlier) == warps, OF_WARP - warps, MANY)
            threads = np.where(earlier == NOBODY, threads, mixed)
        self.who[at], self.epoch[at], self.warp_epoch[at] = threads, who.epochs, who.warp_epochs
        lost = (self.who[at] != who.threads) & (threads == who.threads)  # several threads in this very instruction
        if lost.any():
            places, w = at[lost], who.threads[lost] // WARP
            self.who[places] = np.where(_warp(self.who[places]) == w, OF_WARP - w, MANY)


def _warp(who: np.ndarray) -> np.ndarray:
    return np.where(who >= 0, who // WARP, np.where(who <= OF_WARP, OF_WARP - who, MANY))


def _name(who: int) -> str:
    return f"thread {who}" if who >= 0 else "several threads"


class Global:
    """The arrays of a launch, by their addresses."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        distinct = {(a.ctypes.data, a.nbytes): a for a in arrays if a.nbytes}
        self.arrays = [distinct[key] for key in sorted(distinct)]
        self.stores = [Store(a.reshape(-1).view(np.uint8), unset=False) for a in self.arrays]
        self.starts = np.array([a.ctypes.data for a in self.arrays], np.int64)
        self.stops = self.starts + np.array([a.nbytes for a in self.arrays], np.int64)

    def find(self, address: np.ndarray, width: int) -> list[tuple[Store, np.ndarray, np.ndarray]]:
        """[(store, which of the accesses lie in it, their offsets)]; Fault where one lies in none."""
        found, left = [], np.ones(address.size, bool)
        for store, start, stop in zip(self.stores, self.starts, self.stops, strict=True):
            inside = left & (address >= start) & (address + width <= stop)
            if inside.any():
                found.append((store, np.flatnonzero(inside), address[inside] - start))
                left &= ~inside
        if left.any():
            i = int(np.flatnonzero(left)[0])
            raise Fault(f"out of bounds: {self._nearest(int(address[i]))}", i)
        return found

    def _nearest(self, address: int) -> str:
        if not self.arrays:
            return "no array was passed"
        k = int(np.argmin(np.maximum(self.starts - address, 0) + np.maximum(address - self.stops, 0)))
        return (f"byte {address - self.starts[k]} of the nearest array, which has {self.arrays[k].nbytes} bytes, shape "
                f"{self.arrays[k].shape} of {self.arrays[k].dtype}")


class Private:
    """Shared memory of blocks, or local memory of threads: a row for each owner."""

    def __init__(self, owners: int, size: int) -> None:
        self.size, self.room = size, -(-max(size, 1) // 16) * 16
        self.store = Store(np.zeros(owners * self.room, np.uint8), unset=True)

    def find(self, address: np.ndarray, width: int, owners: np.ndarray) -> list[tuple[Store, np.ndarray, np.ndarray]]:
        """As `Global.find`; addresses count from the start of an owner's row."""
        outside = (address < 0) | (address + width > self.size)
        if outside.any():
            i = int(np.flatnonzero(outside)[0])
            raise Fault(f"out of bounds: byte {address[i]} of {self.size}", i)
        return [(self.store, np.arange(address.size), owners * self.room + address)]


def check_alignment(address: np.ndarray, width: int) -> None:
    wrong = address % width != 0
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise Fault(f"misaligned: address {address[i]:#x} is no multiple of {width}", i)


# --- what accesses cost -----------------------------------------------------------------------------------------------
def _by_pattern(count: Callable[..., Any]) -> Callable[..., Any]:
    """count(address, width, threads), remembered: it is the same wherever in memory a pattern begins, up to whole sectors."""
    @functools.lru_cache(256)
    def known(pattern: bytes, width: int) -> Any:
        packed = np.frombuffer(pattern, np.int64)
        return count(packed >> 20, width, packed & (1 << 20) - 1)

    return lambda address, width, threads: known((address - (address.min() & -SECTOR) << 20 | threads).tobytes(), width)


@_by_pattern
def sectors(address: np.ndarray, width: int, threads: np.ndarray) -> tuple[int, int]:
    """(sectors of 32 bytes that warps touch, the fewest that could hold the bytes they ask for); 32 threads are a warp."""
    warps = threads // WARP
    touched = np.unique(warps << 40 | address // SECTOR).size
    asked = np.unique(np.unique(warps << 40 | address // width) >> 40, return_counts=True)[1] * width
    return touched, int((-(-asked // SECTOR)).sum())


@_by_pattern
def conflicts(address: np.ndarray, width: int, lanes: np.ndarray) -> int:
    """Cycles that warps wait because several words of one bank are asked for at once.

    Half a warp at a time is served with 8 bytes a thread, a quarter with 16; threads that ask for one word share it. `lanes`
    has each access's thread, 32 a warp.
    """
    words = max(width // WORD, 1)
    phase = np.repeat(lanes * words // WARP, words)
    word = (address[:, None] // WORD + np.arange(words)).ravel()
    distinct = np.unique(phase << 40 | word)
    banks = np.unique((distinct >> 40) * BANKS + distinct % BANKS, return_counts=True)
    phases, first = np.unique(banks[0] // BANKS, return_index=True)
    return int(np.maximum.reduceat(banks[1], first).sum() - phases.size)
