"""Checkpoints: when they are written, how many are kept, what is refused, and what signals and errors leave."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from numbanet import EarlyDropout, Hook, LanguageModel, MagnitudePruning, Net, NetRegressor
from numbanet.cli import main
from numbanet.estimators import saving
from numbanet.estimators.resuming import saver
from numbanet.estimators.resuming.every import Every
from numbanet.estimators.resuming.folder import Folder

from .stopped import TEXT, Counts, X, Y, alone, assert_same, flat, language, mlp

ROOT = Path(__file__).parents[2]
STEPS = 8  # of an epoch


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps_of(folder):
    return [
        Net.resume(alone(folder, i, folder.parent / "some"))._unfinished.state["optimizer"]["steps"]
        for i in range(len(names(folder)))
    ]


# --- when -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("every, expected", [(None, [24, 32]), ("epoch", [24, 32]), (5, [30, 32]), (1000, [32]), ("2 h", [32])])
def test_checkpoints_are_written_when_they_are_due_and_the_last_two_are_kept(tmp_path, every, expected):
    mlp().fit(X, Y, checkpoint=tmp_path / "run", every=every)
    assert steps_of(tmp_path / "run") == expected


def test_as_many_as_asked_are_kept(tmp_path):
    mlp().fit(X, Y, checkpoint=tmp_path, every=8, keep=3)
    # written after the last step of each of 4 epochs, and at the end
    assert names(tmp_path) == [f"checkpoint-{number:06d}.safetensors" for number in (3, 4, 5)]


def test_times_are_seconds_minutes_and_hours(monkeypatch):
    assert [Every(text).seconds for text in ("30 s", "10 min", "1.5h")] == [30, 600, 5400]
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert Every("10 s").due(1, 90.0) and not Every("10 s").due(1, 90.5) and Every(5).due(10, 0) and not Every(5).due(9, 0)


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "soon", "0 s", "5 days", []])
def test_other_intervals_are_refused(tmp_path, every):
    with pytest.raises(ValueError, match="every must be 'epoch'"):
        mlp().fit(X, Y, checkpoint=tmp_path / "run", every=every)
    assert not (tmp_path / "run").exists()


# --- going on ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epochs", [2, 3])
def test_more_epochs_end_in_the_bits_of_a_fit_that_had_them_from_the_start(tmp_path, epochs):
    options = {"dropout": "rdp", "optimizer": "sgd"}
    mlp(**{"epochs": epochs, **options}).fit(X, Y, checkpoint=tmp_path / "short")
    long = mlp(**options, epochs=5).fit(X, Y, checkpoint=tmp_path / "long")
    assert_same(long, Net.resume(tmp_path / "short", epochs=5).fit(X, Y))
    assert_same(long, Net.resume(tmp_path / "short", epochs=5).fit(X, Y))  # from its own checkpoint now


@pytest.mark.parametrize(
    "options, named",
    [
        ({"learning_rate_schedule": "cosine"}, "learning_rate_schedule='cosine'"),
        ({"dropout": "rdp", "dropout_rate": EarlyDropout(0.5)}, "the dropout rate"),
        ({"sparsity": MagnitudePruning(0.5)}, r"sparsity=MagnitudePruning\(.*\)"),
    ],
)
def test_more_epochs_are_refused_where_earlier_epochs_would_have_been_others(tmp_path, options, named):
    mlp(**{"epochs": 2, **options}).fit(X, Y, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=f"{named} depends on the number of epochs"):
        Net.resume(tmp_path, epochs=4).fit(X, Y)


def test_gates_are_named_where_their_share_depends_on_the_number_of_epochs(tmp_path):
    words = "the cat sat on the mat".split() * 20
    LanguageModel((8,), epochs=2, steps=5, batch_size=2, gate_sparsity=0.5, random_state=0).fit(words, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"sparse gate gradients \(gate_schedule\) depends on the number of epochs"):
        LanguageModel.resume(tmp_path, epochs=4).fit(words)


def test_fewer_epochs_than_are_trained_are_refused(tmp_path):
    mlp().fit(X, Y, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="epochs=2, but 4 epochs are trained"):
        Net.resume(tmp_path, epochs=2).fit(X, Y)


def test_a_resumed_estimator_predicts_pickles_and_clones_before_it_goes_on(tmp_path):
    net, data, _ = flat(mlp(dropout="rdp"))
    net.fit(*data, checkpoint=tmp_path / "all", every=3, keep=99)
    first = Net.resume(alone(tmp_path / "all", 1, tmp_path / "one"))
    again = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    assert first.score(X, Y) > 0.1 and clone(first).get_params() == net.get_params()
    first.save(tmp_path / "file")
    for one in (first, again):
        assert_same(net, one.fit(X, Y))
    assert first.partial_fit(X, Y).n_iter_ == 5  # the fit is done


def test_partial_fit_before_it_goes_on_is_refused(tmp_path):
    mlp().fit(X, Y, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="partial_fit: the estimator was resumed"):
        Net.resume(tmp_path).partial_fit(X, Y)


def test_a_failed_fit_that_goes_on_can_be_called_again(tmp_path):
    def fail(net, record):
        raise OSError("full disk")

    net = mlp(dropout="rdp").fit(X, Y, checkpoint=tmp_path / "all", every=3, keep=99)
    other = Net.resume(alone(tmp_path / "all", 2, tmp_path / "one"), callbacks=[fail])
    with pytest.raises(OSError, match="full disk"):
        other.fit(X, Y)
    assert_same(net, other.set_params(callbacks=None).fit(X, Y))


def test_parameters_that_files_cannot_hold_are_given_again(tmp_path):
    def half(epoch):
        return 0.5

    net = mlp(learning_rate_schedule=half, random_state=np.random.RandomState(3))
    net.fit(X, Y, checkpoint=tmp_path / "all", every=3, keep=99)
    folder = alone(tmp_path / "all", 4, tmp_path / "one")
    with pytest.raises(ValueError, match=r"cannot hold learning_rate_schedule.*resume\(\.\.\., learning_rate_schedule="):
        Net.resume(folder)
    assert_same(net, Net.resume(folder, learning_rate_schedule=half).fit(X, Y))


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    mlp().fit(X, Y, checkpoint=folder)
    return folder


def test_other_data_are_refused(run):
    changed = X.copy()
    changed[17, 3] += 1
    for data in ((changed, Y), (X[::-1].copy(), Y[::-1].copy()), (X, Y, np.ones(len(Y)))):
        with pytest.raises(ValueError, match="data are not those of the checkpoint"):
            Net.resume(run).fit(*data)
    with pytest.raises(ValueError, match="data are not those"):
        Net.resume(run).fit(X, Y, validation=(X, Y))


def test_other_parameters_are_refused(run):
    with pytest.raises(ValueError, match=r"resume: .* was written with learning_rate=None, which must not change"):
        Net.resume(run, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"made with learning_rate_schedule=None, and the estimator has a function"):
        Net.resume(run).set_params(learning_rate_schedule=lambda epoch: 1.0).fit(X, Y)
    with pytest.raises(ValueError, match="resume: fit was called with dropout="):
        Net.resume(run).fit(X, Y, dropout="window")
    with pytest.raises(ValueError, match=r"made with momentum=0.9, and the estimator has 0.5"):
        Net.resume(run).set_params(momentum=0.5).fit(X, Y)
    with pytest.raises(ValueError, match="Net"):
        NetRegressor.resume(run)


def test_parameters_are_named_as_they_are_written(run):
    with pytest.raises(ValueError, match=r"written with layers=\(32, 32\), which must not change"):
        Net.resume(run, layers=(16,))
    with pytest.raises(ValueError, match=r"made with layers=\(32, 32\), and the estimator has \(16,\): set"):
        Net.resume(run).set_params(layers=(16,)).fit(X, Y)
    with pytest.raises(ValueError, match=r"dropout_rate=0.5, and the estimator has EarlyDropout\("):
        Net.resume(run).set_params(dropout_rate=EarlyDropout(0.5)).fit(X, Y)


def test_a_file_is_no_folder_of_checkpoints_and_a_folder_no_file(run, tmp_path):
    with pytest.raises(NotADirectoryError, match=f"is one checkpoint; give its folder, '{run}'$"):
        Net.resume(run / names(run)[-1])
    with pytest.raises(NotADirectoryError, match="checkpoint: .* is one checkpoint; give its folder"):
        mlp().fit(X, Y, checkpoint=run / names(run)[-1])
    with pytest.raises(NotADirectoryError, match=r"resume: '.*' is a file; give a folder$"):
        Net.resume(__file__)
    with pytest.raises(IsADirectoryError, match=f"cannot load '{tmp_path}': it is a folder; give the name of a file in it"):
        Net.load(tmp_path)


def test_another_version_is_refused(run, monkeypatch):
    monkeypatch.setattr("numbanet.estimators.resuming.resumed.__version__", "99.0")
    with pytest.raises(ValueError, match="and this is 99.0"):
        Net.resume(run)


def test_a_missing_hook_is_refused(tmp_path):
    mlp(callbacks=[Counts()]).fit(X, Y, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="state of a hook Counts, which this fit lacks"):
        Net.resume(tmp_path, epochs=5, callbacks=[]).fit(X, Y)
    with pytest.raises(ValueError, match=r"cannot hold callbacks.*resume\(\.\.\., callbacks="):
        Net.resume(tmp_path)


def test_a_hook_whose_state_no_file_can_hold_is_refused_before_training(tmp_path):
    class Odd(Counts):
        def state(self):
            return object()

    with pytest.raises(TypeError, match=r"checkpoint: .*object.* cannot be saved"):
        mlp(callbacks=[Odd()]).fit(X, Y, checkpoint=tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "options, error, named",
    [
        ({"every": 5}, ValueError, "every and keep are for checkpoints"),
        ({"checkpoint": "run", "keep": 0}, ValueError, "keep"),
        ({"checkpoint": __file__}, NotADirectoryError, "is a file"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, monkeypatch, options, error, named):
    monkeypatch.chdir(tmp_path)
    net = mlp()
    with pytest.raises(error, match=named):
        net.fit(X, Y, **options)
    assert not hasattr(net, "model_")


def test_measured_placements_are_refused(tmp_path):
    with pytest.raises(ValueError, match="objective='time' places layers by measured times"):
        mlp(device="auto", objective="time").fit(X, Y, checkpoint=tmp_path)


def test_a_folder_of_another_fit_is_refused(run):
    before = names(run)
    with pytest.raises(ValueError, match=r"has checkpoints of another fit: go on with it by Net.resume"):
        mlp().fit(X, Y, checkpoint=run)
    assert names(run) == before
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        Net.resume(run / "nothing")


def test_load_and_resume_tell_their_files_apart(run, tmp_path):
    with pytest.raises(ValueError, match=r"is a checkpoint: go on with Net.resume"):
        Net.load(run / names(run)[0])
    with pytest.raises(ValueError, match=r"holds a Net, not a LanguageModel: use Net.resume, with its folder"):
        LanguageModel.resume(run)
    mlp().fit(X, Y).save(tmp_path / "checkpoint-000001.safetensors")
    with pytest.raises(ValueError, match=r"is no checkpoint, but a saved estimator: use Net.load"):
        Net.resume(tmp_path)


def test_a_damaged_file_is_passed_over_with_a_warning(run, tmp_path):
    for name in names(run):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    newest = tmp_path / names(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    (tmp_path / ".partial-1").write_bytes(b"half")
    with pytest.warns(UserWarning, match="the checkpoint before is used"):
        net = Net.resume(tmp_path)
    assert len(net.history_) == 3 and net.fit(X, Y).n_iter_ == 4
    assert not (tmp_path / ".partial-1").exists()
    for name in names(tmp_path):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a safetensors file"):
        Net.resume(tmp_path)


def test_a_failed_write_leaves_the_files_that_were_there(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    folder.write(1, b"one", 2)

    def fail(*given):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        folder.write(2, b"two", 2)
    assert names(tmp_path) == ["checkpoint-000001.safetensors"]


# --- signals and errors -----------------------------------------------------------------------------------------------
CHILD = """
import os, signal, sys
from numbanet_kernels.host import thresholds
from tests.resuming.stopped import X, Y, Counts, mlp
class Sends(Counts):
    def after_update(self, run):
        super().after_update(run)
        if self.steps == 13:
            os.kill(os.getpid(), {number})
