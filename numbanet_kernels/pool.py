"""Pool: memory of the CPU that is handed out again, so that a training step touches no fresh pages."""
from __future__ import annotations

import bisect
import collections
import math
import threading

import numpy as np


class Pool:
    """Blocks of memory handed out again, smallest fitting first: a training step touches no fresh pages.

    Blocks come back at any moment, from any thread and out of the garbage collector: into a deque, whose append is atomic.
    Only `empty` touches the sorted list, under a lock.
    """

    SMALLEST, LARGEST_SHARE, KEEP = 1 << 16, 4, 1 << 29  # bytes; a block serves requests down to a quarter of it; bytes
    LARGE = 1 << 24  # bytes; so large a block that comes back is counted at once, smaller ones at the next request

    def __init__(self) -> None:
        self.returned: collections.deque[np.ndarray] = collections.deque()
        self.free: list[tuple[int, int, np.ndarray]] = []
        self.held = 0
        self.renew()

    def renew(self) -> None:
        """A free lock: in a child process nobody is inside, whatever its parent's threads were doing."""
        self.lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if size < self.SMALLEST:
            return np.empty(shape, dtype)
        with self.lock:
            memory = self._take(size)
        return np.asarray(_Block(self, np.empty(size, np.uint8) if memory is None else memory, shape, dtype))

    def _take(self, size: int) -> np.ndarray | None:
        """The smallest free block that serves, or None."""
        while self.returned:
            memory = self.returned.popleft()
            if self.held + memory.nbytes <= self.KEEP:
                bisect.insort(self.free, (memory.nbytes, id(memory), memory))
                self.held += memory.nbytes
        at = bisect.bisect_left(self.free, (size, 0))
        if at == len(self.free) or self.free[at][0] > size * self.LARGEST_SHARE:
            return None
        capacity, _, memory = self.free.pop(at)
        self.held -= capacity
        return memory


class _Block:
    """Memory on loan from a pool: it goes back when the last array that views it is gone."""

    def __init__(self, pool: Pool, memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.pool, self.memory = pool, memory
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (memory.ctypes.data, False)}

    def __del__(self) -> None:
        pool, size = self.pool, self.memory.nbytes
        if size < pool.LARGE or pool.held + size + sum(block.nbytes for block in pool.returned.copy()) <= pool.KEEP:
            pool.returned.append(self.memory)
