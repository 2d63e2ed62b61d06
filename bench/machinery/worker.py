"""Worker: a separate process for one implementation. It sleeps in a blocking read until the harness sends a request.

The thread pools of PyTorch (OpenMP, which spins) and of NumPy's BLAS are in different processes, so that they do not compete
for cores: while one worker runs, all others sleep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BEFORE = ", before"
SHORT = 0.02  # seconds: a shorter turn only checks that a task runs, so nothing waits for its threads
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclasses.dataclass
class Task:
    """The code of one implementation for one case.

    Attributes
    ----------
    run : callable
        One repetition; it may return before the device has finished.
    outputs : callable
        () -> dict of NumPy arrays: the results of a repetition on new inputs. Called once, before any timing.
    synchronize : callable
        Waits until the device has finished.
    event : callable, optional
        () -> a CUDA event of Numba or PyTorch, to measure GPU time.
    """

    run: Callable[[], Any]
    outputs: Callable[[], Mapping[str, Any]]
    synchronize: Callable[[], Any] = lambda: None
    event: Callable[[], Any] | None = None

    def seconds(self, repetitions: int) -> tuple[float, float | None]:
        """Seconds of n repetitions: wall time, and GPU time from the first launch to the end of the last one (None without a
        GPU). If the two are equal for a small step, the GPU waits for launches."""
        self.synchronize()
        begin, end = (self.event(), self.event()) if self.event else (None, None)
        start = time.perf_counter()
        if begin is not None:
            begin.record()
        for _ in range(repetitions):
            self.run()
        if end is not None:
            end.record()
        self.synchronize()
        wall = time.perf_counter() - start
        return wall, None if begin is None else begin.elapsed_time(end) / 1e3


def numbanet_on(dev: Any) -> dict[str, Any]:
    """Arguments of a Task for a numbanet device."""
    if dev.name != "cuda":
        return {"synchronize": dev.synchronize}
    from numba import cuda

    return {"synchronize": dev.synchronize, "event": cuda.event}


def torch_on(torch: Any, device: str) -> dict[str, Any]:
    """Arguments of a Task for a PyTorch device."""
    if device != "cuda":
        return {}
    return {"synchronize": torch.cuda.synchronize, "event": functools.partial(torch.cuda.Event, enable_timing=True)}


def rest(most: float = 0.5) -> None:
    """Sleep until no thread of this process runs any more, for at most `most` seconds.

    Threads of BLAS and OpenMP wait for more work before they sleep: those of OpenBLAS for 2^28 ticks of the clock, about 0.1 s.
    They would take a core from the other side's turn. The time that a thread on another core has used is known only once per
    tick of the system, up to 10 ms.
    """
    end, piece, used = time.perf_counter() + most, 0.025, math.inf
    while used > 0.1 * piece and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(piece)
        used = time.process_time() - before


def serve(connection: Connection) -> None:
    """Answer requests of the harness with (problem or None, answer) until it closes the connection."""
    task: Task | None = None
    while True:
        try:
            verb, argument = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if verb == "load":
                task = None  # free the memory of the old task before the new one allocates
                build, parameters = argument
                task = build(**parameters)
                answer = None
            elif verb == "outputs":
                answer = task.outputs()
            else:
                answer = task.seconds(argument)
                if answer[0] > SHORT:
                    rest()
            connection.send((None, answer))
        except KeyboardInterrupt:
            return
        except Exception as error:  # an error of an implementation is recorded; the harness goes on
            connection.send((f"{type(error).__name__}: {' '.join(str(error).split())}", None))


class WorkerError(RuntimeError):
    """An implementation failed; the message is its error."""


class Worker:
    """The harness's end of a worker process."""

    def __init__(self, threads: int, folder: Path | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        with _environment(threads), _imports_from(folder):
            self.process.start()
        theirs.close()

    def ask(self, verb: str, argument: Any = None) -> Any:
        """The worker's answer; WorkerError if the implementation raised or its process ended."""
        try:
            self.connection.send((verb, argument))
            problem, answer = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join(5)
            raise WorkerError(f"its process ended with exit status {self.process.exitcode}") from error
        if problem:
            raise WorkerError(problem)
        return answer

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


class Workers:
    """One worker for each implementation. It starts at the first request and serves all later cases. Workers whose name ends
    with BEFORE import numbanet and bench from another checkout."""

    def __init__(self, threads: int, before: Path | None = None) -> None:
        self.threads, self.before = threads, before
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __getitem__(self, name: str) -> Worker:
        worker = self._workers.get(name)
        if worker is None or not worker.process.is_alive():
            worker = self._workers[name] = Worker(self.threads, self.before if name.endswith(BEFORE) else None)
        return worker

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


@contextlib.contextmanager
def _imports_from(folder: Path | None) -> Iterator[None]:
    """Processes started inside this context search for modules in this folder first."""
    before = list(sys.path)
    sys.path[:0] = [] if folder is None else [str(folder)]
    try:
        yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set the number of threads of processes started inside this context; libraries read it when they are loaded."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
