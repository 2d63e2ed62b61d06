"""Threads: every part once, errors, several users at a time, fork, and what is left of BLAS's threads."""
import os
import threading

import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels import threads
from numbanet_kernels.gemm import dx_cpu


@pytest.fixture(params=[1, 2, 5])
def count(request):
    with threadpoolctl.threadpool_limits(request.param, user_api="blas"):
        yield request.param


def blas_threads():
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]


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

    with threadpoolctl.threadpool_limits(5, user_api="blas"):
        with pytest.raises(RuntimeError, match=f"part {failing}"):
            threads.share(work)
        done = []
        threads.share(lambda part: done.append(part.number))
        assert sorted(done) == [0, 1, 2, 3, 4]
    assert 5 not in blas_threads() or os.cpu_count() == 5


def test_error_state_of_numpy_holds_in_every_part(count):
    def work(part):
        with pytest.raises(FloatingPointError):
            np.exp(np.full(10, 1e5, np.float32))

    with np.errstate(over="raise"):
        threads.share(work)


def test_sharing_inside_a_part_and_from_other_threads_gives_the_same_bits(rng):
    a, b = rng.standard_normal((40, 600)).astype(np.float32), rng.standard_normal((600, 400)).astype(np.float32)

    def product():
        return dx_cpu(a, lambda part: b[part.of(600)], np.empty((40, 400), np.float32))

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
