"""Kernels that do not end: threads that wait for what nobody does, and loops without an end."""

from numbanet_kernels.runtime.declare import cuda

from .planted import F, I, ones, planted, upto, zeros

planted = planted("deadlock", "the kernel does not end")


@cuda.jit(device=True)
def peek(x, k):
    return cuda.atomic.add(x, k, 0)


@planted
def a_flag_that_nobody_sets(right):
    @cuda.jit
    def kernel(flag):
        if cuda.blockIdx.x == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:  # fault
                pass
        elif right:
            cuda.atomic.exch(flag, 0, 1)

    return kernel, (2, 1), zeros(1, dtype=I)


@planted
def a_lock_that_is_not_given_back(right):
    @cuda.jit
    def kernel(lock, y):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:  # fault
            pass
        cuda.threadfence()
        y[0] += 1
        cuda.threadfence()
        if right:
            cuda.atomic.exch(lock, 0, 0)

    return kernel, (3, 1), zeros(1, dtype=I), zeros(1)


@planted
def a_lock_that_is_taken_twice(right):
    @cuda.jit
    def kernel(lock, y):
        for _ in range(1 if right else 2):
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:  # fault
                pass
        cuda.threadfence()
        y[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    return kernel, (2, 1), zeros(1, dtype=I), zeros(1)


@planted
def two_locks_in_different_orders(right):
    """Both blocks hold one lock, and wait for that of the other."""

    @cuda.jit
    def kernel(locks, met):
        first = 0 if right else cuda.blockIdx.x
        while cuda.atomic.cas(locks, first, 0, 1) != 0:  # fault
            pass
        if not right:
            cuda.atomic.add(met, 0, 1)
            while cuda.atomic.add(met, 0, 0) < 2:
                pass
        while cuda.atomic.cas(locks, 1 - first, 0, 1) != 0:  # fault
            pass
        cuda.atomic.exch(locks, 1 - first, 0)
        cuda.atomic.exch(locks, first, 0)

    return kernel, (2, 1), zeros(2, dtype=I), zeros(1, dtype=I)


@planted
def one_more_than_there_are(right):
    @cuda.jit
    def kernel(count):
        cuda.atomic.add(count, 0, 1)
        while cuda.atomic.add(count, 0, 0) < cuda.gridDim.x + (0 if right else 1):  # fault
            pass

    return kernel, (4, 1), zeros(1, dtype=I)


@planted
def a_ticket_that_is_never_served(right):
    @cuda.jit
    def kernel(ticket, serving, y):
        mine = cuda.atomic.add(ticket, 0, 1)
        while cuda.atomic.add(serving, 0, 0) != mine:  # fault
            pass
        cuda.threadfence()
        y[0] += 1
        cuda.threadfence()
        if right or mine != 1:
            cuda.atomic.add(serving, 0, 1)

    return kernel, (4, 1), zeros(1, dtype=I), zeros(1, dtype=I), zeros(1)


@planted
def a_chain_that_is_a_circle(right):
    @cuda.jit
    def kernel(ready):
        b = cuda.blockIdx.x
        if b > 0 or not right:
            while cuda.atomic.add(ready, (b - 1) % 4, 0) == 0:  # fault
                pass
        cuda.atomic.exch(ready, b, 1)

    return kernel, (4, 1), zeros(4, dtype=I)


@planted
def a_flag_in_shared_memory(right):
    @cuda.jit
    def kernel(y):
        flag, t = cuda.shared.array(1, I), cuda.threadIdx.x
        if t == 0:
            flag[0] = 0
        cuda.syncthreads()
        if t == 32:
            cuda.atomic.exch(flag, 0, 1 if right else 2)
        while cuda.atomic.add(flag, 0, 0) != 1:  # fault
            pass
        y[t] = 1

    return kernel, (1, 64), zeros(64)


@planted
def a_number_that_stays_zero(right):
    @cuda.jit
    def kernel(x, y):
        n = x[0]
        steps = 0
        while n < 100:  # fault
            n *= 2  # fault
            steps += 1  # fault
        y[0] = steps

    return kernel, (1, 1), upto(1) + (1 if right else 0), zeros(1)


@planted
def a_swap_with_an_old_value(right):
    """The loop of a compare and swap has to read the value again."""

    @cuda.jit
    def kernel(x):
        old = cuda.atomic.add(x, 0, 0)
        while True:
            seen = cuda.atomic.cas(x, 0, old, old + 2)  # fault
            if seen == old:  # fault
                break
            if right:
                old = seen

    return kernel, (4, 1), zeros(1, dtype=I)


@planted
def a_semaphore_that_starts_at_zero(right):
    @cuda.jit
    def kernel(free):
        while True:
            left = cuda.atomic.add(free, 0, 0)  # fault
            if left > 0 and cuda.atomic.cas(free, 0, left, left - 1) == left:  # fault
                break
        cuda.atomic.add(free, 0, 1)

    return kernel, (4, 1), zeros(1, dtype=I) + I(2 if right else 0)


@planted
def a_flag_that_is_set_behind_a_barrier(right):
    """Thread 0 waits for thread 40, which waits at a barrier for thread 0."""

    @cuda.jit
    def kernel(flag):
        t = cuda.threadIdx.x
        if right:
            cuda.syncthreads()
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:  # fault
                pass
        if not right:
            cuda.syncthreads()
        if t == 40:
            cuda.atomic.exch(flag, 0, 1)

    return kernel, (1, 64), zeros(1, dtype=I)


@planted
def both_wait_for_the_other(right):
    @cuda.jit
    def kernel(flags):
        b = cuda.blockIdx.x
        if right:
            cuda.atomic.exch(flags, b, 1)
        while cuda.atomic.add(flags, 1 - b, 0) == 0:  # fault
            pass
        cuda.atomic.exch(flags, b, 1)

    return kernel, (2, 1), zeros(2, dtype=I)


@planted
def a_sum_of_floats_that_misses_its_end(right):
    @cuda.jit
    def kernel(x, y):
        total, steps = F(0), 0
        while (total < x[1]) if right else (total != x[1]):  # fault
            total += x[0]  # fault
            steps += 1  # fault
        y[0] = steps

    return kernel, (1, 1), (ones(2) * F(0.1)) * upto(2, F) * 9 + F(0.1), zeros(1)


@planted
def a_queue_that_nobody_fills(right):
    @cuda.jit
    def kernel(tail, queue, y):
        b = cuda.blockIdx.x
        if b > 0:
            while cuda.atomic.add(tail, 0, 0) < b:  # fault
                pass
            cuda.threadfence()
            y[b] = queue[b - 1]
        else:
            for k in range(3 if right else 2):
                queue[k] = k
                cuda.threadfence()
                cuda.atomic.add(tail, 0, 1)

    return kernel, (4, 1), zeros(1, dtype=I), zeros(3), zeros(4)


@planted
def a_barrier_of_the_grid_by_hand(right):
    """Each block adds one; if every thread waits for as many as there are threads, nobody goes on."""

    @cuda.jit
    def kernel(count, x):
        t = cuda.threadIdx.x
        x[cuda.grid(1)] = 1
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
            while cuda.atomic.add(count, 0, 0) < (cuda.gridDim.x if right else cuda.gridsize(1)):  # fault
                pass
        cuda.syncthreads()

    return kernel, (3, 32), zeros(1, dtype=I), zeros(96)


@planted
def a_list_that_leads_back(right):
    @cuda.jit
    def kernel(following, y):
        k, n = 0, 0
        while k >= 0:  # fault
            k = following[k]  # fault
            n += 1  # fault
        y[cuda.threadIdx.x] = n

    following = upto(16) + 1
    following[15] = -1 if right else 4
    return kernel, (1, 8), following, zeros(8)


@planted
def a_root_that_is_its_own_parent(right):
    """Union-find: the root of a tree is its own parent."""

    @cuda.jit
    def kernel(parent, y):
        t = cuda.threadIdx.x
        k = t
        while parent[k] != k if right else parent[k] >= 0:  # fault
            k = parent[k]  # fault
        y[t] = k

    return kernel, (1, 16), upto(16) // 2, zeros(16)


@planted
def a_search_that_halves_nothing(right):
    @cuda.jit
    def kernel(x, y):
        low, high, t = 0, x.size, cuda.threadIdx.x
        while low < high:  # fault
            middle = (low + high) // 2  # fault
            if x[middle] < t:  # fault
                low = middle + 1 if right else middle  # fault
            else:
                high = middle
        y[t] = low

    return kernel, (1, 16), 3 * upto(16), zeros(16)


@planted
def a_worker_that_sees_no_end(right):
    """Workers take jobs until the counter says that there is none; here one job is put back again and again."""

    @cuda.jit
    def kernel(jobs, done):
        while True:
            k = cuda.atomic.sub(jobs, 0, 1)  # fault
            if k <= 0:  # fault
                break
            cuda.atomic.add(done, 0, 1)  # fault
            if not right:
                cuda.atomic.add(jobs, 0, 1)  # fault

    return kernel, (2, 1), zeros(1, dtype=I) + I(5), zeros(1, dtype=I)
