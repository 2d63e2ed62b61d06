"""A wave: some blocks of a launch, with an array of one element per thread for each register."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .arithmetic import BITS, DTYPES
from .fences import Moment
from .program import CALLED, MOST_CALLS, Instruction, Program, PtxError
from .races import OF_BLOCK, OF_WARP, Fault, Parts, Who, changing
from .spaces import WARP, WINDOW, WINDOWS, Frames, Private, check_alignment, outside

if TYPE_CHECKING:
    from .machine import Launch

# the special registers that the shape of a launch decides; `CHANGING` has those that an instruction asks for
SPECIAL = {
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%dynamic_smem_size", "%total_smem_size",
    *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge")),
    *(f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"),
}  # fmt: skip
CHANGING: dict[str, Callable[[], int]] = {name: time.perf_counter_ns for name in ("%clock", "%clock64", "%globaltimer")}


NAMED = (("thread", "tid"), ("block", "ctaid"))  # what names a thread, and its special registers


def register_dtype(kind: str) -> np.dtype:
    """Return the dtype of a register. Registers hold bits, unless they are declared as floats or predicates."""
    dtype = DTYPES[kind]
    return BITS[dtype.itemsize] if dtype.kind in "iu" else dtype


class Frame(NamedTuple):
    """What a call of a recursive function saves: the registers and parameters of an earlier call that has not returned."""

    threads: np.ndarray  # (threads,) bool: those that have saved
    registers: dict[str, np.ndarray]
    parameters: list[np.ndarray]


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
        self.alive = self.there = in_block < size  # the threads that have not returned, and all but those that pad a block
        self.active, self.full, self.lanes = self.alive, True, np.flatnonzero(self.alive)
        zeros = {kind: np.zeros(self.count, register_dtype(kind)) for kind in DTYPES}
        self.registers = {name: zeros[kind] for name, kind in program.registers.items()}
        self.shared = Private(len(blocks), program.places("shared", launch.dynamic))
        self.local = Frames(self.count, program.places("local"))
        self.param = Private(self.count, program.places("passed"))
        nothing = np.zeros(self.count, np.int32)
        codes = self.number << OF_BLOCK | in_block // WARP << OF_WARP | in_block % WARP
        parts = Parts(blocks[0], self.warps_a_block, self.count) if program.partial else None
        self.who = Who(codes, nothing, nothing, fences=launch.fences, parts=parts)
        # since the last jump: whether threads have polled memory as before, and whether they changed memory or polled other one
        self.polled = self.moved = False
        self.polls: dict[int, tuple[bytes, bytes]] = {}  # the addresses and values of the last poll of an instruction
        # the last instruction that has polled, its first thread, and the call stack
        self.polling: tuple[Instruction, int, tuple[int, ...]] | None = None
        self.part = self.lanes, self.who, self.who.of(self.lanes)  # `who` of the lanes of the last access
        # groups of asynchronous copies that have not arrived, and the number of closed groups of each thread
        self.pending: list[list[Any]] = []
        self.committed = np.zeros(self.count, np.int64)
        self.carry = np.zeros(self.count, bool)
        self.calls: tuple[int, ...] = ()  # the call stack: the call instructions that lead to the current function
        self.leaving = ""  # the function that the running threads return from
        self.frames: dict[Any, Frame] = {}  # what calls of recursive functions have saved, by call stack and call
        # the number of threads of each block that have arrived at a barrier (bar.arrive), by the number of the barrier
        self.arrived: dict[int, np.ndarray] = {}
        # the barriers in shared memory, by offset: when a thread initialised one
        self.started: dict[int, Moment] = {}
        self.held: dict[tuple[int, ...], np.ndarray] = {}  # the waiting groups, while it is decided which may go on

    def _special(self, in_block: np.ndarray) -> dict[str, np.ndarray]:
        """Return the special registers, int64."""
        lane, dynamic = in_block % WARP, self.launch.dynamic
        values = {"%laneid": lane, "%warpid": in_block // WARP, "%smid": self.number}
        for name, one in (
            ("nwarpid", self.warps_a_block),
            ("nsmid", math.prod(self.launch.grid)),
            ("gridid", 0),
            ("dynamic_smem_size", dynamic),
            ("total_smem_size", self.program.size("shared") + dynamic),
        ):
            values[f"%{name}"] = np.full(self.count, one)
        bit, below = 1 << lane, (1 << lane) - 1
        masks = {"eq": bit, "lt": below, "le": below | bit, "gt": ~(below | bit), "ge": ~below}
        values.update({f"%lanemask_{which}": mask & 0xFFFFFFFF for which, mask in masks.items()})
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
        try:
            yield
        finally:
            self.active, self.lanes, self.full = before

    def warps(self) -> int:
        """Return the number of warps with a running thread."""
        return int(np.count_nonzero(self.active.reshape(-1, WARP).any(axis=1)))

    @property
    def depth(self) -> int:
        """The number of calls in the call stack by which a function is called again before it has returned."""
        return sum(call in self.program.again for call in self.calls)

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
        if values.size == self.count:
            return values
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
                parts = [(np.arange(chosen.size), False)]
                if values is not None:
                    loud = changing(*store.before(offset, width, values.shape[1]), offset, values[chosen])
                    # first those that keep what is there, one for each place, unless others of this instruction write there
                    quiet = np.delete(parts[0][0], loud)
                    if quiet.size:
                        places, first = np.unique(offset[quiet], return_index=True)
                        quiet = quiet[np.sort(first[~np.isin(places, offset[loud])])]
                    parts = [(quiet, True), (loud, False)]
                for part, kept in parts:
                    if part.size:
                        some = lanes if values is None and part.size == lanes.size else lanes[chosen[part]]
                        self.touch(instruction, space, store, offset[part], width, some, writing, atomic, kept)
                if sum(part.size for part, _ in parts) < offset.size:
                    self._note_equal(instruction, store, offset, width, lanes[chosen], parts)
        return found

    def _note_equal(self, instruction, store, offset, width, lanes, parts):
        """Note the writes that are equal to one of `parts`, which has been checked for all of them."""
        rest = np.setdiff1d(np.arange(offset.size), np.concatenate([part for part, _ in parts]))
        for part, kept in parts:
            same = rest[np.isin(offset[rest], offset[part])]
            if same.size:
                store.shadow.note_equal(offset[same], width, self._moment(instruction, lanes[same]), kept)

    def touch(self, instruction, space, store, offset, width, lanes, writing, atomic=False, kept=False):
        """Note the accesses of threads to a store; raise an error if one of them is a race."""
        who = self._moment(instruction, lanes)
        with self.told(instruction, space, lanes):
            if writing and not store.data.flags.writeable:
                raise Fault("written, and the array is read-only", 0)
            store.shadow.touch(offset, width, who, writing, atomic, kept)

    def ordering(self, found: list[tuple[Any, np.ndarray, np.ndarray]], lanes: np.ndarray, reads: bool, writes: bool) -> None:
        """Note an atomic instruction or a strong access, of what `find` has found, for the order by fences."""
        fences = self.launch.fences
        if fences is not None:
            for store, chosen, offset in found:
                threads = np.stack([part[lanes[chosen]] for part in self.who[:3]], axis=1)
                fences.touch(store.shadow.number, offset, threads, reads, writes)

    def poll(self, instruction: Instruction, address: np.ndarray, values: np.ndarray) -> None:
        """Note that threads look at memory, by an instruction that has not changed it."""
        now = address.tobytes(), values.tobytes()
        same = self.polls.get(id(instruction)) == now
        self.polled, self.moved = self.polled or same, self.moved or not same
        self.polls[id(instruction)] = now
        self.polling = instruction, int(self.lanes[0]), self.calls

    def fence(self, wide: bool) -> None:
        """Note a fence of the running threads, of the whole card or of their blocks."""
        if self.launch.fences is not None:
            self.launch.fences.fence(self._moments(self.lanes), wide)

    def _moments(self, lanes: np.ndarray) -> Iterator[tuple[int, int, int]]:
        return zip(*(part[lanes].tolist() for part in self.who[:3]), strict=True)

    def _find_generic(self, instruction, address, width, lanes, writing, atomic, values):
        found, left = [], np.ones(address.size, bool)
        least, most = int(address.min()), int(address.max())
        for space in ("shared", "local", "const", "global"):
            start = WINDOWS.get(space, 0)
            if start <= least and most < start + WINDOW:
                return self.find(instruction, space, address - start, width, lanes, writing, atomic, values=values)
            inside = (address >= start) & (address < start + WINDOW)
            left &= ~inside
            chosen = np.flatnonzero(inside)
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
        if left.any():
            i = int(np.flatnonzero(left)[0])
            raise self.error(instruction, f"generic out of bounds: {outside(int(address[i]))}", lanes[i])
        return found

    def _moment(self, instruction: Instruction, lanes: np.ndarray) -> Who:
        """Return the threads of `lanes`, at an instruction and the time of the fences."""
        fences = self.launch.fences
        pc, stamp = self.program.numbers[id(instruction)], fences.clock if fences is not None else 0
        return self._who(lanes)._replace(pc=pc, stamp=stamp)

    def _who(self, lanes: np.ndarray) -> Who:
        if lanes.size == self.count:
            return self.who
        if self.part[0] is not lanes or self.part[1] is not self.who:
            self.part = lanes, self.who, self.who.of(lanes)
        return self.part[2]

    def pass_barrier(self, threads: np.ndarray, of: str) -> None:
        """Record that all threads of the grid, a block or a warp have met at a barrier, which orders earlier accesses before
        later ones.
        """
        if of == "grid":
            self.launch.memory.begin()
            of = "block"
        name = "epochs" if of == "block" else "warp_epochs"
        self.who = self.who._replace(**{name: getattr(self.who, name) + threads})

    @contextlib.contextmanager
    def told(self, instruction: Instruction, space: str, lanes: np.ndarray, chosen: np.ndarray | None = None) -> Iterator[None]:
        """Return a context that turns a `Fault` into an error which names the line and the thread: one of `lanes`, or of those
        that are `chosen`.
        """
        try:
            yield
        except Fault as fault:
            number = fault.number if chosen is None else chosen[fault.number]
            error = self.error(instruction, f"{space} {fault.problem}", lanes[number])
            if fault.other >= 0:
                error.other = self.program.where(self.program.instructions[fault.other])
            raise error from None

    # --- errors -------------------------------------------------------------------------------------------------------
    def thread(self, lane: int) -> str:
        """Return the name of a thread, such as "thread (3, 0, 0), block (0, 0, 0)"."""
        places = {what: [int(self.special[f"%{name}.{axis}"][lane]) for axis in "xyz"] for what, name in NAMED}
        return ", ".join(f"{what} ({', '.join(map(str, place))})" for what, place in places.items())

    def error(self, instruction: Instruction, problem: str, lane: int | None = None) -> PtxError:
        """Return an error that names the kernel, the line and the thread."""
        at = "" if lane is None else f" by {self.thread(lane)}"
        groups = [(k, len(list(some))) for k, some in itertools.groupby(reversed(self.calls))][:MOST_CALLS]
        more = len(self.calls) - sum(count for _, count in groups)
        via = "".join(
            CALLED
            + (self.program.python[k] or self.program.instructions[k].where())
            + (f", {count} times" if count > 1 else "")
            for k, count in groups
        ) + (f", after {more} more calls" if more else "")
        error = PtxError(f"{self.launch.name}, {self.program.where(instruction)}{via}: {problem}{at}")
        error.at = self, instruction, lane
        return error
