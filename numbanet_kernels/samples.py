"""Small launches of the operations, for looking into their kernels: run on the emulated device, and counted.

    counted("gemm_rows")        {kernel: Counters} of that operation on operands of a few hundred kilobytes at most
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import emulated as dev, launch

N, I, O = 128, 256, 192  # batch, in, out: a few blocks, none ragged
TILES = 32, 3, 1, 0      # tile, dp, bias, mix


class _Random:
    """Operands from one seed."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        return dev.upload(self.rng.standard_normal(shape, np.float32))

    def indices(self, below: int, count: int) -> Any:
        return dev.upload(self.rng.integers(below, size=count).astype(np.int32))


SAMPLES: dict[str, Callable[[_Random], Any]] = {
    "gemm": lambda put: dev.gemm(put(N, I), put(O, I), tb=True, bias=put(O), relu=True),
    "gemm_dw": lambda put: dev.gemm_dw(put(N, O), put(N, I)),
    "gemm_rows": lambda put: dev.gemm_rows(put(N, I // 2), put(O, I), slice(1, None, 3), slice(0, None, 2), put(O), True),
    "gemm_rows_dx": lambda put: dev.gemm_rows_dx(put(N, O // 3), put(O, I), slice(1, None, 3), slice(0, None, 2)),
    "gemm_tiles": lambda put: dev.gemm_tiles(put(N, I), put(O, I), *TILES, b=put(O), relu=True),
    "gemm_tiles_dx": lambda put: dev.gemm_tiles_dx(put(N, O), put(O, I), *TILES),
    "gemm_tiles_dw": lambda put: dev.gemm_tiles_dw(put(N, O), put(N, I), *TILES),
    "add": lambda put: dev.add(put(N, O), put(N, O)),
    "exp": lambda put: dev.exp(put(N, O)),
    "relu_grad": lambda put: dev.relu_grad(put(N, O), put(N, O)),
    "sum": lambda put: dev.sum(put(N, O)),
    "sum_rows": lambda put: dev.sum_rows(put(N, O)),
    "argmax": lambda put: dev.argmax(put(N, 10)),
    "softmax": lambda put: dev.softmax(put(N, O)),
    "softmax_cross_entropy": lambda put: dev.softmax_cross_entropy(put(N, 10), put.indices(10, N)),
    "dropout": lambda put: dev.dropout(put(N, O), 0.5, 1, 0),
    "take_rows": lambda put: dev.take_rows(put(4 * N, I), put.indices(4 * N, N)),
    "transpose": lambda put: dev.transpose(put(N, I), (1, 0)),
    "sgd": lambda put: dev.sgd([(put(O, I), put(O, I), put(O, I), None, None, None)], 0.1, 0.9),
    "adam": lambda put: dev.adam([(put(O, I), put(O, I), put(O, I), put(O, I), None)], 0.1, 0.9, 0.999, 1e-8, 1),
}


def counted(name: str) -> dict[launch.Kernel, Any]:
    """What the kernels of an operation did in its sample.

    Raises
    ------
    ValueError
        If there is no sample of that name.
    """
    if name not in SAMPLES:
        raise ValueError(f"there is no sample of {name!r}; choose from {', '.join(SAMPLES)}")
    before = dict(launch.counters)
    launch.counters.clear()
    try:
        SAMPLES[name](_Random())
        return dict(launch.counters)
    finally:
        launch.counters.clear()
        launch.counters.update(before)
