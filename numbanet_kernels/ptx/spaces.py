"""The memory of the interpreter. Global memory consists of the arrays that are passed. Every access is checked; errors are

    out of bounds   an access outside of all arrays, shared variables or local memory: gaps separate them
    misaligned      an address that is not a multiple of the width of its access
    unset           shared or local memory that is read before it is written
    race            see `races`

Arrays get new addresses, which are far from each other, whatever their host addresses are; arrays that share host memory also
share memory here. The gaps between the elements of a slice are out of bounds, unless they belong to another array of the
launch. Generic addresses of shared and local memory are in windows above those of global memory, as on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .arithmetic import BITS
from .races import WARP, Fault, Shadow

WINDOWS = {"shared": 1 << 60, "local": 1 << 61, "const": 3 << 60}  # the generic addresses at which these memory spaces start
WINDOW = 1 << 59
DEPTH_BITS = 32  # local addresses of calls of recursive functions: the depth of the call above this many bits of an offset
SHIFTS = {1 << k: k for k in range(5)}  # from bytes to units of 1, 2, 4, 8 or 16 bytes: shifts take less time than divisions
WORD, SECTOR, BANKS = 4, 32, 32
PAGE = 1 << 12  # bytes: a multiple of all accesses, of a sector and of all banks
ALIGNMENT, GAP = 256, 1 << 30  # alignment of arrays, as a GPU allocates them, and the gap between two arrays


class Store:
    """Some memory: its bytes, a flag for each byte that is True if it has been written, and the last accesses of each word; if
    an array has gaps, also a mask of its bytes.
    """

    def __init__(self, data: np.ndarray, unset: bool, inside: np.ndarray | None = None) -> None:
        self.data, self.unset, self.inside = data, np.ones(data.size, np.uint8) if unset else None, inside
        self.shadow = Shadow(data.size, across=not unset)

    def _units(self, array: np.ndarray, width: int) -> np.ndarray:
        return array[: array.size // width * width].view(BITS[width])

    def read(self, offset: np.ndarray, width: int, used: int = -1) -> np.ndarray:
        """Return the unsigned integers of `width` bytes at the offsets `offset`. Bytes that are not `used` (a bit for each)
        need not have been written.
        """
        if self.unset is not None:
            unset = self._units(self.unset, width)[offset >> SHIFTS[width]]
            if used != -1:
                unset = unset & unset.dtype.type(sum(1 << 8 * k for k in range(width) if used >> k & 1))
            missing = unset != 0
            if missing.any():
                raise Fault("read before it was written", int(np.flatnonzero(missing)[0]))
        return self._units(self.data, width)[offset >> SHIFTS[width]]

    def before(self, offset: np.ndarray, width: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bits at the offsets, `parts` integers of `width` bytes altogether, and a mask of those that are unset."""
        one = width // parts
        places = offset[:, None] // one + np.arange(parts)
        now = self._units(self.data, one)[places]
        unset = np.zeros(offset.size, bool) if self.unset is None else (self._units(self.unset, one)[places] != 0).any(axis=1)
        return now, unset

    def write(self, offset: np.ndarray, values: np.ndarray, width: int) -> None:
        """Write values of `width` bytes; if several values have the same address, the last one stays."""
        self._units(self.data, width)[offset >> SHIFTS[width]] = values
        if self.unset is not None:
            self._units(self.unset, width)[offset >> SHIFTS[width]] = 0

    def change(self, offset: np.ndarray, dtype: np.dtype, function: np.ufunc, values: np.ndarray) -> None:
        """Replace each number x in memory by function(x, value), one value after the other."""
        self.read(offset, dtype.itemsize)  # raises Fault if one is unset
        units = self._units(self.data, dtype.itemsize).view(dtype)
        function.at(units, offset >> SHIFTS[dtype.itemsize], values)

    def forget(self, offset: np.ndarray, width: int) -> None:
        """Mark bytes as unset: an asynchronous copy is writing them."""
        if self.unset is not None:
            for k in range(width):
                self.unset[offset + k] = 1


class Allocated(NamedTuple):
    """Memory that a kernel has allocated, and its address."""

    start: int
    store: Store


