"""Random numbers and dropout on x (n, width), against the PyTorch functions.

Generators differ, so values are checked by what they must obey: kept values are scaled exactly, shares and moments lie
within six standard errors (the tests compare numbanet's values with its reference one by one).
"""
from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .. import kernels
from ..machinery.harness import Case, Options, relative_error
from . import Kernel

SUITE = "random"
SIGMAS = 6.0


def _place(rng, n, width):
    """One number that says on which device the others are to be drawn."""
    return (np.zeros(1, np.float32),)


def _activations(rng, n, width, rate):
    return (rng.standard_normal((n, width), np.float32),)


def _dropout_error(result, inputs, n, width, rate):
    """Error of the kept values; infinite if too many or too few are kept."""
    (y,), (x,) = result, inputs
    kept = y != 0
    allowed = SIGMAS * math.sqrt(rate * (1 - rate) / x.size)
    if abs(float(kept.mean()) - (1 - rate)) > allowed:
        return math.inf
    return relative_error(y, np.where(kept, np.float64(x) / (1 - rate), 0))


def _moments_error(mean, variance, low=-math.inf, high=math.inf):
    """0 if mean, variance and range are those of the distribution, else infinite."""
    def error(result, inputs, n, width):
        (y,) = result
        fits = y.shape == (n, width) and y.dtype == np.float32 and float(y.min()) >= low and float(y.max()) < high
        near = abs(float(y.mean(dtype=np.float64)) - mean) <= SIGMAS * math.sqrt(variance / y.size)
        # the standard error of a variance is at most sqrt(2 / size) of it for these two distributions
        spread = abs(float(y.var(dtype=np.float64)) / variance - 1) <= SIGMAS * math.sqrt(2 / y.size)
        return 0.0 if fits and near and spread else math.inf
    return error


def _counted(draw):
    """A call with another counter each time, as in training."""
    def prepare(dev, *arrays, **sizes):
        counter = iter(range(1 << 62))
        return lambda: draw(dev, *arrays, next(counter), **sizes)
    return prepare


KERNELS = {
    "dropout": Kernel(
        _activations, _counted(lambda dev, x, counter, rate, **_: dev.dropout(x, rate, 7, counter)),
        lambda t, x, rate, **_: lambda: t.nn.functional.dropout(x, rate, training=True),
        reference=None, error=_dropout_error, bytes=lambda n, width, rate: 8.0 * n * width),
    "uniform": Kernel(
        _place, _counted(lambda dev, _, counter, n, width: dev.uniform(7, counter, (n, width))),
        lambda t, place, n, width: lambda: t.rand((n, width), device=place.device),
        reference=None, error=_moments_error(0.5, 1 / 12, 0.0, 1.0), bytes=lambda n, width: 4.0 * n * width),
    "normal": Kernel(
        _place, _counted(lambda dev, _, counter, n, width: dev.normal(7, counter, (n, width))),
        lambda t, place, n, width: lambda: t.randn((n, width), device=place.device),
        reference=None, error=_moments_error(0.0, 1.0), bytes=lambda n, width: 4.0 * n * width),
}


def cases(options: Options) -> Iterator[Case]:
    """Dropout at three rates on the activations of a batch; uniform and normal numbers."""
    [(n, width, _)] = options.sizes((32, 64, 1), (128, 2048, 1))
    size = {"n": n, "width": width}
    rates = [("dropout", {**size, "rate": rate}) for rate in (0.3, 0.5, 0.7)]
    return kernels.cases(SUITE, [*rates, ("uniform", size), ("normal", size)], options)
