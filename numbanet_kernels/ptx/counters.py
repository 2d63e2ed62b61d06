"""Counters count the operations of a launch for each instruction:

issued          instructions; an instruction counts once for each warp with a thread that runs it
flops           FLOPs of all threads: 2 for a fused multiply-add, 4096 for an mma m16n8k16, …
sectors         sectors of 32 bytes that global accesses of warps touch; `least` is the smallest number that could hold the
                requested bytes
conflicts       cycles that shared accesses wait because of bank conflicts
divergent       branches at which a warp diverges
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import numpy as np

from .program import Instruction, Program
from .spaces import WARP, conflicts, sectors

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
        "barrier": "bar barrier",
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
FLOATS = {"f16", "bf16", "f32", "f64"}


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
    return FLOPS.get(instruction.opcode, 0) if FLOATS & set(instruction.modifiers) else 0


class Counters:
    """The operations of all launches of one kernel."""

    def __init__(self, program: Program) -> None:
        self.program, n = program, len(program.instructions)
        self.number = {id(instruction): i for i, instruction in enumerate(program.instructions)}
        self.launches = 0
        self.issued, self.lanes, self.divergent = (np.zeros(n, np.int64) for _ in range(3))
        self.sectors, self.least, self.conflicts = (np.zeros(n, np.int64) for _ in range(3))

    # --- called by the machine ----------------------------------------------------------------------------------------
    def idle(self, instruction: Instruction, lanes: int) -> None:
        """Count that `lanes` threads skip an instruction because of its predicate."""
        self.lanes[self.number[id(instruction)]] -= lanes

    def ran(self, first: int, stop: int, wave: Wave) -> None:
        if stop > first:
            self.issued[first:stop] += wave.warps()
            self.lanes[first:stop] += wave.lanes.size

    def branch(self, pc: int, taken: np.ndarray, wave: Wave) -> None:
        apart = taken.reshape(-1, WARP).any(axis=1) & (wave.active & ~taken).reshape(-1, WARP).any(axis=1)
        self.divergent[pc] += np.count_nonzero(apart)

    def access(self, instruction: Instruction, space: str, address: np.ndarray, width: int, lanes: np.ndarray) -> None:
        pc = self.number[id(instruction)]
        if space == "global":
            touched, least = sectors(address, width, lanes)
            self.sectors[pc] += touched
            self.least[pc] += least
        else:
            self.conflicts[pc] += conflicts(address, width, lanes)

    # --- asked by readers ---------------------------------------------------------------------------------------------
    def by_line(self) -> dict[str, int]:
        """Return a dict of the numbers of instructions by line of Python, such as "file.py:12", the largest first."""
        found: collections.Counter[str] = collections.Counter()
        for python, n in zip(self.program.python, self.issued, strict=True):
            found[python] += int(n)
        return dict(found.most_common())

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
            "bank conflicts": int(self.conflicts.sum()),
            "divergent branches": int(self.divergent.sum()),
            "issued fma": 0,
            "issued mma": 0,
            **{name: n for name, n in sorted(kinds.items()) if n},
        }