class Global:
    """Global memory: the arrays of a launch. If `placed`, they are in device memory; else each begins at a multiple of 256."""

    def __init__(self, arrays: Iterable[np.ndarray], placed: bool) -> None:
        self.arrays = sorted((a for a in arrays if a.nbytes), key=lambda a: (_bounds(a)[0], -_bounds(a)[1]))
        self.regions = _regions(self.arrays)
        self.starts, self.stores, free = [], [], 0
        for start, stop, within in self.regions:
            at = -(-(free + GAP) // ALIGNMENT) * ALIGNMENT + (start % ALIGNMENT if placed else 0)
            lead = at % 16  # added, so that an offset is a multiple of a width if and only if its address is
            data = np.frombuffer((ctypes.c_uint8 * (lead + stop - start)).from_address(start - lead), np.uint8)
            data.flags.writeable = any(array.flags.writeable for array in within)
            self.starts.append(at)
            self.stores.append((Store(data, unset=False, inside=_inside(within, start, stop, lead)), lead))
            free = at + stop - start
        self.heap: dict[int, Allocated] = {}  # what `allocate` has returned, by address
        self.stops = [at + stop - start for at, (start, stop, _) in zip(self.starts, self.regions, strict=True)]

    def address(self, array: np.ndarray) -> int:
        """Return the address of the first element of an array of the launch; 0 if the array is empty."""
        low, high = _bounds(array)
        return next(
            (
                array.ctypes.data - start + at
                for at, (start, stop, _) in zip(self.starts, self.regions, strict=True)
                if start <= low and high <= stop and array.nbytes
            ),
            0,
        )

    def find(self, address: np.ndarray, width: int) -> list[tuple[Store, np.ndarray, np.ndarray]]:
        """Return [(store, indices of the accesses in it, their offsets)]; raise Fault if an access is outside of all stores."""
        found, left = [], np.ones(address.size, bool)
        least, most = int(address.min()), int(address.max()) + width
        for (store, lead), start, stop in zip(self.stores, self.starts, self.stops, strict=True):
            if start <= least and most <= stop and store.inside is None:
                return [(store, np.arange(address.size), address - (start - lead))]
            if least < stop and start < most:
                inside = left & (address >= start) & (address + width <= stop)
                if store.inside is not None:
                    offset = np.where(inside, address - (start - lead), 0)
                    inside &= store.inside[offset[:, None] + np.arange(width)].all(axis=1)
                found.append((store, np.flatnonzero(inside), address[inside] - (start - lead)))
                left &= ~inside
        if left.any():
            i = int(np.flatnonzero(left)[0])
            raise Fault(f"out of bounds: {self._nearest(int(address[i]))}", i)
        return [part for part in found if part[1].size]

    def allocate(self, size: int) -> Allocated:
        """Allocate new memory during the launch (malloc)."""
        at = -(-((self.stops[-1] if self.stops else 0) + GAP) // ALIGNMENT) * ALIGNMENT
        store = Store(np.zeros(size, np.uint8), unset=True)
        store.shadow = Shadow(size, across=True)
        self.starts.append(at)
        self.stores.append((store, 0))
        self.stops.append(at + size)
        self.heap[at] = Allocated(at, store)
        return self.heap[at]

    def free(self, address: int) -> bool:
        """Free memory of `allocate`; return False if there is none at this address."""
        if self.heap.pop(address, None) is None:
            return False
        k = self.starts.index(address)
        for parts in (self.starts, self.stores, self.stops):
            del parts[k]
        return True

    def begin(self) -> None:
        """Order all accesses so far before those that follow: a barrier of the whole grid has been passed."""
        for store, _ in self.stores:
            store.shadow = Shadow(store.data.size, across=True)

    def _nearest(self, address: int) -> str:
        if not self.arrays:
            return "no array was passed"
        firsts = np.array([self.address(a) - (a.ctypes.data - _bounds(a)[0]) for a in self.arrays])
        sizes = np.array([high - low for low, high in map(_bounds, self.arrays)])
        k = int(np.argmin(np.maximum(firsts - address, 0) + np.maximum(address - firsts - sizes, 0)))
        array, byte = self.arrays[k], address - firsts[k]
        between = ", between the elements," if 0 <= byte < sizes[k] and sizes[k] != array.nbytes else ""
        return (
            f"byte {byte}{between} of the nearest array, which has {sizes[k]} bytes, shape {array.shape} of {array.dtype}"
            + (f", strides {array.strides}" if between else "")
        )


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """Return the host address of the first byte of an array, and that of the byte after its last one."""
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides)]
    first = array.ctypes.data
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + array.itemsize


