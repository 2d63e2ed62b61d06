"""`SharedSums`: sums over ranks, which are processes of one machine, that read each other's arrays where they are.

The arrays are allocated in files without names, which the other ranks map. To sum an array, each rank adds up one part of it
from the arrays of all ranks, in place, and then copies the other parts from the ranks that have added them up. MPI copies the
arrays to memory between the ranks and back as well: 81 MB over two ranks took it 20 ms, and take 12 so.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import weakref
from typing import Any

import numpy as np

from ..runtime import atomic
from ..runtime.declare import host_kernel
from ..runtime.pool import PAGE, SMALL, Pool, host_lender

ALIGNED = 1 << 10  # elements; parts of an array begin at multiples
BLOCK = 1 << 20  # elements that are added up at a time: so that they stay in the cache until those of all ranks are added
MAPPED = 64  # files of other ranks that stay mapped
LINE = 8  # numbers of the line of a rank, which fills a cache line
COUNTER, FILE, DESCRIPTOR, START = range(4)  # of them: its meetings, and where its array is: a file, and the first byte in it
NOWHERE = -1  # stands for the number of the file if an array is in none
LOOKS = 2_000  # reads of a counter before `_met` returns, about 10 us


@host_kernel("void(i8[:, ::1], i8, i8, i8, b1[::1])")
def _met(lines, rank, more, least, found):
    """Add `more` to the counter of this rank; found[0] = whether those of all ranks are at least `least`, after some looks."""
    counters, width = lines.reshape(lines.size), lines.shape[1]
    if more:
        atomic.add(counters, rank * width, more)
    for q in range(lines.shape[0]):
        look = 0
        while atomic.load(counters, q * width) < least:
            look += 1
            if look > LOOKS:
                return
    found[0] = True


class SharedSums:
    """The files of all ranks, as one of them sees them. All ranks make it, and call `sum`, in the same order.

    Parameters
    ----------
    ranks : Ranks
        It has `rank`, `size`, `gather` and `wait` (see `numbanet.parallel`).

    Attributes
    ----------
    pool : Pool
        Lends memory in files of this rank.
    least : int
        Bytes of the smallest arrays that are there.

    Raises
    ------
    OSError
        On all ranks, if one of them cannot make such files (Linux can), or cannot map those of another.
    """

    least = SMALL

    def __init__(self, ranks: Any) -> None:
        self.ranks, self.meetings, self.made = ranks, 0, 0
        self.files: dict[int, tuple[int, int, int]] = {}  # by number, (address, size, descriptor) of the files of this rank
        self.mapped: dict[tuple[int, int], np.ndarray] = {}  # by rank and number, files of other ranks
        self.pool = Pool(self.allocate, chunk=1 << 26, keep=1 << 29, step=PAGE)
        mark, problem, descriptor = secrets.token_bytes(LINE), "", NOWHERE
        try:
            descriptor = _file(8 * LINE * ranks.size + LINE)
            os.pwrite(descriptor, mark, 8 * LINE * ranks.size)
        except OSError as error:
            problem = str(error)
        everyone = ranks.gather((os.getpid(), descriptor, mark, problem))
        self.processes = [process for process, *_ in everyone]
        try:
            if not any(text for *_, text in everyone):
                self.lines = self._marked([(descriptor, mark) for _, descriptor, mark, _ in everyone])
        except OSError as error:
            problem = str(error)
        problems = [text for text in ranks.gather(problem) if text]  # all have mapped the lines
        if descriptor != NOWHERE:
            os.close(descriptor)
        if problems:
            raise OSError(problems[0])

    def _marked(self, files: list[tuple[int, bytes]]) -> np.ndarray:
        """Return the lines of all ranks, which are in the first file; each file must end with the mark of its rank. In another
        namespace, the same number may be that of another process.
        """
        maps = [self._map(rank, descriptor, writes=True) for rank, (descriptor, _) in enumerate(files)]
        for rank, (own, (_, mark)) in enumerate(zip(maps, files)):
            if own[-LINE:] != mark:
                raise OSError(f"rank {rank} is not in this namespace of processes")
        return np.frombuffer(maps[0], np.int64, LINE * len(files)).reshape(len(files), LINE)

    def allocate(self, size: int) -> np.ndarray:
        """Return an array of `size` bytes in a new file, which is closed when the array is deleted."""
        descriptor = _file(size)
        room = mmap.mmap(descriptor, size)
        memory = np.frombuffer(room, np.uint8)
        self.made += 1
        self.files[self.made] = memory.ctypes.data, size, descriptor
        weakref.finalize(room, _close, self.files, self.made)
        return memory

    def sum(self, array: np.ndarray) -> bool:
        """Replace a contiguous array by its sum over the ranks; return False if that of some rank is in no file."""
        rank, flat = self.ranks.rank, array.reshape(-1)
        self.lines[rank, FILE : START + 1] = self._place(flat)
        self._meet()
        places = self.lines[:, FILE : START + 1].tolist()
        if any(number == NOWHERE for number, *_ in places):
            self._meet()  # before a line is written again
            return False
        arrays = [flat if q == rank else self._array(q, place, flat) for q, place in enumerate(places)]
        bounds = [flat.size * q // self.ranks.size // ALIGNED * ALIGNED for q in range(self.ranks.size)] + [flat.size]
        parts = [slice(start, stop) for start, stop in zip(bounds, bounds[1:])]
        for start in range(parts[rank].start, parts[rank].stop, BLOCK):
            block = slice(start, min(start + BLOCK, parts[rank].stop))
            for q, other in enumerate(arrays):
                if q != rank:
                    np.add(flat[block], other[block], out=flat[block])
        self._meet()
        for q, other in enumerate(arrays):
            if q != rank:
                flat[parts[q]] = other[parts[q]]
        self._meet()  # before an array is written again
        return True

    def lending(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which new arrays of this thread are in files of this rank."""
        return host_lender.within(self.pool)

    def forget(self) -> None:
        """Release the files of other ranks."""
        self.mapped.clear()

    def _meet(self) -> None:
        """Wait until all ranks are here; `RankFailure` if one fails meanwhile."""
        self.meetings += 1
        found, more = np.zeros(1, bool), 1

        def done() -> bool:
            nonlocal more
            _met(self.lines, self.ranks.rank, more, self.meetings, found)
            more = 0
            return bool(found[0])

        self.ranks.wait(done)

    def _place(self, array: np.ndarray) -> tuple[int, int, int]:
        """Return (number of the file, its descriptor, first byte in it) of an array of this rank."""
        address = array.ctypes.data
        for number, (start, size, descriptor) in self.files.copy().items():  # garbage may be collected, and close some
            if start <= address and address + array.nbytes <= start + size:
                return number, descriptor, address - start
        return NOWHERE, 0, 0

    def _array(self, rank: int, place: list[int], like: np.ndarray) -> np.ndarray:
        """Return the array of another rank, which has the size and the type of `like`."""
        number, descriptor, start = place
        if (rank, number) not in self.mapped:
            while len(self.mapped) >= MAPPED:
                del self.mapped[next(iter(self.mapped))]
            self.mapped[rank, number] = np.frombuffer(self._map(rank, descriptor), np.uint8)
        return self.mapped[rank, number][start : start + like.nbytes].view(like.dtype)

    def _map(self, rank: int, descriptor: int, writes: bool = False) -> mmap.mmap:
        """Map a file of another rank."""
        opened = os.open(f"/proc/{self.processes[rank]}/fd/{descriptor}", os.O_RDWR if writes else os.O_RDONLY)
        try:
            return mmap.mmap(opened, 0, access=mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ)
        finally:
            os.close(opened)


def _file(size: int) -> int:
    """Return the descriptor of a new file without a name, in memory."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memfd_create")
    descriptor = os.memfd_create("numbanet")
    os.ftruncate(descriptor, size)
    return descriptor


def _close(files: dict[int, tuple[int, int, int]], number: int) -> None:
    """Close a file. Its memory is free as soon as no rank maps it."""
    os.close(files.pop(number)[2])
