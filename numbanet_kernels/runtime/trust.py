"""Self-tests of fast code: once per process, before the device uses it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

from .emulation import emulating
from .interrupt import deferred
from .launch import NotRecorded


def trusted(check: Callable[[], float]) -> Callable[[], bool]:
    """Make a function that is True if fast code is correct on this device. Once per process, it calls check(), which runs the
    fast code and returns its largest error.

    If the error is not small, or if the check raises an exception, the returned function issues a warning and returns False, so
    that the simple code is used. On the emulated device it returns True without a check, because the tests check the fast code.
    """

    @functools.cache
    @deferred  # signals wait, because the exception of a signal handler says nothing about the device
    def passed() -> bool:
        try:
            error = check()
            problem = None if error < 1e-4 else f"its error is {error:.1e}"
        except NotRecorded:  # asked while a step is recorded, which now runs first; nothing is known yet
            raise
        except Exception as raised:  # an untested GPU or driver may raise anything
            problem = f"{type(raised).__name__}: {' '.join(str(raised).split())}"
        if problem:
            warnings.warn(
                f"{check.__module__}: the fast kernels are not used on this GPU, because {problem}; the simple ones are",
                stacklevel=2,
            )
        return problem is None

    def ask() -> bool:
        return emulating() or passed()

    ask.passed, ask.check = passed, check
    return ask
