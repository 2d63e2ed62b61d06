"""Barriers in shared memory (PTX ISA, mbarrier): init, arrive, arrive_drop, test_wait, try_wait, pending_count and inval.

A barrier is a word of 64 bits, whose contents PTX leaves open: here the number of arrivals that its phase still waits for (20
bits), that of a whole phase (20 bits), and the number of the phase. The state that an arrival returns is the word before it.
An arrival releases what its thread did, and a wait that succeeds acquires it (`fences`). Transactions (expect_tx) and barriers
of other blocks of a cluster are not here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .accesses import address_reader, running, space_of
from .fences import Moment
from .instructions import Step, reader
from .program import Instruction, Number, Program
from .races import OF_WARP, Fault
from .wave import Wave

COUNT = 20  # bits of a number of arrivals
MOST = (1 << COUNT) - 1
PHASE = 2 * COUNT  # the first bit of the number of the phase
KNOWN = {"cta", "b64", "shared", "shared::cta", "parity", "noComplete", "release", "acquire", "relaxed"}


def step(program: Program, i: Instruction) -> Step | None:
    """Return the `Step` of an mbarrier instruction; None for other instructions."""
    if i.opcode != "mbarrier" or set(i.modifiers[1:]) - KNOWN:
        return None
    make = {
        "init": _init,
        "inval": _invalidate,
        "arrive": _arrive,
        "arrive_drop": _arrive,
        "test_wait": _wait,
        "try_wait": _wait,
        "pending_count": _pending,
    }.get(i.modifiers[0])
    return None if make is None else Step(make(program, i))


def _numbers(wave: Wave, read: Callable[[Wave], np.ndarray]) -> list[int]:
    return running(wave, read).tolist()


def _init(program: Program, i: Instruction) -> Callable[[Wave], None]:
    at, read = address_reader(program, i.operands[0]), reader(program, i.operands[1], "u32")

    def run(wave: Wave) -> None:
        counts = running(wave, read).astype(np.uint64)
        for number, count in enumerate(counts.tolist()):
            if not 0 < count <= MOST:
                raise wave.error(i, f"a barrier of {count} arrivals: from 1 to {MOST} are possible", wave.lanes[number])
        # not as a plain write, since threads of the same warp may go on without a barrier: `_used` looks at other warps
        for store, chosen, offset in wave.find(i, space_of(i), at(wave), 8, wave.lanes, writing=True, atomic=True):
            _check_others(wave, i, wave.lanes[chosen], offset, "initialised")
            store.write(offset, counts[chosen] << np.uint64(COUNT) | counts[chosen], 8)
            for lane, place in zip(wave.lanes[chosen].tolist(), offset.tolist()):
                now = _moment(wave, lane)
                before = wave.started.get(place)
                if before is not None and before.stamp == now.stamp and before.code >> OF_WARP != now.code >> OF_WARP:
                    raise _race(wave, i, lane, before.code, "initialised")  # two warps by one instruction
                wave.started[place] = now
        wave.moved = True

    return run


def _invalidate(program: Program, i: Instruction) -> Callable[[Wave], None]:
    at = address_reader(program, i.operands[0])

    def run(wave: Wave) -> None:
        for store, _, offset in wave.find(i, space_of(i), at(wave), 8, wave.lanes, writing=True):
            store.forget(offset, 8)

    return run


def _used(wave: Wave, i: Instruction, at: Callable[[Wave], np.ndarray], writing: bool) -> list:
    """Return the result of `Wave.find` for the barriers that threads use. Raise an error if a thread of another warp has just
    made one.
    """
    found = wave.find(i, space_of(i), at(wave), 8, wave.lanes, writing=writing, atomic=True)
    for _, chosen, offset in found:
        _check_others(wave, i, wave.lanes[chosen], offset, "used")
    return found


def _check_others(wave: Wave, i: Instruction, lanes: np.ndarray, offset: np.ndarray, done: str) -> None:
    """Raise an error if a thread of another warp has initialised the barrier of a thread, and nothing orders both."""
    for place in np.unique(offset).tolist():
        before = wave.started.get(place)
        if before is None:
            continue
        codes, epochs = (part[lanes] for part in wave.who[:2])
        apart = (offset == place) & (codes >> OF_WARP != before.code >> OF_WARP) & (epochs == before.epoch)
        for lane in lanes[apart].tolist():
            fences = wave.launch.fences
            if fences is None or not fences.ordered(before, _moment(wave, lane), True, False):
                raise _race(wave, i, lane, before.code, done)


def _moment(wave: Wave, lane: int) -> Moment:
    """Return when a thread does what it does now."""
    fences = wave.launch.fences
    code, epoch, warp_epoch = (int(part[lane]) for part in wave.who[:3])
    return Moment(code, 0 if fences is None else fences.clock, epoch, warp_epoch)


def _race(wave: Wave, i: Instruction, lane: int, code: int, done: str) -> Exception:
    thread = (code >> OF_WARP & 63) * 32 + (code & 63)
    return wave.error(i, f"shared race: {done} here, and initialised by thread {thread} with no barrier between", lane)


def _arrive(program: Program, i: Instruction) -> Callable[[Wave], None]:
    target, address, *given = i.operands
    at, read = address_reader(program, address), reader(program, given[0] if given else Number(1), "u32")
    drops, may_complete = i.modifiers[0] == "arrive_drop", "noComplete" not in i.modifiers

    def run(wave: Wave) -> None:
        counts, states = _numbers(wave, read), np.zeros(wave.lanes.size, np.uint64)
        found = _used(wave, i, at, writing=True)
        if "relaxed" not in i.modifiers:
            wave.fence(wide=False)
            wave.ordering(found, wave.lanes, reads=False, writes=True)
        for store, chosen, offset in found:
            with wave.told(i, "shared", wave.lanes, chosen):
                words = dict(zip(offset.tolist(), store.read(offset, 8).tolist()))
                for number, (which, place) in enumerate(zip(chosen.tolist(), offset.tolist())):
                    states[which] = words[place]
                    words[place] = _arrived(words[place], counts[which], drops, may_complete, number)
            places = np.array(list(words), np.int64)
            store.write(places, np.array(list(words.values()), np.uint64), 8)
        wave.moved = True
        wave.assign(target, wave.spread(states))

    return run


def _arrived(word: int, count: int, drops: bool, may_complete: bool, number: int) -> int:
    """Return the word of a barrier after an arrival; raise Fault with the number of the thread if there are too many."""
    pending, expected, phase = word & MOST, word >> COUNT & MOST, word >> PHASE
    if not 0 < count <= pending:
        raise Fault(f"barrier: {count} arrive, and its phase waits for {pending} of {expected} arrivals", number)
    expected -= count if drops else 0
    pending -= count
    if not pending:
        if not may_complete:
            raise Fault("barrier: an arrival with .noComplete completes the phase", number)
        pending, phase = expected, (phase + 1) % (1 << 64 - PHASE)
    return phase << PHASE | expected << COUNT | pending


def _wait(program: Program, i: Instruction) -> Callable[[Wave], None]:
    """Return the function of test_wait and try_wait, which does not wait here: programs ask until it is true."""
    target, address, state, *_ = i.operands
    parity = "parity" in i.modifiers
    at, read = address_reader(program, address), reader(program, state, "u32" if parity else "b64")

    def run(wave: Wave) -> None:
        states, phases = running(wave, read).astype(np.uint64), np.zeros(wave.lanes.size, np.uint64)
        found = _used(wave, i, at, writing=False)
        for store, chosen, offset in found:
            with wave.told(i, "shared", wave.lanes, chosen):
                phases[chosen] = store.read(offset, 8) >> np.uint64(PHASE)
        ended = phases & np.uint64(1) != states & np.uint64(1) if parity else phases != states >> np.uint64(PHASE)
        if "relaxed" not in i.modifiers:
            over = [(store, chosen[ended[chosen]], offset[ended[chosen]]) for store, chosen, offset in found]
            wave.ordering(over, wave.lanes, reads=True, writes=False)
        if ended.all():
            wave.moved = True
        else:
            wave.poll(i, at(wave), phases)
        wave.assign(target, wave.spread(ended))

    return run


def _pending(program: Program, i: Instruction) -> Callable[[Wave], None]:
    target, state = i.operands
    read = reader(program, state, "b64")
    return lambda wave: wave.assign(target, (np.asarray(read(wave)).astype(np.uint64) & np.uint64(MOST)).astype(np.uint32))