with thresholds.using(thresholds.Thresholds(lazy_elements=0)):
    mlp(dropout="rdp", callbacks=[Sends()]).fit(X, Y, checkpoint=sys.argv[1])
print("not reached")
"""


class Sends(Counts):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_signals_save_between_two_steps(tmp_path, number, status):
    """SIGTERM ends the process with 143; Ctrl-C raises KeyboardInterrupt as ever."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + CHILD.format(number=int(number))
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "run"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == status and "not reached" not in done.stdout, done.stderr
    if number == signal.SIGINT:
        way = f"; Net.resume({str(tmp_path / 'run')!r}).fit(...), with the same data, goes on from its last checkpoint"
        assert f"KeyboardInterrupt: fit was interrupted after 1 complete epoch, which the estimator keeps{way}" in done.stderr
    other = Net.resume(tmp_path / "run", callbacks=[Sends()])
    assert other._unfinished.state["optimizer"]["steps"] in (13, 14)
    whole = mlp(dropout="rdp", callbacks=[Sends()]).fit(X, Y, checkpoint=tmp_path / "whole")
    assert_same(whole, other.fit(X, Y))


def test_a_checkpoint_within_an_epoch_counts_complete_epochs(interruptible, tmp_path):
    class Stops(Hook):
        def between_steps(self, run):
            if run.epoch == 2 and len(run.done) == 1:
                signal.raise_signal(signal.SIGINT)

    net = mlp(callbacks=[Stops()])
    with pytest.raises(KeyboardInterrupt):
        net.fit(X, Y, checkpoint=tmp_path)
    again = Net.resume(tmp_path, callbacks=None)
    assert again.n_iter_ == len(again.history_) == net.n_iter_ == 2


