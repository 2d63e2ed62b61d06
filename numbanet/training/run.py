"""A `Run` holds everything that training changes; a `Snapshot` is a copy of it to which training can return."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import check_returned
from ..device import Device
from ..layers import Layer, Sequential, to, walk
from ..layers.tree import set_trained
from ..tensor import Tensor
from .data import Batch
from .optim import Optimizer
from .stepper import Stepper
from .streams import Streams, set_state


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a run: copies of arrays, on their devices, and everything else that training changes.

    Attributes
    ----------
    model : Sequential
    optimizer : Optimizer
    streams : Streams
    history : list of dict
        These four are the objects to restore. The other attributes are what they contained:
    layers : list of (Sequential, list of Layer)
        Each `Sequential` of the model, and its layers.
    tensors : list of (Tensor, Device, array)
        Each parameter and buffer, its device, and the copy of its values.
    trained : list of bool
        For each of `tensors`, its `requires_grad`.
    parameters : list of Tensor
        The parameters of the optimiser.
    state : dict or None
        As `Optimizer.snapshot` returns it; None if only weights were copied.
    random : list
        The states of the random streams.
    epoch : int
        Number of completed epochs.
    drawn : mapping or None
        The plans of the next step, if they were already drawn.
    hooks : list of (Hook, state)
    """

    model: Sequential
    optimizer: Optimizer
    streams: Streams
    history: list[dict]
    layers: list[tuple[Sequential, list[Layer]]]
    tensors: list[tuple[Tensor, Device, Any]]
    trained: list[bool]
    parameters: list[Tensor]
    state: dict[str, Any] | None
    random: list[Any]
    epoch: int
    drawn: Any
    hooks: list[tuple[Any, Any]]

    @property
    def arrays(self) -> Iterable[Any]:
        """Yield the copied arrays, in the order in which they were copied."""
        yield from (array for _, _, array in self.tensors)
        yield from (array for state in (self.state or {}).get("state", ()) for array in state)

    def restore(self) -> bool:
        """Restore everything. If only weights were copied, restore only the weights; the optimiser then starts with a new
        state. Return True if layers or shapes have changed.
        """
        changed = False
        for chain, layers in self.layers:
            changed |= chain.layers != layers
            chain.layers[:] = layers
        for tensor, dev, array in self.tensors:
            changed |= tensor.shape != tuple(array.shape)
            tensor.move(dev)
            tensor.assign(array)
        self.optimizer.parameters[:] = self.parameters
        self.optimizer.reset()
        self.optimizer.zero_grad()
        if self.state is not None:
            for (tensor, *_), trained in zip(self.tensors, self.trained):
                set_trained(tensor, trained)
            self.optimizer.restore(self.state)
            self.streams.restore(self.random)
            del self.history[self.epoch :]
            for hook, state in self.hooks:
                hook.restore(state)
        return changed


