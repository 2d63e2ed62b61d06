"""Worker: a process of its own for one implementation, asleep in a blocking read until the harness gives it a turn.

Thread pools of PyTorch (OpenMP, which spins) and of NumPy's BLAS live in different processes, so neither finds the
other's threads on its cores: while one has its turn, all others sleep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BEFORE = ", before"
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
    """What one implementation does for one case.

    Attributes
    ----------
    run : callable
        One repetition; may return before the device is done.
    outputs : callable
        () -> dict of NumPy arrays: what a repetition computes from fresh inputs. Called once, before any timing.
    synchronize : callable
        Waits until the device is done.
    event : callable, optional
        () -> an event of CUDA, Numba's or PyTorch's, that a card can tell times by.
    """

    run: Callable[[], Any]
    outputs: Callable[[], Mapping[str, Any]]
    synchronize: Callable[[], Any] = lambda: None
    event: Callable[[], Any] | None = None

    def seconds(self, repetitions: int) -> tuple[float, float | None]:
        """Seconds that so many repetitions take together: by the clock on the wall, and by the card's from the first launch to
        the last one's end. Where the two are the same, small steps wait for launches."""
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
    """What a Task needs to know of a numbanet device."""
    if dev.name != "cuda":
        return {"synchronize": dev.synchronize}
    from numba import cuda

    return {"synchronize": dev.synchronize, "event": cuda.event}


def torch_on(torch: Any, device: str) -> dict[str, Any]:
    """What a Task needs to know of a device of PyTorch."""
    if device != "cuda":
        return {}
    return {"synchronize": torch.cuda.synchronize, "event": functools.partial(torch.cuda.Event, enable_timing=True)}


def serve(connection: Connection) -> None:
    """Answer the harness until it closes the connection: one (problem or None, answer) for each request."""
    task: Task | None = None
    while True:
        try:
            verb, argument = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if verb == "load":
                task = None  # the old task's memory goes before the new one's comes
                build, parameters = argument
                task = build(**parameters)
                answer = None
            else:
                answer = task.outputs() if verb == "outputs" else task.seconds(argument)
            connection.send((None, answer))
        except KeyboardInterrupt:
            return
        except Exception as error:  # whatever breaks in an implementation is its result, not the harness's end
            connection.send((f"{type(error).__name__}: {' '.join(str(error).split())}", None))


class WorkerError(RuntimeError):
    """An implementation failed; the message says how."""


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
    """One worker for each implementation, started when first asked for and kept for the cases that follow; those whose name
    ends with BEFORE import numbanet and bench from another checkout."""

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
        """End all of them."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


@contextlib.contextmanager
def _imports_from(folder: Path | None) -> Iterator[None]:
    """Processes started within look for modules in this folder first."""
    before = list(sys.path)
    sys.path[:0] = [] if folder is None else [str(folder)]
    try:
        yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Thread counts for processes started within: libraries read them when they are loaded, later is too late."""
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
