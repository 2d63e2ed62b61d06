"""Copies: rows of a data set into a batch, transposes, between compact and dense activations, against PyTorch. No FLOPs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numbanet.plans import RowPlan, on_device

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "indexing"


def _matrix(rng, n, width):
    return (rng.standard_normal((n, width), np.float32),)


def _batch(rng, n, width, samples):
    return rng.standard_normal((samples, width), np.float32), rng.permutation(samples)[:n].astype(np.int32)


def _plan(width, dp):
    return RowPlan(width, dp, dp - 1)


def _dense_inputs(rng, n, width, dp):
    return _matrix(rng, n, width)


def _compact_inputs(rng, n, width, dp):
    return _matrix(rng, n, _plan(width, dp).count)


def _compact(dev, x, n, width, dp):
    columns = on_device(_plan(width, dp), dev).indices
    return lambda: dev.compact(x, columns)


def _expand(dev, x, n, width, dp):
    inverse = on_device(_plan(width, dp), dev).inverse
    return lambda: dev.expand(x, inverse)


def _wide(x, n, width, dp):
    y = np.zeros((n, width))
    y[:, _plan(width, dp).mask()] = x
    return y


def _torch_take(t, x, rows, **_):
    rows = rows.long()
    return lambda: x[rows]


def _torch_expand(t, x, n, width, dp):
    def run():
        y = t.zeros((n, width), device=x.device)
        y[:, dp - 1 :: dp] = x
        return y

    return run


def _two_passes(n, width, **_):
    return 8.0 * n * width


KERNELS = {
    "take_rows": Kernel(
        _batch,
        lambda dev, x, rows, **_: lambda: dev.take_rows(x, rows),
        _torch_take,
        lambda x, rows, **_: x[rows],
        bytes=_two_passes,
    ),
    "copy": Kernel(
        _matrix, lambda dev, x, **_: lambda: dev.copy(x), lambda t, x, **_: x.clone, lambda x, **_: x, bytes=_two_passes
    ),
    "transpose": Kernel(
        _matrix,
        lambda dev, x, **_: lambda: dev.transpose(x, (1, 0)),
        lambda t, x, **_: lambda: x.T.contiguous(),
        lambda x, **_: x.T,
        bytes=_two_passes,
    ),
    "compact": Kernel(
        _dense_inputs,
        _compact,
        lambda t, x, dp, **_: lambda: x[:, dp - 1 :: dp].contiguous(),
        lambda x, width, dp, **_: x[:, _plan(width, dp).mask()],
        bytes=lambda n, width, dp: 8.0 * n * _plan(width, dp).count,
    ),
    "expand": Kernel(
        _compact_inputs, _expand, _torch_expand, _wide, bytes=lambda n, width, dp: 4.0 * n * (_plan(width, dp).count + width)
    ),
}


def cases(options: Options) -> Iterator[Case]:
    """A batch of 784 features from a data set, and copies of activations and of a weight."""
    shapes = [{"n": n, "width": width} for n, width, _ in options.sizes((32, 64, 1), (128, 2048, 1), (2048, 2048, 1))]
    usual = not (options.quick or options.shape)
    batch = {"n": 128, "width": 784, "samples": 60000} if usual else {**shapes[0], "samples": 4 * shapes[0]["n"]}
    chosen = [("take_rows", batch), *((op, shape) for op in ("copy", "transpose") for shape in shapes)]
    chosen += [(op, {**shapes[0], "dp": dp}) for op in ("compact", "expand") for dp in (2, 4)]
    return kernels.cases(SUITE, chosen, options)
