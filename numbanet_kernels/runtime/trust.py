"""Whether what is fast is right on this card: a check, once in a process, before it is trusted."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

from .emulation import emulating
from .interrupt import deferred


def trusted(check: Callable[[], float]) -> Callable[[], bool]:
    """Whether something fast may serve on this card: once in a process, `check` runs it and gives the error it found.

    A card on which the error is not small, or which cannot run it, is told about, and what is simple serves. On the emulated
    device tests have checked.
    """

    @functools.cache
    @deferred  # what a signal's handler raises says nothing of the card
    def passed() -> bool:
        try:
            error = check()
            problem = None if error < 1e-4 else f"its error is {error:.1e}"
        except Exception as raised:  # a card or a driver that this was never run on: whatever happens, it is not used
            problem = f"{type(raised).__name__}: {' '.join(str(raised).split())}"
        if problem:
            warnings.warn(
                f"{check.__module__}: its fast way is not taken on this card, {problem}; the simple one is", stacklevel=2
            )
        return problem is None

    def ask() -> bool:
        return emulating() or passed()

    ask.passed, ask.check = passed, check
    return ask
