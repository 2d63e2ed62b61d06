"""The semantics of the instructions: `steps(program)` returns a `Step` for each instruction, which runs it for a wave of
threads.

Arithmetic is in `operations`, memory in `accesses`, instructions of whole warps in `collectives`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as A
from .machine import SPECIAL, Wave, register_dtype, whole_blocks
from .operations import COMPARISONS, IGNORED, LOGIC, TYPES, arithmetic, types
from .parse import Instruction, Number, Program, PtxError
from .spaces import WINDOWS

Values = Callable[[Wave], Any]


@dataclasses.dataclass
class Step:
    """One decoded instruction.

    If `plain` is given, it runs the instruction for the running threads. Otherwise `kind` says what the instruction does:
    "branch" jumps to `target` if `condition` holds (always if it is None); "exit" ends threads; "call" runs `run` and then
    calls the function at `target`; "return" returns to the call after its `back`; "barrier" and "warp" wait until `complete`,
    and "warp" then runs `run`.
    """

    plain: Callable[[Wave], None] | None = None
    kind: str = ""
    target: int = -1
    condition: Values | None = None
    complete: Callable[[Wave, np.ndarray], np.ndarray] | None = None
    run: Callable[[Wave], None] | None = None
    back: Callable[[Wave], None] | None = None
    of: str = "block"


# --- operands ---------------------------------------------------------------------------------------------------------
def reader(program: Program, operand: Any, kind: str) -> Values:
    """Return a function that maps a wave to the operand, as an array (or one number) of the type `kind`."""
    dtype = TYPES[kind]
    if isinstance(operand, Number):
        value = _immediate(operand, dtype)
        return lambda wave: value
    if operand.startswith("!"):
        inner = reader(program, operand[1:], "pred")
        return lambda wave: ~inner(wave)
    if operand in program.registers:
        held = register_dtype(program.registers[operand])
        if held == dtype:
            return lambda wave: wave.registers[operand]
        if held.itemsize == dtype.itemsize:
            return lambda wave: wave.registers[operand].view(dtype)
        narrow = A.BITS[dtype.itemsize]
        return lambda wave: wave.registers[operand].view(A.BITS[held.itemsize]).astype(narrow).view(dtype)
    if operand.startswith("%"):
        if operand not in SPECIAL:
            raise PtxError(f"there is no special register {operand} in this machine")
        return lambda wave: wave.special[operand].astype(dtype)
    if operand in program.tables:
        return lambda wave: dtype.type(wave.launch.memory.address(wave.launch.tables[operand]))
    address = dtype.type(_place(program, operand))
    return lambda wave: address


def _immediate(number: Number, dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return np.bool_(number.value != 0)
    if number.floating:
        value = np.frombuffer(number.value.to_bytes(number.size, "little"), f"f{number.size}")[0]
        return value.view(dtype) if dtype.kind != "f" else dtype.type(value)
    return np.frombuffer((number.value % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little"), dtype)[0]


def _place(program: Program, name: str) -> int:
    """Return the address of a variable within its memory space."""
    for space in (program.shared, program.local, program.const, program.passed):
        if name in space:
            return space[name].offset
    if name == program.dynamic:
        return program.next("shared", 16)
    raise PtxError(f"there is no register or variable {name}")


# --- steps ------------------------------------------------------------------------------------------------------------
def steps(program: Program) -> list[Step]:
    """Return a `Step` for each instruction of a program; they are decoded once.

    Raises
    ------
    PtxError
        If the interpreter does not support an instruction; the message names its line.
    """
    if not hasattr(program, "steps"):
        found: list[Any] = [None] * len(program.instructions)
        for k, i in enumerate(program.instructions):
            try:
                found[k] = _step(program, i)
            except (PtxError, LookupError, ValueError) as error:
                problem = error if isinstance(error, PtxError) else _unknown(i)
                raise PtxError(f"{program.where(i)}: {problem}") from None
        program.steps = found  # set only after all instructions have been decoded
    return program.steps


def _unknown(i: Instruction) -> str:
    return f"this machine does not know the instruction {'.'.join((i.opcode, *i.modifiers))}"


def _step(program: Program, i: Instruction) -> Step:
    from . import accesses, calls, collectives

    guard = None
    if i.guard is not None:
        name, negated = i.guard
        guard = reader(program, f"!{name}" if negated else name, "pred")
    if i.opcode == "bra":
        return Step(kind="branch", target=program.labels[i.operands[0]], condition=guard)
    step = _plain(program, i) or accesses.step(program, i) or collectives.step(program, i) or calls.step(program, i)
    if step is None:
        raise PtxError(_unknown(i))
    if guard is not None:
        if step.plain is None:
            raise PtxError(f"this machine runs {i.opcode} only without a predicate")
        return Step(_guarded(step.plain, guard, i))
    return step


def _guarded(plain: Callable[[Wave], None], guard: Values, i: Instruction) -> Callable[[Wave], None]:
    def run(wave: Wave) -> None:
        before = wave.lanes.size
        with wave.where(guard(wave)):
            wave.counters.idle(i, before - wave.lanes.size)
            if wave.lanes.size:
                plain(wave)

    return run


def _plain(program: Program, i: Instruction) -> Step | None:
    if i.opcode in ("bar", "barrier") and set(i.modifiers) <= {"sync", "cta", "aligned"} and len(i.operands) == 1:
        return Step(kind="barrier", complete=whole_blocks)
    if i.opcode in IGNORED:
        return Step(lambda wave: None)
    if i.opcode == "trap":
        return Step(lambda wave: _trap(wave, i))
    if i.opcode == "setp":
        return Step(_setp(program, i))
    if i.opcode == "mov" and any(isinstance(o, tuple) for o in i.operands):
        return Step(_repack(program, i))
    if i.opcode == "cvta":
        return Step(_cvta(program, i))
    if i.opcode in ("addc", "subc", "madc") or (i.opcode in ("add", "sub", "mad") and "cc" in i.modifiers):
        return Step(_carried(program, i))
    found = arithmetic(i)
    if found is None:
        return None
    result, kinds, function = found
    if len(i.operands) - 1 != len(kinds) + (i.opcode == "lop3"):
        return None
    target, sources = i.operands[0], i.operands[1 : 1 + len(kinds)]
    dtype, read = TYPES[result], [reader(program, o, k) for o, k in zip(sources, kinds, strict=True)]

    def run(wave: Wave) -> None:
        value = function(*[r(wave) for r in read])
        wave.assign(target, value if value.dtype == dtype else value.astype(dtype))

    return Step(run)


def _trap(wave: Wave, i: Instruction) -> None:
    raise wave.error(i, "trap", wave.lanes[0])


def _setp(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of setp: p = a cmp b, combined with c if it is given; in p|q, q is the negation."""
    compare, kind = COMPARISONS[i.modifiers[0]], types(i)[-1]
    targets, (a, b) = i.operands[0].split("|"), (reader(program, o, kind) for o in i.operands[1:3])
    join = next((LOGIC[m] for m in i.modifiers if m in LOGIC), None)
    third = reader(program, i.operands[3], "pred") if join else None

    def run(wave: Wave) -> None:
        holds = compare(a(wave), b(wave))
        for target, value in zip(targets, (holds, ~holds)):
            wave.assign(target.strip(), join(value, third(wave)) if join else value)

    return run


