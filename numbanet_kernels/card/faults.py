"""What an error of a launch says of arrays and values: `explained` names the element, and what the thread would write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ptx.program import Address, PtxError


class Array(NamedTuple):
    """An array argument of a launch: its name, address, shape, strides in bytes, and the type of its elements."""

    name: str
    address: int
    shape: list[int]
    strides: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"array {self.name}, shape {tuple(self.shape)} of {self.dtype}"

    def element(self, address: int) -> str:
        """Return the element at an address, such as "x[2, 3]"; "" if it is none of this array's, nor next to its end."""
        left, index = address - self.address, [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda axis: -abs(self.strides[axis])):
            if self.strides[axis]:
                index[axis], left = divmod(left, self.strides[axis])
        far = any(not 0 <= i < n for i, n in zip(index, self.shape, strict=True))
        if not index or (far and len(index) > 1) or (far and not -(1 << 20) <= index[0] <= 1 << 30):
            return ""
        return f"{self.name}[{', '.join(map(str, index))}]"


def explained(error: PtxError, arrays: list[Array]) -> PtxError:
    """Return the error with the element of an array at which a thread met it, and the values that its instruction reads."""
    if error.at is None or error.at[2] is None:
        return error
    wave, instruction, lane = error.at
    said, dtype = [], ""
    for operand in instruction.operands:
        if isinstance(operand, Address) and operand.base in wave.registers:
            address = int(wave.registers[operand.base][lane].astype(np.int64)) + operand.offset
            near = [array for array in arrays if array.address <= address]
            if near and (element := (nearest := max(near, key=lambda array: array.address)).element(address)):
                said.append(f"at {element}")
                dtype = nearest.dtype
    values = instruction.operands[1:] if instruction.opcode in ("st", "red", "atom") else ()
    for name in (part for operand in values for part in (operand if isinstance(operand, tuple) else (operand,))):
        if isinstance(name, str) and name in wave.registers:
            said.append(f"value {_shown(wave.registers[name][lane], wave.program.registers[name], dtype)}")
    return PtxError(f"{error}, {', '.join(said)}") if said else error


def _shown(value: np.generic, kind: str, dtype: str) -> str:
    """Return the value of a register, which may be the bits of an element of an array of floats; integers as signed ones."""
    if dtype == f"float{8 * value.dtype.itemsize}":
        value = value.view(dtype)
    if value.dtype.kind == "u" and kind[0] in "sb":
        value = value.view(f"i{value.dtype.itemsize}")
    return str(value.item())
