"""What an error of a launch says of arrays and values: `explained` names the element, and what the thread would write."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..ptx.program import Address, Instruction, PtxError, size_of
from ..ptx.races import Fault
from ..ptx.spaces import WINDOW, WINDOWS

FAR = 1 << 28  # bytes: what is farther away from an array has nothing to do with it


class Field(NamedTuple):
    """A field of a record: its name, offset and type, and the bytes until the next one."""

    name: str
    offset: int
    dtype: str
    size: int


class Array(NamedTuple):
    """An array argument of a launch: its name, address, shape, strides in bytes, and the type and the bytes of its elements;
    `fields` has their fields, if they are records.
    """

    name: str
    address: int
    shape: list[int]
    strides: list[int]
    dtype: str
    itemsize: int
    fields: tuple[Field, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return self.itemsize * math.prod(self.shape)

    @property
    def bounds(self) -> tuple[int, int]:
        """The address of the first byte, and that after the last one."""
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return self.address + low, self.address + high + self.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other, in C order."""
        return all(
            n == 1 or stride == self.itemsize * math.prod(self.shape[axis + 1 :])
            for axis, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True))
        )

    def __str__(self) -> str:
        return f"array {self.name}, shape {tuple(self.shape)} of {self.dtype}"

    def element(self, address: int) -> str:
        """Return the element at an address, such as "x[2, 3]", or its field, "x[2].y"; "" if it is far from this array. Beyond
        an end, the first index is out of range, whichever one of the program's is.
        """
        index, _, field = self._found(address)
        return f"{self.name}[{', '.join(map(str, index))}]" + (f".{field.name}" if field else "") if index else ""

    def value(self, address: int) -> tuple[int, str]:
        """Return the address and the type of the element, or of its field, that holds the byte at an address."""
        _, left, field = self._found(address)
        return (address - left + field.offset, field.dtype) if field else (address - left % self.itemsize, self.dtype)

    def _found(self, address: int) -> tuple[list[int], int, Field | None]:
        """Return the index of the element at an address, the number of the byte in it, and its field."""
        left, index = address - self.address, [0] * len(self.shape)
        if not -FAR <= left <= self.bytes + FAR:
            return [], left, None
        for axis in sorted(range(len(self.shape)), key=lambda axis: -abs(self.strides[axis])):
            if self.strides[axis]:
                index[axis], left = divmod(left, self.strides[axis])
        return index, left, next((f for f in self.fields if f.offset <= left < f.offset + f.size), None)


def fields_of(kind: Any) -> tuple[Field, ...]:
    """Return the fields of Numba's type of a record, each up to the next one; () for other types."""
    found = sorted((field.offset, name, field.type) for name, field in getattr(kind, "fields", {}).items())
    ends = [offset for offset, *_ in found[1:]] + [getattr(kind, "size", 0)]
    return tuple(
        Field(name, offset, f"{getattr(part, 'dtype', part)}", end - offset) for (offset, name, part), end in zip(found, ends)
    )


def explained(error: PtxError, arrays: list[Array], shared: list[Array]) -> PtxError:
    """Complete an error with the element of an array at which a thread met it, and the values that its instruction reads or
    finds. `shared` holds shared arrays, with addresses in shared memory.
    """
    if error.at is None or error.at[2] is None:
        return error
    wave, instruction, lane = error.at
    said, dtype, whole = [], "", True
    for operand in instruction.operands:
        if isinstance(operand, Address) and (found := _place(wave, instruction, operand, lane)) is not None:
            space, address = found
            near = [array for array in (shared if space == "shared" else arrays) if array.address <= address]
            if near and (element := (nearest := max(near, key=lambda array: array.address)).element(address)):
                start, dtype = nearest.value(address)
                whole = not nearest.fields or _bytes_of(dtype) == size_of(instruction.modifiers[-1])
                shown = error.other or error.polled
                said.append(f"at {element}" + (_held(wave, instruction, space, start, lane, dtype) if shown else ""))
    # a field of a packed record is stored byte by byte, and a byte tells nothing
    values = instruction.operands[1:] if instruction.opcode in ("st", "red", "atom") and whole and not error.polled else ()
    for name in (part for operand in values for part in (operand if isinstance(operand, tuple) else (operand,))):
        if isinstance(name, str) and name in wave.registers:
            said.append(f"value {_shown(wave.registers[name][lane], wave.program.registers[name], dtype)}")
    error.said = tuple(said)
    return error


def _bytes_of(dtype: str) -> int:
    """Return the bytes of a type; 0 if NumPy does not name it."""
    try:
        return np.dtype(dtype).itemsize
    except (TypeError, ValueError):
        return 0


def _place(wave: Any, instruction: Instruction, operand: Address, lane: int) -> tuple[str, int] | None:
    """Return the memory space and the address in it that an operand names for a thread; None if it is in no array."""
    if operand.base in wave.program.shared:
        return "shared", wave.program.shared[operand.base].offset + operand.offset
    if operand.base not in wave.registers:
        return None
    address = int(wave.registers[operand.base][lane].astype(np.int64)) + operand.offset
    space = next((m.split("::")[0] for m in instruction.modifiers if m.split("::")[0] in ("global", "shared", "local")), "")
    if not space:
        space = next((name for name, start in WINDOWS.items() if start <= address < start + WINDOW), "global")
        address -= WINDOWS.get(space, 0)
    return None if space == "local" else (space, address)


def value_in(memory: np.ndarray, offset: int, dtype: str) -> str:
    """Return the value of a type at an offset of some bytes; "" if it is not all there, or NumPy does not name its type."""
    try:
        return str(memory[offset : offset + np.dtype(dtype).itemsize].view(dtype)[0].item())
    except (TypeError, ValueError, IndexError):
        return ""


def _held(wave: Any, instruction: Instruction, space: str, address: int, lane: int, dtype: str) -> str:
    """Return what memory holds where a thread reads in a race."""
    if instruction.opcode not in ("ld", "atom"):
        return ""
    try:
        owner = (wave.blocks[[lane]],) if space == "shared" else ()
        memory = wave.shared if space == "shared" else wave.launch.memory
        ((store, _, offset),) = memory.find(np.array([address]), 1, *owner)
        value = value_in(store.data, int(offset[0]), dtype)
        return f", which holds {value}" if value else ""
    except Fault:
        return ""


def _shown(value: np.generic, kind: str, dtype: str) -> str:
    """Return the value of a register, which may be the bits of an element of an array of floats; integers as signed ones."""
    if dtype == f"float{8 * value.dtype.itemsize}":
        value = value.view(dtype)
    if value.dtype.kind == "u" and kind[0] in "sb":
        value = value.view(f"i{value.dtype.itemsize}")
    return str(value.item())
