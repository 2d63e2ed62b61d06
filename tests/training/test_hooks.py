"""Hooks: the order in which they are called, what they may change, and how few frames there are on the way to a step."""

import sys
from pathlib import Path

import numpy as np
import pytest

from numbanet import Hook, LanguageModel, Net, NetRegressor
from numbanet.datasets import load_digits
from numbanet.training import loop
from numbanet.training.stepper import Stepper

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 3, "batch_size": 500, "random_state": 0, "device": "cpu"}
WORDS = "the cat sat on the mat and the dog sat on the rug".split() * 40
STEPS = -(-len(X) // 500)


class Told(Hook):
    """Writes down what it is told."""

    def __init__(self):
        self.calls = []

    def fit_start(self, run):
        self.calls.append(("fit_start", run.epoch, run.epochs))

    def epoch_start(self, run, epoch):
        self.calls.append(("epoch_start", epoch))

    def before_step(self, run, batch):
        self.calls.append(("before_step", len(batch.rows), batch.inputs.shape))
        return batch

    def after_update(self, run):
        self.calls.append(("after_update", run.seen, run.optimizer.steps))

    def epoch_end(self, run, record):
        self.calls.append(("epoch_end", len(run.history), sorted(record)))
        return {"told": 1.5}

    def epoch_recorded(self, run, record):
        assert record is run.history[-1] and record["told"] == 1.5
        self.calls.append(("epoch_recorded", len(run.history)))

    def fit_end(self, run):
        self.calls.append(("fit_end", run.epoch))


def weights(net):
    return [p.numpy().copy() for p in net.model_.parameters()]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_hooks_are_called_in_order_and_add_to_the_record():
    told = Told()
    net = Net(**{**SMALL, "epochs": 2}, callbacks=[told]).fit(X, Y)
    sizes = [500, 500, len(X) - 1000]
    expected = [("fit_start", 0, range(2))]
    for number in range(2):
        expected.append(("epoch_start", number))
        for step, size in enumerate(sizes):
            expected += [("before_step", size, (size, 64)), ("after_update", sum(sizes[: step + 1]), number * STEPS + step + 1)]
        expected += [("epoch_end", number), ("epoch_recorded", number + 1)]
    assert [call[:2] if call[0] == "epoch_end" else call for call in told.calls] == [*expected, ("fit_end", 2)]
    assert [record["told"] for record in net.history_] == [1.5, 1.5]
    assert same(net, Net(**{**SMALL, "epochs": 2}).fit(X, Y)), "a hook that only looks changes nothing"


def test_partial_fit_calls_them_with_the_number_of_its_epoch():
    told = Told()
    Net(**SMALL).fit(X, Y).set_params(callbacks=[told]).partial_fit(X, Y)
    assert told.calls[0] == ("fit_start", 3, range(3, 4)) and told.calls[-1] == ("fit_end", 4)


@pytest.mark.parametrize("where", ["epoch_start", "before_step", "after_update", "epoch_end", "epoch_recorded"])
def test_what_a_hook_raises_undoes_the_call_and_ends_all_hooks(where):
    told = Told()

    class Breaks(Hook):
        pass

    def fail(self, run, *given):
        if run.epoch >= 3:
            raise OSError("full disk")
        return given[0] if where == "before_step" else None

    setattr(Breaks, where, fail)
    net = Net(**SMALL).fit(X, Y)
    before, history = weights(net), list(net.history_)
    with pytest.raises(OSError, match="full disk"):
        net.set_params(callbacks=[told, Breaks()]).partial_fit(X, Y)
    assert told.calls[-1][0] == "fit_end" and net.history_ == history and net.n_iter_ == 3
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(net), strict=True))


def test_a_hook_can_stop_training_change_batches_and_weights():
    class Halved(Hook):
        """Trains on half of the inputs' size, keeps weights small, and stops after two epochs."""

        def before_step(self, run, batch):
            return batch._replace(inputs=run.dev.affine(batch.inputs, mul=0.5))

        def after_update(self, run):
            for parameter in run.optimizer.parameters:
                np.clip(parameter.data, -0.1, 0.1, out=parameter.data)

        def epoch_recorded(self, run, record):
            if run.epoch == 2:
                run.stop()

    for dropout in ("none", "rdp"):
        net = Net(**SMALL, dropout=dropout, callbacks=[Halved()]).fit(X, Y)
        assert net.n_iter_ == 2 and max(np.abs(w).max() for w in weights(net)) <= np.float32(0.1)


def test_the_loop_names_no_hook():
    source = Path(loop.__file__).read_text(encoding="utf-8")
    for name in (
        "DropoutRates",
        "LearningRate",
        "Augment",
        "Validation",
        "EarlyStopping",
        "Progress",
        "Lasso",
        "Pruning",
        "Rewir",
        "sparsity",
        "schedule",
        "patience",
        "Callback",
    ):
        assert name not in source


@pytest.mark.parametrize("kind", ["Net", "NetRegressor", "LanguageModel", "partial_fit"])
def test_few_frames_stand_between_fit_and_an_update(kind, monkeypatch):
    names = []

    def step(self, *given, original=Stepper.step, **named):
        frame = sys._getframe(1)
        names.clear()
        while frame.f_code.co_name not in ("fit", "partial_fit"):
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return original(self, *given, **named)

    monkeypatch.setattr(Stepper, "step", step)
    if kind == "LanguageModel":
        LanguageModel((8,), epochs=1, batch_size=4, random_state=0, device="cpu").fit(WORDS)
    elif kind == "partial_fit":
        Net(**SMALL).partial_fit(X, Y)
    else:
        {"Net": Net, "NetRegressor": NetRegressor}[kind](**{**SMALL, "epochs": 1}).fit(X, Y)
    assert len(names) + 2 <= 4 and "train" in names  # with fit and step


class Forgets(Hook):
    def before_step(self, run, batch):
        pass


class Counts(Hook):
    def epoch_end(self, run, record):
        return 3


@pytest.mark.parametrize(
    "given, error, message",
    [
        (Forgets(), TypeError, "Forgets.before_step must return a Batch, got None"),
        (Counts(), TypeError, "Counts.epoch_end must return a dict, got 3"),
        (Told, TypeError, r"callbacks: Told is a class; give an object of it, Told\(...\)"),
    ],
)
def test_what_a_hook_must_return_and_a_class_in_place_of_an_object_are_named(given, error, message):
    with pytest.raises(error, match=message):
        Net(**SMALL, callbacks=[given]).fit(X, Y)


def test_scores_that_a_hook_adds_to_a_record_decide_the_best_epoch():
    class Scores(Hook):
        watches = False

        def epoch_recorded(self, run, record):
            record["validation_score"] = [0.3, 0.7, float("nan"), 0.7, 0.2][run.epoch - 1]

    net = Net(**{**SMALL, "epochs": 5}, callbacks=[Scores()]).fit(X, Y)
    assert net.best_epoch_ == 2
