"""Pool: memory that is handed out again, so that a training step touches no fresh pages and asks no driver for memory.

`memory.empty_cpu` and `memory.empty_cuda` lend blocks of a pool as arrays, and a block goes back when the last array that views
it is gone. On CUDA all work is in the order of one stream: what is queued on a block that went back is done before what its
next owner queues.
"""
from __future__ import annotations

import bisect
import collections
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .launch import SIMULATED, cuda, device_array_in


class Pool:
    """Blocks of memory, the smallest fitting one handed out first.

    Blocks come back at any moment, from any thread and out of the garbage collector: into a deque, whose append is atomic.
    Only `take` touches the sorted list, under a lock.

    Parameters
    ----------
    allocate : callable
        bytes -> block, an array of so many bytes.
    keep : int
        At most so many bytes are kept for later.
    """

    LARGEST_SHARE = 4  # a block serves requests down to a quarter of it
    LARGE = 1 << 24  # bytes; so large a block that comes back is counted at once, smaller ones at the next request

    def __init__(self, allocate: Callable[[int], Any], keep: int) -> None:
        self.allocate, self.keep = allocate, keep
        self.returned: collections.deque[Any] = collections.deque()
        self.free: list[tuple[int, int, Any]] = []
        self.held = self.allocations = 0
        self.renew()

    def renew(self) -> None:
        """A free lock: in a child process nobody is inside, whatever its parent's threads were doing."""
        self.lock = threading.Lock()

    def take(self, size: int) -> Any:
        """A block of at least so many bytes: the smallest free one that serves, or a new one."""
        with self.lock:
            while self.returned:
                block = self.returned.popleft()
                if self.held + block.nbytes <= self.keep:
                    bisect.insort(self.free, (block.nbytes, id(block), block))
                    self.held += block.nbytes
            at = bisect.bisect_left(self.free, (size, 0))
            if at < len(self.free) and self.free[at][0] <= size * self.LARGEST_SHARE:
                capacity, _, block = self.free.pop(at)
                self.held -= capacity
                return block
            self.allocations += 1
        try:
            return self.allocate(size)
        except Exception:  # memory is short: with what is kept for later given up, it may do
            with self.lock:
                self.free.clear()
                self.held = 0
            return self.allocate(size)

    def give_back(self, block: Any) -> None:
        """A block that nobody reads any more."""
        if block.nbytes < self.LARGE or self.held + block.nbytes + sum(b.nbytes for b in self.returned.copy()) <= self.keep:
            self.returned.append(block)


# --- CPU --------------------------------------------------------------------------------------------------------------
class _Loan:
    """A NumPy array's claim to a block."""

    def __init__(self, pool: Pool, block: Any, memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.pool, self.block = pool, block
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (memory.ctypes.data, False)}

    def __del__(self) -> None:
        self.pool.give_back(self.block)


def lend_cpu(pool: Pool, size: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array in a block of the pool."""
    block = pool.take(size)
    return np.asarray(_Loan(pool, block, block, shape, dtype))


# --- CUDA -------------------------------------------------------------------------------------------------------------
def lend_cuda(pool: Pool, size: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A device array in a block of the pool."""
    block = pool.take(size)
    if SIMULATED:
        return type(block)(np.asarray(_Loan(pool, block, block._ary, shape, dtype)))
    return device_array_in(cuda.current_context(), block, shape, dtype, lambda: pool.give_back(block))
