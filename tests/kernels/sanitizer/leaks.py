"""Memory that the program has to free, and does not: malloc of kernels, and functions of the driver that are called by hand."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .allocated import address_of, free, free_at, malloc
from .planted import L, ones, planted, upto, zeros

planted = planted("leak", "leak: ")


@planted
def of_each_thread(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(16)  # fault
        own[0] = t
        y[t] = own[0]
        if right:
            free(own)

    return kernel, (1, 32), zeros(32)


@planted
def of_one_thread(right):
    @cuda.jit
    def kernel(y):
        own = malloc(16)  # fault
        own[0] = 1
        y[cuda.grid(1)] = own[0]
        if right or cuda.grid(1) != 20:
            free(own)

    return kernel, (2, 16), zeros(32)


@planted
def on_an_early_return(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        own = malloc(16)  # fault
        own[0] = x[t]
        if own[0] > 5:
            if right:
                free(own)
            return
        y[t] = own[0]
        free(own)

    return kernel, (1, 8), upto(8), zeros(8)


@planted
def the_first_of_two(right):
    """The pointer is assigned again, and the first memory is lost."""

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(16)  # fault
        own[0] = t
        y[t] = own[0]
        if right:
            free(own)
        own = malloc(32)
        own[0] = t
        y[t] += own[0]
        free(own)

    return kernel, (1, 8), zeros(8)


@planted
def in_a_loop(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        for k in range(4):
            own = malloc(16)  # fault
            own[0] = k
            y[t] += own[0]
            if right or k != 2:
                free(own)

    return kernel, (1, 8), zeros(8)


@planted
def of_the_leader_of_a_block(right):
    @cuda.jit
    def kernel(y):
        place, t = cuda.shared.array(1, L), cuda.threadIdx.x
        if t == 0:
            place[0] = address_of(64)  # fault
        cuda.syncthreads()
        y[cuda.grid(1)] = place[0] > 0
        cuda.syncthreads()
        if t == 0 and (right or cuda.blockIdx.x == 0):
            free_at(place[0])

    return kernel, (2, 32), zeros(64)


@planted
def a_launch_that_was_meant_to_free(right):
    @cuda.jit
    def make(places):
        places[cuda.grid(1)] = address_of(8)  # fault

    @cuda.jit
    def drop(places):
        if cuda.grid(1) < places.size:
            free_at(places[cuda.grid(1)])

    places = cuda.to_device(zeros(32, dtype=L))
    make[1, 32](places)
    drop[2 if right else 1, 16](places)


@planted
def a_list_of_which_the_head_is_freed(right):
    @cuda.jit
    def kernel(places, y):
        t = cuda.threadIdx.x
        for k in range(3):
            places[t, k] = address_of(16)  # fault
        for k in range(3 if right else 1):
            free_at(places[t, k])
        y[t] = 1

    return kernel, (1, 4), zeros(4, 3, dtype=L), zeros(4)


@planted
def where_the_data_says_so(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        own = address_of(8)  # fault
        y[t] = own % 8
        if x[t] >= 0 or right:
            free_at(own)

    return kernel, (1, 8), upto(8) - 3, zeros(8)


@planted
def a_null_pointer_is_freed_instead(right):
    """free of a null pointer does nothing."""

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = address_of(8)  # fault
        y[t] = own % 8
        if not right:
            own -= own
        free_at(own)

    return kernel, (1, 8), zeros(8)


@planted
def in_a_function_that_returns_it(right):
    @cuda.jit(device=True)
    def filled(value):
        own = malloc(16)  # fault
        own[0] = value
        return own

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = filled(t)
        y[t] = own[0]
        if right:
            free(own)

    return kernel, (1, 8), zeros(8)


@planted
def after_some_blocks(right):
    """Only as many blocks free as the loop over the places expects."""

    @cuda.jit
    def kernel(places, n):
        b = cuda.blockIdx.x
        places[b] = address_of(32)  # fault
        if b < n:
            free_at(places[b])

    return kernel, (6, 1), zeros(6, dtype=L), 6 if right else 4


@planted
def one_of_two_arrays_of_a_thread(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        a = malloc(8)
        b = malloc(8)  # fault
        a[0], b[0] = t, 2 * t
        y[t] = a[0] + b[0]
        free(a)
        if right:
            free(b)

    return kernel, (1, 8), zeros(8)


@planted
def overwritten_by_the_next_launch(right):
    @cuda.jit
    def kernel(places):
        t = cuda.threadIdx.x
        if right and places[t]:
            free_at(places[t])
        places[t] = address_of(16)  # fault

    @cuda.jit
    def drop(places):
        free_at(places[cuda.threadIdx.x])

    places = cuda.to_device(zeros(8, dtype=L))
    kernel[1, 8](places)
    kernel[1, 8](places)
    drop[1, 8](places)


@planted
def of_a_lane_that_lost_its_pointer_to_another(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = address_of(16)  # fault
        if not right:
            own = np.uint64(cuda.shfl_sync(0xFFFFFFFF, np.int64(own), 0))
        y[t] = 1
        if t == 0 or right:
            free_at(own)

    return kernel, (1, 32), zeros(32)


@planted
def memory_of_the_driver(right):
    from cuda.bindings import driver

    memory = driver.cuMemAlloc(128)[1]  # fault
    driver.cuMemsetD8(memory, 0, 128)
    if right:
        driver.cuMemFree(memory)


@planted
def managed_memory_of_the_driver(right):
    from cuda.bindings import driver

    memory = driver.cuMemAllocManaged(128, 1)[1]  # fault
    if right:
        driver.cuMemFree(memory)


@planted
def page_locked_memory_of_the_driver(right):
    from cuda.bindings import driver

    memory = driver.cuMemHostAlloc(128, 0)[1]  # fault
    if right:
        driver.cuMemFreeHost(memory)


@planted
def an_array_that_stays_registered(right):
    from cuda.bindings import driver

    x = ones(64)
    driver.cuMemHostRegister(x.ctypes.data, x.nbytes, 0)  # fault
    if right:
        driver.cuMemHostUnregister(x.ctypes.data)


@planted
def one_of_several_of_the_driver(right):
    from cuda.bindings import driver

    made = [driver.cuMemAlloc(64)[1] for _ in range(3)]  # fault
    for memory in made[: 3 if right else 2]:
        driver.cuMemFree(memory)


@planted
def an_exception_that_skips_the_free(right):
    from cuda.bindings import driver

    memory = driver.cuMemAlloc(64)[1]  # fault
    try:
        np.zeros(3)[5 if not right else 2] += 1
        driver.cuMemFree(memory)
    except IndexError:
        pass
