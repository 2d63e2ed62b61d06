"""What errors say: elements, values and both lines of a race; memory that is never freed."""

import re
import textwrap
import warnings

import numpy as np
import pytest

import numbanet
from numbanet import cli
from numbanet_kernels import card
from numbanet_kernels.ptx import machine
from numbanet_kernels.runtime import declare

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))
cuda = declare.cuda
F, WIDTH, AREA = np.float32, 8, 32


def said(kernel, shape, *arguments):
    with numbanet.emulated(), pytest.raises(RuntimeError) as found:
        kernel[shape](*arguments)
    return str(found.value)


def test_a_race_names_both_lines_the_element_and_the_value():
    @cuda.jit
    def kernel(x):
        tile = cuda.shared.array((4, WIDTH), F)
        i = cuda.threadIdx.x
        tile[i // 8, i % 8] = x[i]  # first
        x[i] = tile[3 - i // 8, i % 8]  # second

    text = said(kernel, (1, 32), 10 * np.arange(32, dtype=F))
    assert "thread (0, 0, 0), block (0, 0, 0), at tile[3, 0], which holds 240.0; the other access: test_messages.py:" in text
    first, second = (int(line) for line in reversed(re.findall(r"test_messages\.py:(\d+)", text)))
    assert second == first + 1 and "written by thread 24" in text


@pytest.mark.parametrize("shape, element", [((4, 4), "x[4, 0]"), ((2, 2, 4), "x[2, 0, 0]"), ((16,), "x[16]")])
def test_an_element_behind_the_end(shape, element):
    @cuda.jit
    def kernel(x):
        flat = x.reshape(x.size)
        flat[cuda.grid(1)] = 5

    assert said(kernel, (1, 17), np.zeros(shape, F)).endswith(f"at {element}, value 5.0")


def test_several_shared_arrays_keep_their_names():
    @cuda.jit
    def kernel(x):
        a, b = cuda.shared.array(AREA, np.int32), cuda.shared.array(32, np.float64)
        i = cuda.threadIdx.x
        a[i] = i
        b[31 - i] = i
        x[i] = a[i] + b[i]

    assert "at b[0], which holds 31.0" in said(kernel, (1, 32), np.zeros(32, F))


def test_threads_that_write_one_element_at_once():
    @cuda.jit
    def kernel(x):
        x[3] = cuda.threadIdx.x

    assert "race: written by several threads at once, thread 1 among them, by thread (0, 0, 0)" in said(
        kernel, (1, 32), np.ones(8, F)
    )


def test_a_slice_ends_where_it_ends_and_pointers_may_go_on():
    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)] = 1

    with numbanet.emulated():
        whole = cuda.to_device(np.zeros(100, F))
        kernel[1, 20](whole[10:30])
        with pytest.raises(RuntimeError, match=r"byte 80 of array x, .* a part of an allocation of 400 bytes .* at x\[20\]"):
            kernel[1, 21](whole[10:30])
        kernel[1, 100](whole)
        assert whole.copy_to_host().sum() == 100


def test_arrays_of_one_allocation_are_seen_together():
    """What one array leaves out, another one of the launch may hold."""

    @cuda.jit
    def kernel(even, odd, y):
        i = cuda.grid(1)
        y[i] = even[i] + odd[i]

    with numbanet.emulated():
        whole, y = cuda.to_device(np.arange(64, dtype=F)), np.zeros(32, F)
        kernel[1, 32](whole[::2], whole[1::2], y)
        np.testing.assert_array_equal(y, 4 * np.arange(32) + 1)
        with pytest.raises(RuntimeError, match="out of bounds: byte 128 of array even"):
            kernel[1, 33](whole[:32], whole[40:60], np.zeros(40, F))


LEAKING = """
    import numpy as np
    from numba import cuda, types

    malloc = cuda.declare_device("malloc", types.uint64(types.uint64), abi="c")

    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x] = malloc(16) % 16

    kernel[1, 8](np.zeros(8))
"""


def test_check_reports_memory_that_is_never_freed(tmp_path, capsys):
    path = tmp_path / "leaking.py"
    path.write_text(textwrap.dedent(LEAKING))
    assert cli.main(["check", str(path)]) == 1
    text = capsys.readouterr().out
    what = r"leak: 8 allocations of 128 bytes by malloc, never freed: allocated here by thread \(0, 0, 0\)"
    assert re.search(rf"leaking\.py:9 \(PTX line \d+: .*\): {what}", text)
    assert "1 launch, no error found, memory of 1 line never freed" in text


