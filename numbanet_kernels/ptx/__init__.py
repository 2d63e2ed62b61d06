"""A machine that runs the PTX of a kernel on the CPU, exactly, and counts what it does: no GPU, no driver.

    program = parse(kernel.ptx((8, 0)), kernel.arguments)
    run(program, grid, block, arguments)        # arguments: numbers, and NumPy arrays that stand for device memory

It is made to test and to explain kernels, not to train large networks: a fused multiply-add of a thread takes about 30 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .arguments import check
from .counters import Counters, class_of
from .machine import Launch
from .parse import Program, PtxError, parse

__all__ = ["Counters", "Program", "PtxError", "class_of", "parse", "run"]


def run(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    dynamic: int = 0,
    counters: Counters | None = None,
    name: str = "",
    placed: bool = False,
) -> Counters:
    """Launch a kernel as Numba does; returns what was counted.

    Parameters
    ----------
    program : Program
        By `parse`.
    grid, block : sequence of int
        Up to three lengths each.
    arguments : sequence
        As the kernel's Python function takes them: numbers, arrays, which are changed in place, and tuples of these. An array
        has the order that the kernel declares, any where it declares none: slices and transposes are changed where they lie.
    dynamic : int, default=0
        Bytes of dynamic shared memory.
    counters : Counters, optional
        Where to count on; new ones by default.
    name : str, optional
        What errors call the kernel; by default as the text does.
    placed : bool, default=False
        Each array begins at a multiple of 256 bytes, as what Numba copies to a card does. True: arrays lie in the memory of a
        device already, and their addresses are the same modulo 256.

    Raises
    ------
    PtxError
        If an argument, the grid or the block is not what the kernel takes, if the kernel does what it must not, or what this
        machine does not know; with line, thread and block.
    """
    name = name or program.name
    arguments = [part for given in arguments for part in (given if isinstance(given, tuple) else (given,))]
    check(program, grid, block, arguments, dynamic, name)
    counters = Counters(program) if counters is None else counters
    counters.launches += 1
    Launch(program, grid, block, arguments, placed, dynamic, counters, name).run()
    return counters
