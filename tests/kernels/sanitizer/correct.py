"""Classic kernels that are right: nothing may be found in them. Each function launches a kernel and checks its result."""

import functools
import math

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .planted import F, I, upto, zeros

CORRECT = []
ALL = 0xFFFFFFFF


def correct(function):
    """Add a function to the table, as one that is right whatever is asked."""

    @functools.wraps(function)
    def make(right):
        return function()

    CORRECT.append(make)
    return make


def numbers(*shape, dtype=F, below=9):
    return np.random.default_rng(sum(shape)).integers(0, below, shape).astype(dtype)


equal = np.testing.assert_array_equal


# --- elementwise, and along rows --------------------------------------------------------------------------------------
@correct
def grid_stride_loop():
    @cuda.jit
    def kernel(a, x, y):
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            y[i] += a * x[i]

    x, y = numbers(1000), numbers(1000, below=5)
    wanted = 2 * x + y
    kernel[3, 64](F(2), x, y)
    equal(y, wanted)


@correct
def flags_that_all_threads_set():
    """Equal plain writes, as programs have them."""

    @cuda.jit
    def kernel(x, found):
        i = cuda.grid(1)
        if i < x.size and x[i] > 7:
            found[0] = 1

    found = zeros(1, dtype=I)
    kernel[4, 64](numbers(250), found)
    assert found[0] == 1


@correct
def softmax_of_rows():
    @cuda.jit
    def kernel(x, y):
        held, t, row = cuda.shared.array(32, F), cuda.threadIdx.x, cuda.blockIdx.x
        held[t] = x[row, t]
        cuda.syncthreads()
        step = 16
        while step:
            if t < step:
                held[t] = max(held[t], held[t + step])
            cuda.syncthreads()
            step //= 2
        largest = held[0]
        cuda.syncthreads()
        held[t] = math.exp(x[row, t] - largest)
        cuda.syncthreads()
        total = F(0)
        for k in range(32):
            total += held[k]
        y[row, t] = held[t] / total

    x, y = numbers(4, 32), zeros(4, 32)
    kernel[4, 32](x, y)
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)


