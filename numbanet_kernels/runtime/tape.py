"""Tape: CPU work that was written down once and is done again by one compiled call, without the interpreter.

A small step takes less time than Python takes to say what to do in it. What `record` is given is run without doing anything:
each compiled loop that it calls (`declare.host_kernel`, matrix products among them) is written down with its arguments, and
`replay` calls them in their order by their addresses, without the GIL. Whoever replays writes new values into the arrays that
the tape reads; numbers, sizes and places in memory stay as they were.

Nothing is left out silently. Operations whose CPU function does anything but call compiled loops refuse (`OPERATIONS`). And
work is run twice, first on memory of its own, filled with random bytes: NumPy, wherever it is called, changes these bytes, or
makes an array or a number that is another one the second time. Then nothing is recorded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numba
import numpy as np

from . import atomic, callees
from .callees import Callee, callee_of
from .declare import tape
from .launch import NotRecorded
from .pool import Arena, Loan, Pool, pages

# What the CPU does by compiled loops alone, or without touching what is in arrays. A test records an example of each.
OPERATIONS = frozenset(
    (
        "abs absolute_error adam add affine argmax aside asides avg_pool avg_pool_grad batch_norm batch_norm_apply "
        "batch_norm_grad broadcast_to compact concatenate conv2d conv2d_grad copy div dropout empty exp expand full gelu "
        "gelu_grad gemm gemm_dw gemm_few gemm_rows gemm_rows_dx gemm_tiles gemm_tiles_dw gemm_tiles_dx getitem group_rows "
        "gru_cell gru_cell_grad huber_error layer_norm layer_norm_grad lazy_pays log log_softmax log_softmax_grad lstm "
        "lstm_grad lstm_scores lstm_seen max_pool max_pool_grad maximum minimum mul part power putitem quantile_error records "
        "relu relu_grad repeat_indices reshape session sgd sigmoid sigmoid_cross_entropy sigmoid_grad sign softmax "
        "softmax_cross_entropy softmax_grad sqrt squared_error sub sum sum_by_row sum_rows take_rows tanh tanh_grad "
        "tile_blocks tile_inputs tile_outputs transpose unpack_gradient upload"
    ).split()
)
LINE = 8  # numbers of a cache line
NOWHERE = np.zeros(0, np.int64)
NO_LIST = np.zeros(0, np.int32)


# --- writing ----------------------------------------------------------------------------------------------------------
class _Writer:
    """What is written down, and where what it makes lies: in pieces of a pool, lent to it alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.calls: list[tuple[int, int, Callee, np.ndarray]] = []  # section, thread, loop, packed arguments
        self.section, self.thread, self.threads = 0, 0, 1
        self.together: Callable[..., None] | None = None  # runs work(part) for every part, as many as threads
        self.asides: list[tuple[int, Callable[[], None]]] = []  # section, what is done by the interpreter
        self.facts: list[Any] = []  # of each call, all that has to be the same each time
        self.held: dict[int, Any] = {}  # arrays that were there before, by their places
        self.moved: set[int] = set()  # the places of packed arguments that are changed before their call

    def lend(self, size: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of so many bytes."""
        return np.asarray(_Lent(self, self.pool.take(max(size, 1)), shape, dtype))

    def refuse(self, what: str) -> None:
        raise NotRecorded(f"{what} cannot be recorded: it is no compiled loop")

    def call(self, loop: Any, args: tuple) -> None:
        """Write down a call of a compiled loop."""
        callee, values = callee_of(loop), []
        views: list[tuple[int, int, _Moving]] = []
        self.facts.append(loop)
        for kind, value in zip(callee.kinds, args, strict=True):
            if kind is None:
                values += value if isinstance(value, tuple) else (value,)
                self.facts.append(value)
                continue
            dtype, axes, layout = kind
            if value.dtype != dtype or value.ndim != axes or (layout == "C" and not value.flags.c_contiguous):
                raise NotRecorded(f"{loop.__name__} takes a {dtype} array of {axes} axes, not {value.dtype} {value.shape}")
            place = value.__array_interface__["data"][0]
            if isinstance(base := _owner(value).base, _Moving):
                views.append((len(values) + callees.PLACE, place - base.place, base))
                self.facts.append((place - base.place, value.shape, value.strides))
            else:
                self.facts.append((self.known(value, place), value.shape, value.strides))
            values += (0, 0, value.size, value.itemsize, place, *value.shape, *value.strides)
        words = np.frombuffer(callee.pack(*values), np.int64).copy()
        for at, offset, base in views:
            self.moved.add(words.ctypes.data)
            callees.move(words, at, base.start + offset, *base.lists)
        self.calls.append((self.section, self.thread, callee, words))

    def moving(self, view: np.ndarray, array: np.ndarray, lists: Sequence[np.ndarray | None]) -> np.ndarray:
        """A view of a vector or matrix that begins where the lists of its axes do, each time that the tape is replayed; an axis
        without a list begins at 0."""
        return np.asarray(_Moving(view, array, lists))

    def share(self, work: Callable[[Any], Any], parts: Sequence[Any], together: Callable[..., None]) -> None:
        """Write down work(part) of every part: what different threads do at the same time. No memory is used twice in it."""
        self.section, self.threads, self.together, self.pool.patient = self.section + 1, len(parts), together, True
        try:
            for self.thread, part in enumerate(parts):
                self.facts.append(part)
                work(part)
        finally:
            self.section, self.thread, self.pool.patient = self.section + 1, 0, False

    def aside(self, work: Callable[[], None]) -> None:
        """Note that work() is done at this point each time, by the interpreter."""
        self.facts.append("aside")
        self.asides.append((self.section + 1, work))
        self.section += 2

    def known(self, array: Any, place: int) -> int:
        """Where an array lies that was there before, and is held from here on; 0 of one that was made for this tape."""
        base = _owner(array).base
        if place in self.moved or (isinstance(base, _Lent) and base.writer is self):
            return 0
        self.held.setdefault(place, array)
        return place


class _Moving:
    """A view's claim to begin where lists say."""

    def __init__(self, view: np.ndarray, array: np.ndarray, lists: Sequence[np.ndarray | None]) -> None:
        given = [NO_LIST if indices is None else indices for indices in lists] + [NO_LIST] * (2 - len(lists))
        strides = [*array.strides, 0][:2]
        self.lists = [part for pair in zip(given, strides, strict=True) for part in pair]
        self.array, self.start = array, array.__array_interface__["data"][0]
        self.__array_interface__ = dict(view.__array_interface__, strides=view.strides)
        self.place = view.__array_interface__["data"][0]


def _owner(array: np.ndarray) -> np.ndarray:
    """The array of whose memory an array is a part."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class _Lent(Loan):
    """An array's claim to memory of what is written."""

    def __init__(self, writer: _Writer, piece: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(piece, shape, dtype)
        self.writer = writer


class _Trial(_Writer):
    """Written for comparison: each array has memory of its own, until the end, the first and last BYTES of which are random."""

    BYTES = 1 << 12
    STEP = 8  # between the bytes of two arrays: one that is copied to the other changes them

    def __init__(self) -> None:
        super().__init__(Pool(pages, chunk=1 << 16, keep=0, step=8))
        self.marked: list[tuple[np.ndarray, np.ndarray]] = []

    def lend(self, size, shape, dtype):
        array = super().lend(size, shape, dtype)
        whole = array.reshape(-1).view(np.uint8)
        for end in (whole[: self.BYTES], whole[self.BYTES :][-self.BYTES :]):
            first = self.STEP * len(self.marked) % (2 * self.BYTES)
            end[:] = _random()[first : first + end.size]
            self.marked.append((end, end.copy()))
        return array

    def untouched(self) -> bool:
        """Whether nobody has written to an array."""
        return all(np.array_equal(end, before) for end, before in self.marked)


@functools.cache
def _random() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=3 * _Trial.BYTES, dtype=np.uint8)


class Tape:
    """What a recorded function returned, and the compiled loops it called: work() is run for it, without doing anything.

    The arrays that it makes lie in the arena. Tapes that share one write over each other's: arrays of `result` have their
    values from a `replay` until a tape of the same arena is replayed.

    Raises
    ------
    NotRecorded
        If work does anything else, or does not do the same each time, or there is no room.
    """

    def __init__(self, work: Callable[[], Any], arena: Arena) -> None:
        self.arena, trial = arena, _Trial()
        with tape.within(trial):
            first = list(_arrays(work()))
        with arena.lending() as pool, tape.within(_Writer(pool)) as writer:
            self.result = work()
        facts = [
            [writer.known(array, array.__array_interface__["data"][0]) for array in found]
            for writer, found in ((trial, first), (writer, list(_arrays(self.result))))
        ]
        if not trial.untouched() or facts[0] != facts[1] or trial.facts != writer.facts:
            raise NotRecorded("something else than compiled loops was done, or not the same each time")
        self.held, self.failed = list(writer.held.values()), np.zeros(1, np.int64)
        self.names = [callee.loop.__name__ for *_, callee, _ in writer.calls]
        self.words = [words for *_, words in writer.calls]
        entries = [
            (section, thread, (callee.trampoline, callee.function, words.ctypes.data, number))
            for number, (section, thread, callee, words) in enumerate(writer.calls, 1)
        ]
        ends = [0, *(section for section, _ in writer.asides), writer.section + 1]
        self.asides, self.threads = [work for _, work in writer.asides], writer.threads
        self.stretches = [
            _Stretch([entry for entry in entries if a <= entry[0] < b], writer.threads, writer.together, self.failed)
            for a, b in itertools.pairwise(ends)
        ]

    def replay(self) -> None:
        """All calls again, in order, by all threads that shared them, and what is done aside between them."""
        for stretch, aside in itertools.zip_longest(self.stretches, self.asides):
            stretch.run()
            if self.failed[0]:
                name, self.failed[0] = self.names[self.failed[0] - 1], 0
                raise RuntimeError(f"{name} failed when it was done again")
            if aside is not None:
                aside()


class _Stretch:
    """Calls of a tape that are made at once: (section, thread, what `callees.run` takes) of each."""

    def __init__(self, entries: list[tuple[int, int, tuple]], threads: int, together: Any, failed: np.ndarray) -> None:
        self.together, self.failed = together, failed
        self.alone = _table([entry for *_, entry in entries])
        self.tables = self._by_threads(entries, threads) if threads > 1 else []

    def _by_threads(self, entries: list[tuple[int, int, tuple]], threads: int) -> list[np.ndarray]:
        """What each thread does, with a barrier between any two sections: in one of them threads work at the same time."""
        sections = sorted({section for section, *_ in entries})
        self.arrived = np.zeros(LINE * max(len(sections) - 1, 1), np.int64)
        tables: list[list[tuple]] = [[] for _ in range(threads)]
        for place, section in enumerate(sections):
            for thread, table in enumerate(tables):
                table += [(0, LINE * (place - 1), 0, 0)] * (place > 0)
                table += [entry for of, by, entry in entries if of == section and by == thread]
        return list(map(_table, tables))

    def run(self) -> None:
        """By all threads that shared calls."""
        if self.tables:
            self.together(self._run_part, self._run_alone)
        else:
            self._run_alone()

    def _run_alone(self) -> None:
        callees.run(self.alone, self.failed, NOWHERE, 1, NOWHERE)

    def _run_part(self, part: Any) -> None:
        callees.run(self.tables[part.number], self.failed, self.arrived, len(self.tables), atomic.pauses())


def _table(entries: list[tuple]) -> np.ndarray:
    return np.array(entries, np.int64).reshape(-1, 4)


def _arrays(result: Any) -> Iterator[np.ndarray]:
    """The arrays in what a function returned."""
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, Iterable):
        for part in result:
            yield from _arrays(part)


