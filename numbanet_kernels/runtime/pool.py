"""Pool: memory that is handed out again, so that a training step touches no fresh pages and asks no driver for memory.

`memory.empty_cpu` and `memory.empty_cuda` lend pieces of a pool as arrays, and a piece goes back when the last array that views
it is gone. On CUDA all work is in the order of one stream: what is queued on a piece that went back is done before what its
next owner queues.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import arrays, emulation, launch
from .arrays import device_array_in
from .context import Scoped
from .declare import cuda
from .interrupt import deferred


class Piece:
    """Bytes start … stop - 1 of a chunk, which go back to its pool when nobody holds this any more; none until `_Chunk.cut`."""

    __slots__ = ("chunk", "pool", "start", "stop")

    def __init__(self, pool: Pool) -> None:
        self.chunk: _Chunk | None = None
        self.pool, self.start, self.stop = pool, 0, 0

    @property
    def address(self) -> int:
        """Where it begins in memory."""
        return self.chunk.address + self.start

    def __del__(self) -> None:
        if self.chunk is not None:
            self.pool.give_back(self.chunk, self.start, self.stop)


class _Chunk:
    """Memory that was asked for at once, and what of it is free: (start, stop) in order, none next to another.

    A place changes hands in statements without calls, between which no signal's handler runs: none is lost or lent twice.
    """

    def __init__(self, memory: Any) -> None:
        self.memory, self.size = memory, memory.nbytes
        self.address = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.__cuda_array_interface__["data"][0]
        self.free = [(0, self.size)]

    def cut(self, size: int, piece: Piece) -> bool:
        """Make the piece the first free place of so many bytes, if there is one."""
        for i, (start, stop) in enumerate(self.free):
            if stop - start >= size:
                rest = [(start + size, stop)] if stop - start > size else []
                self.free[i : i + 1], piece.chunk, piece.start, piece.stop = rest, self, start, start + size
                return True
        return False

    def join(self, returned: collections.deque[tuple[_Chunk, int, int]]) -> None:
        """Take the first place that was returned, one of this chunk, and make it one with its free neighbours."""
        _, start, stop = returned[0]
        i = sum(other < start for other, _ in self.free)  # few
        after = i < len(self.free) and self.free[i][0] == stop
        before = i > 0 and self.free[i - 1][1] == start
        first, last = self.free[i - 1][0] if before else start, self.free[i][1] if after else stop
        self.free[i - before : i + after] = [(first, last)]
        del returned[0]

    @property
    def idle(self) -> bool:
        return self.free == [(0, self.size)]


class Pool:
    """Large chunks of memory, cut to size: the first free place that is large enough is lent, from the low end.

    A pattern's arrays have other sizes in every step. Cut from the low end they take the same bytes again, whatever they were
    cut for before, and what is never reached is never touched: a system backs it with no memory.

    Pieces come back at any moment, from any thread and out of the garbage collector: into a deque, whose append is atomic.
    Chunks are changed only under a lock, which is held for no longer than that.
    """

    LARGE = 1 << 24  # bytes: so large a piece is seen to at once when it comes back, others when the next one is taken

    def __init__(
        self, allocate: Callable[[int], Any], chunk: int, keep: int, step: int, family: list[Pool] | None = None
    ) -> None:
        self.allocate = allocate  # bytes -> an array of so many bytes
        self.chunk = chunk  # bytes that are asked for at once, or more where a request is larger
        self.keep = keep  # bytes: of chunks that nobody uses, so many are kept for later
        self.step = step  # bytes that all sizes are rounded up to
        self.returned: collections.deque[tuple[_Chunk, int, int]] = collections.deque()
        self.chunks: list[_Chunk] = []
        self.allocations = 0
        self.patient = False  # whether what comes back is left alone for now
        self.family = [] if family is None else family  # pools of one memory: where it is short, all give up what nobody uses
        self.family.append(self)
        self.renew()

    def renew(self) -> None:
        """A free lock: in a child process nobody is inside, whatever its parent's threads were doing."""
        self.lock = threading.Lock()

    def take(self, size: int) -> Piece:
        """A piece of at least so many bytes."""
        size, piece = -(-size // self.step) * self.step, Piece(self)
        with self.lock:
            self._collect()
            for chunk in self.chunks:
                if chunk.cut(size, piece):
                    return piece
        return self._cut_from_more(size, piece)

    @deferred
    def _cut_from_more(self, size: int, piece: Piece) -> Piece:
        """The piece, cut from a new chunk."""
        try:
            memory = self.allocate(max(size, self.chunk))
        except Exception:  # memory is short: without what nobody uses, it may do
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
        """A piece that nobody reads any more."""
        self.returned.append((chunk, start, stop))
        if stop - start >= self.LARGE and not self.lock.locked():  # held by this very thread, maybe: then it collects later
            self.give_up(self.keep)

    def give_up(self, keep: int) -> None:
        """Let go of chunks that nobody uses, but for so many bytes."""
        with self.lock:
            self._collect()
            self._give_up(keep)

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
SMALL = 1 << 16  # bytes: what is smaller, NumPy and the C library hand out again themselves
PAGE = 1 << 12  # bytes: arrays start at one


def pages(size: int) -> np.ndarray:
    """So many bytes from the start of a page on."""
    memory = np.empty(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + size]


host_pool = Pool(pages, chunk=1 << 26, keep=1 << 29, step=PAGE)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=host_pool.renew)


