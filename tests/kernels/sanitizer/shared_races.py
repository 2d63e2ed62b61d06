"""Races in shared memory."""

from numbanet_kernels.runtime.declare import cuda

from .planted import D, F, I, L, ones, planted, upto, zeros

planted = planted("race in shared memory", "shared race: ")


@planted
def read_of_another_warp(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = t
        if right:
            cuda.syncthreads()
        y[t] = held[63 - t]  # fault

    return kernel, (1, 64), zeros(64)


@planted
def read_of_another_lane(right):
    """Lanes of one warp need no barrier of the block, but one of the warp."""

    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(32, L), cuda.threadIdx.x
        held[t] = t
        if right:
            cuda.syncwarp()
        y[t] = held[t ^ 1]  # fault

    return kernel, (1, 32), zeros(32)


@planted
def write_over_what_others_read(right):
    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = x[t]
        cuda.syncthreads()
        value = held[(t + 1) % 64]
        if right:
            cuda.syncthreads()
        held[t] = 2 * value  # fault
        y[t] = held[t]

    return kernel, (1, 64), ones(64), zeros(64)


@planted
def all_write_one_element(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(4, I), cuda.threadIdx.x
        if not right or t == 0:
            held[2] = t + 1  # fault
        cuda.syncthreads()
        y[t] = held[2]

    return kernel, (1, 40), zeros(40)


@planted
def counted_without_atomics(right):
    @cuda.jit
    def kernel(x, y):
        count, t = cuda.shared.array(8, I), cuda.threadIdx.x
        if t < 8:
            count[t] = 0
        cuda.syncthreads()
        if right:
            cuda.atomic.add(count, x[t], 1)
        else:
            count[x[t]] += 1  # fault
        cuda.syncthreads()
        if t < 8:
            y[t] = count[t]

    return kernel, (1, 64), upto(64) % 8, zeros(8)


@planted
def a_sum_whose_loop_has_no_barrier(right):
    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(128, D), cuda.threadIdx.x
        held[t] = x[t]
        cuda.syncthreads()
        step = 64
        while step > 0:
            if t < step:
                held[t] += held[t + step]  # fault
            if right:
                cuda.syncthreads()
            step //= 2
        if t == 0:
            y[0] = held[0]

    return kernel, (1, 128), ones(128), zeros(1)


@planted
def a_transposed_tile(right):
    @cuda.jit
    def kernel(x, y):
        tile = cuda.shared.array((8, 9), F)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        tile[i, j] = x[i, j]
        if right:
            cuda.syncthreads()
        y[i, j] = tile[j, i]  # fault

    return kernel, (1, (8, 8)), ones(8, 8), zeros(8, 8)


@planted
def the_next_tile_comes_too_early(right):
    """The barrier at the end of the loop over tiles is missing."""

    @cuda.jit
    def kernel(x, y):
        tile, t = cuda.shared.array(64, F), cuda.threadIdx.x
        total = F(0)
        for first in range(0, x.size, 64):
            tile[t] = x[first + t]  # fault
            cuda.syncthreads()
            for k in range(64):
                total += tile[k]
            if right:
                cuda.syncthreads()
        y[t] = total

    return kernel, (1, 64), upto(192, F), zeros(64)


@planted
def two_buffers_that_are_one(right):
    """Double buffering needs one barrier a turn, but two buffers."""

    @cuda.jit
    def kernel(x, y):
        both, t = cuda.shared.array((2, 64), I), cuda.threadIdx.x
        total = 0
        for k in range(4):
            buffer = k % 2 if right else 0
            both[buffer, t] = x[64 * k + t]  # fault
            cuda.syncthreads()
            total += both[buffer, 63 - t]
        y[t] = total

    return kernel, (1, 64), upto(256), zeros(64)


@planted
def dynamic_arrays_that_overlap(right):
    """Each dynamic array starts at the first byte."""

    @cuda.jit
    def kernel(y):
        first = cuda.shared.array(0, F)
        second = cuda.shared.array(0, I)[64:] if right else cuda.shared.array(0, I)
        t = cuda.threadIdx.x
        if t < 64:
            first[t] = 0.5
        else:
            second[t - 64] = t  # fault
        cuda.syncthreads()
        if t < 64:
            y[t] = first[t] + second[63 - t]

    return kernel, (1, 128, 0, 512), zeros(64)


@planted
def a_count_that_is_read_too_early(right):
    @cuda.jit
    def kernel(y):
        count, t = cuda.shared.array(1, I), cuda.threadIdx.x
        if t == 0:
            count[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(count, 0, 2)
        if right:
            cuda.syncthreads()
        y[t] = count[0]  # fault

    return kernel, (1, 64), zeros(64)


@planted
def a_number_that_one_thread_writes_for_all(right):
    @cuda.jit
    def kernel(x, y):
        scale, t = cuda.shared.array(1, F), cuda.threadIdx.x
        if t == 0:
            scale[0] = 1
        cuda.syncthreads()
        if t == 40:
            scale[0] = 3  # fault
        if right:
            cuda.syncthreads()
        y[t] = scale[0] * x[t]  # fault

    return kernel, (1, 96), ones(96), zeros(96)


@planted
def a_scan_in_one_array(right):
    """Hillis and Steele need a barrier between reading and writing, or two arrays."""

    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = x[t]
        cuda.syncthreads()
        step = 1
        while step < 64:
            add = held[t - step] if t >= step else F(0)
            if right:
                cuda.syncthreads()
            held[t] += add  # fault
            cuda.syncthreads()
            step *= 2
        y[t] = held[t]

    return kernel, (1, 64), ones(64), zeros(64)


@planted
def a_barrier_of_the_warp_for_a_block(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = t
        if right:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
        y[t] = held[(t + 32) % 64]  # fault

    return kernel, (1, 64), zeros(64)


@planted
def a_barrier_of_some_blocks(right):
    """Block 1 does not reach the barrier, which is no deadlock, because no thread of it waits."""

    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(64, I), cuda.threadIdx.x
        held[t] = t
        if cuda.blockIdx.x == 0 or right:
            cuda.syncthreads()
        y[cuda.blockIdx.x, t] = held[(t + 5) % 64]  # fault

    return kernel, (2, 64), zeros(2, 64)


@planted
def rows_of_a_block_of_two_dimensions(right):
    @cuda.jit
    def kernel(x, y):
        held = cuda.shared.array((16, 16), F)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        held[i, j] = x[i, j]
        if right:
            cuda.syncthreads()
        if i == 0:
            total = F(0)
            for k in range(16):
                total += held[k, j]  # fault
            y[j] = total

    return kernel, (1, (16, 16)), ones(16, 16), zeros(16)


@planted
def in_a_device_function(right):
    """An error names the line of the function."""

    @cuda.jit(device=True)
    def take(held, k):
        return held[k]  # fault

    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = t
        if right:
            cuda.syncthreads()
        y[t] = take(held, 63 - t)

    return kernel, (1, 64), zeros(64)


@planted
def indices_that_meet(right):
    """t // 2 sends two threads to one element."""

    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(64, I), cuda.threadIdx.x
        held[t if right else t // 2] = t + 1  # fault
        cuda.syncthreads()
        y[t] = held[t // 2]

    return kernel, (1, 64), zeros(64)


@planted
def sums_of_warps(right):
    @cuda.jit
    def kernel(x, y):
        sums, t = cuda.shared.array(4, F), cuda.threadIdx.x
        value = x[t]
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        if t % 32 == 0:
            sums[t // 32] = value  # fault
        if right:
            cuda.syncthreads()
        if t == 0:
            y[0] = sums[0] + sums[1] + sums[2] + sums[3]  # fault

    return kernel, (1, 128), ones(128), zeros(1)


@planted
def the_last_warp_without_barriers(right):
    """What was right before threads of a warp could diverge at any time (Volta): Harris' fifth reduction."""

    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(64, F), cuda.threadIdx.x
        held[t] = x[t] + x[t + 64]
        cuda.syncthreads()
        step = 32
        while step > 0:
            if t < step:
                held[t] += held[t + step]  # fault
            if right:
                cuda.syncwarp()
            step //= 2
        if t == 0:
            y[0] = held[0]

    return kernel, (1, 64), ones(128), zeros(1)


@planted
def a_bitonic_sort(right):
    @cuda.jit
    def kernel(x):
        held, t = cuda.shared.array(64, I), cuda.threadIdx.x
        held[t] = x[t]
        cuda.syncthreads()
        size = 2
        while size <= 64:
            step = size // 2
            while step > 0:
                other = t ^ step
                if other > t:
                    up = (t & size) == 0
                    a, b = held[t], held[other]  # fault
                    if (a > b) == up:
                        held[t], held[other] = b, a  # fault
                if right:
                    cuda.syncthreads()
                step //= 2
            size *= 2
        x[t] = held[t]

    return kernel, (1, 64), upto(64)[::-1].copy()


@planted
def a_queue_that_is_read_while_it_is_filled(right):
    @cuda.jit
    def kernel(x, y):
        queue, count, t = cuda.shared.array(64, I), cuda.shared.array(1, I), cuda.threadIdx.x
        if t == 0:
            count[0] = 0
        cuda.syncthreads()
        if x[t] % 2 == 0:
            queue[cuda.atomic.add(count, 0, 1)] = x[t]
        if right:
            cuda.syncthreads()
        if t < cuda.atomic.add(count, 0, 0):
            y[t] = queue[31 - t]  # fault

    return kernel, (1, 64), upto(64), zeros(64)
