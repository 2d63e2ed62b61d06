"""Checkpoints of several ranks: rank 0 writes them, and all ranks go on from them to the same bits."""

import os
import signal
import textwrap

import numpy as np
import pytest

from numbanet import Hook, LanguageModel, Net
from numbanet.dropout import DynamicSparseGraph
from numbanet.parallel import run_ranks
from numbanet.parallel.joining import LeftTogether

from ..resuming.stopped import alone, assert_same
from .test_equal import IMAGES, LABELS, SETTINGS, WORDS, X, Y
from .test_mpi import MPIEXEC, PROGRAM, ended, gone, started

MLP = {"epochs": 4, "batch_size": 64, **SETTINGS}
SCALED = IMAGES * (1 + np.arange(len(IMAGES)) % 2)[:, None, None, None].astype(np.float32)  # brighter on the second rank
FITS = {
    "rdp": (Net((32, 32), dropout="rdp", **MLP), (X, Y), False),
    "bits of each sample": (Net((32,), dropout="bernoulli", optimizer="adam", **MLP), (X, Y), False),
    "shards": (Net((32,), dropout="bernoulli", shard=True, **MLP), (X, Y), True),
    "early stopping": (Net((32,), early_stopping=True, patience=1, learning_rate=0.1, **MLP), (X, Y), False),
    "rows of images of a rank": (Net("lenet5", dropout="rsdp", shard=True, **{**MLP, "epochs": 3}), (SCALED, LABELS), True),
    "rows of images": (Net("lenet5", dropout="rsdp", **{**MLP, "epochs": 3}), (IMAGES, LABELS), False),
    "chosen neurons": (Net((32, 32), dropout=DynamicSparseGraph(0.5, epsilon=0.9), **MLP), (X, Y), False),
    "chosen gates": (LanguageModel((16,), gate_sparsity=0.5, steps=8, **{**MLP, "batch_size": 8}), (WORDS,), False),
    "states of cells": (LanguageModel((16,), dropout="batchwise", steps=8, **{**MLP, "batch_size": 8}), (WORDS,), False),
}


