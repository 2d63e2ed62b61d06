"""Threads: every part once, errors, several users at a time, fork, and what is left of BLAS's threads."""

import concurrent.futures
import operator
import os
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  a BLAS of its own, loaded before the first session looks for them
import threadpoolctl

from numbanet import Net
from numbanet_kernels.families.gemm import gemm_cpu, multiply_back
from numbanet_kernels.host import threads
from numbanet_kernels.runtime import atomic


@pytest.fixture(params=[1, 2, 5])
def count(request):
    with threadpoolctl.threadpool_limits(request.param, user_api="blas"):
        yield request.param


def blas_threads():
    """Of NumPy's BLAS, or of all where none is its own."""
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return [pool["num_threads"] for pool in [pool for pool in pools if "numpy" in pool["filepath"]] or pools]


@pytest.mark.parametrize("n", [0, 1, 4, 5, 17])
def test_parts_cover_everything_once(count, n):
    seen, names = np.zeros(n, int), set()

    def work(part):
        seen[part.of(n)] += 1
        names.add(threading.current_thread().name)
        assert blas_threads() and set(blas_threads()) == {1}

    threads.share(work)
    assert (seen == 1).all() and len(names) == count == threads.count()
    assert set(blas_threads()) == {count}


def test_a_part_always_goes_to_the_same_thread(count):
    owners = [{} for _ in range(20)]
    for owner in owners:
        threads.share(lambda part, owner=owner: owner.update({part.number: threading.get_ident()}))
    assert all(owner == owners[0] for owner in owners)


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_an_error_comes_out_and_leaves_the_crew_fit_for_work(failing):
    def work(part):
        if part.number == failing:
            raise RuntimeError(f"part {part.number}")

    before = blas_threads()
    with threadpoolctl.threadpool_limits(5, user_api="blas"):
        with pytest.raises(RuntimeError, match=f"part {failing}"):
            threads.share(work)
        done = []
        threads.share(lambda part: done.append(part.number))
        assert sorted(done) == [0, 1, 2, 3, 4]
    assert blas_threads() == before


def test_error_state_of_numpy_holds_in_every_part(count):
    def work(part):
        with pytest.raises(FloatingPointError):
            np.exp(np.full(10, 1e5, np.float32))

    with np.errstate(over="raise"):
        threads.share(work)


def test_sharing_inside_a_part_and_from_other_threads_gives_the_same_bits(rng):
    a, b = rng.standard_normal((40, 600)).astype(np.float32), rng.standard_normal((600, 400)).astype(np.float32)

    def product():
        return multiply_back(a, lambda part: b[part.of(600)], np.empty((40, 400), np.float32))

    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        expected, inside, others = product(), [], []
        threads.share(lambda part: inside.append(product()))
        users = [threading.Thread(target=lambda: others.extend(product() for _ in range(50))) for _ in range(3)]
        for user in users:
            user.start()
        for user in users:
            user.join()
    assert len(inside) == 3 and len(others) == 150
    assert all(np.array_equal(y, expected) for y in inside + others)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_a_crew_of_its_own():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        threads.share(lambda part: None)
        child = os.fork()
        if child == 0:
            done = []
            threads.share(lambda part: done.append(part.number))
            os._exit(len(done))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="needs two cores of Linux")
@pytest.mark.parametrize("meets, crowd", [(True, 0), (False, 0), (True, 1)])
def test_a_thread_on_the_core_of_its_sender_is_moved(monkeypatch, meets, crowd):
    cores = sorted(os.sched_getaffinity(0))

    def where():
        return cores[threading.current_thread().name == "numbanet-9" and not meets]

    monkeypatch.setattr(threads, "_current_core", lambda: where)
    worker, allowed, answers, done = threads._Worker(9, len(cores) + crowd), [], [], threads._Mailbox()
    for _ in range(2):  # the first letter finds where the thread is
        worker.send((lambda work, part: work(part), lambda part: allowed.append(os.sched_getaffinity(0)), None, answers, done))
        done.get(timeout=10)
    assert allowed == [set(cores), set(cores[1:] if meets and not crowd else cores)]


