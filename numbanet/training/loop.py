"""The training loop. `fit` of an estimator calls `train`, which calls `epoch`, which calls `Stepper.step`.

train    trains epoch after epoch, calls hooks, returns to good weights after a non-finite loss, and handles interrupts
epoch    makes one pass over the samples; the host waits for the device only once, at the end of the epoch
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..arguments import check_returned
from ..device import DeviceFailure
from ..parallel.exchange import NotFinite
from .data import Batch, Data, Pairs, Several
from .queue import StepResults
from .recovery import Recovery
from .run import Run
from .stepper import StepResult

NOTHING = "fit was interrupted during the first epoch; the estimator is unchanged"


class Interrupted(BaseException):
    """Raised if training ended early after an epoch, by an interrupt or because a device failed. Its argument is the exception
    that estimators raise; they keep complete epochs, and the weights of the last complete step.
    """


def train(run: Run, data: Data) -> None:
    """Train for `run.epochs`, or until a hook stops training.

    Raises
    ------
    Interrupted
        If it is interrupted, or a device fails, after at least one epoch. The run keeps its weights, or those of the last
        copy if they are not finite.
    DeviceFailure
        If a device failed in the first epoch.
    KeyboardInterrupt
        If it is interrupted before the first epoch is complete, or if the weights are not finite and there is no copy.
    FloatingPointError
        If the loss is not finite in the first epoch. If this happens in a later epoch, training ends with the weights of the
        previous one.
    """
    recovery, interrupted, failure = Recovery(run), False, None
    with contextlib.ExitStack() as ends:
        ends.callback(run.settle)
        try:
            if (ranks := run.stepper.ranks) is not None:
                data.weigh(ranks.weights(data.weights, data.y.shape[: run.stepper.task.weight_axes]))
            for hook in run.hooks:
                ends.callback(hook.fit_end, run)
                hook.fit_start(run)
            recovery.start()
            while run.goes_on:
                change = run.begin_epoch()
                whole = recovery.needs_whole()
                record, broken = epoch(run, data, whole, change)
                if recovery.accepts(record, whole):
                    _finish(run, data, record, recovery)
                else:
                    recovery.go_back(broken)
        except KeyboardInterrupt:
            interrupted = True
        except DeviceFailure as error:
            failure = error
        if (interrupted or failure) and not recovery.after_interrupt():
            raise failure or KeyboardInterrupt(NOTHING + run.resumes)
    if interrupted or failure:
        count = run.epoch - recovery.first
        after = f"after {count} complete epoch{'s' * (count != 1)}, which the estimator keeps{run.resumes}"
        raise Interrupted(failure or KeyboardInterrupt(f"fit was interrupted {after}")) from failure


def _finish(run: Run, data: Data, record: dict[str, Any], recovery: Recovery) -> None:
    """Complete the record of an epoch, and append it to the history."""
    for hook in run.hooks:
        record.update(check_returned(hook, "epoch_end", hook.epoch_end(run, record) or {}, dict))
    record.update(run.stepper.task.figures(record, run.samples(len(data))))
    run.agree(record)
    recovery.keep()
    run.history.append(record)
    interrupted: KeyboardInterrupt | None = None
    for hook in run.hooks:
        try:
            hook.epoch_recorded(run, record)
        except KeyboardInterrupt as error:  # in a callback: the epoch is complete, and the other hooks still see it
            interrupted = error
    run.agree()
    recovery.recorded()
    if interrupted is not None:
        run.interrupted()
        raise interrupted


def epoch(run: Run, data: Data, whole: bool, change: Any = None) -> tuple[dict[str, Any], int | str | None]:
    """Make one pass over the samples. Return its record, and the first step with a non-finite loss: its number, None if there
    is no such step, or a text that also names ranks; several ranks end their epoch in this step.

    The record is a dict with the keys "epoch", "loss", "score", "seconds", "flops_share" and "learning_rate". The score is that
    of the predictions made during training.

    Parameters
    ----------
    run : Run
        The run whose model is trained.
    data : Data
        The training samples.
    whole : bool
        If True, all weights are up to date afterwards; otherwise updates may be deferred (`SGD`).
    change : callable, optional
        change(batch) is called before each step and returns the batch to train on.
    """
    stepper, changing, record = run.stepper, run.changing, {"epoch": run.epoch + 1}
    with run.session(), np.errstate(over="ignore", invalid="ignore"):  # `train` handles non-finite losses
        now = run.begin_pass()
        pairs = Pairs(stepper.batches(data))
        done = run.catch_up(pairs, now)
        acting = [hook for hook in run.hooks if hook.defines("after_update") or hook.defines("between_steps")]
        joins = change is None and not changing and all(hook.batched for hook in acting)
        try:
            for batch, following in pairs:
                some = pairs.several(stepper.blocks.most) if joins else None
                if some is not None and (found := stepper.blocks.make(data.X, batch, some, whole)) is not None:
                    done.append(found)
                    steps, size = found[0].steps, found[0].size
                    pairs.skip(steps)
                    for _ in range(steps):
                        run.updated(size)
                    run.poll()
                    continue
                last = whole and following is None
                result = stepper.step(data.X, batch, following, last, changing, change, waits=not changing)
                done.append((batch.without_inputs(), result))
                run.updated(len(batch.rows))
                run.poll()
            stepper.finish()
        except NotFinite as error:
            run.end_pass()
            return {**record, "loss": math.nan}, error.where
        finally:
            stepper.finish()
        run.dev.synchronize()
        seconds = time.perf_counter() - run.began
        figures, broken = _record(run, data, done)
        run.end_pass()
    return {**record, **figures, "seconds": seconds, "learning_rate": run.optimizer.learning_rate}, broken


def _record(
    run: Run, data: Data, done: Sequence[tuple[Batch | Several, StepResult | StepResults]]
) -> tuple[dict[str, float], int | None]:
    """Return the record of a pass: loss, score and share of the FLOPs; and the first step with a non-finite loss, or None."""
    counted = [(batch, step) for batch, step in done if batch.counted]
    rows = np.concatenate([batch.rows for batch, _ in counted]) if counted else np.zeros(0, int)
    predicted = np.concatenate([run.dev.download(step.answer) for _, step in counted]) if counted else data.y[:0]
    each = [figures for batch, step in done for figures in _figures(run, batch, step)]
    losses, totals = run.sums([loss for loss, *_ in each]), [total for _, total, *_ in each]
    targets, predicted, weights = run.joint(data.y[rows], predicted, None if data.weights is None else data.weights[rows])
    loss = sum(loss * total for loss, total in zip(losses, totals)) / max(sum(totals), 1e-300)
    score = math.nan
    if math.isfinite(loss) and np.isfinite(predicted).all():
        score = run.stepper.task.score(targets, predicted, weights)
    flops, dense = run.sums([sum(own[at] for *own, counts in each if counts) for at in (2, 3)])
    broken = next((number for number, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
    return {"loss": loss, "score": score, "flops_share": flops / dense if dense else 1.0}, broken


def _figures(
    run: Run, batch: Batch | Several, step: StepResult | StepResults
) -> Iterable[tuple[float, float, float, float, bool]]:
    """Return for each step its loss, the weight of the loss, the FLOPs, those of a dense step, and whether they count."""
    if isinstance(step, StepResults):
        assert isinstance(batch, Several)
        return zip(run.dev.download(step.loss).tolist(), batch.total, step.flops, step.dense, [True] * batch.steps)
    assert isinstance(batch, Batch)
    return [(step.loss.item(), batch.total, step.flops, step.dense, batch.counted)]