@pytest.mark.parametrize("every", ["10 min", "epoch"])
@pytest.mark.parametrize("where", ["callback", "scoring"])
def test_an_interrupt_while_a_callback_runs_saves_the_epoch(interruptible, tmp_path, where, every):
    """Also one that arrives in validation, which is handled when the callback is called."""

    def interrupt(*given):
        if len(net.history_) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return 0.5

    options = {"callbacks": [lambda net, record: interrupt() > 1]}
    if where == "scoring":
        options = {"scoring": interrupt, "callbacks": [lambda net, record: False]}
    net = mlp(**options)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        net.fit(X, Y, validation=(X, Y), checkpoint=tmp_path, every=every)
    again = {**options, "callbacks": None} if where == "callback" else {"scoring": lambda *given: 0.5, "callbacks": None}
    resumed = Net.resume(tmp_path, **again)
    assert len(net.history_) == resumed.n_iter_ == 2 + (where == "scoring")
    plain = mlp(**again).fit(X, Y, validation=(X, Y))
    assert_same(plain, resumed.fit(X, Y, validation=(X, Y)))


def test_the_handler_of_sigterm_is_restored(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    mlp().fit(X, Y, checkpoint=tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    with pytest.raises(FloatingPointError, match="first epoch"):
        mlp(learning_rate=1e30).fit(X, Y, checkpoint=tmp_path, every=1)
    for i in range(len(names(tmp_path))):
        arrays = saving.read(tmp_path / names(tmp_path)[i])[1]
        assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype == np.float32)


def test_the_saver_counts_as_no_change(tmp_path):
    """Steps are queued and updates deferred as without checkpoints."""
    assert not saver.Saver(tmp_path, "epoch", 2, {}).changes and not saver.Saver(tmp_path, "epoch", 2, {}).watches


def test_a_language_model_refuses_another_text(tmp_path):
    language(epochs=1).fit(TEXT, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="data are not those"):
        LanguageModel.resume(tmp_path, epochs=2).fit(TEXT[::-1].copy())


# --- the command line -------------------------------------------------------------------------------------------------
def test_the_command_goes_on(tmp_path, capsys):
    command = ["train", "--layers", "16", "--epochs", "2", "--quiet", "--device", "cpu", "--checkpoint", str(tmp_path / "run")]
    assert main([*command, "--resume", "--every", "20"]) == 0  # starts, as there is no checkpoint
    assert main(command) == 2 and "go on with it by the same command with --resume, or give" in capsys.readouterr().err
    assert main([*command, "--resume", "--epochs", "3"]) == 0 and " 3 " in capsys.readouterr().out
    assert main([*command, "--resume", "--rate", "0.2"]) == 2 and "with --rate 0.5, which must" in capsys.readouterr().err
    assert main([*command, "--resume", "--layers", "8"]) == 2 and "with --layers 16, which must" in capsys.readouterr().err
    assert main(["train", "--resume"]) == 2 and "--checkpoint" in capsys.readouterr().err
