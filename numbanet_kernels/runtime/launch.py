"""Launching a kernel now, or listing its launch for later."""
from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Sequence
from typing import Any

from .context import within
from .declare import Kernel, cuda
from .emulation import emulate, emulating


def ceil_div(a: int, b: int) -> int:
    """ceil(a / b) for non-negative integers: how many tiles of b cover a."""
    return -(-a // b)


def launch(kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int], *args: Any) -> None:
    """Launch on the default stream, or list the launch while launches are recorded; a grid with a zero in it (an empty plan, an
    empty batch) launches nothing."""
    grid, block = (shape if isinstance(shape, tuple) else (shape,) for shape in (grid, block))
    if 0 in grid:
        return
    if (calls := _recording.get()) is not None:
        calls.append((kernel, grid, block, args))
    elif emulating():
        emulate(kernel, grid, block, args)
    else:
        kernel.dispatcher[grid, block](*args)


_recording: contextvars.ContextVar[list | None] = contextvars.ContextVar("recording", default=None)


def recording() -> contextlib.AbstractContextManager[list]:
    """Launches inside, by this thread, are not done but listed: (kernel, grid, block, arguments) one after the other."""
    return within(_recording, [])


class NotRecorded(RuntimeError):
    """Something was asked of the device that is no launch, and would not be done again with those that were recorded."""


def refuse_to_record(what: str) -> None:
    """NotRecorded while launches are recorded."""
    if _recording.get() is not None:
        raise NotRecorded(f"{what} cannot be recorded: only launches can")


def synchronize() -> None:
    """Wait until the card has done what it was given."""
    if not emulating():
        cuda.default_stream().synchronize()  # not the whole card, on which another thread may be recording
