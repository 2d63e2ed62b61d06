"""Calls of functions in the same PTX, and returns from them.

Each group of threads has a call stack (`machine.Place`). Arguments and results are .param variables: those of the caller are
copied to those of the function, and back. A function has one set of registers for all calls, so recursion is not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .instructions import Step
from .machine import Wave
from .parse import Instruction, Program, PtxError, called


def step(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of a call, a return or an exit; None for other instructions."""
    if i.opcode in ("ret", "exit"):
        return Step(kind="return" if i.opcode == "ret" and i.function else "exit")
    if i.opcode != "call":
        return None
    name = called(i)
    function = program.functions.get(name)
    if function is None:
        raise PtxError(_missing(name))
    if i.function in _reached(program, name):
        raise PtxError(f"{name} calls itself, which this machine does not run: write a loop")
    at = i.operands.index(name)
    taken, given = (operand[0] if operand else () for operand in (i.operands[:at], i.operands[at + 1 :]))
    pairs = [_pairs(program, name, *both) for both in ((given, function.parameters), (function.results, taken))]
    return Step(kind="call", target=function.start, run=_copies(pairs[0]), back=_copies(pairs[1]))


def _missing(name: str) -> str:
    """Return the reason why a function cannot be called."""
    if name == "vprintf":
        return "print is not in this machine"
    if "__half" in name or name.endswith("_nbst"):
        return f"arithmetic of float16 is not in this machine, here {name}: compute in float32"
    if name.startswith("%"):
        return "calls through a pointer are not in this machine"
    return f"the code of {name} is not in this PTX: it would come from a library that a card links to it"


def _reached(program: Program, name: str) -> set[str]:
    """Return the names of a function and of all functions that it calls, directly or indirectly."""
    due = [name]
    for other in due:
        due += [found for found in program.functions[other].calls() if found in program.functions and found not in due]
    return set(due)


def _pairs(program: Program, name: str, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return a list of (source offset, target offset, bytes), one for each argument or result."""
    sizes = [[program.passed[one].size if one in program.passed else None for one in some] for some in (source, target)]
    if sizes[0] != sizes[1] or None in sizes[0]:
        raise PtxError(f"what is passed to or from {name} is not what it declares")
    places = [[program.passed[one].offset for one in some] for some in (source, target)]
    return list(zip(*places, sizes[0], strict=True))


def _copies(pairs: Sequence[tuple[int, int, int]]) -> Callable[[Wave], None]:
    def run(wave: Wave) -> None:
        for pair in pairs:
            wave.param.copy(wave.lanes, *pair)

    return run
