"""Instructions of single threads on registers: arithmetic, comparisons, moves, and conversions of addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as A, halves
from .instructions import Step, reader, writer
from .operations import COMPARISONS, IGNORED, LOGIC, TYPES, arithmetic, types
from .program import Instruction, Program, PtxError
from .spaces import WINDOW, WINDOWS
from .wave import Wave


def step(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of an instruction of single threads; None for other instructions."""
    if i.opcode in IGNORED:
        return Step(lambda wave: None)
    made = {"trap": _trap, "setp": _setp, "set": _set, "cvta": _cvta, "isspacep": _in_space}.get(i.opcode)
    if i.opcode == "mov" and any(isinstance(o, tuple) for o in i.operands):
        made = _repack
    if i.opcode in ("addc", "subc", "madc") or (i.opcode in ("add", "sub", "mad") and "cc" in i.modifiers):
        made = _carried
    return Step(made(program, i)) if made else _arithmetic(program, i)


def _arithmetic(program: Program, i: Instruction) -> Step | None:
    found = arithmetic(i)
    if found is None:
        return None
    result, kinds, function = found
    if len(i.operands) - 1 != len(kinds) + (i.opcode == "lop3"):
        return None
    target, sources = i.operands[0], i.operands[1 : 1 + len(kinds)]
    write, read = writer(program, target, TYPES[result]), [reader(program, o, k) for o, k in zip(sources, kinds, strict=True)]
    if len(read) == 1:  # these cases take less time than the general one
        (a,) = read
        return Step(lambda wave: write(wave, function(a(wave))))
    if len(read) == 2:
        a, b = read
        return Step(lambda wave: write(wave, function(a(wave), b(wave))))
    return Step(lambda wave: write(wave, function(*[r(wave) for r in read])))


def _trap(program: Program, i: Instruction) -> Callable[[Wave], None]:
    def run(wave: Wave) -> None:
        raise wave.error(i, "trap", wave.lanes[0])

    return run


# --- comparisons ------------------------------------------------------------------------------------------------------
def _compared(program: Program, i: Instruction) -> Callable[[Wave], np.ndarray]:
    """Return a function that maps a wave to the result of a comparison; of pairs it has two columns."""
    compare, kind = COMPARISONS[i.modifiers[0]], types(i)[-1]
    a, b = (reader(program, o, kind) for o in i.operands[1:3])
    one = halves.element(kind)

    def value(x: Any) -> Any:
        x = halves.parts(x).view(TYPES[one]) if kind in halves.PAIRS else x
        x = A.bf16_to_f32(np.asarray(x)) if one == "bf16" else x
        return A.flushed(np.asarray(x)) if "ftz" in i.modifiers else x

    if (
        kind in ("b16", "b32", "b64")
        or TYPES[one].kind in "iu"
        and one != "bf16"
        or (one in ("f32", "f64") and "ftz" not in i.modifiers)
    ):
        return lambda wave: compare(a(wave), b(wave))
    return lambda wave: compare(value(a(wave)), value(b(wave)))


def _joined(program: Program, i: Instruction) -> Callable[[Wave, np.ndarray], np.ndarray]:
    """Return the function that combines the result of a comparison with the predicate that may follow it."""
    join = next((LOGIC[m] for m in i.modifiers if m in LOGIC), None)
    if join is None:
        return lambda wave, holds: holds
    third = reader(program, i.operands[3], "pred")
    return lambda wave, holds: join(holds, third(wave))


def _setp(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of setp: p = a cmp b, combined with c if it is given. In p|q, q is the negation, or the result of the
    upper halves of pairs.
    """
    compared, joined, pairs = _compared(program, i), _joined(program, i), types(i)[-1] in halves.PAIRS
    targets = i.operands[0].split("|")

    def run(wave: Wave) -> None:
        holds = compared(wave)
        # all are computed before the first is assigned: it may be the predicate that they are combined with
        results = [joined(wave, value) for value in (holds.T if pairs else (holds, ~holds))]
        for target, result in zip(targets, results):
            wave.assign(target.strip(), result)

    return run


def _set(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of set: d = 1.0 or, for integers, all bits set if a cmp b holds, else 0."""
    compared, joined, kind = _compared(program, i), _joined(program, i), types(i)[0]
    one, pairs = halves.element(kind), types(i)[-1] in halves.PAIRS
    bits = A.BITS[TYPES[kind if kind not in halves.PAIRS else one].itemsize]
    yes = ~bits.type(0) if TYPES[one].kind != "f" else TYPES[one].type(1).view(bits)
    yes = np.uint16(0x3F80) if one == "bf16" else yes

    def run(wave: Wave) -> None:
        holds = joined(wave, compared(wave))
        value = np.where(holds, yes, bits.type(0))
        wave.assign(i.operands[0], halves.joined(value) if pairs and value.ndim == 2 and bits.itemsize == 2 else value)

    return run


# --- moves ------------------------------------------------------------------------------------------------------------
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
    """Return the function that computes 32 or 64 bits of a longer sum: opcodes that end in `c` add the carry (or subtract the
    borrow), and .cc stores it.
    """
    kind, operation = types(i)[-1], i.opcode[:3]
    held = A.BITS[TYPES[kind].itemsize]
    read = [reader(program, o, f"u{8 * held.itemsize}") for o in i.operands[1:]]
    if held.itemsize < 4 or "wide" in i.modifiers:
        raise PtxError("this machine carries from 32 and 64 bits only")

    def run(wave: Wave) -> None:
        *factors, last = (np.asarray(r(wave), held) for r in read)
        if operation == "mad":
            a, b = (np.broadcast_to(f, wave.count) for f in factors)
            factors = [A.high(a.view(TYPES[kind]), b.view(TYPES[kind])).view(held) if "hi" in i.modifiers else a * b]
        carry = wave.carry.astype(held) if i.opcode.endswith("c") else held.type(0)
        if operation == "sub":
            part = factors[0] - last
            total, out = part - carry, (factors[0] < last) | (part < carry)
        else:
            part = factors[0] + last
            total = part + carry
            out = (part < last) | (total < carry)
        if "cc" in i.modifiers:
            wave.carry = np.where(wave.active, out, wave.carry)
        wave.assign(i.operands[0], total)

    return run


# --- addresses --------------------------------------------------------------------------------------------------------
def _cvta(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of cvta, which converts between addresses of one memory space and generic addresses."""
    space, kind = next(m for m in i.modifiers if m not in ("to",) and m not in TYPES).partition("::")[0], types(i)[-1]
    shift = TYPES[kind].type(WINDOWS.get(space, 0))
    read, target = reader(program, i.operands[1], kind), i.operands[0]
    return lambda wave: wave.assign(target, read(wave) - shift if "to" in i.modifiers else read(wave) + shift)


def _in_space(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of isspacep, which tells if a generic address is one of a memory space."""
    space, read = i.modifiers[0].partition("::")[0], reader(program, i.operands[1], "u64")
    if space != "global" and space not in WINDOWS:
        raise PtxError(f"there are no generic addresses of {space} memory in this machine")

    def within(address: np.ndarray, start: int) -> np.ndarray:
        return (address >= np.uint64(start)) & (address < np.uint64(start + WINDOW))

    def run(wave: Wave) -> None:
        address = np.broadcast_to(read(wave), wave.count)
        if space == "global":
            wave.assign(i.operands[0], ~np.any([within(address, start) for start in WINDOWS.values()], axis=0))
        else:
            wave.assign(i.operands[0], within(address, WINDOWS[space]))

    return run
