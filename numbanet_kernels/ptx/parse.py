"""Parser of PTX: `parse` turns the text of one kernel and of the functions that it calls into a `Program`. It supports the
subset of PTX that NVVM, the compiler of Numba's kernels, writes.

    .reg .f32 %f<3>;                    program.registers["%f1"] = "f32", …
    .shared .align 4 .b8 tile[1088];    program.shared["tile"] = Variable(…)
    $L__BB0_2:                          program.labels["$L__BB0_2"] = number of the next instruction
    @!%p1 ld.global.f32 %f1, [%rd2+4];  Instruction(guard=("%p1", True), opcode="ld", modifiers=("global", "f32"),
                                                    operands=("%f1", Address("%rd2", 4)))

Registers, special registers, labels and symbols stay strings; numbers become `Number`; vectors and lists of parameters become
tuples. The number of its line is appended to a name that is declared in a function or within inner braces: "%f1$31". If the
text has .loc directives, each instruction also has its line of Python.
"""

from __future__ import annotations

import collections
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .program import CALLED, MOST_CALLS, SIZES, Address, Function, Instruction, Number, Program, PtxError, Variable, size_of

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.S)  # or a text, in which none begins
_PIECE = re.compile(
    r"""\s*(?:
    (?P<brace>[{}])
  | (?P<header>\.(?:version|target|address_size)\b[^\n]*|\.section\b[^{}]*\{[^{}]*\})
  | \.file\s+(?P<file>\d+\s+"[^"]*")[^\n]*
  | \.loc\s+(?P<loc>[^\n]*)
  | (?P<entry>(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\b[^{;]*(?=\{))
  | (?P<label>[\w$.%]+)\s*:(?!:)
  | (?P<statement>[^;{}]+(?:\{[^{}]*\}[^;{}]*)*;)
)""",
    re.X,
)
_VARIABLE = re.compile(
    r"""
    (?:\.(?:visible|extern|common|weak)\s+)*\.(?P<space>shared|local|global|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?
    \.(?P<type>\w+)\s+(?P<name>[\w$%.]+)(?P<count>\[\d*\])?\s*(?:=\s*(?P<values>.*))?""",
    re.X | re.S,
)
_LOC = re.compile(r"(?:^|inlined_at\s+)(\d+)\s+(\d+)")  # (file, line) of a .loc, and those where its function is inlined
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"', re.M)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_REGISTERS = re.compile(r"\.reg\s*\.(?P<type>\w+)\s+(?P<names>.*)", re.S)
_BOUND = re.compile(r"\.maxntid\s+(\d+(?:\s*,\s*\d+)*)")
_USED = re.compile(r'\.pragma\s+"used_bytes_mask\s+(0x[0-9a-fA-F]+)"')
_HEAD = re.compile(
    r"""
    (?:\.\w+\s+)*?\.(?P<kind>entry|func)\s*(?:\((?P<results>[^)]*)\))?\s*(?:\.noreturn\s+)?(?P<name>[\w$%.]+)\s*
    (?:\((?P<parameters>[^)]*)\))?""",
    re.X,
)
_PARAMETER = re.compile(
    r"""
    \.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+
    (?:\.ptr\s+(?:\.(?:global|shared|local|const)\s+)?(?:\.align\s+\d+\s+)?)?  # where it points to
    (?P<name>[\w$%.]+)(?:\[(?P<count>\d+)\])?""",
    re.X,
)
_NUMBER = re.compile(
    r"""
    [+-]?(?:0[fF](?P<f32>[0-9a-fA-F]{8}) | 0[dD](?P<f64>[0-9a-fA-F]{16}) | (?P<hex>0[xX][0-9a-fA-F]+)U? | (?P<int>\d+)U?)$
    """,
    re.X,
)


def _unescaped(path: str) -> str:
    """Return the path of a file as it is; PTX has the bytes of other letters than ASCII's in octal."""

    def byte(found: re.Match[bytes]) -> bytes:
        return bytes([int(found[1], 8)]) if len(found[1]) == 3 else found[1]

    return _ESCAPE.sub(byte, path.encode()).decode(errors="replace")


