"""Calls of functions in the same PTX, and returns from them.

Each group of threads has a call stack (`machine.Place`). Arguments and results are .param variables: those of the caller are
copied to those of the function, and back. A function has one set of registers for all calls: a call of a function that has
not returned yet saves them with its parameters (`wave.Frame`), and they are restored when it returns. Its local variables have
other addresses at each depth of the recursion (`spaces.Frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import library
from .instructions import Step, reader
from .program import Instruction, Program, PtxError, Variable, called, short
from .wave import Frame, Wave

MOST = 256  # calls of functions that have not returned; a card has 1024 bytes of stack per thread unless it is asked for more


def step(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of a call, a return, an exit or a jump by a table; None for other instructions."""
    if i.opcode in ("ret", "exit"):
        return Step(kind="return" if i.opcode == "ret" and i.function else "exit")
    if i.opcode == "brx":
        labels = program.functions[i.function].targets[i.operands[1]]
        targets = tuple(program.labels[i.function + label] for label in labels)
        return Step(kind="table", targets=targets, condition=reader(program, i.operands[0], "u32"))
    if i.opcode != "call":
        return None
    name = called(i)
    at = i.operands.index(name)
    taken, given = (operand[0] if operand else () for operand in (i.operands[:at], i.operands[at + 1 : at + 2]))
    function = program.functions.get(name)
    if name in program.registers:
        return _by_pointer(program, i, name, given, taken)
    if function is None:
        found = library.step(program, i, name, given, taken)
        if found is None:
            raise PtxError(_missing(name))
        return found
    run, back = _passing(program, name, given, taken)
    if i.function in program.reached(name):
        run, back = _saving(program, i, name, run, back)
    return Step(kind="call", target=function.start, run=run, back=back)


def _by_pointer(program: Program, i: Instruction, register: str, given: Sequence[str], taken: Sequence[str]) -> Step:
    """Return the `Step` of a call of the function whose address is in a register."""
    names = {address: name for name, address in program.addresses.items()}
    known: dict[str, tuple[Callable[[Wave], None], Callable[[Wave], None]]] = {}

    def passing(name: str) -> tuple[Callable[[Wave], None], Callable[[Wave], None]]:
        if name not in known:
            known[name] = _passing(program, name, given, taken)
        return known[name]

    def enter(wave: Wave, address: int) -> int:
        name = names.get(address)
        if name is None:
            raise wave.error(i, f"{address:#x} is not the address of a function", int(wave.lanes[0]))
        passing(name)[0](wave)
        return program.functions[name].start

    return Step(
        kind="pointer",
        condition=reader(program, register, "u64"),
        enter=enter,
        back=lambda wave: passing(wave.leaving)[1](wave),
    )


def _missing(name: str) -> str:
    """Return the reason why a function cannot be called."""
    if "__half" in name or name.endswith("_nbst"):
        return f"arithmetic of float16 is not in this machine, here {name}: compute in float32"
    return f"the code of {name} is not in this PTX: it would come from a library that a card links to it"


def _passing(
    program: Program, name: str, given: Sequence[str], taken: Sequence[str]
) -> tuple[Callable[[Wave], None], Callable[[Wave], None]]:
    """Return the functions that pass the arguments to a function, and its results back."""
    function = program.functions[name]
    if taken and not function.results:  # Numba calls functions of C without a result as if they had one
        return _passing(program, name, given, ())[0], _zeros([program.passed[one] for one in taken])
    pairs = [_pairs(program, name, *both) for both in ((given, function.parameters), (function.results, taken))]
    return _copies(pairs[0]), _copies(pairs[1])


def _pairs(program: Program, name: str, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return a list of (source offset, target offset, bytes), one for each argument or result."""
    sizes = [[program.passed[one].size if one in program.passed else None for one in some] for some in (source, target)]
    if sizes[0] != sizes[1] or None in sizes[0]:
        raise PtxError(f"what is passed to or from {name} is not what it declares")
    places = [[program.passed[one].offset for one in some] for some in (source, target)]
    return list(zip(*places, sizes[0], strict=True))


def _zeros(variables: Sequence[Variable]) -> Callable[[Wave], None]:
    """Return the function that sets .param variables to 0."""

    def run(wave: Wave) -> None:
        for size, offset, *_ in variables:
            rows = np.zeros((wave.count, 2 * size), np.uint8)
            wave.param.put(wave.lanes, offset, size, rows)

    return run


def _copies(pairs: Sequence[tuple[int, int, int]]) -> Callable[[Wave], None]:
    def run(wave: Wave) -> None:
        for pair in pairs:
            wave.param.copy(wave.lanes, *pair)

    return run


# --- recursion --------------------------------------------------------------------------------------------------------
def _saving(
    program: Program, i: Instruction, name: str, run: Callable[[Wave], None], back: Callable[[Wave], None]
) -> tuple[Callable[[Wave], None], Callable[[Wave], None]]:
    """Return (run, back) of a call of a function that may not have returned from an earlier one."""
    function = program.functions[name]
    places = [(program.passed[one].offset, program.passed[one].size) for one in function.parameters]

    def save(wave: Wave) -> None:
        if wave.depth >= MOST:
            problem = f"{short(name)} calls itself more than {MOST} times, which is more than a card's stack holds"
            raise wave.error(i, problem, wave.lanes[0])
        key = wave.calls, i.line
        now = Frame(
            wave.active, {r: wave.registers[r] for r in function.registers}, [wave.param.rows(*place) for place in places]
        )
        wave.frames[key] = _merged(now, wave.frames[key]) if key in wave.frames else now
        run(wave)

    def restore(wave: Wave) -> None:
        back(wave)
        key = wave.calls[:-1], i.line
        saved, active = wave.frames[key], wave.active
        for register, values in saved.registers.items():
            wave.registers[register] = np.where(active, values, wave.registers[register])
        for place, rows in zip(places, saved.parameters, strict=True):
            wave.param.put(wave.lanes, *place, rows)
        left = saved.threads & ~active
        if left.any():
            wave.frames[key] = saved._replace(threads=left)
        else:
            del wave.frames[key]

    return save, restore


def _merged(now: Frame, before: Frame) -> Frame:
    """Return what two groups of threads saved at the same call."""
    mine = now.threads
    registers = {name: np.where(mine, values, before.registers[name]) for name, values in now.registers.items()}
    rows = [np.where(mine[:, None], new, old) for new, old in zip(now.parameters, before.parameters, strict=True)]
    return Frame(mine | before.threads, registers, rows)
