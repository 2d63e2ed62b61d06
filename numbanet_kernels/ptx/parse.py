"""PTX text -> Program: the subset that NVVM writes for one kernel, as data.

    .reg .f32 %f<3>;                    program.registers["%f1"] = "f32", …
    .shared .align 4 .b8 tile[1088];    program.shared["tile"] = Variable(…)
    $L__BB0_2:                          program.labels["$L__BB0_2"] = number of the next instruction
    @!%p1 ld.global.f32 %f1, [%rd2+4];  Instruction(guard=("%p1", True), opcode="ld", modifiers=("global", "f32"),
                                                    operands=("%f1", Address("%rd2", 4)))

Registers, special registers, labels and symbols stay strings; numbers become `Number`, vectors tuples. Where the text says from
which line of Python an instruction comes (.loc), it is kept as `python`, "file.py:12".
"""
from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

SIZES = {**{f"{kind}{bits}": bits // 8 for kind in "bsuf" for bits in (8, 16, 32, 64)}, "pred": 1, "bf16": 2, "f16x2": 4}
GAP = 1024  # between variables of one space: a whole number of times around the banks


class PtxError(RuntimeError):
    """What a kernel did wrong, or what this machine does not know."""


@dataclasses.dataclass(frozen=True)
class Number:
    """An immediate: an integer, or the bits of a float of `size` bytes."""

    value: int
    size: int = 0  # 0: an integer, as wide as its use

    @property
    def floating(self) -> bool:
        return self.size > 0


@dataclasses.dataclass(frozen=True)
class Address:
    """[base + offset], base a register or the name of a variable."""

    base: str
    offset: int


class Variable(NamedTuple):
    """Named memory: `offset` bytes into its space (`Program.next`), with initial bytes if it has any."""

    size: int
    offset: int
    initial: bytes = b""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, and the line of the text where it stands."""

    line: int
    text: str
    guard: tuple[str, bool] | None  # (predicate, whether negated)
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Any, ...]
    python: str = ""

    def where(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclasses.dataclass
class Program:
    """A kernel."""

    name: str = ""
    parameters: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)  # name -> (offset, type)
    registers: dict[str, str] = dataclasses.field(default_factory=dict)               # name -> type
    shared: dict[str, Variable] = dataclasses.field(default_factory=dict)
    local: dict[str, Variable] = dataclasses.field(default_factory=dict)
    const: dict[str, Variable] = dataclasses.field(default_factory=dict)
    tables: dict[str, bytes] = dataclasses.field(default_factory=dict)                 # .global variables
    dynamic: str | None = None                                                         # shared memory sized by the launch
    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    lines: Callable[[], str] | None = None  # the text with the lines of Python, for who asks
    arguments: tuple[tuple[str, str, int | None], ...] = ()  # (name, dtype, axes) of what Python gives, if known

    def where(self, instruction: Instruction) -> str:
        """The line of the text, and that of Python if it is known."""
        python = self.python[self.instructions.index(instruction)]
        return instruction.where() + (f" ({python})" if python else "")

    @functools.cached_property
    def python(self) -> list[str]:
        """Of each instruction the line of Python, "file.py:12", or "". Where another text has the lines, its instructions are
        matched with these by what they do: nearly all are the same."""
        found = [i.python for i in self.instructions]
        if any(found) or self.lines is None:
            return found
        try:
            others = parse(self.lines()).instructions
        except Exception:  # not every kernel compiles with lines: what has gone wrong is told without them
            return found
        kinds = [[(i.opcode, i.modifiers) for i in some] for some in (self.instructions, others)]
        for mine, other, count in difflib.SequenceMatcher(None, *kinds, autojunk=False).get_matching_blocks():
            found[mine:mine + count] = [i.python for i in others[other:other + count]]
        return found

    def size(self, space: str) -> int:
        """Bytes of a space's variables, as a card has them."""
        return max((v.offset + v.size - GAP * k for k, v in enumerate(getattr(self, space).values())), default=0)

    def next(self, space: str, align: int) -> int:
        """Where another variable of a space begins: as on a card, and a gap further for each one before it, so that what runs
        over the end of one lands in none, and banks stay the same."""
        return -(-self.size(space) // align) * align + GAP * len(getattr(self, space))

    def places(self, space: str, dynamic: int = 0) -> list[tuple[int, int]]:
        """(offset, size) of a space's variables, and of memory sized by the launch."""
        found = [(v.offset, v.size) for v in getattr(self, space).values()]
        return [*found, (self.next(space, 16), dynamic)] if dynamic else found


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_PIECE = re.compile(r"""\s*(?:
    (?P<brace>[{}])
  | (?P<header>\.(?:version|target|address_size)\b[^\n]*|\.section\b[^{}]*\{[^{}]*\})
  | \.file\s+(?P<file>\d+\s+"[^"]*")[^\n]*
  | \.loc\s+(?P<loc>[^\n]*)
  | (?P<entry>(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\b[^{;]*(?=\{))
  | (?P<label>[\w$.%]+)\s*:(?!:)
  | (?P<statement>[^;{}]+(?:\{[^{}]*\}[^;{}]*)*;)
)""", re.X)
_VARIABLE = re.compile(r"""
    (?:\.(?:visible|extern|common|weak)\s+)*\.(?P<space>shared|local|global|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?
    \.(?P<type>\w+)\s+(?P<name>[\w$%.]+)(?P<count>\[\d*\])?\s*(?:=\s*(?P<values>.*))?""", re.X | re.S)
_LOC = re.compile(r"(?:^|inlined_at\s+)(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_REGISTERS = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.*)", re.S)
_NUMBER = re.compile(r"""
    [+-]?(?:0[fF](?P<f32>[0-9a-fA-F]{8}) | 0[dD](?P<f64>[0-9a-fA-F]{16}) | (?P<hex>0[xX][0-9a-fA-F]+)U? | (?P<int>\d+)U?)$
    """, re.X)


def parse(text: str, arguments: Iterable[tuple[str, str, int | None]] = (), lines: Callable[[], str] | None = None) -> Program:
    """The kernel in a PTX text.

    With `arguments`, what its Python function takes (`Kernel.arguments`), `run` checks what it is given; with `lines`, which
    gives the text with the lines of Python, errors name these.

    Raises
    ------
    PtxError
        If there is none, or more than one, or a statement is not understood; with its line.
    """
    text = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    program, position, line, python = Program(arguments=tuple(arguments), lines=lines), 0, 1, ""
    scopes: list[dict[str, str]] = []  # what registers are called, of each pair of braces around
    skipped, problem = False, "there is no .entry in this PTX"
    files = {number: pathlib.Path(path).name for number, path in _FILE.findall(text)}
    while match := _PIECE.match(text, position):
        kind, piece = match.lastgroup, match.group(match.lastgroup).strip()
        line, position = line + text.count("\n", position, match.start(kind)), match.start(kind)
        if kind == "brace":
            scopes = [*scopes, {}] if piece == "{" else scopes[:-1]
            skipped = skipped and bool(scopes)
        elif skipped:
            pass
        elif kind == "entry":
            skipped = _entry(program, piece, line)  # a function: who calls it is refused
            problem = f"line {line}: only one .entry, and no .func, is understood" if skipped else problem
        elif kind == "label":
            program.labels[piece] = len(program.instructions)
        elif kind == "statement":
            _statement(program, " ".join(piece[:-1].split()), line, python, scopes)
        elif kind == "loc":
            python = _python(files, *_LOC.findall(piece)) or python
        line, position = line + text.count("\n", position, match.end()), match.end()
    if text[position:].strip():
        raise PtxError(f"line {text.count(chr(10), 0, position) + 1}: not understood: {text[position:].split(chr(10))[0]}")
    if not program.name:
        raise PtxError(problem)
    return program


def _python(files: dict[str, str], place: tuple[str, str], *callers: tuple[str, str]) -> str:
    """Of (file, line), and where that was called: "here.py:3, called in there.py:12"."""
    return ", called in ".join(f"{files[file]}:{line}" for file, line in (place, *callers) if file in files and line != "0")


def _entry(program: Program, piece: str, line: int) -> bool:
    """Reads the head of a kernel; True of a function, which is none."""
    if re.match(r"[^(]*\.func\b", piece):
        return True
    found = re.match(r"(?P<kind>[^(]*?\.(?:entry|func))\s*(?P<name>[\w$%.]+)\s*\((?P<parameters>.*)\)", piece, re.S)
    if found is None or program.name:
        raise PtxError(f"line {line}: only one .entry is understood: {piece.split()[0]}")
    program.name, offset = found["name"], 0
    for parameter in filter(None, (part.strip() for part in found["parameters"].split(","))):
        kind, name = re.fullmatch(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$%.]+)", parameter).groups()
        offset = -(-offset // SIZES[kind]) * SIZES[kind]
        program.parameters[name] = (offset, kind)
        offset += SIZES[kind]
    return False


def _statement(program: Program, piece: str, line: int, python: str, scopes: list[dict[str, str]]) -> None:
    if piece.startswith((".pragma", ".param", ".extern .func", ".func", ".visible .func", ".weak .func")):
        return
    if found := _REGISTERS.fullmatch(piece):
        for name in (name.strip() for name in found["names"].split(",")):
            many = re.fullmatch(r"(.*)<(\d+)>", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            scopes[-1].update({name: f"{name}${line}" if len(scopes) > 1 else name for name in names})
            program.registers.update({scopes[-1][name]: found["type"] for name in names})
    elif found := _VARIABLE.fullmatch(piece):
        _variable(program, found)
    elif scopes:
        program.instructions.append(_instruction(piece, line, python, collections.ChainMap(*scopes[:0:-1])))
    else:
        raise PtxError(f"line {line}: not understood: {piece}")


def _variable(program: Program, found: re.Match) -> None:
    width, name, space = SIZES[found["type"]], found["name"], found["space"]
    if found["count"] == "[]":
        program.dynamic = name
        return
    size, initial = width * int((found["count"] or "[1]")[1:-1]), b""
    if found["values"]:
        values = [_operand(v.strip()).value for v in found["values"].strip("{} ").split(",")]
        initial = b"".join((v % (1 << 8 * width)).to_bytes(width, "little") for v in values)
    if space == "global":
        program.tables[name] = initial.ljust(size, b"\0")
        return
    getattr(program, space)[name] = Variable(size, program.next(space, int(found["align"] or width)), initial)


def _instruction(piece: str, line: int, python: str, called: Mapping[str, str]) -> Instruction:
    """`called`: the registers that have another name within the braces here."""
    renamed = re.sub(r"[\w%$]+", lambda word: called.get(word[0], word[0]), piece) if called else piece
    found = re.fullmatch(r"(?:@(?P<not>!?)(?P<guard>[\w%$]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>.*)", renamed)
    if found is None:
        raise PtxError(f"line {line}: not understood: {piece}")
    opcode, *modifiers = re.split(r"(?<!:)\.", found["opcode"])
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", found["operands"])
    guard = (found["guard"], bool(found["not"])) if found["guard"] else None
    return Instruction(line, piece, guard, opcode, tuple(modifiers), tuple(_operand(o.strip()) for o in operands), python)


def _operand(text: str) -> Any:
    if text.startswith("{"):
        return tuple(_operand(part.strip()) for part in text[1:-1].split(","))
    if text.startswith("["):
        base, offset = re.fullmatch(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?\d+)\s*)?\]", text).groups()
        return Address(base, int(offset or 0))
    number = _NUMBER.match(text)
    if number is None:
        return text
    if number["f32"] or number["f64"]:
        return Number(int(number["f32"] or number["f64"], 16), 4 if number["f32"] else 8)
    value = int(number["hex"], 16) if number["hex"] else int(number["int"])
    return Number(-value if text.startswith("-") else value)
