"""Kernels whose counters are known by hand, and what their lines count."""

import inspect

import numpy as np
from numba import float32

from numbanet_kernels.runtime import declare

cuda = declare.cuda
F = np.float32
WARPS = 32  # of 4 blocks of 256 threads: 1024 elements, one for each thread


def copied(x, y):
    i = cuda.grid(1)
    v = x[i]  # load
    y[i] = v  # store


def strided(x, y):
    i = cuda.grid(1)
    v = x[32 * i]  # load
    y[i] = v  # store


def shifted(x, y):
    i = cuda.grid(1)
    v = x[i + 1]  # load
    y[i] = v  # store


def broadcast(x, y):
    i = cuda.grid(1)
    v = x[cuda.blockIdx.x]  # load
    y[i] = v  # store


def column(pitch):
    """A kernel of one warp that reads the first column of a tile whose rows have `pitch` words."""

    def kernel(x, y):
        tile = cuda.shared.array((32, pitch), float32)
        lane = cuda.threadIdx.x
        for row in range(32):
            tile[row, lane] = x[row, lane]  # rows
        cuda.syncwarp()
        y[lane] = tile[lane, 0]  # column

    return kernel


def by_threads(x, y):
    i = cuda.grid(1)
    if i % 2:  # branch
        y[i] = x[i] * x[i]  # body


def by_warps(x, y):
    i = cuda.grid(1)
    if i // 32 % 2:  # branch
        y[i] = x[i] * x[i]  # body


def alternating(x, y):
    i = cuda.grid(1)
    if i % 2 == 0:
        y[i] = x[i] * x[i] + x[0]
    else:
        y[i] = x[i] / (x[i] + x[1])


def polynomial(x, y):
    i = cuda.grid(1)
    v = x[i]  # load
    w = v * v  # square
    y[i] = w * v + v  # fma


def place(function, comment):
    """The place of the line with a comment, as counters have it."""
    source, first = inspect.getsourcelines(function)
    (line,) = (k for k, text in enumerate(source, first) if text.rstrip().endswith(f"# {comment}"))
    return f"{inspect.getsourcefile(function).rpartition('/')[2]}:{line}"


def at(kernel, function, comment):
    """The counters of the line with a comment."""
    return {line.place: line for line in kernel.lines}[place(function, comment)]