def leaking():
    from cuda.bindings import driver

    return driver.cuMemAlloc(64)[1]


def test_emulated_warns_of_memory_that_is_never_freed():
    words = r"leak: an allocation of 64 bytes, made at test_messages\.py:\d+, never freed"
    with pytest.warns(ResourceWarning, match=words), numbanet.emulated():
        leaking()


def test_what_python_keeps_or_collects_is_no_leak():
    """Arrays that are still referred to, in a circle or not, events, streams, and what is lost in an exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with numbanet.emulated():
            kept = [cuda.to_device(np.ones(4)), cuda.device_array(3), cuda.mapped_array(4), cuda.stream(), cuda.event()]
            kept.append(kept)
            with cuda.pinned(np.ones(4)):
                pass
        with pytest.raises(KeyError), numbanet.emulated():
            leaking()
            raise KeyError


def test_what_is_freed_is_no_leak():
    from cuda.bindings import driver

    from tests.kernels.sanitizer.allocated import address_of, free_at

    @cuda.jit
    def kernel(x):
        own = address_of(16)
        x[cuda.threadIdx.x] = own % 16
        free_at(own)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with numbanet.emulated():
            kernel[1, 8](np.zeros(8))
            driver.cuMemFree(leaking())


def test_a_launch_with_an_error_leaks_nothing():
    """Its threads would have freed, had they gone on."""

    @cuda.jit
    def kernel(x):
        own = address_of(16)
        x[own] = 1
        free_at(own)

    from tests.kernels.sanitizer.allocated import address_of, free_at

    found = []
    with card.Emulated(report=found.append):
        kernel[1, 8](np.zeros(8))
    assert len(found) == 1 and "out of bounds" in str(found[0])


def test_malloc_returns_0_if_there_is_no_memory():
    from tests.kernels.sanitizer.allocated import address_of

    @cuda.jit
    def kernel(x):
        x[0] = address_of(1 << 60)

    x = np.ones(1, np.uint64)
    with numbanet.emulated():
        kernel[1, 1](x)
    assert x[0] == 0


def test_an_array_that_reaches_beyond_its_allocation_limits_nothing():
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    @cuda.jit
    def kernel(x, y):
        y[0] = x[6]

    with numbanet.emulated():
        memory = cuda.to_device(np.arange(7, dtype=np.int32))
        kernel[1, 1](DeviceNDArray((9,), (4,), np.dtype(np.int32), gpu_data=memory.gpu_data), np.zeros(1))


def test_a_read_before_an_atomic_change_orders_nothing():
    """That it may be early does not make it an atomic instruction, which a fence would order."""

    @cuda.jit
    def kernel(x, z):
        if cuda.blockIdx.x == 1:
            if x[0] > 100:
                cuda.atomic.cas(x, 0, 5, 6)
        else:
            z[0] = 1
            cuda.threadfence()
            cuda.atomic.add(x, 0, 0)
            x[0] = 7

    assert "race" in said(kernel, (2, 1), np.zeros(1, np.int32), np.zeros(1, np.int32))


@pytest.mark.parametrize("other", [0, 32])
def test_a_thread_that_wrote_what_all_wrote_may_not_write_something_else(other):
    @cuda.jit
    def kernel(x, y):
        tile, i = cuda.shared.array(4, F), cuda.threadIdx.x
        tile[0] = 0
        if i == other:
            tile[0] = x[0]
        cuda.syncthreads()
        y[i] = tile[0]

    assert "shared race" in said(kernel, (1, 64), np.ones(1, F), np.zeros(64, F))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"debug": True, "opt": False}])
def test_threads_may_wait_for_one_that_takes_long(monkeypatch, options):
    monkeypatch.setattr(machine, "MOST_POLLS", 20)

    @cuda.jit(**options)
    def kernel(flag, y):
        i = cuda.threadIdx.x
        if i == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            y[0] = 1
        elif i == 32:
            total = 0
            for k in range(60):
                total += k * k % 7
            y[1] = total
            cuda.atomic.exch(flag, 0, 1)

    y = np.zeros(2, np.int64)
    with numbanet.emulated():
        kernel[1, 64](np.zeros(1, np.int32), y)
    assert y.tolist() == [1, sum(k * k % 7 for k in range(60))]


def test_a_race_between_streams_names_both_threads_and_the_value():
    @cuda.jit
    def scale(x):
        x[cuda.grid(1)] *= 2

    @cuda.jit
    def move(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1)]

    with numbanet.emulated(), pytest.raises(RuntimeError) as found:
        x, y, a, b = cuda.to_device(np.arange(72, dtype=F)), cuda.device_array(32, F), cuda.stream(), cuda.stream()
        scale[2, 36, a](x)
        move[1, 32, b](x[40:], y)
    text = str(found.value)
    assert re.match(
        r"move, test_messages\.py:\d+ \(PTX line \d+: ld\.global\.f32 .*\): race between streams: byte 160 of", text
    )
    assert "at x[0], which holds 80.0, is read by thread 0 of block 0 of move in stream 0x" in text
    assert "and written by thread 4 of block 1 of scale in stream 0x" in text
    assert re.search(r"the other access: scale, test_messages\.py:\d+ \(PTX line \d+: st\.global\.f32 [^()]*\)$", text)


def test_threads_that_many_races_between_streams_would_need_are_forgotten(monkeypatch):
    from numbanet_kernels.card import streams

    monkeypatch.setattr(streams, "KEPT", 100)

    @cuda.jit
    def scale(x):
        x[cuda.grid(1)] *= 2

    with numbanet.emulated(), pytest.raises(RuntimeError, match="and written by scale in stream 0x"):
        x = cuda.to_device(np.arange(64, dtype=F))
        for _ in range(2):
            scale[2, 32, cuda.stream()](x)


RECORD = np.dtype([("a", np.int32), ("b", F), ("v", F, (2,)), ("c", np.uint8)])


@pytest.mark.parametrize(
    "fields, ends", [(["a", "b"], "at x[8].b, value 1.5"), (["a", "b", "v", "c"], "at x[8].b"), (["b"], "at x[8].b, value 1.5")]
)
def test_a_field_of_a_record_is_named_with_its_value(fields, ends):
    """But for a packed record, whose bytes are stored one after the other."""

    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)].b = 1.5

    dtype = np.dtype([(name, RECORD[name]) for name in fields], align="c" not in fields)
    text = said(kernel, (1, 9), np.zeros(8, dtype))
    assert text.endswith(ends) and f"of records ({', '.join(fields)}), which" in text


def test_an_array_in_a_record_is_named():
    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)].v[1] = 1.5

    assert said(kernel, (1, 9), np.zeros(8, RECORD)).endswith("at x[1].v, value 1.5")


def test_a_divergent_barrier_names_a_thread_of_both_sides():
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < 32:
            cuda.syncthreads()
            x[i] = 1
        else:
            cuda.syncthreads()
            x[i] = 2

    other = (
        r"others wait at test_messages\.py:\d+ \(PTX line \d+: bar\.sync 0\), thread \(32, 0, 0\), block \(0, 0, 0\) among them"
    )
    assert re.search(rf"{other}; waited for by thread \(0, 0, 0\)", said(kernel, (1, 64), np.zeros(64, np.int32)))


def test_threads_that_have_ended_are_named():
    @cuda.jit
    def kernel(x):
        if cuda.blockIdx.x < 2:
            cuda.cg.this_grid().sync()
            x[cuda.grid(1)] = 1

    text = said(kernel, (3, 20), np.zeros(64, np.int32))
    assert "others have ended, thread (0, 0, 0), block (2, 0, 0) among them; waited for by thread (0, 0, 0)" in text


def test_a_deadlock_tells_what_is_polled(monkeypatch):
    monkeypatch.setattr(machine, "MOST_POLLS", 50)

    @cuda.jit
    def kernel(flag):
        while cuda.atomic.add(flag, 1, 0) == 7:
            pass

    text = said(kernel, (1, 32), np.array([5, 7], np.int32))
    assert re.search(r"kernel, test_messages\.py:\d+ \(PTX line \d+: atom\.global\.add", text)
    assert text.endswith("polled by thread (0, 0, 0), block (0, 0, 0), at flag[1], which holds 7")
