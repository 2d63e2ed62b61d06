"""Classic kernels that are right: reductions and stencils."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .correct import ALL, correct, equal, numbers
from .planted import F, I, ones, upto, zeros


# --- reductions -------------------------------------------------------------------------------------------------------
@correct
def sum_by_shuffles():
    @cuda.jit
    def kernel(x, y):
        sums, t = cuda.shared.array(32, F), cuda.threadIdx.x
        value = F(0)
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            value += x[i]
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(ALL, value, step)
        if t % 32 == 0:
            sums[t // 32] = value
        cuda.syncthreads()
        if t < 32:
            value = sums[t] if t < cuda.blockDim.x // 32 else F(0)
            for step in (16, 8, 4, 2, 1):
                value += cuda.shfl_down_sync(ALL, value, step)
            if t == 0:
                cuda.atomic.add(y, 0, value)

    x, y = numbers(1000), zeros(1)
    kernel[3, 128](x, y)
    assert y[0] == x.sum()


@correct
def sum_of_the_last_block():
    """threadFenceReduction of NVIDIA's samples: the last block to come adds the sums of all, and resets the counter."""

    @cuda.jit
    def kernel(x, sums, count, y):
        held, last = cuda.shared.array(64, F), cuda.shared.array(1, I)
        t = cuda.threadIdx.x
        held[t] = x[cuda.grid(1)]
        step = 32
        while step:
            cuda.syncthreads()
            if t < step:
                held[t] += held[t + step]
            step //= 2
        if t == 0:
            sums[cuda.blockIdx.x] = held[0]
            cuda.threadfence()
            last[0] = cuda.atomic.inc(count, 0, cuda.gridDim.x) == cuda.gridDim.x - 1
        cuda.syncthreads()
        if last[0]:
            held[t] = sums[t] if t < cuda.gridDim.x else F(0)
            step = 32
            while step:
                cuda.syncthreads()
                if t < step:
                    held[t] += held[t + step]
                step //= 2
            if t == 0:
                y[0] = held[0]
                count[0] = 0

    x, y, count = numbers(640), zeros(1), zeros(1, dtype=np.uint32)
    for _ in range(2):
        kernel[10, 64](x, zeros(10), count, y)
        assert y[0] == x.sum() and count[0] == 0


@correct
def largest_and_where():
    @cuda.jit
    def kernel(x, y):
        values, places, t = cuda.shared.array(64, F), cuda.shared.array(64, I), cuda.threadIdx.x
        values[t], places[t] = x[t], t
        step = 32
        while step:
            cuda.syncthreads()
            if t < step and values[t + step] > values[t]:
                values[t], places[t] = values[t + step], places[t + step]
            step //= 2
        if t == 0:
            y[0] = places[0]

    x, y = upto(64, F) * 7 % 61, zeros(1, dtype=I)
    kernel[1, 64](x, y)
    assert y[0] == x.argmax()


@correct
def sum_by_compare_and_swap():
    @cuda.jit
    def swap(x, y):
        i, old = cuda.grid(1), 0
        while True:
            seen = cuda.atomic.cas(y, 0, old, old + x[i])
            if seen == old:
                break
            old = seen

    x, y = numbers(40, dtype=I), zeros(1, dtype=I)
    swap[2, 20](x, y)
    assert y[0] == x.sum()


# --- stencils ---------------------------------------------------------------------------------------------------------
@correct
def stencil_with_a_halo():
    @cuda.jit
    def kernel(x, y):
        held, t, i = cuda.shared.array(34, F), cuda.threadIdx.x, cuda.grid(1)
        held[t + 1] = x[i] if i < x.size else F(0)
        if t == 0:
            held[0] = x[i - 1] if i > 0 else F(0)
        if t == 31:
            held[33] = x[i + 1] if i + 1 < x.size else F(0)
        cuda.syncthreads()
        if i < x.size:
            y[i] = held[t] + held[t + 1] + held[t + 2]

    x, y = numbers(100), zeros(100)
    kernel[4, 32](x, y)
    equal(y, np.convolve(x, ones(3), "same"))


@correct
def jacobi_with_a_barrier_of_the_grid():
    @cuda.jit
    def kernel(x, y):
        grid, i = cuda.cg.this_grid(), cuda.grid(1)
        for _ in range(3):
            if 0 < i < x.size - 1:
                y[i] = (x[i - 1] + x[i + 1]) / 2
            grid.sync()
            if 0 < i < x.size - 1:
                x[i] = y[i]
            grid.sync()

    x = numbers(96)
    wanted = x.copy()
    for _ in range(3):
        wanted[1:-1] = (wanted[:-2] + wanted[2:]) / 2
    kernel[3, 32](x, zeros(96))
    equal(x, wanted)


@correct
def red_and_black():
    """Gauss and Seidel on a chess board: neighbours have the other colour."""

    @cuda.jit
    def kernel(x):
        i, j = cuda.threadIdx.y + 1, cuda.threadIdx.x + 1
        for turn in range(4):
            if (i + j + turn) % 2 == 0:
                x[i, j] = (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) / 4
            cuda.syncthreads()

    x = numbers(10, 10)
    kernel[1, (8, 8)](x)
    assert np.isfinite(x).all()


@correct
def the_game_of_life_on_two_boards():
    @cuda.jit
    def kernel(board, other):
        i, j = cuda.grid(2)
        n = 0
        for a in range(-1, 2):
            for b in range(-1, 2):
                n += board[(i + a) % 16, (j + b) % 16]
        n -= board[i, j]
        other[i, j] = 1 if n == 3 or (n == 2 and board[i, j]) else 0

    boards = [cuda.to_device(numbers(16, 16, dtype=np.int8, below=2)), cuda.device_array((16, 16), np.int8)]
    for k in range(3):
        kernel[(2, 2), (8, 8)](boards[k % 2], boards[1 - k % 2])
