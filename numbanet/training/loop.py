"""The loops: fit -> epochs -> epoch -> step.

    epoch    a pass over the samples, one host synchronisation at its end
    epochs   until done: records, validation, early stopping, callbacks, interruption, a loss that is no number
"""
from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

from .checkpoint import Checkpoint, finite
from .data import Batch, Data
from .schedule import factor_of
from .trainer import Trainer
from .warned import warn

APART = 512          # steps between copies to go back to: then they take a few hundredths of the time at most
NOTHING = "fit was interrupted before an epoch was whole: nothing of it is kept"
TOLERANCE = 1e-4     # by how much a validation score has to be better than the best one


class Interrupted(BaseException):
    """Training was interrupted after an epoch at least, and keeps what it learned; estimators raise KeyboardInterrupt."""


# --- epoch ------------------------------------------------------------------------------------------------------------
def epoch(trainer: Trainer, data: Data, tick: Callable[[int], None] = lambda n: None, whole: bool = True) -> dict:
    """One pass: {"loss", "score", "seconds", "flops_share"}; `score` is that of the predictions made while training.

    Where the weights need not be whole afterwards, steps may be missed (`SGD`); of an epoch that was broken off they are whole.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a loss that is not finite is dealt with once, in `epochs`
        try:
            return _epoch(trainer, data, tick, whole)
        except BaseException:
            whole = True
            raise
        finally:
            if whole:
                settle(trainer)


def settle(trainer: Trainer) -> None:
    """Bring all weights up to date."""
    trainer.resume(None)
    with trainer.dev.session(**trainer.session_options):
        trainer.optimizer.settle()


def _epoch(trainer: Trainer, data: Data, tick: Callable[[int], None], whole: bool) -> dict:
    began, task, dev = time.perf_counter(), trainer.task, trainer.dev
    losses, answers, seen, done, dense = [], [], [], 0.0, 0.0
    with dev.session(**trainer.session_options):
        batches = task.batches(data, trainer.batch_size, trainer.streams.rows, dev)
        pairs = _with_following(batches)
    for batch, following in pairs:
        found = trainer.step(data.X, batch, following, last=whole and following is None)
        losses.append((found.loss, batch.total))
        answers.append(found.answer)
        seen.append(batch.rows)
        done, dense = done + found.flops, dense + found.dense
        tick(len(batch.rows))
        deferred.poll()
    dev.synchronize()
    seconds = time.perf_counter() - began
    rows = np.concatenate(seen) if seen else np.zeros(0, int)
    predicted = np.concatenate([dev.download(a) for a in answers]) if answers else data.y[:0]
    losses = [(loss.item(), total) for loss, total in losses]
    loss = sum(loss * total for loss, total in losses) / max(sum(total for _, total in losses), 1e-300)
    score = task.score(data.y[rows], predicted, None if data.weights is None else data.weights[rows]) \
        if math.isfinite(loss) and np.isfinite(predicted).all() else math.nan
    record = {"loss": loss, "score": score, "seconds": seconds, "flops_share": done / dense if dense else 1.0}
    broken = next((step for step, (loss, _) in enumerate(losses, 1) if not math.isfinite(loss)), None)
    return record if broken is None else {**record, "broken": broken}


def _with_following(batches: Iterator[Batch]) -> Iterator[tuple[Batch, Batch | None]]:
    """Each batch with the one after it."""
    return itertools.pairwise(itertools.chain(batches, [None]))


# --- epochs -----------------------------------------------------------------------------------------------------------
class Epochs:
    """Training until it is done.

    Training that is interrupted after an epoch at least keeps the weights it has, those of the last copy where they are not
    finite, and raises `Interrupted`; without such a copy, KeyboardInterrupt. A loss that is not finite ends the fit with the
    weights of the epoch before, or with FloatingPointError in the first. With `patience`, the best weights by validation score
    stay.

    To go back to the epoch before, weights are copied: after each epoch where somebody looks at them then, else when `APART`
    steps were done. From such a copy the epochs up to the one before are trained again, which gives the same weights: nothing
    but what was copied decides them.

    Parameters
    ----------
    trainer : Trainer
    data : Data
    history : list of dict
        Gets one record an epoch; those that it has are of epochs before.
    validation : Data, optional
        Scored after every epoch.
    patience : int, optional
        Epochs without improvement before training stops.
    schedule : callable, optional
        Factor on the learning rate by epoch.
    report : callable, optional
        record -> whether to stop; called after each epoch.
    watched : bool
        Whether `report` looks at the weights.
    tick : callable
        Told after each step how many samples it had.
    """

    def __init__(self, trainer: Trainer, data: Data, history: list[dict], *, validation: Data | None = None,
                 patience: int | None = None, schedule: Callable[[int], float] | None = None,
                 report: Callable[[dict], bool] = lambda record: False, watched: bool = True,
                 tick: Callable[[int], None] = lambda n: None) -> None:
        self.trainer, self.data, self.history, self.validation = trainer, data, history, validation
        self.patience, self.schedule, self.report, self.tick = patience, schedule, report, tick
        self.watched = watched or validation is not None
        self.first = len(history)
        self.good: Checkpoint | None = None                 # what can be gone back to
        self.best: tuple[float, Checkpoint] | None = None   # the best validation score, and the weights that had it
        self.waited = 0

    def run(self, count: int) -> None:
        """Train for `count` epochs, or until something ends it earlier."""
        optimizer, self.end, interrupted = self.trainer.optimizer, self.first + count, False
        self.rate = optimizer.learning_rate
        try:
            if count > 1 and not self.watched:
                self._copy(self.first)
            while len(self.history) < self.end and not self._one():
                pass
        except KeyboardInterrupt:
            if len(self.history) == self.first:
                raise KeyboardInterrupt(NOTHING) from None
            optimizer.zero_grad()
            interrupted = True
        finally:
            optimizer.learning_rate = self.rate
            self.trainer.structure.leave(self.trainer)
            settle(self.trainer)
        if interrupted and self.best is None and not finite(self.trainer):
            if self.good is None or self.good.epoch == self.first:
                raise KeyboardInterrupt(NOTHING)
            self.good.restore(self.trainer)
            del self.history[self.good.epoch:]
        if self.best is not None:
            self.best[1].restore(self.trainer)
        elif self.patience is not None and len(self.history) == self.end:
            warn("early_stopping: no epoch could be the result, for the network was becoming sparse in all of them; train for "
                 "more epochs, or give sparsity a larger fine_tuning")
        if interrupted:
            whole = len(self.history) - self.first
            after = f"{whole} whole epoch{'s' * (whole != 1)}"
            raise Interrupted(f"fit was interrupted after {after}; what was learned so far is kept")

    def _one(self) -> bool:
        """One epoch; returns whether training ends."""
        trainer, number = self.trainer, len(self.history)
        trainer.enter(number)
        trainer.optimizer.learning_rate = self.rate * factor_of(self.schedule, number)
        whole = self.watched or number + 1 == self.end or trainer.structure.changing
        record = {"epoch": number + 1, **epoch(trainer, self.data, self.tick, whole),
                  "learning_rate": trainer.optimizer.learning_rate, "dropout_rate": trainer.rate(),
                  **trainer.current.report()}
        looking = whole or trainer.optimizer.steps >= self.good.steps + APART
        if looking:
            with trainer.dev.session(**trainer.session_options):
                trainer.optimizer.settle()
        if not math.isfinite(record["loss"]) or (looking and not finite(trainer)):
            return self._broken(number, record.get("broken"))
        began = time.perf_counter()
        record.update(trainer.leave())
        record["seconds"] += time.perf_counter() - began
        if looking and number + 1 < self.end:
            self._copy(number + 1)
        if self.validation is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # weights about to break: the next epoch's loss will tell
                record["validation_score"] = trainer.task.validate(trainer, self.validation)
        record.update(trainer.task.figures(record, len(self.data)))
        self.history.append(record)
        waited = self._has_waited(record)
        return self.report(record) or waited

    def _copy(self, number: int) -> None:
        """What can be gone back to, after so many epochs."""
        self.good = Checkpoint(self.trainer, number, not self.watched, self.good)

    def _has_waited(self, record: dict) -> bool:
        """Whether the validation score has not improved for long; the weights of the best one are copied."""
        if self.patience is None or not self.trainer.structure.final:
            return False
        if self.best is None or not record["validation_score"] <= self.best[0] + TOLERANCE:
            self.best = record["validation_score"], Checkpoint(self.trainer, len(self.history), whole=False)
            self.waited = 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def _broken(self, number: int, step: int | None) -> bool:
        """An epoch gave what is no number: end with the weights of the one before, or train up to it again."""
        where = "" if step is None else f", from step {step} on"
        advice = "try a smaller learning_rate, or scale the inputs"
        if number == self.first:
            raise FloatingPointError(f"the loss was not finite in the first epoch of this fit{where}; {advice}")
        self.good.restore(self.trainer)
        if self.good.epoch == number:
            warn(f"the loss was not finite in epoch {number + 1}{where}: the fit ended with the weights of epoch {number}; "
                 f"{advice}")
            return True
        del self.history[self.good.epoch:]
        self.watched = True
        return False