def parse(
    text: str, arguments: Iterable[tuple[str, str, int | None, str]] = (), lines: Callable[[], str] | None = None
) -> Program:
    """Return the `Program` of the kernel in a PTX text.

    `arguments` holds the types of the arguments of the Python function (`Kernel.arguments`); if it is given, `run` checks the
    arguments of a launch. `lines` is a function that returns the same PTX text with lines of Python; if it is given, errors
    name these lines.

    Raises
    ------
    PtxError
        If there is no kernel or more than one, or if a statement is not supported; the message names the line.
    """
    program, position, line, python = Program(text=text, arguments=tuple(arguments), lines=lines), 0, 1, ""
    text = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", " ", found[0]), text)
    # maps names of registers and variables to their new names, one dict for each enclosing brace
    scopes: list[dict[str, str]] = []
    name, own, problem = "", {}, "there is no .entry in this PTX"
    paths = {number: _unescaped(path) for number, path in _FILE.findall(text)}
    files = _names(paths)
    program.files = {name: paths[number] for number, name in files.items()}
    places: dict[tuple[str, str], str] = {}  # the text of the last .loc of each (file, line)
    while match := _PIECE.match(text, position):
        kind, piece = match.lastgroup, match.group(match.lastgroup).strip()
        line, position = line + text.count("\n", position, match.start(kind)), match.start(kind)
        if kind == "brace":
            scopes, own = ([*scopes, own], {}) if piece == "{" else (scopes[:-1], {})
        elif kind == "entry":
            name, own = _head(program, piece, line)
            places.clear()
            python, problem = "", f"line {line}: only one .entry is understood, not a .func alone"
        elif kind == "label":
            program.functions[name].labels[piece] = len(program.functions[name].instructions)
        elif kind == "statement":
            _statement(program, " ".join(piece[:-1].split()), line, python, scopes, name)
        elif kind == "loc":
            python = _python(files, places, *_LOC.findall(piece)) or python
        line, position = line + text.count("\n", position, match.end()), match.end()
    if text[position:].strip():
        raise PtxError(f"line {text.count(chr(10), 0, position) + 1}: not understood: {text[position:].split(chr(10))[0]}")
    if not program.name:
        raise PtxError(problem)
    _link(program)
    return program


def _link(program: Program) -> None:
    """Fill `program.instructions`: first the instructions of the kernel, then those of each function that is called."""
    due = [""]
    for name in due:
        function = program.functions.get(name)
        if function is None or function.start >= 0:
            continue  # there is no error here: a function without a body is refused when it is called
        function.start = len(program.instructions)
        program.instructions += function.instructions
        program.labels.update({name + label: function.start + at for label, at in function.labels.items()})
        due += [name for name in function.names() if name in program.functions]


def _names(paths: dict[str, str]) -> dict[str, str]:
    """Return the name of each file by its number: the last part of its path, or as many as tell it from the others."""
    parts = {number: pathlib.Path(path).parts for number, path in paths.items()}

    def name(own: tuple[str, ...], count: int) -> str:
        same = {other for other in parts.values() if other[-count:] == own[-count:]}
        return "/".join(own[-count:]) if len(same) == 1 or count >= len(own) else name(own, count + 1)

    return {number: name(own, 1) for number, own in parts.items()}


def _python(
    files: dict[str, str], places: dict[tuple[str, str], str], place: tuple[str, str], *callers: tuple[str, str]
) -> str:
    """Return a line of Python, a pair (file, line), and its callers as text, such as "here.py:3, called in there.py:12". A .loc
    has one caller; if this is inlined in its turn, `places` has the .loc of it, which comes before (PTX ISA, .loc).
    """
    known = [(f"{files[one[0]]}:{one[1]}", one) for one in (place, *callers) if one[0] in files and one[1] != "0"]
    text = CALLED.join([name for name, _ in known[:1]] + [places.get(one, name) for name, one in known[1:]])
    if known:
        places[known[0][1]] = text = CALLED.join(text.split(CALLED)[: MOST_CALLS + 1])
    return text


