"""Losses with their gradients: forward and backward in one pass, without intermediate arrays.

A loss returns losses (N,), whose sum is the weighted mean loss of the batch, and the gradient of this sum. w[n] is weights[n],
or 1/N if `weights` is None; the caller makes sure that the weights sum to 1. c < C is a class, o < O an output (the index of
all axes after the first).

softmax_cross_entropy  losses[n] = w[n] (log sum_c exp(x[n, c]) - x[n, label[n]])
                       dlogits[n, c] = w[n] (softmax(x[n])[c] - t), where t = 1 if c = label[n], else 0
                       The loss of a label outside 0 .. C-1 is NaN
all other losses       losses[n] = w[n]/O sum_o v[n, o],   dprediction[n, o] = w[n]/O s[n, o],  where d = prediction - target:
squared_error          v = d^2, s = 2 d
absolute_error         v = |d|, s = sign(d)
sigmoid_cross_entropy  v = max(x, 0) - x t + log(1 + exp(-|x|)), s = sigmoid(x) - t: logits x, targets t in [0, 1]
huber_error            v = m (|d| - m/2), m = min(|d|, delta), s = m sign(d): d^2/2 up to delta, beyond it a straight line
quantile_error         v = (1 - level) d if d > 0, else -level d, s = dv/dd, 0 at 0
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32

from ..host import threads
from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect, pair
from ..runtime.launch import launch
from ..runtime.memory import empty_cpu, empty_cuda
from .elementwise import named, sigmoid_reference
from .softmax import LOWEST, NARROW, WIDE, row_sums

SQUARED, ABSOLUTE, SIGMOID = range(3)
HUBER, QUANTILE = range(2)  # losses with a parameter
NAN = np.float32(np.nan)
LOG2_E, LOG_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))


def _results(op, empty, weights, out, **arrays):
    """Return (losses, gradient, weights, uniform weight). If the uniform weight is 0, the kernel reads `weights`; else every
    sample has the uniform weight, and `weights` are not read.
    """
    shape, (losses, gradient) = next(iter(arrays.values())).shape, pair(op, "out", out)
    if not shape or "labels" in arrays and not shape[-1]:
        raise ValueError(f"{op}: {', '.join(arrays)} of shape {shape} have no samples along a first axis, or no classes")
    if "labels" in arrays:
        arrays |= {"logits": (arrays["logits"], (shape[0], "C")), "labels": (arrays["labels"], shape[:1], INT32)}
    expect(op, **arrays, weights=(weights, shape[:1]), **{"out[0]": (losses, shape[:1]), "out[1]": (gradient, shape)})
    losses, gradient = (empty(shape[:1]), empty(shape)) if out is None else out
    return losses, gradient, *((losses, 1 / max(shape[0], 1)) if weights is None else (weights, 0.0))


# --- reference --------------------------------------------------------------------------------------------------------
def _weighted(values, slopes, weights):
    """losses[n] = w[n]/O sum_o values[n, o], gradient[n, o] = w[n]/O slopes[n, o]"""
    rows = len(values)
    w = np.full(rows, 1 / max(rows, 1)) if weights is None else np.asarray(weights, np.float64)
    width = math.prod(values.shape[1:])
    share = w / max(1, width)
    return share * values.reshape(rows, width).sum(axis=1), (slopes.T * share).T


def softmax_cross_entropy_reference(logits, labels, weights=None):
    x = np.asarray(logits, np.float64)
    rows = np.arange(len(x))
    z = x - x.max(axis=1, keepdims=True)
    logarithms = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    slopes = np.exp(logarithms)
    slopes[rows, labels] -= 1
    losses, _ = _weighted(-logarithms[rows, labels], slopes[:, 0], weights)
    return losses, _weighted(slopes, slopes * x.shape[1], weights)[1]


def squared_error_reference(prediction, target, weights=None):
    d = np.asarray(prediction, np.float64) - target
    return _weighted(d * d, 2 * d, weights)


def absolute_error_reference(prediction, target, weights=None):
    d = np.asarray(prediction, np.float64) - target
    return _weighted(np.abs(d), np.sign(d), weights)


def sigmoid_cross_entropy_reference(logits, target, weights=None):
    """losses[n] = -w[n]/O sum_o (t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))), and the gradient of their sum"""
    x, t = np.asarray(logits, np.float64), np.asarray(target, np.float64)
    return _weighted(np.logaddexp(0, x) - x * t, sigmoid_reference(x) - t, weights)


def huber_error_reference(prediction, target, weights=None, delta=1.0):
    d = np.asarray(prediction, np.float64) - target
    slopes = np.clip(d, -delta, delta)
    return _weighted(slopes * (d - slopes / 2), slopes, weights)


def quantile_error_reference(prediction, target, weights=None, level=0.5):
    d = np.asarray(prediction, np.float64) - target
    slopes = np.where(np.isnan(d), d, np.where(d > 0, 1 - level, -level) * (d != 0))
    return _weighted(slopes * d, slopes, weights)


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], i4[::1], f4[::1], f4, f4[::1], f4[:, ::1])")
def _cross_entropy(logits, labels, weights, uniform, losses, dlogits):
    """Compute the losses and dlogits. The exponential is written out as exp(z) = 2^k p(z - k log 2) with a polynomial p,
    because a call to the C library would prevent vectorisation.
    """
    width = logits.shape[1]
    for n in range(logits.shape[0]):
        top = LOWEST
        for c in range(width):
            top = logits[n, c] if logits[n, c] > top else top
        total = float32(0)
        for c in range(width):
            z = logits[n, c] - top
            k = np.floor(z * LOG2_E + float32(0.5))
            r = z - k * LOG_2
            p = float32(1 / 24) + r * (float32(1 / 120) + r * float32(1 / 720))
            p = float32(1) + r * (float32(1) + r * (float32(0.5) + r * (float32(1 / 6) + r * p)))
            power = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
            e = p * power if z > float32(-87) else float32(0)
            e = z if z != z else e  # NaN stays NaN
            dlogits[n, c] = e
            total += e
        weight = uniform if uniform > float32(0) else weights[n]
        scale = weight / total if total != float32(0) else total
        for c in range(width):
            dlogits[n, c] *= scale
        label = labels[n]
        if 0 <= label < width:
            dlogits[n, label] -= weight
            below = top - logits[n, label]
            below = float32(0) if below < float32(0) else below  # never; without it (log(total) + top) - logit were computed
            losses[n] = weight * (math.log(total) + below)
        else:
            losses[n] = NAN


@host_kernel("void(i4, f4[:, ::1], f4[:, ::1], f4[::1], f4, f4[::1], f4[:, ::1])")
def _errors(formula, prediction, target, weights, uniform, losses, gradient):
    width = prediction.shape[1]
    zero, one = float32(0), float32(1)
    for n in range(prediction.shape[0]):
        share = (uniform if uniform > zero else weights[n]) / float32(max(width, 1))
        total = zero
        for o in range(width):
            p, t = prediction[n, o], target[n, o]
            d = p - t
            if formula == SQUARED:
                value, slope = d * d, d + d
            elif formula == ABSOLUTE:
                value, slope = abs(d), one if d > zero else -one if d < zero else d
            else:
                e = math.exp(-abs(p))
                value = (p if p > zero else zero) - p * t + math.log1p(e)
                slope = (one if p > zero else e) / (one + e) - t
            total += value
            gradient[n, o] = slope * share
        losses[n] = total * share


@host_kernel("void(i4, f4, f4[:, ::1], f4[:, ::1], f4[::1], f4, f4[::1], f4[:, ::1])")
def _bent_errors(formula, parameter, prediction, target, weights, uniform, losses, gradient):
    width = prediction.shape[1]
    zero, half, one = float32(0), float32(0.5), float32(1)
    for n in range(prediction.shape[0]):
        share = (uniform if uniform > zero else weights[n]) / float32(max(width, 1))
        total = zero
        for o in range(width):
            d = prediction[n, o] - target[n, o]
            if formula == HUBER:
                a = abs(d)
                m = parameter if a > parameter else a  # with this order of the comparison, NaN stays NaN
                value, slope = m * (a - half * m), m if d > zero else -m
            else:
                value = (one - parameter) * d if d > zero else -parameter * d
                slope = one - parameter if d > zero else -parameter if d < zero else d
            total += value
            gradient[n, o] = slope * share
        losses[n] = total * share


def softmax_cross_entropy_cpu(logits, labels, weights=None, out=None):
    """losses[n] = w[n] (log sum_c exp(x[n, c]) - x[n, label[n]]), dlogits.   -> (N,), (N, C)"""
    losses, dlogits, w, uniform = _results("softmax_cross_entropy (cpu)", empty_cpu, weights, out, logits=logits, labels=labels)

    def work(part):
        span = part.of(losses.size)
        _cross_entropy(logits[span], labels[span], w[span], uniform, losses[span], dlogits[span])

    threads.share(work, logits.size)
    return losses, dlogits


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("loss")
def _cross_entropy_kernels():
    """Return two kernels, one with NARROW and one with WIDE threads per row; a block computes a row."""

    def declared(lanes):
        _, exponentials = row_sums(lanes)

        @kernel("void(f4[:, ::1], i4[::1], f4[::1], f4, f4[::1], f4[:, ::1])")
        def cross_entropy(logits, labels, weights, uniform, losses, dlogits):
            shared = cuda.shared.array(lanes, float32)
            lane, row = cuda.threadIdx.x, cuda.blockIdx.x
            width = logits.shape[1]
            top, total = exponentials(shared, lane, logits, row)
            weight = uniform if uniform > float32(0) else weights[row]
            scale = weight / total
            label = labels[row]
            for c in range(lane, width, lanes):
                share = math.exp(logits[row, c] - top) * scale
                dlogits[row, c] = share - weight if c == label else share
            if lane == 0:
                known = label >= 0 and label < width
                losses[row] = weight * (math.log(total) + (top - logits[row, label])) if known else NAN

        return cross_entropy

    return declared(NARROW), declared(WIDE)


@kernels("loss")
def _error_kernels():
    """Return the kernels for SQUARED, ABSOLUTE and SIGMOID; `formula` is a compile-time constant."""
    tree, _ = row_sums(NARROW)

    def declared(formula):
        @kernel("void(f4[:, ::1], f4[:, ::1], f4[::1], f4, f4[::1], f4[:, ::1])")
        def errors(prediction, target, weights, uniform, losses, gradient):
            shared = cuda.shared.array(NARROW, float32)
            lane, row = cuda.threadIdx.x, cuda.blockIdx.x
            width = prediction.shape[1]
            share = (uniform if uniform > float32(0) else weights[row]) / float32(max(width, 1))
            total = float32(0)
            for o in range(lane, width, NARROW):
                p = prediction[row, o]
                t = target[row, o]
                d = p - t
                if formula == SQUARED:
                    value = d * d
                    slope = d + d
                elif formula == ABSOLUTE:
                    value = math.fabs(d)
                    slope = float32(1) if d > float32(0) else float32(-1) if d < float32(0) else d
                else:
                    e = math.exp(-math.fabs(p))
                    value = (p if p > float32(0) else float32(0)) - p * t + math.log1p(e)
                    slope = (float32(1) if p > float32(0) else e) / (float32(1) + e) - t
                total += value
                gradient[row, o] = slope * share
            total = tree(shared, lane, total, False)
            if lane == 0:
                losses[row] = total * share

        return errors

    return tuple(declared(formula) for formula in (SQUARED, ABSOLUTE, SIGMOID))


@kernels("loss")
def _bent_error_kernels():
    """Return the kernels for HUBER and QUANTILE."""
    tree, _ = row_sums(NARROW)

    def declared(formula):
        @kernel("void(f4, f4[:, ::1], f4[:, ::1], f4[::1], f4, f4[::1], f4[:, ::1])")
        def bent_errors(parameter, prediction, target, weights, uniform, losses, gradient):
            shared = cuda.shared.array(NARROW, float32)
            lane, row = cuda.threadIdx.x, cuda.blockIdx.x
            width = prediction.shape[1]
            share = (uniform if uniform > float32(0) else weights[row]) / float32(max(width, 1))
            total = float32(0)
            for o in range(lane, width, NARROW):
                d = prediction[row, o] - target[row, o]
                if formula == HUBER:
                    a = math.fabs(d)
                    m = parameter if a > parameter else a  # with this order of the comparison, NaN stays NaN
                    value = m * (a - float32(0.5) * m)
                    slope = m if d > float32(0) else -m
                else:
                    value = (float32(1) - parameter) * d if d > float32(0) else -parameter * d
                    slope = float32(1) - parameter if d > float32(0) else -parameter if d < float32(0) else d
                total += value
                gradient[row, o] = slope * share
            total = tree(shared, lane, total, False)
            if lane == 0:
                losses[row] = total * share

        return bent_errors

    return tuple(declared(formula) for formula in (HUBER, QUANTILE))


def softmax_cross_entropy_cuda(logits, labels, weights=None, out=None):
    losses, dlogits, *w = _results("softmax_cross_entropy (cuda)", empty_cuda, weights, out, logits=logits, labels=labels)
    wide = logits.shape[1] > 32 * NARROW
    block = WIDE if wide else NARROW
    launch(_cross_entropy_kernels()[wide], losses.size, block, logits, labels, *w, losses, dlogits)
    return losses, dlogits


# --- one line an operation --------------------------------------------------------------------------------------------
def _as_rows(losses, *arrays):
    return [array.reshape(losses.size, array.size // max(losses.size, 1)) for array in arrays]


def _error(op, formula, which):
    """Return the functions (op_cpu, op_cuda) of the loss `op`."""

    def error_cpu(prediction, target, weights=None, out=None):
        losses, gradient, *w = _results(f"{op} (cpu)", empty_cpu, weights, out, prediction=prediction, target=target)
        x, y, dx = _as_rows(losses, prediction, target, gradient)
        _errors(which, x, y, *w, losses, dx)
        return losses, gradient

    def error_cuda(prediction, target, weights=None, out=None):
        losses, gradient, *w = _results(f"{op} (cuda)", empty_cuda, weights, out, prediction=prediction, target=target)
        x, y, dx = _as_rows(losses, prediction, target, gradient)
        launch(_error_kernels()[which], losses.size, NARROW, x, y, *w, losses, dx)
        return losses, gradient

    return named(f"{op}_cpu", formula, error_cpu), named(f"{op}_cuda", formula, error_cuda)


squared_error_cpu, squared_error_cuda = _error(
    "squared_error", "losses[n] = w[n]/O sum_o (p - t)^2, dprediction.   -> (N,), (N, O)", SQUARED
)
absolute_error_cpu, absolute_error_cuda = _error(
    "absolute_error", "losses[n] = w[n]/O sum_o |p - t|, dprediction.   -> (N,), (N, O)", ABSOLUTE
)
sigmoid_cross_entropy_cpu, sigmoid_cross_entropy_cuda = _error(
    "sigmoid_cross_entropy",
    "losses[n] = w[n]/O sum_o (max(x, 0) - x t + log(1 + exp(-|x|))), dlogits.   -> (N,), (N, O)",
    SIGMOID,
)


def huber_error_cpu(prediction, target, weights=None, delta=1.0, out=None):
    """losses[n] = w[n]/O sum_o m (|d| - m/2), d = p - t, m = min(|d|, delta), dprediction.   -> (N,), (N, O)"""
    return _bent_cpu("huber_error", HUBER, delta, prediction, target, weights, out)


def huber_error_cuda(prediction, target, weights=None, delta=1.0, out=None):
    return _bent_cuda("huber_error", HUBER, delta, prediction, target, weights, out)


def quantile_error_cpu(prediction, target, weights=None, level=0.5, out=None):
    """losses[n] = w[n]/O sum_o max((1 - level) d, -level d), d = p - t, dprediction.   -> (N,), (N, O)"""
    return _bent_cpu("quantile_error", QUANTILE, level, prediction, target, weights, out)


def quantile_error_cuda(prediction, target, weights=None, level=0.5, out=None):
    return _bent_cuda("quantile_error", QUANTILE, level, prediction, target, weights, out)


def _bent_cpu(op, which, parameter, prediction, target, weights, out):
    losses, gradient, *w = _results(f"{op} (cpu)", empty_cpu, weights, out, prediction=prediction, target=target)
    x, y, dx = _as_rows(losses, prediction, target, gradient)
    _bent_errors(which, parameter, x, y, *w, losses, dx)
    return losses, gradient


def _bent_cuda(op, which, parameter, prediction, target, weights, out):
    losses, gradient, *w = _results(f"{op} (cuda)", empty_cuda, weights, out, prediction=prediction, target=target)
    x, y, dx = _as_rows(losses, prediction, target, gradient)
    launch(_bent_error_kernels()[which], losses.size, NARROW, parameter, x, y, *w, losses, dx)
    return losses, gradient


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "softmax_cross_entropy": lambda: dev.softmax_cross_entropy(a(N, 10), a.indices(10, N)),
        "softmax_cross_entropy, wide": lambda: dev.softmax_cross_entropy(a(7, 1100), a.indices(1100, 7)),
        "squared_error": lambda: dev.squared_error(a(N, O), a(N, O)),
        "absolute_error": lambda: dev.absolute_error(a(N, O), a(N, O)),
        "huber_error": lambda: dev.huber_error(a(N, O), a(N, O), delta=0.7),
        "quantile_error": lambda: dev.quantile_error(a(N, O), a(N, O), level=0.9),
        "sigmoid_cross_entropy": lambda: dev.sigmoid_cross_entropy(a(N, O), a(N, O, above=0.0)),
    }
