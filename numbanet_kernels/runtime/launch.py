"""Launching a kernel now, or listing its launch for later."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from .context import Scoped
from .declare import Kernel, cuda
from .driverless import no_card
from .emulation import emulate, emulating


def ceil_div(a: int, b: int) -> int:
    """ceil(a / b) for non-negative integers: how many tiles of b cover a."""
    return -(-a // b)


def launch(kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int], *args: Any) -> None:
    """Launch on the default stream, or list the launch while launches are recorded; a grid with a zero in it (an empty plan, an
    empty batch) launches nothing. ValueError of what `kernel` did not declare, NoCard where a card is needed and none answers.
    """
    if not isinstance(kernel, Kernel):
        name = getattr(kernel, "__name__", repr(kernel))
        raise ValueError(
            f'launch: {name} is a {type(kernel).__name__}, not declared by @kernel("void(...)") of '
            f'numbanet_kernels.runtime.declare; kernel("void(...)")({name}) declares what is a Python function '
            "or a kernel of @cuda.jit"
        )
    grid, block = (shape if isinstance(shape, tuple) else (shape,) for shape in (grid, block))
    if 0 in grid:
        return
    if (calls := _recording.get()) is not None:
        calls.append((kernel, grid, block, args))
    elif emulating():
        emulate(kernel, grid, block, args)
    else:
        try:
            kernel.dispatcher[grid, block](*args)
        except ImportError as error:
            raise no_card(error) from error


_recording = Scoped("recording", None)


def recording() -> contextlib.AbstractContextManager[list]:
    """Launches inside, by this thread, are not done but listed: (kernel, grid, block, arguments) one after the other."""
    return _recording.within([])


class NotRecorded(RuntimeError):
    """Something was asked of the device that is no launch, and would not be done again with those that were recorded."""


def refuse_to_record(what: str) -> None:
    """NotRecorded while launches are recorded."""
    if _recording.get() is not None:
        raise NotRecorded(f"{what} cannot be recorded: only launches can")


def synchronize() -> None:
    """Wait until the card has done what it was given."""
    if emulating():
        return
    try:
        cuda.default_stream().synchronize()  # not the whole card, on which another thread may be recording
    except ImportError as error:
        raise no_card(error) from error
