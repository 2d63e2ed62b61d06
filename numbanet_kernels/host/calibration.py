"""Calibration: measure on this machine from which size on each way pays that `thresholds` chooses between.

Two ways of the same work are timed in turn, A B A B …, at sizes that double; the answer is the size from which on the second
one is faster.
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

NEVER = 1 << 62  # a size that nothing reaches
TURNS, SECONDS = 9, 0.002  # of a comparison at one size; of a turn at least
SIDES = (64, 128, 256, 512, 1024)  # of the weights
WEIGHTS = 4  # that are updated in turn
Work = Callable[[], Any]
Works = Iterator[tuple[int, Work, Work]]  # a size, and two ways of the same work at it


def crossing(sizes: Sequence[int], first: Sequence[float], second: Sequence[float]) -> int:
    """The size from which on the second way takes less time, there and beyond; twice the largest if it never does."""
    found = 2 * sizes[-1]
    for size, a, b in sorted(zip(sizes, first, second, strict=True), reverse=True):
        if b >= a:
            break
        found = size
    return found


def compare(first: Work, second: Work) -> tuple[float, float]:
    """Seconds of each: medians of interleaved turns."""

    def seconds(work: Work, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - start) / count

    for work in (first, second):
        seconds(work, 3)  # compile, fill caches
    count = max(1, int(SECONDS / max(seconds(first, 3), 1e-7)))
    turns = [[seconds(work, count) for work in (first, second)] for _ in range(TURNS)]
    return tuple(np.median(turns, axis=0))


def measured(works: Works) -> int:
    """The size from which on the second way is the faster one."""
    sizes, times = [], []
    for size, first, second in works:
        sizes.append(size)
        times.append(compare(first, second))
    return crossing(sizes, *zip(*times, strict=True))


def calibrate(dev: Any) -> Thresholds:
    """This machine's thresholds, in a second or two; dev has the operations of the CPU."""
    return Thresholds(*(measured(works(dev)) for works in (_passes, _products, _updates)))  # in the order of the fields


def faster_library() -> str:
    """The faster library of products: "mkl", if it is installed and its own take less time, else "openblas", NumPy's."""
    if not blas.mkl():
        return "openblas"
    given = [(_random(m, k), _random(k, n), _random(m, n)) for m, k, n in ((512, 512, 128), (128, 1024, 1024))]

    def products(entry: int) -> None:
        for a, b, c in given:
            blas.product(entry, a, b, c)

    ours, theirs = compare(*(functools.partial(products, blas.entry(name)) for name in ("openblas", "mkl")))
    return "mkl" if theirs < ours else "openblas"


def _alone_and_shared(work: Work) -> tuple[Work, Work]:
    """The work on one thread, and on all."""

    def under(chosen: Thresholds) -> None:
        with thresholds.using(chosen):
            work()

    return tuple(functools.partial(under, Thresholds(size, size)) for size in (NEVER, 0))


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _passes(dev: Any) -> Works:
    """Updates of a weight, by its elements."""
    for side in SIDES:
        whole = SGDUpdate(*(_random(side, side) for _ in range(3)))
        yield side * side, *_alone_and_shared(functools.partial(dev.sgd, [whole], 0.01, 0.9))


def _products(dev: Any) -> Works:
    """Products x w.T with a batch of 64, by their FLOPs."""
    for side in SIDES:
        product = functools.partial(dev.gemm, _random(64, side), _random(side, side), tb=True)
        yield 2 * 64 * side * side, *_alone_and_shared(product)


def _updates(dev: Any) -> Works:
    """Updates of a weight by its elements: of all of it, and of the rows that have a gradient or are read next alone, one half
    each, which have one half of their rows in common.

    Of several weights in turn: in a training step much else passes through the caches between two updates of one.
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
