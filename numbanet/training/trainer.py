"""Trainer: the training step. Draw plans, forward, loss, backward, update: on a card one graph, which is replayed."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..device import Device
from ..dropout import Dropout, GateSparsity
from ..dropout.schedule import mean
from ..layers import Flow, Form, Layer, Sequential, Step
from ..plans import Plan
from ..tensor import Tensor
from .data import Batch
from .optim import Optimizer
from .replay import Replay
from .streams import Streams
from .task import Task

FLOAT32 = np.dtype(np.float32)


class Done(NamedTuple):
    """What a step gives: the loss, what was predicted on the way, and the FLOPs done and of dense training."""

    loss: Tensor
    answer: Any
    flops: float
    dense: float


@dataclasses.dataclass
class Trainer:
    """What a training step needs. What happens before and after steps and epochs is for hooks (`run.Run`)."""

    model: Sequential
    optimizer: Optimizer
    policy: Dropout
    task: Task
    streams: Streams
    dev: Device
    batch_size: int
    session_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # `limit` of threads, `precision` of products
    upcoming: Step | None = None    # the next step, where it is drawn already
    gates: GateSparsity | None = None   # which steps have sparse gate gradients

    def __post_init__(self) -> None:
        self.epoch, self.current = 0, self.policy   # the policy of the present epoch
        self.replay = Replay(self.dev, self.model)
        self.memory: dict[Any, Any] | None = {} if self.task.carries else None
        self._dense: dict[tuple[int, ...], float] = {}  # FLOPs without plans, by the shape of the inputs
        self._counted: dict[tuple, float] = {}          # with plans

    def enter(self, epoch: int, policy: Dropout) -> None:
        """Begin an epoch, counted from 0, with a policy's rates of it."""
        if self.gates is not None:
            self.gates.enter()
        self.epoch, self.policy, self.current = epoch, policy, policy.at(epoch)

    @property
    def drawn(self) -> Mapping[tuple[Layer, str], Plan] | None:
        """The plans of the next step, where it is drawn already: what `resume` takes."""
        return self.upcoming and self.upcoming.plans

    def report(self) -> dict[str, Any]:
        """What was dropped since the last call, for the record of an epoch."""
        return {**self.current.report(), **(self.gates.report() if self.gates else {})}

    def reshaped(self) -> None:
        """Layers have changed, or shapes of their weights: forget what was drawn, counted and recorded with those before."""
        self.model.reshaped()
        self.upcoming, self.replay = None, Replay(self.dev, self.model)
        self.memory = {} if self.task.carries else None
        self._dense.clear()
        self._counted.clear()

    def rate(self) -> float:
        """The dropout rate of the present epoch, the mean over all sites; 0 without any."""
        return mean([self.current.rate_of(site) for site in self.policy.sites(self.model)] or [0.0])

    def draw(self, batch: Batch | None = None) -> Step:
        """A step with plans drawn for it; without a batch, it is the first one of the next epoch, and has its rates."""
        policy = self.policy.at(self.epoch + 1) if batch is None else self.current
        plans = {site: policy.plan(site, self.streams.plans) for site in self.policy.sites(self.model)}
        return self._begin({site: plan for site, plan in plans.items() if plan is not None}, batch)

    def _begin(self, plans: Mapping[Any, Plan], batch: Batch | None = None) -> Step:
        gates = self.gates and self.gates.step(self.epoch, self.streams.plans)
        return Step(self.dev, plans, training=True, noise=self.streams.noise, inputs=batch and batch.ids,
                    look=self._look if self.current.looks else None, memory=self.memory, gates=gates)

    def _look(self, layer: Layer, name: str, flow: Flow, w: Tensor) -> Plan | None:
        """What the policy says of a site, unless it gives the answer."""
        return self.current.asked(self.model, layer, name, flow, w, self.streams.plans)

    def resume(self, plans: Mapping[tuple[Layer, str], Plan] | None) -> None:
        """The next step has these plans; None: they are to be drawn."""
        self.upcoming = None
        if plans is not None:
            self.upcoming = self._begin({})
            self.upcoming.plans = dict(plans)

    def step(self, X: Any, batch: Batch, following: Batch | None = None, last: bool = True, whole: bool = False,
             change: Callable[[Batch], Batch] | None = None) -> Done:
        """One update with a batch of samples X.

        Unless it is the last one before the weights are read as a whole, the next step's plans are drawn here already, and what
        they do not read is brought up to date later (`SGD`), but where `whole` says that all has to be. The batch that follows
        says which rows of an `Embedding` that step reads; without one the next step begins an epoch. change(batch), with its
        inputs on the device, is the batch that the step trains on.
        """
        self.optimizer.zero_grad()  # an earlier step may have been broken off
        step, self.upcoming = self.upcoming, None
        with self.dev.session(**self.session_options):
            step = step or self.draw(batch)
            step.inputs = batch.ids  # one that was drawn for the first batch of an epoch did not know it
            batch = self._put(X, batch, change)
            for state in self._states() if batch.fresh else ():
                self.dev.full(state.shape, 0.0, out=state)
            upcoming = None if last else self.draw(following)
            self.optimizer.prepare(None if upcoming is None or whole else self.model.reads(upcoming))
            loss, answer, ready = self._passes(step, batch)
            if upcoming:
                upcoming.ready = ready
            self.upcoming = upcoming
            shape = tuple(batch.inputs.shape)
            if shape not in self._dense:
                self._dense[shape] = self.model.cost(Form(shape), Step(self.dev))[0].flops
            flops = self._flops(shape, step) if step.plans or step.gates else self._dense[shape]
        flops += self.current.spent()
        return Done(Tensor.wrap(loss, self.dev), answer, flops, self._dense[shape])

    def _flops(self, shape: tuple[int, ...], step: Step) -> float:
        """Of a step with inputs of this shape; plans of one kind and one density do the same."""
        key = shape, step.gates is None, *[(site, plan.kind, plan.density) for site, plan in step.plans.items()]
        if any(plan.kind is None for plan in step.plans.values()):
            return self.model.cost(Form(shape), step)[0].flops
        if key not in self._counted:
            self._counted[key] = self.model.cost(Form(shape), step)[0].flops
        return self._counted[key]

    def _put(self, X: Any, batch: Batch, change: Callable[[Batch], Batch] | None) -> Batch:
        """The batch where a step can replay what it does with it: the next batch overwrites it."""
        if change is None:
            ids, shape = batch.ids, (len(batch.rows), *X.shape[1:])
            place = (shape, FLOAT32) if ids is None else (ids.shape, ids.dtype)
            batch = batch.fetch(X, self.dev, self.replay.place("x", *place))
        else:
            batch = change(batch.fetch(X, self.dev))
            batch = batch._replace(inputs=self.replay.put("x", batch.inputs))
        return batch._replace(targets=self.replay.put("y", batch.targets), weights=self.replay.put("weights", batch.weights))

    def _states(self) -> list[Any]:
        """The arrays of what layers remember from step to step."""
        return [state for states in (self.memory or {}).values() for state in states]

    def _passes(self, step: Step, batch: Batch) -> tuple[Any, Any, dict[Tensor, Any]]:
        """(loss, what was predicted), arrays on the device, and what the update packed for the next step."""
        key, x, arrays, ready = self._key(step, batch), Tensor.wrap(batch.inputs, self.dev), self._states(), {}
        recorded = None if key is None else self.optimizer.recorded_by()
        if key is not None:
            self.replay.put_plans(step)
        if recorded:
            key, arrays = (key, recorded[0]), arrays + recorded[1]

        def work() -> tuple[Any, Any]:
            loss, answer = self.task.learn(self.model, x, step, batch)
            if recorded:  # last: what fails before leaves the weights as they are
                self.optimizer.reduce()
                self.optimizer.launch()
            return loss, answer

        loss, answer = self.replay(key, work, arrays)
        step.ready = {}  # makes room for what the update packs
        if not recorded:
            self.optimizer.reduce()
            ready = self.optimizer.launch()
        self.optimizer.advance()
        return loss, answer, ready

    def _key(self, step: Step, batch: Batch) -> Hashable | None:
        """What decides which launches the passes are; None where that is not known, or they are more than launches."""
        inputs = (("x", batch.inputs), ("y", batch.targets), ("weights", batch.weights))
        kinds = tuple((site, plan.kind) for site, plan in step.plans.items())
        if not (self.replay.possible and all(self.replay.holds(*given) for given in inputs) and self.model.records
                and self.task.records and not self.current.looks and step.gates is None
                and all(kind is not None for _, kind in kinds)):
            return None
        return tuple(self.model.layers), kinds, batch.inputs.shape, batch.weights is None  # a callback may exchange layers
