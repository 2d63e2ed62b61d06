"""Global memory of the emulated card: allocations with addresses of their own, which the PTX machine reads and writes.

    device memory      begins at addresses from `FIRST` on, 1 GiB apart, and no address is given out twice: an access that
                       misses its allocation, or comes after its end, meets no other one
    shared with host   mapped, managed and page-locked memory has the addresses of the host

`find` has the signature of `ptx.spaces.Global.find`. The allocations live from launch to launch; what the machine notes of
their accesses, to find races, lives for one launch, since launches of one stream are ordered.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ptx.races import Fault, Shadow
from ..ptx.spaces import Store

FIRST, APART, ALIGNMENT, LINE = 1 << 52, 1 << 30, 256, 16
TOTAL = 16 << 30  # bytes of memory that the card says it has


class Allocation:
    """Bytes `start` to `stop` of the card's address space: `store` holds them, the first of them at index `lead`.

    If `tracked`, the machine reports bytes that are read before anyone wrote them.
    """

    def __init__(self, start: int, size: int, memory: np.ndarray, lead: int, what: str, tracked: bool) -> None:
        self.start, self.size, self.stop, self.lead, self.what = start, size, start + size, lead, what
        self.store = Store(memory, unset=False)
        self.arrays: list[Any] = []  # the `Array`s of it that were last passed to a kernel
        if tracked:
            self.store.unset = np.ones(memory.size, np.uint8)

    @property
    def host(self) -> int:
        """The address of the first byte in the memory of the host."""
        return self.store.data.ctypes.data + self.lead

    def written(self, offset: int, size: int) -> None:
        """Note that the host, or a copy, wrote bytes."""
        if self.store.unset is not None:
            self.store.unset[self.lead + offset : self.lead + offset + size] = 0


LEAK = "\0"


class Owed(NamedTuple):
    """An allocation that the program has to free itself: its bytes, the line that allocated it, and a sentence about it, with
    LEAK where the number of such allocations is told.
    """

    size: int
    line: str
    said: str


REMEMBERED = 10_000  # freed allocations that errors can name


class Heap:
    """All allocations of the card. `tracked` says whether reads of memory that nobody wrote are errors."""

    next = FIRST  # where the next allocation of any heap begins: arrays of an earlier one are not taken for those of another

    def __init__(self, tracked: bool = False) -> None:
        self.tracked = tracked
        self.starts: list[int] = []  # sorted
        self.allocations: list[Allocation] = []  # in the order of `starts`
        self.freed: dict[int, int] = {}  # address: size
        self.owed: dict[int, Owed] = {}  # by address, what the program has to free
        self.touched: set[Allocation] = set()
        self.used = 0  # bytes that are allocated

    # --- allocations --------------------------------------------------------------------------------------------------
    def allocate(self, size: int, what: str = "allocation") -> Allocation:
        """Allocate device memory; its bytes are 255 at first: NaN, or -1. Raise MemoryError if it is more than the card has."""
        if size > TOTAL - self.used:
            raise MemoryError(f"{size} bytes, and the card has {TOTAL - self.used}")
        made = Allocation(Heap.next, size, _memory(size), 0, what, self.tracked)
        Heap.next += -(-(size + APART) // ALIGNMENT) * ALIGNMENT
        return self._add(made)

    def share(self, size: int) -> Allocation:
        """Allocate memory that the host and the card address alike."""
        memory = _memory(size)
        return self._add(Allocation(memory.ctypes.data, size, memory, 0, "allocation", tracked=False))

    def register(self, address: int, size: int) -> Allocation:
        """Make memory of the host accessible to the card, at the same addresses."""
        lead = address % LINE  # so that the index of a byte is a multiple of a width if and only if its address is
        memory = np.frombuffer((ctypes.c_uint8 * (lead + size)).from_address(address - lead), np.uint8)
        return self._add(Allocation(address, size, memory, lead, "array of the host", tracked=False))

    def _add(self, made: Allocation) -> Allocation:
        place = bisect.bisect(self.starts, made.start)
        self.starts.insert(place, made.start)
        self.allocations.insert(place, made)
        self.freed.pop(made.start, None)
        self.used += made.size
        return made

    def free(self, address: int) -> bool:
        """Free the allocation that begins at the address; return False if there is none."""
        place = bisect.bisect_left(self.starts, address)
        if place == len(self.starts) or self.starts[place] != address:
            return False
        del self.starts[place]
        self.owed.pop(address, None)
        self.freed[address] = self.allocations.pop(place).size
        self.used -= self.freed[address]
        if len(self.freed) > REMEMBERED:
            del self.freed[next(iter(self.freed))]
        return True

    def at(self, address: int) -> Allocation | None:
        """Return the allocation that holds the byte at this address, or None."""
        place = bisect.bisect(self.starts, address) - 1
        found = self.allocations[place] if place >= 0 else None
        return found if found is not None and address < max(found.stop, found.start + 1) else None

    def leaks(self) -> list[str]:
        """Return a sentence for each line whose memory was not freed."""
        lines: dict[str, list[Owed]] = {}
        for owed in self.owed.values():
            lines.setdefault(owed.line, []).append(owed)
        return [_leak(some) for some in lines.values()]

    # --- copies -------------------------------------------------------------------------------------------------------
    def place(self, address: int, size: int) -> int:
        """Return the host address of `size` bytes of device memory. Raise IndexError if they are not in one allocation."""
        found = self.at(address)
        if found is None or address + size > found.stop:
            raise IndexError(f"bytes {address:#x} to {address + size:#x} are not in one allocation")
        return found.host + address - found.start

    def write(self, address: int, source: int, size: int) -> None:
        """Copy bytes from a host address to a device address."""
        ctypes.memmove(self.place(address, size), source, size)
        found = self.at(address)
        found.written(address - found.start, size)

    def read(self, target: int, address: int, size: int) -> None:
        """Copy bytes from a device address to a host address."""
        ctypes.memmove(target, self.place(address, size), size)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes between device addresses, and which of them are unset."""
        to, of = self.at(target), self.at(source)
        self.write(target, self.place(source, size), size)
        if to.store.unset is not None and of.store.unset is not None:
            first, last = target - to.start, source - of.start
            to.store.unset[first : first + size] = of.store.unset[last : last + size]

    def fill(self, address: int, value: int, size: int) -> None:
        """Set bytes to a value."""
        ctypes.memset(self.place(address, size), value & 255, size)
        found = self.at(address)
        found.written(address - found.start, size)

    # --- called by the machine ----------------------------------------------------------------------------------------
    def address(self, array: np.ndarray) -> int:
        """Return the device address of an array that is the data of an allocation (`ptx.spaces.Global.address`)."""
        return next(a.start for a in self.allocations if a.store.data.ctypes.data == array.ctypes.data)

    def begin(self) -> None:
        """Forget the accesses of the last launch: it is over, so that they do not race with those to come."""
        for allocation in self.touched:
            allocation.store.shadow = Shadow(allocation.store.data.size, across=True)
        self.touched.clear()

    def passed(self, arrays: Sequence[Any], limit: bool) -> None:
        """Note the arrays (`faults.Array`) of a launch: errors name them. If `limit`, a kernel may access no more of their
        allocations than these arrays.
        """
        within: dict[Allocation, list[Any]] = {}
        for array in arrays:
            if (found := self.at(array.address)) is not None:
                found.what = f"{array}"
                within.setdefault(found, []).append(array)
        for allocation in self.allocations:
            allocation.arrays = within.get(allocation, allocation.arrays)
            allocation.store.inside = _inside(allocation, within[allocation]) if limit and allocation in within else None

    def find(self, address: np.ndarray, width: int) -> list[tuple[Store, np.ndarray, np.ndarray]]:
        """Return [(store, indices of the accesses in it, their offsets)]; raise Fault if an access is in no allocation."""
        least, most = int(address.min()), int(address.max()) + width
        found = self.at(least)
        if found is not None and most <= found.stop:
            self.touched.add(found)
            if found.store.inside is not None:
                _check_inside(found, address, width)
            return [(found.store, np.arange(address.size), address - (found.start - found.lead))]
        places = np.searchsorted(np.array(self.starts, np.int64), address, "right") - 1
        parts = []
        for place in np.unique(places):
            chosen = np.flatnonzero(places == place)
            part = self.allocations[place] if place >= 0 else None
            outside = np.ones(chosen.size, bool) if part is None else address[chosen] + width > part.stop
            if outside.any():
                i = int(chosen[np.flatnonzero(outside)[0]])
                raise Fault(self._missed(int(address[i])), i)
            self.touched.add(part)
            if part.store.inside is not None:
                _check_inside(part, address[chosen], width, chosen)
            parts.append((part.store, chosen, address[chosen] - (part.start - part.lead)))
        return parts

    def _missed(self, address: int) -> str:
        gone = next((start for start, size in self.freed.items() if start <= address < start + size), None)
        if gone is not None:
            return f"use after free: byte {address - gone} of an allocation of {self.freed[gone]} bytes that has been freed"
        if not self.allocations:
            return f"out of bounds: address {address:#x}, and nothing is allocated"
        near = min(self.allocations, key=lambda a: max(a.start - address, address - a.stop + 1, 0))
        if min(abs(address - near.start), abs(address - near.stop)) >= APART // 2:
            return f"out of bounds: address {address:#x} is far from every allocation"
        return f"out of bounds: byte {address - near.start} of the nearest {near.what}, which has {near.size} bytes"


