"""Sums of ranks that share memory: the ranks are threads here, and processes in `test_mpi`."""

import os
import threading

import numpy as np
import pytest

from numbanet import Net
from numbanet.parallel import run_ranks
from numbanet.parallel.ranks import RankFailure
from numbanet_kernels.host import shared_sums
from numbanet_kernels.host.shared_sums import SharedSums

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create")


X = np.random.default_rng(0).standard_normal((100, 150), np.float32)
Y = X[:, :3].argmax(1)


def placed(sums, values):
    """A copy of an array in a file of this rank."""
    array = np.frombuffer(sums.allocate(max(values.nbytes, 1)), values.dtype, values.size).reshape(values.shape)
    array[...] = values
    return array


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sums_are_those_of_all_ranks_in_the_same_bits(size, monkeypatch):
    """Of sizes that parts and blocks divide and do not divide, smaller than a part as well, one after the other."""
    monkeypatch.setattr(shared_sums, "ALIGNED", 4)
    monkeypatch.setattr(shared_sums, "BLOCK", 10)
    shapes = (0,), (1,), (3,), (4 * size,), (7, 19), (200,)
    values = [
        [np.random.default_rng([rank, n]).standard_normal(s, np.float32) for n, s in enumerate(shapes)] for rank in range(size)
    ]

    def work(ranks):
        sums = SharedSums(ranks)
        arrays = [placed(sums, own) for own in values[ranks.rank]]
        assert all(sums.sum(array) for array in arrays)
        return [array.copy() for array in arrays]

    found = run_ranks(size, work)
    for n, shape in enumerate(shapes):
        assert all(np.array_equal(found[0][n], other[n]) for other in found)
        assert found[0][n].shape == shape
        np.testing.assert_allclose(found[0][n], sum(own[n].astype(float) for own in values), atol=1e-6)


def test_an_array_may_begin_anywhere_in_a_file_of_the_pool():
    def work(ranks):
        sums = SharedSums(ranks)
        room = placed(sums, np.zeros(5000 + ranks.rank, np.float64))
        own = room[100 + 7 * ranks.rank :][:4000]
        own[:] = np.arange(4000) * (ranks.rank + 1)
        assert sums.sum(own)
        return own.copy(), room.sum() - own.sum()

    for own, rest in run_ranks(3, work):
        assert np.array_equal(own, 6 * np.arange(4000)) and rest == 0


def test_nothing_is_summed_if_the_array_of_one_rank_is_in_no_file():
    def work(ranks):
        sums = SharedSums(ranks)
        inside = placed(sums, np.ones(20, np.float32))
        array = np.ones(20, np.float32) if ranks.rank == 1 else inside
        first = sums.sum(array)
        return first, array.sum(), sums.sum(inside), inside.sum()

    assert run_ranks(3, work) == [(False, 20, True, 60)] * 3


def test_files_that_are_deleted_are_closed_and_new_ones_are_mapped(monkeypatch):
    monkeypatch.setattr(shared_sums, "MAPPED", 2)

    def work(ranks):
        sums, open_files = SharedSums(ranks), []
        for turn in range(5):
            array = placed(sums, np.full(20, turn + ranks.rank, np.float32))
            assert sums.sum(array) and (array == 2 * turn + 1).all()
            del array
            open_files.append(len(sums.files))
        kept = len(sums.mapped)
        sums.forget()
        return open_files, kept, len(sums.mapped)

    assert run_ranks(2, work) == [([0] * 5, 2, 0)] * 2


def test_a_rank_that_fails_ends_the_waiting_of_the_others():
    def work(ranks):
        sums = SharedSums(ranks)
        array = placed(sums, np.ones(20, np.float32))
        if ranks.rank == 1:
            raise ValueError("no more")
        with pytest.raises(RankFailure, match="rank 1 of 2 failed: ValueError: no more"):
            sums.sum(array)

    with pytest.raises(ValueError, match="no more"):
        run_ranks(2, work)


@pytest.mark.parametrize("dropout", ["none", "rdp"])
def test_large_gradients_of_a_fit_are_in_files_and_their_sums_those_of_one_process(dropout):
    """In steps that are recorded and in those that are not; small gradients are joined, and summed otherwise."""
    settings = {"dropout": dropout, "epochs": 4, "batch_size": 20, "random_state": 0, "device": "cpu", "optimizer": "sgd"}

    def fit(ranks):
        ranks.shared, others, found = SharedSums(ranks), ranks.start, []

        def start(array):
            return (
                others(array)
                if array.ndim < 2 or array.nbytes < ranks.shared.least
                else lambda: found.append(ranks.shared.sum(array))
            )

        ranks.start = start
        net = Net((300, 200), parallel=ranks, **settings).fit(X, Y)
        return net, found, len(ranks.shared.mapped)

    for net, found, mapped in run_ranks(2, fit):
        assert len(found) > 2 * 5 and all(found) and not mapped
        alone = Net((300, 200), **settings).fit(X, Y)
        for ours, theirs in zip(net.model_.parameters(), alone.model_.parameters()):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


def test_processes_of_another_namespace_are_noticed(monkeypatch):
    """The number of the process is that of another one there, which may have a file of the same size."""

    def work(ranks):
        tokens.rank = ranks.rank
        with pytest.raises(OSError, match="rank 1 is not in this namespace"):
            SharedSums(ranks)
        return True

    tokens, real = threading.local(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, mark, at: real(file, mark[::-1] if tokens.rank else mark, at))
    assert run_ranks(2, work) == [True, True]


@pytest.mark.parametrize("fails", ["memfd_create", "open"])
def test_all_ranks_are_told_if_one_cannot_share(fails, monkeypatch):
    def work(ranks):
        if ranks.rank == 1:
            local.rank = 1
        with pytest.raises(OSError, match="not here"):
            SharedSums(ranks)
        return True

    local, real = threading.local(), getattr(os, fails)

    def failing(*args, **options):
        if getattr(local, "rank", 0):
            raise OSError("not here")
        return real(*args, **options)

    monkeypatch.setattr(os, fails, failing)
    assert run_ranks(2, work) == [True, True]
