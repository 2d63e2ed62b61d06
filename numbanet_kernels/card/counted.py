"""What kernels did while a context counted: `Counted` has a `KernelCounts` for each kernel and each shape of its blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ..ptx import Counters, Line
from .assembly import Assembled, assembled
from .sheets import Bound, Occupancy, Sheet

if TYPE_CHECKING:
    from .modules import Kernel


class Figures(NamedTuple):
    """What a data sheet says of a kernel. `assembled` is a sentence if the number of registers is not known; the occupancy is
    then what other limits allow.
    """

    assembled: Assembled | str
    shared: int  # bytes of a block
    local: int  # bytes of a thread, but for spilled registers
    occupancy: Occupancy
    bound: Bound


class KernelCounts:
    """The counters of one kernel, launched in blocks of one shape.

    Attributes
    ----------
    name, types : str
        The name of the kernel, and the names and types of its arguments.
    counters : Counters
        The counters of all launches, by instruction; `counters.lines()` has those of each line of Python.
    block : tuple of int
        The lengths of the blocks, or of most of them.
    dynamic : int
        Bytes of dynamic shared memory.
    failed : int
        The number of launches that ended with an error: their counters stop there.
    """

    def __init__(self, name: str, types: str, counters: Counters, most: int = 0) -> None:
        self.name, self.types, self.counters, self.most, self.failed = name, types, counters, most, 0
        ((shape, _),) = counters.shapes.most_common(1)
        self.block, self.dynamic = shape.block, shape.dynamic

    def __repr__(self) -> str:
        return f"KernelCounts({self.name}, block {self.block}, {self.counters.launches} launches)"

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.block)

    @property
    def blocks(self) -> int:
        """The number of blocks of all launches."""
        return sum(n * math.prod(shape.grid) for shape, n in self.counters.shapes.items())

    def figures(self, sheet: Sheet) -> Figures:
        """Return what a data sheet says of this kernel."""
        program = self.counters.program
        found = assembled(program.text, sheet.capability, self.most)
        registers = found.registers if isinstance(found, Assembled) else 0
        shared = program.size("shared") + self.dynamic
        return Figures(
            found, shared, program.size("local"), sheet.occupancy(self.threads, shared, registers), sheet.bound(self.total)
        )

    @property
    def lines(self) -> list[Line]:
        """The counters of each line of Python."""
        return self.counters.lines()

    @property
    def total(self) -> Line:
        """The sums over all lines."""
        return self.counters.total()


class Counted:
    """The counters of the launches in a context."""

    def __init__(self) -> None:
        self.kernels: dict[object, KernelCounts] = {}

    def add(self, kernel: Kernel, counters: Counters, failed: bool) -> None:
        """Add a launch."""
        (shape,) = counters.shapes
        key = id(counters.program), shape.block, shape.dynamic  # what is counted keeps its program
        if key not in self.kernels:
            own = Counters(counters.program)
            own.add(counters)
            self.kernels[key] = KernelCounts(kernel.called, kernel.types, own, kernel.module.registers)
        else:
            self.kernels[key].counters.add(counters)
        self.kernels[key].failed += failed
