"""The seven reductions of M. Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA, 2007), in Numba-CUDA.

Each adds the numbers of a block, `THREADS` or more, and writes the sum to y[block]. They are declared as numbanet's own
kernels, so that equal writes count as races, too.
"""

from numbanet_kernels.runtime.declare import cuda, kernel

THREADS, SEVERAL = 128, 8  # threads of a block; pairs of numbers that a thread of the seventh adds
TYPES = "void(i4[::1], i4[::1])"


@kernel(TYPES)
def interleaved_divergent(x, y):
    """1: every second thread, every fourth one, …: the threads of a warp part ways, and % is slow."""
    held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
    held[t] = x[cuda.blockIdx.x * THREADS + t]
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        if t % (2 * step) == 0:
            held[t] += held[t + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        y[cuda.blockIdx.x] = held[0]


@kernel(TYPES)
def interleaved_strided(x, y):
    """2: the first threads work, at strided indices: bank conflicts."""
    held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
    held[t] = x[cuda.blockIdx.x * THREADS + t]
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        k = 2 * step * t
        if k < THREADS:
            held[k] += held[k + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        y[cuda.blockIdx.x] = held[0]


@kernel(TYPES)
def sequential(x, y):
    """3: the first threads work, at neighbouring indices."""
    held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
    held[t] = x[cuda.blockIdx.x * THREADS + t]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step:
            held[t] += held[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        y[cuda.blockIdx.x] = held[0]


@kernel(TYPES)
def first_add_during_load(x, y):
    """4: each thread adds two numbers as it loads them: half the blocks."""
    held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
    first = cuda.blockIdx.x * 2 * THREADS + t
    held[t] = x[first] + x[first + THREADS]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step:
            held[t] += held[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        y[cuda.blockIdx.x] = held[0]


def last_warp(name, within, between):
    """5: no barriers of the block for the last warp. `within` and `between` say whether a barrier of the warp is between the
    reads and the writes of a step, and between the steps.
    """

    @kernel(TYPES)
    def unrolled(x, y):
        held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
        first = cuda.blockIdx.x * 2 * THREADS + t
        held[t] = x[first] + x[first + THREADS]
        cuda.syncthreads()
        step = THREADS // 2
        while step > 32:
            if t < step:
                held[t] += held[t + step]
            cuda.syncthreads()
            step //= 2
        if t < 32:
            for step in (32, 16, 8, 4, 2, 1):
                value = held[t + step]
                if within:
                    cuda.syncwarp()
                held[t] += value
                if between:
                    cuda.syncwarp()
        if t == 0:
            y[cuda.blockIdx.x] = held[0]

    unrolled.__name__ = name
    return unrolled


unrolled_last_warp = last_warp("unrolled_last_warp", within=True, between=True)
without_barriers = last_warp("without_barriers", within=False, between=False)
with_half_of_them = last_warp("with_half_of_them", within=False, between=True)


@cuda.jit(device=True)
def unrolled_sum(held, t):
    """The sum of THREADS numbers in shared memory, without a loop."""
    if THREADS >= 128:
        if t < 64:
            held[t] += held[t + 64]
        cuda.syncthreads()
    value = 0
    if t < 32:
        value = held[t] + held[t + 32]
        cuda.syncwarp()
        held[t] = value
        cuda.syncwarp()
        value += held[t + 16]
        cuda.syncwarp()
        held[t] = value
        cuda.syncwarp()
        value += held[t + 8]
        cuda.syncwarp()
        held[t] = value
        cuda.syncwarp()
        value += held[t + 4]
        cuda.syncwarp()
        held[t] = value
        cuda.syncwarp()
        value += held[t + 2]
        cuda.syncwarp()
        held[t] = value
        cuda.syncwarp()
        value += held[t + 1]
    return value


@kernel(TYPES)
def completely_unrolled(x, y):
    """6: no loop at all."""
    held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
    first = cuda.blockIdx.x * 2 * THREADS + t
    held[t] = x[first] + x[first + THREADS]
    cuda.syncthreads()
    total = unrolled_sum(held, t)
    if t == 0:
        y[cuda.blockIdx.x] = total


@kernel(TYPES)
def several_elements(x, y):
    """7: each thread adds several pairs before the tree begins."""
    held, t = cuda.shared.array(THREADS, "i4"), cuda.threadIdx.x
    total = 0
    for k in range(cuda.blockIdx.x * 2 * THREADS + t, x.size, 2 * THREADS * cuda.gridDim.x):
        total += x[k] + x[k + THREADS]
    held[t] = total
    cuda.syncthreads()
    total = unrolled_sum(held, t)
    if t == 0:
        y[cuda.blockIdx.x] = total
