"""An interpreter that runs the PTX of a kernel on the CPU and counts its operations. It needs no GPU and no driver.

    program = parse(kernel.ptx((8, 0)), kernel.arguments)
    run(program, grid, block, arguments)        # arguments: numbers, and NumPy arrays that represent device memory

The interpreter is for tests and explanations of kernels. It is too slow for training, because a fused multiply-add of a thread
takes about 30 ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .arguments import check
from .counters import Counters, Line, Shape, Uncounted, class_of
from .machine import Launch
from .parse import parse
from .program import Program, PtxError

__all__ = ["Counters", "Line", "Program", "PtxError", "Shape", "Uncounted", "class_of", "parse", "run"]


def run(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    dynamic: int = 0,
    counters: Counters | None = None,
    name: str = "",
    placed: bool = False,
    tables: dict[str, np.ndarray] | None = None,
) -> Counters:
    """Launch a kernel as Numba does, and return the counters.

    Parameters
    ----------
    program : Program
        The kernel, a result of `parse`.
    grid, block : sequence of int
        Up to three lengths each.
    arguments : sequence
        The arguments of the kernel's Python function: numbers (also complex ones and dates), arrays and single records, which
        are changed in place, and tuples of these. If the kernel declares a memory order, an array must have it; otherwise
        slices and transposes are accepted, too.
    dynamic : int, default=0
        Bytes of dynamic shared memory.
    counters : Counters, optional
        Counters to add to; new ones by default.
    name : str, optional
        Name of the kernel in errors; by default that of the PTX.
    placed : bool, default=False
        If False, each array begins at a multiple of 256 bytes, as if Numba had copied it to a GPU. If True, arrays are already
        in device memory, and their addresses modulo 256 are kept.
    tables : dict, optional
        The .global variables of the program, by name, as arrays of uint8. They are changed in place, and those that are
        missing are added. A card keeps them from launch to launch, as a caller does who passes the same dict; by default each
        launch has new ones. In debug mode they hold the exception that a kernel has raised.

    Raises
    ------
    PtxError
        If an argument, the grid or the block does not match the kernel's declaration, or if the kernel makes an illegal access
        or uses an instruction that is not supported. The message names line, thread and block.
    """
    name = name or program.name
    arguments = list(_parts(arguments))
    check(program, grid, block, arguments, dynamic, name)
    counters = Counters(program) if counters is None else counters
    counters.launched(grid, block, dynamic)
    Launch(program, grid, block, arguments, placed, dynamic, counters, name, tables).run()
    return counters


def _parts(given: Sequence[Any]) -> Iterator[Any]:
    """Yield the arguments; a tuple is replaced by its elements."""
    for part in given:
        yield from _parts(part) if isinstance(part, tuple) else (part,)
