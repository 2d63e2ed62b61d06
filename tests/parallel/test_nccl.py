"""Gradients are summed in the memory of GPUs if each rank has its own. NCCL, GPUs and their streams are stand-ins: tested is
who calls what, in which order, and what happens if a rank fails. Where there is a GPU with NCCL, one rank uses them as well.
"""

import contextlib
import sys
import threading
import types
import warnings

import numpy as np
import pytest

from numbanet import SGD, Tensor
from numbanet.device import device, problem
from numbanet.parallel import Exchange, RankFailure, card_sums, run_ranks
from numbanet.parallel.nccl import CardSums
from numbanet.parallel.ranks import Team


class Stream:
    """A second stream, on which all is finished once it has been asked `busy` times."""

    busy = 3
    asked = 0

    def __init__(self, gpu="a"):
        self.log, self.stream, self.gpu = [], object(), gpu

    def enter(self):
        self.log.append("enter")

    def follow(self):
        self.log.append("follow")

    def end(self):
        self.log.append("end")
        return self.done

    def done(self):
        self.asked += 1
        return self.asked > self.busy


class Communicator:
    """Calls `summed` in place of a sum; each test says what that does."""

    @classmethod
    def init(cls, size, rank, unique):
        made = cls()
        made.rank, made.size, made.unique, made.aborted = rank, size, unique, False
        return made

    def allreduce(self, sent, received, op, stream):
        assert sent is received and op == "sum" and stream is not None
        self.summed(sent)

    def get_async_error(self):
        return 0

    def abort(self):
        self.aborted = True


@pytest.fixture
def nccl(monkeypatch):
    """A stand-in for nccl.core."""
    module = types.ModuleType("nccl.core")
    module.get_version = lambda: types.SimpleNamespace(libnccl="2.30")
    module.get_unique_id = lambda: b"one for all"
    module.UniqueId = types.SimpleNamespace(from_bytes=lambda data: data)
    module.Communicator, module.SUM, module.group = Communicator, "sum", contextlib.nullcontext
    package = types.ModuleType("nccl")
    package.core = module
    monkeypatch.setitem(sys.modules, "nccl", package)
    monkeypatch.setitem(sys.modules, "nccl.core", module)
    return module


def card(gpus):
    """A device whose GPUs have these names, in the order in which threads ask."""
    left = iter(gpus)
    return types.SimpleNamespace(second_stream=lambda: Stream(next(left)))


def test_ranks_with_gpus_of_their_own_have_one_communicator(nccl):
    dev = card("ab")
    found = run_ranks(2, lambda ranks: card_sums(ranks, dev).communicator)
    assert [(each.rank, each.size, each.unique) for each in found] == [(0, 2, b"one for all"), (1, 2, b"one for all")]


def test_fits_of_the_same_ranks_share_it(nccl):
    def work(ranks):
        one = card_sums(Team(ranks, sharded=False), dev)
        return one is card_sums(Team(ranks, sharded=True), dev)

    dev = card("abab")
    assert run_ranks(2, work) == [True, True]


@pytest.mark.parametrize("name", ["one gpu", "cpu", "emulated"])
def test_other_ranks_sum_on_the_host(name, nccl):
    dev = card("aa") if name == "one gpu" else device(name)
    assert run_ranks(2, lambda ranks: card_sums(ranks, dev)) == [None, None]


@pytest.mark.skipif(problem("cuda") is not None, reason="needs a GPU")
def test_cuda_sums_of_one_rank():
    """NCCL itself: it begins after the kernels before it, on the other stream, and its sums are complete after `finish`."""
    pytest.importorskip("nccl.core")
    dev, shapes = device("cuda"), [(2048, 1024), (7,)]

    def work(ranks):
        own = CardSums(ranks, dev.second_stream())
        arrays = [dev.upload(np.full(shape, 1.0, np.float32)) for shape in shapes]
        for turn in range(1, 4):
            for array in arrays:
                dev.copy(dev.add(array, array), out=array)
            own.start(arrays)()
            assert not own.kept
            for array in arrays:
                np.testing.assert_array_equal(dev.download(array), np.float32(2**turn))

    run_ranks(1, work)


def test_one_rank_sums_nothing(nccl):
    assert run_ranks(1, lambda ranks: card_sums(ranks, card("a"))) == [None]


