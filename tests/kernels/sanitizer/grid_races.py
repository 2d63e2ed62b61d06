"""Races in global memory between threads of different blocks."""

from numbanet_kernels.runtime.declare import cuda

from .planted import D, F, I, ones, planted, upto, zeros

planted = planted("race across blocks", "global race: .*(several blocks|of block)")


@planted
def a_sum_of_all_blocks(right):
    @cuda.jit
    def kernel(y):
        if right:
            cuda.atomic.add(y, 0, 1)
        else:
            y[0] += 1  # fault

    return kernel, (4, 1), zeros(1)


@planted
def halos_in_place(right):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        left, here = x[i - 1] if i > 0 else F(0), x[i]  # fault
        cuda.syncthreads()
        (y if right else x)[i] = left + here  # fault

    return kernel, (4, 32), upto(128, F) + 1, zeros(128)


@planted
def all_partial_sums_by_the_first_block(right):
    """The first block runs when it likes; a launch of its own would be ordered."""

    @cuda.jit
    def kernel(x, parts, y):
        i = cuda.grid(1)
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(parts, cuda.blockIdx.x, x[i])
        cuda.syncthreads()
        if i == cuda.gridsize(1) - 1 and not right:
            for k in range(cuda.gridDim.x):
                y[0] += parts[k]  # fault

    return kernel, (4, 32), ones(128), zeros(4), zeros(1)


@planted
def the_last_block_without_a_fence(right):
    @cuda.jit
    def kernel(x, parts, count, y):
        b = cuda.blockIdx.x
        parts[b] = x[b]  # fault
        if right:
            cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for k in range(cuda.gridDim.x):
                y[0] += parts[k]  # fault

    return kernel, (8, 1), ones(8), zeros(8), zeros(1, dtype=I), zeros(1)


@planted
def a_fence_before_what_it_should_follow(right):
    @cuda.jit
    def kernel(x, parts, count, y):
        b = cuda.blockIdx.x
        if not right:
            cuda.threadfence()
        parts[b] = x[b]
        if right:
            cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for k in range(cuda.gridDim.x):
                y[0] += parts[k]  # fault

    return kernel, (8, 1), ones(8), zeros(8), zeros(1, dtype=I), zeros(1)


@planted
def a_fence_of_the_block(right):
    @cuda.jit
    def kernel(x, parts, count, y):
        b = cuda.blockIdx.x
        parts[b] = x[b]
        if right:
            cuda.threadfence()
        else:
            cuda.threadfence_block()
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for k in range(cuda.gridDim.x):
                y[0] += parts[k]  # fault

    return kernel, (8, 1), ones(8), zeros(8), zeros(1, dtype=I), zeros(1)


@planted
def a_fence_of_one_thread_for_all_of_its_block(right):
    """A barrier must be between what the others write and the fence."""

    @cuda.jit
    def kernel(parts, count, y):
        t, b, last = cuda.threadIdx.x, cuda.blockIdx.x, cuda.shared.array(1, I)
        parts[b, t] = t
        if right:
            cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.add(count, 0, 1)
        cuda.syncthreads()
        if last[0] == cuda.gridDim.x - 1:
            for k in range(cuda.gridDim.x):
                y[t] += parts[k, t]  # fault

    return kernel, (4, 64), zeros(4, 64), zeros(1, dtype=I), zeros(64)


@planted
def a_fence_and_another_counter(right):
    @cuda.jit
    def kernel(x, ready):
        if cuda.blockIdx.x == 0:
            x[0] = 7  # fault
            cuda.threadfence()
            cuda.atomic.exch(ready, 0 if right else 1, 1)
        else:
            seen = cuda.atomic.add(ready, 0, 0)
            cuda.threadfence()
            if seen == 1 or not right:
                x[1] = x[0]  # fault

    return kernel, (2, 1), zeros(2), zeros(2, dtype=I)


