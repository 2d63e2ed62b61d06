"""A pool of CPU threads, in which thread t always does the work on the t-th part of a weight's rows.

    share(work)     calls work(part) for every part, concurrently; part.of(n) is the slice of range(n) that belongs to the part

BLAS divides the rows of each product differently, so a row may be read by two cores and then updated by one of them. If the
cores have separate caches, writing to a cache line that another core has read is 13 times slower than writing to one that no
other core has read (1.7 ms instead of 0.13 ms for 4 MB, on a processor with its two cores on different chiplets). With this
pool, the same core reads a row in the forward pass and for dx, computes its gradient and updates it: for a weight of 1024 x
1024 and a batch of 128 that took 5.4 ms instead of 9.0. Inside work(part), BLAS runs on one thread, so that the threads of BLAS
and those of the pool do not compete for the cores.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from ..runtime import atomic
from ..runtime.declare import host_kernel, tape
from ..runtime.interrupt import deferred
from . import blas, thresholds


class Part(NamedTuple):
    """Part `number` of `count` equal parts; numbers begin at 0."""

    number: int
    count: int

    def of(self, n: int) -> slice:
        """Return the slice of range(n) that belongs to this part."""
        return slice(n * self.number // self.count, n * (self.number + 1) // self.count)


WHOLE = Part(0, 1)


class _Blas:
    """A context manager: inside the context BLAS runs on one thread. `with … as n` sets n to the number of threads of BLAS
    outside the context.

    Several Python threads may be inside; the last one that leaves restores the number of threads of BLAS. Signals that arrive
    inside are handled when the context is left.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before: list[int] = []

    def __enter__(self) -> int:
        deferred.__enter__()  # entered first, so that no signal interrupts the statements below
        with self.lock:
            if not self.inside:
                self.before = blas.threads()
                blas.set_threads([1] * len(self.before))
            self.inside += 1
            return max(self.before or [_cores()])

    def count(self) -> int:
        """Return the number of threads that BLAS has outside of all such contexts."""
        with self.lock:
            return max((self.before if self.inside else blas.threads()) or [_cores()])

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                blas.set_threads(self.before)
        deferred.__exit__()

    def forked(self) -> None:
        """Reset in a child process: the threads of the parent that may be inside do not exist here."""
        self.lock = threading.Lock()
        if self.inside:
            self.inside = 0
            blas.set_threads(self.before)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- handing over -----------------------------------------------------------------------------------------------------
@host_kernel("void(i8[::1], i8, i8, i8, i8, i8[::1])")
def _spin(counter, seen, turns, yields, pause, pauses):
    """Wait without the GIL until counter[0] differs from `seen`: for at most `turns` reads of 0.3 ns each, then for at most
    `yields` reads, before each of which the core is yielded. If counter[0] has changed, wait for `pause` more reads.
    """
    turn = 0
    while turn < turns + yields and atomic.load(counter, 0) == seen:
        turn += 1
        if turn > turns and not atomic.yields(pauses):
            break
    if atomic.load(counter, 0) != seen:
        for _ in range(pause):
            atomic.load(counter, 0)


class _Mailbox:
    """A queue whose reader spins and yields for a while before it sleeps: waking a core takes longer than many tasks."""

    TURNS = 200_000  # about 60 us; a longer time would double the run time if another process needs the core
    # about 8 us, in which the sender releases the GIL; a reader that does not get the GIL sleeps, which takes longer
    PAUSE = 20_000

    def __init__(self) -> None:
        self.letters: queue.SimpleQueue = queue.SimpleQueue()
        self.posted = np.zeros(1, np.int64)
        self.taken = 0

    def put(self, letter: Any) -> None:
        self.letters.put(letter)
        self.posted[0] += 1

    def get(self, timeout: float | None = None) -> Any:
        """Remove and return the next letter; raise queue.Empty if none comes within `timeout` seconds."""
        if not numba.config.DISABLE_JIT:
            _spin(self.posted, self.taken, self.TURNS, atomic.YIELDS, self.PAUSE, atomic.pauses())
        letter = self.letters.get(timeout=timeout)
        self.taken += 1
        return letter


