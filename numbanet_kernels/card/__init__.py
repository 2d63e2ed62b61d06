"""The emulated card: plain numba.cuda code, by whomever, runs on the PTX machine.

    heap        global memory: allocations, copies, and what the machine asks of an address
    model       what the card says of itself
    driver      the functions of the driver API that Numba calls
    streams     the order of kernels in streams
    modules     loaded PTX: kernels, variables, launches
    counted     what kernels did, if a context counts
    sheets      data sheets of cards: occupancy, and the least time for what was counted
    assembly    registers of kernels
    faults      what errors say of arrays and values
    ptx_text    linking of PTX texts
    stand_ins   what stands in for the classes of cuda.core
    patches     the exchange of numba-cuda's driver for this one
    built_in    the same for the numba.cuda that is part of Numba

Numba, not this package, compiles, converts arguments, and keeps device arrays.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

from ..runtime.interrupt import deferred

_lock = threading.Lock()
_depth = 0
_patches: Any = None


class Emulated(contextlib.ContextDecorator):
    """A context in which numba.cuda has the emulated card; contexts may be nested, and the outermost one decides.

    `uninitialised` says whether reads of device memory that nobody wrote are errors. If `report` is given, it is called with
    the error of a launch, and the program goes on; at the end also with a ResourceWarning for memory that was not freed. With
    `counters`, the launches inside are counted (`counted`), also if an outer context does not count.
    """

    def __init__(
        self, uninitialised: bool = False, report: Callable[[Exception], None] | None = None, counters: bool = False
    ) -> None:
        self.uninitialised, self.report, self.counting = uninitialised, report, counters
        self.counted: Any = None  # a `Counted`, if launches are counted
        self.entered = 0  # how often, if a function that it decorates calls itself

    def __enter__(self) -> Emulated:
        global _depth, _patches
        with deferred, _lock:  # an interrupt must not leave half of it
            if not _depth:
                made = self._patches()
                made.apply()
                _patches = made
            _depth += 1
            self.entered += 1
            if self.counting and self.entered == 1:
                from .counted import Counted

                self.counted = Counted()
                _patches.driver.counting.append(self.counted)
        return self

    def __exit__(self, *error: Any) -> None:
        global _depth, _patches
        found: list[str] = []
        with deferred, _lock:
            self.entered -= 1
            if self.counting and not self.entered:
                _patches.driver.counting.remove(self.counted)
            _depth -= 1
            if not _depth:
                from .driver import raised

                driver, found = _patches.driver, [] if error[:1] != (None,) else _patches.driver.heap.leaks()
                _patches.remove()
                _patches = None
        for leak in found:
            if driver.report is raised:
                warnings.warn(leak, ResourceWarning, stacklevel=2)
            else:
                driver.report(ResourceWarning(leak))

    def _patches(self) -> Any:
        if missing := problem():
            raise RuntimeError(f"emulated: {missing}")
        if _built_in():
            from .built_in import Patches
        else:
            from .patches import Patches
        from ..runtime import fused

        fused.provide()
        made = Patches(self.uninitialised)
        if self.report is not None:
            made.driver.report = self.report
        return made


def asked() -> int:
    """Return the number of launches that were asked for in the current context; 0 outside of one."""
    return _patches.driver.asked if _patches else 0


def problem() -> str | None:
    """Return None if kernels can be compiled here, else a sentence that says what is missing and how to get it."""
    from ..runtime import availability

    return availability.NO_CUDA or (None if _built_in() else availability.nvvm_problem())


def _built_in() -> bool:
    """Return True if numba.cuda is that of Numba itself, without numba-cuda, and can compile."""
    from numba import cuda
    from numba.cuda.cudadrv import nvvm

    return getattr(cuda, "implementation", "Built-in") == "Built-in" and nvvm.is_available()
