"""The list of a longer axis that has, for each index of an axis, T in a row, such as the pixels of a channel:

    repeat_indices    y[k T + j] = x[k] T + j, and -1 where x[k] < 0

So do lists of places, as of the kept indices.
"""

from __future__ import annotations

import numpy as np
from numba import int32

from ..runtime.declare import cuda, host_kernel, kernel, kernels
from ..runtime.expect import INT32, expect
from ..runtime.launch import launch
from ..runtime.memory import THREADS, blocks_for, empty_cpu, empty_cuda


# --- reference --------------------------------------------------------------------------------------------------------
def repeat_indices_reference(x, times):
    x = np.asarray(x)[:, None]
    return np.where(x < 0, -1, x * times + np.arange(times)).reshape(-1)


def _room(op, empty, x, times):
    expect(op, x=(x, ("K",), INT32))
    if times < 0 or x.size * times > np.iinfo(np.int32).max:
        raise ValueError(f"{op}: {times} times {x.size} indices are too many, or none")
    return empty((x.size * times,), np.int32)


# --- CPU --------------------------------------------------------------------------------------------------------------
@host_kernel("void(i4[::1], i8, i4[::1])")
def _repeat(x, times, y):
    for k in range(x.size):
        own = y[k * times : (k + 1) * times]
        for j in range(own.size):
            own[j] = x[k] * times + j if x[k] >= 0 else -1


def repeat_indices_cpu(x, times):
    """y[k T + j] = x[k] T + j, and -1 where x[k] < 0.   x (K,) int32 -> y (K T,)"""
    y = _room("repeat_indices (cpu)", empty_cpu, x, times)
    _repeat(x, times, y)
    return y


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("repeat")
def _repeating():
    @kernel("void(i4[::1], i4, i4[::1])")
    def repeat(x, times, y):
        i = cuda.grid(1)
        if i < y.size:
            index = x[i // times]
            y[i] = index * times + i % times if index >= 0 else int32(-1)

    return repeat


def repeat_indices_cuda(x, times):
    y = _room("repeat_indices (cuda)", empty_cuda, x, times)
    if y.size:
        launch(_repeating(), blocks_for(y.size), THREADS, x, times, y)
    return y


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {"repeat_indices": lambda: dev.repeat_indices(a.indices(2 * I, I) - np.int32(I), 9)}
