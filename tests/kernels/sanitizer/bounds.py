"""Accesses out of bounds: of arrays, slices, shared and local arrays, below and above, by an element or a byte."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .planted import B, D, F, I, ones, planted, upto, zeros

planted = planted("out of bounds", "out of bounds: ")


@planted
def one_thread_too_many(right):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size or (i == x.size and not right):
            x[i] = i  # fault

    return kernel, (2, 32), zeros(50)


@planted
def one_byte(right):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size + (0 if right else 1):
            x[i] = 7  # fault

    return kernel, (1, 128), zeros(101, dtype=B)


@planted
def read_beyond_the_end(right):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i < y.size - (1 if right else 0):
            y[i] = x[i + 1] - x[i]  # fault

    return kernel, (1, 64), upto(64, D), zeros(64)


@planted
def read_before_the_start(right):
    """An index that is unsigned, or not negative for all that is known, does not wrap around."""

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i > 0 or not right:
            y[i] = x[np.uint64(i) - np.uint64(1)]  # fault

    return kernel, (1, 32), upto(32, F), zeros(32)


@planted
def a_negative_index_beyond_wrapping(right):
    """Index -1 is the last element, and index -n - 1 is none."""

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[-1 - i - (0 if right else 1)]  # fault

    return kernel, (1, 32), upto(32, F), zeros(32)


@planted
def a_row_too_many(right):
    @cuda.jit
    def kernel(x):
        i, j = cuda.grid(2)
        if i < x.shape[0] + (0 if right else 1) and j < x.shape[1]:
            x[i, j] = 1  # fault

    return kernel, ((2, 2), (8, 8)), zeros(12, 9)


@planted
def rows_and_columns_exchanged(right):
    @cuda.jit
    def kernel(x):
        i, j = cuda.grid(2)
        if (i < x.shape[0] and j < x.shape[1]) if right else (i < x.shape[1] and j < x.shape[0]):
            x[i, j] = 1  # fault

    return kernel, ((2, 2), (8, 8)), zeros(4, 12)


@planted
def three_dimensions(right):
    @cuda.jit
    def kernel(x):
        i, j, k = cuda.grid(3)
        if i < x.shape[0] and j < x.shape[1] and (k < x.shape[2] or not right):
            x[i, j, k] = 1  # fault

    return kernel, ((1, 1, 2), (4, 4, 4)), zeros(4, 4, 5)


@planted
def a_slice_of_a_larger_array(right):
    """The elements beyond are those of the rest of the allocation: no error on a card."""

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size or not right:
            x[i] = 1  # fault

    return kernel, (1, 32), cuda.to_device(zeros(100))[10:30]


@planted
def before_a_slice(right):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[np.uint64(i) if right else np.uint64(i) - np.uint64(2)]  # fault

    return kernel, (1, 16), cuda.to_device(upto(100, F))[20:36], zeros(16)


@planted
def below_a_column(right):
    """The row after the last one of a part of a matrix."""

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i] + x[i if right else i + 1]  # fault

    return kernel, (1, 8), cuda.to_device(ones(10, 4))[:8, 1], zeros(8)


@planted
def a_view_of_another_type(right):
    @cuda.jit
    def kernel(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = 1  # fault

    x = cuda.to_device(zeros(32)).view(D)
    return kernel, (1, 32), x, 16 if right else 32


@planted
def a_shared_array(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(32, F), cuda.threadIdx.x
        k = t if right else t + 1
        held[k] = t  # fault
        cuda.syncthreads()
        y[t] = held[t]

    return kernel, (1, 32), zeros(32)


@planted
def a_tile_without_room_for_its_halo(right):
    width = 10 if right else 9

    @cuda.jit
    def kernel(x, y):
        tile = cuda.shared.array((width, 10), F)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        tile[i, j] = x[i, j]  # fault
        cuda.syncthreads()
        if 0 < i < 9 and 0 < j < 9:
            y[i, j] = tile[i - 1, j] + tile[i + 1, j]

    return kernel, (1, (10, 10)), ones(10, 10), zeros(10, 10)


@planted
def too_little_dynamic_memory(right):
    @cuda.jit
    def kernel(y):
        held, t = cuda.shared.array(0, F), cuda.threadIdx.x
        held[t] = t  # fault
        cuda.syncthreads()
        y[t] = held[63 - t]

    return kernel, (1, 64, 0, 64 * (4 if right else 2)), zeros(64)


@planted
def from_one_shared_array_to_the_next(right):
    """On a card, the second array would follow, and hide it."""

    @cuda.jit
    def kernel(x, y):
        first, second = cuda.shared.array(16, I), cuda.shared.array(16, I)
        t = cuda.threadIdx.x
        first[t] = t
        second[t] = -t
        cuda.syncthreads()
        y[t] = first[x[t]] + second[t]  # fault

    return kernel, (1, 16), upto(16) if right else upto(16) + 1, zeros(16)


@planted
def a_local_array(right):
    @cuda.jit
    def kernel(x, y):
        own, t = cuda.local.array(8, F), cuda.threadIdx.x
        for k in range(8):
            own[k] = x[k] * t
        y[t] = own[x[t] if right else x[t] + 1]  # fault

    return kernel, (1, 8), upto(8), zeros(8)


@planted
def an_atomic_instruction(right):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        cuda.atomic.add(y, x[i], 1)  # fault

    return kernel, (1, 64), upto(64) % (8 if right else 9), zeros(8, dtype=I)


@planted
def gathered_by_indices(right):
    @cuda.jit
    def kernel(x, where, y):
        i = cuda.grid(1)
        y[i] = x[where[i]]  # fault

    where = upto(32) * 2
    where[20] = 40 if right else 1000
    return kernel, (1, 32), ones(64), where, zeros(32)


@planted
def in_a_called_function(right):
    @cuda.jit(device=True)
    def put(x, i, value):
        x[i] = value  # fault

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        put(x, i if right else 2 * i, i)

    return kernel, (1, 20), zeros(32)


@planted
def half_of_a_number(right):
    """The last float64 lies in the array by half."""

    @cuda.jit
    def kernel(x, y):
        y[0] = x[x.size - 1]  # fault

    memory = cuda.to_device(zeros(7, dtype=I))
    x = cuda.cudadrv.devicearray.DeviceNDArray((3 if right else 4,), (8,), np.dtype(D), gpu_data=memory.gpu_data)
    return kernel, (1, 1), x, zeros(1)


@planted
def a_loop_that_ends_late(right):
    @cuda.jit
    def kernel(x, y):
        total = F(0)
        for k in range(x.size + (0 if right else 1)):
            total += x[k]  # fault
        y[cuda.grid(1)] = total

    return kernel, (1, 4), ones(33), zeros(4)


@planted
def an_array_of_records(right):
    record = np.dtype([("a", F), ("b", D)], align=True)

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size or not right:
            x[i].b = i  # fault

    return kernel, (1, 16), zeros(10, dtype=record)


@planted
def memory_of_malloc(right):
    from .allocated import free, malloc

    @cuda.jit
    def kernel(y):
        t = cuda.threadIdx.x
        own = malloc(16)
        own[3 if right else 4] = t  # fault
        y[t] = own[3] if right else F(0)
        free(own)

    return kernel, (1, 8), zeros(8)
