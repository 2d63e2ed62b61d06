"""Modules of the emulated card: PTX texts that were loaded, their kernels and variables, and the launch of a kernel."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import ptx
from ..ptx.instructions import steps
from ..ptx.machine import Launch
from ..ptx.program import size_of
from . import model
from .driver import Driver
from .faults import Array, explained
from .heap import LEAK, Owed
from .ptx_text import entries, linked
from .sources import shared_arrays

_numbers = itertools.count(1)


class Module:
    """PTX texts that are linked and loaded. The driver of the card holds the module's variables in the card's memory.
    `registers` is the most that a thread may have; 0 if there is no bound.
    """

    def __init__(self, driver: Driver, texts: Sequence[str], registers: int = 0) -> None:
        self.driver, self.texts, self.registers, self.handle = driver, list(texts), registers, next(_numbers)
        driver.modules[self.handle] = self
        self.kernels: dict[str, Kernel] = {}
        self.tables: dict[str, np.ndarray] = {}  # the memory of each variable, by its name

    def get_kernel(self, name: str | bytes) -> Kernel:
        """Return the kernel with this name."""
        name = name.decode() if isinstance(name, bytes) else name
        if name not in self.kernels:
            self.kernels[name] = Kernel(self, name)
        return self.kernels[name]

    def place_all(self) -> None:
        """Give all variables their memory, which is otherwise done when a kernel is first launched."""
        found = [name for text in self.texts for name in entries(text)]
        if found:
            self.get_kernel(found[0]).program  # noqa: B018  parsing places what it finds

    def place(self, variables: dict[str, bytes]) -> dict[str, np.ndarray]:
        """Return the memory of the variables; allocate those that have none yet, with their first values."""
        for name, initial in variables.items():
            if name not in self.tables:
                made = self.driver.heap.allocate(len(initial), f"variable {name}")
                made.store.data[:] = np.frombuffer(initial, np.uint8)
                made.written(0, len(initial))
                self.tables[name] = made.store.data
                self.driver.symbols[self.handle, name] = made.start, len(initial)
        return {name: self.tables[name] for name in variables}


class Kernel:
    """A kernel of a module. `lines`, if given, returns its PTX with lines of Python, for errors."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name, self.handle = module, name, self
        self.called = name  # its name in errors
        self.names: dict[int, str] = {}  # the names of the arguments, by the `id` of their values
        self.arrays: list[Array] = []  # the arrays of the next launch
        self.pointers = False  # whether other arguments of it may point to memory
        self.lines: Callable[[], str] | None = None
        self.allowed = 0  # bytes of dynamic shared memory that the program has asked for, if more than a block has otherwise
        self.types = ""  # the names and types of its arguments
        self.source: tuple[Any, dict[str, Any]] = None, {}  # the Python function, and Numba's types of its variables

    @functools.cached_property
    def program(self) -> ptx.Program:
        """The kernel as the machine reads it. Raise PtxError if it holds what the machine does not know."""
        found = ptx.parse(linked(self.module.texts, self.name), lines=self._lines)
        self.module.place(found.tables)
        return found

    def _lines(self) -> str:
        if self.lines is None:
            raise LookupError("no lines of Python are known")
        return self.lines()

    @property
    def shared(self) -> int:
        """Bytes of static shared memory of a block."""
        return self.program.size("shared")

    @property
    def attributes(self) -> SimpleNamespace:
        """What a driver tells of a kernel. The number of registers is a bound: no register is used twice before assembly."""
        try:
            program, most = self.program, self.most
        except ptx.PtxError:  # the launch reports it
            program, most = ptx.Program(), model.THREADS
        words = sum(2 if kind.endswith("64") else 1 for kind in program.registers.values() if kind != "pred")
        return SimpleNamespace(
            num_regs=min(max(words, 16), self.module.registers or model.SHEET.of_thread),
            const_size_bytes=program.size("const"),
            local_size_bytes=program.size("local"),
            shared_size_bytes=program.size("shared"),
            max_threads_per_block=most,
        )

    @property
    def most(self) -> int:
        """The most threads of a block: those of the kernel's launch bounds, or of any block."""
        return self.program.most or model.THREADS

    def launch(
        self, grid: Sequence[int], block: Sequence[int], dynamic: int, arguments: Sequence[Any], stream: int = 0
    ) -> None:
        """Run the kernel on the PTX machine.

        Raises
        ------
        PtxError
            If the kernel does something wrong; the message names the line, the thread and the block.
        """
        driver, program = self.module.driver, self.program
        steps(program)  # raises PtxError for what the machine does not know, which is no fault of the kernel
        _check(driver, self, grid, block, dynamic)
        counters, failed = ptx.Counters(program) if driver.counting else ptx.Uncounted(), True
        counters.launched(grid, block, dynamic)
        if driver.counting:
            program.python  # noqa: B018  the lines of Python, which are compiled in this context alone
        with driver.launching():
            driver.heap.passed(self.arrays, limit=not self.pointers)
            owed = set(driver.heap.owed)
            try:
                _OnCard(self, grid, block, dynamic, _packed(program, arguments, self.called), counters).run()
                failed = False
            except ptx.PtxError as error:
                for address in set(driver.heap.owed) - owed:  # what would have been freed after the error
                    del driver.heap.owed[address]
                driver.report(explained(error, self.arrays, shared_arrays(program, *self.source, dynamic)))
            finally:
                for counted in driver.counting:
                    counted.add(self, counters, failed)
            if problem := driver.order.ran(self.called, stream, driver.heap.touched, program):
                driver.report(ptx.PtxError(problem))


