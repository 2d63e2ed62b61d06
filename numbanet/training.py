"""Training: fit -> epochs -> epoch -> step. What an estimator needs to turn a model, data and a policy into weights.

    step    draw plans, forward, loss, backward, update: on a card one graph, which is replayed
    epoch   a shuffled pass over the samples, one host synchronisation at its end
    epochs  until done: records, validation, early stopping, callbacks, interruption, a loss that is no number
"""
from __future__ import annotations

import dataclasses
import math
import numbers
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .device import Device, device
from .dropout import Dropout
from .layers import Sequential
from .optim import Optimizer
from .plan import BernoulliPlan
from .replay import Replay
from .tensor import Tensor, no_grad

FLOAT32 = np.dtype(np.float32)
LEAST_ROWS = 32
PREDICT_ROWS = 4096  # rows of a forward pass without gradients: bounds its memory


@dataclasses.dataclass
class Data:
    """Samples of one fit: X (n, …) float32 on the device; y (n, …) and weights (n,) or None on the host.

    `rows`, integers, says which of them belong here, None: all; so training and held-out samples share one X.
    """

    X: Any
    y: np.ndarray
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    def at(self, places: np.ndarray) -> np.ndarray:
        """The numbers in X of the samples at some places."""
        return places if self.rows is None else self.rows[places]


class Feed(NamedTuple):
    """An epoch's samples in the order in which they are taken: numbers in X, y, and weights that sum to 1 in each batch, or
    None, on the device; and the sum of each batch's weights, or its number of samples."""

    rows: Any
    y: Any
    weights: Any
    totals: list[float]


