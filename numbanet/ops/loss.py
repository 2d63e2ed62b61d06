"""Losses: operations whose result is one number, sum_n weights[n] loss[n] over the samples n. The weights sum to 1.

Each loss is one fused kernel that computes the loss of every sample and the gradient. Label smoothing takes a few more passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import host_array
from ..autograd import op
from ..device import Device
from ..gradients import One
from ..tensor import Tensor


def _on_device(x: Any, output: Any) -> bool:
    """Return True if x is an array on a device other than the CPU, as `output` is there."""
    there = hasattr(output, "copy_to_host") or not isinstance(output, np.ndarray)  # arrays of the emulation are NumPy's as well
    return there and (hasattr(x, "copy_to_host") or isinstance(x, type(output)))


def _on_card(x: Any, output: Any) -> bool:
    """Return True if x is an array of another library on a GPU, as `output` is there."""
    return hasattr(x, "__cuda_array_interface__") and hasattr(output, "__cuda_array_interface__")


def _given(name: str, dev: Device, x: Any, output: Any) -> Any:
    """Return float32 numbers that are compared with `output`, or None, as they are on the device."""
    if isinstance(x, Tensor):
        return x.data
    if x is None or _on_device(x, output):
        return x
    return dev.from_foreign(x) if _on_card(x, output) else dev.upload(host_array(name, x, np.float32))


def _compared(name: str, dev: Device, target: Any, weights: Any, output: Any) -> tuple[Any, Any]:
    """Return (target, weights) of a loss as they are on the device."""
    return _given(f"{name}: target", dev, target, output), _given(f"{name}: weights", dev, weights, output)


def _labels(name: str, dev: Device, labels: Any, logits: Any) -> Any:
    """Return the labels of logits (N, C) as int32 on the device. Those of the host must be in 0 … C - 1."""
    if isinstance(labels, Tensor):
        if labels.dtype != np.int32:
            raise ValueError(f"{name}: labels in a Tensor are float32, not integers; give them as a NumPy array")
        return labels.data
    if _on_device(labels, logits):
        return labels
    if _on_card(labels, logits):
        labels = dev.from_foreign(labels, None)
        if labels.dtype == np.int32:
            return labels
        labels = dev.download(labels)  # and looked at as those of the host
    values, classes = host_array(f"{name}: labels", labels), logits.shape[-1] if len(logits.shape) else 0
    if values.dtype.kind not in "iub":
        raise ValueError(f"{name}: labels are {values.dtype}, not integers")
    if values.size and classes and not (values.min() >= 0 and values.max() < classes):
        label = values[(values < 0) | (values >= classes)][0]
        raise ValueError(
            f"{name}: label {label} is not among the {classes} classes 0 … {classes - 1} of logits {tuple(logits.shape)}; "
            "for samples that shall not count give any class, and weight 0"
        )
    return dev.upload(values, np.int32)


def _mean_loss(dev: Device, losses_and_gradient):
    losses, gradient = losses_and_gradient

    def vjp(dy):
        if isinstance(dy, One):
            return gradient
        return dev.mul(gradient, dev.broadcast_to(dev.reshape(dy.dense(dev), (1, 1)), gradient.shape))

    return dev.sum(losses), (vjp,)


@op(fuses=True)
def softmax_cross_entropy(dev: Device, logits, *, labels, weights=None, label_smoothing: float = 0.0):
    """y = -sum_n weights[n] sum_c t[n, c] log softmax(logits[n])[c]

    logits (N, C), labels (N,) integers, weights (N,) or None; None stands for weights 1/N. The target t[n, c] is
    label_smoothing / C, plus 1 - label_smoothing if c = labels[n] (Szegedy et al. 2016, section 7). If label_smoothing is 0,
    the loss of a sample is -log of the probability of its label. Labels in a Tensor or on a GPU are not looked at beforehand,
    as that would wait for the device: one outside 0 … C - 1 makes the loss NaN.

    Raises
    ------
    ValueError
        If `label_smoothing` is not in [0, 1), or labels are not integers, or, in an array or list of the host, not in
        0 … C - 1.
    TypeError
        If labels or weights are not numbers that NumPy can read.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"softmax_cross_entropy: label_smoothing must be in [0, 1), got {label_smoothing!r}")
    labels = _labels("softmax_cross_entropy", dev, labels, logits)
    weights = _given("softmax_cross_entropy: weights", dev, weights, logits)
    losses, gradient = dev.softmax_cross_entropy(logits, labels, weights)
    if label_smoothing:
        losses, gradient = _smoothed(dev, logits, weights, losses, gradient, label_smoothing)
    return _mean_loss(dev, (losses, gradient))


