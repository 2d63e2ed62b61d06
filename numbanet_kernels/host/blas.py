"""The library behind matrix products on the CPU, and how many threads it uses: NumPy's BLAS.

    matmul(a, b, out=c)      c = a b for float32 of any strides, on the thread that calls it and those of the library's own
    threads()                how many threads each pool of the library has
    set_threads(counts)      as many for each
    OWN_FLOPS                the library does smaller products on one thread of its own accord

Another library stands here once it has these four.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import threadpoolctl

matmul = np.matmul
OWN_FLOPS = 1 << 19


@functools.cache
def _pools() -> list[Any]:
    """NumPy's, which is loaded by the time of the first use; where no library's place says that it is NumPy's own, all: another
    one, such as SciPy's, does none of the work here, and to set it takes as long."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return [pool for pool in found if "numpy" in pool.filepath] or found


def threads() -> list[int]:
    """How many threads each pool has."""
    return [pool.get_num_threads() for pool in _pools()]


def set_threads(counts: Sequence[int]) -> None:
    """Set the pools. threadpoolctl 3.8 heeds only the first Python thread that sets OpenBLAS's, until told to let go."""
    for pool, count in zip(_pools(), counts, strict=True):
        if pool.get_num_threads() == count:
            continue
        let_go = getattr(pool, "clear_controlling_thread", lambda force: None)
        let_go(force=True)
        pool.set_num_threads(count)
        let_go(force=True)