def _inside(allocation: Allocation, arrays: Sequence[Any]) -> np.ndarray | None:
    """Return a mask of the bytes of an allocation that belong to arrays; None if all do, or if one is not in it as a whole."""
    if any(a.address == allocation.start and a.contiguous and a.bytes == allocation.size for a in arrays):
        return None
    arrays = [a for a in arrays if a.bytes]
    if any(a.bounds[0] < allocation.start or a.bounds[1] > allocation.stop for a in arrays):
        return None
    inside = np.zeros(allocation.store.data.size, bool)
    for a in arrays:
        first = inside[allocation.lead + a.address - allocation.start :]
        np.lib.stride_tricks.as_strided(first, (*a.shape, a.itemsize), (*a.strides, 1))[...] = True
    return None if inside[allocation.lead :].all() else inside


def _check_inside(allocation: Allocation, address: np.ndarray, width: int, chosen: np.ndarray | None = None) -> None:
    """Raise Fault if an access is in an allocation, and outside of the arrays of it that were passed."""
    offset = address - (allocation.start - allocation.lead)
    outside = ~allocation.store.inside[offset[:, None] + np.arange(width)].all(axis=1)
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        arrays = sorted(allocation.arrays, key=lambda array: array.address)
        near = next((array for array in reversed(arrays) if array.address <= address[i]), arrays[0])
        byte = int(address[i]) - near.address
        problem = f"out of bounds: byte {byte} of {near}, which is a part of an allocation of {allocation.size} bytes"
        raise Fault(problem, i if chosen is None else int(chosen[i]))


def _leak(some: Sequence[Owed]) -> str:
    """Return a sentence about the allocations of one line."""
    of = "an allocation" if len(some) == 1 else f"{len(some)} allocations"
    return some[0].said.replace(LEAK, f"leak: {of} of {sum(owed.size for owed in some)} bytes")


def _memory(size: int) -> np.ndarray:
    """Return `size` bytes of the host's memory, 255 each, at a multiple of 256."""
    memory: Any = np.full(size + ALIGNMENT, 255, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
