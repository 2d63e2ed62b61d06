"""Training steps of LSTMs that replay recorded passes: the same weights, and launches that do not depend on the time steps."""

import contextlib

import numpy as np
import pytest

from numbanet import LSTM, Embedding, LanguageModel, LastStep, Linear, Net, NetRegressor, RowDropout, TimePlan
from numbanet.device import device, problem
from numbanet.dropout import Together, recurrent
from numbanet.plans.buffers import ListBuffers
from numbanet.training.recorder import Recorder
from numbanet.training.stepper import Stepper
from numbanet_kernels.families import embedding
from numbanet_kernels.families.lstm import cuda_steps as kernels
from numbanet_kernels.runtime import graph, launch

DEVICES = [name for name in ("cuda", "emulated") if problem(name) is None]
pytestmark = pytest.mark.slow  # steps of LSTMs are emulated
FEW = RowDropout(0.4, dp_max=2)


@pytest.fixture(params=DEVICES)
def where(request):
    device(request.param).records()  # a GPU's self-test replays graphs of its own
    return request.param


@pytest.fixture
def replays(monkeypatch):
    """The graphs that were replayed, one after the other."""
    done = []

    def replay(self, original=graph.Graph.replay):
        done.append(self)
        original(self)

    monkeypatch.setattr(graph.Graph, "replay", replay)
    return done


def language(where, steps=2, pieces=2, hidden=(4,), **options):
    """A text of two pieces, each so many times `steps` words."""
    text = np.random.default_rng(1).integers(5, size=int(2 * steps * pieces) + 1)
    given = {"epochs": 2, "batch_size": 2, "steps": steps, "learning_rate": 1.0, "random_state": 0, **options}
    return LanguageModel(hidden, device=where, **given).fit(text)


def sequences(where, net=Net, first=None, **options):
    rng = np.random.default_rng(2)
    X = rng.integers(5, size=(8, 3)) if net is Net else rng.standard_normal((8, 3, 2)).astype(np.float32)
    first = [Embedding(5, 2, rng=0)] if net is Net and first is None else first or []
    layers = [*first, LSTM(2, 4, batch_first=True, rng=1), LastStep(), Linear(4, 2 if net is Net else 1, rng=2)]
    given = {"epochs": 4, "batch_size": 4, "random_state": 0, **options}
    return net(layers, device=where, **given).fit(X, np.arange(8) % 2)


CASES = {
    "none": lambda where: language(where, hidden=(4, 4), clip_norm=None, epochs=3),
    "clipped, a shorter last piece": lambda where: language(where, pieces=1.5, epochs=3),
    "rdp": lambda where: language(where, dropout=FEW, recurrent_dropout=FEW, epochs=5),
    "each time step": lambda where: language(where, recurrent_dropout=FEW, recurrent_sampling="step", epochs=4),
    "tied, adam": lambda where: language(where, tied=True, optimizer="adam", learning_rate=0.01, epochs=3),
    "words": sequences,
    "series": lambda where: sequences(where, NetRegressor, dropout=Together(FEW, recurrent(FEW, steps=3)), epochs=8),
}


@contextlib.contextmanager
def nothing_recorded():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        yield


@pytest.mark.parametrize("name", CASES)
def test_replayed_passes_train_the_same(where, replays, name):
    """States that are carried over, and zero at the beginning of the text, are those of passes that are computed."""
    ours = CASES[name](where)
    count = len(replays)
    assert count > 2
    with nothing_recorded():
        theirs = CASES[name](where)
    assert len(replays) == count
    for a, b in zip(ours.model_.parameters(), theirs.model_.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert [r["loss"] for r in ours.history_] == [r["loss"] for r in theirs.history_]


def test_steps_of_every_period_are_replayed_with_lists_that_are_made_once(where, monkeypatch, replays):
    """At the default rate, where most steps have a layer that keeps all units, multiplied by a number."""
    passes, listed, plans = [], [], set()

    def put(self, drawn, original=ListBuffers.put):
        passes.append(self)
        plans.update(drawn.assigned.values())
        original(self, drawn)

    monkeypatch.setattr(ListBuffers, "put", put)
    monkeypatch.setattr(TimePlan, "lists", lambda plan, original=TimePlan.lists: listed.append(plan) or original(plan))
    language(where, pieces=3, hidden=(4, 4), recurrent_dropout="rdp", recurrent_sampling="step", epochs=6)
    assert len(replays) == len(passes) > 4 and len(listed) == 2 * 6 * 3  # of two layers, in each of the steps
    assert {plan.density == 1 for plan in plans} == {True, False}


def test_what_is_found_on_the_host_is_not_recorded(where, monkeypatch, replays):
    """How long padded sequences are; which gate gradients are above a threshold; which of many look-ups are of one row."""
    sequences(where, first=[Embedding(5, 2, padding_idx=0, rng=0)], epochs=3)
    language(where, gate_sparsity=0.5, gate_schedule=1.0, gate_mode="threshold")
    monkeypatch.setattr(embedding, "MOST", 3)
    language(where)
    assert not replays


@pytest.mark.parametrize("clip_norm", [None, 1e-6])  # never, always
def test_launches_of_a_step_do_not_depend_on_its_time_steps(monkeypatch, replays, clip_norm):
    """A pass is one replay, whatever it holds; what is launched beside it, to update the weights, is as much for any T."""
    monkeypatch.setattr(kernels, "SMALL", 0)  # a launch a time step
    launched, steps = [], []

    def step(self, *given, original=Stepper.step, **named):
        before = len(launched), len(replays)
        found = original(self, *given, **named)
        steps.append((len(launched) - before[0], len(replays) - before[1]))
        return found

    monkeypatch.setattr(launch, "emulate", lambda *given, original=launch.emulate: launched.append(given) or original(*given))
    monkeypatch.setattr(Stepper, "step", step)
    found = {}
    for count in (2, 4):
        launched.clear(), steps.clear(), replays.clear()
        language("emulated", steps=count, clip_norm=clip_norm, epochs=3)
        found[count] = steps[-3:], len(replays[-1]._calls)
        assert steps[0][0] > 2 * count
    assert found[2][0] == found[4][0] and all(replayed == 1 for _, replayed in found[2][0])
    assert found[4][1] - found[2][1] == 2 * 2  # forward and backward, two time steps more
