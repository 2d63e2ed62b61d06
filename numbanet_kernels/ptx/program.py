"""What a parsed PTX text is: a `Program` with its functions, instructions and variables."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

SIZES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bsuf" for bits in (8, 16, 32, 64)},
    "pred": 1,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
}
GAP = 1024  # number of bytes between two variables of a memory space; a multiple of the size of all banks
CALLED = ", called in "  # between a line and the line of the call, in texts
MOST_CALLS = 4  # calls that an error names
CODE = 5 << 60  # the address of the first function: in no memory space


class PtxError(RuntimeError):
    """An error in a kernel, or an instruction that the interpreter does not support. If threads ran into it, `at` is the wave,
    the instruction, and the thread of the wave, if there is one; `said` tells more of it, and `other` is the line of the other
    access of a race. `polled` says that the thread waits for memory that its instruction looks at.
    """

    at: tuple[Any, Instruction, int | None] | None = None
    said: tuple[str, ...] = ()
    other: str = ""
    polled = False

    def __str__(self) -> str:
        return ", ".join((super().__str__(), *self.said)) + (f"; the other access: {self.other}" if self.other else "")


def size_of(kind: str) -> int:
    """Return the bytes of a type such as "f32", or of an array such as "b8[24]"."""
    kind, _, count = kind.partition("[")
    return SIZES[kind] * int(count[:-1] or 1)


@dataclasses.dataclass(frozen=True)
class Number:
    """A constant operand: an integer, or the bits of a float of `size` bytes."""

    value: int
    size: int = 0  # 0 for an integer, whose width depends on the instruction

    @property
    def floating(self) -> bool:
        return self.size > 0


@dataclasses.dataclass(frozen=True)
class Address:
    """The operand [base + offset]; `base` is a register or the name of a variable."""

    base: str
    offset: int


class Variable(NamedTuple):
    """A variable: `size` bytes at `offset` of a memory space (`Program.next`); `initial` holds its initial bytes, if any, and
    `function` is the name of the function that declares it.
    """

    size: int
    offset: int
    initial: bytes = b""
    function: str = ""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, and its line in the text."""

    line: int
    text: str
    guard: tuple[str, bool] | None  # (predicate, True if it is negated)
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Any, ...]
    python: str = ""
    function: str = ""  # name of the function that contains the instruction; "" for the kernel itself
    used: int = -1  # a bit for each byte that a load reads: the others are not used, and may never have been written

    def where(self) -> str:
        text = f"{'.'.join((self.opcode, *self.modifiers))} {short(called(self))}" if self.opcode == "call" else self.text
        return f"line {self.line}: {text}"


@dataclasses.dataclass
class Function:
    """A function that a program calls. Its parameters and results are names of variables in `Program.passed`. The kernel is
    also a `Function`, without parameters and results.
    """

    results: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    registers: list[str] = dataclasses.field(default_factory=list)
    used: int = -1  # `Instruction.used` of the next instruction, while the function is parsed
    targets: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # lists of labels (.branchtargets)
    # index of the function's first instruction in the program; -1 if it is never called, so that it is not included
    start: int = -1

    def calls(self) -> list[str]:
        """Return the names of the functions that this function calls."""
        return [called(i) for i in self.instructions if i.opcode == "call"]

    def names(self) -> set[str]:
        """Return the names in its instructions; among them are the functions that it calls, or whose addresses it takes."""
        return {operand for i in self.instructions for operand in i.operands if isinstance(operand, str)}


def _names(operands: Iterable[Any]) -> Iterator[str]:
    """Yield the names in operands."""
    for operand in operands:
        if isinstance(operand, str):
            yield from (name.strip(" !") for name in operand.split("|"))
        elif isinstance(operand, Address):
            yield operand.base
        elif isinstance(operand, tuple):
            yield from _names(operand)


def called(i: Instruction) -> str:
    """Return the name of the function that the call `i` calls; for an indirect call, the register that holds its address."""
    return next(operand for operand in i.operands if isinstance(operand, str))


