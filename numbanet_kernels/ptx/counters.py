"""Counters count the operations of a launch for each instruction:

issued          instructions; an instruction counts once for each warp with a thread that runs it
flops           FLOPs of all threads: 2 for a fused multiply-add, 4096 for an mma m16n8k16, …
sectors         sectors of 32 bytes that global accesses of warps touch; `least` is the smallest number that could hold the
                requested bytes
transactions    cycles in which the banks of shared memory serve warps; `conflicts` are those of them that bank conflicts add
divergent       branches at which a warp diverges

A launch that nobody counts has `Uncounted` counters.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .program import Instruction, Program
from .spaces import WARP, sectors, transactions

if TYPE_CHECKING:
    from .wave import Wave

CLASSES = {
    opcode: kind
    for kind, opcodes in {
        "load": "ld ldmatrix",
        "store": "st",
        "copy": "cp",
        "atomic": "atom red",
        "branch": "bra call ret exit",
        "barrier": "bar barrier mbarrier",
        "warp": "shfl vote match redux activemask",
        "mma": "mma",
        "fma": "fma",
        "move": "mov selp",
        "convert": "cvt cvta",
        "compare": "setp",
    }.items()
    for opcode in opcodes.split()
}
FLOPS = {"fma": 2, "mad": 2, "add": 1, "sub": 1, "mul": 1, "div": 1, "sqrt": 1, "rcp": 1, "rsqrt": 1, "ex2": 1, "lg2": 1}
PAIRS = {"f16x2", "bf16x2"}
FLOATS = {"f16", "bf16", "f32", "f64", *PAIRS}


def class_of(instruction: Instruction) -> str:
    """Return the class of an instruction; float arithmetic and integer (address) arithmetic are separate classes."""
    known = CLASSES.get(instruction.opcode)
    if known in ("load", "store", "atomic"):
        named = {m.split("::")[0] for m in instruction.modifiers}
        space = next((m for m in ("global", "shared", "local", "param", "const") if m in named), "generic")
        return f"{space} {known}"
    return known or ("float" if FLOATS & set(instruction.modifiers) else "integer")


def flops_of(instruction: Instruction) -> float:
    """Return the FLOPs of an instruction for one thread."""
    if instruction.opcode == "mma":
        m, n, k = (
            int(x)
            for x in next(s for s in instruction.modifiers if s[0] == "m" and "n" in s)[1:]
            .replace("n", " ")
            .replace("k", " ")
            .split()
        )
        return 2 * m * n * k / WARP
    if not FLOATS & set(instruction.modifiers):
        return 0
    return FLOPS.get(instruction.opcode, 0) * (2 if PAIRS & set(instruction.modifiers) else 1)


def is_branch(instruction: Instruction) -> bool:
    """Return True if a warp may diverge at an instruction."""
    return (instruction.opcode == "bra" and instruction.guard is not None) or instruction.opcode == "brx"


class Line(NamedTuple):
    """What the instructions of one line of Python did."""

    place: str  # such as "file.py:12"; "" if the line is unknown
    issued: int  # instructions of warps
    lanes: int  # instructions of threads
    flops: float
    double_flops: float  # those of them in float64
    mma_flops: (
        float  # those of them by tensor cores, in FLOPs of TF32: one of float16 or bfloat16 counts half, one of int8 a quarter
    )
    sectors: int
    least: int
    transactions: int
    conflicts: int
    branches: int  # branches of warps at which they may diverge
    divergent: int

    def __add__(self, other: Line) -> Line:  # type: ignore[override]
        return Line(self.place, *(a + b for a, b in zip(self[1:], other[1:], strict=True)))


class Shape(NamedTuple):
    """The shape of a launch; `dynamic` are bytes of dynamic shared memory."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic: int


ARRAYS = ("issued", "lanes", "divergent", "sectors", "least", "transactions", "conflicts")


class Uncounted:
    """Stands in for `Counters` in launches that nobody counts."""

    def launched(self, grid: Sequence[int], block: Sequence[int], dynamic: int) -> None:
        """Do nothing."""

    def idle(self, instruction: Instruction, lanes: int) -> None:
        """Do nothing."""

    def ran(self, first: int, stop: int, wave: Wave) -> None:
        """Do nothing."""

    def branch(self, pc: int, taken: np.ndarray, wave: Wave) -> None:
        """Do nothing."""

    def access(self, instruction: Instruction, space: str, address: np.ndarray, width: int, lanes: np.ndarray) -> None:
        """Do nothing."""


