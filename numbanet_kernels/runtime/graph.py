"""Graph: launches that were recorded once and are done again at once, on a card with one call to the driver.

A card is done with a small step before Python has said what to launch in it. What `record` is given is run without launching
anything; the launches are listed, and `replay` does them in their order, with the arrays and numbers that they had. Whoever
replays writes new values into the arrays that it read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import to_device
from .declare import cuda, kernel
from .emulation import emulate, emulating
from .launch import NotRecorded, launch, recording
from .memory import copy_cuda, empty_cuda
from .pool import Arena
from .trust import trusted


class Graph:
    """What a recorded function returned, and its launches: work() is run for it, without launching anything.

    The arrays that it makes lie in the arena. Graphs that share one write over each other's: arrays of `result` have their
    values from a `replay` until a graph of the same arena is replayed.
    """

    def __init__(self, work: Callable[[], Any], arena: Arena) -> None:
        self.arena = arena
        with recording() as calls, arena.lending():
            self.result = work()
        self._calls = calls  # and with them what they read that is not of the arena
        self._ready = None if emulating() else _completed(calls)

    def replay(self) -> None:
        """All launches again, in order."""
        if self._ready is None:
            for call in self._calls:
                emulate(*call)
        else:
            graph, stream = self._ready
            graph.launch(stream)


def _completed(calls: list[tuple]) -> tuple:
    """(graph, stream) of CUDA: captured on a stream of its own, launched on the one that everything is launched on."""
    from cuda.core import Device

    device = Device(cuda.get_current_device().id)
    device.set_current()
    builder = device.create_graph_builder()
    try:
        builder.begin_building()
        for kernel, grid, block, args in calls:
            kernel.dispatcher[grid, block, builder](*args)
        return builder.end_building().complete(), device.default_stream
    finally:
        builder.close()  # a capture that was broken off ends here


@trusted
def _available() -> float:
    """The largest error of two launches, one on what the other wrote, as a graph that is replayed on other values."""

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

    work()  # compiled and loaded before it is captured
    graph, errors = Graph(work, Arena(1 << 20)), []
    for new in values:
        copy_cuda(new, out=x)
        graph.replay()
        errors.append(np.abs(graph.result.copy_to_host() - 4 * new).max())
    return max(errors)


# --- the operations ---------------------------------------------------------------------------------------------------
def records_cuda():
    """Whether `record` can be had: not on a card that does not do it right when it is tried."""
    return _available()


def asides_cuda():
    return False


def aside_cuda(work):
    raise NotRecorded("a choice by the interpreter is no launch")


def rehearses_cuda():
    """Whether work is done once as it will be recorded, before it is."""
    return True  # what it launches is compiled then


def record_cuda(work, beside=None, most=1 << 30, refused=None):
    """A `Graph` of what work() launches, which is not done yet; None where work needs more than launches, or more memory than
    there is room for: `most` bytes, or those of the graph beside it, whose memory it shares: then each is replayed when the
    results of the other have been used. work was run before, so that what is made once is there, but may have been given up.
    The reason why nothing is recorded is added to a list `refused`.
    """
    try:
        return Graph(work, Arena(most) if beside is None else beside.arena)
    except NotRecorded as reason:
        if refused is not None:
            refused.append(str(reason))
        return None
