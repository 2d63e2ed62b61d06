"""Dropout on x (n, width), against the PyTorch function.

The two libraries draw different random numbers. The suite checks that each value is 0 or scaled exactly, and that the share of
values that are not 0 lies within six standard errors (the tests compare numbanet's values with its reference elementwise).
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
    """Error of the values that are not dropped; infinite if too many or too few are dropped."""
    (y,), (x,) = result, inputs
    mask = y != 0
    allowed = SIGMAS * math.sqrt(rate * (1 - rate) / x.size)
    if abs(float(mask.mean()) - (1 - rate)) > allowed:
        return math.inf
    return relative_error(y, np.where(mask, np.float64(x) / (1 - rate), 0))


def _counted(draw):
    """Call draw with a new counter each time, as training does."""

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