# --- the operations ---------------------------------------------------------------------------------------------------
def recordable(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of the CPU, which is refused while others are written down unless it is one of OPERATIONS."""
    if op in OPERATIONS:
        return function

    @functools.wraps(function)
    def refusing(*args: Any, **options: Any) -> Any:
        if (writer := tape.get()) is not None:
            writer.refuse(op)
        return function(*args, **options)

    return refusing


def records_cpu():
    """Whether `record` can be had: not where Numba compiles nothing."""
    return not numba.config.DISABLE_JIT


def asides_cpu():
    """Whether `aside` can be had."""
    return True


def aside_cpu(work):
    """Do work() at this point of what is being recorded each time that it is done again, by the interpreter: it may look at
    arrays and write to them, but for those that it makes."""
    tape.get().aside(work)


def rehearses_cpu():
    """Whether work is done once as it will be recorded, before it is."""
    return False


def record_cpu(work, beside=None, most=1 << 30, refused=None):
    """A `Tape` of what work() does, which is not done yet; None where work needs more than compiled loops, or more memory than
    there is room for: `most` bytes, or those of the tape beside it, whose memory it shares: then each is replayed when the
    results of the other have been used. work was run before, so that what is made once is there, and is run twice here.
    The reason why nothing is recorded is added to a list `refused`.
    """
    try:
        return Tape(work, Arena(most, pages) if beside is None else beside.arena)
    except NotRecorded as reason:
        if refused is not None:
            refused.append(str(reason))
        return None
