"""The semantics of the instructions: `steps(program)` returns a `Step` for each instruction, which runs it for a wave of
threads.

What a thread does with its registers is in `plain` and `operations`, memory in `accesses`, instructions of whole warps and
blocks in `collectives`, calls in `calls`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as A
from .operations import TYPES
from .program import Instruction, Number, Program, PtxError
from .spaces import DEPTH_BITS, WARP
from .wave import CHANGING, SPECIAL, Wave, register_dtype

Values = Callable[[Wave], Any]


@dataclasses.dataclass
class Step:
    """One decoded instruction.

    If `plain` is given, it runs the instruction for the running threads. Otherwise `kind` says what the instruction does:

        branch          jumps to `target` if `condition` holds, always if it is None
        table           jumps to the one of `targets` that `condition` numbers
        call            runs `run`, which passes the arguments, and calls the function at `target`
        pointer         calls the function whose address `condition` reads; `enter` passes the arguments
        return, exit    returns to the call after its `back`; ends threads
        barrier, warp   waits until `complete`, then runs `run`; `number` is that of a barrier for some threads of a block

    Threads for which `guard` is false skip it.
    """

    plain: Callable[[Wave], None] | None = None
    kind: str = ""
    target: int = -1
    condition: Values | None = None
    complete: Callable[[Wave, np.ndarray], np.ndarray] | None = None
    run: Callable[[Wave], None] | None = None
    back: Callable[[Wave], None] | None = None
    enter: Callable[[Wave, int], int] | None = None
    of: str = "block"
    guard: Values | None = None
    targets: tuple[int, ...] = ()
    number: int | None = None


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
    if operand == "WARP_SZ":
        return lambda wave: dtype.type(WARP)
    if operand in CHANGING:
        now = CHANGING[operand]
        return lambda wave: np.int64(now()).astype(dtype)
    if operand.startswith("%"):
        if operand not in SPECIAL:
            raise PtxError(f"there is no special register {operand} in this machine")
        return lambda wave: wave.special[operand].astype(dtype)
    if operand in program.functions:
        start = dtype.type(program.addresses[operand])
        return lambda wave: start
    if operand in program.tables:
        return lambda wave: dtype.type(wave.launch.memory.address(wave.launch.tables[operand]))
    address = dtype.type(_place(program, operand))
    if operand in program.local and program.local[operand].function in program.recursive:
        return lambda wave: address + dtype.type(wave.depth << DEPTH_BITS)
    return lambda wave: address


def writer(program: Program, target: str, dtype: np.dtype) -> Callable[[Wave, Any], None]:
    """Return a function that writes a result of a type, or of one that is converted to it, to a register."""
    if target not in program.registers:
        return lambda wave, value: wave.assign(target, value)
    held = register_dtype(program.registers[target])
    if dtype.itemsize < held.itemsize:
        return lambda wave, value: wave.assign(target, value if value.dtype == dtype else value.astype(dtype))

    def write(wave: Wave, value: Any) -> None:
        if value.dtype != dtype:
            value = value.astype(dtype)
        if held != dtype:
            value = value.view(held)
        if not wave.full:
            value = np.where(wave.active, value, wave.registers[target])
        wave.registers[target] = value if value.ndim else np.full(wave.count, value)

    return write


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
    if name in program.dynamic:
        return program.next("shared", 16)
    raise PtxError(f"there is no register or variable {name}")


TEXTURES = ("tex", "tld4", "txq", "suld", "sust", "sured", "suq")  # instructions of textures and surfaces


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
    if i.opcode in TEXTURES:
        return f"textures and surfaces are not in this machine: {i.opcode} reads or writes one"
    return f"this machine does not know the instruction {'.'.join((i.opcode, *i.modifiers))}"


def _step(program: Program, i: Instruction) -> Step:
    from . import accesses, calls, collectives, mbarriers, plain

    guard = None
    if i.guard is not None:
        name, negated = i.guard
        guard = reader(program, f"!{name}" if negated else name, "pred")
    if i.opcode == "bra":
        return Step(kind="branch", target=program.labels[i.operands[0]], condition=guard)
    kinds = (plain, accesses, collectives, calls, mbarriers)
    step = next((found for kind in kinds if (found := kind.step(program, i)) is not None), None)
    if step is None:
        raise PtxError(_unknown(i))
    if guard is not None:
        if step.plain is None:
            return dataclasses.replace(step, guard=guard)
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