def short(name: str) -> str:
    """Return the name of a function as its source has it: the last part of a name that a compiler has mangled (Itanium ABI)."""
    parts, rest = [], name.removeprefix("_ZN").removeprefix("_Z") if name.startswith("_Z") else ""
    while found := re.match(r"\d+", rest):
        end = found.end() + int(found[0])
        parts.append(rest[found.end() : end])
        rest = rest[end:]
    return parts[-1] if parts else name


@dataclasses.dataclass
class Program:
    """A kernel, and the functions that it calls."""

    name: str = ""
    parameters: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)  # maps a name to (offset, type)
    most: int | None = None  # the most threads of a block (.maxntid), if the kernel has launch bounds
    registers: dict[str, str] = dataclasses.field(default_factory=dict)  # maps a name to a type
    shared: dict[str, Variable] = dataclasses.field(default_factory=dict)
    local: dict[str, Variable] = dataclasses.field(default_factory=dict)
    const: dict[str, Variable] = dataclasses.field(default_factory=dict)
    passed: dict[str, Variable] = dataclasses.field(default_factory=dict)  # the .param variables of calls
    tables: dict[str, bytes] = dataclasses.field(default_factory=dict)  # the bytes of the .global variables
    dynamic: set[str] = dataclasses.field(default_factory=set)  # names of the shared memory whose size the launch sets
    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    functions: dict[str, Function] = dataclasses.field(default_factory=dict)  # by name; "" is the kernel itself
    text: str = dataclasses.field(default="", repr=False)  # the PTX
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # maps the files that `python` names to their paths
    lines: Callable[[], str] | None = None  # returns the same PTX text with lines of Python, if it can be compiled in that way
    arguments: tuple[tuple[str, str, int | None, str], ...] = ()  # the result of `Kernel.arguments`, if it is known

    def where(self, instruction: Instruction) -> str:
        """Return the line of Python of an instruction if it is known, and its line in the PTX text."""
        python = self.python[self.instructions.index(instruction)]
        return f"{python} (PTX {instruction.where()})" if python else instruction.where()

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        """The index of each instruction, by its `id`."""
        return {id(instruction): k for k, instruction in enumerate(self.instructions)}

    @functools.cached_property
    def python(self) -> list[str]:
        """The line of Python of each instruction, such as "file.py:12"; "" if it is unknown. A library function has no lines of
        Python: its instructions get the line of its call, if the program has only one call of it.
        """
        found = self._lines()
        for name, function in self.functions.items():
            own = slice(function.start, function.start + len(function.instructions))
            calls = {found[k] for k, i in enumerate(self.instructions) if i.opcode == "call" and called(i) == name}
            if function.start > 0 and len(calls) == 1 and not any(found[own]):
                found[own] = [*calls] * len(function.instructions)
        return found

    def _lines(self) -> list[str]:
        """Return the line of Python of each instruction. If `lines` returns a text with lines, the instructions of both texts
        are matched by their opcodes: nearly all are equal. The others keep the lines of this text, if it has any.
        """
        found = [i.python for i in self.instructions]
        if self.lines is None:
            return found
        from .parse import parse

        try:
            compiled = parse(self.lines())
        except Exception:  # some kernels cannot be compiled with lines of Python; errors then do not name them
            return found
        others, self.files = compiled.instructions, {**self.files, **compiled.files}
        kinds = [[(i.opcode, i.modifiers) for i in some] for some in (self.instructions, others)]
        for mine, other, count in difflib.SequenceMatcher(None, *kinds, autojunk=False).get_matching_blocks():
            for k, i in enumerate(others[other : other + count], mine):
                found[k] = i.python or found[k]
        return found

    @functools.cached_property
    def recursive(self) -> set[str]:
        """The names of the functions that may call themselves, directly or by others."""
        return {name for name in self.functions if any(name in self.reached(other) for other in self.functions[name].calls())}

    @functools.cached_property
    def fenced(self) -> bool:
        """Whether an instruction orders accesses of its thread, so that a launch notes fences."""
        from .fences import is_fence

        return any(map(is_fence, self.instructions))

    @functools.cached_property
    def partial(self) -> bool:
        """Whether a barrier of a warp may be one of a part of it."""
        masks = [i.operands[-1] for i in self.instructions if i.opcode in ("bar", "barrier") and "warp" in i.modifiers]
        return any(not isinstance(mask, Number) or ~mask.value & 0xFFFFFFFF for mask in masks)

    @functools.cached_property
    def again(self) -> frozenset[int]:
        """The indices of the calls by which a function may be called again before it has returned."""
        calls = ((k, i) for k, i in enumerate(self.instructions) if i.opcode == "call" and called(i) in self.functions)
        return frozenset(k for k, i in calls if i.function in self.reached(called(i)))

    @functools.cached_property
    def mentions(self) -> collections.Counter[str]:
        """How often each name occurs in the instructions."""
        return collections.Counter(name for i in self.instructions for name in _names((i.guard or ())[:1] + i.operands))

    @functools.cached_property
    def atomics(self) -> dict[tuple[str, Address], int]:
        """The line of the last atomic instruction of each (function, `origin` of an address)."""
        atomic = [i for i in self.instructions if i.opcode in ("atom", "red")]
        return {(i.function, self.origin(o)): i.line for i in atomic for o in i.operands if isinstance(o, Address)}

    def origin(self, address: Address) -> Address:
        """Return an equal address that is no sum of a register and a constant, as far as that is known."""
        base, offset = address.base, address.offset
        while base in self._sums:
            base, more = self._sums[base]
            offset += more
        return Address(base, offset)

    @functools.cached_property
    def _sums(self) -> dict[str, tuple[str, int]]:
        """The register and the constant whose sum a register is, for 64-bit registers that one instruction writes."""
        written = collections.Counter(
            name for i in self.instructions if i.operands and i.opcode not in ("st", "red") for name in _names(i.operands[:1])
        )
        found = {}
        for i in self.instructions:
            if i.opcode == "add" and i.modifiers in (("s64",), ("u64",)) and i.guard is None:
                target, source, more = i.operands
                if isinstance(more, Number) and isinstance(source, str) and written[target] == 1 and written[source] == 1:
                    found[target] = source, more.value
        return found

    @functools.cached_property
    def addresses(self) -> dict[str, int]:
        """The address of each function, for calls through pointers."""
        return {name: CODE + 16 * k for k, name in enumerate(self.functions) if name}

    def reached(self, name: str) -> set[str]:
        """Return the names of a function and of all functions that it calls, directly or by others."""
        due = [name]
        for other in due:
            calls = self.functions[other].calls() if other in self.functions else []
            due += [found for found in calls if found not in due]
        return set(due)

    def size(self, space: str) -> int:
        """Return the number of bytes that the variables of a memory space take on a GPU, where there are no gaps."""
        return max((v.offset + v.size - GAP * k for k, v in enumerate(getattr(self, space).values())), default=0)

    def next(self, space: str, align: int) -> int:
        """Return the offset at which the next variable of a memory space is placed: the offset on a GPU plus one gap for each
        earlier variable. So an access beyond the end of a variable does not hit another variable. A gap is a multiple of the
        size of all banks, so that bank conflicts are those of the GPU.
        """
        return -(-self.size(space) // align) * align + GAP * len(getattr(self, space))

    def pass_by(self, name: str, size: int, align: int) -> None:
        """Add a variable to `passed`. Variables in `passed` are addressed only by name, so there are no gaps between them."""
        end = max((v.offset + v.size for v in self.passed.values()), default=0)
        self.passed[name] = Variable(size, -(-end // align) * align)

    def places(self, space: str, dynamic: int = 0) -> list[tuple[int, int]]:
        """Return (offset, size) of each variable of the memory space `space`. If `dynamic` > 0, there is also an entry for the
        dynamic shared memory, whose size of `dynamic` bytes the launch sets.
        """
        found = [(v.offset, v.size) for v in getattr(self, space).values()]
        return [*found, (self.next(space, 16), dynamic)] if dynamic else found