@dataclasses.dataclass
class Trainer:
    """One training run.

    Attributes
    ----------
    loss : callable
        (output, y, weights) -> scalar Tensor, weights summing to 1 or None.
    answer : callable
        (dev, output array) -> array of what is predicted. Only with numbanet's own losses and answers are passes replayed.
    score : callable
        (y, answers, weights) -> float, larger is better.
    session_options : dict
        What sessions of the device are asked for: `limit` threads of the CPU, the `precision` of products.
    drawn : dict or None
        The plans of the next step, where they are known already.
    """

    model: Sequential
    optimizer: Optimizer
    policy: Dropout
    rng: np.random.Generator
    dev: Device
    batch_size: int
    loss: Callable[..., Tensor]
    answer: Callable[..., Any]
    score: Callable[..., float]
    session_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    drawn: dict | None = None
    replay: Replay = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.replay = Replay(self.dev, self.optimizer.parameters)

    # --- step ---------------------------------------------------------------------------------------------------------
    def plans(self) -> dict:
        """This step's plan for each droppable layer."""
        drawn = {layer: self.policy.plan(i, layer.weight.shape, self.rng) for i, layer in enumerate(self.model.droppable())}
        return {layer: plan for layer, plan in drawn.items() if plan is not None}

    def feed(self, order: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Feed:
        """What batches are cut from, uploaded at once; `order` are numbers of samples, which y and weights have all of."""
        rows, y = self.dev.upload(order.astype(np.int32)), self.dev.upload(y[order])
        starts = range(0, len(order), self.batch_size)
        sizes = [min(self.batch_size, len(order) - start) for start in starts]
        if weights is None:
            return Feed(rows, y, None, sizes)
        weights = weights[order]
        totals = [float(weights[start:start + size].sum()) for start, size in zip(starts, sizes, strict=True)]
        shares = weights / np.repeat(np.array([total or 1.0 for total in totals], np.float32), sizes)
        return Feed(rows, y, self.dev.upload(shares, np.float32), totals)

    def batch(self, X: Any, feed: Feed, start: int) -> tuple[Tensor, Any, Any]:
        """(x, y, weights) of the samples from place `start` on, where a step can replay what it does with them: the next batch
        overwrites them."""
        rows, *given = (None if array is None else self.dev.part(array, start, start + self.batch_size) for array in feed[:3])
        into = self.replay.place("x", (rows.size, *X.shape[1:]), FLOAT32)
        x = Tensor.wrap(self.dev.take_rows(X, rows, out=into), self.dev)
        return x, *(self.replay.put(name, array) for name, array in zip(("y", "weights"), given, strict=True))

    def step(self, x: Tensor, y: Any, weights: Any = None, last: bool = True) -> tuple[Tensor, Any, int]:
        """One update with a batch; returns the loss, what was predicted on the way, and the FLOPs done.

        Unless it is the last one before the weights are read as a whole, the next step's plans are drawn here already, and
        what they do not read is brought up to date later (`SGD`).
        """
        self.optimizer.zero_grad()  # an earlier step may have been broken off
        plans, self.drawn = self.plans() if self.drawn is None else self.drawn, None
        with self.dev.session(**self.session_options):
            drawn = None if last else self.plans()
            wanted = self.model.reads(drawn)
            loss, answer, updated = self._passes(x, y, weights, plans, wanted)
            flops = self.model.flops(x.shape[0], plans)
            del plans  # what was prepared for them makes room for what the update prepares
            ready = {} if updated else self.optimizer.step(wanted)
            self.drawn = drawn and {layer: ready.get(layer.weight, plan) for layer, plan in drawn.items()}
            return Tensor.wrap(loss, self.dev), answer, flops

    def _passes(self, x: Tensor, y: Any, weights: Any, plans: dict, wanted: dict) -> tuple[Any, Any, bool]:
        """(loss, what was predicted), arrays on the device; and whether the update is done, too: else gradients are left."""
        key, foreseen = None, None
        inputs = (("x", x.data), ("y", y), ("weights", weights))
        if self.replay.possible and all(self.replay.holds(*given) for given in inputs) and self._repeatable(plans):
            plans = {layer: self.replay.put_lists(layer, plan) for layer, plan in plans.items()}
            kinds, foreseen = tuple((layer, plan.kind) for layer, plan in plans.items()), self.optimizer.foresee(wanted)
            key = tuple(self.model.layers), kinds, x.shape, weights is None  # a callback may exchange layers

        def work() -> tuple[Any, Any]:
            output = self.model(x, plans)
            loss = self.loss(output, y, weights)
            loss.backward()
            answer = self.answer(self.dev, output.data)
            if foreseen:  # last: what fails before leaves the weights as they are
                self.optimizer.apply(wanted, foreseen=True)
            return loss.data, answer

        if foreseen is None:
            return *self.replay(key, work), False
        numbers, arrays = foreseen
        return *self.replay((key, numbers), work, arrays, self.optimizer.advance), True

    def _repeatable(self, plans: dict) -> bool:
        """Whether what a pass launches is known to depend on nothing but the kinds of its plans: layers, loss and answer are
        numbanet's, and no random bits are drawn."""
        return (self.model.repeatable and not any(isinstance(plan, BernoulliPlan) for plan in plans.values())
                and all(getattr(f, "__module__", "").startswith("numbanet.") for f in (self.loss, self.answer)))

    # --- epoch --------------------------------------------------------------------------------------------------------
    def epoch(self, data: Data, tick: Callable[[int], None] = lambda n: None) -> dict:
        """One pass: {"loss", "score", "seconds", "flops_share"}; `score` is that of the predictions made while training."""
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is not finite is dealt with once, in `epochs`
            try:
                return self._epoch(data, tick)
            finally:  # of an epoch that was broken off, too, the weights are whole
                self.drawn = None
                with self.dev.session(**self.session_options):
                    self.optimizer.settle()

    def _epoch(self, data: Data, tick: Callable[[int], None]) -> dict:
        began, losses, answers, seen, done, dense = time.perf_counter(), [], [], [], 0, 0
        order = data.at(self.rng.permutation(len(data)))
        with self.dev.session(**self.session_options):
            feed = self.feed(order, data.y, data.weights)
        for start, total in zip(range(0, len(order), self.batch_size), feed.totals, strict=True):
            if total == 0:
                continue
            with self.dev.session(**self.session_options):
                x, y, weights = self.batch(data.X, feed, start)
                loss, answer, flops = self.step(x, y, weights, last=start + self.batch_size >= len(order))
                rows = order[start:start + self.batch_size]
                del x
            losses.append((loss, total))
            answers.append(answer)
            seen.append(rows)
            done, dense = done + flops, dense + self.model.flops(len(rows))
            tick(len(rows))
        self.dev.synchronize()
        seconds = time.perf_counter() - began
        rows = np.concatenate(seen) if seen else np.zeros(0, int)
        predicted = np.concatenate([self.dev.download(a) for a in answers]) if answers else data.y[:0]
        loss = sum(loss.item() * w for loss, w in losses) / max(sum(w for _, w in losses), 1e-300)
        score = self.score(data.y[rows], predicted, None if data.weights is None else data.weights[rows]) \
            if math.isfinite(loss) and np.isfinite(predicted).all() else math.nan
        return {"loss": loss, "score": score,
                "seconds": seconds, "flops_share": done / dense if dense else 1.0}

    # --- epochs -------------------------------------------------------------------------------------------------------
    def epochs(self, data: Data, count: int, *, first: int = 0, validation: Data | None = None, patience: int | None = None,
               tolerance: float = 1e-4, schedule: Callable[[int], float] | None = None, report: Callable[[dict], bool],
               tick: Callable[[int], None] = lambda n: None) -> list[dict]:
        """Train for `count` epochs, or until something ends it earlier; returns one record an epoch.

        A fit that is interrupted keeps the weights it has. A loss that is not finite ends the fit with the weights of the
        epoch before, or with FloatingPointError in the first. With `patience`, the best weights by validation score stay.
        """
        records, rate = [], self.optimizer.learning_rate
        good, best, waited = self._weights(), None, 0
        try:
            for epoch in range(first, first + count):
                factor = schedule(epoch) if schedule else 1.0
                if not (isinstance(factor, numbers.Real) and 0 <= factor < math.inf):
                    raise ValueError(f"schedule gave the factor {factor!r} for epoch {epoch}; it must be a number, finite and "
                                     "not negative")
                self.optimizer.learning_rate = rate * factor
                record = {"epoch": epoch + 1, **self.epoch(data, tick), "learning_rate": self.optimizer.learning_rate}
                if not (math.isfinite(record["loss"]) and self._finite()):
                    self._not_a_number(epoch, good, bool(records))
                    break
                good = self._weights(good)
                if validation is not None:
                    record["validation_score"] = self.validate(validation)
                records.append(record)
                stop = report(record)
                if patience is not None:
                    if best is None or not record["validation_score"] <= best[0] + tolerance:
                        best, waited = (record["validation_score"], self._weights()), 0
                    else:
                        waited += 1
                if stop or (patience is not None and waited >= patience):
                    break
        except KeyboardInterrupt:
            if not records:
                raise  # there is nothing to keep
            self.optimizer.zero_grad()
            warnings.warn(f"fit was interrupted after {len(records)} whole epochs; what was learned so far is kept",
                          stacklevel=4)
        finally:
            self.optimizer.learning_rate = rate
        if best is not None:
            self._restore(best[1])
        return records

    def validate(self, data: Data) -> float:
        """The score on samples that are not trained on."""
        host, rows = device("cpu"), data.at(np.arange(len(data)))
        with np.errstate(over="ignore", invalid="ignore"):  # weights about to break: the next epoch's loss will tell
            answers = host.download(self.answer(host, forward(self.model, self.dev, data.X, rows, self.session_options)))
        return self.score(data.y[rows], answers, None if data.weights is None else data.weights[rows])

    def _not_a_number(self, epoch: int, good: list[Any], learned: bool) -> None:
        self._restore(good)
        advice = "try a smaller learning_rate, or scale the inputs"
        if not learned:
            raise FloatingPointError(f"the loss was not finite in the first epoch of this fit; {advice}")
        warnings.warn(f"the loss was not finite in epoch {epoch + 1}: the fit ended with the weights of epoch {epoch}; "
                      f"{advice}", stacklevel=5)

    # --- weights ------------------------------------------------------------------------------------------------------
    def _weights(self, into: list[Any] | None = None) -> list[Any]:
        """Copies of all parameters, into the arrays of an earlier call where given."""
        parameters = self.optimizer.parameters
        return [self.dev.copy(p.data, out=old) for p, old in zip(parameters, into or [None] * len(parameters), strict=True)]

    def _restore(self, weights: list[Any]) -> None:
        for parameter, saved in zip(self.optimizer.parameters, weights, strict=True):
            self.dev.copy(saved, out=parameter.data)
        self.optimizer.reset()

    def _finite(self) -> bool:
        """Whether every parameter is: the last step of an epoch may have broken them after its loss was taken."""
        return all(math.isfinite(float(self.dev.download(self.dev.sum(p.data)))) for p in self.optimizer.parameters)


def forward(model: Sequential, dev: Device, X: Any, rows: np.ndarray, session_options: dict[str, Any]) -> np.ndarray:
    """The model's output for some rows of X (n, …) on the device, in pieces of PREDICT_ROWS, as a host array; session_options
    as for a `Trainer`.

    A short piece is filled up to LEAST_ROWS: BLAS takes other paths for a handful of rows, and what is predicted for a
    sample should not depend on how many others are predicted with it.
    """
    pieces = []
    with no_grad(), dev.session(**session_options):
        for start in range(0, len(rows), PREDICT_ROWS):
            chosen = rows[start:start + PREDICT_ROWS].astype(np.int32)
            filled = np.pad(chosen, (0, max(LEAST_ROWS - len(chosen), 0)), mode="edge")
            piece = Tensor.wrap(dev.take_rows(X, dev.upload(filled)), dev)
            pieces.append(model(piece).numpy()[:len(chosen)])
    return np.concatenate(pieces)


def schedule_named(schedule: Any, epochs: int) -> Callable[[int], float] | None:
    """The factor on the learning rate by epoch, from a name ("cosine", "linear"), a function of the epoch, or None.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    def progress(epoch: int) -> float:
        return min(epoch, epochs - 1) / epochs  # `partial_fit` after the last epoch goes on at its rate

    named = {"cosine": lambda epoch: 0.5 * (1 + math.cos(math.pi * progress(epoch))),
             "linear": lambda epoch: 1 - progress(epoch)}
    if schedule is None or callable(schedule):
        return schedule
    if schedule not in named:
        raise ValueError(f"schedule must be None, 'cosine', 'linear' or a function of the epoch, got {schedule!r}")
    return named[schedule]


class Progress:
    """A rich progress bar over the samples of a fit, with loss, score, samples/s and the share of FLOPs skipped."""

    def __init__(self, total: int) -> None:
        from rich import progress
        self.bar = progress.Progress(progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=6),
                                     progress.TimeRemainingColumn(compact=True),
                                     progress.TextColumn("{task.fields[figures]}"))  # 80 columns in all
        self.task = self.bar.add_task("fit", total=total, figures="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.stop()

    def tick(self, samples: int) -> None:
        self.bar.advance(self.task, samples)

    def show(self, record: dict, samples: int) -> None:
        score = record.get("validation_score", record["score"])
        self.bar.update(self.task, description=f"epoch {record['epoch']}", figures=(
            f"loss {record['loss']:.3f} score {score:.4f} {samples / max(record['seconds'], 1e-9):,.0f} samples/s "
            f"{1 - record['flops_share']:.0%} FLOPs skipped"))
