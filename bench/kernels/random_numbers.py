"""Dropout on x (n, width), against the PyTorch function.

Generators differ, so values are checked by what they must obey: kept values are scaled exactly, and their share lies within
six standard errors (the tests compare numbanet's values with its reference one by one).
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


def _counted(draw):
    """A call with another counter each time, as in training."""

    def prepare(dev, *arrays, **sizes):
        counter = iter(range(1 << 62))
        return lambda: draw(dev, *arrays, next(counter), **sizes)

    return prepare


KERNELS = {
    "dropout": Kernel(
        _activations,
        _counted(lambda dev, x, counter, rate, **_: dev.dropout(x, rate, 7, counter)),
        lambda t, x, rate, **_: lambda: t.nn.functional.dropout(x, rate, training=True),
        reference=None,
        error=_dropout_error,
        bytes=lambda n, width, rate: 8.0 * n * width,
    )
}


def cases(options: Options) -> Iterator[Case]:
    """Dropout at three rates on the activations of a batch."""
    [(n, width, _)] = options.sizes((32, 64, 1), (128, 2048, 1))
    size = {"n": n, "width": width}
    return kernels.cases(SUITE, [("dropout", {**size, "rate": rate}) for rate in (0.3, 0.5, 0.7)], options)
