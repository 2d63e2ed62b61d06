"""The interpreter: runs a PTX kernel on NumPy arrays with one element per thread, for all threads of many blocks at once.

    groups      threads at the same instruction run it together: the group that is farthest behind runs first, so that
                threads that diverged at a branch meet again where the branches join
    barriers    a group at a barrier waits for all threads of its block (or warp) that have not returned; if some of them wait
                elsewhere, that is an error that names both lines
    registers   an array each; a partial write makes a new array, so that arrays may be shared

Blocks run in waves of `WAVE` threads. Threads are numbered block after block, each block padded to whole warps.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .arguments import packed
from .arithmetic import BITS, DTYPES
from .counters import Counters
from .parse import Instruction, Program, PtxError
from .races import OF_BLOCK, OF_WARP, Fault, Who, changing
from .spaces import WARP, WINDOW, WINDOWS, Global, Private, check_alignment

WAVE = 8192  # number of threads that run at once: enough to amortise Python's time, few enough to keep registers in the cache
BIT_OF_LANE = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
SPECIAL = {
    "%laneid",
    "%warpid",
    "%dynamic_smem_size",
    *(f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"),
}
# if a wave takes more CPU seconds, the kernel is assumed not to end
LIMIT = float(os.environ.get("NUMBANET_EMULATED_SECONDS", 20))


def register_dtype(kind: str) -> np.dtype:
    """Return the dtype of a register. Registers hold bits, unless they are declared as floats or predicates."""
    dtype = DTYPES[kind]
    return BITS[dtype.itemsize] if dtype.kind in "iu" else dtype


class Wave:
    """Some blocks of a launch: their registers, memory and running threads."""

    def __init__(self, program: Program, launch: Launch, blocks: range) -> None:
        self.program, self.launch, self.counters = program, launch, launch.counters
        size = math.prod(launch.block)
        self.warps_a_block = -(-size // WARP)
        in_block = np.tile(np.arange(self.warps_a_block * WARP), len(blocks))
        self.count = in_block.size
        # (threads,) the block of each thread, numbered within the wave
        self.blocks = np.repeat(np.arange(len(blocks)), self.warps_a_block * WARP)
        self.number = np.asarray(blocks)[self.blocks]  # (threads,) the block of each thread, numbered within the grid
        self.special = self._special(in_block)
        self.alive = in_block < size
        self.active, self.full, self.lanes = self.alive, True, np.flatnonzero(self.alive)
        zeros = {kind: np.zeros(self.count, register_dtype(kind)) for kind in DTYPES}
        self.registers = {name: zeros[kind] for name, kind in program.registers.items()}
        self.shared = Private(len(blocks), program.places("shared", launch.dynamic))
        self.local, self.param = (Private(self.count, program.places(space)) for space in ("local", "passed"))
        nothing = np.zeros(self.count, np.int32)
        self.who = Who(self.number << OF_BLOCK | in_block // WARP << OF_WARP | in_block % WARP, nothing, nothing)
        # groups of asynchronous copies that have not arrived, and the number of closed groups of each thread
        self.pending: list[list[Any]] = []
        self.committed = np.zeros(self.count, np.int64)
        self.carry = np.zeros(self.count, bool)
        self.calls: tuple[int, ...] = ()  # the call stack: the call instructions that lead to the current function

    def _special(self, in_block: np.ndarray) -> dict[str, np.ndarray]:
        """Return the special registers, int64."""
        values = {"%laneid": in_block % WARP, "%warpid": in_block // WARP}
        values["%dynamic_smem_size"] = np.full(self.count, self.launch.dynamic)
        for name, places, shape in (("tid", in_block, self.launch.block), ("ctaid", self.number, self.launch.grid)):
            x, y, z = shape
            axes = places % x, places // x % y, places // (x * y)
            values.update({f"%{name}.{axis}": place for axis, place in zip("xyz", axes, strict=True)})
        for name, shape in (("ntid", self.launch.block), ("nctaid", self.launch.grid)):
            values.update({f"%{name}.{axis}": np.full(self.count, n) for axis, n in zip("xyz", shape, strict=True)})
        return values

    # --- which threads run --------------------------------------------------------------------------------------------
    def run(self, active: np.ndarray) -> None:
        """Set the running threads."""
        self.active, self.lanes = active, np.flatnonzero(active)
        self.full = self.lanes.size == np.count_nonzero(self.alive)

    @contextlib.contextmanager
    def where(self, condition: np.ndarray) -> Iterator[None]:
        """Restrict the running threads to those that meet a condition."""
        before = self.active, self.lanes, self.full
        self.run(self.active & condition)
        yield
        self.active, self.lanes, self.full = before

    def warps(self) -> int:
        """Return the number of warps with a running thread."""
        return int(np.count_nonzero(self.active.reshape(-1, WARP).any(axis=1)))

    # --- registers ----------------------------------------------------------------------------------------------------
    def assign(self, name: str, value: Any) -> None:
        """Write a register, with sign extension for narrower signed values."""
        if name == "_":
            return
        old, value = self.registers[name], np.asarray(value)
        if value.dtype != old.dtype:
            if value.dtype.itemsize < old.dtype.itemsize:
                value = value.astype(f"{value.dtype.kind if value.dtype.kind != 'f' else 'u'}{old.dtype.itemsize}")
            value = value.view(old.dtype)
        if self.full:
            self.registers[name] = np.full(self.count, value) if not value.ndim else value
        else:
            self.registers[name] = np.where(self.active, value, old)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return the values of the running threads as an array with an element for each thread."""
        everywhere = np.zeros(self.count, values.dtype)
        everywhere[self.lanes] = values
        return everywhere

    # --- memory -------------------------------------------------------------------------------------------------------
    def find(
        self,
        instruction: Instruction,
        space: str,
        address: np.ndarray,
        width: int,
        lanes: np.ndarray,
        writing: bool,
        atomic: bool = False,
        aligned: int | None = None,
        values: np.ndarray | None = None,
    ) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        """Check and count the accesses of an instruction. Return a list of (store, mask of the accesses to this store, their
        offsets). `address` has one element per lane, which must be a multiple of `aligned`, by default of the width. If plain
        writes pass their `values` (lanes, registers), those that change nothing do not race.
        """
        if space == "generic":
            return self._find_generic(instruction, address, width, lanes, writing, atomic, values)
        try:
            check_alignment(address, aligned or width)
            if space == "global":
                found = self.launch.memory.find(address, width)
            else:
                owners = self.blocks[lanes] if space == "shared" else lanes * 0 if space == "const" else lanes
                found = getattr(self.launch if space == "const" else self, space).find(address, width, owners)
        except Fault as fault:
            raise self.error(instruction, f"{space} {fault.problem}", lanes[fault.number]) from None
        if space in ("global", "shared"):
            self.counters.access(instruction, space, address, width, lanes)
            for store, chosen, offset in found:
                if values is not None:
                    loud = changing(*store.before(offset, width, values.shape[1]), offset, values[chosen])
                    chosen, offset = chosen[loud], offset[loud]
                if not chosen.size:
                    continue
                with self.told(instruction, space, lanes[chosen]):
                    if writing and not store.data.flags.writeable:
                        raise Fault("written, and the array is read-only", 0)
                    store.shadow.touch(offset, width, self._who(lanes[chosen]), writing, atomic)
        return found

    def _find_generic(self, instruction, address, width, lanes, writing, atomic, values):
        found = []
        for space in ("shared", "local", "global"):
            start = WINDOWS.get(space, 0)
            chosen = np.flatnonzero((address >= start) & (address < start + WINDOW))
            if chosen.size:
                found += [
                    (store, chosen[which], offset)
                    for store, which, offset in self.find(
                        instruction,
                        space,
                        address[chosen] - start,
                        width,
                        lanes[chosen],
                        writing,
                        atomic,
                        values=None if values is None else values[chosen],
                    )
                ]
        return found

    def _who(self, lanes: np.ndarray) -> Who:
        return self.who if lanes.size == self.count else self.who.of(lanes)

    def pass_barrier(self, threads: np.ndarray, of: str) -> None:
        """Record that all threads of a block or warp have met at a barrier, which orders earlier accesses before later ones."""
        name = "epochs" if of == "block" else "warp_epochs"
        self.who = self.who._replace(**{name: getattr(self.who, name) + threads})

    @contextlib.contextmanager
    def told(self, instruction: Instruction, space: str, lanes: np.ndarray) -> Iterator[None]:
        """Return a context that turns a `Fault` into an error which names the line and the thread."""
        try:
            yield
        except Fault as fault:
            raise self.error(instruction, f"{space} {fault.problem}", lanes[fault.number]) from None

    # --- errors -------------------------------------------------------------------------------------------------------
    def error(self, instruction: Instruction, problem: str, lane: int | None = None) -> PtxError:
        """Return an error that names the kernel, the line and the thread."""
        at = (
            ""
            if lane is None
            else " by "
            + ", ".join(
                f"{what} ({', '.join(str(int(self.special[f'%{name}.{axis}'][lane])) for axis in 'xyz')})"
                for what, name in (("thread", "tid"), ("block", "ctaid"))
            )
        )
        via = "".join(f", called in {self.program.where(self.program.instructions[k])}" for k in reversed(self.calls))
        error = PtxError(f"{self.launch.name}, {self.program.where(instruction)}{via}: {problem}{at}")
        error.at = self, instruction, lane
        return error


