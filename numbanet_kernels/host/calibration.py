"""Calibration measures the `thresholds` of this machine: the sizes of work from which the second of two implementations is
faster. Both implementations of the same work are timed alternately, A B A B …, at increasing sizes.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..layouts.packed import LazyBlocks, Packing, SGDUpdate
from . import blas, thresholds
from .thresholds import Thresholds

NEVER = 1 << 62  # a size that is never reached
TURNS, SECONDS = 9, 0.002  # number of timings at one size; least duration of a timing in seconds
SIDES = (64, 128, 256, 512, 1024)  # sides of the square weights
WEIGHTS = 4  # number of weights that are updated in turn
Work = Callable[[], Any]
Works = Iterator[tuple[int, Work, Work]]  # yields (size, first implementation, second implementation of the same work)


def crossing(sizes: Sequence[int], first: Sequence[float], second: Sequence[float]) -> int:
    """Return the smallest size from which the second implementation is always faster; twice the largest size if there is none.
    `first` and `second` hold the times of both implementations for each size.
    """
    found = 2 * sizes[-1]
    for size, a, b in sorted(zip(sizes, first, second, strict=True), reverse=True):
        if b >= a:
            break
        found = size
    return found


def compare(first: Work, second: Work) -> tuple[float, float]:
    """Return (seconds of first(), seconds of second()), medians of alternating timings."""

    def seconds(work: Work, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - start) / count

    for work in (first, second):
        seconds(work, 3)  # compiles the loops and fills the caches
    count = max(1, int(SECONDS / max(seconds(first, 3), 1e-7)))
    turns = [[seconds(work, count) for work in (first, second)] for _ in range(TURNS)]
    return tuple(np.median(turns, axis=0))


def measured(works: Works) -> int:
    """Time both implementations of `works` at each size, and return the `crossing`."""
    sizes, times = [], []
    for size, first, second in works:
        sizes.append(size)
        times.append(compare(first, second))
    return crossing(sizes, *zip(*times, strict=True))


def calibrate(dev: Any) -> Thresholds:
    """Measure the thresholds of this machine, which takes one or two seconds; `dev` has the operations of the CPU."""
    # in the order of the fields of `Thresholds`
    return Thresholds(*(measured(works(dev)) for works in (_passes, _products, _updates)))


def faster_library() -> str:
    """Return "mkl" if MKL is installed and its matrix products were measured faster, else "openblas", NumPy's library."""
    if not blas.mkl():
        return "openblas"
    given = [(_random(m, k), _random(k, n), _random(m, n)) for m, k, n in ((512, 512, 128), (128, 1024, 1024))]

    def products(entry: int) -> None:
        for a, b, c in given:
            blas.product(entry, a, b, c)

    ours, theirs = compare(*(functools.partial(products, blas.entry(name)) for name in ("openblas", "mkl")))
    return "mkl" if theirs < ours else "openblas"


def _alone_and_shared(work: Work) -> tuple[Work, Work]:
    """Return two implementations of `work`: on one thread, and on all threads."""

    def under(chosen: Thresholds) -> None:
        with thresholds.using(chosen):
            work()

    return tuple(functools.partial(under, Thresholds(size, size)) for size in (NEVER, 0))


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _passes(dev: Any) -> Works:
    """Yield SGD updates of a weight, on one thread and on all threads; the size is the number of elements of the weight."""
    for side in SIDES:
        whole = SGDUpdate(*(_random(side, side) for _ in range(3)))
        yield side * side, *_alone_and_shared(functools.partial(dev.sgd, [whole], 0.01, 0.9))


def _products(dev: Any) -> Works:
    """Yield products x w.T with a batch of 64, on one thread and on all threads; the size is the number of FLOPs."""
    for side in SIDES:
        product = functools.partial(dev.gemm, _random(64, side), _random(side, side), tb=True)
        yield 2 * 64 * side * side, *_alone_and_shared(product)


def _updates(dev: Any) -> Works:
    """Yield SGD updates of a weight, not lazy and lazy; the size is the number of elements of the weight.

    The lazy update covers only rows that have a gradient, which are half of the rows, and rows that the next step reads, which
    are another half; the two halves share half of their rows. Several weights are updated in turn, because in a training step
    other data displaces a weight from the caches between two updates.
    """
    powers = dev.sgd_powers(4, 0.01, 0.9)
    for side in (*SIDES, 2 * SIDES[-1]):
        rows = np.arange(side)
        current, wanted = (rows % 2 == 0)[:, None], (rows % 4 < 2)[:, None]
        lag = np.where(current, 0, 2).astype(np.int32)
        lazy = LazyBlocks(lag, np.zeros_like(lag), current, wanted, powers, (1, side))
        columns = np.arange(side, dtype=np.int32)[None]
        kept = Packing(np.where(current[:, 0], rows // 2, -1).astype(np.int32), np.zeros(side, np.int32), columns, columns)
        weights = itertools.cycle([(_random(side, side), _random(side, side)) for _ in range(WEIGHTS)])
        g = _random(side // 2, side)

        def update(lazy=None, weights=weights, g=g, kept=kept):
            dev.sgd([SGDUpdate(*next(weights), g, kept, lazy)], 0.01, 0.9)

        yield side * side, update, functools.partial(update, lazy)
