"""How a fit of Net ends early: callbacks, interrupts, early stopping, numbers that are not finite, and what it then leaves."""

import contextlib
import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pytest
import threadpoolctl

from numbanet import Net, RowDropout, Sequential, TileDropout
from numbanet.training import loop, recovery
from numbanet_kernels.host import threads
from tests.estimators.test_net import SMALL, X_TEST, Y_TEST, X, Y, same, weights


class Breaks(RowDropout):
    """Row dropout that is interrupted in the middle of the second epoch."""

    drawn = 0

    def plan(self, site, rng):
        self.drawn += 1
        if self.drawn == 40:
            raise KeyboardInterrupt
        return super().plan(site, rng)


def lazily(monkeypatch, lazy, action):
    """The weights that an action leaves, with updates left undone where nobody reads, or with all done in every step."""
    with monkeypatch.context() as patch:
        if not lazy:
            patch.setattr(Sequential, "reads", lambda self, plans, symbols=None: {})
        return action()


@pytest.mark.parametrize("dropout", [RowDropout(0.7), TileDropout(0.6, tile=4)], ids=repr)
def test_everybody_sees_settled_weights(monkeypatch, dropout):
    seen = []

    def train():
        net = Net(**SMALL, dropout=dropout, callbacks=[lambda net, record: seen.append(weights(net))]).fit(X, Y)
        net.set_params(callbacks=None)
        return [
            *weights(net),
            net.predict_proba(X_TEST),
            *weights(pickle.loads(pickle.dumps(net))),
            *weights(net.partial_fit(X[:300], Y[:300])),
        ]

    lazy, dense = (lazily(monkeypatch, lazy, train) for lazy in (True, False))
    for a, b in zip(lazy + sum(seen[:3], []), dense + sum(seen[3:], []), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_an_epoch_that_breaks_off_leaves_settled_weights(monkeypatch):
    def train():
        net = Net(**SMALL, dropout=Breaks(0.7))
        with pytest.raises(KeyboardInterrupt, match="interrupted after 1 complete epoch,"):
            net.fit(X, Y)
        return weights(net)

    for a, b in zip(*(lazily(monkeypatch, lazy, train) for lazy in (True, False)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_no_number_keeps_the_last_good_weights():
    def explode(net, record):
        if record["epoch"] == 2:
            net.optimizer_.parameters[0].data[:] = np.inf

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.warns(UserWarning, match="not finite in epoch 3.*learning_rate"):
            net = Net(**{**SMALL, "epochs": 20}, callbacks=[explode]).fit(X, Y)
        assert net.n_iter_ == 2 and same(weights(net), weights(Net(**{**SMALL, "epochs": 2}).fit(X, Y)))
        kept = weights(net)
        with pytest.raises(FloatingPointError, match="first epoch.*learning_rate"):
            net.set_params(learning_rate=1e30, callbacks=None).fit(X, Y)
    assert same(weights(net), kept) and net.n_iter_ == 2


def test_callbacks_see_the_net_and_can_stop_it():
    seen = []

    def stop_after_two(net, record):
        seen.append((record["epoch"], net.score(X_TEST, Y_TEST)))
        return record["epoch"] == 2

    net = Net(**{**SMALL, "epochs": 10}, callbacks=[stop_after_two]).fit(X, Y)
    assert [epoch for epoch, _ in seen] == [1, 2] and net.n_iter_ == 2


def test_a_callback_may_answer_with_a_numpy_bool():
    net = Net(**{**SMALL, "epochs": 10}, callbacks=[lambda net, record: np.float64(record["epoch"]) >= 2]).fit(X, Y)
    assert net.n_iter_ == 2


@pytest.mark.alone
@pytest.mark.usefixtures("interruptible")
def test_a_real_interrupt_ends_the_fit_after_a_step(monkeypatch):
    """Signals at random moments: whatever they hit, the fit ends, and BLAS has its threads again."""
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        for delay in np.random.default_rng(0).uniform(0.05, 0.4, 12):
            net = Net((256, 256), epochs=10_000, dropout="rdp", random_state=0)
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
                warnings.simplefilter("ignore")
                net.fit(X, Y)
            timer.join()
            assert threads.count() == 2 and not threads._blas.inside
            assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"} == {2}


def test_early_stopping_keeps_the_best_weights():
    net = Net((64,), epochs=200, early_stopping=True, patience=3, random_state=0).fit(X, Y)
    scores = [record["validation_score"] for record in net.history_]
    assert net.n_iter_ < 200 and max(scores[-3:]) <= max(scores[:-3]) + 1e-4
    watched = Net((64,), epochs=200, early_stopping=True, patience=3, random_state=0)
    watched.fit(X, Y, validation=(X_TEST, Y_TEST))
    best = max(record["validation_score"] for record in watched.history_)
    assert watched.score(X_TEST, Y_TEST) == pytest.approx(best, abs=2e-4)


def test_a_partial_fit_that_fails_leaves_everything_as_it_was():
    def fail(net, record):
        raise RuntimeError("full disk")

    net, other = (Net(**SMALL, dropout="rdp").fit(X, Y) for _ in range(2))
    with pytest.raises(RuntimeError, match="full disk"):
        net.set_params(callbacks=[fail]).partial_fit(X, Y)
    assert net.n_iter_ == len(net.history_) == 3
    net.set_params(callbacks=None).partial_fit(X, Y)
    assert same(weights(net), weights(other.partial_fit(X, Y)))


def test_adam_starts_anew_after_the_best_weights_were_restored():
    net = Net((32,), optimizer="adam", learning_rate=0.01, epochs=60, early_stopping=True, patience=2, random_state=0).fit(X, Y)
    assert net.optimizer_.steps == 0 and net.optimizer_.state == []


@pytest.mark.parametrize("dropout", ["none", "bernoulli", RowDropout(0.6), TileDropout(0.5, tile=4)], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_fit_that_breaks_with_nobody_watching_goes_back_to_the_epoch_before(monkeypatch, dropout, optimizer):
    """Weights are not copied after each epoch then: what was learned since is learned again, the same."""
    options = {**SMALL, "epochs": 9, "dropout": dropout, "optimizer": optimizer, "learning_rate": 0.003}
    monkeypatch.setattr(recovery, "APART", 48)  # four epochs
    epochs, original = [], loop.epoch

    def breaking(run, *given):
        record, broken = original(run, *given)
        epochs.append(record["loss"])
        steps = run.optimizer.steps // 12
        return {**record, "loss": np.nan} if steps == 7 else record, broken

    monkeypatch.setattr(loop, "epoch", breaking)
    with pytest.warns(UserWarning, match="not finite in epoch 7: .* weights of epoch 6"):
        net = Net(**options).fit(X[:1436], Y[:1436])
    assert net.n_iter_ == 6 and len(epochs) > 7
    assert [record["loss"] for record in net.history_] == pytest.approx(epochs[:6], rel=1e-5)
    whole = Net(**{**options, "epochs": 6}).fit(X[:1436], Y[:1436])
    for ours, theirs in zip(weights(net), weights(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_weights_that_break_unseen_are_found_at_the_end_at_the_latest(monkeypatch):
    """The last step of the fifth epoch breaks what no loss shows."""

    def breaking(run, *given, original=loop.epoch):
        record, broken = original(run, *given)
        if run.optimizer.steps == 60:
            run.optimizer.parameters[-1].data[0] = np.inf
        return {**record, "loss": 1.0}, broken

    monkeypatch.setattr(loop, "epoch", breaking)
    with pytest.warns(UserWarning, match="weights of epoch 4"):
        net = Net(**{**SMALL, "epochs": 5}).fit(X[:1436], Y[:1436])
    assert net.n_iter_ == 4 and all(np.isfinite(w).all() for w in weights(net))
