"""Pools of memory that is used again, so that a training step needs no new pages from the system and no allocation in the
driver.

A pool allocates large chunks of memory and lends ranges of their bytes, which are called pieces. `memory.empty_cpu` and
`memory.empty_cuda` make an array in such a piece; the piece returns to the pool when the last view of the array is deleted. On
CUDA all kernels run in the order of one stream. So the work that was queued on the deleted array finishes before the work on
the next array in the same piece starts. Arrays that a second stream reads or writes are kept until its work has finished.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import functools
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import arrays, emulation, launch
from .arrays import array_at
from .context import Scoped
from .declare import cuda
from .interrupt import deferred


class Piece:
    """The bytes start … stop - 1 of a chunk, lent by a pool; they return to the pool when this object is deleted. `chunk` is
    None until `_Chunk.cut` has set the three fields.
    """

    __slots__ = ("chunk", "pool", "start", "stop")

    def __init__(self, pool: Pool) -> None:
        self.chunk: _Chunk | None = None
        self.pool, self.start, self.stop = pool, 0, 0

    @property
    def address(self) -> int:
        """The address of the piece's first byte."""
        return self.chunk.address + self.start

    def __del__(self) -> None:
        if self.chunk is not None:
            self.pool.give_back(self.chunk, self.start, self.stop)


