"""`MPIRanks`: ranks that are processes, over MPI (mpi4py, with any MPI library)."""

from __future__ import annotations

import atexit
import functools
import math
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device import shared_sums
from .ranks import RankFailure, Ranks
from .watch import Watch

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
    raise ImportError(
        f"parallel='mpi' needs mpi4py and an MPI library ({error}): pip install 'numbanet[mpi]', or pip install mpi4py beside "
        "the MPI of this system"
    ) from error

FLYING = 1 << 24  # bytes that are summed at a time: MPI needs as many besides, and the C library gives more than about 32 MB
# back to the system after each use, and has them cleared again: 64 MB then take 36 ms instead of 15, over two ranks
SPINS = 200  # polls before a waiting rank lets other processes run
AWAKE = 0.01  # seconds of waiting after which it sleeps between polls
ASLEEP = 1e-4  # seconds
NAMED = 2.0  # seconds in which the watch names a rank whose failure MPI has noticed
LEFT = 4.0  # seconds that a rank waits for one whose program has ended: what it sent may be on its way
GRACE = 0.5  # seconds that a failed rank leaves the others to say why they end


class MPIRanks(Ranks):
    """The ranks of an MPI communicator.

    Every wait polls, so that a rank that waits for one that has ended does not wait for ever (`Watch`). If a fit fails, the
    ranks may have stopped at different points; so the communicator is not used again, and when a process ends, all do.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm, optional
        By default that of all processes.
    """

    def __init__(self, communicator: Any = None) -> None:
        self.comm = (MPI.COMM_WORLD if communicator is None else communicator).Dup()
        self.rank, self.size, self.failed = self.comm.rank, self.comm.size, False
        self.flying = 0  # bytes of sums that have been started, equal on all ranks
        self.watch = Watch(self.rank, self.size)
        self._connect()
        self.shared = self._sharing()
        atexit.register(self._end)

    def _connect(self) -> None:
        problem = ""
        try:
            address = self.watch.listen() if self.first else None
        except OSError as error:
            address, problem = None, str(error)
        address = self.broadcast(address)
        try:
            if not self.first and address is not None:
                self.watch.connect(*address)
        except OSError as error:
            problem = str(error)
        problems = [text for text in self.gather(problem) if text]
        if problems:
            self.watch.close(ended=False)
            if self.first:
                warnings.warn(f"ranks that end are not noticed, because ranks cannot connect: {problems[0]}", stacklevel=2)

    def _sharing(self) -> Any:
        """Return `SharedSums` if all ranks are processes of this machine, and can share memory; else None."""
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        try:
            return shared_sums(self) if 1 < node.size == self.size else None
        except OSError:
            return None
        finally:
            node.Free()

    def start(self, array):
        if not array.flags.c_contiguous:
            raise ValueError("only contiguous arrays are summed, in place")
        if self.shared is None or array.nbytes < self.shared.least:
            return self._start(array)

        def finish() -> None:
            self._checked()
            if not self.shared.sum(array):
                self._start(array)()

        return finish

    def _start(self, array: np.ndarray) -> Callable[[], None]:
        """Start `sum` over MPI."""
        comm, flat = self._checked(), array.reshape(-1)
        width = FLYING // array.itemsize
        pieces = [flat[start : start + width] for start in range(0, flat.size, width)]
        early = [comm.Iallreduce(MPI.IN_PLACE, piece) for piece in pieces[:1] if self.flying + piece.nbytes <= FLYING]
        flying = pieces[0].nbytes if early else 0
        self.flying += flying

        def finish() -> None:
            for request in early:
                self._finish(request)
            self.flying -= flying
            for piece in pieces[len(early) :]:
                self._finish(comm.Iallreduce(MPI.IN_PLACE, piece))

        return finish

    def gather(self, value):
        data = pickle.dumps(value)
        sizes = np.zeros(self.size, np.int64)
        self._finish(self._checked().Iallgather(np.array([len(data)], np.int64), sizes))
        places = np.concatenate([[0], np.cumsum(sizes)])
        found = np.zeros(places[-1], np.uint8)
        counts = sizes.tolist(), places[:-1].tolist()
        self._finish(self.comm.Iallgatherv([np.frombuffer(data, np.uint8), MPI.BYTE], [found, counts, MPI.BYTE]))
        return [pickle.loads(found[a:b].tobytes()) for a, b in zip(places, places[1:])]

    def fail(self, reason):
        self.failed = True
        self.watch.fail(reason)

    def _checked(self) -> Any:
        """Return the communicator; raise RankFailure if a fit has failed."""
        if self.failed:
            raise RankFailure(self.watch.failure or f"rank {self.rank} of {self.size} failed before; start the program again")
        return self.comm

    def _finish(self, request: Any) -> None:
        self.wait(lambda: self._done(request))

    def wait(self, done):
        polls, until, noticed = 0, 0.0, math.inf
        while not done():
            failure = self.watch.failure
            if self.watch.ended and not failure:
                noticed = min(noticed, time.monotonic())
                if time.monotonic() > noticed + LEFT:
                    ended = self.watch.ended[0]
                    failure = f"rank {ended} of {self.size} has ended its program, and rank {self.rank} waits for it"
            if failure:
                self.failed = True
                raise RankFailure(failure)
            polls += 1
            if polls == SPINS:
                until = time.monotonic() + AWAKE
            if polls > SPINS:
                time.sleep(0 if time.monotonic() < until else ASLEEP)

    def _done(self, request: Any) -> bool:
        """Return True if a request is complete. If MPI notices a failed rank before the watch does, wait for its name."""
        try:
            return request.Test()
        except MPI.Exception as error:
            until = time.monotonic() + NAMED
            while not self.watch.failure and time.monotonic() < until:
                time.sleep(ASLEEP)
            self.failed = True
            raise RankFailure(self.watch.failure or f"MPI: {error}") from error

    def _end(self) -> None:
        """Called when the interpreter ends: if a fit has failed, end all processes, because MPI would wait for them. An
        exception that ends the program between two fits is told to the other ranks, which would wait as well.
        """
        if not self.failed and (error := getattr(sys, "last_value", None)) is not None:
            self.fail(f"{type(error).__name__}: {error}".rstrip(": "))
        if not self.failed:
            self.watch.close()
            return
        time.sleep(GRACE)
        self.comm.Abort(1)


@functools.cache
def world() -> MPIRanks:
    """Return the ranks of all processes that the launcher has started."""
    return MPIRanks()
