"""Use of memory after it was freed, and memory that is freed twice."""

from numbanet_kernels.runtime.declare import cuda

from .allocated import address_of, free, free_at, malloc
from .planted import F, I, L, ones, planted, upto, zeros

planted = planted("use after free", "use after free: byte|free of 0x")


def give_back(array):
    """Free the memory of an array at once."""
    array.gpu_data._mem.free()
    cuda.current_context().memory_manager.deallocations.clear()


@cuda.jit
def fill(x):
    x[cuda.grid(1)] = 1  # fault


@cuda.jit
def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]  # fault


@planted
def written_after_it_was_freed(right):
    x = cuda.to_device(zeros(32))
    if not right:
        give_back(x)
    return fill, (1, 32), x


@planted
def read_after_it_was_freed(right):
    x = cuda.to_device(ones(32))
    if not right:
        give_back(x)
    return copy, (1, 32), x, zeros(32)


@planted
def a_slice_of_what_was_freed(right):
    x = cuda.to_device(ones(64))
    part = x[32:]
    if not right:
        give_back(x)
    return copy, (1, 32), part, zeros(32)


@planted
def memory_of_the_driver(right):
    from cuda.bindings import driver

    memory = driver.cuMemAlloc(128)[1]
    driver.cuMemsetD8(memory, 0, 128)
    interface = {"shape": (32,), "typestr": "<f4", "data": (int(memory), False), "version": 3, "strides": None}
    x = cuda.from_cuda_array_interface(interface)
    if not right:
        driver.cuMemFree(memory)
    fill[1, 32](x)
    if right:
        driver.cuMemFree(memory)


@planted
def after_the_device_was_reset(right):
    x = cuda.to_device(zeros(32))
    address = x.__cuda_array_interface__
    if not right:
        cuda.close()
        x = cuda.from_cuda_array_interface(address)
    return fill, (1, 32), x


@planted
def atomics_after_it_was_freed(right):
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, 0, 1)  # fault

    x = cuda.to_device(zeros(1))
    if not right:
        give_back(x)
    return kernel, (1, 32), x


@planted
def read_after_free(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(16)
        own[0] = t
        if not right:
            free(own)
        y[t] = own[0]  # fault
        if right:
            free(own)

    return kernel, (1, 8), zeros(8)


@planted
def written_after_free(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(16)
        own[0] = t
        y[t] = own[0]
        if right:
            own[1] = t
        free(own)
        if not right:
            own[1] = t  # fault

    return kernel, (1, 8), zeros(8)


@planted
def freed_twice(right):
    @cuda.jit
    def kernel(y):
        own = malloc(16)
        own[0] = 1
        y[cuda.threadIdx.x] = own[0]
        free(own)
        if not right:
            free(own)  # fault

    return kernel, (1, 8), zeros(8)


@planted
def freed_by_every_thread(right):
    """One thread allocates for its block; one alone may free."""

    @cuda.jit
    def kernel(y):
        place, t = cuda.shared.array(1, L), cuda.threadIdx.x
        if t == 0:
            place[0] = address_of(64)
        cuda.syncthreads()
        y[t] = place[0] > 0
        if t == 0 or not right:
            free_at(place[0])  # fault

    return kernel, (1, 32), zeros(32)


@planted
def freed_in_the_middle(right):
    """free wants the address that malloc has returned."""

    @cuda.jit
    def kernel(y):
        own = address_of(64)
        y[cuda.threadIdx.x] = own % 16
        free_at(own if right else own + 16)  # fault
        if not right:
            free_at(own)

    return kernel, (1, 8), zeros(8)


@planted
def freed_in_a_turn_of_a_loop(right):
    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(16)
        own[0] = 0
        for k in range(4):
            own[0] += k  # fault
            if k == (3 if right else 2):
                y[t] = own[0]
                free(own)

    return kernel, (1, 8), zeros(8)


@planted
def freed_in_an_earlier_launch(right):
    @cuda.jit
    def make(places, keep):
        t = cuda.threadIdx.x
        places[t] = address_of(8)
        if not keep:
            free_at(places[t])

    @cuda.jit
    def drop(places):
        free_at(places[cuda.threadIdx.x])  # fault

    places = cuda.to_device(zeros(8, dtype=L))
    make[1, 8](places, right)
    return drop, (1, 8), places


@planted
def freed_by_another_thread_first(right):
    @cuda.jit
    def kernel(places, y):
        t = cuda.threadIdx.x
        places[t] = address_of(16)
        cuda.syncthreads()
        free_at(places[t ^ 1])
        cuda.syncthreads()
        if not right:
            free_at(places[t])  # fault
        y[t] = 1

    return kernel, (1, 32), zeros(32, dtype=L), zeros(32)


@planted
def a_pointer_that_malloc_has_not_returned(right):
    @cuda.jit
    def kernel(places, y):
        t = cuda.threadIdx.x
        if t % 2 == 0:
            places[t] = address_of(16)
        if t % 2 == 0 or not right:
            free_at(places[t])  # fault
        y[t] = 1

    return kernel, (1, 8), zeros(8, dtype=L) + L(4096), zeros(8)


@planted
def the_old_memory_after_it_has_grown(right):
    """A larger block of memory takes the place of the first one, which is freed."""

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        old = malloc(8)
        old[0] = t
        new = malloc(64)
        new[0] = old[0]
        free(old)
        y[t] = new[0] if right else old[0]  # fault
        free(new)

    return kernel, (1, 8), zeros(8)


@planted
def on_a_path_that_was_freed(right):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        own = malloc(8)
        own[0] = x[t]
        failed = own[0] > 5
        if failed and not right:
            free(own)
        y[t] = own[0]  # fault
        if right or not failed:
            free(own)

    return kernel, (1, 8), upto(8, F), zeros(8)


@planted
def in_a_function_that_frees(right):
    @cuda.jit(device=True)
    def taken(own):
        value = own[0]
        free(own)
        return value

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(8)
        own[0] = t
        y[t] = taken(own)
        if not right:
            y[t] += own[0]  # fault

    return kernel, (1, 8), zeros(8)


@planted
def page_locked_memory(right):
    """Mapped memory of the host that was given back."""
    x = cuda.mapped_array(32, F)
    x[:] = 0
    view = cuda.from_cuda_array_interface(x.__cuda_array_interface__)
    if not right:
        del x
        cuda.current_context().memory_manager.deallocations.clear()
    return fill, (1, 32), view


@planted
def an_array_of_a_loop(right):
    """The interface of an array does not keep it."""
    kept, found = [], []
    for _ in range(2):
        x = cuda.to_device(zeros(32, dtype=I))
        found.append(x.__cuda_array_interface__)
        if right:
            kept.append(x)
    x = None
    cuda.current_context().memory_manager.deallocations.clear()
    fill[1, 32](cuda.from_cuda_array_interface(found[0]))
    kept.clear()