@dataclasses.dataclass
class Run:
    """One call of `fit` or `partial_fit`: the state that training changes, and the objects that change it.

    Attributes
    ----------
    stepper : Stepper
        The object that makes the training steps. It has the model, the optimiser, the random streams, the policy, and the plans
        of the next step.
    history : list of dict
        One record per epoch, including the epochs of earlier calls.
    epochs : range
        The epochs of this call, counted from 0.
    hooks : sequence of Hook
        The hooks, in the order in which they are called (module `hooks`).
    estimator : object
        The estimator that is trained, for callbacks.
    seen : int
        Number of samples trained on in the current epoch.
    done : list of (Batch, StepResult) or (Several, StepResults)
        The steps of the current epoch; empty between epochs.
    position : Position or None
        Where a resumed run goes on within an epoch (`resuming`).
    stopping : bool
        True if a hook has called `stop`.
    resumes : str
        How an interrupted run goes on, for the message, if a checkpoint was written; else "".
    """

    stepper: Stepper
    history: list[dict]
    epochs: range
    hooks: Sequence[Any] = ()
    estimator: Any = None
    seen: int = 0
    stopping: bool = False
    done: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    position: Any = None
    resumes: str = ""

    def __post_init__(self) -> None:
        self.start = self.streams.state()  # of the random streams when the run was made
        self.began = 0.0  # when the current epoch began
        self.order: Any = None  # the state of the stream of rows then

    @property
    def model(self) -> Sequential:
        """The model that is trained."""
        return self.stepper.model

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser of the model."""
        return self.stepper.optimizer

    @property
    def streams(self) -> Streams:
        """The random generators, by purpose."""
        return self.stepper.streams

    @property
    def dev(self) -> Device:
        """The device of the run."""
        return self.stepper.dev

    @property
    def epoch(self) -> int:
        """Number of recorded epochs, which is the index of the current one."""
        return len(self.history)

    @property
    def goes_on(self) -> bool:
        """True if there is another epoch to train."""
        return self.epoch < self.epochs.stop and not self.stopping

    @property
    def watched(self) -> bool:
        """True if a hook reads the weights after each epoch."""
        return any(hook.watches for hook in self.hooks)

    @property
    def changing(self) -> bool:
        """True if a hook changes weights after updates in the current epoch."""
        return any(hook.changes for hook in self.hooks)

    @property
    def settling(self) -> bool:
        """True if a hook wants all weights to be up to date after each epoch."""
        return any(hook.settles for hook in self.hooks)

    @property
    def final(self) -> bool:
        """True if the network of the current epoch may be the result."""
        return all(hook.final for hook in self.hooks)

    def session(self) -> contextlib.AbstractContextManager:
        """Return a session of the device with the number of threads and the precision of the estimator."""
        return self.dev.session(**self.stepper.session_options)

    def add(self, *hooks: Any) -> None:
        """Insert hooks before the existing ones."""
        self.hooks = [*hooks, *self.hooks]

    def append(self, hook: Any) -> None:
        """Insert a hook after the existing ones."""
        self.hooks = [*self.hooks, hook]

    def stop(self) -> None:
        """Stop training after the current epoch."""
        self.stopping = True

    # --- several processes that train one model -----------------------------------------------------------------------
    @property
    def speaks(self) -> bool:
        """True if this process prints and writes files; if several train one model, only the first does."""
        return self.stepper.ranks is None or self.stepper.ranks.first

    def samples(self, n: int) -> int:
        """Return the number of samples of all ranks, of which this one was given n."""
        return n if self.stepper.ranks is None else self.stepper.ranks.count(n)

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return each number, summed over the ranks."""
        ranks = self.stepper.ranks
        return list(numbers) if ranks is None else ranks.sum(np.array(numbers, np.float64)).tolist()

    def any(self, *flags: bool) -> list[bool]:
        """Return, for each flag, whether it is true on any of the ranks; all of them wait for each other."""
        return [bool(flag) for flag in self.sums([*flags, False])[:-1]]

    def gathered(self, value: Any) -> list[Any]:
        """Return a list of the values of all ranks."""
        return [value] if self.stepper.ranks is None else self.stepper.ranks.gather(value)

    def joint(self, *arrays: Any) -> Sequence[Any]:
        """Return each array of values of samples with those of all ranks; None stays None."""
        return arrays if self.stepper.ranks is None else self.stepper.ranks.joint(arrays)

    def agree(self, record: dict[str, Any] | None = None) -> None:
        """Give all ranks the figures of the first one; stop all of them if one stops."""
        if (ranks := self.stepper.ranks) is not None:
            if record is not None:
                record.update(ranks.broadcast(record))
            self.stopping = any(ranks.gather(self.stopping))

    # --- steps --------------------------------------------------------------------------------------------------------
    def begin_epoch(self) -> Callable[[Batch], Batch] | None:
        """Call `epoch_start` of each hook; return a function that applies all `before_step`, or None if no hook has one."""
        self.seen = 0
        for hook in self.hooks:
            hook.epoch_start(self, self.epoch)
        self.stepper.look_around()
        self._after = [hook for hook in self.hooks if hook.defines("after_update")]
        self._between = [hook for hook in self.hooks if hook.defines("between_steps")]
        change = [hook for hook in self.hooks if hook.defines("before_step")]

        def changed(batch: Batch) -> Batch:
            for hook in change:
                batch = check_returned(hook, "before_step", hook.before_step(self, batch), Batch)
            return batch

        return changed if change else None

    def go_on_at(self, position: Any) -> None:
        """Let the next epoch go on after the steps that a `Position` holds (`training.resuming.position`)."""
        self.position = position

    def begin_pass(self) -> Any:
        """Set the stream that determines the order of the samples of an epoch. Return the state that it has afterwards if the
        run goes on at a `Position` within the epoch.
        """
        rows, position = self.streams.rows, self.position
        self.began, self.order = time.perf_counter(), rows.bit_generator.state if position is None else position.order
        return set_state(rows, self.order)

    def catch_up(self, pairs: Iterator[tuple[Batch, Any]], now: Any) -> list[tuple[Any, Any]]:
        """Return the list of the steps of the epoch that are done: none, unless the run goes on at a `Position`, to which
        `pairs`, which yields the batches, is advanced; `now` is the result of `begin_pass`.
        """
        position, self.position, self.done = self.position, None, []
        if position is not None:
            batches = itertools.islice(pairs, len(position.losses))
            self.done += [(batch, result) for (batch, _), result in zip(batches, position.results(self))]
            position.check(self, [batch for batch, _ in self.done])
            set_state(self.streams.rows, now)
            self.began -= position.seconds
            self.seen = sum(len(batch.rows) for batch, _ in self.done)
        return self.done

    def end_pass(self) -> None:
        """Forget the steps of the epoch."""
        self.done = []

    def updated(self, samples: int) -> None:
        """Call the hooks after an update with `samples` samples."""
        self.seen += samples
        if self._after:
            with self.session():
                for hook in self._after:
                    hook.after_update(self)

    def poll(self) -> None:
        """Handle waiting signals between two steps, and call hooks. If a handler raises an exception, tell the hooks before."""
        try:
            deferred.poll()
        except BaseException:
            self.stepper.finish()
            self.interrupted()
            raise
        for hook in self._between:
            hook.between_steps(self)

    def interrupted(self) -> None:
        """Tell the hooks that training is interrupted, between two steps or after an epoch."""
        for hook in self.hooks:
            hook.interrupted(self)

    def saved(self, way: str) -> None:
        """Remember how the run goes on from a checkpoint that was written, for the message if it is interrupted."""
        self.resumes = way

    def settle(self) -> None:
        """Bring all weights up to date."""
        with self.session():
            self.optimizer.settle()

    def reshaped(self) -> None:
        """Forget drawn plans, counted FLOPs and recorded steps: layers or shapes of their weights have changed."""
        self.stepper.reshaped()

    def move(self) -> None:
        """Move the model and the state of the optimiser to the device of the run, unless its layers are on several devices."""
        if self.model.spanning is None and any(tensor.device is not self.dev for tensor in self.model.parameters()):
            state = self.optimizer.snapshot()
            to(self.model, self.dev)
            self.optimizer.restore(state)

    def finite(self) -> bool:
        """Return True if every parameter and buffer is finite. A step with a finite loss may make them non-finite."""
        floats = [tensor for _, tensor, _ in self.model.named() if tensor.dtype == np.float32]
        return all(math.isfinite(float(tensor.device.download(tensor.device.sum(tensor.data)))) for tensor in floats)

    # --- going back ---------------------------------------------------------------------------------------------------
    def snapshot(self, weights_only: bool = False, into: Snapshot | None = None) -> Snapshot:
        """Return a copy of the state of the run. Call `settle` before, because no update may be deferred.

        Parameters
        ----------
        weights_only : bool, default=False
            If True, only parameters and buffers are copied; when they are restored, the optimiser starts with a new state.
        into : Snapshot, optional
            A snapshot that is no longer needed. Its memory is used again if shapes match.
        """
        old = iter(into.arrays if into else ())

        def copied(dev: Device, array: Any) -> Any:
            return dev.copy(array, out=_room(next(old, None), array))

        model, optimizer = self.model, self.optimizer
        tensors = [(tensor, tensor.device, copied(tensor.device, tensor.data)) for _, tensor, _ in model.named()]
        return Snapshot(
            model,
            optimizer,
            self.streams,
            self.history,
            [(chain, list(chain.layers)) for _, chain in walk(model) if isinstance(chain, Sequential)],
            tensors,
            [tensor.requires_grad for tensor, *_ in tensors],
            list(optimizer.parameters),
            None if weights_only else optimizer.snapshot(copied),
            self.streams.state(),
            self.epoch,
            self.stepper.drawn,
            self.states(),
        )

    def states(self) -> list[tuple[Any, Any]]:
        """Return a list of (hook, its state)."""
        return [(hook, hook.state()) for hook in self.hooks]

    def renewed(self, saved: Snapshot) -> Snapshot:
        """Return a snapshot with what hooks may have set since: their states, the learning rate, and what is trained."""
        state = None if saved.state is None else {**saved.state, **self.optimizer.settings()}
        trained = [tensor.requires_grad for tensor, *_ in saved.tensors]
        return dataclasses.replace(saved, trained=trained, state=state, hooks=self.states())

    def restore(self, saved: Snapshot) -> None:
        """Restore a snapshot of this run (`Snapshot.restore`)."""
        if saved.restore():
            self.reshaped()
        self.stepper.resume(None if saved.state is None else saved.drawn)


def _room(old: Any, array: Any) -> Any:
    """Return the array `old` if it has the device, the dtype and the shape of `array`; else None."""
    return old if type(old) is type(array) and old.shape == array.shape and old.dtype == array.dtype else None
