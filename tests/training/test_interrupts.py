"""Ctrl-C: what was learned is kept, and whoever called `fit` stops."""

import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from numbanet import LanguageModel, Net, NetRegressor, RowDropout, cli, demo
from numbanet.training import loop, recovery
from numbanet.training.run import Run
from tests.training.networks import SMALL, X_TEST, Y_TEST, X, Y, same, state

pytestmark = pytest.mark.usefixtures("interruptible")


class After:
    """A callback that interrupts when so many epochs are done, and counts the fits that got there."""

    def __init__(self, epochs):
        self.epochs, self.fits = epochs, 0

    def __call__(self, net, record):
        if record["epoch"] == self.epochs:
            self.fits += 1
            raise KeyboardInterrupt

    def __deepcopy__(self, memo):  # `clone` copies parameters: all clones count together
        return self


class AtOnce(RowDropout):
    def plan(self, site, rng):
        raise KeyboardInterrupt


def interrupted(estimator, data, target=None):
    with pytest.raises(KeyboardInterrupt, match="after 2 complete epochs, which the estimator keeps") as error:
        estimator.set_params(callbacks=[After(2)]).fit(data, *([] if target is None else [target]))
    assert type(error.value) is KeyboardInterrupt  # Python ends a script by SIGINT for no other
    return estimator.set_params(callbacks=None)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "tdp"])
@pytest.mark.parametrize("kind", [Net, NetRegressor])
@pytest.mark.filterwarnings("ignore:tdp")
def test_it_is_as_one_that_was_trained_for_fewer_epochs(kind, dropout):
    less = kind(**{**SMALL, "epochs": 2}, dropout=dropout, callbacks=[lambda net, record: None]).fit(X, Y)
    net = interrupted(kind(**SMALL, dropout=dropout), X, Y)
    assert net.n_iter_ == len(net.history_) == 2 and same(state(net), state(less))
    np.testing.assert_array_equal(net.predict(X_TEST), less.predict(X_TEST))
    assert net.score(X_TEST, Y_TEST) == less.score(X_TEST, Y_TEST)
    less.set_params(callbacks=None)
    again = pickle.loads(pickle.dumps(net))
    for one in (net, again, less):
        one.partial_fit(X, Y)
        assert one.n_iter_ == 3 and [record["epoch"] for record in one.history_] == [1, 2, 3]
    assert same(state(net), state(less)) and same(state(net), state(again))
    with pytest.raises(NotFittedError):
        clone(net).predict(X_TEST)
    assert same(state(net.set_params(epochs=3).fit(X, Y)), state(kind(**{**SMALL, "epochs": 3}, dropout=dropout).fit(X, Y)))


def test_a_language_model_keeps_what_it_learned():
    words = "the cat sat on the mat and the dog sat on the rug".split() * 40
    model = interrupted(LanguageModel((16,), epochs=9, batch_size=4, steps=8, random_state=0), words)
    assert model.n_iter_ == 2 and model.perplexity(words) < 11 and len(model.generate(["the"], 5)) == 5


def test_in_the_middle_of_an_epoch_it_keeps_the_steps_that_are_done(monkeypatch):
    def updated(self, samples, original=Run.updated):
        original(self, samples)
        if self.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "updated", updated)
    net, less = Net(**SMALL), Net(**{**SMALL, "epochs": 2}).fit(X, Y)
    with pytest.raises(KeyboardInterrupt, match="after 2 complete epochs"):
        net.fit(X, Y)
    assert net.n_iter_ == 2 and not same(state(net), state(less)) and net.score(X_TEST, Y_TEST) > 0.2


def breaking(monkeypatch, number):
    """In that epoch, counted from 0, the weights break, and somebody interrupts then."""

    def broken(run, *given, original=loop.epoch):
        found = original(run, *given)
        if run.epoch == number:
            weight = run.model.layers[0].weight
            weight.assign(np.full(weight.shape, np.nan, np.float32))
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(loop, "epoch", broken)


@pytest.mark.parametrize("number, apart", [(2, 1), (3, 20)], ids=["copied each epoch", "copied each other epoch"])
def test_weights_that_broke_are_not_kept(number, apart, monkeypatch):
    options, kept = {**SMALL, "batch_size": 100}, 2  # 15 steps an epoch
    less = Net(**{**options, "epochs": kept}).fit(X, Y)
    monkeypatch.setattr(recovery, "APART", apart)
    breaking(monkeypatch, number)
    net = Net(**options)
    with pytest.raises(KeyboardInterrupt, match=f"after {kept} complete epoch{'s' * (kept != 1)},"):
        net.fit(X, Y)
    assert net.n_iter_ == len(net.history_) == kept and same(state(net), state(less))
    monkeypatch.undo()
    assert same(state(net.partial_fit(X, Y)), state(less.partial_fit(X, Y)))


def test_without_a_copy_broken_weights_leave_the_net_as_it_was(monkeypatch):
    breaking(monkeypatch, 2)  # the only copy in fewer than 512 steps is that of the beginning
    net = Net(**SMALL)
    with pytest.raises(KeyboardInterrupt, match="the estimator is unchanged"):
        net.fit(X, Y)
    assert not hasattr(net, "model_")