def _repack(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of a mov between a register and a vector of its parts."""
    kind, (target, source) = types(i)[-1], i.operands
    parts = target if isinstance(target, tuple) else source
    part = f"b{8 * TYPES[kind].itemsize // len(parts)}"
    if isinstance(target, tuple):
        read = reader(program, source, kind.replace("u", "b").replace("s", "b"))

        def unpack(wave: Wave) -> None:
            pieces = np.broadcast_to(read(wave), wave.count).copy().view(TYPES[part]).reshape(wave.count, -1)
            for name, piece in zip(target, pieces.T, strict=True):
                wave.assign(name, np.ascontiguousarray(piece))

        return unpack
    read_parts = [reader(program, o, part) for o in source]

    def pack(wave: Wave) -> None:
        pieces = np.stack([np.broadcast_to(r(wave), wave.count) for r in read_parts], axis=1)
        wave.assign(target, np.ascontiguousarray(pieces).view(A.BITS[TYPES[kind].itemsize]).ravel())

    return pack


def _carried(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function that computes 32 bits of a longer sum: opcodes that end in `c` add the carry (or subtract the
    borrow), and .cc stores it.
    """
    kind, operation, low = types(i)[-1], i.opcode[:3], np.uint64(0xFFFFFFFF)
    if TYPES[kind].itemsize != 4:
        raise PtxError("this machine carries from 32 bits only")
    read = [reader(program, o, "u32") for o in i.operands[1:]]

    def run(wave: Wave) -> None:
        *factors, last = (np.uint64(r(wave)) for r in read)
        if operation == "mad":
            product = factors[0] * factors[1]
            factors = [product >> np.uint64(32) if "hi" in i.modifiers else product & low]
        carry = wave.carry.astype(np.uint64) if i.opcode.endswith("c") else np.uint64(0)
        total = factors[0] - last - carry if operation == "sub" else factors[0] + last + carry
        if "cc" in i.modifiers:
            wave.carry = np.where(wave.active, total >> np.uint64(32) != 0, wave.carry)
        wave.assign(i.operands[0], (total & low).astype(np.uint32))

    return run


def _cvta(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of cvta, which converts between addresses of one memory space and generic addresses."""
    space, kind = next(m for m in i.modifiers if m not in ("to",) and m not in TYPES), types(i)[-1]
    shift = TYPES[kind].type(WINDOWS.get(space, 0))
    read, target = reader(program, i.operands[1], kind), i.operands[0]
    return lambda wave: wave.assign(target, read(wave) - shift if "to" in i.modifiers else read(wave) + shift)
