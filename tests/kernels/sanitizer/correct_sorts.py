"""Classic kernels that are right: sorting, searching, counting."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .correct import ALL, correct, equal, numbers
from .planted import I, zeros


# --- sorting, searching, counting -------------------------------------------------------------------------------------
@correct
def bitonic_sort():
    @cuda.jit
    def kernel(x):
        held, t = cuda.shared.array(64, I), cuda.threadIdx.x
        held[t] = x[t]
        size = 2
        while size <= 64:
            step = size // 2
            while step > 0:
                cuda.syncthreads()
                other = t ^ step
                if other > t:
                    a, b = held[t], held[other]
                    if (a > b) == ((t & size) == 0):
                        held[t], held[other] = b, a
                step //= 2
            size *= 2
        cuda.syncthreads()
        x[t] = held[t]

    x = numbers(64, dtype=I, below=1000)
    wanted = np.sort(x)
    kernel[1, 64](x)
    equal(x, wanted)


@correct
def odd_even_sort():
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        for turn in range(x.size):
            k = 2 * t + turn % 2
            if k + 1 < x.size and x[k] > x[k + 1]:
                x[k], x[k + 1] = x[k + 1], x[k]
            cuda.syncthreads()

    x = numbers(40, dtype=I, below=1000)
    wanted = np.sort(x)
    kernel[1, 32](x)
    equal(x, wanted)


@correct
def radix_pass_by_ballots():
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        bit = x[t] & 1
        ones = cuda.ballot_sync(ALL, bit)
        before = cuda.popc(ones & ((1 << t) - 1))
        y[32 - cuda.popc(ones) + before if bit else t - before] = x[t]

    x, y = numbers(32, dtype=I, below=99), zeros(32, dtype=I)
    kernel[1, 32](x, y)
    equal(y, x[np.argsort(x & 1, kind="stable")])


@correct
def histogram_with_shared_atomics():
    @cuda.jit
    def kernel(x, y):
        own, t = cuda.shared.array(16, I), cuda.threadIdx.x
        if t < 16:
            own[t] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            cuda.atomic.add(own, x[i], 1)
        cuda.syncthreads()
        if t < 16:
            cuda.atomic.add(y, t, own[t])

    x, y = numbers(1000, dtype=I, below=16), zeros(16, dtype=I)
    kernel[4, 64](x, y)
    equal(y, np.bincount(x, minlength=16))


@correct
def compaction_with_atomics():
    @cuda.jit
    def kernel(x, y, count):
        i = cuda.grid(1)
        if i < x.size and x[i] > 4:
            y[cuda.atomic.add(count, 0, 1)] = x[i]

    x, y, count = numbers(200), zeros(200), zeros(1, dtype=I)
    kernel[4, 64](x, y, count)
    equal(np.sort(y[: count[0]]), np.sort(x[x > 4]))


@correct
def compaction_by_warps():
    """One atomic instruction for the warp; its lanes take the places that follow."""

    @cuda.jit
    def kernel(x, y, count):
        i, lane = cuda.grid(1), cuda.threadIdx.x % 32
        keep = x[i] > 4
        votes = cuda.ballot_sync(ALL, keep)
        first = 0
        if lane == 0:
            first = cuda.atomic.add(count, 0, cuda.popc(votes))
        first = cuda.shfl_sync(ALL, first, 0)
        if keep:
            y[first + cuda.popc(votes & ((1 << lane) - 1))] = x[i]

    x, y, count = numbers(128), zeros(128), zeros(1, dtype=I)
    kernel[2, 64](x, y, count)
    equal(np.sort(y[: count[0]]), np.sort(x[x > 4]))