class _Chunk:
    """One allocation of memory, and the list `free` of its free ranges (start, stop), which is sorted; adjacent ranges are
    merged.

    A single statement that calls no function takes a range, and another one returns it. So no signal handler can interrupt
    these steps, and no range is lost or lent twice.
    """

    def __init__(self, memory: Any) -> None:
        self.memory, self.size = memory, memory.nbytes
        self.address = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.__cuda_array_interface__["data"][0]
        self.free = [(0, self.size)]

    def cut(self, size: int, piece: Piece) -> bool:
        """Lend `size` bytes to `piece`, from the first free range that is large enough; return False if there is none."""
        for i, (start, stop) in enumerate(self.free):
            if stop - start >= size:
                rest = [(start + size, stop)] if stop - start > size else []
                self.free[i : i + 1], piece.chunk, piece.start, piece.stop = rest, self, start, start + size
                return True
        return False

    def join(self, returned: collections.deque[tuple[_Chunk, int, int]]) -> None:
        """Free the first returned range, which must be in this chunk, and merge it with adjacent free ranges."""
        _, start, stop = returned[0]
        i = bisect.bisect_left(self.free, (start,))  # the number of free ranges before this one
        after = i < len(self.free) and self.free[i][0] == stop
        before = i > 0 and self.free[i - 1][1] == start
        first, last = self.free[i - 1][0] if before else start, self.free[i][1] if after else stop
        self.free[i - before : i + after] = [(first, last)]
        del returned[0]

    @property
    def idle(self) -> bool:
        return self.free == [(0, self.size)]

    def trim(self) -> None:
        """Return the pages of free ranges of this chunk, a NumPy array, to the system; writing to them takes new ones."""
        for start, stop in self.free:
            first, end = -(-(self.address + start) // mmap.PAGESIZE), (self.address + stop) // mmap.PAGESIZE
            if end > first and (advise := _madvise()) is not None:
                advise(first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE, mmap.MADV_DONTNEED)


@functools.cache
def _madvise() -> Any:
    """The system's function `madvise`, or None if free pages cannot be returned with it (only Linux discards them at once)."""
    if not sys.platform.startswith("linux"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return advise


class Pool:
    """A pool that allocates large chunks of memory and lends pieces of them, always from the lowest free range that is large
    enough.

    The sizes of the arrays of a dropout pattern differ in every step. Pieces are cut from the low end of a chunk, so arrays of
    all sizes use the same bytes. The high end of a chunk is never touched, so the system reserves no memory for it.

    A piece may return at any moment, from any thread and from the garbage collector. Returning it appends it to a deque, which
    is atomic. Chunks are changed only under a lock, which is held briefly.
    """

    LARGE = 1 << 24  # bytes; larger pieces are merged as soon as they return, others when the next piece is taken

    def __init__(
        self, allocate: Callable[[int], Any], chunk: int, keep: int, step: int, family: list[Pool] | None = None
    ) -> None:
        self.allocate = allocate  # returns an array of the given number of bytes
        self.chunk = chunk  # smallest number of bytes of an allocation
        self.keep = keep  # largest number of bytes of unused chunks that are kept
        self.step = step  # sizes are rounded up to a multiple of this number of bytes
        self.returned: collections.deque[tuple[_Chunk, int, int]] = collections.deque()
        self.chunks: list[_Chunk] = []
        self.allocations = 0
        self.patient = False  # if True, returned pieces wait in the deque, so that no memory is used again
        # pools of the same kind of memory; if an allocation fails, each of them releases its unused chunks
        self.family = [] if family is None else family
        self.family.append(self)
        self.renew()

    def renew(self) -> None:
        """Make a new lock: after a fork, a thread of the parent process may hold the old one, and it does not exist here."""
        self.lock = threading.Lock()

    def take(self, size: int) -> Piece:
        """Lend a piece of at least `size` bytes."""
        size, piece = -(-size // self.step) * self.step, Piece(self)
        with self.lock:
            self._collect()
            for chunk in self.chunks:
                if chunk.cut(size, piece):
                    return piece
        return self._cut_from_more(size, piece)

    @deferred
    def _cut_from_more(self, size: int, piece: Piece) -> Piece:
        """Return `piece`, to which `size` bytes of a new chunk are lent."""
        try:
            memory = self.allocate(max(size, self.chunk))
        except Exception:  # there is not enough memory: unused chunks are released for a second attempt
            for pool in self.family:
                pool.give_up(0)
            memory = self.allocate(size)
        chunk = _Chunk(memory)
        chunk.cut(size, piece)
        with self.lock:
            self.allocations += 1
            self.chunks.append(chunk)
        return piece

    def give_back(self, chunk: _Chunk, start: int, stop: int) -> None:
        """Return a piece that is no longer used."""
        self.returned.append((chunk, start, stop))
        # if the lock is taken, perhaps by this thread, the next call of `take` merges the piece
        if stop - start >= self.LARGE and not self.lock.locked():
            self.give_up(self.keep)

    def give_up(self, keep: int) -> None:
        """Release the unused chunks, except for chunks of at most `keep` bytes in all."""
        with self.lock:
            self._collect()
            self._give_up(keep)

    def trim(self) -> None:
        """Return the memory of unused chunks to the system, and on Linux that of free ranges of the others (host memory)."""
        with self.lock:
            self._collect()
            self._give_up(0)
            for chunk in self.chunks:
                chunk.trim()

    def _collect(self) -> None:
        while self.returned and not self.patient:
            chunk = self.returned[0][0]
            chunk.join(self.returned)
            if chunk.idle:
                self._give_up(self.keep)

    def _give_up(self, keep: int) -> None:
        left = []
        for chunk in self.chunks:
            if not chunk.idle or chunk.size <= keep:
                left.append(chunk)
                keep -= chunk.size if chunk.idle else 0
        self.chunks = left


# --- CPU --------------------------------------------------------------------------------------------------------------
SMALL = 1 << 16  # bytes; NumPy and the C library reuse smaller blocks themselves
PAGE = 1 << 12  # bytes; arrays are aligned to pages


def pages(size: int) -> np.ndarray:
    """Return an array of `size` bytes that begins at a page of memory."""
    memory = np.empty(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + size]


host_pool = Pool(pages, chunk=1 << 26, keep=1 << 29, step=PAGE)
host_lender = Scoped("host lender", None)  # a pool that lends instead of it
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=host_pool.renew)


class Loan:
    """The owner of a NumPy array's memory, which keeps the piece alive as long as an array uses it."""

    def __init__(self, piece: Piece, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.piece = piece
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (piece.address, False)}


def lend_host(size: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a NumPy array in a piece of `size` bytes of the host pool, or of this thread's `host_lender`."""
    return np.asarray(Loan((host_lender.get() or host_pool).take(size), shape, dtype))


# --- CUDA -------------------------------------------------------------------------------------------------------------
_of_device = functools.partial(Pool, lambda size: cuda.device_array(size, np.uint8), step=1 << 8, family=[])
device_pool = _of_device(chunk=1 << 26, keep=1 << 32)
# for small arrays: the losses of an epoch, for example, would fragment the chunks of large arrays
small_device_pool = _of_device(chunk=1 << 20, keep=1 << 26)


class Arena:
    """Device memory that several recordings share, because they are never replayed at the same time. At the start of each
    `lending` all of the memory is free.
    """

    CHUNK = 1 << 26

    def __init__(self, most: int, allocate: Callable[[int], Any] | None = None) -> None:
        self.most = most  # largest number of bytes that the arena may allocate
        self.allocate = allocate or (lambda size: arrays.device_array(size, np.uint8))
        self.chunks: list[Any] = []  # allocations, as arrays of bytes

    @functools.cached_property
    def elsewhere(self) -> Arena:
        """An arena as large, whose memory is that of the `host_lender` when it is needed."""
        return Arena(self.most, lambda size: host_lender.get().allocate(size))

    @property
    def nbytes(self) -> int:
        """The number of bytes that the arena has allocated, used or not."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @contextlib.contextmanager
    def lending(self) -> Iterator[Pool]:
        """Return a context in which this thread's device arrays are in the arena; NotRecorded is raised if it is full."""
        pool, before = Pool(self._more, min(self.CHUNK, self.most), keep=self.most, step=arrays.ALIGNMENT), len(self.chunks)
        pool.chunks = [_Chunk(chunk) for chunk in self.chunks]
        pool.family = device_pool.family  # so that these pools release their unused chunks if the device runs out of memory
        try:
            with _lender.within(pool):
                yield pool
        except BaseException:
            del self.chunks[before:]
            raise

    def _more(self, size: int) -> Any:
        if self.nbytes + size > self.most:
            raise launch.NotRecorded(f"there is no room for {size} more bytes: {self.nbytes} of {self.most} are taken")
        self.chunks.append(self.allocate(size))
        return self.chunks[-1]


_lender = Scoped("lender", None)


def lend_device(size: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return a device array in a piece of `size` bytes; on the emulated device, in a piece only if there is an arena."""
    pool = _lender.get()
    if emulation.emulating() and pool is None:
        return arrays.device_array(shape, dtype)
    if pool is None:
        pool = device_pool if size >= SMALL else small_device_pool
    piece = pool.take(size)
    memory = piece.chunk.memory
    if isinstance(memory, np.ndarray):
        return np.asarray(Loan(piece, shape, dtype)).view(type(memory))
    return array_at(piece.address, shape, dtype, piece)
