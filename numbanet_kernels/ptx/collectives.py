"""Instructions of whole warps: shfl, vote, match, redux, bar.warp, ldmatrix and mma; and of whole blocks: bar.red.

Lane maps, g = lane // 4 and t = lane % 4 (PTX ISA, "Matrix fragments"):

    A 16 x k   a0 (g, t)  a1 (g + 8, t)  a2 (g, t + k/2)  a3 (g + 8, t + k/2)        B k x 8   b0 (t, g)  b1 (t + k/2, g)
    C 16 x 8   c0 (g, 2t)  c1 (g, 2t + 1)  c2 (g + 8, 2t)  c3 (g + 8, 2t + 1)

with pairs of 16-bit numbers at columns (A) or rows (B) 2t, 2t + 1 in place of one 32-bit number at t, or four of 8 bits at 4t
to 4t + 3. c0 and c1, c2 and c3 of float16 are pairs in one register.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from . import arithmetic as A
from .accesses import address_reader
from .barriers import some_threads, whole_blocks, whole_warps
from .instructions import Step, reader
from .operations import LOGIC, types
from .program import Instruction, Number, Program, PtxError
from .races import BIT_OF_LANE
from .spaces import WARP
from .wave import Wave

EVERYONE = np.uint32(0xFFFFFFFF)
LANES = np.arange(WARP)


def step(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of a collective instruction; None for other instructions."""
    if i.opcode == "activemask":
        return Step(lambda wave: wave.assign(i.operands[0], _ballot(wave.active)))
    if i.opcode in ("bar", "barrier") and not {"warp", "cluster"} & set(i.modifiers):
        return _barrier(program, i)
    run = {
        "shfl": _shuffle,
        "vote": _vote,
        "match": _match,
        "redux": _redux,
        "elect": _elect,
        "bar": _warp_barrier,
        "barrier": _warp_barrier,
        "ldmatrix": _load_matrix,
        "mma": _multiply,
    }.get(i.opcode)
    if run is None or (run is _warp_barrier and i.modifiers != ("warp", "sync")):
        return None
    members = None if i.opcode in ("ldmatrix", "mma") else reader(program, i.operands[-1], "u32")

    def complete(wave: Wave, threads: np.ndarray) -> np.ndarray:
        if members is None:
            return whole_warps(wave, threads, np.full(wave.count, EVERYONE))
        wanted = np.broadcast_to(members(wave), wave.count)
        outside = threads & (wanted >> (np.arange(wave.count) % WARP).astype(np.uint32) & np.uint32(1) == 0)
        if outside.any():
            raise wave.error(i, "a lane is not in its own mask", int(np.flatnonzero(outside)[0]))
        return whole_warps(wave, threads, wanted)

    return Step(kind="warp", complete=complete, run=run(program, i), of="warp")


def _by_warp(wave: Wave, values: np.ndarray) -> np.ndarray:
    return (values if np.ndim(values) else np.broadcast_to(values, wave.count)).reshape(-1, WARP)


def _ballot(flags: np.ndarray) -> np.ndarray:
    """Return, for every thread, the flags of its warp as the bits of one number."""
    bits = (flags.reshape(-1, WARP).astype(np.uint32) << LANES.astype(np.uint32)).sum(axis=1, dtype=np.uint32)
    return np.repeat(bits, WARP)


def _members(program: Program, i: Instruction) -> Callable[[Wave], np.ndarray]:
    """Return a function that maps a wave to an array (warps, lane, other lane) of bool, which is True if the other lane is in
    the mask of the lane, and running.
    """
    read = reader(program, i.operands[-1], "u32")
    return lambda wave: (_by_warp(wave, read(wave))[:, :, None] & BIT_OF_LANE != 0) & wave.active.reshape(-1, 1, WARP)


