"""Verdict: whether a fit has learned anything."""

from __future__ import annotations

import math

import numpy as np

from .data import Data, on_host
from .inference import forward
from .stepper import Stepper
from .task import Constant

LITTLE = 0.01  # of the way from the best constant answer to none wrong: what comes by chance
DOUBTFUL = 0.1  # inputs that are far from 1 may be why it is not more; else the task may be hard
CLEAR = 0.5  # the last epoch was so good on the whole that its end needs no look
FAR = 10.0  # root mean square of inputs
RARE = 0.8  # share of the most frequent class from which on weights may help
MOST, NUMBERS = 1 << 13, 1 << 24  # samples that are looked at, and numbers in them: 64 MiB


def verdict(stepper: Stepper, data: Data, record: dict) -> str | None:
    """What to tell of a network that answers (hardly) better than one that always gives the same answer; None of others.

    Samples are looked at unless the record of the last epoch, which counts answers under dropout, leaves no doubt.
    """
    count = min(len(data), MOST, max(NUMBERS // math.prod(data.X.shape[1:]), 1))
    rows = data.at(np.linspace(0, len(data) - 1, count).astype(np.int64))
    targets, weights = data.y[rows], None if data.weights is None else data.weights[rows]
    constant = stepper.task.constant(targets, weights) if weights is None or weights.sum() > 0 else None
    if constant is None or constant.score >= 1 or _learned(record["score"], record["loss"], constant) >= CLEAR:
        return None
    score, loss = _found(stepper, data, rows, targets, weights)
    learned, size = _learned(score, loss, constant), _size(stepper, data, rows)
    none = not (learned >= LITTLE and score > constant.score)
    if not none and (learned >= DOUBTFUL or size <= FAR):
        return None
    return (
        f"fit: the network answers {'no' if none else 'hardly'} better than one that always gives {constant.answer}, score "
        f"{score:.3f} where that has {constant.score:.3f}; try {', '.join(_advice(stepper, data, constant, size))}"
    )


def _advice(stepper: Stepper, data: Data, constant: Constant, size: float) -> list[str]:
    """What may help, what is most likely first."""
    found = []
    if not on_host(data.X):
        how = "make_pipeline(StandardScaler(), ...)" if len(data.X.shape) == 2 else "a Normalize layer"
        what = f"the inputs, which are of size {size:.3g}," if size > FAR else "inputs"
        found.append(f"{what} scaled to about 1, as by {how}")
    found.append("a smaller learning_rate, or a larger one if it is tiny")
    found += ["less dropout"] * (stepper.policy.name != "none")
    found.append("more epochs")
    found += ["class_weight='balanced'"] * (constant.answer == "the most frequent class" and constant.score > RARE)
    return found


def _learned(score: float, loss: float, constant: Constant) -> float:
    """How far it got from the best constant answer to none wrong, by score or by loss, whichever is more; 0 where unknown."""
    found = [(score - constant.score) / (1 - constant.score), 1 - loss / constant.loss if constant.loss else 0.0]
    return max((share for share in found if math.isfinite(share)), default=0.0)


def _found(
    stepper: Stepper, data: Data, rows: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
) -> tuple[float, float]:
    """(score, loss) in prediction."""
    policy = stepper.policy.inference_policy(stepper.epoch)
    with np.errstate(all="ignore"):
        output = forward(stepper.model, stepper.dev, data.X, rows, stepper.session_options, policy)
        if not np.isfinite(output).all():
            return -math.inf, math.inf
        loss, score = stepper.task.judge(output, targets, weights, stepper.session_options)
    return score, loss


def _size(stepper: Stepper, data: Data, rows: np.ndarray) -> float:
    """Root mean square of inputs; 0 of integers that name rows of a table."""
    if on_host(data.X):
        return 0.0
    dev = stepper.dev
    with dev.session(**stepper.session_options):
        some = dev.download(dev.take_rows(data.X, dev.upload(rows[:256].astype(np.int32))))
    return float(np.sqrt(np.mean(np.square(some, dtype=np.float64))))
