"""Tape: CPU work that is recorded once and replayed by one compiled call, without the interpreter.

A CPU computes a small step faster than Python calls its operations. `record` runs a function in which compiled loops
(`declare.host_kernel`, which include matrix products) do not compute: each call is appended to the tape with its arguments.
`replay` calls the loops in the same order by their addresses, without the GIL. To replay with other values, write them into the
arrays that the tape reads; scalar arguments, shapes and addresses stay those of the recording.

A recording that would leave something out is refused. First, an operation is refused if its CPU function does anything but call
compiled loops (`OPERATIONS` lists the others). Second, the function is run twice. The first run, the trial, allocates separate
arrays that are filled with random bytes. A call of NumPy is noticed because it changes these bytes, or because it makes an
array or a number that differs between the two runs. Then nothing is recorded.

If the function was recorded before with arrays of other sizes, it is run once. It must then call the same loops with arrays of
the same origins (`Tape.form`), and must not change the random bytes at the ends of its new arrays. So a call of NumPy that is
made at some sizes only is noticed, unless its only result is a number.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numba
import numpy as np

from . import callees, replay
from .callees import Callee, address_of, callee_of
from .declare import tape
from .launch import NotRecorded
from .pool import Arena, Loan, Piece, Pool, host_lender, host_pool, pages

# The operations that call only compiled loops on the CPU, or do not read or write elements of arrays. A test records an example
# of each.
OPERATIONS = frozenset(
    (
        "abs absolute_error adam add affine argmax aside asides avg_pool avg_pool_grad batch_norm batch_norm_apply "
        "batch_norm_grad bit_lists broadcast_to clip_norm compact compact_samples concatenate conv2d conv2d_grad "
        "conv2d_max_pool conv2d_max_pool_grad copy div dropout empty exp expand expand_samples full gelu "
        "gelu_grad gemm gemm_dw gemm_few gemm_rows gemm_rows_dx gemm_samples gemm_samples_dw gemm_samples_dx gemm_tiles "
        "gemm_tiles_dw gemm_tiles_dx getitem group_rows gru_cell gru_cell_grad huber_error layer_norm layer_norm_grad "
        "lazy_pays log log_softmax log_softmax_grad lstm lstm_grad lstm_scores lstm_seen max_pool max_pool_grad maximum "
        "minimum mul overlap packed_squares part pow power project putitem quantile_error records relu relu_grad "
        "repeat_indices reshape scores session sgd shrink sigmoid sigmoid_cross_entropy sigmoid_grad sign softmax "
        "softmax_cross_entropy softmax_grad sqrt squared_error squares sub sum sum_by_row sum_rows take_rows tanh tanh_grad "
        "tile_blocks tile_inputs tile_outputs top_k transpose unpack_gradient upload"
    ).split()
)
NO_LIST = np.zeros(0, np.int32)
BYTES = 1 << 12  # at each end of a new array that are random while a function is recorded
STEP = 8  # offset between the random bytes of two arrays: they differ, so that copying one array to another is noticed


# --- recording --------------------------------------------------------------------------------------------------------
class _Writer:
    """The calls that are recorded, and the pool in which the recorded function allocates its arrays."""

    def __init__(self, pool: Pool, elsewhere: Pool | None = None) -> None:
        self.pool, self.elsewhere = pool, elsewhere or pool
        self.calls: list[tuple[int, int, Callee, np.ndarray]] = []  # (section, thread, loop, packed arguments) of each call
        self.section, self.thread, self.threads = 0, 0, 1
        # together(work) runs work(part) for every part; there are as many parts as threads
        self.together: Callable[..., None] | None = None
        self.asides: list[tuple[int, Callable[[], None]]] = []  # (section, function) of each call of the interpreter
        self.facts: list[Any] = []  # for each call, all values that must be equal in both runs
        self.form: list[Any] = []  # for each call, the loop, and whether each array existed before the recording
        self.held: dict[int, Any] = {}  # maps addresses to the arrays that existed before the recording
        # addresses of packed arguments that a recorded `callees.move` overwrites before their call
        self.moved: set[int] = set()

    def lend(self, size: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array of `size` bytes from the pool."""
        return np.asarray(_Lent(self, self.take(size), shape, dtype))

    def take(self, size: int) -> Piece:
        """Lend `size` bytes of the pool; if there is a `host_lender`, of the pool `elsewhere`."""
        return (self.pool if host_lender.get() is None else self.elsewhere).take(max(size, 1))

    def refuse(self, what: str) -> None:
        raise NotRecorded(f"{what} cannot be recorded: it is not a compiled loop")

    def call(self, loop: Any, args: tuple) -> None:
        """Record a call of a compiled loop."""
        callee, values = callee_of(loop), []
        origins: list[bool] = []
        made: list[int] = []  # the places in `values` of addresses that are those of this run only
        views: list[tuple[int, int, _Moving]] = []
        for kind, value in zip(callee.kinds, args, strict=True):
            if kind is None:
                values += value if isinstance(value, tuple) else (value,)
                continue
            dtype, axes, layout = kind
            if value.dtype != dtype or value.ndim != axes or (layout == "C" and not value.flags.c_contiguous):
                raise NotRecorded(f"{loop.__name__} takes a {dtype} array of {axes} axes, not {value.dtype} {value.shape}")
            place, base, at = address_of(value), _owner(value).base, len(values) + callees.PLACE
            if isinstance(base, _Moving):
                views.append((at, place - base.place, base))
                place -= base.place  # `move` overwrites it
                known = True
            elif not (known := bool(self.known(value, place, base))):
                made.append(at)
            origins.append(known)
            values += (0, 0, value.size, value.itemsize, place, *value.shape, *value.strides)
        self.form.append((loop, *origins))
        words = np.frombuffer(callee.pack(*values), np.int64).copy()
        for at in made:
            values[at] = 0
        self.facts += loop, values
        for at, offset, moving in views:
            self.moved.add(address_of(words))
            callees.move(words, at, moving.start + offset, *moving.lists)
        self.calls.append((self.section, self.thread, callee, words))

    def moving(self, view: np.ndarray, array: np.ndarray, lists: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return a view of a vector or matrix. In each replay it begins, along each axis, at the first index in the axis's list
        of indices; if the list is None, it begins at 0.
        """
        return np.asarray(_Moving(view, array, lists))

    def share(self, work: Callable[[Any], Any], parts: Sequence[Any], together: Callable[..., None]) -> None:
        """Record work(part) for every part; a replay runs the parts on different threads at the same time. While work(part) is
        recorded, no memory is reused.
        """
        self.section, self.threads, self.together, self.pool.patient = self.section + 1, len(parts), together, True
        self.elsewhere.patient = True
        before, forms = self.form, []
        try:
            for self.thread, part in enumerate(parts):
                self.facts.append(part)
                self.form = []
                work(part)
                forms.append(self.form)
        finally:
            self.section, self.thread, self.pool.patient = self.section + 1, 0, False
            self.elsewhere.patient = False
        alike = all(form == forms[0] for form in forms)  # then the form does not depend on the number of parts
        self.form = before + (forms[0] if alike else sum(forms, []))

    def aside(self, work: Callable[[], None]) -> None:
        """Record that each replay calls work() at this point, with the interpreter."""
        self.facts.append("aside")
        self.asides.append((self.section + 1, work))
        self.section += 2

    def known(self, array: Any, place: int, base: Any) -> int:
        """Return the address of an array, which is kept alive; 0 if the array was allocated for this tape. `base` is the base
        of the array that owns its memory.
        """
        if place in self.moved or (isinstance(base, _Lent) and base.writer() is self):
            return 0
        self.held.setdefault(place, array)
        return place

    def places(self, arrays: Iterable[np.ndarray]) -> list[int]:
        """Return the result of `known` for each array."""
        return [self.known(array, address_of(array), _owner(array).base) for array in arrays]


class _Moving:
    """The owner of a view whose first row and column are read from lists in each replay."""

    def __init__(self, view: np.ndarray, array: np.ndarray, lists: Sequence[np.ndarray | None]) -> None:
        given = [NO_LIST if indices is None else indices for indices in lists] + [NO_LIST] * (2 - len(lists))
        strides = [*array.strides, 0][:2]
        self.lists = [part for pair in zip(given, strides, strict=True) for part in pair]
        self.array, self.start = array, address_of(array)
        self.__array_interface__ = dict(view.__array_interface__, strides=view.strides)
        self.place = address_of(view)


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class _Lent(Loan):
    """Keeps a piece alive for an array that the recorded function allocated, and names its writer. The reference is weak: the
    garbage collector does not see the base of an array, so it would never free a writer that holds the array.
    """

    def __init__(self, writer: _Writer, piece: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(piece, shape, dtype)
        self.writer = weakref.ref(writer)


class _Trial(_Writer):
    """The first of the two runs: no memory is reused, and the ends of each new array are random."""

    def __init__(self) -> None:
        super().__init__(Pool(pages, chunk=1 << 16, keep=0, step=8))
        self.marked: list[tuple[np.ndarray, np.ndarray]] = []

    def lend(self, size, shape, dtype):
        array = super().lend(size, shape, dtype)
        whole = array.reshape(-1).view(np.uint8)
        for end in _ends(whole):
            first = STEP * len(self.marked) % (2 * BYTES)
            end[:] = _random()[first : first + end.size]
            self.marked.append((end, end.copy()))
        return array

    def untouched(self) -> bool:
        """Return True if no array has been written to."""
        return all(np.array_equal(end, before) for end, before in self.marked)


class _Once(_Writer):
    """The only run of a function that was recorded before with arrays of other sizes. The ends of each new array are random
    until its memory is used again: it is checked when it is deleted, or after the run.
    """

    def __init__(self, pool: Pool, elsewhere: Pool) -> None:
        super().__init__(pool, elsewhere)
        self.count, self.changed = 0, False
        self.lent: weakref.WeakSet[_Marked] = weakref.WeakSet()

    def lend(self, size, shape, dtype):
        piece, self.count = self.take(size), self.count + 1
        whole = piece.chunk.memory[piece.start : piece.start + size]
        first = STEP * self.count % (2 * BYTES)
        random = _random()[first : first + BYTES]
        marks = []
        for end in _ends(whole):
            end[:] = random[: end.size]
            marks.append((end, random))
        lent = _Marked(self, piece, shape, dtype, marks)
        self.lent.add(lent)
        return np.asarray(lent)

    def untouched(self) -> bool:
        """True if no new array was written to; called once, after the run."""
        for lent in list(self.lent):
            lent.check()
        return not self.changed


class _Marked(_Lent):
    """Owns the memory of an array with random ends."""

    def __init__(
        self, writer: _Once, piece: Any, shape: tuple[int, ...], dtype: np.dtype, marks: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> None:
        super().__init__(writer, piece, shape, dtype)
        self.marks = marks

    def check(self) -> None:
        """Note in the writer, if it exists, whether the random ends have changed; they are not looked at again."""
        if (writer := self.writer()) is not None:
            writer.changed |= not all(end.tobytes() == random[: end.size].tobytes() for end, random in self.marks)
        self.marks = ()

    __del__ = check


def _ends(whole: np.ndarray) -> tuple[np.ndarray, ...]:
    """The first bytes of an array, and the last of the rest, if there are more."""
    return (whole,) if whole.size <= BYTES else (whole[:BYTES], whole[BYTES:][-BYTES:])


@functools.cache
def _random() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=3 * BYTES, dtype=np.uint8)


class Tape:
    """The result of a recorded function, and the compiled loops that it called: work() is run without computing anything.

    New arrays are allocated in the arena. Tapes that share an arena overwrite each other's arrays: those of `result` are valid
    from a `replay` until another tape of the arena is replayed.

    Parameters
    ----------
    known : collection, optional
        The attributes `form` of tapes of the same function, which were recorded with arrays of other sizes: work() is run once.

    Raises
    ------
    NotRecorded
        If work() does more than call compiled loops, or calls other ones in its second run, or if the arena is full; if `known`
        is given, also if the form of the tape is not among them.
    """

    def __init__(self, work: Callable[[], Any], arena: Arena, known: Collection[tuple] = ()) -> None:
        self.arena, trial = arena, None if known else _Trial()
        if trial is not None:
            with tape.within(trial):
                first = list(_arrays(work()))
        writer_of = _Once if known else _Writer
        with arena.elsewhere.lending() as other, arena.lending() as pool, tape.within(writer_of(pool, other)) as writer:
            self.result = work()
        places = writer.places(_arrays(self.result))
        self.form = (*writer.form, *map(bool, places))
        if trial is not None and not (trial.untouched() and trial.places(first) == places and trial.facts == writer.facts):
            raise NotRecorded("the function did more than call compiled loops, or did not do the same each time")
        if trial is None and not (writer.untouched() and self.form in known):
            raise NotRecorded("the function did not call the same compiled loops as with other sizes, or did more than that")
        self.held = list(writer.held.values())
        numbers = [next(_numbers) for _ in writer.calls]
        self.names = {number: callee.loop.__name__ for number, (*_, callee, _) in zip(numbers, writer.calls)}
        self.words = [words for *_, words in writer.calls]
        entries = [
            (section, thread, (callee.trampoline, callee.function, address_of(words), number))
            for number, (section, thread, callee, words) in zip(numbers, writer.calls)
        ]
        ends = [0, *(section for section, _ in writer.asides), writer.section + 1]
        self.asides, self.threads, self.together = [work for _, work in writer.asides], writer.threads, writer.together
        self.stretches = [
            replay.Stretch([entry for entry in entries if a <= entry[0] < b], writer.threads)
            for a, b in itertools.pairwise(ends)
        ]

    def replay(self) -> None:
        """Make all calls again, in order, on the threads that shared them, with the functions of `aside` between them."""
        replay.run(self.stretches, self.threads, self.together, [self], self.asides)


_numbers = itertools.count(1)  # numbers of the calls of all tapes


def _arrays(result: Any) -> Iterator[np.ndarray]:
    """Return an iterator over the arrays in the result of a function, which consists of nested tuples and lists."""
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, Iterable):
        for part in result:
            yield from _arrays(part)


# --- the operations ---------------------------------------------------------------------------------------------------
def recordable(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the CPU function, which raises NotRecorded during a recording unless the operation is in OPERATIONS."""
    if op in OPERATIONS:
        return function

    @functools.wraps(function)
    def refusing(*args: Any, **options: Any) -> Any:
        if (writer := tape.get()) is not None:
            writer.refuse(op)
        return function(*args, **options)

    return refusing


def records_cpu():
    """Return True if `record` is available. It is not if NUMBA_DISABLE_JIT is set, because Numba then compiles nothing."""
    return not numba.config.DISABLE_JIT


def asides_cpu():
    """Return True, because `aside` is available on the CPU."""
    return True


def aside_cpu(work):
    """Record that each replay calls work() at this point, with the interpreter; if nothing is recorded, call it now. work() may
    read all arrays, and may write to those that existed before it.
    """
    writer = tape.get()
    if writer is None:
        work()
    else:
        writer.aside(work)


def rehearses_cpu():
    """Return False, because `record` needs no earlier run of work that is like the recorded one."""
    return False


def record_cpu(work, beside=None, most=1 << 30, refused=None, known=()):
    """A `Tape` of the compiled loops that work() calls, which do not compute yet; None if work does more than call compiled
    loops, or needs more memory than `most` bytes, or than those of the tape `beside`. The two tapes share their memory, so each
    may be replayed only after the results of the other have been used. Run work() once before, so that its caches are filled;
    it is run twice here. If nothing is recorded, the reason is appended to the list `refused`.

    If `known` holds the attributes `form` of tapes of the same function, recorded with other sizes, it is run once, and need
    not have run before; the form of the tape must be one of them.
    """
    host_pool.trim()  # else the memory of earlier runs, which a replay does not use, would be kept beside the arena's
    try:
        return Tape(work, Arena(most, pages) if beside is None else beside.arena, known)
    except NotRecorded as reason:
        if refused is not None:
            refused.append(str(reason))
        return None
