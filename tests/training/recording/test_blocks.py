"""Blocks of steps, which one call computes: with the results of steps that are computed op by op."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet import Conv2d, EarlyDropout, Flatten, Hook, Linear, Optimizer, ReLU, RowDropout, TileDropout
from numbanet.training.queue import Queue
from numbanet.training.recorder import Recorder
from numbanet_kernels.host import thresholds

from .test_queue import Changes, X, fit
from .test_recorded_steps import equal


@pytest.fixture
def joined(monkeypatch):
    """How many steps each call of `Queue.several` computed."""
    counts = []

    def several(self, steps, *given, original=Queue.several):
        counts.append(len(steps))
        return original(self, steps, *given)

    monkeypatch.setattr(Queue, "several", several)
    monkeypatch.setattr(Queue, "_measured", lambda self, seconds: setattr(self, "most", self.MOST))
    return counts


class Warming(Optimizer):
    """w -= lr min(1, t / 30) g, t the step."""

    recordable = foretells = True
    states = 0

    def numbers(self, count):
        return (self.learning_rate * min(1.0, (count + 1) / 30),)

    def update(self, dev, due, numbers):
        for _, (w,), g, _ in due:
            dev.sub(w, dev.mul(g, dev.broadcast_to(dev.reshape(numbers, (1, 1)), w.shape)), out=w)


class Decaying(Warming):
    """Another learning rate after each step, which is not known ahead."""

    recordable = True

    def advance(self, trained=None):
        super().advance(trained)
        self.learning_rate *= 0.98


class WarmUp(Hook):
    """Sets the learning rate after each step, but reads no weights."""

    watches = changes = False

    def after_update(self, run):
        run.optimizer.learning_rate = 0.1 / (1 + run.optimizer.steps)


class Counts(Hook):
    watches = changes = False
    batched = True

    def after_update(self, run):
        assert 0 < run.seen <= len(X)


WEIGHTS = np.random.default_rng(3).random(90)
ZEROS = np.where(np.arange(90) < 80, 0, WEIGHTS)  # many batches of 4 have weight 0
EARLY = RowDropout(EarlyDropout(0.5, until=0.5))
JOINED = {
    "none": {},
    "sgd": {"optimizer": "sgd", "momentum": 0.9},
    "an optimiser of one's own": {"optimizer": Warming, "learning_rate": 0.1},
    "an optimiser that does not know the next steps": {"optimizer": Decaying, "learning_rate": 0.1},
    "a hook that sets the learning rate": {"callbacks": [WarmUp()]},
    "a hook that counts": {"callbacks": [Counts()]},
    "a last batch of another size": {"batch_size": 8},
    "clipped": {"clip_norm": 0.05},
    "weighted": {"sample_weight": WEIGHTS},
    "batches of weight 0": {"sample_weight": ZEROS, "batch_size": 4},
    "held-out samples": {"early_stopping": True},
    "rates that change": {"dropout": EARLY, "epochs": 12},
    **{kind: {"dropout": kind, "dropout_rate": 0.5} for kind in ("bernoulli", "rdp", "batchwise", "window")},
    "tdp": {"dropout": TileDropout(0.5, tile=4), "layers": (16,)},
    "images": {
        "layers": [Conv2d(1, 4, (3, 1), rng=0), ReLU(), Flatten(), Linear(4 * 3, 2, rng=1)],
        "inputs": X[:, None, :, None],
    },
}


ALONE = ["batches of weight 0", "an optimiser that does not know the next steps", "a hook that sets the learning rate"]


@pytest.mark.filterwarnings("ignore:fit. the network")
@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("options", JOINED.values(), ids=JOINED)
def test_steps_that_are_computed_together_give_what_single_steps_give(monkeypatch, joined, options, size):
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options, n_jobs=size)
        assert (sum(joined) > 20) == (all(options is not JOINED[name] for name in ALONE))
        monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        joined.clear()
        equal(ours, fit(**options, n_jobs=size))
        assert not joined


class Costly(RowDropout):
    """Its plans are drawn before the step, at a cost of a million FLOPs."""

    name = "costly"

    def pop_flops(self):
        return 1e6


def test_the_cost_of_plans_of_steps_that_are_computed_together_counts(joined):
    shares = [record["flops_share"] for record in fit(dropout=Costly(0.5)).history_]
    assert sum(joined) > 20 and min(shares) > max(record["flops_share"] for record in fit(dropout="rdp").history_)


def test_a_policy_that_a_hook_changes_between_epochs_is_heeded(monkeypatch, joined):
    def answers(run):
        run.stepper.policy.answer = True

    def net():
        return fit(dropout=RowDropout(0.5), epochs=8, callbacks=[Changes(answers)])

    ours = net()
    assert sum(joined) > 20
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    equal(ours, net())
