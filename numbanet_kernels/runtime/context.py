"""Values that a thread changes for the duration of a `with` block.

    precise = Scoped("precise", True)
    with precise.within(False): …       # precise.get() is False inside

After the block, the outer value is restored, even if a signal handler raises an exception. Python may raise before the first
line of an `__exit__` that is written in Python, so C code ends the block: a value is valid as long as the lock of its block is
held.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any


class Scoped:
    """A value that each thread has for itself: that of the innermost block, or a default outside of all blocks."""

    def __init__(self, name: str, default: Any) -> None:
        self.innermost: contextvars.ContextVar[_Block | None] = contextvars.ContextVar(name, default=None)
        self.default = default

    def get(self) -> Any:
        """Return the value of the innermost block of this thread."""
        block = self.innermost.get()
        if block is None:
            return self.default
        if not block.lock.locked():  # the block has ended, so it and its value are removed
            while block is not None and not block.lock.locked():
                block = block.outer
            self.innermost.set(block)
        return self.default if block is None else block.value

    def within(self, value: Any) -> _Block:
        """Return a context in which this thread has the value; it can also be used as a decorator, for the time of a call."""
        return _Block(self, value)


class _Release:
    """A descriptor: the `__exit__` of a block is that of its lock, and is bound when the block is entered."""

    def __get__(self, block: _Block | None, owner: type) -> Callable[..., Any]:
        return (lambda block, *error: block.lock.release()) if block is None else block.lock.__exit__


class _Block:
    __slots__ = ("lock", "outer", "scoped", "value")
    __exit__ = _Release()

    def __init__(self, scoped: Scoped, value: Any) -> None:
        self.scoped, self.value, self.outer, self.lock = scoped, value, None, threading.Lock()

    def __enter__(self) -> Any:
        if self.lock.locked():
            raise RuntimeError(f"{self.scoped.innermost.name}: the block was entered already; make another one")
        self.scoped.get()  # removes blocks that have ended
        self.outer = self.scoped.innermost.get()
        self.scoped.innermost.set(self)
        try:
            self.lock.acquire()
        except BaseException:  # a signal handler raised it; the block is then not entered
            if self.lock.locked():
                self.lock.release()
            raise
        return self.value

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.scoped.within(self.value):
                return function(*args, **kwargs)

        return run
