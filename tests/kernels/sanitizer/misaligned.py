"""Misaligned accesses: addresses that are no multiples of the width."""

import numpy as np

from numbanet_kernels.runtime.declare import cuda

from .allocated import address_of, free_at
from .planted import B, D, F, I, L, planted, upto, zeros

planted = planted("misaligned", "misaligned: address")


def memory(n=128):
    return cuda.to_device(zeros(n, dtype=B))


def part(start, n, dtype):
    """n elements, from a byte on."""
    return memory()[start : start + n * np.dtype(dtype).itemsize].view(dtype)


@cuda.jit
def load(x, y):
    t = cuda.grid(1)
    y[t] = x[t]  # fault


@cuda.jit
def store(x):
    t = cuda.grid(1)
    x[t] = t  # fault


@cuda.jit
def change(x):
    cuda.atomic.add(x, cuda.grid(1), 1)  # fault


@planted
def a_load_of_four_bytes(right):
    return load, (1, 8), part(4 if right else 1, 8, F), zeros(8)


@planted
def a_load_of_two_bytes(right):
    return load, (1, 8), part(2 if right else 1, 8, np.int16), zeros(8)


@planted
def a_load_of_eight_bytes_at_a_multiple_of_four(right):
    return load, (1, 8), part(8 if right else 4, 8, D), zeros(8)


@planted
def a_store_of_four_bytes(right):
    return store, (1, 8), part(0 if right else 2, 8, I)


@planted
def a_store_of_two_bytes(right):
    return store, (1, 8), part(2 if right else 3, 8, np.uint16)


@planted
def a_store_of_eight_bytes(right):
    return store, (1, 8), part(16 if right else 12, 8, L)


@planted
def an_atomic_sum(right):
    return change, (1, 4), part(4 if right else 6, 4, I)


@planted
def an_atomic_sum_of_eight_bytes(right):
    return change, (1, 4), part(8 if right else 4, 4, D)


@planted
def a_complex_number(right):
    @cuda.jit
    def kernel(x, y):
        y[0] = x[0].imag  # fault

    return kernel, (1, 1), part(4 if right else 2, 1, np.complex64), zeros(1)


@planted
def one_row_of_two(right):
    """The rows are 6 bytes apart, so that every second one is at no multiple of 4."""

    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x, 0] = 1  # fault

    strides = 8 if right else 6, 4
    return kernel, (1, 8), cuda.cudadrv.devicearray.DeviceNDArray((8, 1), strides, np.dtype(F), gpu_data=memory().gpu_data)


@planted
def a_view_within_the_kernel(right):
    @cuda.jit
    def kernel(x, first, y):
        y[0] = x[first : first + 4].view(F)[0]  # fault

    return kernel, (1, 1), memory(), 8 if right else 5, zeros(1)


@planted
def a_view_of_each_thread(right):
    """Some threads have an aligned address, and one has not."""

    @cuda.jit
    def kernel(x, where):
        first = where[cuda.threadIdx.x]
        x[first : first + 4].view(I)[0] = first  # fault

    where = 4 * upto(8)
    where[5] += 0 if right else 1
    return kernel, (1, 8), memory(), where


@planted
def a_view_of_shared_bytes(right):
    @cuda.jit
    def kernel(first, y):
        held, t = cuda.shared.array(64, F).view(B), cuda.threadIdx.x
        if t == 0:
            held[first : first + 4].view(F)[0] = 1  # fault
        cuda.syncthreads()
        y[t] = held[first]

    return kernel, (1, 32), 12 if right else 13, zeros(32)


@planted
def numbers_of_eight_bytes_after_one_of_four(right):
    """A shared header of one int32, and what follows it."""

    @cuda.jit
    def kernel(first, y):
        room, t = cuda.shared.array(66, D), cuda.threadIdx.x
        body = room.view(I)[first : first + 64].view(D)
        body[t] = t  # fault
        cuda.syncthreads()
        y[t] = body[31 - t]

    return kernel, (1, 32), 2 if right else 1, zeros(32)


@planted
def dynamic_memory_after_bytes(right):
    @cuda.jit
    def kernel(first, y):
        held, t = cuda.shared.array(0, B), cuda.threadIdx.x
        mine = held[first + 4 * t : first + 4 * t + 4].view(I)
        mine[0] = t  # fault
        y[t] = mine[0]

    return kernel, (1, 8, 0, 64), 8 if right else 9, zeros(8)


@planted
def a_view_of_local_bytes(right):
    @cuda.jit
    def kernel(first, y):
        own, t = cuda.local.array(16, F).view(B), cuda.threadIdx.x
        for k in range(64):
            own[(k + first) % 64] = k
        y[t] = own[first : first + 4].view(I)[0]  # fault

    return kernel, (1, 4), 4 if right else 6, zeros(4)


@planted
def a_pointer_of_malloc(right):
    @cuda.jit
    def kernel(x, y):
        own = address_of(32)
        x[0] = own
        free_at(own)
        y[0] = x[1 if right else 0 :].view(B)[0 if right else 1 : 5 if not right else 4].view(F)[0]  # fault

    return kernel, (1, 1), zeros(4, dtype=np.uint64), zeros(1)


@planted
def a_compare_and_swap(right):
    @cuda.jit
    def kernel(x):
        cuda.atomic.cas(x, 0, 0, 1)  # fault

    return kernel, (1, 2), part(4 if right else 7, 1, I)


@planted
def a_shift_that_depends_on_the_block(right):
    @cuda.jit
    def kernel(x, step):
        first = step * cuda.blockIdx.x
        x[first : first + 8].view(L)[0] = first  # fault

    return kernel, (4, 1), memory(), 16 if right else 12


@planted
def a_record_at_an_odd_byte(right):
    record = np.dtype([("n", I), ("x", F)], align=True)

    @cuda.jit
    def kernel(x, y):
        y[0] = x[0].n  # fault

    return kernel, (1, 1), part(8 if right else 9, 1, record), zeros(1)


@planted
def a_header_before_numbers(right):
    """A file that was read into memory: a byte of a version, padded or not, then numbers."""

    @cuda.jit
    def kernel(file, header, y):
        i = cuda.grid(1)
        numbers = file[header : header + 32].view(F)
        y[i] = 2 * numbers[i]  # fault

    return kernel, (2, 4), memory(), 4 if right else 1, zeros(8)
