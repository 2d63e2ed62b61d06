"""Plain numba.cuda code, as others write it, on the emulated card: results are those of NumPy."""

import functools
import importlib
import math

import numpy as np
import pytest

from numbanet_kernels import card
from numbanet_kernels.card import model, stand_ins
from numbanet_kernels.runtime import declare

pytestmark = [pytest.mark.skipif(card.problem() is not None, reason=str(card.problem())), pytest.mark.usefixtures("the_card")]
cuda = declare.cuda
F = np.float32


def x(n=1000):
    return np.arange(n, dtype=F)


# --- declaring and launching ------------------------------------------------------------------------------------------
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@pytest.mark.parametrize("signature", [(), ("void(f4[:], f4[:], f4[:])",), (["void(f4[:], f4[:], f4[:])"],)], ids=str)
@pytest.mark.parametrize(
    "shape", [(8, 128), ((8,), (128,)), ((8, 1, 1), (128, 1, 1)), (8, 128, 0, 0), (np.int64(8), 128)], ids=str
)
def test_a_sum_of_host_arrays(signature, shape):
    out = np.zeros(1000, F)
    kernel = cuda.jit(*signature)(add)
    kernel[shape](x(), 2 * x(), out)
    np.testing.assert_array_equal(out, 3 * x())


def test_a_kernel_is_specialised_for_each_type():
    kernel = cuda.jit(add)
    for dtype in ("f4", "f8", "i4", "i8", "u1"):
        a, out = np.arange(100).astype(dtype), np.zeros(100, dtype)
        kernel[1, 128](a, a, out)
        np.testing.assert_array_equal(out, a + a)
    assert len(kernel.signatures) == 5
    assert all(".entry" in text for text in kernel.inspect_asm().values())


def test_device_functions_and_numbers():
    @cuda.jit(device=True)
    def scaled(value, factor):
        return value * factor

    @cuda.jit
    def kernel(x, factor, n, out):
        for i in range(cuda.grid(1), n, cuda.gridsize(1)):
            out[i] = scaled(x[i], factor) + math.sqrt(x[i])

    out = np.zeros(1000, np.float64)
    kernel[2, 32](x(), 2.5, 1000, out)
    np.testing.assert_allclose(out, 2.5 * x() + np.sqrt(x()), rtol=1e-6)


def test_the_product_of_matrices_by_tiles():
    tile = 16

    @cuda.jit
    def product(a, b, c):
        left, right = cuda.shared.array((tile, tile), F), cuda.shared.array((tile, tile), F)
        row, column = cuda.grid(2)
        i, j, total = cuda.threadIdx.x, cuda.threadIdx.y, F(0)
        for k in range(0, a.shape[1], tile):
            left[i, j] = a[row, k + j] if row < a.shape[0] and k + j < a.shape[1] else 0
            right[i, j] = b[k + i, column] if k + i < b.shape[0] and column < b.shape[1] else 0
            cuda.syncthreads()
            for m in range(tile):
                total += left[i, m] * right[m, j]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total

    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 9, (20, 33)).astype(F), rng.integers(0, 9, (33, 18)).astype(F)
    c = cuda.device_array((20, 18), F)
    product[(2, 2), (tile, tile)](cuda.to_device(a), cuda.to_device(b), c)
    np.testing.assert_array_equal(c.copy_to_host(), a @ b)


def test_dynamic_shared_memory():
    @cuda.jit
    def backwards(x):
        held = cuda.shared.array(0, F)
        i = cuda.threadIdx.x
        held[i] = x[i]
        cuda.syncthreads()
        x[i] = held[cuda.blockDim.x - 1 - i]

    values = x(64)
    backwards[1, 64, 0, 4 * 64](values)
    np.testing.assert_array_equal(values, x(64)[::-1])


def test_forall():
    out = np.zeros(100, F)
    cuda.jit(add).forall(100)(x(100), x(100), out)
    np.testing.assert_array_equal(out, 2 * x(100))


def test_a_loop_of_compare_and_swap():
    """It begins with a plain read, as that of the CUDA C++ Programming Guide does (atomicAdd by atomicCAS)."""

    @cuda.jit
    def kernel(x, largest):
        i = cuda.grid(1)
        old = largest[0]
        while x[i] > old:
            assumed, old = old, cuda.atomic.compare_and_swap(largest, old, x[i])
            if old == assumed:
                break

    values, found = np.random.default_rng(0).permutation(256).astype(np.int32), np.full(1, -1, np.int32)
    kernel[4, 64](values, found)
    assert found[0] == 255


def test_many_threads_compare_and_swap_one_number():
    @cuda.jit
    def product(x, out):
        i = cuda.grid(1)
        if i < x.size:
            old = out[0]
            while True:
                seen = cuda.atomic.cas(out, 0, old, old * x[i] % 10007)
                if seen == old:
                    break
                old = seen

    values, found = np.random.default_rng(0).integers(1, 100, 1024), np.ones(1, np.int64)
    product[8, 128](values, found)
    assert found[0] == functools.reduce(lambda a, b: a * int(b) % 10007, values, 1)