def in_a_thread(function):
    """What a function returns when another thread calls it."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def held():
    with threads.session():
        return blas_threads(), threads.count()


def test_any_thread_holds_blas_and_gives_it_back(count):
    everywhere = [count] * len(blas_threads())
    for enter in (held, lambda: in_a_thread(held), held):
        seen, parts = enter()
        assert set(seen) == {1} and parts == count and blas_threads() == everywhere
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with threads.session():
            entered.set()
            leave.wait(10)

    with threads.session():
        other = threading.Thread(target=stay)
        other.start()
        entered.wait(10)
    assert set(blas_threads()) == {1}  # the other one is still inside
    leave.set()
    other.join()
    assert blas_threads() == everywhere


def test_a_limit_makes_fewer_parts_and_holds_inside():
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        for outer, inner, expected in ((None, None, 4), (3, None, 3), (3, 2, 2), (2, 3, 2), (9, None, 4)):
            with threads.session(outer), threads.session(inner):
                done = []
                threads.share(lambda part, done=done: done.append(part))
                assert threads.count() == len(done) == expected


def interrupt(times=1):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.alone
def test_an_interrupt_waits_for_the_end_of_the_outermost_session(count, interruptible):
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with threads.session():
            with threads.session():
                threads.share(lambda part: interrupt() if part.number == 0 else None)
                reached.append("inside")
            reached.append("between")
        reached.append("after")
    assert reached == ["inside", "between"] and set(blas_threads()) == {count}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.alone
def test_a_second_interrupt_does_not_wait(interruptible):
    with pytest.raises(KeyboardInterrupt), threads.session():
        interrupt(2)
        pytest.fail("this is not reached")  # pragma: no cover
    held()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.alone
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signal.setitimer")
def test_what_a_signal_handler_raises_comes_after_all_parts():
    finished = []

    def work(part):
        time.sleep(0.3 * part.number)
        finished.append(part.number)

    def handler(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with threadpoolctl.threadpool_limits(2, user_api="blas"):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(TimeoutError):
                threads.share(work)
            assert finished == [0, 1]
            threads.share(lambda part: finished.append(part.number))
            assert sorted(finished) == [0, 0, 1, 1]
    finally:
        signal.signal(signal.SIGALRM, before)


# --- beside other processes -------------------------------------------------------------------------------------------
@pytest.mark.busy
def test_busy_cores_are_left_for_a_while_that_doubles(monkeypatch):
    """Also by recorded work, which has a function for one thread."""
    crew, clock, lost = threads._Crew(2), [100.0], atomic.pauses().copy()
    monkeypatch.setattr(threads, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(atomic, "pauses", lambda: lost)

    def threads_of(share, seconds, lost_seconds):
        seen = []

        def work(part):
            seen.append(threading.get_ident())
            if part.number == 0:
                clock[0] += seconds
                lost[atomic.LOST] += int(1e9 * lost_seconds)

        share(work)
        return len(set(seen))

    assert threads_of(crew.share, 1.0, 0.4) == 2 and threads_of(crew.share, 0.015, 0.015) == 2  # too short to tell
    assert threads_of(crew.share, 1.0, 0.6) == 2  # 20 ms alone follow
    assert threads_of(crew.share, 0.019, 1.0) == 1 and threads_of(crew.share, 0.001, 0.0) == 1
    assert threads_of(crew.share, 1.0, 0.6) == 2 and threads_of(crew.share, 0.04, 0.0) == 1  # 40 ms
    assert threads_of(crew.share, 1.0, 0.0) == 2 and threads_of(crew.share, 1.0, 0.9) == 2
    alone = []
    crew.share(lambda part: alone.append("shared"), lambda: alone.append("alone"))
    assert alone == ["alone"] and crew.pause == 0.04
    for _ in range(10):
        clock[0] += 1.0
        assert threads_of(crew.share, 1.0, 0.9) == 2
    assert crew.pause == crew.MOST


@pytest.mark.busy
@pytest.mark.parametrize("size, most", [(2, 0.5), (4, 2.25), (16, 14.0625)])
def test_more_threads_may_lose_more(size, most):
    """While N threads lose less than (N - 1)² / N of the time, sharing is faster than one thread."""
    for factor, left in ((0.99, False), (1.01, True)):
        crew, now = threads._Crew(size), time.perf_counter()
        crew._judge(now - 10, int(1e10 * factor * most))
        assert (crew.resume > now) == left


@pytest.mark.alone
def test_two_interrupts_leave_the_crew_fit_for_work(interruptible):
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with pytest.raises(KeyboardInterrupt):
            threads.share(lambda part: interrupt(2) if part.number == 0 else time.sleep(0.2))
        assert not threads._crew(2).free.locked()
        names = []
        threads.share(lambda part: names.append(threading.current_thread().name))
        assert len(set(names)) == 2


@pytest.mark.busy
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_a_fit_beside_busy_processes_takes_little_longer_than_on_one_thread():
    """With threads that waited for each other at every barrier it took 14 times as long. At least once in four."""
    X, y = np.random.default_rng(0).random((900, 64), np.float32), np.arange(900) % 10

    def seconds(n_jobs):
        net = Net((512, 512), epochs=6, n_jobs=n_jobs, random_state=0).fit(X, y)
        return np.median([record["seconds"] for record in net.history_[2:]])

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        assert any(seconds(None) <= 2 * seconds(1) for _ in range(4))
    finally:
        for process in busy:
            process.kill()
            process.wait()
        threads._crew.cache_clear()


def microseconds(call, times=200):
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


@pytest.mark.alone
@pytest.mark.parametrize("threads_of_blas", [1, 2])
def test_a_small_product_takes_little_more_than_numpys(rng, threads_of_blas):
    """At most 3.3 times as long, as 10 microseconds are to 3. At least once in four."""
    x, w = rng.standard_normal((32, 64)).astype(np.float32), rng.standard_normal((48, 64)).astype(np.float32)

    def ratio():
        pairs = [(microseconds(lambda: gemm_cpu(x, w, tb=True)), microseconds(lambda: np.matmul(x, w.T))) for _ in range(15)]
        return operator.truediv(*map(min, zip(*pairs, strict=True)))

    with threadpoolctl.threadpool_limits(threads_of_blas, user_api="blas"):
        assert any(ratio() <= 3.3 for _ in range(4))


@pytest.mark.parametrize("shape", [(5, 20, 30), (64, 64, 62), (64, 65, 64), (1, 300, 2000)])
def test_products_that_are_not_shared_have_the_bits_of_one_thread(rng, shape):
    m, n, k = shape
    x, w = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
    with threads.session(1):
        expected = gemm_cpu(x, w, tb=True)
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        np.testing.assert_array_equal(gemm_cpu(x, w, tb=True), expected)
