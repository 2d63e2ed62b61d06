"""Ranks that are threads of one process, for study and tests: the same training, without MPI."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .ranks import RankFailure, Ranks

PAUSE = 1e-4  # seconds between polls


class _Room:
    """What the threads share: a place for the value of each rank, and a barrier."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier, self.reason = threading.Barrier(size), ""

    def meet(self) -> None:
        """Wait for all ranks."""
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise RankFailure(self.reason) from None

    def leave(self, reason: str) -> None:
        """End all waiting, because a rank has failed; the first reason counts."""
        self.reason = self.reason or reason
        self.barrier.abort()


class ThreadRanks(Ranks):
    """One of the ranks that `run_ranks` starts."""

    def __init__(self, room: _Room, rank: int, size: int) -> None:
        self.room, self.rank, self.size = room, rank, size

    def start(self, array):
        if self.size == 1:
            return lambda: None
        total = np.sum(self.gather(array.copy()), axis=0, dtype=array.dtype)

        def finish() -> None:
            array[...] = total

        return finish

    def gather(self, value):
        room = self.room
        room.values[self.rank] = pickle.dumps(value)  # so that no rank has another one's objects
        room.meet()
        values = [pickle.loads(other) for other in room.values]
        room.meet()  # before the places are used again
        return values

    def wait(self, done):
        while not done():
            if self.room.barrier.broken:
                raise RankFailure(self.room.reason)
            time.sleep(PAUSE)

    def fail(self, reason):
        self.room.leave(f"rank {self.rank} of {self.size} failed: {reason}")


def run_ranks(size: int, function: Callable[[Ranks], Any]) -> list[Any]:
    """Call function(ranks) in `size` threads, one for each rank, and return the results by rank. `ranks` may be the parameter
    `parallel` of an estimator.

    Raises
    ------
    Exception
        The first exception of a rank that is not only a consequence of another rank's.

    Examples
    --------
    >>> from numbanet.parallel import run_ranks
    >>> run_ranks(3, lambda ranks: ranks.gather(10 * ranks.rank))
    [[0, 10, 20], [0, 10, 20], [0, 10, 20]]
    """
    room, results, errors = _Room(size), [None] * size, []

    def work(rank: int) -> None:
        ranks = ThreadRanks(room, rank, size)
        try:
            results[rank] = function(ranks)
        except BaseException as error:
            errors.append(error)
            if not isinstance(error, RankFailure):
                ranks.fail(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, RankFailure)), errors[0])
    return results
