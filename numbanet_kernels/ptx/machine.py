"""The interpreter: runs a PTX kernel on NumPy arrays with one element per thread, for all threads of many blocks at once.

    groups      threads at the same instruction run it together: the group that is farthest behind runs first, so that
                threads that diverged at a branch meet again where the branches join; while it polls memory, others take turns
    barriers    a group at a barrier waits for all threads of its block (or warp) that have not returned; if some of them wait
                elsewhere, that is an error that names both lines
    registers   an array each; a partial write makes a new array, so that arrays may be shared

Blocks run in waves of `WAVE` threads. Threads are numbered block after block, each block padded to whole warps.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arguments import array_of, packed
from .counters import Counters, Uncounted
from .fences import Fences
from .program import Program, PtxError
from .spaces import WARP, Global, Private
from .wave import Wave

WAVE = 8192  # number of threads that run at once: enough to amortise Python's time, few enough to keep registers in the cache
RECURSIVE_WAVE = 1024  # the same for kernels with recursion, which save registers at each call
RESIDENT = 1 << 18  # number of threads that run at once on a large card: the most that a barrier of the whole grid may have
# if no thread of a wave gets further for more CPU seconds, the kernel is assumed not to end
LIMIT = float(os.environ.get("NUMBANET_EMULATED_SECONDS", 20))

POLLS, MOST_POLLS = 8, 20_000  # jumps of threads that poll memory without a change: before others run, and before an error
TURNS = 64  # CPU time and threads are looked at after that many jumps: that takes longer than some instructions


class Launch:
    """One launch: its shape, parameters and memory.

    Parameters
    ----------
    program : Program
        The kernel.
    grid, block : sequence of int
        Up to three lengths each.
    arguments : sequence or bytes
        Numbers, and the arrays that form global memory; or the bytes of the parameters, packed by the caller.
    placed : bool
        True if these are in device memory (`Global`).
    dynamic : int
        Bytes of dynamic shared memory.
    counters : Counters or Uncounted
        Counters to add to.
    tables : dict
        The bytes of the program's .global variables, by name; those that are missing are added. By default all are new.
    """

    # True for code of others, in which less is a race: not a plain write that changes nothing or is equal to another one, and
    # not, with an atomic instruction of another thread, a plain read of what an atomic instruction changes later
    plain = False

    def __init__(
        self,
        program: Program,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        placed: bool,
        dynamic: int,
        counters: Counters | Uncounted,
        name: str,
        tables: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.program, self.dynamic, self.counters, self.name = program, dynamic, counters, name
        passed = () if isinstance(arguments, bytes) else arguments
        arrays = [a if isinstance(a, np.ndarray) else array_of(a) for a in passed if isinstance(a, (np.ndarray, np.void))]
        self.grid, self.block = ((*shape, 1, 1)[:3] for shape in (grid, block))
        tables = {} if tables is None else tables
        for variable, initial in program.tables.items():
            tables.setdefault(variable, np.frombuffer(initial, np.uint8).copy())
        self.tables = {variable: tables[variable] for variable in program.tables}
        self.memory = Global([*arrays, *self.tables.values()], placed)
        # bytes: the parameters, packed by the caller
        self.parameters = arguments if isinstance(arguments, bytes) else packed(program, arguments, self.memory.address)
        self.fences = Fences(math.prod(self.grid), math.prod(self.block)) if program.fenced else None
        self.const = Private(1, program.places("const"))
        for variable in program.const.values():
            start = np.arange(variable.offset, variable.offset + len(variable.initial))
            self.const.store.write(start, np.frombuffer(variable.initial, np.uint8), 1)

    def allocated(self, wave: Wave, instruction: Any, lane: int, address: int) -> None:
        """Note that a thread has allocated memory (malloc); a subclass may want to know."""

    def run(self) -> None:
        """Run all blocks, wave after wave."""
        from .instructions import steps

        threads, count = -(-math.prod(self.block) // WARP) * WARP, math.prod(self.grid)
        decoded = steps(self.program)
        at_once = max((RECURSIVE_WAVE if self.program.recursive else WAVE) // threads, 1)
        if any(step.of == "grid" for step in decoded):
            at_once = count
            if count * threads > RESIDENT:
                raise PtxError(
                    f"{self.name}: {count} blocks of {threads} threads do not fit on a card at once, as a grid that waits must"
                )
        with np.errstate(all="ignore"):
            for first in range(0, count, at_once):
                _run(Wave(self.program, self, range(first, min(first + at_once, count))), decoded)


# the call stack of a group of threads, then its next instruction; the kernel itself has an empty call stack
Place = tuple[int, ...]


def _run(wave: Wave, steps: Sequence[Any]) -> None:
    """Run until every thread has returned."""
    groups: dict[Place, np.ndarray] = {(0,): wave.alive}
    held: dict[Place, np.ndarray] = {}
    began, turns, polls = time.thread_time(), 0, 0
    idle = np.zeros(wave.count, bool)  # threads that have polled since memory last changed
    furthest = np.zeros(wave.count, np.int64)  # the last instruction of the kernel at which each thread was seen
    while groups or held:
        if not groups or (held and polls and polls % POLLS == 0):
            released, held = _release(wave, held, steps, must=not groups)
            polls = 0 if released else polls
            for place, threads in released.items():
                _join(groups, place, threads)
        # the call stack is compared first, so threads inside a function count as behind those that have returned from it
        place = min(groups) if polls < POLLS else sorted(groups)[turns % len(groups)]
        wave.run(groups.pop(place))
        *calls, first = place
        wave.calls, pc = tuple(calls), first
        others = min((other for other in groups if other > place), default=())
        stop = others[-1] if others[:-1] == wave.calls and others else len(steps)
        wave.polled = wave.moved = False
        try:
            while pc < stop and steps[pc].plain is not None:
                steps[pc].plain(wave)
                pc += 1
        except BaseException:
            wave.counters.ran(first, pc + 1, wave)  # what was issued until the error
            raise
        turns += 1
        polls = 0 if wave.moved else polls + wave.polled
        if wave.polled:
            idle = idle & (polls > 1) | wave.active
        stuck = polls > MOST_POLLS and (idle | ~wave.alive | sum(held.values(), np.zeros(wave.count, bool))).all()
        if turns % TURNS == 0 and _got_further(wave, furthest, (*wave.calls, pc)[0], groups, held, len(steps)):
            began = time.thread_time()
        if stuck or (turns % TURNS == 0 and time.thread_time() - began > LIMIT):
            raise _endless(wave, min(pc, len(steps) - 1), stuck)
        wave.counters.ran(first, pc, wave)
        if pc == stop:
            _join(groups, (*wave.calls, pc), wave.active)
        else:
            wave.counters.ran(pc, pc + 1, wave)
            _turn(wave, steps, pc, groups, held)


def _got_further(
    wave: Wave, furthest: np.ndarray, here: int, groups: dict[Place, np.ndarray], held: dict[Place, np.ndarray], end: int
) -> bool:
    """Note the last instruction of the kernel that each thread has come to: `here` for active ones, `end` for those that have
    returned. Return True if one is later than what was noted before: the thread may have left a loop.
    """
    now = np.where(wave.alive, furthest, end)
    now[wave.active] = np.maximum(now[wave.active], here)
    for place, threads in (*groups.items(), *held.items()):
        now[threads] = np.maximum(now[threads], place[0])
    further = bool((now > furthest).any())
    furthest[:] = now
    return further


def _endless(wave: Wave, pc: int, stuck: bool) -> PtxError:
    """Return the error for threads that go on for too long, or are `stuck`: they poll memory that nobody changes."""
    instruction, lane = wave.program.instructions[pc], wave.lanes[0]
    if not stuck:
        more = "NUMBANET_EMULATED_SECONDS gives it more"
        return wave.error(
            instruction,
            f"the kernel does not end, and is here after {LIMIT:g} s in which no thread left the loop ({more})",
            lane,
        )
    later = math.prod(wave.launch.grid) - int(wave.number[-1]) - 1
    left = f"; the last {later} blocks of the grid run when these have ended, as on a card that is full" if later else ""
    problem = f"the kernel does not end: all threads that run wait here for memory that none of them changes{left}; polled"
    if wave.polling is not None:
        instruction, lane, wave.calls = wave.polling
    error = wave.error(instruction, problem, lane)
    error.polled = wave.polling is not None
    return error


def _turn(wave: Wave, steps: Sequence[Any], pc: int, groups: dict[Place, np.ndarray], held: dict[Place, np.ndarray]) -> None:
    """Run an instruction after which threads may jump or wait."""
    step, calls, active = steps[pc], wave.calls, wave.active
    if step.guard is not None:  # threads whose predicate is false go on
        active = active & step.guard(wave)
        wave.counters.idle(wave.program.instructions[pc], wave.lanes.size - np.count_nonzero(active))
        _join(groups, (*calls, pc + 1), wave.active & ~active)
        if not active.any():
            return
        wave.run(active)
    if step.kind == "branch":
        taken = active if step.condition is None else active & step.condition(wave)
        wave.counters.branch(pc, taken, wave)
        _join(groups, (*calls, step.target), taken)
        _join(groups, (*calls, pc + 1), active & ~taken)
    elif step.kind == "table":
        chosen = np.broadcast_to(step.condition(wave), wave.count)
        warps, targets = active.reshape(-1, WARP), chosen.reshape(-1, WARP)
        first = targets[np.arange(len(targets)), warps.argmax(axis=1)]  # the target of the first thread of each warp
        wave.counters.branch(pc, (warps & (targets == first[:, None])).ravel(), wave)
        for number in np.unique(chosen[wave.lanes]):
            if number >= len(step.targets):
                raise wave.error(
                    wave.program.instructions[pc], f"{number} is beyond the {len(step.targets)} labels", wave.lanes[0]
                )
            _join(groups, (*calls, step.targets[number]), active & (chosen == number))
    elif step.kind == "exit":
        wave.alive = wave.alive & ~active
    elif step.kind == "call":
        step.run(wave)
        _join(groups, (*calls, pc, step.target), active)
    elif step.kind == "pointer":
        addresses = np.broadcast_to(step.condition(wave), wave.count)
        for address in np.unique(addresses[wave.lanes]):
            some = active & (addresses == address)
            wave.run(some)
            _join(groups, (*calls, pc, step.enter(wave, int(address))), some)
    elif step.kind == "return":
        wave.leaving = wave.program.instructions[pc].function
        steps[calls[-1]].back(wave)
        _join(groups, (*calls[:-1], calls[-1] + 1), active)
    elif step.kind == "warp" and step.complete(wave, active).all():
        step.run(wave)
        _join(groups, (*calls, pc + 1), active)
    else:
        _join(held, (*calls, pc), active)


def _join(groups: dict[Place, np.ndarray], place: Place, threads: np.ndarray) -> None:
    if threads.any():
        groups[place] = groups[place] | threads if place in groups else threads


def _release(wave: Wave, held: dict[Place, np.ndarray], steps: Sequence[Any], must: bool) -> tuple[dict, dict]:
    """Return (groups that may go on, groups that still wait). If some `must` go on, because no other group can run, and none
    can, that is an error.
    """
    groups, waiting, wave.held = {}, {}, held
    passed: list[tuple[int, np.ndarray]] = []
    for place, threads in held.items():
        step, wave.calls = steps[place[-1]], place[:-1]
        complete = step.complete(wave, threads)
        if complete.any():
            wave.run(complete)
            if step.kind == "barrier":
                wave.pass_barrier(complete, step.of)
            if step.run is not None:
                step.run(wave)
            if step.number is not None:
                passed.append((step.number, wave.blocks[complete]))
        _join(groups, (*place[:-1], place[-1] + 1), complete)
        _join(waiting, place, threads & ~complete)
    for number, blocks in passed:
        if number in wave.arrived:
            wave.arrived[number][blocks] = 0
    if not groups and must:
        raise _never(wave, waiting, steps)
    return groups, waiting


def _never(wave: Wave, waiting: dict[Place, np.ndarray], steps: Sequence[Any]) -> PtxError:
    """Return the error for a deadlock: all threads that have not returned wait at barriers that will never complete."""
    place, program = min(waiting), wave.program
    lane, of = int(np.flatnonzero(waiting[place])[0]), steps[place[-1]].of
    same = {"block": wave.blocks == wave.blocks[lane], "grid": wave.blocks >= 0}.get(
        of, np.arange(wave.count) // WARP == lane // WARP
    )
    other = next((other for other, threads in waiting.items() if other != place and (threads & same).any()), None)
    if other is None:
        gone = np.flatnonzero(same & ~wave.alive & wave.there)
        where = "others have ended" + (f", {wave.thread(gone[0])} among them" if gone.size else "")
    else:
        there = wave.thread(int(np.flatnonzero(waiting[other] & same)[0]))
        where = f"others wait at {program.where(program.instructions[other[-1]])}, {there} among them"
    wave.calls = place[:-1]
    problem = f"a barrier that part of its {of} never reaches: {where}; waited for"
    return wave.error(program.instructions[place[-1]], problem, lane)