def of_rank(ranks, data, sharded):
    return [part[ranks.rank :: ranks.size] for part in data] if sharded else data


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dsg:UserWarning", "ignore:fit:UserWarning")
@pytest.mark.parametrize("name", FITS)
def test_ranks_go_on_to_the_same_bits(name, tmp_path):
    net, data, sharded = FITS[name]

    def whole(ranks):
        own = type(net)(**{**net.get_params(), "parallel": ranks})
        return own.fit(*of_rank(ranks, data, sharded), checkpoint=tmp_path / "all", every=3, keep=1000)

    def resumed(ranks):
        return type(net).resume(folder, parallel=ranks).fit(*of_rank(ranks, data, sharded))

    first = run_ranks(2, whole)
    files = len(list((tmp_path / "all").iterdir()))
    assert files > 4
    for number in (0, files // 2):
        folder = alone(tmp_path / "all", number, tmp_path / "one")
        for before, after in zip(first, run_ranks(2, resumed), strict=True):
            assert_same(before, after)


def test_the_number_of_ranks_must_not_change(tmp_path):
    def fit(ranks):
        return Net((8,), epochs=2, parallel=ranks, **SETTINGS).fit(X, Y, checkpoint=tmp_path)

    run_ranks(2, fit)
    with pytest.raises(ValueError, match=r"was written by 2 process\(es\), and 3 resume it: start 2"):
        run_ranks(3, lambda ranks: Net.resume(tmp_path, parallel=ranks).fit(X, Y))
    with pytest.raises(ValueError, match="and 1 resume it"):
        Net.resume(tmp_path, parallel=None).fit(X, Y)


def test_a_signal_to_one_rank_ends_all_after_the_same_step(tmp_path):
    class Asks(Hook):
        watches = changes = False

        def after_update(self, run):
            if run.optimizer.steps == 3 and run.stepper.ranks.rank == 1:
                next(hook for hook in run.hooks if hasattr(hook, "asked")).asked = True

    def stopped(ranks):
        net = Net((16,), dropout="rdp", parallel=ranks, **MLP, callbacks=[Asks()])
        with pytest.raises(LeftTogether) as left:
            net.fit(X, Y, checkpoint=tmp_path)
        return left.value.code

    def resumed(ranks):
        return Net.resume(tmp_path, parallel=ranks, callbacks=[]).fit(X, Y)

    assert run_ranks(2, stopped) == [128 + signal.SIGTERM] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001.safetensors"]
    whole = run_ranks(2, lambda ranks: Net((16,), dropout="rdp", parallel=ranks, **MLP).fit(X, Y, checkpoint=tmp_path / "b"))
    for before, after in zip(whole, run_ranks(2, resumed), strict=True):
        assert_same(before, after)


def test_a_callback_that_stops_one_rank_stops_all(tmp_path):
    """Also where only the last epoch is due to be saved."""

    def fit(ranks):
        stop = [lambda net, record: ranks.rank == 0 and record["epoch"] == 2]
        net = Net((8,), parallel=ranks, callbacks=stop, **{**MLP, "epochs": 6}).fit(X, Y, checkpoint=tmp_path, every=1000)
        return net.n_iter_

    assert run_ranks(2, fit) == [2, 2]


def test_an_error_goes_before_a_signal(tmp_path):
    class Fails(Hook):
        watches = changes = False

        def after_update(self, run):
            if run.stepper.ranks.rank == 1 and run.optimizer.steps == 3:
                next(hook for hook in run.hooks if hasattr(hook, "asked")).asked = True
                raise OSError("no disk")

    def fit(ranks):
        return Net((8,), parallel=ranks, callbacks=[Fails()], **MLP).fit(X, Y, checkpoint=tmp_path)

    with pytest.raises(OSError, match="no disk"):
        run_ranks(2, fit)


# --- processes --------------------------------------------------------------------------------------------------------
CHECKPOINTED = """
    class Shows(Hook):
        watches = changes = False

        def after_update(self, run):
            if run.optimizer.steps == 20:
                Path(sys.argv[1], f"{RANK} {os.getpid()}").touch()

    folder = Path(sys.argv[1], "run")
    if any(folder.glob("*.safetensors")):
        net = Net.resume(folder, callbacks=[], epochs=int(sys.argv[2])).fit(X, y)
    else:
        net = Net((16,), epochs=int(sys.argv[2]), callbacks=[Shows()], **SETTINGS).fit(X, y, checkpoint=folder, every=7)
    np.savez(f"{sys.argv[1]}/{RANK}.npz", **{name: t.numpy() for name, t, _ in net.model_.named()})
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")
def test_processes_that_sigterm_ended_go_on_to_the_same_bits(tmp_path):
    program, stopped, whole = PROGRAM + textwrap.dedent(CHECKPOINTED), tmp_path / "stopped", tmp_path / "whole"
    stopped.mkdir(), whole.mkdir()
    process = started(program, 2, stopped, 100000)
    while len(list(stopped.glob("? *"))) < 2:
        assert process.poll() is None, process.communicate()
    os.kill(int(next(stopped.glob("1 *")).name.split()[1]), signal.SIGTERM)
    status, out, errors = ended(process, 10)
    assert status == 128 + signal.SIGTERM and "Traceback" not in errors, (status, errors)
    state = Net.resume(stopped / "run", callbacks=[], parallel="mpi")
    assert state._unfinished.state["optimizer"]["steps"] >= 20
    both = [started(program, 2, folder, len(state.history_) + 2) for folder in (stopped, whole)]  # at the same time
    try:
        found = [ended(process) for process in both]
    finally:
        for process in both:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert [status for status, *_ in found] == [0, 0], found
    for rank in range(2):
        found, expected = (np.load(folder / f"{rank}.npz") for folder in (stopped, whole))
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")
def test_fifty_killed_ranks_leave_no_process_and_a_whole_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        victim = int(rng.integers(2))
        process = started(PROGRAM + textwrap.dedent(CHECKPOINTED), 2, folder, 100000)
        while len(list(folder.glob("? *"))) < 2:
            assert process.poll() is None, process.communicate()
        ids = dict(map(int, path.name.split()) for path in folder.glob("? *"))
        os.kill(ids[victim], signal.SIGKILL)
        status, out, errors = ended(process, 10)
        assert status != 0 and all(map(gone, ids.values())), (number, out, errors)
        assert Net.resume(folder / "run", callbacks=[])._unfinished.state["optimizer"]["steps"] >= 14