def _smoothed(dev: Device, logits, weights, losses, gradient, share):
    """Return (losses, gradient) for smoothed labels, given the losses and the gradient for hard labels.

    Both are weighted means: hard labels have weight 1 - share, and the uniform target 1/C has weight `share`. The uniform
    target has the loss -mean_c log softmax(logits)[c] and the gradient softmax(logits) - 1/C.
    """
    n, classes = logits.shape
    logarithms = dev.log_softmax(logits)
    even = dev.affine(dev.sum(logarithms, axis=1), mul=-share / max(classes, 1))
    slopes = dev.affine(dev.exp(logarithms), mul=share, add=-share / max(classes, 1))
    if weights is None:
        even, slopes = (dev.affine(x, mul=1 / max(n, 1)) for x in (even, slopes))
    else:
        even = dev.mul(even, weights)
        slopes = dev.mul(slopes, dev.broadcast_to(dev.reshape(weights, (n, 1)), slopes.shape))
    return tuple(dev.add(dev.affine(hard, mul=1 - share), soft) for hard, soft in ((losses, even), (gradient, slopes)))


@op(fuses=True)
def squared_error(dev: Device, prediction, *, target, weights=None):
    """y = sum_n weights[n] mean_o (prediction[n, o] - target[n, o])²

    prediction and target (N, O), weights (N,) or None; None stands for weights 1/N.
    """
    target, weights = _compared("squared_error", dev, target, weights, prediction)
    return _mean_loss(dev, dev.squared_error(prediction, target, weights))


@op(fuses=True)
def absolute_error(dev: Device, prediction, *, target, weights=None):
    """y = sum_n weights[n] mean_o |prediction[n, o] - target[n, o]|

    prediction and target (N, O), weights (N,) or None; None stands for weights 1/N.
    """
    target, weights = _compared("absolute_error", dev, target, weights, prediction)
    return _mean_loss(dev, dev.absolute_error(prediction, target, weights))


@op(fuses=True)
def sigmoid_cross_entropy(dev: Device, logits, *, target, weights=None):
    """y = -sum_n weights[n] mean_o (t log s + (1 - t) log(1 - s)), where s = sigmoid(logits[n, o]) and t = target[n, o]

    logits and target (N, O), weights (N,) or None; None stands for weights 1/N.
    """
    target, weights = _compared("sigmoid_cross_entropy", dev, target, weights, logits)
    return _mean_loss(dev, dev.sigmoid_cross_entropy(logits, target, weights))


@op(fuses=True)
def huber_error(dev: Device, prediction, *, target, delta: float = 1.0, weights=None):
    """y = sum_n weights[n] mean_o (d²/2 if |d| <= delta, else delta (|d| - delta/2)), where d = prediction[n, o] - target[n, o]

    prediction and target (N, O), weights (N,) or None; None stands for weights 1/N (Huber 1964).

    Raises
    ------
    ValueError
        If delta is not above 0.
    """
    if not delta > 0:
        raise ValueError(f"huber_error: delta must be above 0, got {delta!r}")
    target, weights = _compared("huber_error", dev, target, weights, prediction)
    return _mean_loss(dev, dev.huber_error(prediction, target, weights, float(delta)))


@op(fuses=True)
def quantile_error(dev: Device, prediction, *, target, level: float = 0.5, weights=None):
    """y = sum_n weights[n] mean_o max(level e, (level - 1) e), where e = target[n, o] - prediction[n, o]

    prediction and target (N, O), weights (N,) or None; None stands for weights 1/N. This is the pinball loss (Koenker & Bassett
    1978): of all constant predictions the quantile `level` of the targets minimises it. At level 0.5 it is half the absolute
    error.

    Raises
    ------
    ValueError
        If the level is not in (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"quantile_error: level must be in (0, 1), got {level!r}")
    target, weights = _compared("quantile_error", dev, target, weights, prediction)
    return _mean_loss(dev, dev.quantile_error(prediction, target, weights, float(level)))
