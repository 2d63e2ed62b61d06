"""Replay: a pass that came before, forward and backward, and with SGD its update, is done again as the device recorded it.

With plans of the same kinds and the same number of samples a pass is the same launches on the same arrays: only what is in them
is new, the batch and the lists of what the plans keep. On a card a small one takes less time than Python takes to launch it,
and a graph (`numbanet_kernels.runtime.graph`) is launched at once. A pass that is met for the second time is recorded; as there
are few kinds, nearly all passes of a fit are replayed. What passes compute lies in one memory for all of them, which is used up
before the next one is done.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from .. import profile
from ..device import Device
from ..layers import Layer
from ..plans import Kept, Plan, Plans
from ..tensor import Tensor


class _Pass(NamedTuple):
    """What was recorded."""

    graph: Any
    gradients: list[Any]    # of the parameters, written anew by each replay
    held: list[Any]         # the arrays of its key, so that no other ones are taken for them


class Replay:
    """The recorded passes of one training run through a model: they leave gradients in its parameters."""

    MOST = 1 << 30      # bytes that recorded passes may take, all of them together; a larger one is not recorded
    RECORDED = 1 << 11  # passes that are recorded: a driver keeps some memory for each
    MET = 1 << 14       # passes that are remembered, recorded or not, and plans
    TRIED = 4           # passes that could not be recorded: then no other is tried, if none could

    def __init__(self, dev: Device, model: Layer) -> None:
        self.dev, self.model = dev, model
        self.possible = not profile.ENABLED and dev.records()  # False on the CPU, and where every operation shall be seen
        self._recorded: list[Any] = []
        self._failed = 0
        self._met: dict[Hashable, _Pass | tuple[()] | None] = {}  # met once: None; not to be had: ()
        self._inputs: dict[tuple, Any] = {}
        self._places: dict[tuple, Any] = {}
        self._kept: dict[tuple, Kept] = {}

    # --- places -------------------------------------------------------------------------------------------------------
    def place(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array in which passes find an input of this name and shape; None where nothing is replayed."""
        if not self.possible:
            return None
        key = name, tuple(shape), dtype
        if key not in self._inputs:
            self._inputs[key] = self.dev.empty(shape, dtype)
        return self._inputs[key]

    def holds(self, name: str, array: Any) -> bool:
        """Whether an array is the place of an input of that name; None always is."""
        return array is None or array is self._inputs.get((name, tuple(array.shape), array.dtype))

    def put(self, name: str, array: Any) -> Any:
        """The values of an array of the device, in the place of an input where passes are replayed; None for None."""
        if array is None or not self.possible:
            return array
        return self.dev.copy(array, out=self.place(name, array.shape, array.dtype))

    def put_plans(self, plans: Plans) -> None:
        """Put the lists of plans where passes find those of all plans of their kind at that site."""
        for site, plan in plans.assigned.items():
            if plan.density < 1 or plan.once:  # else there is no other one of its kind, and its lists are kept
                plans.place(site, self._put_plan(site, plan, plans.kept(site)))

    def _put_plan(self, site: str, plan: Plan, own: Kept) -> Kept:
        if (site, plan.kind) not in self._places:
            self._places[site, plan.kind] = self.dev.copy(own.whole)
        place = self.dev.copy(own.whole, out=self._places[site, plan.kind])
        if plan.once:
            return own.at(place)
        if (site, plan) not in self._kept:
            if len(self._kept) == self.MET:
                self._kept.clear()
            self._kept[site, plan] = own.at(place)
        return self._kept[site, plan]

    # --- passes -------------------------------------------------------------------------------------------------------
    def __call__(self, key: Hashable, work: Callable[[], Sequence[Any]], arrays: Sequence[Any] = ()) -> Sequence[Any]:
        """The arrays that work() returns, which leaves gradients: computed, or replayed where this key was met before.

        The key, with some arrays and those of the model, says all that decides what is launched, and None that nothing does;
        inputs are in their places.
        """
        if not self.possible or key is None:
            return work()
        tensors = [tensor for _, tensor, _ in self.model.named()]
        key = key, tuple(map(id, arrays)), *((id(t.data), t.requires_grad) for t in tensors)
        if key not in self._met:
            if len(self._met) < self.MET:
                self._met[key] = None
            return work()
        found = self._met[key]
        if found is None:
            found = self._met[key] = self._record(work, [*arrays, *(t.data for t in tensors)])
        if not found:
            return work()
        found.graph.replay()
        for parameter, gradient in zip(self.model.parameters(), found.gradients, strict=True):
            parameter.gradient = gradient
        return tuple(self.dev.copy(array) for array in found.graph.result)  # the next replay writes to the same memory

    def _record(self, work: Callable[[], Sequence[Any]], arrays: list[Any]) -> _Pass | tuple[()]:
        if len(self._recorded) == self.RECORDED:
            return ()
        try:
            graph = self.dev.record(work, *self._recorded[:1], most=self.MOST)
        except Exception as error:  # whatever a driver does not like, or memory that is short: training goes on without
            warnings.warn(f"passes are not replayed: {type(error).__name__}: {error}", stacklevel=2)
            self.possible, graph = False, None
            self._met.clear()
            self._recorded.clear()
        parameters: list[Tensor] = list(self.model.parameters())
        if graph is None:
            for parameter in parameters:
                parameter.zero_grad()  # nothing was computed
            self._failed += 1
            self.possible &= bool(self._recorded) or self._failed < self.TRIED
            return ()
        self._recorded.append(graph)
        return _Pass(graph, [p.gradient for p in parameters], arrays)
