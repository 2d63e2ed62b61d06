"""`launch` starts a kernel on the GPU or the emulated device, or records its launch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from . import driver, driverless
from .context import Scoped
from .declare import Kernel, cuda
from .driverless import no_card
from .emulation import emulate, emulating


def ceil_div(a: int, b: int) -> int:
    """Return ceil(a / b) for non-negative integers, which is the number of tiles of length b that cover a length of a."""
    return -(-a // b)


def launch(kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int], *args: Any) -> None:
    """Launch a kernel on the default stream; inside `recording`, append the launch to the list instead. If the grid is empty
    (an empty plan or batch), nothing is launched.

    Raises
    ------
    ValueError
        If `kernel` is not declared by @kernel.
    NoCard
        If there is no GPU.
    """
    if not isinstance(kernel, Kernel):
        name = getattr(kernel, "__name__", repr(kernel))
        raise ValueError(
            f'launch: {name} is a {type(kernel).__name__}, not declared by @kernel("void(...)") of '
            f'numbanet_kernels.runtime.declare; kernel("void(...)")({name}) declares it if it is a Python function '
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
            if driverless.posed:
                kernel.dispatcher[grid, block](*args)
            else:
                driver.start(kernel, grid, block, args)
        except ImportError as error:
            raise no_card(error) from error


_recording = Scoped("recording", None)


def recording() -> contextlib.AbstractContextManager[list]:
    """Return a context, `with recording() as launches`: inside, launches of this thread are not executed, but appended to the
    list `launches` as (kernel, grid, block, arguments).
    """
    return _recording.within([])


class NotRecorded(RuntimeError):
    """The recorded function did something that a replay would not repeat."""


def refuse_to_record(what: str) -> None:
    """Raise NotRecorded if this thread is inside `recording`."""
    if _recording.get() is not None:
        raise NotRecorded(f"{what} cannot be recorded: only launches can")


def synchronize() -> None:
    """Wait until the GPU has finished its work."""
    if emulating():
        return
    try:
        cuda.default_stream().synchronize()  # only this stream, because another thread may be recording on the GPU
    except ImportError as error:
        raise no_card(error) from error