class Launch:
    """One launch: its shape, parameters and memory.

    Parameters
    ----------
    program : Program
        The kernel.
    grid, block : sequence of int
        Up to three lengths each.
    arguments : sequence
        Numbers, and the arrays that form global memory.
    placed : bool
        True if these are in device memory (`Global`).
    dynamic : int
        Bytes of dynamic shared memory.
    counters : Counters
        Counters to add to.
    """

    equal_writes = False  # True if plain writes that change nothing, or are equal to another one, do not race

    def __init__(
        self,
        program: Program,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        placed: bool,
        dynamic: int,
        counters: Counters,
        name: str,
    ) -> None:
        self.program, self.dynamic, self.counters, self.name = program, dynamic, counters, name
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        self.grid, self.block = ((*shape, 1, 1)[:3] for shape in (grid, block))
        self.tables = {name: np.frombuffer(initial, np.uint8).copy() for name, initial in program.tables.items()}
        self.memory = Global([*arrays, *self.tables.values()], placed)
        # bytes: the parameters, packed by the caller
        self.parameters = arguments if isinstance(arguments, bytes) else packed(program, arguments, self.memory.address)
        self.const = Private(1, program.places("const"))
        for variable in program.const.values():
            start = np.arange(variable.offset, variable.offset + len(variable.initial))
            self.const.store.write(start, np.frombuffer(variable.initial, np.uint8), 1)

    def run(self) -> None:
        """Run all blocks, wave after wave."""
        from .instructions import steps

        threads, count = -(-math.prod(self.block) // WARP) * WARP, math.prod(self.grid)
        decoded, at_once = steps(self.program), max(WAVE // threads, 1)
        with np.errstate(all="ignore"):
            for first in range(0, count, at_once):
                _run(Wave(self.program, self, range(first, min(first + at_once, count))), decoded)


# the call stack of a group of threads, then its next instruction; the kernel itself has an empty call stack
Place = tuple[int, ...]


def _run(wave: Wave, steps: Sequence[Any]) -> None:
    """Run until every thread has returned."""
    groups: dict[Place, np.ndarray] = {(0,): wave.alive}
    held: dict[Place, np.ndarray] = {}
    began = time.thread_time()
    while groups or held:
        if not groups:
            groups, held = _release(wave, held, steps)
        # the call stack is compared first, so threads inside a function count as behind those that have returned from it
        place = min(groups)
        wave.run(groups.pop(place))
        *calls, first = place
        wave.calls, pc = tuple(calls), first
        others = min(groups, default=())
        stop = others[-1] if others[:-1] == wave.calls and others else len(steps)
        while pc < stop and steps[pc].plain is not None:
            steps[pc].plain(wave)
            pc += 1
        if time.thread_time() - began > LIMIT:
            raise wave.error(
                wave.program.instructions[min(pc, len(steps) - 1)],
                f"the kernel does not end, and is here after {LIMIT:g} s (NUMBANET_EMULATED_SECONDS gives it more)",
                wave.lanes[0],
            )
        wave.counters.ran(first, pc, wave)
        if pc == stop:
            _join(groups, (*wave.calls, pc), wave.active)
        else:
            wave.counters.ran(pc, pc + 1, wave)
            _turn(wave, steps, pc, groups, held)


def _turn(wave: Wave, steps: Sequence[Any], pc: int, groups: dict[Place, np.ndarray], held: dict[Place, np.ndarray]) -> None:
    """Run an instruction after which threads may jump or wait."""
    step, calls, active = steps[pc], wave.calls, wave.active
    if step.kind == "branch":
        taken = active if step.condition is None else active & step.condition(wave)
        wave.counters.branch(pc, taken, wave)
        _join(groups, (*calls, step.target), taken)
        _join(groups, (*calls, pc + 1), active & ~taken)
    elif step.kind == "exit":
        wave.alive = wave.alive & ~active
    elif step.kind == "call":
        step.run(wave)
        _join(groups, (*calls, pc, step.target), active)
    elif step.kind == "return":
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


def _release(wave: Wave, held: dict[Place, np.ndarray], steps: Sequence[Any]) -> tuple[dict, dict]:
    """Return (groups that may go on, groups that still wait); this is called when no other group can run."""
    groups, waiting = {}, {}
    for place, threads in held.items():
        step, wave.calls = steps[place[-1]], place[:-1]
        complete = step.complete(wave, threads)
        if complete.any():
            wave.run(complete)
            if step.kind == "barrier":
                wave.pass_barrier(complete, "block")
            if step.run is not None:
                step.run(wave)
        _join(groups, (*place[:-1], place[-1] + 1), complete)
        _join(waiting, place, threads & ~complete)
    if not groups:
        raise _never(wave, waiting, steps)
    return groups, waiting


def _never(wave: Wave, waiting: dict[Place, np.ndarray], steps: Sequence[Any]) -> PtxError:
    """Return the error for a deadlock: all threads that have not returned wait at barriers that will never complete."""
    place, program = min(waiting), wave.program
    lane, of = int(np.flatnonzero(waiting[place])[0]), steps[place[-1]].of
    same = wave.blocks == wave.blocks[lane] if of == "block" else np.arange(wave.count) // WARP == lane // WARP
    other = next(other for other, threads in waiting.items() if other != place and (threads & same).any())
    wave.calls = place[:-1]
    return wave.error(
        program.instructions[place[-1]],
        f"a barrier that part of its {of} never reaches: others wait at "
        f"{program.where(program.instructions[other[-1]])}; waited for",
        lane,
    )


def whole_warps(wave: Wave, threads: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return those of the waiting `threads` whose barrier is complete: each thread in its mask also waits, or has returned.
    members (T,), uint32, holds the mask of each thread.
    """
    here = threads.reshape(-1, WARP)
    wanted = members.reshape(-1, WARP)[:, :, None] & BIT_OF_LANE != 0  # wanted[w, i, j]: lane i of warp w waits for lane j
    missing = wanted & wave.alive.reshape(-1, 1, WARP) & ~here[:, None, :]
    return (here & ~missing.any(axis=2)).ravel()


def whole_blocks(wave: Wave, threads: np.ndarray) -> np.ndarray:
    """Return those of the waiting `threads` whose barrier is complete: each thread of the block also waits, or has returned."""
    size = wave.warps_a_block * WARP
    here = (threads | ~wave.alive).reshape(-1, size).all(axis=1)
    return threads & here[wave.blocks]
