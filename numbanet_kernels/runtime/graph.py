"""A graph holds launches that were recorded once and are replayed together, on a GPU with one call to the driver.

A GPU finishes a small step before Python has issued its launches. `record` runs a function without launching anything and lists
the launches; `replay` launches them in order, with the same arrays and scalars. To replay with other values, write them into
the arrays that the launches read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import driver
from .arrays import to_device
from .declare import cuda, kernel
from .emulation import emulate, emulating
from .launch import NotRecorded, launch, recording
from .memory import copy_cuda, empty_cuda, part_cuda, reshape_cuda
from .pool import Arena
from .trust import trusted


class Graph:
    """The recorded launches of the function `work`, and its result. To record them, work() is run without launching anything.

    New arrays are allocated in the arena. Graphs that share an arena overwrite each other's arrays: those of `result` are valid
    from a `replay` until another graph of the arena is replayed.
    """

    form: tuple = ()  # of `tape.Tape`; graphs whose kinds of plans are of the same types are alike

    def __init__(self, work: Callable[[], Any], arena: Arena) -> None:
        self.arena = arena
        with recording() as calls, arena.lending():
            self.result = work()
        self._calls = calls  # holds the arrays outside the arena that the launches read, so that they stay alive
        self._ready = None if emulating() else _completed(calls)

    def replay(self) -> None:
        """Launch everything again, in order."""
        if self._ready is None:
            for call in self._calls:
                emulate(*call)
        else:
            graph, stream = self._ready
            graph.launch(stream)


def _completed(calls: list[tuple]) -> tuple:
    """Return (graph, stream) of CUDA. The graph is captured on a separate stream, and launched on the default stream."""
    from cuda.core import Device

    device = Device(cuda.get_current_device().id)
    device.set_current()
    builder = device.create_graph_builder()
    try:
        for kernel, *_ in calls:
            driver.load(kernel)  # which is not possible during the capture
        builder.begin_building()
        for kernel, grid, block, args in calls:
            driver.start(kernel, grid, block, args, builder)
        return builder.end_building().complete(), device.default_stream
    finally:
        builder.close()  # this ends a failed capture


@trusted
def _available() -> float:
    """Launch two dependent kernels from a graph with two other sets of values, and return the largest absolute error. The
    decorator makes a self-test of this function.
    """

    @kernel("void(f4[::1], f4[::1])")
    def double(x, y):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = x[i] + x[i]

    values = np.random.default_rng(0).random((2, 15), np.float32)
    x = to_device(values[0])

    def work() -> Any:
        y, z = empty_cuda(x.shape), empty_cuda(x.shape)
        launch(double, 1, x.size, x, y)
        launch(double, 1, x.size, y, z)
        return z

    graph, errors = Graph(work, Arena(1 << 20)), []
    for new in values:
        copy_cuda(new, out=x)
        graph.replay()
        errors.append(np.abs(graph.result.copy_to_host() - 4 * new).max())
    return max(errors)


# --- the operations ---------------------------------------------------------------------------------------------------
def records_cuda():
    """Return True if `record` is available, because the GPU passes a self-test of graphs."""
    return _available()


def asides_cuda():
    """Return False, because a recorded graph holds only launches."""
    return False


def aside_cuda(work):
    """Raise NotRecorded, because a graph cannot call the interpreter."""
    raise NotRecorded("a choice by the interpreter is not a launch")


def rehearses_cuda():
    """Return False: work that fills caches while it is recorded is not recorded, and runs."""
    return False


def record_cuda(work, beside=None, most=1 << 30, refused=None, known=()):
    """Return a `Graph` of the launches of work(), which are not executed. Return None if work does more than launch kernels, or
    if its memory does not fit: it may use `most` bytes or, if the graph `beside` is given, the memory of that graph. Two graphs
    that share their memory may each be replayed only after the results of the other one have been used. If nothing is recorded,
    for example because work() fills a cache, the reason is appended to the list `refused`.
    `known` changes nothing, because a graph is always recorded by one run.
    """
    try:
        return Graph(work, Arena(most) if beside is None else beside.arena)
    except NotRecorded as reason:
        if refused is not None:
            refused.append(str(reason))
        return None


def place_cuda(x):
    """Return x itself, because an address saves nothing here."""
    return x


def places_cuda(x):
    """Return the list of views x[0], x[1], …, twice: a view is its own `place`."""
    parts = [reshape_cuda(part_cuda(x, i, i + 1), x.shape[1:]) for i in range(len(x))]
    return parts, parts


def program_cuda(tapes, into, out):
    """Return (recordings, arrays to copy to before, arrays to copy from after) for `replay_programs`."""
    return tapes, into, out


def replay_programs_cuda(programs, before, own, after):
    """Replay programs in order. A row of each array in `before`, and then `own`, are copied to the arrays that the program
    copies to; what it copies from goes to a row of each array in `after`.
    """
    sources, targets = ([places_cuda(array)[1] for array in arrays] for arrays in (before, after))
    for i, ((tapes, into, out), given) in enumerate(zip(programs, own, strict=True)):
        rows = [*(row[i] for row in sources), *given]
        replay_cuda([*zip(rows, into, strict=True), *tapes, *zip(out, (row[i] for row in targets), strict=True)])


def replay_cuda(actions):
    """Execute actions in order. A pair (x, y) of arrays of equal size copies x to y; every other action is a recorded graph."""
    for action in actions:
        if not isinstance(action, tuple):
            action.replay()
            continue
        x, y = action
        if emulating():
            copy_cuda(x if x.shape == y.shape else reshape_cuda(x, y.shape), out=y)
        elif x.dtype != y.dtype or x.size != y.size:
            raise ValueError(f"replay (cuda): {x.dtype} {x.shape} does not fit {y.dtype} {y.shape}")
        elif x.flags["C_CONTIGUOUS"]:
            driver.copy(x, y)
        else:
            copy_cuda(x, out=y)
