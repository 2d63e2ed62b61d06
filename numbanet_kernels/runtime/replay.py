"""Replay: execute copies and recorded tapes in order, by one compiled call, on all threads.

replay(actions)    an action is a pair (x, y), which copies x to y, or a tape
place(x)           returns x with its address, so that `replay` need not look it up again
program(…)         returns tapes with the copies before and after them, for `replay_programs`, which replays many of them
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import atomic, callees
from .interrupt import deferred

LINE = 8  # number of int64 in a cache line
NOWHERE = np.zeros(0, np.int64)
MEET = (callees.BARRIER, 0, 0, 0)


class Stretch:
    """A sequence of entries of `callees.run`, in a form for one thread and in one for several threads. The argument is a list
    with (section, thread, entry) of each call, by section.
    """

    def __init__(self, entries: list[tuple[int, int, tuple]], threads: int) -> None:
        self.alone = _table([entry for *_, entry in entries])  # all entries, for one thread
        self.parts = self._by_threads(entries, threads) if threads > 1 else [self.alone]

    @staticmethod
    def _by_threads(entries: list[tuple[int, int, tuple]], threads: int) -> list[np.ndarray]:
        """Return the entries of each thread, with barriers around each section, within which threads run concurrently."""
        tables: list[list[tuple]] = [[MEET] for _ in range(threads)]
        for _, together in itertools.groupby(entries, key=operator.itemgetter(0)):
            for _, thread, entry in together:
                tables[thread].append(entry)
            for table in tables:
                table.append(MEET)
        return list(map(_table, tables))


def run(
    stretches: Sequence[Stretch],
    threads: int,
    together: Callable[..., None] | None,
    tapes: Iterable[Any],
    asides: Sequence[Callable[[], None]] = (),
) -> None:
    """Execute stretches in order on `threads` threads, by one compiled call in each thread. `tapes` name the loops.

    If there are `asides`, functions of the interpreter, the calling thread calls one after each stretch but the last. The other
    threads wait for it at a barrier meanwhile, because waking them takes longer than most of these functions. If it raises an
    exception, or the handler of a signal does, all that follows is left out.

    Raises
    ------
    RuntimeError
        If a loop fails; the error names it.
    """
    failed, arrived = np.zeros(1, np.int64), np.zeros(LINE, np.int64)

    def execute(tables: list[np.ndarray], between: Sequence[Callable[[], None]], *meeting: Any) -> None:
        """Execute tables, and call the functions `between` them."""
        for n, table in enumerate(tables):
            callees.run(table, failed, *meeting)
            if n < len(between) and not failed[0]:
                between[n]()

    def alone() -> None:
        execute(_tables([stretch.alone for stretch in stretches], asides), asides, NOWHERE, 1, NOWHERE)

    def part(of: Any) -> None:
        try:
            execute(by_thread[of.number], () if of.number else asides, arrived, threads, atomic.pauses())
        except BaseException:  # also that of a signal's handler
            _leave(failed, arrived)
            raise

    if together is None:
        alone()
    else:  # the tables are made before the threads are woken, which then need the interpreter only for a moment
        own = [[stretch.parts[n] for stretch in stretches if n < len(stretch.parts)] for n in range(threads)]
        by_thread = [_tables(tables, () if n else asides) for n, tables in enumerate(own)]
        together(part, alone)
    if failed[0]:
        name = next(tape.names[failed[0]] for tape in tapes if failed[0] in tape.names)
        raise RuntimeError(f"{name} failed in a replay")


def _leave(failed: np.ndarray, arrived: np.ndarray) -> None:
    """Let the other threads execute nothing more, and pass all barriers."""
    failed[0] = callees.ELSEWHERE
    arrived[0] = callees.LEFT


deferred.whole.add(_leave.__code__)  # no signal interrupts it


def _tables(tables: list[np.ndarray], between: Sequence[Callable[[], None]]) -> list[np.ndarray]:
    """Return the tables, joined to one unless functions are called between them."""
    return tables if between else [_joined(tables)]


def _joined(tables: list[np.ndarray]) -> np.ndarray:
    return tables[0] if len(tables) == 1 else np.concatenate(tables)


def _table(entries: list[tuple]) -> np.ndarray:
    return np.array(entries, np.int64).reshape(-1, 4)


# --- the operations ---------------------------------------------------------------------------------------------------
class _Place(NamedTuple):
    """An array with its address and its size in bytes."""

    array: np.ndarray
    address: int
    size: int


def place_cpu(x):
    """Return x, which must be contiguous, in the form that `replay` copies fastest; it is for arrays that are copied often."""
    if not x.flags.c_contiguous:
        raise ValueError(f"place: an array of shape {x.shape} and strides {x.strides} has gaps")
    return _Place(x, callees.address_of(x), x.nbytes)


def places_cpu(x):
    """Return two lists, of views and of the `place` of each: x[0], x[1], …"""
    whole, parts = place_cpu(x), [x[i, ...] for i in range(len(x))]
    size = whole.size // len(x)
    return parts, [_Place(part, whole.address + size * i, size) for i, part in enumerate(parts)]


def replay_cpu(actions):
    """Execute actions in order, by one compiled call, unless a tape calls the interpreter (`aside_cpu`). A pair (x, y) copies x
    to y, which are contiguous arrays of equal size, or the `place` of such arrays. Every other action is a tape.

    Raises
    ------
    RuntimeError
        If a loop fails.
    """
    stretches: list[Stretch] = []
    copies: list[tuple[int, int, int, int]] = []
    tapes: list[Any] = []  # the tapes to which the stretches belong
    shared: Any = None  # the function of a tape with several threads, if there is one

    def run_them() -> None:
        if copies:
            stretches.append(_Table(_table(copies)))
        if stretches:
            run(stretches, shared.threads if shared else 1, shared and shared.together, tapes)

    for action in actions:
        if action.__class__ is tuple:
            copies.append(_copied(*action))
            continue
        if action.asides or (shared and 1 != action.threads != shared.threads):
            run_them()
            stretches, copies, tapes, shared = [], [], [], None
        if action.asides:
            action.replay()
            continue
        if copies:
            stretches.append(_Table(_table(copies)))
            copies = []
        stretches.append(action.stretches[0])
        tapes.append(action)
        shared = action if action.threads > 1 else shared
    run_them()


class _Program(NamedTuple):
    """Tapes, the copies before them, which have no sources yet, and the copies after them, which have no targets yet."""

    alone: np.ndarray  # the entries of the tapes for one thread
    parts: list[np.ndarray]  # and for each of several threads
    into: np.ndarray  # (n, 2): address and size of each array that is copied to before
    out: np.ndarray  # and of each array that is copied after
    tapes: Sequence[Any]
    threads: int
    together: Callable[..., None] | None
    held: Any  # kept alive


def program_cpu(tapes, into, out):
    """Return a program of recordings for `replay_programs`: copies to the arrays `into`, then the recordings, then copies of
    the arrays `out`. `into` and `out` are lists of `place`s. None if a recording calls the interpreter (`aside`).
    """
    shared = max(tapes, key=lambda each: each.threads)
    if any(each.asides or each.threads not in (1, shared.threads) for each in tapes):
        return None
    stretches = [each.stretches[0] for each in tapes]
    alone = _joined([each.alone for each in stretches])
    parts = [alone]
    if shared.threads > 1:
        parts = [_joined([each.parts[n] for each in stretches if n < len(each.parts)]) for n in range(shared.threads)]
    return _Program(alone, parts, _sizes(into), _sizes(out), tapes, shared.threads, shared.together, (into, out))


def replay_programs_cpu(programs, before, own, after):
    """Replay programs in order, by one compiled call.

    Parameters
    ----------
    programs : sequence of result of `program`
        The programs, of which each may occur several times.
    before : list of array
        Arrays with a row for each program. The rows are copied to the first arrays that the program copies to.
    own : sequence of sequence of place
        For each program, what it copies to the other arrays.
    after : list of array
        Arrays with a row for each program, to which it copies arrays.

    Raises
    ------
    RuntimeError
        If a loop fails.
    ValueError
        If arrays do not have the sizes of those of the programs.
    """
    if len({each.threads for each in programs} - {1}) > 1:  # recorded with other numbers of threads
        for i, (each, given) in enumerate(zip(programs, own, strict=True)):
            rows = [[array[i : i + 1] for array in arrays] for arrays in (before, after)]
            replay_programs_cpu([each], rows[0], [given], rows[1])
        return
    first = len(before)
    come = _copies(_rows(before, len(programs)), np.concatenate([each.into[:first] for each in programs]))
    lists = _copies(_sizes([one for given in own for one in given]), np.concatenate([each.into[first:] for each in programs]))
    go = _copies(np.concatenate([each.out for each in programs]), _rows(after, len(programs)))
    shared = max(programs, key=operator.attrgetter("threads"))

    def with_copies(tables: list[np.ndarray]) -> np.ndarray:
        """Return the tables of the first thread, joined, each with its copies."""
        at, pieces = 0, []
        for i, (table, given) in enumerate(zip(tables, own, strict=True)):
            pieces += come[i * first : (i + 1) * first], lists[at : at + len(given)], table
            pieces.append(go[i * len(after) : (i + 1) * len(after)])
            at += len(given)
        return _joined(pieces)

    alone, parts = with_copies([each.alone for each in programs]), None
    if shared.threads > 1:
        others = [[each.parts[n] for each in programs if n < len(each.parts)] for n in range(1, shared.threads)]
        parts = [with_copies([each.parts[0] for each in programs]), *map(_joined, others)]
    run([_Table(alone, parts)], shared.threads, shared.together, [tape for each in programs for tape in each.tapes])


def _sizes(places: Sequence[_Place]) -> np.ndarray:
    """Return the address and the size of each array: (n, 2)."""
    return np.array([(place.address, place.size) for place in places], np.int64).reshape(-1, 2)


def _rows(arrays: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the address and the size of each of `count` rows of each array: (count * arrays, 2), row by row."""
    found = np.empty((count, len(arrays), 2), np.int64)
    for column, array in enumerate(arrays):
        if len(array) != count:
            raise ValueError(f"replay_programs: an array of {len(array)} rows for {count} programs")
        whole = place_cpu(array)
        size = whole.size // count
        found[:, column, 0], found[:, column, 1] = whole.address + size * np.arange(count), size
    return found.reshape(-1, 2)


def _copies(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the entries that copy each source to the target at the same place; both are (n, 2), addresses and sizes."""
    if sources.shape != targets.shape or (sources[:, 1] != targets[:, 1]).any():
        raise ValueError("replay_programs: arrays have other sizes than those of the programs")
    table = np.empty((len(sources), 4), np.int64)
    table[:, 0], table[:, 1], table[:, 2:] = callees.COPY, sources[:, 0], targets
    return table


class _Table(Stretch):
    """A stretch of entries; unless `parts` are given, only the first thread executes them."""

    def __init__(self, alone: np.ndarray, parts: list[np.ndarray] | None = None) -> None:
        self.alone, self.parts = alone, parts or [alone]


def _copied(x: Any, y: Any) -> tuple[int, int, int, int]:
    """Return the entry of `callees.run` that copies x to y."""
    x = x if x.__class__ is _Place else place_cpu(x)
    y = y if y.__class__ is _Place else place_cpu(y)
    if x.size != y.size:
        raise ValueError(f"replay: {x.array.dtype} {x.array.shape} is not of the size of {y.array.dtype} {y.array.shape}")
    return callees.COPY, x.address, y.address, x.size