class Counters:
    """The operations of all launches of one kernel; `launches` is their number, `shapes` the number of those of each shape."""

    issued: np.ndarray
    lanes: np.ndarray
    divergent: np.ndarray
    sectors: np.ndarray
    least: np.ndarray
    transactions: np.ndarray
    conflicts: np.ndarray

    def __init__(self, program: Program) -> None:
        self.program, self.launches = program, 0
        self.shapes: collections.Counter[Shape] = collections.Counter()
        for name in ARRAYS:
            setattr(self, name, np.zeros(len(program.instructions), np.int64))

    def launched(self, grid: Sequence[int], block: Sequence[int], dynamic: int) -> None:
        """Note a launch."""
        self.launches += 1
        self.shapes[Shape(*((*lengths, 1, 1)[:3] for lengths in (grid, block)), dynamic)] += 1

    def add(self, other: Counters) -> None:
        """Add the counters of other launches of the same program."""
        self.launches += other.launches
        self.shapes.update(other.shapes)
        for name in ARRAYS:
            getattr(self, name)[:] += getattr(other, name)

    # --- called by the machine ----------------------------------------------------------------------------------------
    def idle(self, instruction: Instruction, lanes: int) -> None:
        """Count that `lanes` threads skip an instruction because of its predicate."""
        self.lanes[self.program.numbers[id(instruction)]] -= lanes

    def ran(self, first: int, stop: int, wave: Wave) -> None:
        if stop > first:
            self.issued[first:stop] += wave.warps()
            self.lanes[first:stop] += wave.lanes.size

    def branch(self, pc: int, taken: np.ndarray, wave: Wave) -> None:
        apart = taken.reshape(-1, WARP).any(axis=1) & (wave.active & ~taken).reshape(-1, WARP).any(axis=1)
        self.divergent[pc] += np.count_nonzero(apart)

    def access(self, instruction: Instruction, space: str, address: np.ndarray, width: int, lanes: np.ndarray) -> None:
        pc = self.program.numbers[id(instruction)]
        if space == "global":
            touched, least = sectors(address, width, lanes)
            self.sectors[pc] += touched
            self.least[pc] += least
        else:
            taken, least = transactions(address, width, lanes)
            self.transactions[pc] += taken
            self.conflicts[pc] += taken - least

    # --- asked by readers ---------------------------------------------------------------------------------------------
    def by_line(self) -> dict[str, int]:
        """Return a dict of the numbers of instructions by line of Python, such as "file.py:12", the largest first."""
        found: collections.Counter[str] = collections.Counter()
        for python, n in zip(self.program.python, self.issued, strict=True):
            found[python] += int(n)
        return dict(found.most_common())

    def lines(self) -> list[Line]:
        """Return the counters of each line of Python that has instructions, in the order of files and lines. What is inlined
        from another function belongs to the line of that function.
        """
        found: dict[str, Line] = {}
        rows = zip(*(getattr(self, name).tolist() for name in ARRAYS), strict=True)
        for i, python, row in zip(self.program.instructions, self.program.python, rows, strict=True):
            issued, lanes, divergent, *memory = row
            place, flops = python.partition(", called in ")[0], flops_of(i) * lanes
            double, mma = flops * ("f64" in i.modifiers), flops * (i.opcode == "mma")
            mma /= 4 if {"s8", "u8"} & set(i.modifiers) else 2 if {"f16", "bf16"} & set(i.modifiers) else 1
            line = Line(place, issued, lanes, flops, double, mma, *memory, issued * is_branch(i), divergent)
            found[place] = found[place] + line if place in found else line
        return sorted(found.values(), key=_order)

    def total(self) -> Line:
        """Return the sums over all lines."""
        return functools.reduce(operator.add, (line._replace(place="") for line in self.lines()))

    def summary(self) -> dict[str, float]:
        """Return a dict of totals: `issued`, `flops`, `sectors`, …, and `issued <class>` for every class of instructions."""
        instructions = self.program.instructions
        flops = sum(flops_of(i) * int(n) for i, n in zip(instructions, self.lanes, strict=True))
        kinds: collections.Counter[str] = collections.Counter()
        for instruction, n in zip(instructions, self.issued, strict=True):
            kinds[f"issued {class_of(instruction)}"] += int(n)
        moved = int(self.sectors.sum()) * 32
        return {
            "launches": self.launches,
            "issued": int(self.issued.sum()),
            "flops": flops,
            "sectors": int(self.sectors.sum()),
            "least sectors": int(self.least.sum()),
            "bytes": moved,
            "intensity": flops / moved if moved else 0.0,
            "shared transactions": int(self.transactions.sum()),
            "bank conflicts": int(self.conflicts.sum()),
            "divergent branches": int(self.divergent.sum()),
            "issued fma": 0,
            "issued mma": 0,
            **{name: n for name, n in sorted(kinds.items()) if n},
        }


def _order(line: Line) -> tuple[str, int]:
    file, _, number = line.place.rpartition(":")
    return file, int(number or 0)
