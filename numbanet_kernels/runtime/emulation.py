"""The emulated device: the PTX machine runs compiled kernels on the CPU, and counts their operations."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numba

from . import fused
from .context import Scoped
from .declare import Kernel, cuda
from .driverless import EMULATED, explain_to

_emulating = Scoped("emulating", False)
counters: dict[Kernel, Any] = {}  # counters of all emulated kernels; clear the dict to reset the counts
_counting = threading.Lock()  # one launch at a time is emulated


def emulating() -> bool:
    """Return True if operations of CUDA run on the PTX machine, with arrays in host memory."""
    return _emulating.get()


if cuda is not None and not numba.config.ENABLE_CUDASIM:
    explain_to(emulating)


def emulated(on: bool = True) -> contextlib.AbstractContextManager[bool]:
    """Return a context in which this thread runs operations of CUDA on the PTX machine, and Numba itself raises NoCard."""
    return _emulating.within(on)


@functools.cache
def program(kernel: Kernel, compute_capability: tuple[int, int]) -> Any:
    """Return the compiled kernel as a `Program` of the PTX machine."""
    from .. import ptx

    fused.provide()
    return ptx.parse(kernel.ptx(compute_capability), kernel.arguments, lambda: kernel.ptx(compute_capability, lines=True))


def emulate(kernel: Kernel, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]) -> None:
    """Launch a kernel on the PTX machine."""
    from .. import ptx

    compiled = program(kernel, EMULATED)
    with _counting:
        found = counters.get(kernel)
        if found is None or found.program is not compiled:
            found = counters[kernel] = ptx.Counters(compiled)
        ptx.run(compiled, grid, block, args, counters=found, name=kernel.__name__, placed=True)