@pytest.mark.parametrize("missing", ["nccl4py", "library", "library of rank 1"])
def test_rank_0_says_that_nccl_is_missing(missing, nccl, monkeypatch):
    if missing == "nccl4py":
        monkeypatch.setitem(sys.modules, "nccl.core", None)  # importing it raises ImportError
    left = iter(["2.30" if missing == "library of rank 1" else None, None])
    nccl.get_version = lambda: types.SimpleNamespace(libnccl=next(left))
    dev = card("ab")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run_ranks(2, lambda ranks: card_sums(ranks, dev)) == [None, None]
    (only,) = caught
    assert "NCCL is missing" in str(only.message) and "pip install 'numbanet[nccl]'" in str(only.message)


def test_a_rank_that_fails_before_there_is_a_communicator_is_noticed(nccl, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(Communicator, "init", classmethod(lambda *arguments: waits.wait(60)))

    def work(ranks):
        if ranks.rank == 1:
            ranks.broadcast(None)
            ranks.fail("OSError: no disk")
            return
        with pytest.raises(RankFailure, match="rank 1 of 2 failed: OSError: no disk"):
            CardSums(ranks, Stream())

    run_ranks(2, work)
    waits.set()


def sums(ranks, summed):
    made = CardSums(ranks, Stream())
    made.communicator.summed = summed
    return made


def test_a_sum_follows_the_kernels_and_is_waited_for(nccl):
    def work(ranks):
        made, arrays = sums(ranks, ranks.sum), [np.full(3, ranks.rank + 1.0, np.float32), np.ones((2, 2), np.float32)]
        finish = made.start(arrays)
        assert made.second.log == ["enter", "follow", "end"] and made.kept == [arrays]
        finish()
        assert made.second.asked == Stream.busy + 1 and not made.kept
        made.abort()
        return arrays, made.communicator.aborted

    for (one, other), aborted in run_ranks(2, work):
        assert not aborted
        np.testing.assert_array_equal(one, np.full(3, 3))
        np.testing.assert_array_equal(other, np.full((2, 2), 2))


def test_a_rank_that_fails_ends_the_wait_of_others(nccl, monkeypatch):
    """A GPU would wait for its sum for ever: the rank that fails in a pass, and the one that waits, end it."""
    monkeypatch.setattr(Stream, "busy", np.inf)
    waits = threading.Event()

    def work(ranks):
        own = sums(ranks, lambda array: None)
        exchange = Exchange(ranks, device("cpu"), own)
        with pytest.raises((OSError, RankFailure), match="no disk"), exchange.passes():
            exchange._start(np.ones(2, np.float32))
            if ranks.rank == 1:
                assert waits.wait(10)
                ranks.fail("OSError: no disk")
                raise OSError("no disk")
            waits.set()
            exchange([])
        return own.communicator.aborted and not own.kept

    assert run_ranks(2, work) == [True, True]


@pytest.mark.parametrize("early", [False, True], ids=["after the passes", "early"])
def test_gradients_stay_where_they_are(early, nccl):
    """Each is summed once, large and small ones, also if it had started before, and the loss is not changed."""
    dev, shapes, seen = device("emulated"), [(40, 5), (3,)], []

    def summed(array):
        seen.append(array.shape)
        dev.copy(dev.upload(2 * dev.download(array)), out=array)

    def work(ranks):
        parameters = [Tensor(np.zeros(shape), dev, requires_grad=True) for shape in shapes]
        sum((p * float(i + 1)).sum() for i, p in enumerate(parameters)).backward()
        exchange = Exchange(ranks, dev, sums(ranks, summed))
        SGD(parameters, 1.0)
        if early:
            exchange._start(parameters[0].gradient.values)  # as `complete` does with packed gradients
        loss = dev.upload(np.float32([5.0]))
        exchange(parameters, loss)
        assert dev.download(loss)[0] == 5 and exchange.sent == exchange.dense == 4 * 203
        return [p.grad.numpy() for p in parameters]

    (gradients,) = run_ranks(1, work)
    assert sorted(seen) == sorted(shapes)
    for i, (gradient, shape) in enumerate(zip(gradients, shapes)):
        np.testing.assert_array_equal(gradient, np.full(shape, 2 * (i + 1)))
