"""Losses: operations whose result is one number, sum_n weights[n] loss[n], the weights of the samples summing to 1.

Each is one fused kernel that gives the loss of every sample and the gradient.
"""
from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd import op
from ..device import Device
from ..gradients import One
from ..tensor import Tensor


def _given(name: str, dev: Device, x: Any, dtype: type = np.float32) -> Any:
    """What a loss compares with, on the device: its arrays are taken as they are, what is on the host is uploaded."""
    if isinstance(x, Tensor):
        if dtype is not np.float32:
            raise ValueError(f"{name}: labels are float32 in a Tensor, not integers; give them as a NumPy array")
        return x.data
    if x is None or hasattr(x, "copy_to_host") or not isinstance(x, (np.ndarray, Sequence, numbers.Number)):
        return x
    values = np.asarray(x)
    if dtype is np.int32 and values.dtype.kind not in "iub":
        raise ValueError(f"{name}: labels are {values.dtype}, not integers")
    return dev.upload(values, dtype)


def _mean_loss(dev, losses_and_gradient):
    losses, gradient = losses_and_gradient

    def vjp(dy):
        if isinstance(dy, One):
            return gradient
        return dev.mul(gradient, dev.broadcast_to(dev.reshape(dy.dense(dev), (1, 1)), gradient.shape))

    return dev.sum(losses), (vjp,)


@op(fuses=True)
def softmax_cross_entropy(dev, logits, *, labels, weights=None):
    """y = -sum_n weights[n] log softmax(logits[n])[labels[n]].   logits (N, C), labels (N,) integers, weights None: 1/N

    A label that is not in 0 … C - 1 makes the loss NaN: labels on a device are not looked at before.
    """
    labels = _given("softmax_cross_entropy", dev, labels, np.int32)
    return _mean_loss(dev, dev.softmax_cross_entropy(logits, labels, _given("softmax_cross_entropy", dev, weights)))


@op(fuses=True)
def squared_error(dev, prediction, *, target, weights=None):
    """y = sum_n weights[n] mean_o (prediction[n, o] - target[n, o])².   (N, O), weights (N,) or None: 1/N"""
    target, weights = (_given("squared_error", dev, x) for x in (target, weights))
    return _mean_loss(dev, dev.squared_error(prediction, target, weights))


@op(fuses=True)
def absolute_error(dev, prediction, *, target, weights=None):
    """y = sum_n weights[n] mean_o |prediction[n, o] - target[n, o]|.   (N, O), weights (N,) or None: 1/N"""
    target, weights = (_given("absolute_error", dev, x) for x in (target, weights))
    return _mean_loss(dev, dev.absolute_error(prediction, target, weights))


@op(fuses=True)
def sigmoid_cross_entropy(dev, logits, *, target, weights=None):
    """y = -sum_n weights[n] mean_o (t log s + (1 - t) log(1 - s)), s = sigmoid(logits[n, o]), t = target[n, o]"""
    target, weights = (_given("sigmoid_cross_entropy", dev, x) for x in (target, weights))
    return _mean_loss(dev, dev.sigmoid_cross_entropy(logits, target, weights))