def test_a_read_before_an_atomic_change():
    """Threads begin with what others may have changed already, and end with an atomic instruction."""

    @cuda.jit
    def kernel(x, ends):
        low, high = ends[0], ends[1]
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            if x[i] < low:
                low = x[i]
            if x[i] > high:
                high = x[i]
        cuda.atomic.min(ends, 0, low)
        cuda.atomic.max(ends, 1, high)

    values, found = np.random.default_rng(0).normal(size=1000), np.array([np.inf, -np.inf])
    kernel[4, 64](values, found)
    assert (found == [values.min(), values.max()]).all()


# --- arrays -----------------------------------------------------------------------------------------------------------
def test_arrays_of_all_kinds():
    kernel, n = cuda.jit(add), 100
    made = [
        cuda.to_device(x(n)),
        cuda.device_array_like(x(n)),
        cuda.mapped_array(n, F),
        cuda.managed_array(n, F),
        cuda.pinned_array(n, F),
    ]
    for array in made[1:]:
        if hasattr(array, "copy_to_device") and not isinstance(array, np.ndarray):
            array.copy_to_device(x(n))
        else:
            array[:] = x(n)
    out = cuda.device_array(n, F)
    for array in made:
        kernel[1, 128](array, array, out)
        cuda.synchronize()
        np.testing.assert_array_equal(out.copy_to_host(), 2 * x(n))


def test_a_slice_and_a_view_share_the_memory():
    array = cuda.to_device(x(100))
    cuda.jit(add)[1, 32](array[10:20], array[20:30], array[30:40])
    wanted = x(100)
    wanted[30:40] = wanted[10:20] + wanted[20:30]
    np.testing.assert_array_equal(array.copy_to_host(), wanted)
    array[:50] = 7
    assert (array.copy_to_host()[:50] == 7).all() and array[99] == 99


def test_empty_arrays():
    assert cuda.to_device(np.zeros((0, 3), F)).copy_to_host().shape == (0, 3)
    cuda.jit(add)[1, 32](np.zeros(0, F), np.zeros(0, F), np.zeros(0, F))


def test_strided_arrays_on_the_card():
    array, out = cuda.to_device(np.arange(200, dtype=F).reshape(20, 10)), cuda.device_array(20, F)
    cuda.jit(add)[1, 32](array[:, 3], array[:, 4], out)
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(20) * 20 + 7)


def test_hints_say_what_is_copied():
    given, out = x(10), np.full(10, 5, F)
    cuda.jit(add)[1, 32](cuda.In(given), cuda.In(given), cuda.Out(out))
    np.testing.assert_array_equal(out, 2 * given)


def test_pinned_and_mapped_contexts():
    given, out = x(10), np.zeros(10, F)
    with cuda.pinned(given), cuda.mapped(out) as seen:
        cuda.jit(add)[1, 32](given, given, seen)
    np.testing.assert_array_equal(out, 2 * given)


def test_memory_is_given_back():
    memory = cuda.current_context().memory_manager
    memory.deallocations.clear()
    before = cuda.current_context().get_memory_info().free
    array = cuda.device_array(1 << 20, np.uint8)
    assert cuda.current_context().get_memory_info().free == before - (1 << 20)
    with cuda.defer_cleanup():
        del array
        memory.deallocations.clear()
        assert cuda.current_context().get_memory_info().free < before
    memory.deallocations.clear()
    assert cuda.current_context().get_memory_info().free == before


# --- streams, events, the device --------------------------------------------------------------------------------------
def test_streams_and_events_are_in_order():
    stream, start, stop, out = cuda.stream(), cuda.event(), cuda.event(), np.zeros(100, F)
    with stream.auto_synchronize():
        start.record(stream)
        array = cuda.to_device(x(100), stream=stream)
        made = cuda.device_array(100, F, stream=stream)
        cuda.jit(add)[1, 128, stream](array, array, made)
        made.copy_to_host(out, stream=stream)
        stop.record(stream)
    stop.synchronize()
    np.testing.assert_array_equal(out, 2 * x(100))
    assert stop.query() and 0 <= cuda.event_elapsed_time(start, stop) < 1e5


def test_the_device_says_what_it_is(capsys):
    device = cuda.get_current_device()
    assert cuda.is_available() and cuda.detect() and "PTX machine" in capsys.readouterr().out
    assert (device.compute_capability, device.WARP_SIZE, device.MAX_THREADS_PER_BLOCK, device.id) == ((8, 0), 32, 1024, 0)
    assert len(cuda.gpus) == 1 and cuda.select_device(0) is not None
    with cuda.gpus[0]:
        assert cuda.current_context().device.id == 0


# --- what is built on kernels -----------------------------------------------------------------------------------------
def test_vectorize():
    from numba import vectorize

    @vectorize(["f4(f4, f4)"], target="cuda")
    def plus(a, b):
        return a + b

    np.testing.assert_array_equal(plus(x(), x()), 2 * x())