def _head(program: Program, piece: str, line: int) -> tuple[str, dict[str, str]]:
    """Parse the head of the kernel or of a function, and add it to the program. Return its name ("" for the kernel) and a dict
    that maps each result and parameter of a function to its name in `program.passed`; for the kernel, the dict is empty. Raise
    PtxError if this is a second kernel, or the head is not understood.
    """
    found = _HEAD.match(piece)
    if found is None or (found["kind"] == "entry" and program.name):
        raise PtxError(f"line {line}: only one .entry is understood: {piece.split()[0]}")
    results, parameters = (
        [_parameter(part.strip(), line) for part in (found[group] or "").split(",") if part.strip()]
        for group in ("results", "parameters")
    )
    if found["kind"] == "func":
        names = {name: f"{name}${line}" for name, *_ in (*results, *parameters)}
        for name, kind, align, count in (*results, *parameters):
            program.pass_by(names[name], SIZES[kind] * (count or 1), align or SIZES[kind])
        passed = (tuple(names[name] for name, *_ in some) for some in (results, parameters))
        program.functions[found["name"]] = Function(*passed)
        return found["name"], names
    program.name, program.functions[""], offset = found["name"], Function(), 0
    if bound := _BOUND.search(piece):
        program.most = math.prod(int(n) for n in bound[1].split(","))
    for name, kind, align, count in parameters:
        start = -(-offset // (align or SIZES[kind])) * (align or SIZES[kind])
        kind = kind if count is None else f"{kind}[{count}]"
        program.parameters[name] = (start, kind)
        offset = start + size_of(kind)
    return "", {}


def _parameter(piece: str, line: int) -> tuple[str, str, int | None, int | None]:
    """Return (name, type, alignment, count) of a parameter; alignment and count are None if they are not given."""
    found = _PARAMETER.fullmatch(piece)
    if found is None:
        raise PtxError(f"line {line}: this parameter is not understood: {piece}")
    return found["name"], found["type"], *(int(found[group]) if found[group] else None for group in ("align", "count"))


def _statement(program: Program, piece: str, line: int, python: str, scopes: list[dict[str, str]], function: str) -> None:
    """Parse a declaration or an instruction in the body of `function` ("" for the kernel), and add it to `program`."""

    def named(name: str) -> str:
        if len(scopes) < (1 if function else 2):
            return name
        scopes[-1][name] = f"{name}${line}"
        return scopes[-1][name]

    if found := _USED.fullmatch(piece):
        program.functions[function].used = int(found[1], 16)
        return
    if piece.startswith((".pragma", ".extern .func", ".func", ".visible .func", ".weak .func", ".callprototype")):
        return
    if piece.startswith(".branchtargets"):  # the label of the list is before it
        targets = tuple(part.strip() for part in piece.removeprefix(".branchtargets").split(","))
        program.functions[function].targets[next(reversed(program.functions[function].labels))] = targets
        return
    if piece.startswith(".param"):
        name, kind, align, count = _parameter(piece, line)
        program.pass_by(named(name), SIZES[kind] * (count or 1), align or SIZES[kind])
    elif found := _REGISTERS.fullmatch(piece):
        for name in (name.strip() for name in found["names"].split(",")):
            many = re.fullmatch(r"(.*)<(\d+)>", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            declared = {named(name): found["type"] for name in names}
            program.registers.update(declared)
            program.functions[function].registers += declared
    elif found := _VARIABLE.fullmatch(piece):
        _variable(program, found, named(found["name"]), function)
    elif scopes:
        own = program.functions[function]
        names = collections.ChainMap(*reversed(scopes))
        own.instructions.append(_instruction(piece, line, python, names, function, own.used))
        own.used = -1
    else:
        raise PtxError(f"line {line}: not understood: {piece}")


def _variable(program: Program, found: re.Match, name: str, function: str) -> None:
    width, space = SIZES[found["type"]], found["space"]
    if found["count"] == "[]":
        program.dynamic.add(name)
        return
    size, initial = width * int((found["count"] or "[1]")[1:-1]), b""
    if found["values"]:
        values = [_operand(v.strip()) for v in found["values"].strip("{} ").split(",")]
        if not all(isinstance(v, Number) for v in values):
            raise PtxError(f"{name}: a variable that holds the address of another is not in this machine")
        initial = b"".join((v.value % (1 << 8 * width)).to_bytes(width, "little") for v in values)
    if space in ("global", "const"):
        initial = initial.ljust(size, b"\0")  # PTX omits trailing zeros
    if space == "global":
        program.tables[name] = initial
        return
    getattr(program, space)[name] = Variable(size, program.next(space, int(found["align"] or width)), initial, function)


def _instruction(piece: str, line: int, python: str, names: Mapping[str, str], function: str, used: int) -> Instruction:
    """Parse an instruction. `names` maps registers and variables that are declared within braces to their new names."""
    renamed = re.sub(r"[\w%$]+", lambda word: names.get(word[0], word[0]), piece) if names else piece
    found = re.fullmatch(r"(?:@(?P<not>!?)(?P<guard>[\w%$]+)\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>.*)", renamed)
    if found is None:
        raise PtxError(f"line {line}: not understood: {piece}")
    opcode, *modifiers = re.split(r"(?<!:)\.", found["opcode"])
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s][^,]*", found["operands"])
    guard = (found["guard"], bool(found["not"])) if found["guard"] else None
    read = tuple(_operand(o.strip()) for o in operands)
    if opcode == "bra":
        read = (function + read[0],)  # each function has its own labels
    return Instruction(line, piece, guard, opcode, tuple(modifiers), read, python, function, used)


def _operand(text: str) -> Any:
    if text.startswith(("{", "(")):
        return tuple(_operand(part.strip()) for part in text[1:-1].split(",") if part.strip())
    if text.startswith("["):
        found = re.fullmatch(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?\d+)\s*)?\]", text)
        return text if found is None else Address(found[1], int(found[2] or 0))  # other addresses are those of textures
    number = _NUMBER.match(text)
    if number is None:
        return text
    if number["f32"] or number["f64"]:
        return Number(int(number["f32"] or number["f64"], 16), 4 if number["f32"] else 8)
    value = int(number["hex"], 16) if number["hex"] else int(number["int"])
    return Number(-value if text.startswith("-") else value)