@functools.cache
def _current_core() -> Callable[[], int] | None:
    """Return the function that tells on which core the calling thread runs; None if the system does not have it."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    function = getattr(ctypes.PyDLL(None), "sched_getcpu", None)  # PyDLL keeps the GIL: the call takes 0.2 us
    return function if function is not None and function() >= 0 else None


class _Worker:
    """A thread of a `_Crew`, with its inbox.

    Linux often wakes a thread on the core of the thread that wakes it. Both then share this core, while the other one is idle,
    for as long as each of them waits for the other in turn: products of 0.6 ms took 1.5 ms after every rest of 0.1 s. So a
    thread that was found on the core of the thread that sends it work is moved to the other cores, before it is woken.
    """

    def __init__(self, number: int, size: int) -> None:
        self.inbox, self.core, self.thread = _Mailbox(), -1, 0  # the core where it received its last letter; its number
        self.allowed: set[int] = set()  # the cores that it may use
        self.moves, self.size = False, size  # whether it is moved: only if each thread of the crew can have its own core
        threading.Thread(target=self._serve, name=f"numbanet-{number}", daemon=True).start()

    def send(self, letter: Any) -> None:
        """Put a letter into the inbox."""
        where = _current_core()
        if self.moves and self.core >= 0 and where is not None and where() == self.core:
            self._leave(self.core)
        self.inbox.put(letter)

    def _leave(self, core: int) -> None:
        """Let the thread run on all of its cores except this one."""
        try:
            os.sched_setaffinity(self.thread, self.allowed - {core})
        except OSError:  # some containers forbid it, and others take cores away
            self.moves = False

    def _serve(self) -> None:
        # if BLAS uses OpenMP, the number of its threads is set for each Python thread
        blas.set_threads([1] * len(blas.threads()))
        self.thread, where = threading.get_native_id(), _current_core()
        if where is not None:
            with contextlib.suppress(OSError):
                self.allowed = os.sched_getaffinity(0)
        self.moves = self.size <= len(self.allowed)
        while True:
            run, work, part, answers, done = self.inbox.get()
            self.core = -1 if where is None else where()
            try:
                run(work, part)
            except BaseException as error:  # `share` raises it again in the calling thread
                answers.append(error)
            else:
                answers.append(None)
            done.put(None)
            del run, work, part, answers, done  # so that a waiting thread keeps no arrays alive


class _Crew:
    """A pool of threads. A part always goes to the same thread.

    If other processes need the cores, threads wait for each other as long as those run: a fit on two threads, beside four
    busy processes on two cores, took 14 times as long as on one thread. So if N threads have lost more time than sharing gains,
    (N - 1)² / N of the time that has passed, the calling thread does all the work for a while, which is doubled as long as that
    happens again.
    """

    SECONDS = 0.02  # of shared work after which the time that was lost is looked at: a short interruption is none to avoid
    PAUSE, MOST = 0.02, 0.64  # seconds without the other threads: the first time, and at most

    def __init__(self, size: int) -> None:
        self.parts = [Part(number, size) for number in range(size)]
        self.workers = [_Worker(part.number, size) for part in self.parts[1:]]
        self.free = threading.Lock()
        self.shared, self.lost = 0.0, 0.0  # seconds of shared work since the last look, and those that were lost
        self.pause, self.resume = self.PAUSE, 0.0  # the time from which the threads share work again

    def share(self, work: Callable[[Part], Any], alone: Callable[[], Any] | None = None) -> None:
        """Call work(part) for every part; when all have returned, raise the first exception, if there was any.

        If another Python thread is using the pool, or other processes need the cores, the calling thread does all the work: it
        calls alone() if given, else work(part) for one part after the other. The result is the same.
        """
        done, answers, posted = _Mailbox(), [], 0
        began, lost = time.perf_counter(), atomic.pauses()[atomic.LOST]  # before the lock: an interrupt may come at each call
        if began < self.resume or not self.free.acquire(blocking=False):
            if alone is not None:
                alone()
                return
            for part in self.parts:
                work(part)
            return
        try:
            for worker, part in zip(self.workers, self.parts[1:], strict=True):
                worker.send((contextvars.copy_context().run, work, part, answers, done))
                posted += 1
            work(self.parts[0])
        finally:
            try:
                self._wait(done, answers, posted)
                self._judge(began, atomic.pauses()[atomic.LOST] - lost)
            finally:
                self.free.release()
        for error in answers:
            if error is not None:
                raise error

    def _judge(self, began: float, lost: int) -> None:
        """Decide until when the calling thread works alone, given the ns that threads lost to other processes."""
        now = time.perf_counter()
        self.shared, self.lost = self.shared + now - began, self.lost + 1e-9 * lost
        if self.shared < self.SECONDS:
            return
        if self.lost < len(self.workers) ** 2 / len(self.parts) * self.shared:
            self.pause = self.PAUSE
        else:
            self.resume, self.pause = now + self.pause, min(2 * self.pause, self.MOST)
        self.shared, self.lost = 0.0, 0.0

    @staticmethod
    def _wait(done: _Mailbox, answers: list[Any], posted: int) -> None:
        """Wait until `posted` answers have arrived; an exception of a signal handler is raised only then."""
        raised = None
        while len(answers) < posted:
            try:
                done.get(timeout=1.0)
            except queue.Empty:
                continue
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised


def _share_recorded(size: int, work: Callable[[Part], Any], alone: Callable[[], Any]) -> None:
    """Replay recorded work on the pool of the current process: after a fork, the child process makes its own pool."""
    _crew(size).share(work, alone)


_blas = _Blas()
_crew = functools.cache(_Crew)  # one pool for each number of threads


def _forked() -> None:
    _blas.forked()
    _crew.cache_clear()  # the threads do not exist in the child process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# number of parts into which this session divides work; None outside of sessions
_size: contextvars.ContextVar[int | None] = contextvars.ContextVar("size", default=None)


class session:
    """A context manager: inside the session BLAS runs on one thread, so that calls of `share` need not change BLAS's number of
    threads. Signals that arrive inside are handled at the end of the session.

    Inside, `share` divides work into at most `limit` parts. If `limit` is None, `share` makes as many parts as BLAS had
    threads before the session. A session inside another session changes nothing if it has no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.token = limit, None

    def __enter__(self) -> None:
        outer = _size.get()
        if outer and self.limit is None:
            return
        self.held = deferred if outer else _blas
        size = self.held.__enter__() or outer  # signals are deferred from here on
        self.token = _size.set(min(size, self.limit or size))

    def __exit__(self, *error: object) -> None:
        if self.token is not None:
            _size.reset(self.token)
            self.held.__exit__()


