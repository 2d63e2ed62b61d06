"""Reductions of x (n, width), against the PyTorch functions. One pass over x: memory binds them."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet_kernels import reduce as R

from . import kernels
from .harness import Case, Options
from .kernels import Kernel


def _reduction(numbanet, torch, reference):
    return Kernel(
        inputs=lambda rng, n, width: (rng.standard_normal((n, width), np.float32),),
        numbanet=lambda dev, x, **_: lambda: numbanet(dev, x),
        torch=lambda t, x, **_: lambda: torch(x),
        reference=lambda x, **_: reference(x),
        flops=lambda n, width: float(n * width),
        bytes=lambda n, width: 4.0 * n * width,
    )


KERNELS = {
    "sum_rows": _reduction(lambda dev, x: dev.sum_rows(x), lambda x: x.sum(0), R.sum_rows_reference),
    "sum": _reduction(lambda dev, x: dev.sum(x), lambda x: x.sum(), R.sum_reference),
    "max": _reduction(lambda dev, x: dev.max(x, axis=1), lambda x: x.amax(1), lambda x: R.max_reference(x, 1)),
    "argmax": _reduction(lambda dev, x: dev.argmax(x), lambda x: x.argmax(1), R.argmax_reference),
}


def cases(options: Options) -> Iterator[Case]:
    """Each reduction over the outputs of a classifier, the activations of a batch, and a large array."""
    shapes = [(32, 64)] if options.quick else [(128, 10), (128, 2048), (2048, 2048)]
    return kernels.cases("reduce", [(op, {"n": n, "width": width}) for op in KERNELS for n, width in shapes], options)
