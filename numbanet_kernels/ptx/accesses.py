"""Memory instructions: ld, st, atom, red, cp.async; `Wave.find` checks and counts every address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as A, halves
from .fences import RELEASES, is_fence
from .instructions import Step, Values, reader
from .operations import LOGIC, types
from .program import Address, Instruction, Program, PtxError
from .wave import Wave

# accesses with these modifiers do not race with each other or with atomic instructions
STRONG = {"volatile", "relaxed", "acquire", "release"}
SPACES = ("global", "shared", "local", "const", "param")


def step(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of a memory instruction; None for other instructions."""
    if i.opcode in ("ld", "ldu"):
        given = space_of(i) == "param" and i.operands[1].base in program.parameters
        return Step(_load_parameter(program, i) if given else _load(program, i))
    if i.opcode == "st":
        return Step(_store(program, i))
    if i.opcode in ("atom", "red"):
        return Step(_atomic(program, i))
    if i.opcode == "cp" and "async" in i.modifiers:
        return Step(_copy(program, i))
    if i.opcode in ("membar", "fence"):
        wide, orders = "cta" not in i.modifiers, is_fence(i)
        return Step(lambda wave: wave.fence(wide) if orders else None)
    return None


def _releases(wave: Wave, i: Instruction) -> None:
    """Note the fence that is part of an access with release semantics."""
    if not RELEASES.isdisjoint(i.modifiers):
        wave.fence("cta" not in i.modifiers)


def space_of(i: Instruction) -> str:
    return next((m.split("::")[0] for m in i.modifiers if m.split("::")[0] in SPACES), "generic")


def address_reader(program: Program, operand: Address) -> Callable[[Wave], np.ndarray]:
    """Return a function that maps a wave to the int64 addresses of its running threads."""
    wide = operand.base in program.registers and program.registers[operand.base].endswith("32")
    read: Values = reader(program, operand.base, "u32" if wide else "s64")
    return lambda wave: running(wave, read).astype(np.int64) + operand.offset


def running(wave: Wave, read: Values) -> np.ndarray:
    """Return the values that the running threads read: one for each thread, or a single one for all."""
    values = read(wave)
    if np.ndim(values):
        return values if wave.lanes.size == wave.count else values[wave.lanes]
    return np.full(wave.lanes.size, values)


def _load_parameter(program: Program, i: Instruction) -> Callable[[Wave], None]:
    targets, kind, width, _ = _elements(i, i.operands[0])
    start, dtype = program.parameters[i.operands[1].base][0] + i.operands[1].offset, A.DTYPES[kind]

    def run(wave: Wave) -> None:
        for k, target in enumerate(targets):
            wave.assign(target, np.frombuffer(wave.launch.parameters, dtype, 1, start + k * width)[0])

    return run


def _elements(i: Instruction, operand: Any) -> tuple[tuple, str, int, int]:
    """Return (registers, type, bytes of one register, bytes of all registers) of a load or store."""
    registers, kind = operand if isinstance(operand, tuple) else (operand,), types(i)[-1]
    width = A.DTYPES[kind].itemsize
    return registers, kind, width, width * len(registers)


def _load(program: Program, i: Instruction) -> Callable[[Wave], None]:
    registers, kind, width, total = _elements(i, i.operands[0])
    dtype, at, space = A.DTYPES[kind], address_reader(program, i.operands[1]), space_of(i)
    strong = not STRONG.isdisjoint(i.modifiers)
    # a loop of compare-and-swap begins with a plain read: what it reads too early, the atomic instruction notices
    first = program.atomics.get((i.function, program.origin(i.operands[1])), 0) > i.line

    def run(wave: Wave) -> None:
        address, atomic = at(wave), strong or (first and wave.launch.plain)
        found = wave.find(i, space, address, total, wave.lanes, writing=False, atomic=atomic)
        if strong:
            wave.ordering(found, wave.lanes, reads=True, writes=False)
        seen = []
        for k, register in enumerate(registers):
            values = np.zeros(wave.lanes.size, A.BITS[width])
            used = i.used if i.used == -1 else i.used >> k * width
            for store, chosen, offset in found:
                with wave.told(i, space, wave.lanes, chosen):
                    part = store.read(offset + k * width, width, used)
                if chosen.size == values.size:
                    values = part
                else:
                    values[chosen] = part
            seen.append(values)
            wave.assign(register, wave.spread(values).view(dtype))
        if strong:
            wave.poll(i, address, np.concatenate(seen))

    return run