def test_early_stopping_keeps_the_best_weights_so_far():
    options = {**SMALL, "early_stopping": True, "learning_rate": 0.05}
    scores = []
    watched = Net(**options, callbacks=[lambda net, record: scores.append(net.score(X_TEST, Y_TEST)), After(8)])
    with pytest.raises(KeyboardInterrupt):
        watched.fit(X, Y, validation=(X_TEST, Y_TEST))
    assert watched.score(X_TEST, Y_TEST) == pytest.approx(max(scores), abs=2e-4) and watched.n_iter_ == 8


def test_before_the_first_epoch_is_done_the_net_is_as_it_was():
    net = Net(**SMALL, dropout=AtOnce(0.5))
    with pytest.raises(KeyboardInterrupt, match="during the first epoch; the estimator is unchanged"):
        net.fit(X, Y)
    assert not hasattr(net, "model_")
    net.set_params(dropout="none", epochs=2).fit(X, Y)
    before = state(net)
    for call in (net.fit, net.partial_fit):
        with pytest.raises(KeyboardInterrupt):
            call(X, Y, dropout=AtOnce(0.5))
        assert same(state(net), before) and net.n_iter_ == 2


# --- searches ---------------------------------------------------------------------------------------------------------
SEARCHES = {
    "cross_val_score": lambda net: cross_val_score(net, X, Y, cv=3, error_score=0),
    "cross_validate": lambda net: cross_validate(net, X, Y, cv=3),
    "pipeline": lambda net: cross_val_score(make_pipeline(StandardScaler(), net), X, Y, cv=3),
    "GridSearchCV": lambda net: GridSearchCV(net, {"momentum": [0.8, 0.9]}, cv=3, error_score=0).fit(X, Y),
    "RandomizedSearchCV": lambda net: RandomizedSearchCV(net, {"momentum": [0.8, 0.9]}, n_iter=2, cv=3).fit(X, Y),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_stops(name):
    after = After(1)
    with pytest.raises(KeyboardInterrupt, match="interrupted after 1 complete epoch,"):
        SEARCHES[name](Net(**SMALL, callbacks=[after]))
    assert after.fits == 1


@pytest.mark.slow
def test_a_search_in_several_processes_stops():
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(Net(**SMALL, callbacks=[After(1)]), X, Y, cv=3, n_jobs=2)


# --- the command line -------------------------------------------------------------------------------------------------
def at_epoch(monkeypatch, number):
    """Training is interrupted when it has done so many epochs in all."""

    def broken(*given, original=loop.epoch, done=[]):  # noqa: B006  of all fits together
        if len(done) == number:
            raise KeyboardInterrupt
        done.append(number)
        return original(*given)

    monkeypatch.setattr(loop, "epoch", broken)


def test_train_ends_with_its_table_and_130(capsys, monkeypatch, tmp_path):
    at_epoch(monkeypatch, 2)
    assert cli.main(["train", "--layers", "16", "--quiet", "--plot", str(tmp_path / "a.png")]) == 130
    said = capsys.readouterr()
    assert "test accuracy" in said.out and " 2 " in said.out and (tmp_path / "a.png").is_file()
    assert said.err == "numbanet: fit was interrupted after 2 complete epochs, which the estimator keeps\n"


def test_train_with_checkpoints_says_how_it_goes_on(capsys, monkeypatch, tmp_path):
    at_epoch(monkeypatch, 1)
    command = ["train", "--layers", "16", "--epochs", "2", "--quiet", "--checkpoint", str(tmp_path / "run")]
    assert cli.main(command) == 130
    said = capsys.readouterr().err
    assert "; the same command with --resume goes on from its last checkpoint\n" in said
    monkeypatch.undo()
    assert cli.main([*command, "--resume"]) == 0


def test_train_that_has_learned_nothing_ends_with_130(capsys, monkeypatch):
    at_epoch(monkeypatch, 0)
    assert cli.main(["train", "--layers", "16", "--quiet"]) == 130
    assert tuple(capsys.readouterr()) == ("", "numbanet: interrupted\n")


def test_the_demo_ends_with_the_table_of_what_is_done(capsys, monkeypatch, tmp_path):
    at_epoch(monkeypatch, 3)
    assert demo.run(tmp_path / "demo.png", "cpu", (16, 16), epochs=2) == 130
    table = capsys.readouterr().out.rpartition("test accuracy")[2]
    assert "none" in table and "bernoulli" not in table and not list(tmp_path.iterdir())


SCRIPT = """
from numbanet import Net
from numbanet.datasets import load_digits
X, y, _, _ = load_digits()
Net((16,), epochs=10**6, verbose=1).fit(X, y)
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    "arguments, status, last",
    [
        (["-m", "numbanet", "train", "--layers", "16", "--epochs", "1000000"], 130, "test accuracy"),
        (["-c", SCRIPT], -signal.SIGINT, ""),
    ],
    ids=["train", "script"],
)
def test_a_process_ends_as_others_do(arguments, status, last):
    """130 from the command line; a script dies by SIGINT, so that a loop of a shell around it stops as well."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        for line in process.stdout:
            if line.startswith("epoch") and "      3/" in line:
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=60)
    assert process.returncode == status and last in out and "which the estimator keeps" in err