deferred.whole |= {method.__code__ for kind in (_Blas, session) for method in (kind.__enter__, kind.__exit__)}


def count() -> int:
    """Return the number of parts into which `share` divides work: that of the current `session`, or, outside of sessions, the
    number of threads of BLAS, which the environment variables of BLAS or threadpoolctl set.
    """
    return _size.get() or _blas.count()


def worthwhile(elements: int = 0, flops: int = 0) -> bool:
    """Return True if a pass over `elements` elements, or a matrix product of `flops` FLOPs, is faster on all threads than on
    one. Handing work to the other threads takes 10 to 20 microseconds.
    """
    return elements >= thresholds.current.shared_elements or flops >= thresholds.current.shared_flops


def parts(elements: int = 0, flops: int = 0) -> int:
    """Return the number of parts into which `share` divides a pass over `elements` elements or a product of `flops` FLOPs."""
    return count() if worthwhile(elements, flops) else 1


def held(flops: int) -> contextlib.AbstractContextManager[None]:
    """Return a context for matrix products of `flops` FLOPs, in which BLAS runs on one thread."""
    return contextlib.nullcontext() if _size.get() or (flops < blas.OWN_FLOPS and not worthwhile(flops=flops)) else session()


def share(work: Callable[[Part], Any], elements: int | None = None, flops: int | None = None) -> None:
    """Call work(part) for every part, concurrently, and return when all calls have returned; in each, BLAS runs on one thread.

    `elements` is the number of elements that a pass handles, `flops` the number of FLOPs of a matrix product. If one of them is
    given and the work is not `worthwhile`, the calling thread calls work(WHOLE) instead. `work` must release the GIL for most
    of its time, as NumPy and `host_kernel` do, and different parts must write to different memory.
    """
    size = _size.get()
    if (elements is not None or flops is not None) and not worthwhile(elements or 0, flops or 0):
        if size:
            work(WHOLE)
        else:
            with held(flops or 0):
                work(WHOLE)
    elif size is None:
        with session():
            share(work)
    elif size > 1:
        if (writer := tape.get()) is None:
            _crew(size).share(work)
        else:
            writer.share(work, [Part(number, size) for number in range(size)], functools.partial(_share_recorded, size))
    else:
        work(WHOLE)
