"""Baseline check: warns if a trained network is hardly better than a constant prediction, or could clearly learn more."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .data import Data, on_host, rows_of
from .inference import Predictor
from .stepper import Stepper
from .task import Constant
from .validation import TOLERANCE

LITTLE = 0.01  # progress up to this value may be chance; it is 0 for the best constant prediction and 1 without errors
DOUBTFUL = 0.1  # below this progress, badly scaled inputs are a likely cause; above it, the task may be hard
CLEAR = 0.5  # if the last epoch made more progress than this, no samples are predicted
FAR = 10.0  # inputs with a larger root mean square are too large
RARE = 0.8  # if the most frequent class has a larger share, class weights may help
# a fall of the loss from one tenth of the epochs to the next, relative to the first loss, is clear if it is larger
FALLING = 0.02
MOST, NUMBERS = 1 << 13, 1 << 24  # largest number of samples to predict, and of numbers in them: 64 MiB


def verdict(stepper: Stepper, data: Data, record: dict) -> str | None:
    """Return the text of a warning if a network is hardly better than the best constant prediction; else None.

    If the record of the last epoch, whose score was measured with dropout, is clearly better, there is no warning. Otherwise
    some samples are predicted without dropout to decide.
    """
    count = min(len(data), MOST, max(NUMBERS // math.prod(data.X.shape[1:]), 1))
    rows = data.at(np.linspace(0, len(data) - 1, count).astype(np.int64))
    targets, weights = data.y[rows], None if data.weights is None else data.weights[rows]
    constant = stepper.task.constant(targets, weights) if weights is None or weights.sum() > 0 else None
    if constant is None or constant.score >= 1 or _learned(record["score"], record["loss"], constant) >= CLEAR:
        return None
    score, loss = _predicted(stepper, data, rows, targets, weights)
    learned, size = _learned(score, loss, constant), _size(stepper, data, rows)
    none = not (learned >= LITTLE and score > constant.score)
    if score == -math.inf:
        return (
            "fit: the network predicts numbers that are NaN or too large, as updates of the last epoch were too large; try a "
            "smaller learning_rate, inputs scaled to about 1, or clip_norm"
        )
    if not none and (learned >= DOUBTFUL or size <= FAR):
        return None
    return (
        f"fit: the network is {'no' if none else 'hardly'} better than always predicting {constant.answer} (score "
        f"{score:.3f}, baseline {constant.score:.3f}); try {', '.join(_advice(stepper, data, constant, size))}"
    )


def unfinished(losses: list[float], scores: Sequence[float] = (), stops: bool = False, drops: bool = False) -> str | None:
    """Return the text of a warning if the loss was still falling clearly in the last tenth of the epochs; else None.

    More epochs are advised only if the validation score, where there is one, still rose in these epochs by more than the
    `TOLERANCE` of early stopping. If it did not, and training `stops` early, there is nothing to say.

    Parameters
    ----------
    losses : list of float
        The loss of each epoch, at least 10.
    scores : sequence of float
        The validation score of each epoch, or nothing.
    stops, drops : bool
        Whether early stopping chooses the epoch, and whether dropout is used.
    """
    last = len(losses) // 10
    before, after = np.mean(losses[-2 * last : -last]), np.mean(losses[-last:])
    if not before - after > FALLING * max(abs(losses[0]), float(losses[0] - after)):  # a user-defined loss may be negative
        return None
    said = (
        f"fit: the loss was still falling, from {before:.3g} to {after:.3g} in the last tenth of the {len(losses)} epochs, the "
        "default for this number of samples"
    )
    known = len(scores) == len(losses) and np.isfinite(scores[-last:]).any() and np.isfinite(scores[:-last]).any()
    if not known or np.nanmax(scores[-last:]) > np.nanmax(scores[:-last]) + TOLERANCE:
        how = "" if known else "; early_stopping=True shows whether that helps on samples it is not trained on"
        return f"{said}; try more epochs, or a larger learning_rate{how}"
    if stops:
        return None
    best = int(np.nanargmax(scores)) + 1
    how = f"was highest after epoch {best}" if np.nanmax(scores) > np.nanmin(scores) else "did not rise"
    return (
        f"{said}, but the validation score {how}, so that more epochs do not help; try "
        f"early_stopping=True, or {'a higher dropout_rate' if drops else 'dropout'}"
    )


def _advice(stepper: Stepper, data: Data, constant: Constant, size: float) -> list[str]:
    """Return a list of advice for the warning, the most likely remedy first."""
    advice = []
    if not on_host(data.X):
        how = "make_pipeline(StandardScaler(), ...)" if len(data.X.shape) == 2 else "a Normalize layer"
        what = f"the inputs, which are of size {size:.3g}," if size > FAR else "inputs"
        advice.append(f"{what} scaled to about 1, as by {how}")
    advice.append("a smaller learning_rate, or a larger one if it is tiny")
    advice += ["less dropout"] * (stepper.policy.name != "none")
    advice.append("more epochs")
    advice += ["class_weight='balanced'"] * (constant.answer == "the most frequent class" and constant.score > RARE)
    return advice


def _learned(score: float, loss: float, constant: Constant) -> float:
    """Return the progress from the best constant prediction (0) to no errors (1). It is the larger of the progress of the score
    and the progress of the loss, or 0 if both are unknown.
    """
    shares = [(score - constant.score) / (1 - constant.score), 1 - loss / constant.loss if constant.loss else 0.0]
    return max((share for share in shares if math.isfinite(share)), default=0.0)


def _predicted(
    stepper: Stepper, data: Data, rows: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
) -> tuple[float, float]:
    """Return (score, loss) of the predictions for the samples `rows`, without dropout."""
    policy = stepper.policy.inference_policy(stepper.epoch)
    with np.errstate(all="ignore"):
        output = Predictor(stepper.model, stepper.session_options, policy)(data.X, rows)
        if not np.isfinite(output).all():
            return -math.inf, math.inf
        loss, score = stepper.task.judge(output, targets, weights, stepper.session_options)
    return score, loss


def _size(stepper: Stepper, data: Data, rows: np.ndarray) -> float:
    """Return the root mean square of the inputs of the samples `rows`; 0 if inputs are integers."""
    if on_host(data.X):
        return 0.0
    dev = stepper.dev
    with dev.session(**stepper.session_options):
        some = dev.download(rows_of(data.X, rows[:256], dev))
    return float(np.sqrt(np.mean(np.square(some, dtype=np.float64))))
