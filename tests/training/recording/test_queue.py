"""Recorded steps wait in a queue, and a replay computes several of them: with the results of steps that are computed one by
one, also after an interrupt and with hooks that look at the weights after each update."""

import copy

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet import (
    LSTM,
    Embedding,
    Hook,
    LanguageModel,
    LastStep,
    Layer,
    LayerNorm,
    Linear,
    Net,
    ReLU,
    RowDropout,
    Shuffle,
    device,
)
from numbanet.ops import Order
from numbanet.training.queue import Pages, Queue
from numbanet.training.recorder import Recorder
from numbanet.training.task import LanguageModelling
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime.interrupt import deferred

from .test_recorded_steps import equal

RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture
def together(monkeypatch):
    """How many steps each replay computed."""
    counts = []

    def finish(self, original=Queue.finish):
        if self.count:
            counts.append(self.count)
        original(self)
        self.most = self.MOST  # however long a step takes here

    def several(self, steps, *given, original=Queue.several):
        counts.append(len(steps))
        results = original(self, steps, *given)
        self.most = self.MOST
        return results

    monkeypatch.setattr(Queue, "finish", finish)
    monkeypatch.setattr(Queue, "several", several)
    return counts


def fit(layers=(7,), inputs=X, sample_weight=None, **options):
    options = {"epochs": 6, "batch_size": 10, "random_state": 0, "optimizer": "adam", **options}
    return Net(copy.deepcopy(layers), **options).fit(inputs, Y, sample_weight=sample_weight)


def weights(net):
    return [p.numpy().copy() for p in net.model_.parameters()]


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(weights(ours), weights(theirs), strict=True))


@pytest.mark.parametrize("dropout", ["none", "rdp", "bernoulli"])
def test_steps_that_wait_give_the_weights_and_losses_of_single_steps(monkeypatch, together, dropout):
    ours = fit(dropout=dropout)
    assert max(together) > 4
    monkeypatch.setattr(Queue, "MOST", 1)
    together.clear()
    single = fit(dropout=dropout)
    assert set(together) == {1} and same(ours, single)
    assert [r["loss"] for r in ours.history_] == [r["loss"] for r in single.history_]


def language(**options):
    """A text of four segments, each of 11 times 5 words and 3 words."""
    text = np.random.default_rng(1).integers(9, size=4 * 58 + 1)
    return LanguageModel((8, 8), **{"epochs": 6, "batch_size": 4, "steps": 5, "random_state": 0, **options}).fit(text)


def paragraphs(**options):
    """The same, but states are zero in every third step."""

    def batches(self, *given, original=LanguageModelling.batches):
        for i, batch in enumerate(original(self, *given)):
            yield batch._replace(resets_state=i % 3 == 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModelling, "batches", batches)
        return language(**options)


def sequences(**options):
    ids = np.random.default_rng(2).integers(9, size=(90, 6))
    layers = [Embedding(9, 4, rng=0), LSTM(4, 8, batch_first=True, rng=1), LastStep(), Linear(8, 2, rng=2)]
    return Net(layers, **{"epochs": 6, "batch_size": 10, "random_state": 0, **options}).fit(ids, Y)