@planted
def a_histogram_of_blocks(right):
    @cuda.jit
    def kernel(x, y):
        t, own = cuda.threadIdx.x, cuda.shared.array(8, I)
        if t < 8:
            own[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(own, x[cuda.grid(1)], 1)
        cuda.syncthreads()
        if t < 8:
            if right:
                cuda.atomic.add(y, t, own[t])
            else:
                y[t] += own[t]  # fault

    return kernel, (4, 32), upto(128) % 8, zeros(8, dtype=I)


@planted
def each_block_writes_its_number(right):
    @cuda.jit
    def kernel(y):
        if not right or cuda.blockIdx.x == cuda.gridDim.x - 1:
            y[0] = cuda.blockIdx.x + 1  # fault

    return kernel, (3, 1), zeros(1)


@planted
def blocks_that_overlap_by_one(right):
    @cuda.jit
    def kernel(y):
        width = cuda.blockDim.x
        i = cuda.blockIdx.x * (width if right else width - 1) + cuda.threadIdx.x
        y[i] = cuda.blockIdx.x + 1  # fault

    return kernel, (3, 32), zeros(96)


@planted
def a_stride_of_the_block_in_place_of_the_grid(right):
    @cuda.jit
    def kernel(y):
        for i in range(cuda.grid(1), y.size, cuda.gridsize(1) if right else cuda.blockDim.x):
            y[i] += 1  # fault

    return kernel, (4, 32), zeros(256, dtype=D)


@planted
def tiles_that_overlap(right):
    @cuda.jit
    def kernel(y):
        i = cuda.blockIdx.y * (8 if right else 7) + cuda.threadIdx.y
        j = cuda.blockIdx.x * 8 + cuda.threadIdx.x
        y[i, j] = cuda.blockIdx.y + 1  # fault

    return kernel, ((2, 2), (8, 8)), zeros(16, 16)


@planted
def no_barrier_of_the_grid(right):
    @cuda.jit
    def kernel(x, y):
        grid, i = cuda.cg.this_grid(), cuda.grid(1)
        x[i] = i
        if right:
            grid.sync()
        y[i] = x[x.size - 1 - i]  # fault

    return kernel, (4, 32), zeros(128), zeros(128)


@planted
def a_lock_without_fences(right):
    @cuda.jit
    def kernel(lock, y):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        if right:
            cuda.threadfence()
        y[0] += 1  # fault
        if right:
            cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    return kernel, (6, 1), zeros(1, dtype=I), zeros(1)


@planted
def two_locks_for_one_number(right):
    @cuda.jit
    def kernel(locks, y):
        k = 0 if right else cuda.blockIdx.x % 2
        while cuda.atomic.cas(locks, k, 0, 1) != 0:
            pass
        cuda.threadfence()
        y[0] += 1  # fault
        cuda.threadfence()
        cuda.atomic.exch(locks, k, 0)

    return kernel, (4, 1), zeros(2, dtype=I), zeros(1)


@planted
def cleared_while_others_add(right):
    @cuda.jit
    def kernel(y):
        if cuda.blockIdx.x == 0 and not right:
            y[0] = 0  # fault
        cuda.atomic.add(y, 0, 1)  # fault

    return kernel, (4, 1), ones(1)


@planted
def a_largest_of_blocks(right):
    @cuda.jit
    def kernel(x, y):
        value = x[cuda.blockIdx.x]
        if right:
            cuda.atomic.max(y, 0, value)
        elif value > y[0]:
            y[0] = value  # fault

    return kernel, (8, 1), upto(8), zeros(1, dtype=I)


@planted
def sums_that_blocks_carry_on(right):
    """Each block adds what the one before it has left, if that one has already said so."""

    @cuda.jit
    def kernel(x, total, ready):
        b = cuda.blockIdx.x
        if right and b > 0:
            while cuda.atomic.add(ready, b - 1, 0) == 0:
                pass
            cuda.threadfence()
        total[b] = x[b] + (total[b - 1] if b > 0 else F(0))  # fault
        cuda.threadfence()
        cuda.atomic.exch(ready, b, 1)

    return kernel, (6, 1), ones(6), zeros(6), zeros(6, dtype=I)


@planted
def a_product_whose_sum_is_split(right):
    @cuda.jit
    def kernel(a, x, y):
        row, part = cuda.threadIdx.x, cuda.blockIdx.x
        total = F(0)
        for k in range(8 * part, 8 * part + 8):
            total += a[row, k] * x[k]
        if right:
            cuda.atomic.add(y, row, total)
        else:
            y[row] += total  # fault

    return kernel, (4, 16), ones(16, 32), ones(32), zeros(16)


@planted
def transposed_by_blocks_in_place(right):
    @cuda.jit
    def kernel(x, y):
        i, j = cuda.grid(2)
        (y if right else x)[i, j] = x[j, i]  # fault

    return kernel, ((8, 8), (1, 1)), upto(64, F).reshape(8, 8), zeros(8, 8)


@planted
def a_queue_with_a_plain_head(right):
    @cuda.jit
    def kernel(queue, head):
        if right:
            k = cuda.atomic.add(head, 0, 1)
        else:
            k = head[0]  # fault
            head[0] = k + 1  # fault
        queue[k] = cuda.blockIdx.x

    return kernel, (5, 1), zeros(5, dtype=I), zeros(1, dtype=I)


@planted
def a_counter_that_the_last_block_may_reset(right):
    """The last block to come may set the counter to 0 for the next launch, another one may not."""

    @cuda.jit
    def kernel(count, y):
        b = cuda.blockIdx.x
        y[b] = b
        cuda.threadfence()
        k = cuda.atomic.add(count, 0, 1)  # fault
        if k == (cuda.gridDim.x - 1 if right else 1):
            count[0] = 0  # fault

    return kernel, (4, 1), zeros(1, dtype=I), zeros(4)
