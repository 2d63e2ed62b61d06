"""Kernels of plain numba.cuda code, and launches of them as tasks. The worker that runs the simulator must not have imported
Numba before, so this file imports neither Numba nor the harness."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from ..machinery.worker import Task

SIDE, TILE, WIDTH = 128, 16, 200  # of matrices; of their tiles; threads of a row of softmax
PADDED = TILE + 1


cuda: Any = None  # numba.cuda and numba.float32, once `task` has imported them
float32: Any = None


# --- kernels ----------------------------------------------------------------------------------------------------------
def _add(x, y, z):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + y[i]


def _product(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)  # the simulator tells shared arrays apart by their lines
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = a[row, k + tx]
        b_tile[ty, tx] = b[k + ty, col]
        cuda.syncthreads()
        for i in range(TILE):
            total += a_tile[ty, i] * b_tile[i, tx]
        cuda.syncthreads()
    c[row, col] = total


def _transpose(x, y):
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx]
    cuda.syncthreads()
    y[cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx] = tile[tx, ty]


def _softmax(x, y):
    sums = cuda.shared.array(256, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    e = math.exp(x[row, t])
    sums[t] = e
    cuda.syncthreads()
    step = 128
    while step > 0:
        if t < step and t + step < x.shape[1]:
            sums[t] += sums[t + step]
        cuda.syncthreads()
        step //= 2
    y[row, t] = e / sums[0]


def _sum(x, y):
    parts = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    parts[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            parts[t] += parts[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        y[cuda.blockIdx.x] = parts[0]


def _histogram(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, int(x[i]), float32(1))


# name: (kernel, grid, block, shapes of the inputs, their largest value, shape of the output, the result in NumPy)
KERNELS: dict[str, tuple[Any, ...]] = {
    "add": (_add, 16, 128, ((2048,), (2048,)), 1, (2048,), np.add),
    "product by tiles": (_product, (8, 8), (TILE, TILE), ((SIDE, SIDE), (SIDE, SIDE)), 1, (SIDE, SIDE), np.matmul),
    "transpose by tiles": (_transpose, (8, 8), (TILE, TILE), ((SIDE, SIDE),), 1, (SIDE, SIDE), np.transpose),
    "softmax": (_softmax, 8, WIDTH, ((8, WIDTH),), 1, (8, WIDTH), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "sum by blocks": (_sum, 16, 128, ((2048,),), 1, (16,), lambda x: x.reshape(16, 128).sum(1)),
    "histogram": (_histogram, 16, 128, ((2048,),), 10, (10,), lambda x: np.bincount(x.astype(int), minlength=10)),
}


def inputs(name: str) -> list[np.ndarray]:
    """The inputs of a kernel, uniformly distributed."""
    rng = np.random.default_rng(0)
    return [np.float32(rng.uniform(0, KERNELS[name][4], shape)) for shape in KERNELS[name][3]]


def task(name: str, simulated: bool) -> Task:
    """Task: launches of a kernel in Numba's simulator, or on the emulated card. Its arrays are on the device."""
    if simulated:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read when Numba is imported, which this process has not done
    else:
        import numbanet

        numbanet.emulated().__enter__()  # until the worker ends
    import numba.cuda

    globals().update(cuda=numba.cuda, float32=numba.float32)
    function, grid, block, *_, shape, _ = KERNELS[name]
    kernel, given = cuda.jit(function), [cuda.to_device(x) for x in inputs(name)]

    def launch() -> Any:
        y = cuda.to_device(np.zeros(shape, np.float32))
        kernel[grid, block](*given, y)
        return y

    return Task(launch, lambda: {"y": launch().copy_to_host()})