def _regions(arrays: Sequence[np.ndarray]) -> list[tuple[int, int, list[np.ndarray]]]:
    """Return (start, stop, arrays) of each contiguous region of host memory that the sorted arrays occupy."""
    regions: list[tuple[int, int, list[np.ndarray]]] = []
    for array in arrays:
        start, stop = _bounds(array)
        within = [array]
        if regions and start < regions[-1][1]:
            first, last, others = regions.pop()
            start, stop, within = first, max(last, stop), [*others, array]
        regions.append((start, stop, within))
    return regions


def _inside(arrays: Sequence[np.ndarray], start: int, stop: int, lead: int) -> np.ndarray | None:
    """Return a mask of the bytes of a region, after `lead` other bytes, that belong to one of its arrays; None if all do."""
    if any(_bounds(a) == (start, stop) and a.nbytes == stop - start for a in arrays):
        return None
    inside = np.zeros(lead + stop - start, bool)
    for a in arrays:
        first = inside[lead + a.ctypes.data - start :]
        np.lib.stride_tricks.as_strided(first, (*a.shape, a.itemsize), (*a.strides, 1))[...] = True
    return inside


class Private:
    """Shared memory of blocks, local memory of threads, or arguments of functions: a row of variables for each owner."""

    def __init__(self, owners: int, variables: Sequence[tuple[int, int]]) -> None:
        self.variables = sorted(variables)
        self.size = max((offset + size for offset, size in variables), default=0)
        self.room = -(-max(self.size, 1) // 16) * 16
        self.left = np.zeros(self.room, np.int32)  # number of bytes from each offset to the end of its variable
        for offset, size in variables:
            self.left[offset : offset + size] = np.arange(size, 0, -1)
        self.store = Store(np.zeros(owners * self.room if variables else 0, np.uint8), unset=True)

    def find(self, address: np.ndarray, width: int, owners: np.ndarray) -> list[tuple[Store, np.ndarray, np.ndarray]]:
        """Do the same as `Global.find`, for addresses relative to the rows of the owners."""
        inside = (address >= 0) & (address < self.size)
        inside &= self.left[address if inside.all() else np.where(inside, address, 0)] >= width
        if not inside.all():
            i = int(np.flatnonzero(~inside)[0])
            offset, size = next((v for v in reversed(self.variables) if v[0] <= address[i]), (*self.variables, (0, 0))[0])
            raise Fault(f"out of bounds: byte {address[i] - offset} of {size}", i)
        return [(self.store, np.arange(address.size), owners * self.room + address)]

    def copy(self, owners: np.ndarray, source: int, target: int, size: int) -> None:
        """Copy bytes of some owners from one offset to another, including the mask of set bytes."""
        for array in (self.store.data, self.store.unset):
            rows = array.reshape(-1, self.room)
            rows[owners, target : target + size] = rows[owners, source : source + size]

    def rows(self, offset: int, size: int) -> np.ndarray:
        """Return a copy of `size` bytes at an offset of each owner, and of their masks of set bytes, (owners, 2 size)."""
        parts = [array.reshape(-1, self.room)[:, offset : offset + size] for array in (self.store.data, self.store.unset)]
        return np.concatenate(parts, axis=1)

    def put(self, owners: np.ndarray, offset: int, size: int, rows: np.ndarray) -> None:
        """Write what `rows` returned back for some owners."""
        for array, part in zip((self.store.data, self.store.unset), (rows[:, :size], rows[:, size:]), strict=True):
            array.reshape(-1, self.room)[owners, offset : offset + size] = part[owners]


class Frames:
    """Local memory of threads, with a `Private` for each depth of recursion: the upper half of an address is the depth."""

    def __init__(self, owners: int, variables: Sequence[tuple[int, int]]) -> None:
        self.owners, self.variables = owners, variables
        self.levels = [Private(owners, variables)]

    def find(self, address: np.ndarray, width: int, owners: np.ndarray) -> list[tuple[Store, np.ndarray, np.ndarray]]:
        """Do the same as `Private.find`."""
        depth = address >> DEPTH_BITS
        if not depth.any():
            return self.levels[0].find(address, width, owners)
        found = []
        for level in np.unique(depth):
            if not 0 <= level <= len(self.levels):
                raise Fault("out of bounds: beyond all calls", int(np.flatnonzero(depth == level)[0]))
            if level == len(self.levels):
                self.levels.append(Private(self.owners, self.variables))
            some = np.flatnonzero(depth == level)
            try:
                parts = self.levels[level].find(address[some] - (level << DEPTH_BITS), width, owners[some])
            except Fault as fault:
                raise Fault(fault.problem, int(some[fault.number])) from None
            found += [(store, some[chosen], offset) for store, chosen, offset in parts]
        return found


def outside(address: int) -> str:
    """Return where a generic address is that is in no memory space, such as "address …, 80 bytes before shared memory"."""
    starts = {"global": 0, **WINDOWS}.items()
    distances = [(start - address, f"before {space}") for space, start in starts]
    distances += [(address - start - WINDOW, f"after {space}") for space, start in starts]
    distance, where = min(pair for pair in distances if pair[0] >= 0)
    return f"address {address % (1 << 64):#x}, {distance} bytes {where} memory"


def check_alignment(address: np.ndarray, width: int) -> None:
    # for powers of two, and without the remainder of signed numbers, which takes several times as long
    wrong = address & width - 1 != 0 if width & width - 1 == 0 else address % width != 0
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise Fault(f"misaligned: address {address[i]:#x} is no multiple of {width}", i)


# --- cost of accesses -------------------------------------------------------------------------------------------------
def _by_pattern(count: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate count(address, width, threads) with a cache. Its key is the pattern of the addresses, because a shift of all
    addresses by whole sectors does not change the result. Neither does a shift of whole pages, which brings addresses together
    that are too far apart for a key.
    """

    @functools.lru_cache(256)
    def known(pattern: bytes, width: int) -> Any:
        packed = np.frombuffer(pattern, np.int64)
        return count(packed >> 20, width, packed & (1 << 20) - 1)

    def counted(address: np.ndarray, width: int, threads: np.ndarray) -> Any:
        shifted = address - (address.min() & -SECTOR)
        if shifted.max() >> 43:
            shifted = np.unique(shifted // PAGE, return_inverse=True)[1] * PAGE + shifted % PAGE
        return known((shifted << 20 | threads).tobytes(), width)

    return counted


@_by_pattern
def sectors(address: np.ndarray, width: int, threads: np.ndarray) -> tuple[int, int]:
    """Return (number of sectors of 32 bytes that warps touch, smallest number that could hold the requested bytes)."""
    warps = threads // WARP
    touched = np.unique(warps << 40 | address // SECTOR).size
    asked = np.unique(np.unique(warps << 40 | address // width) >> 40, return_counts=True)[1] * width
    return touched, int((-(-asked // SECTOR)).sum())


@_by_pattern
def transactions(address: np.ndarray, width: int, lanes: np.ndarray) -> tuple[int, int]:
    """Return (cycles in which the banks serve warps, cycles that would do without bank conflicts). A bank gives one word in a
    cycle: if several words of a bank are requested at once, the warp waits.

    If each thread requests 8 bytes, half a warp is served at a time; if it requests 16, a quarter. Threads that request the
    same word share it. `lanes` holds the number of the thread of each access; a warp has 32 threads.
    """
    words = max(width // WORD, 1)
    phase = np.repeat(lanes * words // WARP, words)
    word = (address[:, None] // WORD + np.arange(words)).ravel()
    distinct = np.unique(phase << 40 | word)
    banks = np.unique((distinct >> 40) * BANKS + distinct % BANKS, return_counts=True)
    phases, first = np.unique(banks[0] // BANKS, return_index=True)
    return int(np.maximum.reduceat(banks[1], first).sum()), phases.size
