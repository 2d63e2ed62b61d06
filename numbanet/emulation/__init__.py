"""Plain numba.cuda code without a card, and what the counters say of it by line of Python.

counts     `Counts`: the counters of the kernels of a context, as a table and as a page
sources    the source text of kernels, line by line
remarks    what the counters of a line mean
table      the counters as tables on the terminal
page       the same as one HTML page: the source text with the counters of each line
"""

from __future__ import annotations

import os
from typing import Any

from numbanet_kernels import card

from .counts import SHEETS, Counts, sheet

__all__ = ["SHEETS", "Counts", "Emulated", "emulate_if_asked", "emulated", "sheet"]


class Emulated(card.Emulated):
    """The context of `emulated`."""

    def __enter__(self) -> Emulated:
        super().__enter__()
        return self

    @property
    def counters(self) -> Counts:
        """The counters of the kernels that have been launched in this context, so far.

        Raises
        ------
        RuntimeError
            If it does not count.
        """
        if self.counted is None:
            raise RuntimeError(
                "nothing was counted: card.counters is there inside and after `with numbanet.emulated(counters=True) as card:`"
            )
        return Counts(self.counted.kernels.values())


def emulated(function: Any = None, *, uninitialised: bool = False, counters: bool = False) -> Any:
    """Run plain `numba.cuda` code without a card: a context, and a decorator, in which the PTX machine is the card.

        import numbanet, numpy as np
        from numba import cuda

        @cuda.jit
        def add(x, y):
            i = cuda.grid(1)
            if i < y.size:
                y[i] += x[i]

        with numbanet.emulated():            # or @numbanet.emulated above a function, or NUMBANET_EMULATED=1
            x = np.ones(1000, np.float32)
            add[4, 256](x, x)                # x is 2 everywhere

    Kernels are compiled as for a card of compute capability 8.0, and their PTX runs on the CPU, with checks: a launch raises
    RuntimeError, with the line of Python, the thread, the element and the value, for a race, an access out of bounds,
    misaligned, or of memory that was freed, for shared memory that is read before it is written, for a barrier that part of a
    block never reaches, and for threads that wait for ever. Several threads may write equal values, and what is there already,
    and may read what atomic instructions change before they change it by one, as loops of compare-and-swap do. Work is done
    when it is asked for, so streams and events are in order. `cuda.is_available()` is True inside. Memory that kernels allocate
    and never free is a ResourceWarning at the end.

    The whole process is emulated until the outermost context ends, all its threads, even if there is a card; afterwards
    everything is as before. Device arrays that were made inside are of no use outside.

    Parameters
    ----------
    function : callable, optional
        A function to run in the context, if this is used as a decorator.
    uninitialised : bool, default=False
        Whether reads of device memory that nobody wrote, such as that of `cuda.device_array`, are errors, too.
    counters : bool, default=False
        Whether launches are counted: `with numbanet.emulated(counters=True) as card:` has `card.counters`, the instructions,
        memory sectors, bank conflicts and divergent branches of each kernel by line of Python (`Counts`). Launches that are
        counted take longer; others do not.

    Raises
    ------
    RuntimeError
        On entry, if kernels cannot be compiled here; the message says what to install. Inside, by name, for what the emulated
        card does not have: IPC, textures, graphs, machine code, and linking of anything but PTX and CUDA C++.
    """
    context = Emulated(uninitialised, counters=counters)
    return context if function is None else context(function)


def emulate_if_asked() -> None:
    """Emulate a card for the whole process if the environment variable NUMBANET_EMULATED is 1."""
    if os.environ.get("NUMBANET_EMULATED") == "1":
        emulated().__enter__()
