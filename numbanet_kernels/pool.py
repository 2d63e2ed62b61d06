"""Pool: memory that is handed out again, so that a training step touches no fresh pages and asks no driver for memory.

`memory.empty_cpu` and `memory.empty_cuda` lend pieces of a pool as arrays, and a piece goes back when the last array that views
it is gone. On CUDA all work is in the order of one stream: what is queued on a piece that went back is done before what its
next owner queues.
"""
from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .launch import SIMULATED, cuda, device_array_in


class Piece(NamedTuple):
    """Bytes start … stop - 1 of a chunk."""

    chunk: _Chunk
    start: int
    stop: int


class _Chunk:
    """Memory that was asked for at once, and what of it is free: (start, stop) in order, none next to another."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.size = memory, memory.nbytes
        self.address = memory.ctypes.data if isinstance(memory, np.ndarray) else None
        self.free = [(0, self.size)]

    def cut(self, size: int) -> Piece | None:
        """The first free piece of so many bytes."""
        for i, (start, stop) in enumerate(self.free):
            if stop - start >= size:
                self.free[i:i + 1] = [(start + size, stop)] if stop - start > size else []
                return Piece(self, start, start + size)
        return None

    def join(self, start: int, stop: int) -> None:
        """A piece that is free again, made one with its free neighbours."""
        i = sum(other < start for other, _ in self.free)  # few; and while Python ends, modules such as bisect are gone
        after = i < len(self.free) and self.free[i][0] == stop
        before = i > 0 and self.free[i - 1][1] == start
        self.free[i - before:i + after] = [(self.free[i - 1][0] if before else start, self.free[i][1] if after else stop)]

    @property
    def idle(self) -> bool:
        return self.free == [(0, self.size)]


class Pool:
    """Large chunks of memory, cut to size: the first free piece that is large enough is lent, from the low end.

    A pattern's arrays have other sizes in every step. Cut from the low end they take the same bytes again, whatever they were
    cut for before, and what is never reached is never touched: a system backs it with no memory.

    Pieces come back at any moment, from any thread and out of the garbage collector: into a deque, whose append is atomic.
    Chunks are changed only under a lock.

    Parameters
    ----------
    allocate : callable
        bytes -> an array of so many bytes.
    chunk : int
        Bytes that are asked for at once, or more where a request is larger.
    keep : int
        At most so many bytes are kept for later.
    step : int
        Bytes that all sizes are rounded up to.
    """

    def __init__(self, allocate: Callable[[int], Any], chunk: int, keep: int, step: int) -> None:
        self.allocate, self.chunk, self.keep, self.step = allocate, chunk, keep, step
        self.returned: collections.deque[Piece] = collections.deque()
        self.chunks: list[_Chunk] = []
        self.allocations = 0
        self.renew()

    def renew(self) -> None:
        """A free lock: in a child process nobody is inside, whatever its parent's threads were doing."""
        self.lock = threading.Lock()

    def take(self, size: int) -> Piece:
        """A piece of at least so many bytes."""
        size = -(-size // self.step) * self.step
        with self.lock:
            self._collect()
            for chunk in self.chunks:
                if piece := chunk.cut(size):
                    return piece
            self.allocations += 1
            try:
                memory = self.allocate(max(size, self.chunk))
            except Exception:  # memory is short: with what is kept for later given up, it may do
                self._give_up(0)
                memory = self.allocate(size)
            self.chunks.append(_Chunk(memory))
            return self.chunks[-1].cut(size)

    def give_back(self, piece: Piece) -> None:
        """A piece that nobody reads any more."""
        self.returned.append(piece)
        if self.lock.acquire(blocking=False):  # else whoever holds it, or takes the next piece, sees to this one
            try:
                self._collect()
            finally:
                self.lock.release()

    def _collect(self) -> None:
        while self.returned:
            piece = self.returned.popleft()
            piece.chunk.join(piece.start, piece.stop)
            if piece.chunk.idle:
                self._give_up(self.keep)

    def _give_up(self, keep: int) -> None:
        """Let go of chunks that nobody uses, but for so many bytes."""
        left = []
        for chunk in self.chunks:
            if not chunk.idle or chunk.size <= keep:
                left.append(chunk)
                keep -= chunk.size if chunk.idle else 0
        self.chunks = left


# --- CPU --------------------------------------------------------------------------------------------------------------
class _Loan:
    """A NumPy array's claim to a piece."""

    def __init__(self, pool: Pool, piece: Piece, address: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.pool, self.piece = pool, piece
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}

    def __del__(self) -> None:
        self.pool.give_back(self.piece)


def lend_cpu(pool: Pool, size: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array in a piece of the pool."""
    piece = pool.take(size)
    return np.asarray(_Loan(pool, piece, piece.chunk.address + piece.start, shape, dtype))


# --- CUDA -------------------------------------------------------------------------------------------------------------
def lend_cuda(pool: Pool, size: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A device array in a piece of the pool."""
    piece = pool.take(size)
    memory = piece.chunk.memory
    if SIMULATED:
        return type(memory)(np.asarray(_Loan(pool, piece, memory._ary.ctypes.data + piece.start, shape, dtype)))
    return device_array_in(cuda.current_context(), memory, piece.start, piece.stop, shape, dtype, lambda: pool.give_back(piece))