def _warp_barrier(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of bar.warp, which orders the accesses of the threads that take part."""
    read = reader(program, i.operands[-1], "u32")

    def run(wave: Wave) -> None:
        masks = np.broadcast_to(read(wave), wave.count)
        narrow = wave.active & (masks | ~_ballot(wave.there) != EVERYONE)
        some = wave.active & np.repeat(narrow.reshape(-1, WARP).any(axis=1), WARP)
        wave.pass_barrier(wave.active & ~some, "warp")
        if wave.who.parts is not None and some.any():
            wave.who.parts.meet(some, masks)

    return run


def _barrier(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of a barrier of a block: bar.sync, bar.red and bar.arrive, of all threads or of a given number."""
    of = next((m for m in i.modifiers if m in ("popc", "and", "or")), None)
    first, last = (1, 1) if of else (0, 0)
    operands = i.operands[first : len(i.operands) - last]
    if (
        set(i.modifiers) - {"sync", "cta", "aligned", "red", "arrive", "popc", "and", "or", "pred", "all", "u32"}
        or len(operands) > 2
    ):
        return None
    run = _count(program, i) if of else None
    if len(operands) < 2:
        return None if "arrive" in i.modifiers else Step(kind="barrier", complete=whole_blocks, run=run)
    if not isinstance(operands[0], Number):
        raise PtxError("a barrier for some threads of a block has a constant number in this machine")
    number, count = operands[0].value, reader(program, operands[1], "u32")
    if "arrive" in i.modifiers:
        return Step(lambda wave: _arrive(wave, number))
    return Step(kind="barrier", complete=some_threads(program, number, count), run=run, number=number)


def _arrive(wave: Wave, number: int) -> None:
    """Count the warps of the running threads as arrived at a barrier, and go on."""
    warps = wave.active.reshape(-1, wave.warps_a_block, WARP).any(axis=2).sum(axis=1) * WARP
    wave.arrived[number] = wave.arrived.get(number, 0) + warps


def _count(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of bar.red, a barrier that also counts the threads of its block for which a predicate is true (popc),
    or returns whether it is true for any thread (or) or for all threads (and).
    """
    target, predicate = i.operands[0], i.operands[-1]
    read, of = reader(program, predicate, "pred"), next(m for m in i.modifiers if m in ("popc", "and", "or"))

    def run(wave: Wave) -> None:
        holds, every = (
            np.bincount(wave.blocks[flags], minlength=wave.blocks[-1] + 1)[wave.blocks]
            for flags in (wave.active & read(wave), wave.active)
        )
        wave.assign(target, holds.astype(np.uint32) if of == "popc" else holds > 0 if of == "or" else holds == every)

    return run


def _elect(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of elect: d = the lowest lane of the mask, and p is true for it alone."""
    (target, *chosen), members = i.operands[0].split("|"), _members(program, i)

    def run(wave: Wave) -> None:
        leader = members(wave).argmax(axis=2)
        wave.assign(target.strip(), leader.astype(np.uint32).ravel())
        for name in chosen:
            wave.assign(name.strip(), (leader == LANES).ravel())

    return run


def _shuffle(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of shfl: d = the a of another lane, which is lane - b for `up`, lane + b for `down`, lane xor b for
    `bfly`, and b for `idx`. If the other lane is outside of the segment of the lane, d is the lane's own a.
    """
    mode = next(m for m in i.modifiers if m in ("up", "down", "bfly", "idx"))
    value, b, c, members = (reader(program, o, "b32") for o in i.operands[1:5])
    target, *inside = i.operands[0].split("|")

    def run(wave: Wave) -> None:
        source, by, clamp = (_by_warp(wave, r(wave)) for r in (value, b, c))
        by, clamp = by.astype(np.int64) & 31, clamp.astype(np.int64)
        segment, clamp = clamp >> 8 & 31, clamp & 31
        low, high = LANES & segment, (LANES & segment) | (clamp & ~segment)
        lane = {"up": LANES - by, "down": LANES + by, "bfly": LANES ^ by, "idx": low | (by & ~segment)}[mode]
        found = lane >= high if mode == "up" else lane <= high
        lane = np.where(found, lane, LANES)
        active, asked = wave.active.reshape(-1, WARP), _by_warp(wave, members(wave)) & BIT_OF_LANE[lane] != 0
        wrong = active & ~(np.take_along_axis(active, lane, 1) & asked)
        if wrong.any():
            raise wave.error(i, "a shuffle reads a lane that does not take part", int(np.flatnonzero(wrong.ravel())[0]))
        wave.assign(target.strip(), np.take_along_axis(source, lane, 1).ravel())
        for name in inside:
            wave.assign(name.strip(), found.ravel())

    return run


def _bits(flags: np.ndarray) -> np.ndarray:
    """Return flags (warps, lane, other lane) as one number per lane."""
    return (flags.astype(np.uint32) << LANES.astype(np.uint32)).sum(axis=2, dtype=np.uint32).ravel()


def _vote(program: Program, i: Instruction) -> Callable[[Wave], None]:
    read, target, members = reader(program, i.operands[1], "pred"), i.operands[0], _members(program, i)

    def run(wave: Wave) -> None:
        given, asked = _by_warp(wave, read(wave))[:, None, :], members(wave)
        if "ballot" in i.modifiers:
            wave.assign(target, _bits(given & asked))
            return
        every, some = (given | ~asked).all(axis=2), (given & asked).any(axis=2)
        wave.assign(target, (every if "all" in i.modifiers else some if "any" in i.modifiers else every | ~some).ravel())

    return run


def _match(program: Program, i: Instruction) -> Callable[[Wave], None]:
    read, (target, *all_equal) = reader(program, i.operands[1], types(i)[-1]), i.operands[0].split("|")
    members = _members(program, i)

    def run(wave: Wave) -> None:
        given, asked = _by_warp(wave, read(wave)), members(wave)
        same = (given[:, :, None] == given[:, None, :]) & asked
        bits = _bits(same)
        if "all" in i.modifiers:
            whole = (same | ~asked).all(axis=2).ravel()
            bits = np.where(whole, bits, np.uint32(0))
            for name in all_equal:
                wave.assign(name.strip(), whole)
        wave.assign(target.strip(), bits)

    return run


REDUCTIONS = {"add": np.add, "min": np.minimum, "max": np.maximum, **LOGIC}


def _redux(program: Program, i: Instruction) -> Callable[[Wave], None]:
    kind, members = types(i)[-1], _members(program, i)
    read, reduce = reader(program, i.operands[1], kind), next(REDUCTIONS[m] for m in i.modifiers if m in REDUCTIONS).reduce
    if kind == "f32":
        return lambda wave: wave.assign(i.operands[0], _extreme(i, _by_warp(wave, read(wave)), members(wave)).ravel())

    def run(wave: Wave) -> None:
        given, result = _by_warp(wave, read(wave)), np.zeros(wave.count, A.DTYPES[kind])
        for lane, asked in zip(wave.lanes, members(wave).reshape(-1, WARP)[wave.lanes], strict=True):
            result[lane] = reduce(given[lane // WARP][asked])
        wave.assign(i.operands[0], result)

    return run


def _extreme(i: Instruction, given: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return redux.min or max of float32, (warps, lane): without .NaN, NaN does not count beside numbers. -0 is below +0."""
    sign = np.float32(1 if "min" in i.modifiers else -1)  # the maximum of x is -(the minimum of -x)
    values = sign * (np.abs(given) if "abs" in i.modifiers else given)
    each = np.where(asked, values[:, None, :], np.float32(np.nan))
    least = np.fmin.reduce(each, axis=2)
    least = np.where((least == 0) & ((each == 0) & np.signbit(each)).any(axis=2), np.float32(-0.0), least)
    if "NaN" in i.modifiers:
        least = np.where((asked & np.isnan(given)[:, None, :]).any(axis=2), np.float32(np.nan), least)
    return np.where(np.isnan(least), np.float32(np.nan), sign * least)


# --- matrices ---------------------------------------------------------------------------------------------------------
G, T = LANES // 4, LANES % 4


def _check_whole(wave: Wave, i: Instruction) -> None:
    """Raise an error if one of the running warps has fewer threads: of matrices, each lane holds a part."""
    warps = wave.active.reshape(-1, WARP)
    wrong = warps & ~warps.all(axis=1, keepdims=True)
    if wrong.any():
        raise wave.error(i, "a warp without all of its 32 threads", int(np.flatnonzero(wrong.ravel())[0]))


def _load_matrix(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of ldmatrix, which loads 8 x 8 matrices of 16-bit numbers: the lanes 8 k … 8 k + 7 hold the addresses
    of the rows of matrix k.
    """
    at, (targets, _) = address_reader(program, i.operands[1]), i.operands
    targets = targets if isinstance(targets, tuple) else (targets,)

    def run(wave: Wave) -> None:
        _check_whole(wave, i)
        address = wave.spread(at(wave)).reshape(-1, WARP)
        everyone = wave.lanes.reshape(-1, WARP)
        for k, target in enumerate(targets):
            lanes, rows = everyone[:, 8 * k : 8 * k + 8].ravel(), np.zeros((everyone.shape[0] * 8, 8), np.uint16)
            for store, chosen, offset in wave.find(i, "shared", address.ravel()[lanes], 16, lanes, writing=False):
                with wave.told(i, "shared", lanes[chosen]):
                    for j in range(8):
                        rows[chosen, j] = store.read(offset + 2 * j, 2)
            matrix = rows.reshape(-1, 8, 8)
            if "trans" in i.modifiers:
                matrix = matrix.transpose(0, 2, 1)
            pair = np.ascontiguousarray(np.stack([matrix[:, G, 2 * T], matrix[:, G, 2 * T + 1]], axis=2))
            wave.assign(target, wave.spread(pair.view(np.uint32).ravel()))

    return run


SHAPES = {"m16n8k4": 4, "m16n8k8": 8, "m16n8k16": 16, "m16n8k32": 32}
PACKED = {"tf32": 1, "f16": 2, "bf16": 2, "s8": 4, "u8": 4}  # numbers of A and B in a register
SUMS = {"f32": ("tf32", "f16", "bf16"), "f16": ("f16",), "s32": ("s8", "u8")}  # the types of A and B for each one of C


def _multiply(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of mma, C += A B of a warp. The products are exact, and their sum with C is rounded once: to float32
    toward zero as on a GPU, which truncates some bits of the products as well, to float16 to nearest; int32 wraps around, or
    saturates with .satfinite.
    """
    depth = next((SHAPES[m] for m in i.modifiers if m in SHAPES), None)
    kinds = [m for m in i.modifiers if m in A.DTYPES or m == "tf32"]
    if (
        depth is None
        or len(kinds) != 4
        or kinds[0] != kinds[3]
        or not {kinds[1], kinds[2]} <= {*SUMS.get(kinds[0], ())}
        or (kinds[0] != "s32" and kinds[1] != kinds[2])
        or depth not in (4 * PACKED[kinds[1]], 8 * PACKED[kinds[1]])
    ):
        raise PtxError("this machine does not know this shape or these types of mma")
    registers = [operand if isinstance(operand, tuple) else (operand,) for operand in i.operands]
    a, b = ([reader(program, r, "b32") for r in registers[k]] for k in (1, 2))
    c = [reader(program, r, "b32" if kinds[0] == "f16" else kinds[0]) for r in registers[3]]
    rounded = _toward_zero if kinds[0] == "f32" else functools.partial(_integers, saturates="satfinite" in i.modifiers)

    def run(wave: Wave) -> None:
        _check_whole(wave, i)
        left = _fragment([_by_warp(wave, r(wave)) for r in a], kinds[1], depth, rows=16)
        right = _fragment([_by_warp(wave, r(wave)) for r in b], kinds[2], depth, rows=8).transpose(0, 2, 1)
        sums = (left @ right).reshape(-1, 2, 8, 4, 2)  # warp, g // 8, g % 8, t, column of a pair
        given = [_by_warp(wave, read(wave)) for read in c]
        for k, values in enumerate(given):
            if kinds[0] == "f16":
                pair = np.ascontiguousarray(values)[:, :, None].view(np.float16)
                parts = sums[:, k].reshape(-1, WARP, 2)
                wave.assign(registers[0][k], (parts + pair).astype(np.float16).view(np.uint32).ravel())
            else:
                added = np.float64(values) + sums[:, k // 2, :, :, k % 2].reshape(-1, WARP)
                wave.assign(registers[0][k], rounded(added).ravel())

    return run


def _integers(x: np.ndarray, saturates: bool) -> np.ndarray:
    """Return float64 numbers as int32; what is too large is clamped, or wraps around."""
    limits = np.iinfo(np.int32)
    return np.clip(x, limits.min, limits.max).astype(np.int32) if saturates else x.astype(np.int64).astype(np.int32)


def _toward_zero(x: np.ndarray) -> np.ndarray:
    """Return float64 numbers as float32, rounded toward zero; what is too large becomes infinite."""
    y = x.astype(np.float32)
    beyond = np.isfinite(y) & (np.abs(y) > np.abs(x))
    return (y.view(np.uint32) - beyond).view(np.float32)  # the number before it, of either sign


def _fragment(given: list[np.ndarray], kind: str, depth: int, rows: int) -> np.ndarray:
    """Return a matrix in registers as a float64 array (warps, rows, depth); for B, its rows are the columns of B."""
    bits, several = np.stack(given), PACKED[kind]
    if kind == "tf32":
        values = A.tf32(bits.view(np.float32))
    elif kind == "bf16":
        values = A.bf16_to_f32(bits.view(np.uint16))
    else:
        values = bits.view({"f16": np.float16, "s8": np.int8, "u8": np.uint8}[kind])
    # part of the depth, rows // 8, warp, g, and t with the numbers that a register packs
    parts = values.reshape(-1, rows // 8, bits.shape[1], 8, 4 * several)
    return parts.transpose(2, 1, 3, 0, 4).astype(np.float64).reshape(-1, rows, depth)
