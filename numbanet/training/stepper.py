"""`Stepper` makes training steps. A step draws plans, computes the forward pass, the loss and the backward pass, and updates
the weights. If possible, a step is recorded, and later replayed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..device import Device
from ..dropout import Dropout
from ..dropout.schedule import mean
from ..flops import StepFlops
from ..layers import DENSE, Context, Flow, Recurrent, Sequential, Symbols, Tree, walk
from ..parallel.parts import parts
from ..parallel.ranks import Team
from ..plans import Plan, Plans
from ..tensor import Tensor
from .data import Batch, Data
from .optim import Optimizer
from .queue import Blocks
from .recorder import Recorder
from .streams import Streams, set_state
from .task import Task


class StepResult(NamedTuple):
    """The result of a step: the loss, the predictions (`answer`), the FLOPs of the step, and those of a dense step."""

    loss: Tensor
    answer: Any
    flops: float
    dense: float


@dataclasses.dataclass
class Stepper:
    """The objects that a training step needs. What happens between steps and epochs is done by hooks (`run.Run`)."""

    model: Sequential
    optimizer: Optimizer
    policy: Dropout
    task: Task
    streams: Streams
    dev: Device
    batch_size: int
    session_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # `limit` of threads, `precision` of products
    upcoming: Plans | None = None  # the plans of the next step, if already drawn
    ranks: Team | None = None  # the processes that train the model together, if there are several

    def __post_init__(self) -> None:
        self.epoch, self.current = 0, self.policy  # the policy of the current epoch
        self.remembers = False  # True if `draw` stores the state of the stream before it draws
        self.before: Any = None
        self._ahead: tuple[int, Dropout] = (-1, self.policy)  # epoch and policy for which plans were drawn in advance
        self.recorder = Recorder(self.dev, self.model)
        self.state = self._new_state()  # of recurrent layers
        self.packed: dict[Tensor, Any] = {}  # by weight, the blocks that the last update packed for the next step
        self.flops = StepFlops(self.model)
        self.blocks = Blocks(self)
        self._chosen_flops: dict[tuple, float] = {}  # FLOPs of the choice of plans, by what decides their kinds
        self._spent = 0.0  # FLOPs of the preparation of the choice in the current step
        self.nothing = Plans(self.dev)  # the plans of a dense step
        self.tree = Tree(self.model)
        self._prepare_choice()

    def batches(self, data: Data) -> Iterator[Batch]:
        """Return the batches of an epoch; if several processes train one model, the share of this rank."""
        task, size, rng, dev = self.task, self.batch_size, self.streams.rows, self.dev
        return task.batches(data, size, rng, dev) if self.ranks is None else parts(task, data, size, rng, dev, self.ranks)

    def enter(self, epoch: int, policy: Dropout) -> None:
        """Start an epoch, which is counted from 0. policy.at(epoch) is the policy with the dropout rates of this epoch."""
        ready = self._ahead[0] == epoch and policy is self.policy
        self.epoch, self.policy, self.current = epoch, policy, self._ahead[1] if ready else policy.at(epoch)
        self._prepare_choice()

    def look_around(self) -> None:
        """Read the model's structure again if it has changed: a hook may have replaced layers."""
        if not self.tree.current:
            self.recorder.forget()
            self.blocks.forget()
            self.tree = Tree(self.model)
            self._prepare_choice()

    def _prepare_choice(self) -> None:
        """Make the function that chooses plans during a pass, for the policy of the current epoch."""
        alone = self.ranks is None or self.ranks.size == 1
        rng = self.streams.plans if alone else self.streams.noise  # each rank chooses for its own samples
        self._choose, chooses = self.current.choosing(self.tree, rng), self.current.data_dependent
        self.tree.renew()
        self._prepare = self.current.prepare(self.tree)
        self._decides: tuple | None = None  # what decides the kinds of the chosen plans, and how they are chosen
        self._asked = frozenset(self.current.sites(self.tree)) if chooses else None
        self._alike = not chooses or (self.current.alike and self.dev.asides())  # plans of equal kinds mean equal launches

    @property
    def chooses(self) -> bool:
        """True if plans are chosen during a pass."""
        return self._choose is not None

    @property
    def drawn(self) -> dict[str, Plan] | None:
        """Return the plans of the next step if they are already drawn, else None; `resume` takes the result."""
        return None if self.upcoming is None else dict(self.upcoming.assigned)

    def report(self) -> dict[str, Any]:
        """Return a dict of the policy's figures for the record of an epoch, over the steps since the last call."""
        return self.current.report()

    def reshaped(self) -> None:
        """Forget drawn plans, counted FLOPs and recorded steps: layers or the shapes of their weights have changed."""
        self.tree = Tree(self.model)
        self._prepare_choice()
        self.upcoming, self.packed, self.recorder = None, {}, Recorder(self.dev, self.model)
        self.state = self._new_state()
        self.flops.forget()
        self.blocks.forget()
        self._chosen_flops.clear()

    def _new_state(self) -> dict[Any, Any] | None:
        """Return the dict for the states that recurrent layers carry over to the next step; None if they carry over none.

        Raises
        ------
        ValueError
            If a recurrent layer is used twice, because both uses would share its state.
        """
        if not self.task.stateful:
            return None
        for layer, count in Counter(layer for _, layer in walk(self.model) if isinstance(layer, Recurrent)).items():
            if count > 1:
                raise ValueError(
                    f"{layer!r} is used {count} times in a model whose states are carried over from step to step, and has one "
                    "state: make a layer for each use, which may share its tensors"
                )
        return {}

    def rate(self) -> float:
        """The dropout rate of the current epoch, the mean over all sites; 0 if there are none."""
        return mean(self.current.rates(self.tree) or [0.0])

    def draw(self, following: bool = False) -> Plans:
        """Draw plans for a step of this epoch; if `following`, for the first step of the next epoch, with the rates of that
        epoch.
        """
        if following and self._ahead[0] != self.epoch + 1:
            self._ahead = self.epoch + 1, self.policy.at(self.epoch + 1)
        policy = self._ahead[1] if following else self.current
        return self.plans_of(self._assigned(policy), policy)

    def _assigned(self, policy: Dropout) -> dict[str, Plan]:
        """Draw the plans of a step, by the path of the site."""
        rng = self.streams.plans
        if self.remembers:
            self.before = rng.bit_generator.state
        assigned = policy.plans(self.tree, rng)
        return assigned if self.ranks is None else {path: plan.of_rank(self.ranks.rank) for path, plan in assigned.items()}

    def taken(self) -> dict[str, Plan]:
        """Return the plans of the next step, by the path of the site, and draw others for the step after it."""
        upcoming, self.upcoming = self.upcoming, None
        return self._assigned(self.current) if upcoming is None else upcoming.assigned

    def foresee(self) -> None:
        """Draw the plans of the first step of the next epoch."""
        self.upcoming, self.packed = self.draw(following=True), {}

    def remember(self, remembers: bool) -> None:
        """Set whether `draw` stores the state of the stream before it draws, for `redraw`."""
        self.remembers = remembers

    def redraw(self, before: Any) -> None:
        """Draw the plans of the next step again, from the state `before` of the stream; its state does not change."""
        now = set_state(self.streams.plans, before)
        self.upcoming, self.packed, self.before = self.draw(), {}, before
        set_state(self.streams.plans, now)

    def plans_of(self, assigned: dict[str, Plan], policy: Dropout) -> Plans:
        """Return the plans that the policy has assigned; the same object for all dense steps."""
        if not assigned and not policy.data_dependent:
            return self.nothing
        choose = self._chosen if self.current.data_dependent else None
        return Plans(self.dev, self.tree.sites, assigned, choose, self.tree.feeds, self._asked)

    def _chosen(self, *given: Any) -> Plan | None:
        """Return the plan that the policy of the current epoch chooses from data."""
        return None if self._choose is None else self._choose(*given)

    def resume(self, plans: dict[str, Plan] | None) -> None:
        """Set the plans of the next step; if they are None, the next step draws them."""
        self.upcoming, self.packed = None if plans is None else self.plans_of(plans, self.current), {}

    def step(
        self,
        X: Any,
        batch: Batch,
        following: Batch | None = None,
        last: bool = True,
        whole: bool = False,
        change: Callable[[Batch], Batch] | None = None,
        waits: bool = False,
    ) -> StepResult:
        """Make one update with a batch.

        The plans of the next step are drawn here, because `SGD` defers the update of weights that they do not read.

        Parameters
        ----------
        X : array
            The samples.
        batch : Batch
            The samples of this step; their inputs are not fetched yet from X.
        following : Batch, optional
            The next batch, which determines the rows of an `Embedding` that are read next; None before a new epoch.
        last : bool, default True
            True if no step follows, so that no plans are drawn for it.
        whole : bool, default False
            True if all weights must be up to date after this step; then no update is deferred.
        change : callable, optional
            A function that gets the batch with its inputs on the device and returns the batch to train on.
        waits : bool, default False
            True if the step may be computed later, at the latest in `finish`; until then the result's values are undefined.
        """
        with self.dev.session(**self.session_options):
            plans, self.upcoming = self.draw() if self.upcoming is None else self.upcoming, None
            self._begin_choice(plans)
            if whole or change is not None:  # hooks may change anything
                self.look_around()
            if change is None and batch.values is None and (queued := self._queued(X, batch, plans, following, last)):
                if not waits:
                    self.recorder.finish()
                return queued
            self.optimizer.zero_grad()  # an earlier step may have been interrupted
            batch = self.recorder.hold(X, batch, change)
            upcoming = None if last else self.draw(following is None)
            self.optimizer.prepare(None if whole else self._reads(upcoming, following))
            flow = Flow(Tensor.wrap(batch.inputs, self.dev), DENSE if batch.ids is None else Symbols(batch.ids))
            packed, self.packed = self.packed, {}
            ranks = self.ranks and self.ranks.counting(batch.counted)
            context = Context(self.dev, plans, training=True, state=self.state, packed=packed, ranks=ranks)

            def passes() -> tuple[Any, Any]:
                results = self._learn(flow, context, batch)
                packed.clear()  # frees memory for what the update packs
                return results

            repeatable = self.recorder.asks and self._alike and self.task.records and self.model.records and not packed
            states = self._states(batch.resets_state)
            (loss, answer), packed_next = self.recorder.step(passes, self.optimizer, plans, batch, states, repeatable)
            self.optimizer.advance()
            self.upcoming, self.packed = upcoming, packed_next if upcoming else {}
            return self._done(loss, answer, tuple(batch.inputs.shape), plans)

    def _reads(self, plans: Plans | None, batch: Batch | None) -> dict[Tensor, Any] | None:
        """Return the parts of weights that a step with these plans and this batch reads; None if it may read everything, or if
        the optimiser does not ask.
        """
        if plans is None or self.model.spanning or not self.optimizer.foresees:
            return None
        alone = self.ranks is None  # the symbols of other ranks are not known here
        return self.tree.reads(plans, batch.ids if batch and alone else None)

    def _learn(self, flow: Flow, context: Context, batch: Batch) -> tuple[Any, Any]:
        """Make both passes. If the layers are on several devices, an error names the layer and the device that raised it."""
        try:
            reducer = self.optimizer.reducer
            with contextlib.nullcontext() if reducer is None else reducer.passes():
                return self.task.learn(self.model, flow, context, batch)
        except Exception as error:
            if self.model.spanning is None:
                raise
            raise self.model.spanning.failure(error) from error

    def _begin_choice(self, plans: Plans) -> None:
        """Prepare the choice of plans in a step."""
        if self._choose is None:
            plans.decides = None
            return
        if self._decides is None:
            self._decides = self.current.chooses_by, *self.current.rates(self.tree)
        plans.decides = self._decides
        if self.current.on_device and self.dev.asides():
            plans.choose_on_device(self.current.choose_into)
            self._prepare(self.recorder.finish)
            self._spent = self.current.pop_flops()

    def _choice_flops(self, plans: Plans, shape: tuple[int, ...]) -> float:
        """Return the FLOPs of the choice of plans in a step; replays do not count them again."""
        spent, before, self._spent = self.current.pop_flops(), self._spent, 0.0
        if plans.choose_into is None:
            return spent + before
        key = plans.decides, shape
        return before + (self._chosen_flops.setdefault(key, spent) if spent else self._chosen_flops.get(key, 0.0))

    def _states(self, resets: bool) -> list[Any]:
        """Return the states of the recurrent layers; if `resets`, set them to zero after the steps in the queue."""
        states = [state for arrays in (self.state or {}).values() for state in arrays]
        if resets and states:
            self.recorder.finish()
            for state in states:
                self.dev.full(state.shape, 0.0, out=state)
        return states

    def _queued(self, X: Any, batch: Batch, plans: Plans, following: Batch | None, last: bool) -> StepResult | None:
        """Add a step to the queue if a recording of it exists, and return its result; else return None."""
        states, key = self._states(batch.resets_state), self.recorder.quick_key(plans, batch)
        ready = self.recorder.ready(key, X, states, self.optimizer)
        if ready is None:
            return None
        numbers = self.optimizer.changing()[1]
        upcoming = None if last else self.draw(following is None)
        loss, answer = self.recorder.again(ready, numbers, batch, plans)
        self.optimizer.advance(ready.trained)
        self.upcoming, self.packed = upcoming, {}
        return self._done(loss, answer, (len(batch.rows), *X.shape[1:]) if batch.ids is None else batch.ids.shape, plans)

    def finish(self) -> None:
        """Compute the steps in the queue."""
        with self.dev.session(**self.session_options):
            self.recorder.finish()

    def _done(self, loss: Any, answer: Any, shape: tuple[int, ...], plans: Plans) -> StepResult:
        dense = self.flops.of(shape, self.nothing)
        flops = dense if plans is self.nothing else self.flops.of(shape, plans)
        return StepResult(Tensor.wrap(loss, self.dev), answer, flops + self._choice_flops(plans, shape), dense)
