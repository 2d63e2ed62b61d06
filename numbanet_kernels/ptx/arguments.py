"""The arguments of a launch are checked as a GPU's driver and Numba check them, and packed as Numba's kernels expect them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arithmetic import DTYPES
from .program import Program, PtxError, size_of

MOST_THREADS, MOST_BLOCKS, MOST_SHARED = 1024, (2**31 - 1, 65535, 65535), 227 << 10  # limits of compute capability 9.0
MOST_STATIC, MOST_LOCAL, MOST_DEPTH = 48 << 10, 512 << 10, 64  # bytes of a block, bytes of a thread, threads along z
# the kinds of dtypes that a number of each kind of dtype may be given as
TAKEN = {"f": "iubf", "c": "iubfc", "M": "M", "m": "m", "V": "V"}
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
    if len(block) == 3 and block[2] > MOST_DEPTH:
        raise PtxError(f"{name}: a block of {tuple(block)} has more than {MOST_DEPTH} threads along its third axis")
    if program.most is not None and math.prod(block) > program.most:
        raise PtxError(f"{name}: a block of {tuple(block)} has more than the {program.most} threads of its launch bounds")
    if any(n > most for n, most in zip(grid, MOST_BLOCKS)):
        raise PtxError(f"{name}: a grid of {tuple(grid)} has more than {MOST_BLOCKS} blocks along an axis")
    if problem := _too_much(program.size("shared"), dynamic, program.size("local")):
        raise PtxError(f"{name}: {problem}")
    if program.arguments and len(arguments) != len(program.arguments):
        names = ", ".join(declared for declared, *_ in program.arguments)
        raise PtxError(f"{name} takes {len(program.arguments)} arguments ({names}), not {len(arguments)}")
    for number, argument in enumerate(arguments):
        declared, *wanted = program.arguments[number] if program.arguments else (number, "", None, "A")
        problem = _misfit(argument, *wanted)
        if problem:
            raise PtxError(f"{name}: argument {declared} {problem}")
    count = sum(map(_count, arguments, _numbers(program, arguments)))
    if count != len(program.parameters):
        raise PtxError(f"{name} has {len(program.parameters)} parameters, got {count}: an array is five, and two for each axis")


def _too_much(static: int, dynamic: int, local: int) -> str:
    """Return a text that says which memory is more than a block or a thread may have; "" if none is."""
    if local > MOST_LOCAL:
        return f"{local} bytes of local memory: a thread has at most {MOST_LOCAL}, so use a smaller cuda.local.array"
    if static > MOST_STATIC:
        return f"{static} bytes of static shared memory: the most are {MOST_STATIC}, so use smaller tiles, or fewer at a time"
    if static + dynamic > MOST_SHARED:
        return f"{dynamic} bytes of dynamic shared memory and {static} static ones: the most are {MOST_SHARED} together"
    return ""


def _fits(value: int, limits: np.iinfo) -> bool:
    """Return True if an integer type can hold a value; one without a sign takes -1 for its largest value, as in C."""
    return min(limits.min, -(1 << limits.bits - 1)) <= value <= limits.max


def _misfit(argument: Any, dtype: str, axes: int | None, layout: str) -> str | None:
    """Return a text that says why an argument does not match its declaration; None if it does. The declaration has a dtype (if
    known), and, for an array, the number of axes and a layout.
    """
    values = np.asarray(argument)
    kind = f"an array of {values.dtype}, shape {values.shape}" if values.ndim else f"a {type(argument).__name__}"
    if values.ndim and not isinstance(argument, np.ndarray) or values.dtype.kind not in "biufcmMV":
        return f"is a {type(argument).__name__}, neither a NumPy array of numbers nor a number"
    if dtype and axes is None and (values.ndim or values.dtype.kind not in TAKEN.get(np.dtype(dtype).kind, "iub")):
        return f"is {kind}, not one {dtype}"
    if dtype and axes is None and np.dtype(dtype).kind in "iu" and not _fits(int(argument), np.iinfo(dtype)):
        return f"is {argument}, which {dtype} cannot hold"
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
    memory = bytearray(max((offset + size_of(kind) for offset, kind in program.parameters.values()), default=0))
    flat = _flat(arguments, _numbers(program, arguments), address)
    for value, (offset, kind) in zip(flat, program.parameters.values(), strict=True):
        given = _bits(value, kind)
        memory[offset : offset + len(given)] = given
    return bytes(memory)


def _numbers(program: Program, arguments: Sequence[Any]) -> list[Any]:
    """Return the declared dtype of each argument that is a number; "" for arrays, and for all if nothing is declared."""
    return [dtype if axes is None else "" for _, dtype, axes, _ in program.arguments] or [""] * len(arguments)


def _count(argument: Any, dtype: Any) -> int:
    """Return the number of parameters of an argument."""
    if isinstance(argument, np.ndarray):
        return 5 + 2 * argument.ndim
    return 2 if _is_complex(argument, dtype) else 1


def _is_complex(argument: Any, dtype: Any) -> bool:
    return isinstance(argument, (complex, np.complexfloating)) or (bool(dtype) and np.dtype(dtype).kind == "c")


def _bits(value: Any, kind: str) -> bytes:
    """Return the bytes of a parameter of the type `kind`. A float that is passed as bits is of that size (float16)."""
    if isinstance(value, bytes):
        return value
    value, dtype = np.asarray(value), DTYPES[kind]
    if value.dtype.kind in "mM":
        value = value.view(np.int64)
    if value.dtype.kind == "f" and dtype.kind in "iu":
        value = value.astype(f"f{dtype.itemsize}").view(dtype)
    return value.astype(dtype).tobytes()


def _flat(arguments: Sequence[Any], declared: Sequence[Any], address: Callable[[np.ndarray], int]) -> list[Any]:
    """Return the arguments as a list of numbers; an array becomes (0, 0, size, itemsize, address, *shape, *strides), a complex
    number its two parts, and a record its address.
    """
    flat: list[Any] = []
    for argument, dtype in zip(arguments, declared, strict=True):
        if isinstance(argument, np.ndarray):
            flat += [0, 0, argument.size, argument.itemsize, address(argument), *argument.shape, *argument.strides]
        elif isinstance(argument, np.void):
            flat.append(address(array_of(argument)))
        elif _is_complex(argument, dtype):
            flat += [argument.real, argument.imag]
        else:
            flat.append(np.asarray(argument).astype(dtype) if dtype and np.dtype(dtype).kind in "biuf" else argument)
    return flat


def array_of(record: np.void) -> np.ndarray:
    """Return an array of one element that shares the memory of a record."""
    at = record.__array_interface__["data"][0]
    return np.frombuffer((ctypes.c_uint8 * record.dtype.itemsize).from_address(at), record.dtype)