@correct
def a_guard_that_returns():
    """Threads that have returned are not waited for, from Volta on."""

    @cuda.jit
    def kernel(x, y):
        held, t, i = cuda.shared.array(64, F), cuda.threadIdx.x, cuda.grid(1)
        if i >= x.size:
            return
        held[t] = x[i]
        cuda.syncthreads()
        y[i] = held[0] + x[i]

    x, y = numbers(100), zeros(100)
    kernel[2, 64](x, y)
    equal(y, x + x[upto(100) // 64 * 64])


# --- matrices ---------------------------------------------------------------------------------------------------------
@correct
def transpose_with_padding():
    @cuda.jit
    def kernel(x, y):
        tile = cuda.shared.array((16, 17), F)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
        if row < x.shape[0] and column < x.shape[1]:
            tile[ty, tx] = x[row, column]
        cuda.syncthreads()
        row, column = cuda.blockIdx.x * 16 + ty, cuda.blockIdx.y * 16 + tx
        if row < y.shape[0] and column < y.shape[1]:
            y[row, column] = tile[tx, ty]

    x, y = numbers(20, 37), zeros(37, 20)
    kernel[(3, 2), (16, 16)](x, y)
    equal(y, x.T)


@correct
def transpose_in_place_by_pairs():
    @cuda.jit
    def kernel(x):
        i, j = cuda.grid(2)
        if i < j < x.shape[0]:
            x[i, j], x[j, i] = x[j, i], x[i, j]

    x = numbers(12, 12)
    wanted = x.T.copy()
    kernel[(2, 2), (8, 8)](x)
    equal(x, wanted)


@correct
def tiled_matmul():
    @cuda.jit
    def kernel(a, b, c):
        left, right = cuda.shared.array((8, 8), F), cuda.shared.array((8, 8), F)
        tx, ty, total = cuda.threadIdx.x, cuda.threadIdx.y, F(0)
        row, column = cuda.blockIdx.y * 8 + ty, cuda.blockIdx.x * 8 + tx
        for k in range(0, a.shape[1], 8):
            left[ty, tx] = a[row, k + tx] if row < a.shape[0] and k + tx < a.shape[1] else 0
            right[ty, tx] = b[k + ty, column] if k + ty < b.shape[0] and column < b.shape[1] else 0
            cuda.syncthreads()
            for m in range(8):
                total += left[ty, m] * right[m, tx]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total

    a, b, c = numbers(10, 19), numbers(19, 13), zeros(10, 13)
    kernel[(2, 2), (8, 8)](a, b, c)
    equal(c, a @ b)


@correct
def matmul_with_two_buffers():
    """One barrier a turn: while one tile is read, the next one is written."""

    @cuda.jit
    def kernel(a, b, c):
        left, right = cuda.shared.array((2, 8, 8), F), cuda.shared.array((2, 8, 8), F)
        tx, ty, total = cuda.threadIdx.x, cuda.threadIdx.y, F(0)
        turns = a.shape[1] // 8
        left[0, ty, tx], right[0, ty, tx] = a[ty, tx], b[ty, tx]
        for turn in range(turns):
            cuda.syncthreads()
            now, following = turn % 2, (turn + 1) % 2
            if turn + 1 < turns:
                left[following, ty, tx] = a[ty, 8 * turn + 8 + tx]
                right[following, ty, tx] = b[8 * turn + 8 + ty, tx]
            for m in range(8):
                total += left[now, ty, m] * right[now, m, tx]
        c[ty, tx] = total

    a, b, c = numbers(8, 32), numbers(32, 8), zeros(8, 8)
    kernel[1, (8, 8)](a, b, c)
    equal(c, a @ b)


@correct
def matvec_by_warps():
    @cuda.jit
    def kernel(a, x, y):
        lane, row = cuda.threadIdx.x % 32, cuda.grid(1) // 32
        total = F(0)
        for k in range(lane, x.size, 32):
            total += a[row, k] * x[k]
        for step in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL, total, step)
        if lane == 0:
            y[row] = total

    a, x, y = numbers(8, 70), numbers(70), zeros(8)
    kernel[4, 64](a, x, y)
    equal(y, a @ x)


# --- scans ------------------------------------------------------------------------------------------------------------
@correct
def scan_of_hillis_and_steele():
    @cuda.jit
    def kernel(x, y):
        both, t = cuda.shared.array((2, 64), F), cuda.threadIdx.x
        both[0, t] = x[t]
        now, step = 0, 1
        while step < 64:
            cuda.syncthreads()
            both[1 - now, t] = both[now, t] + (both[now, t - step] if t >= step else F(0))
            now, step = 1 - now, 2 * step
        y[t] = both[now, t]

    x, y = numbers(64), zeros(64)
    kernel[1, 64](x, y)
    equal(y, np.cumsum(x))


@correct
def scan_of_blelloch():
    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(128, I), cuda.threadIdx.x
        held[2 * t], held[2 * t + 1] = x[2 * t], x[2 * t + 1]
        step, count = 1, 64
        while count > 0:
            cuda.syncthreads()
            if t < count:
                held[step * (2 * t + 2) - 1] += held[step * (2 * t + 1) - 1]
            step, count = 2 * step, count // 2
        if t == 0:
            held[127] = 0
        count = 1
        while count < 128:
            step //= 2
            cuda.syncthreads()
            if t < count:
                a, b = step * (2 * t + 1) - 1, step * (2 * t + 2) - 1
                held[a], held[b] = held[b], held[a] + held[b]
            count *= 2
        cuda.syncthreads()
        y[2 * t], y[2 * t + 1] = held[2 * t], held[2 * t + 1]

    x, y = numbers(128, dtype=I), zeros(128, dtype=I)
    kernel[1, 64](x, y)
    equal(y, np.cumsum(x) - x)


@correct
def scan_of_warps():
    @cuda.jit
    def kernel(x, y):
        sums, t = cuda.shared.array(4, I), cuda.threadIdx.x
        lane, value = t % 32, x[t]
        for step in (1, 2, 4, 8, 16):
            other = cuda.shfl_up_sync(ALL, value, step)
            if lane >= step:
                value += other
        if lane == 31:
            sums[t // 32] = value
        cuda.syncthreads()
        for k in range(t // 32):
            value += sums[k]
        y[t] = value

    x, y = numbers(128, dtype=I), zeros(128, dtype=I)
    kernel[1, 128](x, y)
    equal(y, np.cumsum(x))


@correct
def scan_in_three_launches():
    @cuda.jit
    def within(x, sums):
        held, t, i = cuda.shared.array(32, I), cuda.threadIdx.x, cuda.grid(1)
        held[t] = x[i]
        cuda.syncthreads()
        total = 0
        for k in range(t + 1):
            total += held[k]
        x[i] = total
        if t == 31:
            sums[cuda.blockIdx.x] = total

    @cuda.jit
    def across(sums):
        total = 0
        for k in range(sums.size):
            total += sums[k]
            sums[k] = total

    @cuda.jit
    def add(x, sums):
        if cuda.blockIdx.x > 0:
            x[cuda.grid(1)] += sums[cuda.blockIdx.x - 1]

    x = numbers(128, dtype=I)
    held, sums = cuda.to_device(x), cuda.device_array(4, I)
    within[4, 32](held, sums)
    across[1, 1](sums)
    add[4, 32](held, sums)
    equal(held.copy_to_host(), np.cumsum(x))


@correct
def scan_with_look_back():
    """Each block waits for the sum of the one before it (Merrill and Garland 2016, in its simplest form)."""

    @cuda.jit
    def kernel(x, y, sums, ready):
        held, before = cuda.shared.array(32, I), cuda.shared.array(1, I)
        t, b, i = cuda.threadIdx.x, cuda.blockIdx.x, cuda.grid(1)
        held[t] = x[i]
        cuda.syncthreads()
        own = 0
        for k in range(t + 1):
            own += held[k]
        if t == 31:
            earlier = 0
            if b > 0:
                while cuda.atomic.add(ready, b - 1, 0) == 0:
                    pass
                cuda.threadfence()
                earlier = sums[b - 1]
            sums[b] = earlier + own
            cuda.threadfence()
            cuda.atomic.exch(ready, b, 1)
            before[0] = earlier
        cuda.syncthreads()
        y[i] = before[0] + own

    x, y = numbers(256, dtype=I), zeros(256, dtype=I)
    kernel[8, 32](x, y, zeros(8, dtype=I), zeros(8, dtype=I))
    equal(y, np.cumsum(x))
