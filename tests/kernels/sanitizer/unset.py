"""Reads of memory that nobody wrote: global and shared memory, and that of malloc. Local arrays of Numba are zero at first."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .planted import B, D, F, I, ones, planted, upto, zeros

planted = planted("uninitialised read", "read before it was written")


@cuda.jit
def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]  # fault


@planted
def an_empty_array(right):
    x = cuda.device_array(32, F)
    if right:
        x.copy_to_device(ones(32))
    return copy, (1, 32), x, zeros(32)


@planted
def the_last_element(right):
    x = cuda.device_array(32, D)
    x[: 32 if right else 31] = 1
    return copy, (1, 32), x, zeros(32)


@planted
def what_a_kernel_has_written_in_part(right):
    @cuda.jit
    def fill(x, n):
        if cuda.grid(1) < n:
            x[cuda.grid(1)] = 1

    x = cuda.device_array(64, I)
    fill[2, 32](x, 64 if right else 63)
    return copy, (2, 32), x, zeros(64)


@planted
def a_sum_without_a_first_value(right):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] += x[i]  # fault

    return kernel, (1, 32), ones(32), cuda.to_device(zeros(32)) if right else cuda.device_array(32, F)


@planted
def an_atomic_sum_without_a_first_value(right):
    @cuda.jit
    def kernel(y):
        cuda.atomic.add(y, 0, 1)  # fault

    return kernel, (2, 32), cuda.to_device(zeros(1)) if right else cuda.device_array(1, F)


@planted
def an_array_like_another(right):
    """device_array_like copies the shape, and not the values."""
    x = ones(32)
    return copy, (1, 32), cuda.to_device(x) if right else cuda.device_array_like(x), zeros(32)


@planted
def the_padding_of_rows(right):
    @cuda.jit
    def kernel(x, y):
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        y[i, j] = x[i, j]  # fault

    x = cuda.device_array((8, 8), F)
    for row in range(8):
        x[row, : 8 if right or row != 5 else 6] = 1
    return kernel, (1, (8, 8)), x, zeros(8, 8)


@planted
def every_second_element(right):
    @cuda.jit
    def fill(x, step):
        i = step * cuda.grid(1)
        if i < x.size:
            x[i] = i

    x = cuda.device_array(32, I)
    fill[1, 32](x, 1 if right else 2)
    return copy, (1, 32), x, zeros(32)


@planted
def a_copy_of_what_was_never_set(right):
    """A copy on the card copies that nobody wrote the values."""
    x, y = cuda.device_array(32, F), cuda.device_array(32, F)
    x[: 32 if right else 16] = 1
    y.copy_to_device(x)
    return copy, (1, 32), y, zeros(32)


@planted
def one_byte_of_a_number(right):
    x = cuda.device_array(16, B)
    x[: 16 if right else 15] = 1
    return copy, (1, 4), x.view(F), zeros(4)


@planted
def the_half_of_a_complex_number(right):
    @cuda.jit
    def kernel(x, y):
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x].imag  # fault

    parts = cuda.device_array(16, F)
    parts[: 16 if right else 15] = 1
    return kernel, (1, 8), parts.view(np.complex64), zeros(8)


@planted
def a_field_of_a_record(right):
    record = np.dtype([("a", F), ("b", F)], align=True)

    @cuda.jit
    def kernel(x, both, y):
        t = cuda.threadIdx.x
        x[t].a = t
        if both:
            x[t].b = 2 * t
        y[t] = x[t].b  # fault

    return kernel, (1, 8), cuda.device_array(8, record), right, zeros(8)


@planted
def a_shared_array(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(33, F), cuda.threadIdx.x
        held[t] = t
        if right and t == 0:
            held[32] = 0
        cuda.syncthreads()
        y[t] = held[t + 1]  # fault

    return kernel, (1, 32), zeros(32)


@planted
def a_histogram_that_is_not_cleared(right):
    @cuda.jit
    def kernel(x, y):
        held, t = cuda.shared.array(8, I), cuda.threadIdx.x
        if right and t < 8:
            held[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(held, x[t], 1)  # fault
        cuda.syncthreads()
        if t < 8:
            y[t] = held[t]

    return kernel, (1, 64), upto(64) % 8, zeros(8)


@planted
def a_halo_that_nobody_loads(right):
    @cuda.jit
    def kernel(x, y):
        held, t, i = cuda.shared.array(34, F), cuda.threadIdx.x, cuda.grid(1)
        held[t + 1] = x[i]
        if t == 0:
            held[0] = x[i - 1] if i > 0 else F(0)
        if right and t == 31:
            held[33] = x[i + 1] if i + 1 < x.size else F(0)
        cuda.syncthreads()
        y[i] = held[t] + held[t + 2]  # fault

    return kernel, (2, 32), ones(64), zeros(64)


@planted
def the_tile_at_the_edge(right):
    """The guard of the loads leaves out what the sum of the last tile reads."""

    @cuda.jit
    def kernel(x, y):
        tile, t = cuda.shared.array(32, F), cuda.threadIdx.x
        total = F(0)
        i = 32 * cuda.blockIdx.x + t
        if i < x.size:
            tile[t] = x[i]
        elif right:
            tile[t] = 0
        cuda.syncthreads()
        for k in range(32):
            total += tile[k]  # fault
        y[i] = total

    return kernel, (2, 32), ones(50), zeros(64)


@planted
def dynamic_shared_memory(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(0, F), cuda.threadIdx.x
        if t < (32 if right else 31):
            held[t] = t
        cuda.syncthreads()
        y[t] = held[31 - t]  # fault

    return kernel, (1, 32, 0, 128), zeros(32)


@planted
def sums_of_warps_that_are_not_there(right):
    """The first warp reads a sum for each of 32 warps, and the block has 4."""

    @cuda.jit
    def kernel(y):
        sums, t = cuda.shared.array(32, F), cuda.threadIdx.x
        if t % 32 == 0:
            sums[t // 32] = t
        cuda.syncthreads()
        if t < (4 if right else 32):
            y[t] = sums[t]  # fault

    return kernel, (1, 128), zeros(32)


@planted
def the_memory_of_another_block(right):
    """Shared memory of a block is not that of the block before it."""

    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(32, I), cuda.threadIdx.x
        if cuda.blockIdx.x == 0 or right:
            held[t] = t
        cuda.syncthreads()
        y[cuda.blockIdx.x, t] = held[31 - t]  # fault

    return kernel, (2, 32), zeros(2, 32)


@planted
def memory_of_malloc(right):
    from .allocated import free, malloc

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(8)
        own[0] = t
        if right:
            own[1] = t
        y[t] = own[0] + own[1]  # fault
        free(own)

    return kernel, (1, 8), zeros(8)


@planted
def a_column_that_the_loop_leaves_out(right):
    @cuda.jit
    def kernel(x, first, y):
        tile = cuda.shared.array((8, 8), F)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        if j >= first:
            tile[i, j] = x[i, j]
        cuda.syncthreads()
        y[i, j] = tile[j, i]  # fault

    return kernel, (1, (8, 8)), ones(8, 8), 0 if right else 1, zeros(8, 8)


@planted
def memory_that_was_given_back_and_taken_again(right):
    """The values of the array that was there before are not those of the new one."""
    x = cuda.to_device(ones(32))
    del x
    cuda.current_context().memory_manager.deallocations.clear()
    x = cuda.device_array(32, F)
    if right:
        x[:] = 2
    return copy, (1, 32), x, zeros(32)