class _OnCard(Launch):
    """A launch that uses the card's memory and the variables of the kernel's module."""

    plain = True

    def __init__(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        dynamic: int,
        parameters: bytes,
        counters: ptx.Counters | ptx.Uncounted,
    ) -> None:
        super().__init__(kernel.program, grid, block, parameters, True, dynamic, counters, kernel.called)
        self.memory = kernel.module.driver.heap
        self.tables = kernel.module.place(kernel.program.tables)

    def allocated(self, wave: Any, instruction: Any, lane: int, address: int) -> None:
        """Note the line and the thread of a malloc, whose memory a kernel has to free."""
        said = str(wave.error(instruction, f"{LEAK} by malloc, never freed: allocated here", lane))
        line = f"{self.name}, {wave.program.where(instruction)}"
        self.memory.owed[address] = Owed(self.memory.at(address).size, line, said)


def _check(driver: Driver, kernel: Kernel, grid: Sequence[int], block: Sequence[int], dynamic: int) -> None:
    """Raise the driver's error if a card would refuse the launch."""
    problem = ""
    if any(n < 1 for n in (*grid, *block)) or any(n > most for n, most in zip(grid, model.GRID)):
        problem = f"a grid of {tuple(grid)} blocks of {tuple(block)} threads: lengths are from 1 to {model.GRID}"
    elif math.prod(block) > kernel.most or any(n > most for n, most in zip(block, model.BLOCK)):
        problem = f"a block of {tuple(block)} threads: {kernel.most} are the most, and {model.BLOCK} along its axes"
    else:
        problem = _too_much(kernel, dynamic)
    if problem:
        raise driver.fail_to_launch("CUDA_ERROR_INVALID_VALUE", f"{kernel.called}: {problem}")


def _too_much(kernel: Kernel, dynamic: int) -> str:
    """Return a text that says which memory is more than a block or a thread may have; "" if none is."""
    if (local := kernel.program.size("local")) > model.LOCAL:
        return f"{local} bytes of local memory: a thread has at most {model.LOCAL}, so use a smaller cuda.local.array"
    if kernel.shared > model.SHARED:
        return (
            f"{kernel.shared} bytes of static shared memory: the most are {model.SHARED}, so use dynamic shared memory "
            "(cuda.shared.array(0, dtype), and its bytes as the fourth number of the launch), which may be larger"
        )
    if dynamic <= max(kernel.allowed, model.SHARED - kernel.shared):
        return ""
    most = model.SHARED_MOST - kernel.shared
    problem = f"{dynamic} bytes of dynamic shared memory and {kernel.shared} static ones"
    if dynamic > most:
        return f"{problem}: the most are {model.SHARED_MOST} together"
    return (
        f"{problem}: more than {model.SHARED} together must be asked for before the launch, by cuKernelSetAttribute("
        f"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {dynamic}, kernel, device) of the driver"
    )


def _packed(program: ptx.Program, arguments: Sequence[Any], name: str) -> bytes:
    """Return the bytes of the parameters; the arguments are integers, booleans, and numbers of ctypes, in their order."""
    if len(arguments) != len(program.parameters):
        raise ptx.PtxError(f"{name} has {len(program.parameters)} parameters, got {len(arguments)}")
    memory = bytearray(max((offset + size_of(kind) for offset, kind in program.parameters.values()), default=0))
    for value, (offset, kind) in zip(arguments, program.parameters.values(), strict=True):
        size = size_of(kind)
        value = int(value) if isinstance(value, (bool, np.bool_, np.integer)) else value
        given = value.to_bytes(8, "little", signed=value < 0) if isinstance(value, int) else bytes(value)
        memory[offset : offset + size] = given.ljust(size, b"\0")[:size]
    return bytes(memory)
