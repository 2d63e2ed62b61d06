"""The arguments of a launch are checked as a GPU's driver and Numba check them, and packed as Numba's kernels expect them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arithmetic import DTYPES
from .parse import Program, PtxError

MOST_THREADS, MOST_BLOCKS, MOST_SHARED = 1024, (2**31 - 1, 65535, 65535), 227 << 10  # limits of compute capability 9.0
MOST_STATIC = 48 << 10
# memory orders of arrays: (flag of NumPy, text for errors); "A" stands for any order
ORDERS = {"C": ("C_CONTIGUOUS", "not contiguous"), "F": ("F_CONTIGUOUS", "not in Fortran order")}


def check(
    program: Program, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic: int, name: str
) -> None:
    """Raise PtxError if a GPU or Numba would refuse the arguments, the grid or the block. Tuples of arguments are flattened."""
    for what, shape in (("grid", grid), ("block", block)):
        if not 1 <= len(shape) <= 3 or any(np.asarray(n).dtype.kind not in "iu" or n < 1 for n in shape):
            raise PtxError(f"{name}: a {what} is up to three lengths from 1 on, not {tuple(shape)}")
    if math.prod(block) > MOST_THREADS:
        raise PtxError(f"{name}: a block of {tuple(block)} has more than {MOST_THREADS} threads")
    if any(n > most for n, most in zip(grid, MOST_BLOCKS)):
        raise PtxError(f"{name}: a grid of {tuple(grid)} has more than {MOST_BLOCKS} blocks along an axis")
    if program.size("shared") > MOST_STATIC or program.size("shared") + dynamic > MOST_SHARED:
        raise PtxError(f"{name}: {program.size('shared')} and {dynamic} bytes of shared memory are too many")
    if program.arguments and len(arguments) != len(program.arguments):
        names = ", ".join(declared for declared, *_ in program.arguments)
        raise PtxError(f"{name} takes {len(program.arguments)} arguments ({names}), not {len(arguments)}")
    for number, argument in enumerate(arguments):
        declared, *wanted = program.arguments[number] if program.arguments else (number, "", None, "A")
        problem = _misfit(argument, *wanted)
        if problem:
            raise PtxError(f"{name}: argument {declared} {problem}")
    count = sum(5 + 2 * given.ndim if isinstance(given, np.ndarray) else 1 for given in arguments)
    if count != len(program.parameters):
        raise PtxError(f"{name} has {len(program.parameters)} parameters, got {count}: an array is five, and two for each axis")


def _misfit(argument: Any, dtype: str, axes: int | None, layout: str) -> str | None:
    """Return a text that says why an argument does not match its declaration; None if it does. The declaration has a dtype (if
    known), and, for an array, the number of axes and a layout.
    """
    values = np.asarray(argument)
    kind = f"an array of {values.dtype}, shape {values.shape}" if values.ndim else f"a {type(argument).__name__}"
    if values.ndim and not isinstance(argument, np.ndarray) or values.dtype.kind not in "biuf":
        return f"is a {type(argument).__name__}, neither a NumPy array of numbers nor a number"
    if dtype and axes is None and (values.ndim or values.dtype.kind not in ("iubf" if np.dtype(dtype).kind == "f" else "iub")):
        return f"is {kind}, not one {dtype}"
    if axes is not None and (values.dtype != np.dtype(dtype) or values.ndim != axes or not isinstance(argument, np.ndarray)):
        return f"is {kind}, not an array of {dtype} with {axes} ax{'es' if axes > 1 else 'is'}"
    if values.ndim and layout in ORDERS and not values.flags[ORDERS[layout][0]]:
        any_order = f"{dtype}[{', '.join([':'] * values.ndim)}]"
        return (
            f"is {ORDERS[layout][1]}: shape {values.shape}, strides {values.strides}: pass a copy in that order, or "
            f"declare {any_order}, which takes any"
        )
    return None


def packed(program: Program, arguments: Sequence[Any], address: Callable[[np.ndarray], int]) -> bytes:
    """Return the bytes of the parameters in Numba's calling convention; address(array) returns the address of an array."""
    memory = bytearray(max((offset + DTYPES[kind].itemsize for offset, kind in program.parameters.values()), default=0))
    for value, (offset, kind) in zip(_flat(arguments, address), program.parameters.values(), strict=True):
        dtype = DTYPES[kind]
        memory[offset : offset + dtype.itemsize] = np.asarray(value).astype(dtype).tobytes()
    return bytes(memory)


def _flat(arguments: Sequence[Any], address: Callable[[np.ndarray], int]) -> list[Any]:
    """Return the arguments as a list of numbers; an array becomes (0, 0, size, itemsize, address, *shape, *strides)."""
    flat: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            flat += [0, 0, argument.size, argument.itemsize, address(argument), *argument.shape, *argument.strides]
        else:
            flat.append(argument)
    return flat
