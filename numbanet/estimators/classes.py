"""How often classes occur: their weights, and initial biases with which a new network predicts how often each occurs."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from .joint import count, total
from .parameters import Parameter

OUTPUT_BIAS = Parameter(
    "output_bias",
    "prior",
    '{"prior"} or None',
    """
        Initial biases of the last layer, if `layers` are widths and `loss` is cross-entropy. "prior": the logarithms of how
        often the classes of y occur, so that the network need not learn that first. On tables it made accuracy higher where one
        of two classes is rare, and elsewhere no clear difference (`python -m bench tables`). None: as `init` and
        `output_init` say.""",
)


def check_output_bias(value: Any) -> None:
    """Raise ValueError if the parameter `output_bias` is invalid."""
    if value is not None and not (isinstance(value, str) and value == "prior"):
        raise ValueError(f"output_bias must be 'prior' or None, got {value!r}")


def check_class_weight(value: Any) -> None:
    """Raise ValueError if the parameter `class_weight` is invalid."""
    if value is None or (isinstance(value, str) and value == "balanced"):
        return
    if not isinstance(value, dict):
        raise ValueError(f"class_weight must be a dict, 'balanced' or None, got {value!r}")
    if not all(isinstance(factor, numbers.Real) for factor in value.values()):
        raise ValueError(f"class_weight must hold numbers, got {value!r}")
    if not all(math.isfinite(factor) and factor >= 0 for factor in value.values()):
        raise ValueError(f"class_weight must be finite and not negative, got {value!r}")


def check_classes(classes: Any) -> Any:
    """Return the argument `classes` of `partial_fit`; raise ValueError unless it is None or a list of labels."""
    try:
        fits = classes is None or np.ndim(classes) == 1
    except ValueError:  # lists of different lengths
        fits = False
    if not fits:
        raise ValueError(f"partial_fit: classes must be a list of labels, such as np.unique(y), got {classes!r}")
    return classes


def shares(y: np.ndarray, weights: np.ndarray | None, classes: int) -> np.ndarray:
    """Return the share (C,) of each class among the samples of all ranks, as if each occurred once more than it does, so that
    none is 0; of labels, an array (2, C): the shares of samples without and with each label.

    Parameters
    ----------
    y : (n,) int array, or (n, C) array
        Class indices; or 1 for each label that a sample has, else 0.
    weights : (n,) array or None
        Weights of the samples; only their ratios count, and samples of weight 0 do not.
    classes : int
    """
    each = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    counts = total(np.bincount(y, each, minlength=classes) if y.ndim == 1 else np.stack([each @ (1 - y), each @ y]))
    n = count(int(np.count_nonzero(each)))
    return (counts * (n / counts.sum(axis=0)) + 1) / (n + len(counts))


def prior(y: np.ndarray, weights: np.ndarray | None, classes: int, smoothing: float = 0.0) -> np.ndarray:
    """Return biases (C,), float32, with which a network whose last weights are 0 has the least cross-entropy: log(share) + c,
    where c makes their mean 0, as softmax does not depend on it; of labels, log(share / (1 - share)).

    Parameters
    ----------
    y, weights, classes
        As for `shares`.
    smoothing : float
        `label_smoothing` of the loss.
    """
    logs = np.log((1 - smoothing) * shares(y, weights, classes) + smoothing / classes)
    return (logs[1] - logs[0] if y.ndim > 1 else logs - logs.mean()).astype(np.float32)


def class_factors(class_weight: Any, classes: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the factor (C,) of the weights of the samples of each class.

    Parameters
    ----------
    class_weight : dict or "balanced"
        The parameter of `Net`; "balanced" gives every class the same total weight.
    classes : (C,) array
        The labels.
    y : (n,) int array
        Class indices.
    weights : (n,) array

    Raises
    ------
    ValueError
        If `class_weight` is invalid.
    """
    check_class_weight(class_weight)
    if class_weight == "balanced":
        totals = total(np.bincount(y, weights, minlength=len(classes)))
        return np.divide(totals.sum(), np.count_nonzero(totals) * totals, out=np.ones_like(totals), where=totals > 0)
    labels, unknown = classes.tolist(), [label for label in class_weight if label not in classes]
    if unknown and not set(labels) <= set(class_weight):
        raise ValueError(f"class_weight names {unknown}, which are not among the classes {labels}")
    return np.array([class_weight.get(label, 1.0) for label in labels], np.float64)
