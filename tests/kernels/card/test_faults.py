"""Planted faults in plain numba.cuda code: each is found, with line, thread and element; the same code without is right."""

import re

import numpy as np
import pytest

import numbanet
from numbanet_kernels import card
from numbanet_kernels.ptx import machine
from numbanet_kernels.runtime import declare

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))
cuda = declare.cuda
F = np.float32
FILE = r"test_faults\.py:\d+"


def beyond(right):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size or not right:
            x[i] = i

    kernel[1, 64](np.zeros(50, F))


def beyond_with_a_constant(right):
    """The compiled kernel holds the bits of the constant, as an integer."""

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size or not right:
            x[i] = 1.5

    kernel[1, 64](np.zeros(50, F))


def misaligned(right):
    @cuda.jit
    def kernel(x, y):
        y[0] = x[0]

    memory = cuda.to_device(np.zeros(64, np.uint8))
    start = 8 if right else 2
    kernel[1, 1](memory[start : start + 8].view(np.float32), np.zeros(1, F))


def shared_unset(right):
    @cuda.jit
    def kernel(y):
        held = cuda.shared.array(32, F)
        i = cuda.threadIdx.x
        if right or i < 31:
            held[i] = i
        cuda.syncthreads()
        y[i] = held[31 - i]

    kernel[1, 32](np.zeros(32, F))


def global_unset(right):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i]

    x = cuda.device_array(32, F)
    if right:
        x.copy_to_device(np.ones(32, F))
    kernel[1, 32](x, np.zeros(32, F))


def race_in_shared_memory(right):
    @cuda.jit
    def kernel(y):
        held = cuda.shared.array(64, F)
        i = cuda.threadIdx.x
        held[i] = i
        if right:
            cuda.syncthreads()
        y[i] = held[63 - i]

    kernel[1, 64](np.zeros(64, F))


def race_of_blocks(right):
    @cuda.jit
    def kernel(y):
        if right:
            cuda.atomic.add(y, 0, 1)
        else:
            y[0] += 1

    kernel[4, 1](np.zeros(1, F))


def barrier_in_a_branch(right):
    @cuda.jit
    def kernel(y):
        i = cuda.threadIdx.x
        if i < 32 or right:
            y[i] += 1
            cuda.syncthreads()
        y[i] += 1
        cuda.syncthreads()
        y[i] += 1

    kernel[1, 64](np.zeros(64, F))


def waiting_for_another_block(right):
    @cuda.jit
    def kernel(flag):
        if cuda.blockIdx.x == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        elif right:
            cuda.atomic.add(flag, 0, 1)

    kernel[2, 1](np.zeros(1, np.int32))


def race_of_unequal_writes(right):
    @cuda.jit
    def kernel(x, found):
        i = cuda.grid(1)
        if x[i] > 3:
            found[0] = 1 if right else i

    kernel[4, 64](np.arange(256), np.zeros(1, np.int32))


def freed(right):
    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)] = 1

    x = cuda.to_device(np.zeros(32, F))
    if not right:
        cuda.current_context().deallocations.clear()
        x.gpu_data._mem.free()
        cuda.current_context().memory_manager.deallocations.clear()
    kernel[1, 32](x)


def race_between_streams(right):
    @cuda.jit
    def scale(x):
        x[cuda.grid(1)] *= 2

    @cuda.jit
    def move(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1)]

    x, y, first, second, event = (
        cuda.to_device(np.ones(32, F)),
        cuda.device_array(32, F),
        cuda.stream(),
        cuda.stream(),
        cuda.event(),
    )
    scale[1, 32, first](x)
    event.record(first)
    if right:
        event.wait(second)
    move[1, 32, second](x, y)
    second.synchronize()


def race_with_what_is_there(right):
    """One of the values is in the array already."""

    @cuda.jit
    def kernel(found):
        found[0] = 0 if right else cuda.threadIdx.x

    kernel[1, 2](np.zeros(1, np.int32))


def total_read_too_early(right):
    @cuda.jit
    def kernel(total, y):
        cuda.atomic.add(total, 0, 1)
        if right:
            cuda.syncthreads()
        y[cuda.threadIdx.x] = total[0]

    kernel[1, 64](np.zeros(1, np.int32), np.zeros(64, np.int32))


def swap_of_what_is_written_plainly(right):
    """The first read of a loop of compare-and-swap races with plain writes, not with atomic ones."""

    @cuda.jit
    def kernel(x):
        old = x[0]
        if not right and cuda.blockIdx.x == 1:
            x[0] = 7
        cuda.atomic.compare_and_swap(x, old, old + 1)

    kernel[2, 1](np.zeros(1, np.int32))


CASES = {
    total_read_too_early: r"race: read here, and changed by .*at total\[0\]",
    swap_of_what_is_written_plainly: r"race: .*at x\[0\]",
    race_with_what_is_there: r"race: written .*at found\[0\]",
    beyond: r"out of bounds: byte 200 .*array x, shape \(50,\) of float32.* thread \(50, 0, 0\), .*, at x\[50\], value 50.0",
    beyond_with_a_constant: r"out of bounds: .* at x\[50\], value 1.5",
    misaligned: "misaligned: address",
    shared_unset: r"shared read before it was written by thread \(0, 0, 0\)",
    global_unset: r"global read before it was written by thread \(0, 0, 0\), .*, at x\[0\]",
    race_in_shared_memory: r"race: read here, and written by thread \d+ with no barrier between by thread",
    race_of_blocks: r"race: .* by threads of several blocks .*at y\[0\]",
    race_of_unequal_writes: r"race: written .*at found\[0\], value 4",
    barrier_in_a_branch: r"a barrier that part of its block never reaches: others wait at .*test_faults\.py:\d+",
    waiting_for_another_block: "the kernel does not end",
    race_between_streams: r"byte 0 of array x, .* is read by thread 0 of block 0 of move in stream 0x\w+, "
    r"and written by thread 0 of block 0 of scale in stream 0x\w+",
    freed: "use after free: byte 0 of an allocation of 128 bytes",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_planted_fault_is_found(case, monkeypatch):
    monkeypatch.setattr(machine, "LIMIT", 1)
    with numbanet.emulated(uninitialised=True), pytest.raises(RuntimeError, match=CASES[case]) as found:
        case(False)
    if case is not race_between_streams:
        assert re.search(rf"kernel, {FILE}.* \(PTX line \d+: ", str(found.value)), str(found.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_without_the_fault_nothing_is_found(case):
    with numbanet.emulated(uninitialised=True):
        case(True)


def test_memory_of_device_array_may_be_read_unless_asked_otherwise():
    with numbanet.emulated():
        global_unset(False)


@pytest.mark.parametrize("ordered", ["host", "event on the host", "default stream", "copy", "same stream", "parts"])
def test_what_orders_kernels_of_streams(ordered):
    @cuda.jit
    def scale(x):
        x[cuda.grid(1)] *= 2

    with numbanet.emulated():
        x, first, second, event = cuda.to_device(np.ones(32, F)), cuda.stream(), cuda.stream(), cuda.event()
        scale[1, 16 if ordered == "parts" else 32, first](x)
        event.record(first)
        if ordered == "host":
            first.synchronize()
        elif ordered == "event on the host":
            event.synchronize()
        elif ordered == "default stream":
            scale[1, 32](x)
        elif ordered == "copy":
            x.copy_to_host()
        scale[1, 16, first if ordered == "same stream" else second](x[16:] if ordered == "parts" else x)