def test_guvectorize():
    from numba import guvectorize

    @guvectorize(["void(f4[:], f4[:], f4[:])"], "(n),(n)->()", target="cuda")
    def dot(a, b, out):
        total = F(0)
        for i in range(a.size):
            total += a[i] * b[i]
        out[0] = total

    a = np.arange(12, dtype=F).reshape(3, 4)
    np.testing.assert_array_equal(dot(a, a), (a * a).sum(1))


def test_reduce():
    total = cuda.reduce(lambda a, b: a + b)
    assert total(np.arange(700, dtype=np.float64)) == 700 * 699 / 2
    assert cuda.Reduce(lambda a, b: max(a, b))(np.array([3, 9, 2], np.int32)) == 9


def test_random_numbers():
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(256, F)
    draw[2, 128](create_xoroshiro128p_states(256, seed=1), out)
    assert len(set(out)) > 250 and 0 <= out.min() and out.max() < 1 and abs(out.mean() - 0.5) < 0.08


# --- what is refused --------------------------------------------------------------------------------------------------
def test_what_is_not_there_is_refused_by_name():
    with pytest.raises(RuntimeError, match="IPC"):
        cuda.to_device(x(4)).get_ipc_handle()
    with pytest.raises(RuntimeError, match="machine code"):
        kernel = cuda.jit("void(f4[:], f4[:], f4[:])")(add)
        kernel.inspect_sass()


@pytest.mark.skipif(getattr(cuda, "implementation", "") == "Built-in", reason="Numba's own cuda calls no cuda.bindings")
@pytest.mark.parametrize(
    "name, what",
    [
        ("cuTexObjectCreate", "texture memory"),
        ("cuSurfObjectCreate", "surface memory"),
        ("cuGraphCreate", "a CUDA graph"),
        ("cuGraphicsMapResources", "memory of a graphics library"),
        ("cuIpcGetMemHandle", r"sharing memory with other processes \(IPC\)"),
        ("cuMemPoolCreate", "a memory pool of the driver"),
    ],
)
def test_functions_of_the_driver_are_refused_by_name(name, what):
    from cuda.bindings import driver

    with pytest.raises(RuntimeError, match=rf"{what} \({name}\) is not in the emulated card"):
        getattr(driver, name)(1, 2)


def test_arrays_of_other_processes_are_refused_by_name():
    with pytest.raises(RuntimeError, match=r"IPC\) .* is not in the emulated card"), cuda.open_ipc_array(bytes(64), (3,), F):
        pass


def test_a_launch_that_a_card_refuses():
    out = np.zeros(10, F)
    with pytest.raises(Exception, match="1024"):
        cuda.jit(add)[1, 2048](out, out, out)


def test_much_dynamic_shared_memory_is_asked_for():
    @cuda.jit("void(f4[:])")
    def kernel(x):
        room = cuda.shared.array(0, F)
        i = cuda.threadIdx.x
        room[19999 - i] = x[i]
        cuda.syncthreads()
        x[i] = room[19999 - i] + 1

    values, loaded = x(32), next(iter(kernel.overloads.values()))._codelibrary.get_cufunc()
    with pytest.raises(Exception, match="80000 bytes of dynamic .* must be asked for .*DYNAMIC_SHARED_SIZE_BYTES, 80000"):
        kernel[1, 32, 0, 80000](values)
    module = importlib.import_module("numba.cuda.cudadrv.driver")
    with pytest.raises(Exception, match="may have up to 166912 bytes"):
        module.driver.cuKernelSetAttribute(model.MOST_DYNAMIC, 170000, loaded.handle, 0)
    module.driver.cuKernelSetAttribute(model.MOST_DYNAMIC, 80000, loaded.handle, 0)
    kernel[1, 32, 0, 80000](values)
    np.testing.assert_array_equal(values, x(32) + 1)


def test_too_much_static_memory():
    @cuda.jit
    def shared(x):
        room = cuda.shared.array(13000, F)
        room[cuda.threadIdx.x] = x[0]
        cuda.syncthreads()
        x[0] = room[0]

    @cuda.jit
    def local(x, i):
        room = cuda.local.array(1 << 18, F)
        room[i] = x[0]
        x[0] = room[i + 1]

    with pytest.raises(Exception, match="52000 bytes of static .* the most are 49152, so use dynamic"):
        shared[1, 1](x(1))
    with pytest.raises(Exception, match="1048576 bytes of local memory: a thread has at most 524288"):
        local[1, 1](x(1), 3)


# --- the end of a context of CUDA -------------------------------------------------------------------------------------
def test_after_the_device_was_reset():
    kernel = cuda.jit(add)
    for _ in range(2):
        out = np.zeros(10, F)
        kernel[1, 32](x(10), x(10), out)
        np.testing.assert_array_equal(out, 2 * x(10))
        cuda.close()


def test_an_empty_log_of_the_compiler_changes_no_bytes_of_python():
    """NVRTC writes its log to bytes, and Python has one object for all bytes of one character."""
    pytest.importorskip("cuda.bindings.nvrtc")
    text, said = stand_ins._compiled('extern "C" __global__ void f() {}', "f.cu", ("--gpu-architecture=compute_80",))
    assert b".entry f" in text and said == ""
    assert [value for value in range(256) if bytes([value])[0] != value] == []
