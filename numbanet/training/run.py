"""Run: all that training changes, and the one way back; Snapshot: where a run was."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..device import Device
from ..layers import Layer, Sequential, to, walk
from ..tensor import Tensor
from .data import Batch
from .optim import Optimizer
from .stepper import Stepper
from .streams import Streams


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Where a run was: copies of arrays, on the devices where they were, and all else that training changes.

    Attributes
    ----------
    model : Sequential
    optimizer : Optimizer
    streams : Streams
    history : list of dict
        The objects that go back, with what they held:
    layers : list of (Sequential, list of Layer)
        Of the model and of all that it holds: which layers they had.
    tensors : list of (Tensor, Device, array)
        Parameters and buffers.
    parameters : list of Tensor
        Those of the optimiser.
    state : dict or None
        As `Optimizer.snapshot` gives it; None where weights alone were copied.
    random : list
        The states of the random streams.
    epoch : int
        How many epochs were done.
    drawn : mapping or None
        The plans of the next step, where they were drawn already.
    hooks : list of (Hook, state)
    """

    model: Sequential
    optimizer: Optimizer
    streams: Streams
    history: list[dict]
    layers: list[tuple[Sequential, list[Layer]]]
    tensors: list[tuple[Tensor, Device, Any]]
    parameters: list[Tensor]
    state: dict[str, Any] | None
    random: list[Any]
    epoch: int
    drawn: Any
    hooks: list[tuple[Any, Any]]

    @property
    def arrays(self) -> Iterable[Any]:
        """The copies, in the order in which they are made."""
        yield from (array for _, _, array in self.tensors)
        yield from (array for state in (self.state or {}).get("state", ()) for array in state)

    def restore(self) -> bool:
        """Put all back, or weights alone: the optimiser then starts anew, all else stays as it is. Returns whether layers or
        shapes were others."""
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
            self.optimizer.restore(self.state)
            self.streams.restore(self.random)
            del self.history[self.epoch :]
            for hook, state in self.hooks:
                hook.restore(state)
        return changed


@dataclasses.dataclass
class Run:
    """One call of `fit` or `partial_fit`: what training changes, and what it is done with.

    Attributes
    ----------
    stepper : Stepper
        Does the steps: it has the model, the optimiser, the random streams, the policy, and the plans of the next step.
    history : list of dict
        One record an epoch, of earlier calls as well.
    epochs : range
        The numbers of the epochs of this call, counted from 0.
    hooks : sequence of Hook
        In the order in which they are called (`hooks`, which knows this file).
    estimator : object
        What is trained, for callbacks.
    seen : int
        The samples that the present epoch has trained on.
    stopping : bool
        Whether a hook has asked to stop.
    """

    stepper: Stepper
    history: list[dict]
    epochs: range
    hooks: Sequence[Any] = ()
    estimator: Any = None
    seen: int = 0
    stopping: bool = False

    @property
    def model(self) -> Sequential:
        """What is trained."""
        return self.stepper.model

    @property
    def optimizer(self) -> Optimizer:
        """What updates it."""
        return self.stepper.optimizer

    @property
    def streams(self) -> Streams:
        """Where random numbers come from, by use."""
        return self.stepper.streams

    @property
    def dev(self) -> Device:
        """Where it runs."""
        return self.stepper.dev

    @property
    def epoch(self) -> int:
        """How many epochs are recorded: the number of the present one, counted from 0."""
        return len(self.history)

    @property
    def goes_on(self) -> bool:
        """Whether there is another epoch to train."""
        return self.epoch < self.epochs.stop and not self.stopping

    @property
    def watched(self) -> bool:
        """Whether a hook looks at the weights after each epoch."""
        return any(hook.watches for hook in self.hooks)

    @property
    def changing(self) -> bool:
        """Whether a hook changes weights after updates in the present epoch."""
        return any(hook.changes for hook in self.hooks)

    @property
    def final(self) -> bool:
        """Whether the network of the present epoch may be the result."""
        return all(hook.final for hook in self.hooks)

    def session(self) -> contextlib.AbstractContextManager:
        """A stretch of work on the device, with the threads and the precision of the estimator."""
        return self.dev.session(**self.stepper.session_options)

    def add(self, *hooks: Any) -> None:
        """Put hooks before those that there are."""
        self.hooks = [*hooks, *self.hooks]

    def stop(self) -> None:
        """End training after the present epoch."""
        self.stopping = True

    # --- steps --------------------------------------------------------------------------------------------------------
    def begin_epoch(self) -> Callable[[Batch], Batch] | None:
        """Let the hooks begin an epoch; returns what they do to each batch, None for nothing."""
        self.seen = 0
        for hook in self.hooks:
            hook.epoch_start(self, self.epoch)
        self.stepper.recorder.look_again()
        self._after = [hook for hook in self.hooks if hook.defines("after_update")]
        change = [hook for hook in self.hooks if hook.defines("before_step")]

        def changed(batch: Batch) -> Batch:
            for hook in change:
                batch = hook.before_step(self, batch)
            return batch

        return changed if change else None

    def updated(self, samples: int) -> None:
        """An update with some samples is done."""
        self.seen += samples
        if self._after:
            with self.session():
                for hook in self._after:
                    hook.after_update(self)

    def settle(self) -> None:
        """Bring all weights up to date."""
        with self.session():
            self.optimizer.settle()

    def reshaped(self) -> None:
        """Layers, or shapes of their weights, have changed: forget what was drawn, counted and recorded with those before."""
        self.stepper.reshaped()

    def move(self) -> None:
        """Take model and optimiser to the device of the run."""
        if any(tensor.device is not self.dev for tensor in self.model.parameters()):
            state = self.optimizer.snapshot()
            to(self.model, self.dev)
            self.optimizer.restore(state)

    def finite(self) -> bool:
        """Whether every parameter and buffer is: a step may have broken them after its loss was taken."""
        floats = [tensor for _, tensor, _ in self.model.named() if tensor.dtype == np.float32]
        return all(math.isfinite(float(self.dev.download(self.dev.sum(tensor.data)))) for tensor in floats)

    # --- going back ---------------------------------------------------------------------------------------------------
    def snapshot(self, weights_only: bool = False, into: Snapshot | None = None) -> Snapshot:
        """Where the run is; no update may be put off.

        Parameters
        ----------
        weights_only : bool, default=False
            Whether to copy parameters and buffers alone: going back there, the optimiser starts anew.
        into : Snapshot, optional
            One that is not needed any more: its memory is used again where shapes are the same.
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
            list(optimizer.parameters),
            None if weights_only else optimizer.snapshot(copied),
            self.streams.state(),
            self.epoch,
            self.stepper.drawn,
            self.states(),
        )

    def states(self) -> list[tuple[Any, Any]]:
        """The states of the hooks."""
        return [(hook, hook.state()) for hook in self.hooks]

    def restore(self, saved: Snapshot) -> None:
        """Go back to a snapshot of this run (`Snapshot.restore`)."""
        if saved.restore():
            self.reshaped()
        self.stepper.resume(None if saved.state is None else saved.drawn)


def _room(old: Any, array: Any) -> Any:
    """The old array, if it is of the same kind and can take the values of the other one; else None."""
    return old if type(old) is type(array) and old.shape == array.shape and old.dtype == array.dtype else None