def _store(program: Program, i: Instruction) -> Callable[[Wave], None]:
    registers, kind, width, total = _elements(i, i.operands[1])
    at, space, read = address_reader(program, i.operands[0]), space_of(i), [reader(program, r, kind) for r in registers]
    strong = not STRONG.isdisjoint(i.modifiers)

    def run(wave: Wave) -> None:
        values = [running(wave, r).view(A.BITS[width]) for r in read]
        bits = np.column_stack(values) if wave.launch.plain and not strong else None
        found = wave.find(i, space, at(wave), total, wave.lanes, writing=True, atomic=strong, values=bits)
        wave.moved |= any(store.shadow.across or store is wave.shared.store for store, *_ in found)  # others may see it
        if strong:
            _releases(wave, i)
            wave.ordering(found, wave.lanes, reads=False, writes=True)
        for k in range(len(read)):
            for store, chosen, offset in found:
                store.write(offset + k * width, values[k] if chosen.size == values[k].size else values[k][chosen], width)

    return run


# --- atomic -----------------------------------------------------------------------------------------------------------
CHANGES: dict[str, Callable[..., np.ndarray]] = {
    "add": lambda old, b: old + b,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b: np.where(old >= b, 0, old + 1).astype(old.dtype),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - 1).astype(old.dtype),
}


# operations that NumPy applies one after the other, in the order of the threads, if nobody asks for the values in between
IN_ORDER = {"add": np.add, "min": np.minimum, "max": np.maximum, **LOGIC}


