"""Races in global memory between threads of one block."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .planted import D, F, I, ones, planted, upto, zeros

planted = planted("race in global memory inside a block", "global race: ")


@planted
def what_a_neighbour_has_written(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        x[t] = 2 * t
        if right:
            cuda.syncthreads()
        y[t] = x[(t + 1) % x.size]  # fault

    return kernel, (1, 64), zeros(64), zeros(64)


@planted
def shifted_in_place(right):
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        if t + 1 < x.size:
            value = x[t + 1]  # fault
        if right:
            cuda.syncthreads()
        if t + 1 < x.size:
            x[t] = value  # fault

    return kernel, (1, 64), upto(64, F)


@planted
def a_plain_sum(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if right:
            cuda.atomic.add(y, 0, x[t])
        else:
            y[0] += x[t]  # fault

    return kernel, (1, 64), ones(64), zeros(1)


@planted
def a_largest_by_comparison(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if right:
            cuda.atomic.max(y, 0, x[t])
        elif x[t] > y[0]:
            y[0] = x[t]  # fault

    return kernel, (1, 64), upto(64, D), zeros(1, dtype=D)


@planted
def a_stencil_in_place(right):
    @cuda.jit
    def kernel(x):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        inside = 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1
        new = F(0)
        if inside:
            new = (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) / 4  # fault
        if right:
            cuda.syncthreads()
        if inside:
            x[i, j] = new  # fault

    return kernel, (1, (8, 8)), upto(64, F).reshape(8, 8) ** 2


@planted
def rows_that_add_to_one(right):
    @cuda.jit
    def kernel(x, y):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        if right:
            cuda.atomic.add(y, (0, j), x[i, j])
        else:
            y[0, j] += x[i, j]  # fault

    return kernel, (1, (8, 8)), ones(8, 8), zeros(1, 8)


@planted
def a_histogram(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if right:
            cuda.atomic.inc(y, x[t] % 5, 100)
        else:
            y[x[t] % 5] += np.uint32(1)  # fault

    return kernel, (1, 64), upto(64), zeros(5, dtype=np.uint32)


@planted
def a_running_sum(right):
    """Each thread waits for the sum of its neighbour, but nothing makes it wait."""

    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        for k in range(1, x.size):
            if t == k:
                x[t] += x[t - 1]  # fault
            if right:
                cuda.syncthreads()

    return kernel, (1, 40), ones(40)


@planted
def transposed_in_place(right):
    @cuda.jit
    def kernel(x):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        if not right:
            x[i, j] = x[j, i]  # fault
        elif i < j:
            x[i, j], x[j, i] = x[j, i], x[i, j]

    return kernel, (1, (8, 8)), upto(64, F).reshape(8, 8)


@planted
def pairs_that_overlap(right):
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        k = 2 * t if right else t
        if k + 1 < x.size:
            x[k], x[k + 1] = x[k + 1], x[k]  # fault

    return kernel, (1, 64), upto(64)


@planted
def scattered_to_equal_places(right):
    @cuda.jit
    def kernel(where, y):
        t = cuda.threadIdx.x
        y[where[t]] = t + 1  # fault

    where = upto(64)
    if not right:
        where[40] = 3
    return kernel, (1, 64), where, zeros(64)


@planted
def compacted_with_a_plain_counter(right):
    @cuda.jit
    def kernel(x, y, count):
        t = cuda.threadIdx.x
        if x[t] % 3 == 0:
            if right:
                k = cuda.atomic.add(count, 0, 1)
            else:
                k = count[0]  # fault
                count[0] = k + 1  # fault
            y[k] = x[t]

    return kernel, (1, 64), upto(64), zeros(64), zeros(1, dtype=I)


@planted
def a_flag_of_another_thread(right):
    @cuda.jit
    def kernel(done, y):
        t = cuda.threadIdx.x
        if t == 40:
            done[0] = 1  # fault
        if right:
            cuda.syncthreads()
        y[t] = done[0]  # fault

    return kernel, (1, 64), zeros(1, dtype=I), zeros(64)


@planted
def a_tree_in_global_memory(right):
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        step = 1
        while step < x.size:
            if t % (2 * step) == 0:
                x[t] += x[t + step]  # fault
            if right:
                cuda.syncthreads()
            step *= 2

    return kernel, (1, 64), ones(64)


@planted
def an_atomic_sum_that_is_read_at_once(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        cuda.atomic.add(x, 0, 1)
        if right:
            cuda.syncthreads()
        y[t] = x[0]  # fault

    return kernel, (1, 64), zeros(1), zeros(64)


@planted
def slices_that_overlap(right):
    """Each thread has a slice of two elements."""

    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        own = x[2 * t : 2 * t + 2] if right else x[t : t + 2]
        own[0] += 1  # fault
        own[1] += 1  # fault

    return kernel, (1, 32), zeros(64)


@planted
def a_field_of_a_record(right):
    record = np.dtype([("count", I), ("sum", F)], align=True)

    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if right:
            cuda.atomic.add(y["sum"], 0, x[t])
        else:
            y[0].sum += x[t]  # fault

    return kernel, (1, 32), ones(32), zeros(1, dtype=record)


@planted
def found_here_or_there(right):
    """Any place would do, but not a mixture: of a complex number one half might come from each thread."""

    @cuda.jit
    def kernel(x, found):
        t = cuda.threadIdx.x
        if x[t] > 50 and (not right or t == 60):
            found[0] = complex(t, -t)  # fault

    return kernel, (1, 64), upto(64), zeros(1, dtype=np.complex64)


@planted
def a_barrier_of_the_warp_between_warps(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        x[t] = t + 1
        if right:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
        y[t] = x[63 - t]  # fault

    return kernel, (1, 64), zeros(64), zeros(64)


@planted
def the_game_of_life_on_one_board(right):
    @cuda.jit
    def kernel(board, other):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        n = 0
        for a in range(-1, 2):
            for b in range(-1, 2):
                n += board[(i + a) % 8, (j + b) % 8]  # fault
        n -= board[i, j]
        (other if right else board)[i, j] = 1 if n == 3 or (n == 2 and board[i, j]) else 0  # fault

    board = np.random.default_rng(0).integers(0, 2, (8, 8)).astype(np.int8)
    return kernel, (1, (8, 8)), board, board.copy()


@planted
def one_keeps_what_another_changes(right):
    """The first thread writes what is there; the last of its block something else."""

    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        if t == 0:
            x[0] = 5  # fault
        if right:
            cuda.syncthreads()
        if t == 63:
            x[0] = 7  # fault

    return kernel, (1, 64), 5 * ones(1)
