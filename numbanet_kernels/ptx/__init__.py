"""A machine that runs the PTX of a kernel on the CPU, exactly, and counts what it does: no GPU, no driver.

    program = parse(kernel.ptx((8, 0)))
    run(program, grid, block, arguments)        # arguments: numbers, and NumPy arrays that stand for device memory

It is made to test and to explain kernels, not to train large networks: a fused multiply-add of a thread takes about 30 ns.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arithmetic import DTYPES
from .counters import Counters, class_of
from .machine import Launch
from .parse import Program, PtxError, parse

__all__ = ["Counters", "Program", "PtxError", "class_of", "parse", "run"]


def run(program: Program, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic: int = 0,
        counters: Counters | None = None, name: str = "") -> Counters:
    """Launch a kernel as Numba does; returns what was counted.

    Parameters
    ----------
    program : Program
        By `parse`.
    grid, block : sequence of int
        Up to three lengths each.
    arguments : sequence
        As the kernel's Python function takes them: numbers, and contiguous arrays, which are changed in place.
    dynamic : int, default=0
        Bytes of dynamic shared memory.
    counters : Counters, optional
        Where to count on; new ones by default.
    name : str, optional
        What errors call the kernel; by default as the text does.

    Raises
    ------
    PtxError
        If the kernel does what it must not, or what this machine does not know; with line, thread and block.
    """
    _check(program, grid, block, arguments, dynamic)
    counters = Counters(program) if counters is None else counters
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    counters.launches += 1
    Launch(program, grid, block, _parameters(program, arguments), arrays, dynamic, counters, name or program.name).run()
    return counters


MOST_THREADS, MOST_BLOCKS, MOST_SHARED = 1024, (2**31 - 1, 65535, 65535), 227 << 10  # of a card of compute capability 9.0
MOST_STATIC = 48 << 10


def _check(program: Program, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic: int) -> None:
    """What a card would refuse."""
    if math.prod(block) > MOST_THREADS:
        raise PtxError(f"{program.name}: a block of {tuple(block)} has more than {MOST_THREADS} threads")
    if any(n > most for n, most in zip(grid, MOST_BLOCKS)):
        raise PtxError(f"{program.name}: a grid of {tuple(grid)} has more than {MOST_BLOCKS} blocks along an axis")
    if program.size("shared") > MOST_STATIC or program.size("shared") + dynamic > MOST_SHARED:
        raise PtxError(f"{program.name}: {program.size('shared')} and {dynamic} bytes of shared memory are too many")
    for argument in arguments:
        if isinstance(argument, np.ndarray) and not argument.flags.c_contiguous:
            raise PtxError(f"{program.name}: an array of shape {argument.shape}, strides {argument.strides}, is not contiguous")


def _parameters(program: Program, arguments: Sequence[Any]) -> bytes:
    """The parameters of Numba's calling convention: an array is (0, 0, size, itemsize, address, *shape, *strides)."""
    flat: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            flat += [0, 0, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape, *argument.strides]
        else:
            flat.append(argument)
    if len(flat) != len(program.parameters):
        raise PtxError(f"{program.name} has {len(program.parameters)} parameters, got {len(flat)}")
    memory = bytearray(max((offset + DTYPES[kind].itemsize for offset, kind in program.parameters.values()), default=0))
    for value, (offset, kind) in zip(flat, program.parameters.values(), strict=True):
        dtype = DTYPES[kind]
        memory[offset:offset + dtype.itemsize] = np.asarray(value).astype(dtype).tobytes()
    return bytes(memory)
