"""Barriers at which parts of a block, of a warp or of the grid wait for each other, or for threads that never come."""

from numbanet_kernels.runtime.declare import cuda

from .planted import F, I, ones, planted, upto, zeros

planted = planted("divergent barrier", "never reaches: |not in its own mask|does not take part")
ALL = 0xFFFFFFFF


@planted
def in_both_branches(right):
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        if t < 32:
            x[t] += 1
            if not right:
                cuda.syncthreads()  # fault
        else:
            x[t] += 2
            if not right:
                cuda.syncthreads()  # fault
        if right:
            cuda.syncthreads()
        x[t] *= 2

    return kernel, (1, 64), zeros(64)


@planted
def in_one_branch_and_another_after_it(right):
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        if t < 40 or right:
            x[t] += 1
            cuda.syncthreads()  # fault
        x[t] += 1
        cuda.syncthreads()  # fault
        x[t] += 1

    return kernel, (1, 64), zeros(64)


@planted
def loops_of_different_lengths(right):
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        for _ in range(4 if right else t // 32 + 1):
            x[t] += 1
            cuda.syncthreads()  # fault
        x[t] += 1
        cuda.syncthreads()  # fault
        x[t] += 1

    return kernel, (1, 64), zeros(64)


@planted
def a_break_before_the_barrier(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        for k in range(4):
            if x[t] == k and not right:
                break
            y[t] += 1
            cuda.syncthreads()  # fault
        y[t] *= 2
        cuda.syncthreads()  # fault
        y[t] += 1

    return kernel, (1, 64), upto(64) % 8, zeros(64)


@planted
def a_turn_that_some_skip(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        for k in range(3):
            if x[t] == k and not right:
                continue
            y[t] += k
            cuda.syncthreads()  # fault
        cuda.syncthreads()  # fault
        y[t] += 1

    return kernel, (1, 64), upto(64) % 8, zeros(64)


@planted
def a_count_in_a_branch(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        n = 0
        if x[t] > 3 or right:
            n = cuda.syncthreads_count(1 if x[t] > 5 else 0)  # fault
        y[t] = n
        cuda.syncthreads()  # fault
        y[t] += 1

    return kernel, (1, 64), upto(64) % 8, zeros(64)


@planted
def an_or_in_a_branch(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if t % 2 == 0 or right:
            y[t] = cuda.syncthreads_or(x[t] // 7)  # fault
        else:
            y[t] = cuda.syncthreads_and(x[t] // 7)  # fault

    return kernel, (1, 64), upto(64) % 8, zeros(64)


@planted
def in_a_device_function(right):
    @cuda.jit(device=True)
    def halve(held, t, n):
        if t < n:
            held[t] += held[t + n]
            cuda.syncthreads()  # fault

    @cuda.jit(device=True)
    def halve_right(held, t, n):
        if t < n:
            held[t] += held[t + n]
        cuda.syncthreads()

    step = halve_right if right else halve

    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = x[t]
        cuda.syncthreads()
        step(held, t, 32)
        cuda.syncthreads()  # fault
        y[t] = held[0]

    return kernel, (1, 64), ones(64), zeros(64)


@planted
def rows_of_a_block(right):
    @cuda.jit
    def kernel(x):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        if i > 0 and not right:
            x[i, j] += 1
            cuda.syncthreads()  # fault
        x[i, j] += 2
        cuda.syncthreads()  # fault
        x[i, j] += 3

    return kernel, (1, (16, 4)), zeros(4, 16)


@planted
def where_the_data_says_so(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        value = x[t]
        while value > (100 if right else 2):
            value -= 2
            cuda.syncthreads()  # fault
        y[t] = value
        cuda.syncthreads()  # fault
        y[t] += 1

    return kernel, (1, 64), upto(64) % 8, zeros(64)


@planted
def the_second_half_of_a_warp(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        if t % 32 < 16 or right:
            y[t] = 1
            cuda.syncthreads()  # fault
        else:
            y[t] = 2
            cuda.syncwarp()  # fault
        y[t] += 1

    return kernel, (1, 64), zeros(64)


@planted
def a_shuffle_in_both_branches(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if t < 16 and not right:
            y[t] = cuda.shfl_sync(ALL, x[t], 3)  # fault
        else:
            y[t] = cuda.shfl_sync(ALL, x[t] + 1, 4)  # fault

    return kernel, (1, 32), upto(32), zeros(32)


@planted
def a_vote_that_some_miss(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if x[t] > 7 or right:
            y[t] = cuda.ballot_sync(ALL, x[t] % 2 == 0)  # fault
        cuda.syncwarp()  # fault
        y[t] += 1

    return kernel, (1, 32), upto(32), zeros(32, dtype=I)


@planted
def a_lane_outside_its_mask(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if t < 20:
            y[t] = cuda.shfl_sync(0xFFFFF if right else 0xFFFF, x[t], 1)  # fault

    return kernel, (1, 32), upto(32), zeros(32)


@planted
def a_mask_with_lanes_that_are_elsewhere(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if t < 8:
            cuda.syncwarp(0xFF if right else 0xFFFF)  # fault
            y[t] = x[t] + 1
        else:
            cuda.syncwarp(0xFFFFFF00)  # fault
            y[t] = x[t] + 2
        cuda.syncwarp()  # fault
        y[t] += 1

    return kernel, (1, 32), upto(32), zeros(32)


@planted
def a_shuffle_from_a_lane_that_is_not_there(right):
    """Lane 20 has returned, so what comes from it is undefined."""

    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if t < 20:
            y[t] = cuda.shfl_sync(0xFFFFF, x[t], 19 if right else 20)  # fault

    return kernel, (1, 32), upto(32), zeros(32)


@planted
def a_match_that_some_miss(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        if x[t] != 3 or right:
            y[t] = cuda.match_any_sync(ALL, x[t])  # fault
        else:
            cuda.syncwarp()  # fault
            y[t] = 0

    return kernel, (1, 32), upto(32) % 4, zeros(32, dtype=I)


@planted
def a_barrier_of_the_grid_and_one_of_the_block(right):
    @cuda.jit
    def kernel(x):
        grid = cuda.cg.this_grid()
        i = cuda.grid(1)
        x[i] = 1
        if cuda.blockIdx.x == 0 and not right:
            while cuda.atomic.add(x, i, 0) < 2:
                cuda.syncthreads()
                if cuda.threadIdx.x < 16:
                    grid.sync()  # fault
                cuda.syncthreads()  # fault
                x[i] = 2
        grid.sync()  # fault
        x[i] += 1

    return kernel, (2, 32), zeros(64)


@planted
def a_block_that_returns_before_the_barrier_of_the_grid(right):
    @cuda.jit
    def kernel(x):
        grid = cuda.cg.this_grid()
        if cuda.blockIdx.x == 1 and not right:
            return
        x[cuda.grid(1)] = 1
        grid.sync()  # fault
        x[cuda.grid(1)] += 1

    return kernel, (3, 32), zeros(96)


@planted
def two_loops_with_a_barrier_each(right):
    """Some threads are in the first loop while others are in the second one."""

    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        n = 2 if right else t % 3
        for _ in range(n):
            x[t] += 1
            cuda.syncthreads()  # fault
        for _ in range(4 - n):
            x[t] += 2
            cuda.syncthreads()  # fault

    return kernel, (1, 64), zeros(64)


@planted
def a_search_that_ends_for_some(right):
    @cuda.jit
    def kernel(x, y):
        t, found = cuda.threadIdx.x, False
        for k in range(4):
            if not found or right:
                found = found or x[4 * t + k] == 5
                cuda.syncthreads()  # fault
        if found:
            y[t] = 1
        cuda.syncthreads()  # fault
        y[t] += 1

    return kernel, (1, 64), upto(256) % 23, zeros(64)