def _atomic(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of an atomic instruction; threads change one address one after the other, by their numbers."""
    name = next((m for m in i.modifiers if m in CHANGES), None)
    if name is None or any(isinstance(operand, tuple) for operand in i.operands):  # also of vectors (sm_90)
        raise PtxError("this machine does not know this atomic operation")
    change, kind, space = CHANGES[name], types(i)[-1], space_of(i)
    if kind in ("f16x2", "bf16", "bf16x2"):
        change = _of_halves(name, kind)
    target, (address, *sources) = (i.operands[0], i.operands[1:]) if i.opcode == "atom" else ("_", i.operands)
    dtype, at, read = A.DTYPES[kind], address_reader(program, address), [reader(program, s, kind) for s in sources]
    width = dtype.itemsize
    if name in IN_ORDER and change is CHANGES[name] and (target == "_" or program.mentions[target] == 1):
        return _unasked(i, IN_ORDER[name], dtype, at, read[0], space)

    def run(wave: Wave) -> None:
        old = np.zeros(wave.lanes.size, dtype)
        values = [np.broadcast_to(r(wave), wave.count)[wave.lanes] for r in read]
        address, changed = at(wave), False
        found = wave.find(i, space, address, width, wave.lanes, writing=True, atomic=True)
        _releases(wave, i)
        wave.ordering(found, wave.lanes, reads=True, writes=True)
        for store, chosen, offset in found:
            left = np.arange(chosen.size)
            while left.size:
                if name == "cas" and left.size > 1:  # those that change nothing are served at once
                    some = chosen[left]
                    with wave.told(i, space, wave.lanes[some]):
                        before = store.read(offset[left], width).view(dtype)
                    swaps = (before == values[0][some]) & (before != values[1][some])
                    early = _before_the_first(swaps, offset[left])
                    old[some[early]] = before[early]
                    left = left[~early]
                    if not left.size:
                        break
                _, first = np.unique(offset[left], return_index=True)
                now = left[first]
                with wave.told(i, space, wave.lanes[chosen[now]]):
                    before = store.read(offset[now], width).view(dtype)
                old[chosen[now]] = before
                after = change(before, *(v[chosen[now]] for v in values)).view(A.BITS[width])
                differ = bool((after != before.view(A.BITS[width])).any())
                changed |= differ
                store.write(offset[now], after, width)
                if not differ and all((v == v[0]).all() for v in values):  # threads that poll: the others change nothing, too
                    old[chosen[left]] = store.read(offset[left], width).view(dtype)
                    break
                left = np.delete(left, first)
        if changed:
            wave.moved = True
        else:
            wave.poll(i, address, old)
        wave.assign(target, wave.spread(old))

    return run


def _before_the_first(chosen: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return a mask of the threads that come before the first of the `chosen` ones with the same offset."""
    _, which = np.unique(offset, return_inverse=True)
    first = np.full(offset.size, offset.size)
    np.minimum.at(first, which[chosen], np.flatnonzero(chosen))
    return np.arange(offset.size) < first[which]


def _unasked(
    i: Instruction, change: np.ufunc, dtype: np.dtype, at: Callable[[Wave], np.ndarray], read: Values, space: str
) -> Callable[[Wave], None]:
    """Return the function of an atomic instruction whose result is not used."""

    def run(wave: Wave) -> None:
        values = running(wave, read)
        wave.moved = True
        found = wave.find(i, space, at(wave), dtype.itemsize, wave.lanes, writing=True, atomic=True)
        _releases(wave, i)
        wave.ordering(found, wave.lanes, reads=False, writes=True)
        for store, chosen, offset in found:
            with wave.told(i, space, wave.lanes, chosen):
                store.change(offset, dtype, change, values[chosen])

    return run


def _of_halves(name: str, kind: str) -> Callable[..., np.ndarray]:
    """Return the function of an atomic instruction on bfloat16 or on pairs."""
    one = halves.element(kind)
    change = halves.BF16.get(name) if one == "bf16" else CHANGES[name]
    if change is None:
        raise PtxError(f"this machine does not know atom.{name} of {kind}")
    return change if one == kind else halves.of_pairs(kind, change)


# --- asynchronous copies ----------------------------------------------------------------------------------------------
def _copy(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of cp.async, a copy to shared memory that arrives when a wait for its group has ended."""
    if "commit_group" in i.modifiers:
        return _commit
    if "wait_all" in i.modifiers or "wait_group" in i.modifiers:
        newest = i.operands[0].value if "wait_group" in i.modifiers else 0
        return lambda wave: _wait(wave, newest, everything="wait_all" in i.modifiers)
    to, source, size = address_reader(program, i.operands[0]), address_reader(program, i.operands[1]), i.operands[2].value
    given = reader(program, i.operands[3], "u32") if len(i.operands) > 3 else None

    def run(wave: Wave) -> None:
        target, origin = to(wave), source(wave)
        for store, _, offset in wave.find(i, "shared", target, size, wave.lanes, writing=True):  # unset until the data arrives
            store.forget(offset, size)
        length = np.full(wave.lanes.size, size) if given is None else np.broadcast_to(given(wave), wave.count)[wave.lanes]
        values = np.zeros((wave.lanes.size, size // 4), np.uint32)
        for width in np.unique(length[length > 0]):
            some, unit = np.flatnonzero(length == width), 4 if width % 4 == 0 else 1
            parts = values.view(A.BITS[unit])
            for store, chosen, offset in wave.find(
                i, "global", origin[some], int(width), wave.lanes[some], writing=False, aligned=size
            ):
                with wave.told(i, "global", wave.lanes[some], chosen):
                    for k in range(width // unit):
                        parts[some[chosen], k] = store.read(offset + k * unit, unit)
        wave.pending.append([wave.lanes, wave.committed[wave.lanes], target, values, size, i])

    return run


def _commit(wave: Wave) -> None:
    wave.committed[wave.lanes] += 1


def _wait(wave: Wave, newest: int, everything: bool) -> None:
    """Let the copies of the running threads arrive, except for those of the `newest` newest groups."""
    left = []
    for lanes, groups, target, values, size, copy in wave.pending:
        due = wave.active[lanes] & (everything | (groups < wave.committed[lanes] - newest))
        if due.any():
            for store, chosen, offset in wave.shared.find(target[due], size, wave.blocks[lanes[due]]):
                # the copy may have written at any time so far; races are sought as if it wrote when it was issued, and now
                wave.touch(copy, "shared", store, offset, size, lanes[due][chosen], writing=True)
                for k in range(size // 4):
                    store.write(offset + 4 * k, values[due][chosen, k], 4)
        if not due.all():
            left.append([part[~due] for part in (lanes, groups, target, values)] + [size, copy])
    wave.pending = left
