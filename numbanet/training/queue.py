"""A queue of recorded training steps that are not computed yet; one call of `Device.replay` then computes several steps.

On a CPU, the computation of a small step takes less time than the Python code that starts it. So steps wait in the queue until
one call computes several. The steps differ in the indices of their samples (or in their inputs, if these are words on the
host), their targets, the numbers of the update (such as the learning rate) and the lists of their plans. Each waiting step has
its own arrays of these.

Preparing a step for the queue also takes longer than computing it if the network is small. If batches of one size follow each
other, as nearly always, `Blocks` computes a block of steps, which reads arrays with a row for each step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..device import Device
from ..layers.tree import same
from ..plans import DevicePlan, Plan
from ..tensor import Tensor
from .data import Batch, Several


class Pages:
    """Arrays for the results of many steps. A recorded step writes its results to arrays that the next replay overwrites, so
    they are copied to the arrays of this object.
    """

    MOST, BYTES = 64, 1 << 20  # steps for which arrays are allocated at once, and bytes unless one step needs more

    def __init__(self, results: Sequence[Any], dev: Device) -> None:
        self.results, self.dev, self.given = results, dev, [dev.place(array) for array in results]
        self.size = max(1, min(self.MOST, self.BYTES // max(sum(array.nbytes for array in results), 1)))
        self.left: Iterator[tuple[Any, ...]] = iter(())

    def next(self) -> tuple[tuple[Any, ...], list[tuple[Any, Any]]]:
        """Return the arrays for the results of one step, and the copies, (source, target), that fill them."""
        pair = next(self.left, None)
        if pair is None:
            pages = [self.dev.empty((self.size, *array.shape), array.dtype) for array in self.results]
            parts, places = zip(*map(self.dev.places, pages))
            self.left = zip(zip(*parts), zip(*places))
            pair = next(self.left)
        results, there = pair
        return results, list(zip(self.given, there))


class Ready(NamedTuple):
    """A recorded step. It can be replayed if only the batch, the lists of the plans and the numbers of the update have changed
    since it was recorded.
    """

    graph: Any
    chosen: dict[str, DevicePlan]  # plans whose lists a replay chooses on the device, by path
    fetch: Any  # a recording that copies the samples of the batch to the inputs; None if the host has the inputs
    samples: Any
    inputs: Any  # the `place` of the buffer for the indices of the batch, or for the inputs that the host has
    update: Hashable  # the settings that decide which launches the update issues, without its numbers
    arrays: list[Any]  # that the step changes: the states of recurrent layers and of the optimiser; they may be replaced
    tensors: list[tuple[Tensor, Any, bool]]  # of the model: (tensor, its array, requires_grad)
    trained: list[bool]  # for each parameter of the optimiser, whether it has a gradient
    targets: Any  # places of buffers, as the next two
    weights: Any
    numbers: list[Any]
    pages: Pages  # for the results
    program: Any  # the same recording for `Queue.several`; None if its steps cannot be replayed together

    def holds(self, X: Any, states: Sequence[Any], optimizer: Any) -> bool:
        """Return True if the recording still is that of a step with samples of X."""
        if self.samples is not X or not optimizer.records or not same(self.arrays, [*states, *optimizer.arrays]):
            return False
        if self.update != optimizer.issues(optimizer.changing()[0]):
            return False
        return all([t.data is array and t.requires_grad is grad for t, array, grad in self.tensors])


class Queue:
    """The steps that wait, in the order in which they will be replayed.

    Parameters
    ----------
    dev : Device
        The device that computes the steps.
    """

    SECONDS = 0.005  # duration of the steps that are replayed by one call: an interrupt waits for its end
    MOST = 64  # steps that are replayed by one call

    def __init__(self, dev: Device) -> None:
        self.dev = dev
        self.numbers: dict[int, tuple[float, ...]] = {}  # of the update, by buffer, after the last step in the queue
        self.waiting: list[Any] = []  # arguments of `Device.replay`
        self.count, self.most = 0, 1  # steps in the queue, and how many are replayed by one call
        self._pages: dict[tuple[int, int], tuple[np.ndarray, list[Any]]] = {}  # (numbers by step, their places)

    def put(
        self, ready: Ready, numbers: Sequence[tuple[float, ...]], batch: Batch, lists: Sequence[tuple[Any, Any]]
    ) -> Sequence[Any]:
        """Add a step. Return the arrays that hold its results after the next call of `finish`; `put` itself calls `finish` if
        enough steps wait.

        Parameters
        ----------
        ready : Ready
            The recorded step.
        numbers : sequence of tuple of float
            The numbers of the update (`Optimizer.changing`), a tuple for each buffer.
        batch : Batch
            The samples of the step; its inputs are not fetched yet.
        lists : sequence of (array, array)
            Each list of a plan, and the buffer from which the recorded step reads it.
        """
        waiting = self.waiting
        waiting += [self._copy_of(place, own, ready) for place, own in self.new_numbers(numbers)]
        given = batch.inputs if batch.ids is None else np.ascontiguousarray(batch.ids)
        waiting += (given, ready.inputs), (batch.targets, ready.targets)
        if ready.weights is not None:
            waiting.append((batch.weights, ready.weights))
        waiting += lists
        waiting += (ready.graph,) if ready.fetch is None else (ready.fetch, ready.graph)
        results, copies = ready.pages.next()
        waiting += copies
        self.count += 1
        if self.count >= self.most:
            self.finish()
        return results

    def new_numbers(self, numbers: Sequence[tuple[float, ...]]) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Yield (index of a buffer, numbers) for each buffer whose numbers differ from those of the previous step; the caller
        copies the numbers to the buffer.
        """
        for place, own in enumerate(numbers):
            if self.numbers.get(place) != own:
                self.numbers[place] = own
                yield place, own

    def _copy_of(self, place: int, own: tuple[float, ...], ready: Ready) -> tuple[Any, Any]:
        """Return the copy, (source, target), of the numbers `own` of the next step to the buffer with index `place`."""
        key = place, len(own)
        if key not in self._pages:
            page = np.zeros((self.MOST, len(own)), np.float32)
            self._pages[key] = page, self.dev.places(page)[1]
        page, places = self._pages[key]
        page[self.count] = own
        return places[self.count], ready.numbers[place]

    def several(
        self, steps: Sequence[Ready], numbers: Sequence[list[tuple[float, ...]]], some: Several, lists: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """Compute several steps by one call, when none waits. Return the arrays (steps, …) of their results.

        Parameters
        ----------
        steps : sequence of Ready
            The recorded steps.
        numbers : sequence of list of tuple of float
            The numbers of the updates (`Optimizer.ahead`), a list for each buffer.
        some : Several
            The samples of the steps.
        lists : sequence of sequence of place
            For each step, the `place` of each list of its plans.
        """
        results = [self.dev.empty((len(steps), *array.shape), array.dtype) for array in steps[0].pages.results]
        before = [some.inputs, some.targets] if some.weights is None else [some.inputs, some.targets, some.weights]
        before += [self.dev.upload(np.array(own, np.float32)) for own in numbers]
        self.numbers.update({place: own[-1] for place, own in enumerate(numbers)})
        began = time.perf_counter()
        self.dev.replay_programs([ready.program for ready in steps], before, lists, results)
        self._measured((time.perf_counter() - began) / len(steps))
        return results

    def finish(self) -> None:
        """Replay the steps that wait."""
        if not self.count:
            return
        waiting, count, self.waiting, self.count = self.waiting, self.count, [], 0
        began = time.perf_counter()
        self.dev.replay(waiting)
        self._measured((time.perf_counter() - began) / count)

    def _measured(self, seconds: float) -> None:
        """Decide how many steps one call replays, if a step takes `seconds`."""
        self.most = max(1, min(self.MOST, int(self.SECONDS / max(seconds, 1e-9))))


class StepResults(NamedTuple):
    """The results of several steps: the losses and the predictions, arrays with a row for each step and each sample; and for
    each step what `StepResult` has.
    """

    loss: Any
    answer: Any
    flops: list[float]
    dense: list[float]


class _Known(NamedTuple):
    """What is equal in all steps with the same plans and batches of one kind."""

    assigned: dict[str, Plan]
    kind: Hashable  # `Recorder.quick_key`
    sources: list[Any]  # `ListBuffers.sources`
    flops: float


class Blocks:
    """Makes several steps of a `Stepper` by one call, with results that are equal to those of single steps."""

    MOST = 1 << 14  # largest number of cached combinations of plans

    def __init__(self, stepper: Any) -> None:
        self.stepper = stepper
        self._known: dict[Hashable, dict[Hashable, _Known]] = {}  # by the kind of the batches, then by the plans

    def forget(self) -> None:
        """Forget what is known of steps, because layers have changed."""
        self._known.clear()

    @property
    def most(self) -> int:
        """Largest number of steps of a block; 1 if steps must be single."""
        by = self.stepper
        known = not by.chooses and by.state is None and not by.optimizer.foresees and by.optimizer.ahead(0) is not None
        return by.recorder.queue.most if known else 1

    def make(self, X: Any, batch: Batch, some: Several, whole: bool) -> tuple[Several, StepResults] | None:
        """Make steps with as many of some batches, of which `batch` is the first, as there are recordings of, from the first
        on. Return these batches and the results; None if the first step is not recorded. `whole` is that of `loop.epoch`.
        """
        by = self.stepper
        with by.dev.session(**by.session_options):
            by.recorder.finish()
            shape = (some.size, *X.shape[1:])
            steps = list(itertools.islice(self._recorded(X, batch, shape), some.steps))
            if not steps:
                return None
            count = len(steps)
            recordings, lists, flops = map(list, zip(*steps))
            some = some.first(count, by.dev)
            losses, answers = by.recorder.queue.several(recordings, by.optimizer.ahead(count), some, lists)
            for ready in recordings:
                by.optimizer.advance(ready.trained)
            if some.ends and not whole:
                by.foresee()
            flops[-1] += by.current.pop_flops()
            answers = by.dev.reshape(answers, (count * answers.shape[1], *answers.shape[2:]))
            return some, StepResults(losses, answers, flops, [by.flops.of(shape, by.nothing)] * count)

    def _recorded(self, X: Any, batch: Batch, shape: tuple[int, ...]) -> Iterator[tuple[Ready, list[Any], float]]:
        """Draw the plans of step after step, of batches like `batch`, and yield the recording of each, the places of the lists
        of its plans, and its FLOPs, until a step has no recording: it is the next one of the stepper.
        """
        by, found = self.stepper, dict[Hashable, Ready]()
        known = self._known.setdefault((shape, batch.weights is None), {})
        for i in itertools.count():
            assigned = by.taken()
            key = (*assigned, *map(id, assigned.values()))
            step, plans = known.get(key), None
            if step is None:
                plans = by.plans_of(assigned, by.current)
            kind = by.recorder.quick_key(plans, batch) if step is None else step.kind
            ready = found.get(kind) or by.recorder.ready(kind, X, [], by.optimizer)
            if ready is None or ready.program is None:
                by.resume(assigned)
                return
            if step is None:
                step = _Known(assigned, kind, by.recorder.lists.sources(plans, i), by.flops.of(shape, plans))
                if all(plan.cacheable for plan in assigned.values()) and len(known) < self.MOST:
                    known[key] = step
            found[kind] = ready
            yield ready, step.sources, step.flops
