"""Recorder: record a training step (forward, backward and update) on the device, and replay it for later steps of its kind.

If two steps have plans of the same kinds and the same number of samples, they issue the same launches on the same arrays. Only
the contents of the arrays differ: the batch, and the lists of indices that the plans keep. The recorder copies both to fixed
buffers, which only it knows. A device computes a small step faster than Python issues its launches; a CUDA graph
(`numbanet_kernels.runtime.graph`) or a tape of the CPU (`numbanet_kernels.runtime.tape`) needs one call for all of them.

A kind of step is recorded when it occurs for the second time, or at once if it differs only in sizes from one that was recorded
(`_forms`) and calls the same loops. There are few kinds, so nearly all steps of a fit are replayed.
All recorded steps share one memory, so the results of a replay are copied before the next one.

    hold    copy the batch to the fixed buffers
    step    run the passes and the update: op by op, or as a replay

`Device.record` returns the recording, an object with `replay()` and `result`. If a device cannot record, all steps run op by op
in newly allocated arrays.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import profile
from ..device import Device
from ..layers import Layer, walk
from ..layers.tree import settings
from ..plans import DevicePlan, Plan, Plans
from ..plans.buffers import ListBuffers
from ..tensor import Tensor
from .choice import Choices
from .data import Batch
from .optim import Optimizer
from .queue import Pages, Queue, Ready

FLOAT32 = np.dtype(np.float32)


class _Pass(NamedTuple):
    """A recording of the passes, or of the passes and the update."""

    graph: Any
    gradients: list[Any]  # of the parameters; each replay overwrites them
    held: list[Any]  # the arrays of its key, kept alive so that no new array gets the same id
    chosen: dict[str, DevicePlan]  # plans whose lists each replay chooses on the device, by path


class Recorder:
    """The recorded steps of one training run of a model."""

    MOST = 1 << 30  # bytes of the memory that all recordings share; a step that needs more is not recorded
    RECORDED = 1 << 11  # largest number of recordings: a driver allocates some memory for each
    MET = 1 << 14  # largest number of cached kinds of steps, recorded or not
    HELD, FEW = 1 << 26, 8  # most bytes of the buffers of an input, one for each length of sequences; so many have any size
    TRIED = 4  # failed recordings after which recording is given up, if none has succeeded

    def __init__(self, dev: Device, model: Layer) -> None:
        self.dev, self.model = dev, model
        self.possible = not profile.ENABLED and dev.records()  # False under NUMBANET_PROFILE, which prints each operation
        self._recorded: list[Any] = []
        self._replayed: _Pass | None = None  # in the current step
        self._failed, self._told, self._kindless = 0, False, False
        self._met: dict[Hashable, _Pass | tuple[()] | None] = {}  # None after one step, () if not recordable
        self._unlike: set[Hashable] = set()  # keys of steps that call other loops than those of their form
        self._forms: dict[Hashable, set[tuple]] = {}  # forms of tapes, by what steps that differ only in sizes have in common
        self._chosen: dict[Hashable, dict[str, Plan | None]] = {}  # by key, the plans that the policy chose in the first step
        self._inputs: dict[tuple, Any] = {}
        self.lists = ListBuffers(dev, Queue.MOST)
        self._choices = Choices(dev, self.lists)
        self._ready: dict[Hashable, Ready] = {}
        self._fetches: dict[tuple, tuple[Any, Any]] = {}  # by samples and size of a batch: the samples, and what takes a batch
        self._samples: Any = None  # of the batch that is held
        self.queue = Queue(dev)

    @property
    def asks(self) -> bool:
        """True if the caller must find out whether its passes are repeatable: to record them, or to print why they are not."""
        return self.possible or (profile.ENABLED and not self._told)

    # --- fixed buffers ------------------------------------------------------------------------------------------------
    def hold(self, X: Any, batch: Batch, change: Callable[[Batch], Batch] | None) -> Batch:
        """The batch in the fixed buffers, which the next batch overwrites: its samples fetched from X, then change(batch) if
        `change` is given.
        """
        self.finish()
        self._samples = X if change is None and batch.values is None else None
        if change is None:
            ids, given = batch.ids, batch.values if isinstance(batch.values, np.ndarray) else X
            shape = (len(batch.rows), *given.shape[1:])  # lengths of sequences may differ between batches
            kind = (shape, FLOAT32) if ids is None else (ids.shape, ids.dtype)
            if ids is None:
                batch = batch._replace(inputs=self.put("rows", batch.inputs))
            batch = batch.fetch(X, self.dev, self.buffer("x", *kind))
        else:
            batch = change(batch.fetch(X, self.dev))
            batch = batch._replace(inputs=self.put("x", batch.inputs))
        return batch._replace(targets=self.put("y", batch.targets), weights=self.put("weights", batch.weights))

    def buffer(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The fixed buffer for an input of this name, shape and dtype. None if nothing is recorded, or if the buffers for other
        shapes take too much memory: then steps with this shape are not recorded.
        """
        if not self.possible:
            return None
        key = name, tuple(shape), dtype
        if key not in self._inputs:
            sizes = [math.prod(size) * kind.itemsize for other, size, kind in (*self._inputs, key) if other == name]
            if len(sizes) > self.FEW and sum(sizes) > self.HELD:
                return None
            self._inputs[key] = self.dev.empty(shape, dtype)
        return self._inputs[key]

    def put(self, name: str, array: Any) -> Any:
        """Copy a device array to the fixed buffer of an input, and return the buffer; if nothing is recorded, or if `array` is
        None, return `array`.
        """
        if array is None or not self.possible:
            return array
        return self.dev.copy(array, out=self.buffer(name, array.shape, array.dtype))

    def put_numbers(self, numbers: Sequence[tuple[float, ...]]) -> list[Any]:
        """Copy the numbers of an update, such as its learning rate, to fixed buffers; return the buffers."""
        for place, own in self.queue.new_numbers(numbers):
            self.dev.copy(np.array(own, np.float32), out=self.buffer(f"numbers {place}", (len(own),), FLOAT32))
        return [self.buffer(f"numbers {place}", (len(own),), FLOAT32) for place, own in enumerate(numbers)]

    def _holds(self, name: str, array: Any) -> bool:
        """True if an array is the fixed buffer of an input of this name, or None."""
        return array is None or array is self._inputs.get((name, tuple(array.shape), array.dtype))

    # --- steps --------------------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """Forget all recorded steps, because the model has changed: a key does not hold all attributes of the layers."""
        for kept in (self._ready, self._met, self._chosen, self._unlike, self._forms, self._recorded):
            kept.clear()

    def ready(self, key: Hashable, X: Any, states: Sequence[Any], optimizer: Optimizer) -> Ready | None:
        """The recorded step with this `quick_key`, of samples of X; the batch is not fetched yet, and `states` is that of
        `step`. None if there is no such step: then call `hold` and `step`.
        """
        found = self._ready.get(key)
        return found if found is not None and found.holds(X, states, optimizer) else None

    @staticmethod
    def quick_key(plans: Plans, batch: Batch) -> Hashable:
        """What distinguishes the steps of `ready`."""
        drawn = ((path, plan.kind) for path, plan in plans.assigned.items() if path not in plans.chosen)
        shape = None if batch.ids is None else (batch.ids.shape, batch.ids.dtype)
        return (len(batch.rows), shape, batch.weights is None, batch.counted, plans.decides, *drawn)

    def again(self, ready: Ready, numbers: Any, batch: Batch, plans: Plans) -> Sequence[Any]:
        """Add a step that is ready to the queue; return the arrays that hold its results after `finish`."""
        self._choices.begin(plans)
        results = self.queue.put(ready, numbers, batch, self.lists.copies(plans, self.queue.count))
        plans.take(ready.chosen)
        if plans.choose is not None and not ready.chosen:  # chosen during the replay, not that of a later step
            self.finish()
        return results

    def finish(self) -> None:
        """Replay the steps in the queue."""
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
        """Run the passes and update the weights, op by op or as a replay.

        Parameters
        ----------
        passes : callable
            () -> arrays: the forward and backward pass; it adds to the gradients of the parameters.
        optimizer : Optimizer
            `prepare` has been called for this step.
        plans : Plans
            The plans of this step.
        batch : Batch
            The result of `hold`.
        states : list of array
            Other arrays that the passes change, such as the states of recurrent layers.
        repeatable : bool
            True if passes with equal kinds of plans and equal shapes issue equal launches.

        Returns
        -------
        results : sequence of array
            The result of `passes`.
        packed : dict of Tensor to blocks
            The blocks of weights that the update packed for the next step; empty after a replay.
        """
        key = self._key(plans, batch) if repeatable and self.possible else None
        if key is None or not optimizer.records or any(p.device is not self.dev for p in optimizer.parameters):
            results = self(key, passes, states, plans)
            optimizer.reduce(results[0])
            packed = optimizer.launch()
            if profile.ENABLED and not self._told:  # now: the first step allocates states, which must not be those of a tape
                self._tell(passes, repeatable, plans, optimizer)
            return results, packed
        ready: dict[Tensor, Any] = {}
        places, values = optimizer.changing()
        numbers, update = self.put_numbers(values), optimizer.issues(places)

        def work() -> Sequence[Any]:
            results = passes()
            optimizer.reduce(results[0])
            ready.update(optimizer.launch(numbers))  # last: if something fails before, the weights are unchanged
            return results

        results = self(key + (update,), work, states + optimizer.arrays, plans)
        if self._replayed is not None and self._samples is not None and not optimizer.foresees:
            self._make_ready(self._replayed, plans, batch, states, optimizer, update)
        return results, ready if self._replayed is None else {}

    def _make_ready(
        self, found: _Pass, plans: Plans, batch: Batch, states: list[Any], optimizer: Optimizer, update: Hashable
    ) -> None:
        """From now on, steps like the one that was just replayed can be queued, if fetching their batch can be recorded."""
        X, place = self._samples, self.dev.place
        fetch, inputs = self._fetch(X, batch) if batch.ids is None else (None, batch.inputs)
        if batch.ids is None and fetch is None:
            return
        weights, pages = None if batch.weights is None else place(batch.weights), Pages(found.graph.result[0], self.dev)
        numbers = [place(buffer) for buffer in self.put_numbers(optimizer.changing()[1])]
        trained, program = [p.gradient is not None for p in optimizer.parameters], None
        if fetch is not None and not found.chosen and all(trained):
            into = [place(inputs), place(batch.targets), *([] if weights is None else [weights]), *numbers]
            lists = [place(self.lists.of(*given)) for given in plans.assigned.items()]
            program = self.dev.program([fetch, found.graph], into + lists, pages.given)
        self._ready[self.quick_key(plans, batch)] = Ready(
            found.graph,
            found.chosen,
            fetch,
            X,
            place(inputs),
            update,
            [*states, *optimizer.arrays],
            [(t, t.data, t.requires_grad) for _, t, _ in self.model.named()],
            trained,
            place(batch.targets),
            weights,
            numbers,
            pages,
            program,
        )

    def _fetch(self, X: Any, batch: Batch) -> tuple[Any, Any]:
        """Return a recording that copies samples of X to the inputs of `batch`, or None, and the buffer for their indices."""
        rows, key = self.buffer("rows", (len(batch.rows),), np.dtype(np.int32)), (id(X), len(batch.rows))
        if key not in self._fetches:
            take = functools.partial(self.dev.take_rows, X, rows, out=batch.inputs)
            self._fetches[key] = X, self._graph(take)
        return self._fetches[key][1], rows

    def _tell(self, passes: Callable[[], Sequence[Any]], repeatable: bool, plans: Plans, optimizer: Optimizer) -> None:
        """Print, once in a run, why this step could not be recorded; called under NUMBANET_PROFILE."""
        if repeatable and plans.choose is not None and not plans.chosen:
            return  # wait for a step whose chosen plans are known
        kindless = any(plan.kind is None for plan in plans.assigned.values())
        if repeatable and kindless and not self._kindless:
            self._kindless = True
            return  # the next step may be of a kind that is recorded
        self._told, reasons = True, []
        if not repeatable:
            reasons = ["a layer, the task or the policy does not say that equal kinds of plans mean equal launches"]
        elif kindless:
            reasons = ["a plan has no kind"]
        elif self.dev.records():
            with self._choices.standing_in(plans, dict(plans.chosen)):
                self.dev.record(self._from_no_gradients(passes), most=self.MOST, refused=reasons)
            for parameter in self.model.parameters():
                parameter.zero_grad()  # nothing was computed
        if not (reasons or optimizer.records):
            reasons = [f"updates by {type(optimizer).__name__}, which does not say that its launches are always the same"]
        for reason in reasons:
            print(f"not recorded: {reason}", file=sys.stderr)

    def _from_no_gradients(self, work: Callable[[], Sequence[Any]]) -> Callable[[], tuple[Sequence[Any], list[Any]]]:
        """A function that clears the gradients and calls work(), which adds to them; returns (its result, the gradients)."""
        parameters: list[Tensor] = list(self.model.parameters())

        def run() -> tuple[Sequence[Any], list[Any]]:
            for parameter in parameters:
                parameter.zero_grad()
            return work(), [getattr(parameter.gradient, "values", None) for parameter in parameters]

        return run

    def _key(self, plans: Plans, batch: Batch) -> tuple | None:
        """All that decides which launches the passes issue, first the kinds of the plans; None if an input is not in its
        buffer, or if a plan has no kind.
        """
        inputs = (("x", batch.inputs), ("y", batch.targets), ("weights", batch.weights))
        kinds = tuple((path, plan.kind) for path, plan in plans.assigned.items())
        if not all(self._holds(*given) for given in inputs) or any(kind is None for _, kind in kinds):
            return None
        layers = tuple((layer, *settings(layer)) for _, layer in walk(self.model))  # a hook may replace or change layers
        return kinds, layers, batch.inputs.shape, batch.weights is None, batch.counted, plans.decides

    def __call__(
        self, key: tuple | None, work: Callable[[], Sequence[Any]], arrays: Sequence[Any], plans: Plans
    ) -> Sequence[Any]:
        """The arrays that work() returns, computed or, if a step with this key was recorded, replayed; sets the gradients.

        The key, `arrays` and the model's arrays together decide which launches work() issues; if the key is None, work() is
        always computed. The inputs are in their buffers; this method copies the lists of the plans to theirs.
        """
        self._replayed = None
        self._choices.begin(plans)
        if not self.possible or key is None:
            return work()
        tensors = [tensor for _, tensor, _ in self.model.named()]
        key = *key, tuple(map(id, arrays)), *((id(t.data), t.requires_grad) for t in tensors)
        found, own, form = self._met.get(key), {}, None
        if not found and plans.choose is None and not self.dev.rehearses():
            form = key[1:], tuple((path, type(plan), plan.density < 1) for path, plan in plans.assigned.items())
        known = () if key in self._unlike or len(self._recorded) >= self.RECORDED else self._forms.get(form, ())
        new = key not in self._met and not known
        if self.dev.rehearses() or not (new or found == ()):
            self.lists.put(plans)
            own = self.lists.place(plans)
        if new:
            results = work()
            if len(self._met) < self.MET:
                self._met[key], self._chosen[key] = None, plans.chosen
            return results
        if found is None:
            with self._choices.standing_in(plans, self._chosen.pop(key, {})) as chosen:
                found = self._record(work, [*arrays, *(t.data for t in tensors)], known, chosen)
            found = self._met[key] = self._judged(found, key, form, bool(known))
        if not found:
            if not self.dev.rehearses():
                plans.here.update(own)  # compute with the original lists
            return work()
        found.graph.replay()
        self._replayed = found
        plans.take(found.chosen)
        for parameter, gradient in zip(self.model.parameters(), found.gradients, strict=True):
            parameter.zero_grad()
            if gradient is not None:
                parameter.receive(gradient)
        return tuple(self.dev.copy(array) for array in found.graph.result[0])  # the next replay writes to the same memory

    def _judged(self, found: _Pass | tuple[()], key: Hashable, form: Hashable, at_once: bool) -> _Pass | tuple[()] | None:
        """Remember the form of a recording. If a step was not recorded `at_once`, it counts as the first one of its kind, which
        has a trial when it occurs again: with its sizes other loops may be called.
        """
        if found and form is not None:
            self._forms.setdefault(form, set()).add(found.graph.form)
        if found or not at_once:
            return found
        self._unlike.add(key)
        return None

    def _record(
        self, work: Callable[[], Sequence[Any]], arrays: list[Any], known: Collection[tuple], chosen: dict[str, DevicePlan]
    ) -> _Pass | tuple[()]:
        if len(self._recorded) == self.RECORDED:
            return ()
        parameters: list[Tensor] = list(self.model.parameters())
        graph = self._graph(self._from_no_gradients(work), known)
        if graph is None:
            for parameter in parameters:
                parameter.zero_grad()  # nothing was computed
            self._failed += not known
            self.possible &= bool(self._recorded) or self._failed < self.TRIED
            return ()
        self._recorded.append(graph)
        return _Pass(graph, [p.gradient for p in parameters], arrays, chosen)

    def _graph(self, work: Callable[[], Any], known: Collection[tuple] = ()) -> Any:
        """The recording of work(); None if it cannot be recorded, or if `known` is given and the form is another one."""
        try:
            return self.dev.record(work, next(iter(self._recorded), None), self.MOST, known=known)
        except Exception as error:  # any error of a driver, or too little memory: training continues op by op
            warnings.warn(f"passes are not replayed: {type(error).__name__}: {error}", stacklevel=2)
            self.possible = False
            self.forget()
            return None
