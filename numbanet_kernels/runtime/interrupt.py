"""Blocks that signal handlers cannot interrupt; signals are handled when the block ends.

    with deferred: …            # or @deferred, for calls: inside, signals wait until the outermost block ends, or for a poll
    deferred.poll()             # handle waiting signals here
    deferred.outside(f, …)      # f(…), a function of the user: inside, signals are handled at once

Python runs signal handlers between two instructions of the main thread: KeyboardInterrupt, or the exception of a time-out
handler, may be raised within an update that has changed half of the weights, in a finaliser, where it is swallowed, or before
the first line of an `__exit__` that would have restored something. So in the main thread a handler of this module replaces
every handler written in Python while a block lasts. If a second Ctrl-C arrives while the first one waits, it is handled at
once, inside the block.
"""

from __future__ import annotations

import _signal as signal  # `signal` would convert each handler to an enum, which takes ten times as long
import functools
import os
import threading
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = range(1, min(signal.NSIG, 32))  # all signals but the real-time signals
Handler = Callable[[int, FrameType | None], Any]


class _StandIn:
    """A signal handler that replaces a user's handler inside blocks, and defers it."""

    __slots__ = ("original",)

    def __init__(self, original: Handler) -> None:
        self.original = original

    def __call__(self, number: int, frame: FrameType | None) -> None:
        deferred.handle(self.original, number, frame)


class _Deferred:
    """Blocks of the main thread, which alone runs handlers; in other threads they do nothing.

    CPython runs handlers at calls, their returns and the back edges of loops, so statements without any of these are atomic.
    """

    def __init__(self) -> None:
        self.levels: list[bool] = []  # one element per nested block: True if signals wait in it
        self.numbers: set[int] = set()  # numbers of the signals whose handlers are replaced
        # maps the number of a waiting signal to its handler and frame
        self.pending: dict[int, tuple[Handler, FrameType | None]] = {}
        self.thread = threading.main_thread().ident
        self.whole = {method.__code__ for method in (_Deferred.__enter__, _Deferred.__exit__)}

    def forked(self) -> None:
        """Called in a child process after a fork. The thread that forked is its main thread; the thread's blocks are valid only
        if it was the main thread before, too.
        """
        if self.thread != threading.main_thread().ident:
            self.thread = threading.main_thread().ident
            self.levels.clear()
            self.pending.clear()
            self._remove()

    def __enter__(self) -> None:
        if get_ident() != self.thread:
            return
        depth = len(self.levels)
        if depth and self.levels[-1]:
            self.levels.append(True)
            return
        try:
            self.levels.append(True)
            self._install()
        except BaseException:  # raised by a handler that is not replaced yet
            del self.levels[depth:]
            if depth == 0:
                self._remove()
            raise

    def __exit__(self, *error: object) -> None:
        if get_ident() != self.thread:
            return
        if len(self.levels) > 1:
            del self.levels[-1]
            if not self.levels[-1]:
                self.poll()
            return
        try:
            self._run_all()
        finally:
            try:
                self._remove()
            finally:
                del self.levels[:]
                self._run_all()  # the handlers of signals that arrived in the block

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function: each call of it is a block in which signals are deferred."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run

    def poll(self) -> None:
        """Run the handlers of the waiting signals; if one of them raises, the remaining signals keep waiting."""
        while self.pending and get_ident() == self.thread:
            number = min(self.pending)
            handler, frame = self.pending[number]
            del self.pending[number]  # no function is called between the two statements, so no signal can interrupt them
            handler(number, frame)

    def outside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args). During the call signals are handled at once, and the function may change handlers."""
        self.poll()
        if get_ident() != self.thread or not self.levels:
            return function(*args)
        depth = len(self.levels)
        try:
            self.levels.append(False)
            return function(*args)
        finally:
            del self.levels[depth:]
            self._install()

    def handle(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """Called when a signal arrives: defer its handler, or call it. Only Python's own SIGINT handler is called if its signal
        arrives again, so that a second Ctrl-C stops even a block, except while a block is being entered or left.
        """
        if self.levels and self.levels[-1]:
            again = number in self.pending and handler is signal.default_int_handler
            if not again or self._changing(frame):
                self.pending[number] = handler, frame
                return
            del self.pending[number]
        handler(number, frame)

    def _changing(self, frame: FrameType | None) -> bool:
        """Return True if a block is being entered or left in `frame` or a frame that called it."""
        while frame is not None:
            if frame.f_code in self.whole:
                return True
            frame = frame.f_back
        return False

    def _run_all(self) -> None:
        """Run the handlers of all waiting signals, even if some of them raise."""
        try:
            self.poll()
        finally:
            if self.pending:
                self._run_all()

    def _install(self) -> None:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _StandIn):
                self.numbers.add(number)
                signal.signal(number, _StandIn(handler))

    def _remove(self) -> None:
        """Restore the replaced handlers."""
        try:
            for number in self.numbers:
                handler = signal.getsignal(number)
                if isinstance(handler, _StandIn):
                    signal.signal(number, handler.original)
        except BaseException:  # raised by a handler that was restored
            self._remove()
            raise


deferred = _Deferred()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=deferred.forked)
