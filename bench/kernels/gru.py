"""The elementwise part of a GRU step, limited by memory bandwidth: N samples, O // 2 units. Suite `gemm` times the products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from numbanet_kernels.families.gru import gru_cell_grad_reference, gru_cell_reference

from .. import kernels
from ..machinery.harness import Case, Options
from . import Kernel

SUITE = "gru"
STEPS = 3


def _forward(rng: np.random.Generator, n: int, i: int, o: int) -> tuple[np.ndarray, ...]:
    """z, s and h. The kernel works in place: a repetition reads from z what the last one wrote."""
    return tuple(
        rng.standard_normal(shape, np.float32)
        for shape in ((STEPS, n, 3 * (o // 2)), (STEPS, n, 3 * (o // 2)), (STEPS + 1, n, o // 2))
    )


def _backward(rng: np.random.Generator, n: int, i: int, o: int) -> tuple[np.ndarray, ...]:
    """dy, back, carried, gates, s and h."""
    gates, s, h = _forward(rng, n, i, o)
    return *(rng.standard_normal(shape, np.float32) for shape in (h[1:].shape, h[0].shape, h[0].shape)), np.tanh(gates), s, h


def _cell(dev: Any, z: Any, s: Any, h: Any, **sizes: int) -> Any:
    def run() -> Any:
        dev.gru_cell(z, s, h, STEPS - 1)
        return z, h

    return run


def _cell_reference(z: np.ndarray, s: np.ndarray, h: np.ndarray, **sizes: int) -> tuple[np.ndarray, ...]:
    gates, after = gru_cell_reference(z, s, h, STEPS - 1)
    return np.concatenate([z[:-1], gates[None]]), np.concatenate([h[:-1], after[None]])


def _cell_grad(dev: Any, dy: Any, back: Any, carried: Any, gates: Any, s: Any, h: Any, **sizes: int) -> Any:
    def run() -> Any:
        dev.gru_cell_grad(dy, back, carried, gates, s, h, STEPS - 1)
        return gates, s, carried

    return run


def _cell_grad_reference(*arrays: np.ndarray, **sizes: int) -> tuple[np.ndarray, ...]:
    dz, ds, carried = gru_cell_grad_reference(*arrays, STEPS - 1)
    _, _, _, gates, s, _ = arrays
    return np.concatenate([gates[:-1], dz[None]]), np.concatenate([s[:-1], ds[None]]), carried


KERNELS = {
    "gru_cell": Kernel(_forward, _cell, None, _cell_reference, bytes=lambda n, i, o: 4.0 * n * (o // 2) * 11),
    "gru_cell_grad": Kernel(_backward, _cell_grad, None, _cell_grad_reference, bytes=lambda n, i, o: 4.0 * n * (o // 2) * 17),
}


def cases(options: Options) -> Iterator[Case]:
    """The forward and the backward kernel."""
    sizes = options.sizes((32, 48, 64), *kernels.SIZES)
    yield from kernels.cases(SUITE, [(op, dict(zip("nio", size))) for op in KERNELS for size in sizes], options)