class Loan:
    """A NumPy array's claim to a piece."""

    def __init__(self, piece: Piece, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.piece = piece
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (piece.address, False)}


def lend_host(size: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array in a piece of so many bytes."""
    return np.asarray(Loan(host_pool.take(size), shape, dtype))


# --- CUDA -------------------------------------------------------------------------------------------------------------
_of_device = functools.partial(Pool, lambda size: cuda.device_array(size, np.uint8), step=1 << 8, family=[])
device_pool = _of_device(chunk=1 << 26, keep=1 << 32)
small_device_pool = _of_device(chunk=1 << 20, keep=1 << 26)  # an epoch's losses would break up the chunks of large arrays


class Arena:
    """Memory for what is done at different times, never at once: each `lending` starts anew, with all of it free."""

    CHUNK = 1 << 26

    def __init__(self, most: int, allocate: Callable[[int], Any] | None = None) -> None:
        self.most = most  # bytes that it may take of the device
        self.allocate = allocate or (lambda size: arrays.device_array(size, np.uint8))
        self.chunks: list[Any] = []  # arrays of bytes

    @property
    def nbytes(self) -> int:
        """How many bytes it holds, in use or not."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @contextlib.contextmanager
    def lending(self) -> Iterator[Pool]:
        """Arrays of the device that this thread makes inside lie here. NotRecorded where there is no more room."""
        pool, before = Pool(self._more, min(self.CHUNK, self.most), keep=self.most, step=arrays.ALIGNMENT), len(self.chunks)
        pool.chunks = [_Chunk(chunk) for chunk in self.chunks]
        pool.family = device_pool.family  # which gives up what nobody uses where the device is short of memory
        try:
            with _lender.within(pool):
                yield pool
        except BaseException:
            del self.chunks[before:]
            raise

    def _more(self, size: int) -> Any:
        if self.nbytes + size > self.most:
            raise launch.NotRecorded(f"there is no room for {size} bytes more: {self.nbytes} of {self.most} are taken")
        self.chunks.append(self.allocate(size))
        return self.chunks[-1]


_lender = Scoped("lender", None)


def lend_device(size: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A device array in a piece of so many bytes; of the emulated device, in memory of its own, unless there is an arena."""
    pool = _lender.get()
    if emulation.emulating() and pool is None:
        return arrays.device_array(shape, dtype)
    if pool is None:
        pool = device_pool if size >= SMALL else small_device_pool
    piece = pool.take(size)
    memory = piece.chunk.memory
    if isinstance(memory, np.ndarray):
        return np.asarray(Loan(piece, shape, dtype)).view(type(memory))
    return device_array_in(cuda.current_context(), memory, piece.address, size, shape, dtype, piece)
