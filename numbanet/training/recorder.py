"""Recorder: a training step that came before, its passes and its update, is done again as the device recorded it.

With plans of the same kinds and the same number of samples a step is the same launches on the same arrays: only what is in them
is new, the batch and the lists of what the plans keep. So these lie in fixed buffers, which the recorder alone knows. A small
step takes less time than Python takes to say what to do in it; a graph of a card (`numbanet_kernels.runtime.graph`) or a tape
of the CPU (`numbanet_kernels.runtime.tape`) is done at once.
A step that is met for the second time is recorded; as there are few kinds, nearly all steps of a fit are replayed. What they
compute lies in one memory for all of them, which is used up before the next one is done.

    hold    the batch, in fixed buffers
    step    the passes and the update: op by op, or replayed

A backend is what `Device.record` gives: something with `replay()` and `result`. Where a device has none, all steps are done op
by op, in arrays of their own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import profile
from ..autograd import no_grad
from ..device import Device
from ..layers import Layer, walk
from ..plans import DevicePlan, Plan, Plans, Site
from ..plans.on_device import upload_plan
from ..tensor import Tensor
from .data import Batch
from .optim import Optimizer
from .queue import Pages, Queue, Ready

FLOAT32 = np.dtype(np.float32)


class _Pass(NamedTuple):
    """What was recorded."""

    graph: Any
    gradients: list[Any]  # of the parameters, written anew by each replay
    held: list[Any]  # the arrays of its key, so that no other ones are taken for them


class Recorder:
    """The recorded steps of one training run of a model."""

    MOST = 1 << 30  # bytes that recorded passes may take, all of them together; a larger one is not recorded
    RECORDED = 1 << 11  # passes that are recorded: a driver keeps some memory for each
    MET = 1 << 14  # passes that are remembered, recorded or not, and plans
    TRIED = 4  # passes that could not be recorded: then no other is tried, if none could

    def __init__(self, dev: Device, model: Layer) -> None:
        self.dev, self.model = dev, model
        self.possible = not profile.ENABLED and dev.records()  # False where every operation shall be seen
        self._recorded: list[Any] = []
        self._failed, self._replayed, self._told = 0, None, False
        self._met: dict[Hashable, _Pass | tuple[()] | None] = {}  # met once: None; not to be had: ()
        self._plans = Plans(dev)  # of the step
        self._chosen: dict[Hashable, dict[str, Plan | None]] = {}  # by key, what was chosen in a pass
        self._inputs: dict[tuple, Any] = {}
        self._numbers: dict[int, tuple[float, ...]] = {}
        self._lists: dict[tuple, Any] = {}
        self._kept: dict[tuple, DevicePlan] = {}
        self._ready: dict[Hashable, Ready] = {}
        self._fetches: dict[tuple, tuple[Any, Any]] = {}  # by samples and size of a batch: the samples, and what takes a batch
        self._samples: Any = None  # of the batch that is held
        self.queue = Queue(dev, self._numbers)

    @property
    def asks(self) -> bool:
        """Whether it matters if passes can be recorded."""
        return self.possible or (profile.ENABLED and not self._told)

    # --- fixed buffers ------------------------------------------------------------------------------------------------
    def hold(self, X: Any, batch: Batch, change: Callable[[Batch], Batch] | None) -> Batch:
        """The batch, fetched from samples X and maybe changed, where recorded steps find it: the next one overwrites it."""
        self.finish()
        self._samples = X if change is None and batch.ids is None else None
        if change is None:
            ids, shape = batch.ids, (len(batch.rows), *X.shape[1:])
            kind = (shape, FLOAT32) if ids is None else (ids.shape, ids.dtype)
            if ids is None:
                batch = batch._replace(inputs=self.put("rows", batch.inputs))
            batch = batch.fetch(X, self.dev, self.buffer("x", *kind))
        else:
            batch = change(batch.fetch(X, self.dev))
            batch = batch._replace(inputs=self.put("x", batch.inputs))
        return batch._replace(targets=self.put("y", batch.targets), weights=self.put("weights", batch.weights))

    def buffer(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array in which steps find an input of this name and shape; None where nothing is recorded."""
        if not self.possible:
            return None
        key = name, tuple(shape), dtype
        if key not in self._inputs:
            self._inputs[key] = self.dev.empty(shape, dtype)
        return self._inputs[key]

    def put(self, name: str, array: Any) -> Any:
        """The values of an array of the device, in the buffer of an input where steps are recorded; None for None."""
        if array is None or not self.possible:
            return array
        return self.dev.copy(array, out=self.buffer(name, array.shape, array.dtype))

    def put_numbers(self, numbers: Sequence[tuple[float, ...]]) -> list[Any]:
        """Numbers of an update where recorded steps find them."""
        for place, own in enumerate(numbers):
            if self._numbers.get(place) != own:
                self._numbers[place] = own
                self.dev.copy(np.array(own, np.float32), out=self.buffer(f"numbers {place}", (len(own),), FLOAT32))
        return [self.buffer(f"numbers {place}", (len(own),), FLOAT32) for place, own in enumerate(numbers)]

    def _holds(self, name: str, array: Any) -> bool:
        """Whether an array is the buffer of an input of that name; None always is."""
        return array is None or array is self._inputs.get((name, tuple(array.shape), array.dtype))

    def put_plans(self, plans: Plans) -> None:
        """Put the lists of plans where recorded steps find those of all plans of their kind at that site."""
        for site, plan in plans.assigned.items():
            whole = plans.on_device(site).buffer
            self._lists[site, plan.kind] = self.dev.copy(whole, out=self._lists.get((site, plan.kind)))

    def place_plans(self, plans: Plans) -> dict[str, DevicePlan]:
        """Let passes read them there; returns, by site, what has lists of its own."""
        own = {site: plans.on_device(site) for site in plans.assigned}
        for site, plan in plans.assigned.items():
            here = self._kept.get((site, plan))
            if here is None:
                here = own[site].copied_to(self._lists[site, plan.kind])
                if len(self._kept) == self.MET:
                    self._kept.clear()
                if plan.cacheable:
                    self._kept[site, plan] = here
            plans.here[site] = here
        return own

    # --- steps --------------------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """The model has other layers or tensors: steps that are ready are those of the former ones."""
        self._ready.clear()

    def ready(self, X: Any, plans: Plans, batch: Batch, optimizer: Optimizer) -> tuple[Ready, Any] | None:
        """The recorded step for plans of these kinds and a batch of samples X, not fetched yet, and the numbers of its update;
        None if there is none: then `hold` and `step` do it."""
        found = self._ready.get(self._quick_key(plans, batch)) if self._ready else None
        if found is None or found.samples is not X or found.state is not optimizer.state:
            return None
        places, numbers = optimizer.changing()
        if found.update != (optimizer.constants, places):
            return None
        if not all([t.data is array and t.requires_grad is grad for t, array, grad in found.tensors]):
            return None
        return found, numbers

    @staticmethod
    def _quick_key(plans: Plans, batch: Batch) -> Hashable:
        drawn = ((path, plan.kind) for path, plan in plans.assigned.items() if path not in plans.chosen)
        return (len(batch.rows), batch.weights is None, plans.decides, *drawn)

    def again(self, ready: Ready, numbers: Any, batch: Batch, plans: Plans) -> list[Any]:
        """Put a step that is ready in the queue; returns arrays that have what `step` returns after `finish`."""
        lists = [(plans.on_device(site).buffer, self._lists[site, plan.kind]) for site, plan in plans.assigned.items()]
        results = self.queue.put(ready, numbers, batch, lists)
        if plans.choose is not None:
            self._plans = plans  # of which `_choose` makes others
            self.finish()
        return results

    def finish(self) -> None:
        """Do the steps in the queue."""
        self.queue.finish()

    def step(
        self,
        passes: Callable[[], Sequence[Any]],
        optimizer: Optimizer,
        plans: Plans,
        batch: Batch,
        states: list[Any],
        repeatable: bool,
    ) -> tuple[Sequence[Any], dict[Tensor, Any]]:
        """(what the passes return, what the update packed for the next step), after an update of the weights.

        Parameters
        ----------
        passes : callable
            () -> arrays: forward and backward, which leaves gradients.
        optimizer : Optimizer
            Prepared for the step.
        plans : Plans
        batch : Batch
            As `hold` gave it.
        states : list of array
            What the passes change besides, such as those of recurrent layers.
        repeatable : bool
            Whether passes with equal kinds of plans and equal shapes are equal launches.
        """
        if profile.ENABLED and not self._told:
            self._tell(passes, repeatable, plans)
        key = self._key(plans, batch) if repeatable and self.possible else None
        if key is None or not optimizer.records or any(p.device is not self.dev for p in optimizer.parameters):
            results = self(key, passes, states, plans)
            optimizer.reduce()
            return results, optimizer.launch()
        ready: dict[Tensor, Any] = {}
        places, values = optimizer.changing()
        numbers, update = self.put_numbers(values), (optimizer.constants, places)

        def work() -> Sequence[Any]:
            results = passes()
            optimizer.reduce()
            ready.update(optimizer.launch(numbers))  # last: what fails before leaves the weights as they are
            return results

        results = self((key, update), work, states + optimizer.arrays, plans)
        if self._replayed is not None and self._samples is not None and not states and not optimizer.foresees:
            self._make_ready(self._replayed, plans, batch, optimizer, update)
        return results, ready if self._replayed is None else {}

    def _make_ready(self, graph: Any, plans: Plans, batch: Batch, optimizer: Optimizer, update: Hashable) -> None:
        """Steps like the one that was replayed may be put in the queue from now on, if their fetch can be recorded."""
        X, rows = self._samples, self.buffer("rows", (len(batch.rows),), np.dtype(np.int32))
        key = id(X), len(batch.rows)
        if key not in self._fetches:
            take = functools.partial(self.dev.take_rows, X, rows, out=batch.inputs)
            self._fetches[key] = X, self.dev.record(take, next(iter(self._recorded), None), self.MOST)
        if (fetch := self._fetches[key][1]) is None:
            return
        trained = [p.gradient is not None for p in optimizer.parameters]
        tensors = [(t, t.data, t.requires_grad) for _, t, _ in self.model.named()]
        place, given = self.dev.place, batch.weights
        self._ready[self._quick_key(plans, batch)] = Ready(
            graph,
            fetch,
            X,
            place(rows),
            update,
            optimizer.state,
            tensors,
            trained,
            place(batch.targets),
            None if given is None else place(given),
            [place(buffer) for buffer in self.put_numbers(optimizer.changing()[1])],
            Pages(graph.result[0], self.dev),
        )

    def _tell(self, passes: Callable[[], Sequence[Any]], repeatable: bool, plans: Plans) -> None:
        """Say, once, why passes like these are not recorded where they might be."""
        if repeatable and plans.choose is not None and not self._plans.chosen:
            return  # until it is known what is chosen
        self._told, reasons = True, []
        if not repeatable:
            reasons = ["a layer, the task or the policy does not say that equal kinds of plans mean equal launches"]
        elif any(plan.kind is None for plan in plans.assigned.values()):
            reasons = ["a plan has no kind"]
        elif self.dev.records():
            with self._standing_in(plans, self._plans.chosen):
                self.dev.record(self._from_no_gradients(passes), most=self.MOST, refused=reasons)
        for reason in reasons:
            print(f"not recorded: {reason}", file=sys.stderr)

    def _from_no_gradients(self, work: Callable[[], Sequence[Any]]) -> Callable[[], tuple[Sequence[Any], list[Any]]]:
        """work, which adds to gradients, from none on; it gives them, too."""
        parameters: list[Tensor] = list(self.model.parameters())

        def run() -> tuple[Sequence[Any], list[Any]]:
            for parameter in parameters:
                parameter.zero_grad()
            return work(), [getattr(parameter.gradient, "values", None) for parameter in parameters]

        return run

    def _key(self, plans: Plans, batch: Batch) -> Hashable | None:
        """What decides which launches the passes are; None where that is not known, or they are more than launches."""
        inputs = (("x", batch.inputs), ("y", batch.targets), ("weights", batch.weights))
        kinds = tuple((path, plan.kind) for path, plan in plans.assigned.items())
        if not all(self._holds(*given) for given in inputs) or any(kind is None for _, kind in kinds):
            return None
        layers = tuple(layer for _, layer in walk(self.model))  # a callback may exchange some
        return layers, kinds, batch.inputs.shape, batch.weights is None, plans.decides

    def __call__(self, key: Hashable, work: Callable[[], Sequence[Any]], arrays: Sequence[Any], plans: Plans) -> Sequence[Any]:
        """The arrays that work() returns, which leaves gradients: computed, or replayed where this key was met before.

        The key, with some arrays and those of the model, says all that decides what is launched, and None that nothing does;
        inputs are in their places, and lists of plans where it is recorded.
        """
        self._replayed, self._plans = None, plans
        if not self.possible or key is None:
            return work()
        tensors = [tensor for _, tensor, _ in self.model.named()]
        key = key, tuple(map(id, arrays)), *((id(t.data), t.requires_grad) for t in tensors)
        new, found, own = key not in self._met, self._met.get(key), {}
        if self.dev.rehearses() or not (new or found == ()):
            self.put_plans(plans)
            own = self.place_plans(plans)
        if new:
            results = work()
            if len(self._met) < self.MET:
                self._met[key], self._chosen[key] = None, plans.chosen
            return results
        if found is None:
            with self._standing_in(plans, self._chosen.pop(key)):
                found = self._met[key] = self._record(work, [*arrays, *(t.data for t in tensors)])
        if not found:
            if not self.dev.rehearses():
                plans.here.update(own)  # it is done as if nothing was recorded
            return work()
        found.graph.replay()
        self._replayed = found.graph
        for parameter, gradient in zip(self.model.parameters(), found.gradients, strict=True):
            parameter.zero_grad()
            if gradient is not None:
                parameter.receive(gradient)
        return tuple(self.dev.copy(array) for array in found.graph.result[0])  # the next replay writes to the same memory

    # --- choices in a pass --------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _standing_in(self, plans: Plans, like: dict[str, Plan | None]) -> Iterator[None]:
        """What policies choose in a pass is not chosen while it is recorded: plans like those before, of the same kinds, stand
        in, and each time that it is done again lists are put into their buffers at that point."""
        there = ((path, plan) for path, plan in like.items() if plan is not None)
        here = {path: upload_plan(plan, self.dev, self._list_of(path, plan)) for path, plan in there}

        def stand_in(site: Site, flow: Any, layer: Layer, shape: tuple[int, ...] | None) -> DevicePlan | None:
            plan, flow = like[site.path], flow._replace(x=Tensor.wrap(flow.x.data, self.dev))
            self.dev.aside(functools.partial(self._choose, site, flow, layer, shape, plan and plan.kind))
            return here.get(site.path)

        with plans.standing_in(stand_in):
            yield

    def _list_of(self, path: str, plan: Plan) -> Any:
        """The buffer of plans of that kind."""
        key = path, plan.kind
        if key not in self._lists:
            self._lists[key] = self.dev.copy(upload_plan(plan, self.dev).buffer)
        return self._lists[key]

    def _choose(self, site: Site, flow: Any, layer: Layer, shape: tuple[int, ...] | None, kind: Hashable) -> None:
        """Choose a plan for the present step."""
        with no_grad():
            plan = self._plans.choice(site, flow, layer, shape)
        if (plan and plan.kind) != kind:
            raise RuntimeError(f"{plan} was chosen for {site.path} where plans of the kind {kind} were recorded")
        if plan is not None:
            self.dev.copy(upload_plan(plan, self.dev).buffer, out=self._lists[site.path, kind])

    def _record(self, work: Callable[[], Sequence[Any]], arrays: list[Any]) -> _Pass | tuple[()]:
        if len(self._recorded) == self.RECORDED:
            return ()
        parameters: list[Tensor] = list(self.model.parameters())
        try:
            graph = self.dev.record(self._from_no_gradients(work), next(iter(self._recorded), None), self.MOST)
        except Exception as error:  # whatever a driver does not like, or memory that is short: training goes on without
            warnings.warn(f"passes are not replayed: {type(error).__name__}: {error}", stacklevel=2)
            self.possible, graph = False, None
            self._met.clear()
            self._ready.clear()
            self._recorded.clear()
        if graph is None:
            for parameter in parameters:
                parameter.zero_grad()  # nothing was computed
            self._failed += 1
            self.possible &= bool(self._recorded) or self._failed < self.TRIED
            return ()
        self._recorded.append(graph)
        return _Pass(graph, [p.gradient for p in parameters], arrays)
