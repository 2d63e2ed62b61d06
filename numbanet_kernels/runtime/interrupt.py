"""Ctrl-C waits until work that must not be left half done is done.

    with deferred: …     # Ctrl-C inside raises KeyboardInterrupt when the outermost block is left; a second one, at once

Python raises KeyboardInterrupt between any two instructions: within an update that has changed half of the weights, in a
finaliser, where it is swallowed, or between two halves of a change of state. Blocks are short: a training step, not a fit.
"""
from __future__ import annotations

import _signal as signal  # the functions of `signal` make enums of handlers, which takes ten times as long
import threading
from types import FrameType


class _Deferred:
    """Blocks of the main thread, which alone sees signals; elsewhere, and under a user's own handler, nothing is done."""

    def __init__(self) -> None:
        self.depth, self.pending, self.installed = 0, False, False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if not self.depth and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.installed, self.pending = True, False  # first: a signal may come as soon as the handler stands
            signal.signal(signal.SIGINT, self._handle)
        self.depth += 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth -= 1
        if not self.depth and self.installed:
            self.installed = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.pending:
                raise KeyboardInterrupt


deferred = _Deferred()
