"""Replay: a pass that came before, forward and backward, and with SGD its update, is done again as the device recorded it.

With patterns of the same periods and the same number of samples a pass is the same launches on the same arrays: only what is
in them is new, the batch and the lists of what the patterns keep. On a card a small one takes less time than Python takes to
launch it, and a graph (`numbanet_kernels.graph`) is launched at once. A pass that is met for the second time is recorded; as
there are few periods, nearly all passes of a fit are replayed. What passes compute lies in one memory for all of them, which is
used up before the next one is done.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from . import profile
from .device import Device
from .lists import Lists
from .plan import RowPlan, TilePlan
from .tensor import Tensor


class _Pass(NamedTuple):
    """What was recorded."""

    graph: Any
    gradients: list[Any]    # of the parameters, written anew by each replay
    held: list[Any]         # the arrays of its key, so that no other ones are taken for them


def _done(work: Callable[[], tuple[Any, Any]], done: Callable[[], None]) -> tuple[Any, Any]:
    results = work()
    done()
    return results


class Replay:
    """The recorded passes of one training run.

    Parameters
    ----------
    dev : Device
        Where they run.
    parameters : sequence of Tensor
        What they leave gradients in.

    Attributes
    ----------
    possible : bool
        Whether the device can, and nobody has said no. False on the CPU, and where every operation shall be seen (`profile`).
    """

    MOST = 1 << 30      # bytes that recorded passes may take, all of them together; a larger one is not recorded
    RECORDED = 1 << 11  # passes that are recorded: a driver keeps some memory for each
    MET = 1 << 14       # passes that are remembered, recorded or not, and plans
    TRIED = 4           # passes that could not be recorded: then no other is tried, if none could

    def __init__(self, dev: Device, parameters: Sequence[Tensor]) -> None:
        self.dev, self.parameters = dev, parameters
        self.possible = not profile.ENABLED and dev.records()
        self._recorded: list[Any] = []
        self._failed = 0
        self._met: dict[Hashable, _Pass | tuple[()] | None] = {}  # met once: None; not to be had: ()
        self._places: dict[tuple, Any] = {}
        self._plans: dict[tuple, tuple] = {}
        self._lists: dict[tuple, Lists] = {}

    def place(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array in which passes find an input of this name and shape; None where nothing is replayed."""
        if not self.possible:
            return None
        key = name, tuple(shape), dtype
        if key not in self._places:
            self._places[key] = self.dev.empty(shape, dtype)
        return self._places[key]

    def holds(self, name: str, array: Any) -> bool:
        """Whether an array is the place of an input of that name; None always is."""
        return array is None or array is self._places.get((name, tuple(array.shape), array.dtype))

    def put(self, name: str, array: Any) -> Any:
        """The values of an array of the device, in the place of an input where passes are replayed; None for None."""
        if array is None or not self.possible:
            return array
        return self.dev.copy(array, out=self.place(name, array.shape, array.dtype))

    def put_lists(self, name: Hashable, plan: RowPlan | TilePlan) -> RowPlan | TilePlan:
        """The plan, its lists put where passes find those of all plans of its kind and this name."""
        if plan.dp == 1:  # there is no other one
            return plan
        if (name, plan) not in self._plans:
            if len(self._plans) == self.MET:
                self._plans.clear()
            if (name, plan.kind) not in self._lists:
                self._lists[name, plan.kind] = plan.lists(self.dev).place(self.dev)
            place = self._lists[name, plan.kind]
            self._plans[name, plan] = place.whole, plan.with_lists(place.parts)
        place, placed = self._plans[name, plan]
        self.dev.copy(plan.lists(self.dev).whole, out=place)
        return placed

    def __call__(self, key: Hashable, work: Callable[[], tuple[Any, Any]], arrays: Sequence[Any] = (),
                 done: Callable[[], None] = lambda: None) -> tuple[Any, Any]:
        """The two arrays that work() returns, which leaves gradients: computed, or replayed where this key was met before.

        The key, with some arrays and those of the parameters, says all that decides what is launched, and None that nothing
        does; inputs are in their places. done() is called at once when all was launched.
        """
        if not self.possible or key is None:
            return _done(work, done)
        key = key, tuple(map(id, arrays)), *((id(p.data), p.requires_grad) for p in self.parameters)
        if key not in self._met:
            if len(self._met) < self.MET:
                self._met[key] = None
            return _done(work, done)
        found = self._met[key]
        if found is None:
            found = self._met[key] = self._record(work, arrays)
        if not found:
            return _done(work, done)
        found.graph.replay()
        for parameter, gradient in zip(self.parameters, found.gradients, strict=True):
            parameter.gradient = gradient
        done()
        return tuple(self.dev.copy(array) for array in found.graph.result)  # the next replay writes to the same memory

    def _record(self, work: Callable[[], tuple[Any, Any]], arrays: Sequence[Any]) -> _Pass | tuple[()]:
        if len(self._recorded) == self.RECORDED:
            return ()
        try:
            graph = self.dev.record(work, *self._recorded[:1], most=self.MOST)
        except Exception as error:  # whatever a driver does not like, or memory that is short: training goes on without
            warnings.warn(f"passes are not replayed: {type(error).__name__}: {error}", stacklevel=2)
            self.possible, graph = False, None
            self._met.clear()
            self._recorded.clear()
        if graph is None:
            for parameter in self.parameters:
                parameter.zero_grad()  # nothing was computed
            self._failed += 1
            self.possible &= bool(self._recorded) or self._failed < self.TRIED
            return ()
        self._recorded.append(graph)
        return _Pass(graph, [p.gradient for p in self.parameters], [*arrays, *(p.data for p in self.parameters)])
