"""What is recorded on the CPU is done again to the last bit."""

import contextlib
import copy

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet_kernels import cpu, examples
from numbanet_kernels.families.gemm_rows import cpu as gemm_rows
from numbanet_kernels.host import blas, threads, thresholds
from numbanet_kernels.host.ufuncs import apply
from numbanet_kernels.layouts.rows import Period
from numbanet_kernels.layouts.samples import key_words, sample_lists
from numbanet_kernels.runtime import pool, tape
from numbanet_kernels.runtime.declare import host_kernel
from numbanet_kernels.runtime.launch import NotRecorded
from numbanet_kernels.tables import collected
from tests.kernels.runtime.recording import equal, taped

VIEW, KEY, LIST = "a product with a view", "more than call compiled loops", "a list of positions"
REFUSED = {
    "gemm_rows": VIEW,
    "gemm_rows_dx": VIEW,
    "dropout": KEY,
    "putitem": "a list of positions",
}  # with another plan these are others
APART = {*REFUSED, "group_rows"}
EXAMPLES = sorted(name for name in examples.families() if name.partition(",")[0] in tape.OPERATIONS and name not in APART)


def floats(value):
    """The float32 arrays among what an operation is given."""
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            yield value
    elif isinstance(value, dict):
        yield from floats(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from floats(part)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_operation_is_done_again_to_the_last_bit(name):
    call = examples.example(name)
    with cpu.session():  # outside, products of one call are computed by the threads of BLAS
        copy.deepcopy(call).run(cpu)
        recorded = taped(lambda: call.run(cpu))
        given = [array.copy() for array in floats((call.arguments, call.options))]
        for _ in range(2):
            for array in floats((call.arguments, call.options)):
                array[...] = np.roll(array, 1)
            alone = copy.deepcopy(call)
            pairs = zip(floats((alone.arguments, alone.options)), given, strict=True)
            assert not given or any(np.any(a != b) for a, b in pairs)
            expected = alone.run(cpu)
            recorded.replay()
            equal(recorded.result, expected)
            equal(call.arguments, alone.arguments)


def test_lookups_are_grouped_again_in_arrays_of_one_size(rng):
    ids = rng.integers(9, size=20).astype(np.int32)
    cpu.group_rows(ids, 9, 3)
    recorded = taped(lambda: cpu.group_rows(ids, 9, 3))
    for below in (9, 2, 5):
        ids[:] = rng.integers(below, size=20)
        recorded.replay()
        (order, starts, places), expected = recorded.result, cpu.group_rows(ids, 9, 3)
        count = len(expected[1])
        equal((order, starts[:count], places), expected)
        assert (starts[count:] == starts[count - 1]).all()


@pytest.mark.parametrize("name", REFUSED)
def test_views_of_weights_and_keys_that_are_numbers_refuse(name):
    call = examples.example(name)
    call.run(cpu)
    with pytest.raises(NotRecorded, match=REFUSED[name]):
        taped(lambda: call.run(cpu))


def period(n, bias, dp):
    return Period(np.arange(bias, n, dp, dtype=np.int32), slice(bias, n, dp))


def test_the_key_of_random_bits_is_read(rng):
    x, key = rng.standard_normal((5, 7), np.float32), key_words(3)
    recorded = taped(lambda: cpu.dropout(x, 0.4, key, 0, scale=2.0))
    for number in (3, 1 << 63, (1 << 64) - 1):
        key[:] = key_words(number)
        recorded.replay()
        equal(recorded.result, cpu.dropout(x, 0.4, number, 0, scale=2.0))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("listed", [0, gemm_rows.LISTED], ids=["views", "lists"])
def test_lists_of_another_plan_are_read(rng, monkeypatch, shared, listed):
    """Of the same kind: as many rows and columns."""
    monkeypatch.setattr(gemm_rows, "LISTED", listed)
    x, dy, w, b = (rng.standard_normal(shape, np.float32) for shape in ((9, 20), (9, 30), (90, 60), (90,)))
    rows, cols = period(90, 0, 3), period(60, 0, 3)

    size = 1 if shared else 1 << 30
    y = dy[:, :20] @ w[:20]
    with thresholds.using(thresholds.Thresholds(size, size)), threadpool_limits(2, user_api="blas"), cpu.session(2):

        def work(rows, cols):
            return (
                cpu.gemm_rows(x, w, rows, cols, b, relu=True, scale=2.0),
                cpu.gemm_rows_dx(dy, w, rows, cols, scale=2.0),
                cpu.gemm_rows(x, w[:30], None, cols),
                cpu.gemm_rows(y, w, rows, None),
            )

        work(rows, cols)
        recorded = taped(lambda: work(rows, cols))
        for bias in (1, 2):
            now = period(90, bias, 3), period(60, bias, 3)
            for own, other in zip((rows, cols), now, strict=True):
                own.indices[:] = other.indices
            recorded.replay()
            equal(recorded.result, work(*now))
            np.testing.assert_allclose(
                recorded.result[0], 2 * np.maximum(x @ w[bias::3, bias::3].T + b[bias::3], 0), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("group", [1, 5, 20])
def test_bits_of_another_plan_are_read(rng, group, size):
    """Each sample keeps as many outputs."""
    n, width = 44, 50
    x, w, bias = (rng.standard_normal(shape, np.float32) for shape in ((n, 30), (width, 30), (width,)))
    dy = rng.standard_normal(n * 7, np.float32)

    def kept():
        mask = np.zeros((-(-n // group), width), bool)
        np.put_along_axis(mask, np.argsort(rng.random(mask.shape), axis=1)[:, :7], True, axis=1)
        return sample_lists(mask, n, group)

    lists = kept()
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(2, user_api="blas"), cpu.session(size):

        def work(lists):
            values = cpu.gemm_samples(x, w, lists, dy.size, bias, relu=True)
            dense = cpu.expand_samples(values, lists)
            dx, (dw, db) = cpu.gemm_samples_dx(dy, w, lists), cpu.gemm_samples_dw(dy, x, lists)
            return values, dense, cpu.compact_samples(dense, lists, dy.size), dx, dw, db

        work(lists)
        recorded = taped(lambda: work(lists))
        for _ in range(3):
            now = kept()
            assert (now.bits != lists.bits).any()
            lists.bits[:] = now.bits
            recorded.replay()
            equal(recorded.result, work(now))
            np.testing.assert_array_equal(recorded.result[0], recorded.result[2])


def test_the_operations_are_those_of_the_table():
    assert tape.OPERATIONS <= collected("cpu").keys()


LAYOUTS = {
    "rows": lambda rng, m, n: rng.standard_normal((m, n), np.float32),
    "turned": lambda rng, m, n: rng.standard_normal((n, m), np.float32).T,
    "part of rows": lambda rng, m, n: rng.standard_normal((m, n + 3), np.float32)[:, 1 : n + 1],
    "every other row": lambda rng, m, n: rng.standard_normal((2 * m, n), np.float32)[::2],
}


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1),
        (1, 5, 7),
        (5, 1, 7),
        (5, 7, 1),
        (1, 7, 1),
        (1, 1, 9),
        (2, 2, 2),
        (3, 4, 5),
        (32, 20, 64),
        (33, 65, 17),
        (128, 256, 192),
        (300, 1, 300),
        (64, 600, 2),
        (1, 600, 300),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_products_are_those_of_numpy_to_the_last_bit(rng, sizes, first, second):
    m, k, n = sizes
    a, b = LAYOUTS[first](rng, m, k), LAYOUTS[second](rng, k, n)
    with cpu.session(1):
        recorded = taped(lambda: (out := cpu.empty((m, n)), blas.matmul(a, b, out=out))[0])
        recorded.replay()
        expected = np.empty((m, n), np.float32)
        blas.matmul(a, b, out=expected)
        equal(recorded.result, expected)
        np.testing.assert_allclose(expected, a @ b, rtol=1e-4, atol=1e-4)
        if 1 not in sizes:
            equal(expected, a @ b)


def test_products_are_equal_with_another_library_than_numpys(rng, monkeypatch):
    """What is not recorded calls the same function, then."""
    assert blas._is_numpys()
    monkeypatch.setattr(np, "matmul", None)
    monkeypatch.setattr(blas, "_is_numpys", lambda: False)
    a, b, out = (rng.standard_normal(shape, np.float32) for shape in ((5, 6), (6, 7), (5, 7)))
    recorded = taped(lambda: (y := cpu.empty((5, 7)), blas.matmul(a, b, out=y))[0])
    recorded.replay()
    equal(recorded.result, blas.matmul(a, b, out=out))


def test_parts_of_a_result_are_products_to_the_last_bit(rng):
    a, b = rng.standard_normal((6, 40), np.float32), rng.standard_normal((40, 9), np.float32)
    recorded = taped(lambda: (out := cpu.full((6, 9), 1.0), blas.matmul(a, b[:, 2:5], out=out[:, 2:5]))[0])
    recorded.replay()
    expected = np.ones((6, 9), np.float32)
    np.matmul(a, b[:, 2:5], out=expected[:, 2:5])
    equal(recorded.result, expected)


def test_nothing_is_done_while_recording_and_memory_is_used_again():
    x, found = np.ones((100, 200), np.float32), []

    def work():
        y = cpu.relu(x, out=x)
        for _ in range(10):
            y = cpu.relu(y)
            found.append(y.__array_interface__["data"][0])
        return cpu.full((100, 200), 3.0, out=y)

    x[:] = -1
    arena = pool.Arena(1 << 20, pool.pages)
    recorded = tape.Tape(work, arena)
    assert (x == -1).all() and len(set(found[10:])) == 2 and arena.nbytes == 1 << 20
    recorded.replay()
    assert not x.any() and (recorded.result == 3).all()


def test_arrays_for_a_lender_are_in_its_memory_and_all_others_are_not(rng):
    """Also if the tape is recorded again with arrays of other sizes, in one run."""
    chunks = []

    def allocate(size):
        chunks.append(pool.pages(size))
        return chunks[-1]

    def lent(array):
        return any(np.shares_memory(array, chunk) for chunk in chunks)

    def work(x):
        y = cpu.relu(x)
        with pool.host_lender.within(pool.Pool(allocate, chunk=1 << 16, keep=0, step=8)):
            z = cpu.relu(x)
        return y, z, cpu.add(y, z)

    arena, known = pool.Arena(1 << 24, pool.pages), ()
    for rows in (100, 50):
        x = rng.standard_normal((rows, 200), np.float32)
        recorded = tape.Tape(lambda: work(x), arena, known)
        recorded.replay()
        assert [lent(array) for array in recorded.result] == [False, True, False]
        equal(recorded.result, work(x))
        known = {recorded.form}


def test_threads_that_share_work_do_it_again_to_the_last_bit(rng):
    x, w = rng.standard_normal((3, 200, 300), np.float32), rng.standard_normal((300, 300), np.float32) / np.float32(20)

    def work():
        y = cpu.relu(x[0])
        for _ in range(3):
            y = cpu.gemm(y, w, tb=True, relu=True)
            z = cpu.gemm(y, w)
            y = cpu.relu_grad(z, y)
        return y, cpu.gemm_dw(z, y), cpu.sum_rows(y)

    found = {}
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        for size in (1, 2, 4):
            with cpu.session(size):
                expected, recorded = work(), taped(work)
                assert recorded.threads == size
                for _ in range(20):
                    recorded.replay()
                    equal(recorded.result, expected)
                found[size] = expected[0]
                with threads._crew(size).free if size > 1 else contextlib.nullcontext():  # another thread shares its work
                    recorded.result[0][:] = 0
                    recorded.replay()
                    equal(recorded.result, expected)
    np.testing.assert_allclose(found[1], found[4], rtol=1e-3, atol=1e-3)


def test_memory_that_threads_use_at_the_same_time_is_not_used_twice():
    """Each part makes an array of its own and lets it go: the other's must not lie there."""

    @host_kernel("void(f4[::1], f4)")
    def slowly(x, value):
        for _ in range(1000):
            for i in range(x.size):
                x[i] = value

    places, out = [], np.zeros((2, 1 << 12), np.float32)

    def part_of_it(part):
        own = cpu.empty(1 << 12)
        places.append(own.__array_interface__["data"][0])
        slowly(own, part.number + 1.0)
        cpu.copy(own, out=out[part.number])

    with threadpool_limits(2, user_api="blas"), cpu.session(2):
        recorded = taped(lambda: threads.share(part_of_it))
        assert places[2] != places[3]
        recorded.replay()
    assert (out == [[1], [2]]).all()


def test_a_thread_whose_loop_fails_keeps_nobody_waiting():
    @host_kernel("void(i8[::1])")
    def fails(x):
        if x[0] > 0:
            raise ValueError("no")

    x = np.zeros((2, 1), np.int64)
    with threadpool_limits(2, user_api="blas"), cpu.session(2):
        recorded = taped(lambda: [threads.share(lambda part: fails(x[part.number])) for _ in range(3)])
        for bad in (1, 0):
            x[bad] = 1
            with pytest.raises(RuntimeError, match="fails failed"):
                recorded.replay()
            x[bad] = 0
            recorded.replay()


def test_there_is_an_end_to_memory():
    assert cpu.record(lambda: cpu.relu(cpu.empty((1 << 10, 1 << 10))), most=1 << 16) is None
    assert cpu.record(lambda: cpu.relu(cpu.empty((1 << 10, 1 << 10))), most=1 << 24) is not None


def test_a_loop_that_fails_says_so():
    @host_kernel("void(i8[::1])")
    def fails(x):
        if x[0] > 0:
            raise ValueError("no")

    x = np.zeros(1, np.int64)
    fails(x)
    recorded = taped(lambda: fails(x))
    recorded.replay()
    x[0] = 1
    with pytest.raises(RuntimeError, match="fails failed in a replay"):
        recorded.replay()
    x[0] = 0
    recorded.replay()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 17, 64, 1000, 100_003])
@pytest.mark.parametrize(
    "ufunc",
    [
        np.exp,
        np.log,
        np.sqrt,
        np.tanh,
        np.absolute,
        np.sign,
        np.square,
        np.add,
        np.subtract,
        np.multiply,
        np.divide,
        np.maximum,
        np.minimum,
        np.power,
    ],
    ids=lambda ufunc: ufunc.__name__,
)
def test_elementwise_functions_are_those_of_numpy_to_the_last_bit(rng, size, ufunc):
    x, y = np.abs(rng.standard_normal((2, size), np.float32))
    for given in [[x]] if ufunc.nin == 1 else [[x, y], [x, 1.7], [2.5, y]]:
        recorded = taped(lambda given=given: apply(ufunc, *given, out=cpu.empty(size)))
        recorded.replay()
        equal(recorded.result, ufunc(*given, out=np.empty(size, np.float32)))
