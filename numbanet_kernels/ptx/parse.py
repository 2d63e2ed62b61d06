"""PTX text -> Program: the subset that NVVM writes for one kernel, as data.

    .reg .f32 %f<3>;                    program.registers["%f1"] = "f32", …
    .shared .align 4 .b8 tile[1088];    program.shared["tile"] = Variable(…)
    $L__BB0_2:                          program.labels["$L__BB0_2"] = number of the next instruction
    @!%p1 ld.global.f32 %f1, [%rd2+4];  Instruction(guard=("%p1", True), opcode="ld", modifiers=("global", "f32"),
                                                    operands=("%f1", Address("%rd2", 4)))

Registers, special registers, labels and symbols stay strings; numbers become `Number`, vectors tuples.
"""
from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

SIZES = {**{f"{kind}{bits}": bits // 8 for kind in "bsuf" for bits in (8, 16, 32, 64)}, "pred": 1, "bf16": 2, "f16x2": 4}


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
    """Named memory: `offset` bytes into its space, with initial bytes if it has any."""

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

    def size(self, space: str) -> int:
        """Bytes of a space's variables."""
        return max((v.offset + v.size for v in getattr(self, space).values()), default=0)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_PIECE = re.compile(r"""\s*(?:
    (?P<brace>[{}])
  | (?P<header>\.(?:version|target|address_size|file|loc|section)\b[^\n]*)
  | (?P<entry>(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\b[^{;]*)
  | (?P<label>[\w$.%]+)\s*:(?!:)
  | (?P<statement>[^;{}]+(?:\{[^{}]*\}[^;{}]*)*;)
)""", re.X)
_VARIABLE = re.compile(r"""
    (?:\.(?:visible|extern|common|weak)\s+)*\.(?P<space>shared|local|global|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?
    \.(?P<type>\w+)\s+(?P<name>[\w$%.]+)(?P<count>\[\d*\])?\s*(?:=\s*(?P<values>.*))?""", re.X | re.S)
_REGISTERS = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.*)", re.S)
_NUMBER = re.compile(r"""
    [+-]?(?:0[fF](?P<f32>[0-9a-fA-F]{8}) | 0[dD](?P<f64>[0-9a-fA-F]{16}) | (?P<hex>0[xX][0-9a-fA-F]+)U? | (?P<int>\d+)U?)$
    """, re.X)


def parse(text: str) -> Program:
    """The kernel in a PTX text.

    Raises
    ------
    PtxError
        If there is none, or more than one, or a statement is not understood; with its line.
    """
    text = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    program, position, depth = Program(), 0, 0
    while match := _PIECE.match(text, position):
        position = match.end()
        kind, piece = match.lastgroup, match.group(match.lastgroup).strip()
        line = text.count("\n", 0, match.start(kind)) + 1
        if kind == "brace":
            depth += 1 if piece == "{" else -1
        elif kind == "entry":
            _entry(program, piece, line)
        elif kind == "label":
            program.labels[piece] = len(program.instructions)
        elif kind == "statement":
            _statement(program, " ".join(piece[:-1].split()), line, inside=depth > 0)
    if text[position:].strip():
        raise PtxError(f"line {text.count(chr(10), 0, position) + 1}: not understood: {text[position:].split(chr(10))[0]}")
    if not program.name:
        raise PtxError("there is no .entry in this PTX")
    return program


def _entry(program: Program, piece: str, line: int) -> None:
    found = re.match(r"(?P<kind>[^(]*?\.(?:entry|func))\s*(?P<name>[\w$%.]+)\s*\((?P<parameters>.*)\)", piece, re.S)
    if found is None or ".func" in found["kind"] or program.name:
        raise PtxError(f"line {line}: only one .entry, and no .func, is understood: {piece.split()[0]}")
    program.name, offset = found["name"], 0
    for parameter in filter(None, (part.strip() for part in found["parameters"].split(","))):
        kind, name = re.fullmatch(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$%.]+)", parameter).groups()
        offset = -(-offset // SIZES[kind]) * SIZES[kind]
        program.parameters[name] = (offset, kind)
        offset += SIZES[kind]


def _statement(program: Program, piece: str, line: int, inside: bool) -> None:
    if piece.startswith((".pragma", ".extern .func")):
        return
    if found := _REGISTERS.fullmatch(piece):
        for name in (name.strip() for name in found["names"].split(",")):
            many = re.fullmatch(r"(.*)<(\d+)>", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            program.registers.update(dict.fromkeys(names, found["type"]))
    elif found := _VARIABLE.fullmatch(piece):
        _variable(program, found)
    elif inside:
        program.instructions.append(_instruction(piece, line))
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
    align, variables = int(found["align"] or width), getattr(program, space)
    variables[name] = Variable(size, -(-program.size(space) // align) * align, initial)


def _instruction(piece: str, line: int) -> Instruction:
    found = re.fullmatch(r"(?:@(?P<not>!?)(?P<guard>[\w%$]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>.*)", piece)
    if found is None:
        raise PtxError(f"line {line}: not understood: {piece}")
    opcode, *modifiers = re.split(r"(?<!:)\.", found["opcode"])
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", found["operands"])
    guard = (found["guard"], bool(found["not"])) if found["guard"] else None
    return Instruction(line, piece, guard, opcode, tuple(modifiers), tuple(_operand(o.strip()) for o in operands))


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
