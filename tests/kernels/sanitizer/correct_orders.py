"""Classic kernels that are right by more than barriers: fences, locks, queues, streams; and memory of other kinds."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .allocated import free, malloc
from .correct import correct, equal, numbers
from .planted import D, I, ones, upto, zeros


# --- fences, locks, queues --------------------------------------------------------------------------------------------
@correct
def a_lock_of_single_threads():
    @cuda.jit
    def kernel(lock, y):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        y[0] += 1
        y[1] += y[0]
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    y = zeros(2)
    kernel[3, 10](zeros(1, dtype=I), y)
    assert y[0] == 30 and y[1] == sum(range(31))


@correct
def a_lock_with_tickets():
    @cuda.jit
    def kernel(ticket, serving, y):
        mine = cuda.atomic.add(ticket, 0, 1)
        while cuda.atomic.add(serving, 0, 0) != mine:
            pass
        cuda.threadfence()
        y[mine] = y[mine - 1] + 1 if mine > 0 else 1
        cuda.threadfence()
        cuda.atomic.add(serving, 0, 1)

    y = zeros(12)
    kernel[12, 1](zeros(1, dtype=I), zeros(1, dtype=I), y)
    equal(y, upto(12) + 1)


@correct
def a_block_that_produces_and_one_that_consumes():
    @cuda.jit
    def kernel(buffer, filled, emptied, y):
        t = cuda.threadIdx.x
        for k in range(4):
            if cuda.blockIdx.x == 0:
                if t == 0:
                    while cuda.atomic.add(emptied, 0, 0) < k:
                        pass
                    cuda.threadfence()
                cuda.syncthreads()
                buffer[t] = 100 * k + t
                cuda.syncthreads()
                if t == 0:
                    cuda.threadfence()
                    cuda.atomic.add(filled, 0, 1)
            else:
                if t == 0:
                    while cuda.atomic.add(filled, 0, 0) <= k:
                        pass
                    cuda.threadfence()
                cuda.syncthreads()
                y[k, t] = buffer[63 - t]
                cuda.syncthreads()
                if t == 0:
                    cuda.threadfence()
                    cuda.atomic.add(emptied, 0, 1)

    y = zeros(4, 64)
    kernel[2, 64](zeros(64), zeros(1, dtype=I), zeros(1, dtype=I), y)
    equal(y, 100 * upto(4)[:, None] + upto(64)[::-1])


@correct
def warps_that_produce_and_consume():
    @cuda.jit
    def kernel(y):
        held, ready, t = cuda.shared.array(32, I), cuda.shared.array(1, I), cuda.threadIdx.x
        if t == 0:
            ready[0] = 0
        cuda.syncthreads()
        if t < 32:
            held[t] = t * t
            cuda.syncwarp()
            if t == 0:
                cuda.threadfence_block()
                cuda.atomic.exch(ready, 0, 1)
        else:
            if t == 32:
                while cuda.atomic.add(ready, 0, 0) == 0:
                    pass
                cuda.threadfence_block()
            cuda.syncwarp()
            y[t - 32] = held[63 - t]

    y = zeros(32)
    kernel[1, 64](y)
    equal(y, upto(32)[::-1] ** 2)


@correct
def a_barrier_of_the_grid_by_hand():
    @cuda.jit
    def kernel(x, y, count):
        i = cuda.grid(1)
        x[i] = i
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
            while cuda.atomic.add(count, 0, 0) < cuda.gridDim.x:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        y[i] = x[x.size - 1 - i]

    y = zeros(128)
    kernel[4, 32](zeros(128), y, zeros(1, dtype=I))
    equal(y, upto(128)[::-1])


@correct
def blocks_that_take_work():
    @cuda.jit
    def kernel(following, x, y):
        job, t = cuda.shared.array(1, I), cuda.threadIdx.x
        while True:
            if t == 0:
                job[0] = cuda.atomic.add(following, 0, 1)
            cuda.syncthreads()
            k = job[0]
            cuda.syncthreads()
            if k >= x.shape[0]:
                break
            y[k, t] = 2 * x[k, t]

    x, y = numbers(7, 32), zeros(7, 32)
    kernel[3, 32](zeros(1, dtype=I), x, y)
    equal(y, 2 * x)


@correct
def breadth_first_levels():
    """All threads of a level that reach a vertex write the same number."""

    @cuda.jit
    def kernel(starts, ends, before, level, now, again):
        k = cuda.grid(1)
        if k < starts.size and before[starts[k]] == now and before[ends[k]] < 0:
            level[ends[k]] = now + 1
            again[0] = 1

    starts, ends = np.repeat(upto(30), 3), np.minimum(np.repeat(2 * upto(30), 3) + np.tile(upto(3), 30), 60).astype(I)
    level = np.full(61, -1, I)
    level[0], now, again = 0, 0, ones(1, dtype=I)
    while again[0]:
        again[0] = 0
        kernel[3, 32](starts, ends, level.copy(), level, now, again)
        now += 1
    assert (level >= 0).all() and level.max() == 5


# --- memory and streams -----------------------------------------------------------------------------------------------
@correct
def memory_of_malloc():
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(40)
        for k in range(10):
            own[k] = k * t
        y[t] = own[9]
        free(own)

    y = zeros(32)
    kernel[1, 32](y)
    equal(y, 9 * upto(32))


@correct
def two_streams_with_two_buffers():
    @cuda.jit
    def double(x):
        x[cuda.grid(1)] *= 2

    held, (a, b) = [cuda.to_device(numbers(32)) for _ in range(2)], (cuda.stream(), cuda.stream())
    for k in range(6):
        double[1, 32, (a, b)[k % 2]](held[k % 2])
    cuda.synchronize()
    equal(held[0].copy_to_host(), 8 * numbers(32))


@correct
def a_diamond_of_streams():
    @cuda.jit
    def add(x, y, z):
        i = cuda.grid(1)
        z[i] = x[i] + y[i]

    x, left, right, both = (cuda.to_device(numbers(32, below=k + 2)) for k in range(4))
    (a, b), begun, ended = (cuda.stream(), cuda.stream()), cuda.event(), cuda.event()
    add[1, 32, a](x, x, x)
    begun.record(a)
    begun.wait(b)
    add[1, 32, a](x, x, left)
    add[1, 32, b](x, x, right)
    ended.record(b)
    ended.wait(a)
    add[1, 32, a](left, right, both)
    a.synchronize()
    equal(both.copy_to_host(), 8 * numbers(32, below=2))


@correct
def views_of_one_array():
    """Each thread block has rows of its own; strides are not those of a whole array."""

    @cuda.jit
    def kernel(x, y):
        i, j = cuda.grid(2)
        if i < x.shape[0] and j < x.shape[1]:
            y[i, j] = x[i, j] * x[x.shape[0] - 1 - i, j]

    whole = cuda.to_device(numbers(20, 20, dtype=D))
    y = cuda.to_device(zeros(10, 7, dtype=D))
    kernel[(2, 2), (8, 8)](whole[::2, 3:10], y)
    part = numbers(20, 20, dtype=D)[::2, 3:10]
    equal(y.copy_to_host(), part * part[::-1])


@correct
def bytes_that_threads_own():
    """Neighbouring bytes and words, of one array seen in two ways."""

    @cuda.jit
    def kernel(words, single):
        t = cuda.threadIdx.x
        words[t] = 0x01020304
        single[4 * t] = t

    memory = cuda.to_device(zeros(128, dtype=np.uint8))
    kernel[1, 32](memory.view(I), memory)
    equal(memory.copy_to_host().reshape(32, 4)[:, 0], upto(32))