FEW = RowDropout(0.4, dp_max=2)
RECURRENT = {
    "a text, clipped": (language, {}),
    "a text, not clipped": (language, {"clip_norm": None, "learning_rate": 0.5}),
    "a text, adam": (language, {"tied": True, "optimizer": "adam", "learning_rate": 0.01}),
    "a text, rdp": (language, {"dropout": FEW, "recurrent_dropout": FEW}),
    "a text, rdp in each time step": (language, {"recurrent_dropout": FEW, "recurrent_sampling": "step"}),
    "a text, batchwise": (language, {"dropout": "batchwise", "dropout_rate": 0.5}),
    "a text, window": (
        language,
        {
            "dropout": "window",
            "dropout_rate": 0.5,
            "recurrent_dropout": "window",
            "recurrent_dropout_rate": 0.5,
            "recurrent_sampling": "outputs",
        },
    ),
    "a text, states are zero amid an epoch": (paragraphs, {}),
    "a text, gate columns": (language, {"gate_sparsity": 0.5, "gate_schedule": 1.0}),
    "sequences": (sequences, {}),
    "sequences, clipped": (sequences, {"clip_norm": 0.01, "optimizer": "sgd", "momentum": 0.9}),
    "sequences, rdp": (sequences, {"dropout": FEW}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit. the network")
@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("train, options", RECURRENT.values(), ids=RECURRENT)
def test_steps_of_recurrent_layers_wait(monkeypatch, together, train, options, size):
    """Their words are on the host, and the states of one step are those with which the next starts."""
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = train(**options, n_jobs=size)
        assert max(together) > (2 if train is paragraphs else 4)
        monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        together.clear()
        equal(ours, train(**options, n_jobs=size))
        assert not together


@pytest.mark.filterwarnings("ignore:fit. the network")
def test_no_step_waits_while_a_hook_looks_at_the_weights(together):
    seen = []

    class Watch(Hook):
        def after_update(self, run):
            seen.append(next(run.model.parameters()).numpy().copy())

    net = fit(callbacks=[Watch()])
    assert set(together) == {1} and len(seen) == 54
    assert all((a != b).any() for a, b in zip(seen, seen[1:])) and (seen[-1] == next(net.model_.parameters()).numpy()).all()


def test_an_interrupted_epoch_leaves_steps_and_weights_together(monkeypatch, together):
    """The steps of the queue are computed before the interrupt is raised: the optimiser has counted them."""
    polls = []

    def poll(original=deferred.poll):
        polls.append(None)
        if len(polls) == 20:  # amid an epoch
            raise KeyboardInterrupt
        original()

    counted = []

    class Count(Hook):
        watches = False

        def fit_end(self, run):
            counted.append((run.optimizer.steps, sum(together)))

    monkeypatch.setattr(deferred, "poll", poll)
    monkeypatch.setattr(Queue, "MOST", 2)
    with pytest.raises(KeyboardInterrupt):
        fit(callbacks=[Count()])
    (steps, queued), single = counted[0], 2  # the first two steps are not queued
    assert 0 < steps < 54 and steps % 9 and queued == steps - single


class Changes(Hook):
    """Changes something before the fourth epoch."""

    watches = False

    def __init__(self, change):
        self.change = change

    def epoch_start(self, run, epoch):
        if epoch == 3:
            self.change(run)


def _other_eps(run):
    run.model.layers[1].eps = 0.3


def _clips(run):
    run.optimizer.clip_norm = 1e-3


def _clips_no_more(run):
    run.optimizer.clip_norm = None


def _rests(run):
    run.optimizer.rest(run.optimizer.parameters[:1])


def _other_state(run):
    for state in run.optimizer.state:
        state[:] = [run.dev.full(array.shape, 0.5) for array in state]


@pytest.mark.parametrize(
    "change, clip_norm",
    [(_other_eps, None), (_clips, None), (_clips, 0.3), (_clips_no_more, 1e-3), (_rests, None), (_other_state, None)],
)
def test_what_a_hook_changes_between_epochs_is_heeded(monkeypatch, together, change, clip_norm):
    def net():
        layers = [Linear(5, 7, rng=0), LayerNorm(7), ReLU(), Linear(7, 2, rng=1)]
        options = {"epochs": 6, "batch_size": 10, "random_state": 0, "optimizer": "adam", "clip_norm": clip_norm}
        return Net(layers, **options, callbacks=[Changes(change)]).fit(X, Y)

    ours = net()
    assert max(together) > 4
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    together.clear()
    assert same(ours, net()) and not together


def _other_order(run):
    run.model.layers[0].order = Order(np.arange(5)[::-1])


def _other_numbers(run):
    run.model.layers[0].numbers = (-1.0, 0.5)


class Affine(Layer):
    """y = a x + b, for two numbers."""

    recordable = True

    def __init__(self):
        self.numbers = (2.0, 0.0)

    def __call__(self, x):
        a, b = self.numbers
        return a * x + b


@pytest.mark.parametrize(
    "first, change", [(Shuffle(range(5)), _other_order), (Affine(), _other_numbers)], ids=["object", "tuple"]
)
def test_what_a_hook_changes_in_a_layer_is_heeded(monkeypatch, together, first, change):
    """Also an attribute that is an object or a tuple."""

    def net():
        layers = [copy.deepcopy(first), Linear(5, 7, rng=0), ReLU(), Linear(7, 2, rng=1)]
        return Net(layers, epochs=6, batch_size=10, random_state=0, optimizer="adam", callbacks=[Changes(change)]).fit(X, Y)

    ours = net()
    assert max(together) > 4
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    assert same(ours, net())


def test_results_of_many_numbers_are_kept_in_small_pages():
    dev = device("cpu")
    for shape, count in (((100,), 64), ((1 << 10, 100), 2), ((1 << 12, 100), 1)):
        pages = Pages([dev.empty(()), dev.empty(shape)], dev)
        assert pages.size == count
        results = [pages.next()[0] for _ in range(3)]
        assert all([array.shape for array in arrays] == [(), shape] for arrays in results)
        assert not any(np.shares_memory(a[1], b[1]) for a, b in zip(results, results[1:]))
