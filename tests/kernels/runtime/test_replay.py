"""Copies and tapes are executed in order by one compiled call, on one thread and on several."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet_kernels import cpu, emulated
from numbanet_kernels.host import threads, thresholds
from numbanet_kernels.runtime import availability, callees, pool, tape
from numbanet_kernels.runtime.declare import host_kernel


def taped(work):
    return tape.Tape(work, pool.Arena(1 << 24, pool.pages))


@pytest.fixture
def calls(monkeypatch):
    """The number of entries of each compiled call."""
    found = []

    def run(entries, *given, original=callees.run):
        found.append(len(entries))
        original(entries, *given)

    monkeypatch.setattr(callees, "run", run)
    return found


def test_copies_and_tapes_are_executed_in_order(calls, rng):
    given, x, last = rng.standard_normal((3, 5), np.float32), np.zeros(5, np.float32), np.zeros((3, 5), np.float32)
    recorded = taped(lambda: cpu.affine(x, mul=2.0))
    actions = [action for i in range(3) for action in ((given[i], x), recorded, (recorded.result, last[i]))]
    cpu.replay(actions)
    assert len(calls) == 1  # for all of them
    np.testing.assert_array_equal(last, 2 * given)
    last[:] = 0
    (views, places), (_, rows) = cpu.places(last), cpu.places(given)
    cpu.replay([action for i in range(3) for action in ((rows[i], cpu.place(x)), recorded, (recorded.result, places[i]))])
    np.testing.assert_array_equal(last, 2 * given)
    np.testing.assert_array_equal(views, 2 * given)
    assert [view.shape for view in cpu.places(last[0])[0]] == [()] * 5 and cpu.overlap(views[1], last)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_threads_wait_for_copies_and_copies_for_threads(size, rng):
    given, w = rng.standard_normal((20, 64, 50), np.float32), rng.standard_normal((50, 50), np.float32)
    x, found = np.zeros((64, 50), np.float32), np.zeros((20, 64, 50), np.float32)
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"), cpu.session(size):
        expected = [cpu.copy(cpu.gemm(cpu.gemm(one, w, tb=True), w)) for one in given]
        shared, alone = taped(lambda: cpu.gemm(x, w, tb=True)), taped(lambda: cpu.affine(x, mul=1.0))
        y = shared.result
        second = taped(lambda: cpu.gemm(y, w))
        assert shared.threads == size
        actions = []
        for one, out in zip(given, found):
            actions += [(one, x), alone, (alone.result, x), shared, second, (second.result, out)]
        cpu.replay(actions)
    for ours, theirs in zip(found, expected):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_programs_are_replayed_with_rows_of_arrays(size, calls, rng):
    """Programs of one and of several threads, with different numbers of copies, in any order, by one call of each thread."""
    given, w = rng.standard_normal((20, 64, 50), np.float32), rng.standard_normal((50, 50), np.float32)
    x, more, found = np.zeros((64, 50), np.float32), np.zeros((64, 50), np.float32), np.zeros((20, 64, 50), np.float32)
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"), cpu.session(size):
        expected = [cpu.gemm(one, w) if i % 3 else cpu.add(one, given[0]) for i, one in enumerate(given)]
        shared, alone = taped(lambda: cpu.gemm(x, w)), taped(lambda: cpu.add(x, more))
        assert shared.threads == size
        one = cpu.program([shared], [cpu.place(x)], [cpu.place(shared.result)])
        two = cpu.program([alone], [cpu.place(x), cpu.place(more)], [cpu.place(alone.result)])
        calls.clear()
        own = [[] if i % 3 else [cpu.place(given[0])] for i in range(20)]
        cpu.replay_programs([one if i % 3 else two for i in range(20)], [given], own, [found])
        assert len(calls) in (1, size)  # one thread does all the work if others need the cores
    for ours, theirs in zip(found, expected):
        assert ours.tobytes() == theirs.tobytes()


def test_programs_of_different_numbers_of_threads_are_replayed(rng):
    x, w = np.zeros((64, 50), np.float32), rng.standard_normal((50, 50), np.float32)
    given, found = rng.standard_normal((4, 64, 50), np.float32), np.zeros((4, 64, 50), np.float32)
    programs, expected = [], []
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        for size in (2, 4):
            with cpu.session(size):
                recorded = taped(lambda: cpu.gemm(x, w))
                programs.append(cpu.program([recorded], [cpu.place(x)], [cpu.place(recorded.result)]))
                expected.append([cpu.gemm(one, w) for one in given])
        with cpu.session(4):
            cpu.replay_programs(2 * programs, [given], [[]] * 4, [found])
    np.testing.assert_array_equal(found, [expected[i % 2][i] for i in range(4)])


def test_arrays_that_do_not_fit_a_program_are_refused():
    x = np.zeros(5, np.float32)
    recorded = taped(lambda: cpu.affine(x, mul=2.0))
    program, rows = cpu.program([recorded], [cpu.place(x)], [cpu.place(recorded.result)]), np.zeros((2, 5), np.float32)
    for before, own, after in (
        ([rows[:, :4].copy()], [[], []], [rows]),
        ([rows], [[], []], [rows[:, :4].copy()]),
        ([rows[:1]], [[], []], [rows]),
        ([], [[cpu.place(rows[0])], [cpu.place(rows[0, :4])]], [rows]),
        ([rows], [[cpu.place(rows[0])], []], [rows]),
    ):
        with pytest.raises(ValueError, match="replay_programs"):
            cpu.replay_programs([program] * 2, before, own, after)
    asks = taped(lambda: (cpu.aside(lambda: None), cpu.affine(x, mul=2.0))[1])
    assert cpu.program([asks], [], []) is None  # it calls the interpreter


def test_what_the_interpreter_does_is_done_between_them(calls):
    seen, x = [], np.zeros(3, np.float32)

    def work():
        y = cpu.affine(x, mul=2.0)
        cpu.aside(lambda: seen.append(y[0]))
        return y

    recorded = taped(work)
    ones, twos = np.ones(3, np.float32), np.full(3, 2, np.float32)
    cpu.replay([(ones, x), recorded, (twos, x), recorded])
    assert seen == [2, 4] and len(calls) > 2


@pytest.mark.parametrize("size", [1, 2, 4])
def test_only_the_calling_thread_calls_the_interpreter_and_others_wait(size, rng):
    w, x = rng.standard_normal((50, 50), np.float32), rng.standard_normal((64, 50), np.float32)
    seen, wrong, out = [], [], np.zeros((64, 50), np.float32)

    def look(y):
        seen.append((y.copy(), threading.get_ident()))
        time.sleep(0.01)  # the other threads would go on
        y[:] = 1
        if wrong:
            raise ValueError("wrong")

    def work():
        first = cpu.gemm(x, w, tb=True)
        cpu.aside(lambda: look(first))
        second = cpu.gemm(first, w, tb=True)
        cpu.aside(lambda: look(second))
        return cpu.copy(second, out=out)

    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"), cpu.session(size):
        expected = [cpu.gemm(x, w, tb=True), cpu.gemm(np.ones_like(x), w, tb=True)]
        recorded = taped(work)
        assert recorded.threads == size
        for _ in range(3):
            recorded.replay()
            assert [y.tobytes() for y, _ in seen] == [y.tobytes() for y in expected]
            assert {by for _, by in seen} == {threading.get_ident()} and (out == 1).all()
            seen.clear()
            out[:] = 0
        wrong.append(True)
        with pytest.raises(ValueError, match="wrong"):
            recorded.replay()
        assert len(seen) == 1 and not out.any()  # the rest is left out
        wrong.clear()
        recorded.replay()
        assert len(seen) == 3 and (out == 1).all()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("after", [0, 1])
def test_a_signal_between_two_stretches_lets_the_other_threads_go(size, after, rng, monkeypatch):
    w, out, done = rng.standard_normal((50, 50), np.float32), np.zeros((64, 50), np.float32), []

    def work():
        y = cpu.gemm(x, w, tb=True)
        for _ in range(3):
            cpu.aside(lambda: None)
            y = cpu.gemm(y, w, tb=True)
        return cpu.copy(y, out=out)

    def run(*given, original=callees.run):
        original(*given)
        if threading.current_thread() is threading.main_thread():
            done.append(True)
            if len(done) == after + 1:
                raise KeyboardInterrupt

    x = rng.standard_normal((64, 50), np.float32)
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"), cpu.session(size):
        recorded = taped(work)
        monkeypatch.setattr(callees, "run", run)
        with pytest.raises(KeyboardInterrupt):
            recorded.replay()
        assert len(done) == after + 1 and not out.any()
        recorded.replay()
        assert len(done) > after + 1 and out.any()


def test_arrays_of_other_sizes_and_with_gaps_are_refused():
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match=r"float32 \(4, 4\) is not of the size of float32 \(2, 4\)"):
        cpu.replay([(x, x[:2].copy())])
    with pytest.raises(ValueError, match="has gaps"):
        cpu.replay([(x[:, 1], np.zeros(4, np.float32))])


def test_a_loop_that_fails_is_named():
    @host_kernel("void(i8[::1])")
    def refuses(x):
        if x[0] > 1:
            raise ValueError("no")

    x, numbers, seen = np.zeros(1, np.int64), np.arange(4).reshape(4, 1), np.zeros(4, np.int64)
    recorded = taped(lambda: refuses(x))
    with pytest.raises(RuntimeError, match="refuses failed"):
        cpu.replay([action for i in range(4) for action in ((numbers[i], x), recorded, (x, seen[i : i + 1]))])
    assert seen.tolist() == [0, 1, 0, 0]  # nothing is executed after it
    with threadpool_limits(2, user_api="blas"), cpu.session(2):
        both = np.zeros((2, 1), np.int64)
        shared = taped(lambda: threads.share(lambda part: refuses(both[part.number])))
        with pytest.raises(RuntimeError, match="refuses failed"):
            cpu.replay([(numbers[3], both[1]), shared, shared])
        cpu.replay([(numbers[0], both[1]), shared, shared])


@pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
def test_graphs_and_copies_on_the_emulated_device():
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, found = emulated.upload(given[0]), emulated.full((2, 3), 0.0)
    emulated.affine(x, mul=2.0)
    graph = emulated.record(lambda: emulated.affine(x, mul=2.0))
    views, places = emulated.places(found)
    actions = [action for i in range(2) for action in ((given[i], x), graph, (emulated.place(graph.result), places[i]))]
    emulated.replay(actions)
    np.testing.assert_array_equal(emulated.download(found), 2 * given)
    np.testing.assert_array_equal([emulated.download(view) for view in views], 2 * given)
    assert [view.shape for view in emulated.places(emulated.full((2,), 0.0))[0]] == [(), ()]
    program, results = emulated.program([graph], [x], [graph.result]), emulated.full((2, 3), 0.0)
    emulated.replay_programs([program] * 2, [emulated.upload(given)], [[]] * 2, [results])
    np.testing.assert_array_equal(emulated.download(results), 2 * given)
