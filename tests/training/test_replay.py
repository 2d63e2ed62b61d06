"""A fit that replays recorded passes gives the weights, losses and scores of one that computes each of them."""

import functools

import numpy as np
import pytest

from numbanet import GELU, BatchNorm1d, Flatten, Layer, Linear, Net, NetRegressor, ReLU, RowDropout, SparseLinear, TileDropout
from numbanet.device import device as named, problem
from numbanet.training.recorder import Recorder
from numbanet.training.stepper import Stepper
from numbanet.training.task import Classification
from numbanet_kernels.runtime import graph, pool

DEVICES = [name for name in ("cuda", "emulated") if problem(name) is None]
pytestmark = pytest.mark.slow  # nine emulated steps and more


@pytest.fixture(autouse=True, params=DEVICES)
def device(request, monkeypatch):
    monkeypatch.setitem(globals(), "fit", functools.partial(fit, device=request.param))
    return request.param


@pytest.fixture
def replays(monkeypatch, device):
    """How many passes each recorded graph did, by graph."""
    counts = {}
    named(device).records()  # on a card a self-test, which replays as well

    def replay(self, original=graph.Graph.replay):
        original(self)
        counts[self] = counts.get(self, 0) + 1

    monkeypatch.setattr(graph.Graph, "replay", replay)
    return counts


FEW = RowDropout(0.4, dp_max=2)


def fit(rng, dropout=FEW, net=Net, layers=(5,), weights=False, **options):
    """Nine steps, of few patterns: an emulated one takes half a second."""
    x, y = rng.standard_normal((12, 6)), np.arange(12) % 3
    return net(layers, dropout=dropout, batch_size=4, random_state=0, **{"epochs": 3, **options}).fit(
        x, y, sample_weight=1 + y if weights else None
    )


def test_several_labels_are_recorded(replays, device):
    x, y = np.random.default_rng(0).standard_normal((12, 6)), np.eye(4, dtype=int)[np.arange(12) % 4, :3]
    options = {"batch_size": 4, "epochs": 3, "random_state": 0}
    nets = [Net((5,), **options, device=where).fit(x, y) for where in (device, "cpu")]
    assert sum(replays.values()) > 2
    for a, b in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


@functools.cache
def recorded(device, dropout):
    """A fit that other tests compare theirs with: it replays recorded passes; and how many graphs it recorded."""
    with pytest.MonkeyPatch.context() as patch:
        graphs = set()
        patch.setattr(graph.Graph, "replay", lambda self, original=graph.Graph.replay: graphs.add(self) or original(self))
        return fit(np.random.default_rng(0), dropout, device=device), len(graphs)


def equal(ours, theirs):
    state, other = ours.model_.state_dict(), theirs.model_.state_dict()
    assert state.keys() == other.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    assert [r["loss"] for r in ours.history_] == [r["loss"] for r in theirs.history_]
    assert [r["score"] for r in ours.history_] == [r["score"] for r in theirs.history_]


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": "none", "optimizer": "adam"},
        {"dropout": "bernoulli", "dropout_rate": 0.4},
        {"dropout": TileDropout(0.4, dp_max=2, tile=2, mixes=1)},
        {"dropout": RowDropout((0.0, 0.4, 0.4).__getitem__, dp_max=2)},
        {"layers": [Linear(6, 9), ReLU(), SparseLinear(9, 8, density=0.25, rng=0), ReLU(), Linear(8, 3)]},
        {"layers": [Linear(6, 9), BatchNorm1d(9, momentum=None), ReLU(), Linear(9, 3)], "dropout": "none"},
        {"net": NetRegressor, "learning_rate_schedule": "linear", "weights": True},
    ],
    ids=["adam", "bernoulli", "tdp", "rdp by the epoch", "sparse", "batch norm", "regression"],
)
def test_replayed_passes_train_the_same(monkeypatch, replays, options):
    ours = fit(np.random.default_rng(0), **options)
    assert sum(replays.values()) > 2
    count = len(replays)
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    theirs = fit(np.random.default_rng(0), **options)
    assert len(replays) == count
    equal(ours, theirs)


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": RowDropout(0.6, dp_max=3), "layers": (6, 12), "optimizer": "adam"},
        {
            "dropout": RowDropout(0.6, dp_max=3),
            "layers": [Linear(6, 6), ReLU(), Flatten(), Linear(6, 3)],
            "learning_rate_schedule": "linear",
        },
        {"dropout": TileDropout(0.6, dp_max=3, tile=2, mixes=3), "layers": (7,)},
    ],
    ids=str,
)
def test_one_graph_serves_every_bias_mix_and_rate(monkeypatch, replays, options):
    drawn = set()

    def draw(self, *given, original=Stepper.draw):
        plans = original(self, *given)
        drawn.update(plans.assigned.items())
        return plans

    monkeypatch.setattr(Stepper, "draw", draw)
    options = {"layers": (6,), "epochs": 7, **options}
    ours, layers = fit(np.random.default_rng(0), **options), {name for name, _ in drawn}
    most = np.prod([len({plan.kind for site, plan in drawn if site == name}) for name in layers])
    most *= 1 if "optimizer" in options else 2  # what an update by SGD writes is what the next one reads, in turn
    assert 1 < len(replays) <= most and sum(replays.values()) >= 21 - 2 * most
    assert len({plan for _, plan in drawn}) > 3 and most <= 2 * 3 ** len(layers)
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    equal(ours, fit(np.random.default_rng(0), **options))


class Own(Layer):
    def __call__(self, x):
        return x.relu()


@pytest.mark.parametrize(
    "options",
    [
        {"layers": [Linear(6, 5), Own(), Linear(5, 3)]},
        {"layers": [Linear(6, 5), ReLU(), type("L", (Linear,), {})(5, 3)]},
        {"net": type("N", (Net,), {"_task": lambda self: type("C", (Classification,), {})()})},
    ],
    ids=str,
)
def test_what_may_do_something_else_each_time_is_not_recorded(monkeypatch, rng, replays, options):
    keys = []

    def call(self, key, *given, original=Recorder.__call__):
        keys.append(key)
        return original(self, key, *given)

    monkeypatch.setattr(Recorder, "__call__", call)
    fit(rng, **{"dropout": "none", **options}, epochs=1)
    assert keys == [None] * 3 and not replays
    fit(rng, dropout="none", epochs=1)  # which is recorded
    assert None not in keys[3:] and sum(replays.values()) == 2


def test_passes_share_one_memory(monkeypatch, replays):
    """Each starts it anew: what they compute is right all the same, and the memory grows for a larger one alone."""
    monkeypatch.setattr(pool.Arena, "CHUNK", 1 << 8)
    found = {"shared": [], "alone": []}

    def fitted(how):
        def init(self, work, arena, original=graph.Graph.__init__):
            arena = arena if how == "shared" else pool.Arena(1 << 20)
            original(self, work, arena)
            found[how].append((arena, arena.nbytes))

        with monkeypatch.context() as patch:
            patch.setattr(graph.Graph, "__init__", init)
            return fit(np.random.default_rng(0))

    ours = fitted("shared")
    equal(ours, fitted("alone"))
    shared, alone = ([size for _, size in found[how]] for how in ("shared", "alone"))
    assert len(shared) == len(alone) > 2 and len({id(arena) for arena, _ in found["shared"]}) == 1
    assert shared[-1] < 1.5 * max(alone) < sum(alone)
    monkeypatch.setattr(Recorder, "MOST", shared[-1] // 2)  # a pass needs more
    replays.clear()
    equal(ours, fit(np.random.default_rng(0)))
    assert not replays


def test_where_nothing_can_be_recorded_it_is_not_tried_for_long(monkeypatch, replays):
    monkeypatch.setattr(Recorder, "MOST", 1)
    monkeypatch.setattr(Recorder, "TRIED", 2)
    tried = []

    def init(self, work, arena, original=graph.Graph.__init__):
        tried.append(arena)
        original(self, work, arena)

    monkeypatch.setattr(graph.Graph, "__init__", init)
    fit(np.random.default_rng(0), epochs=4)
    assert len(tried) == 2 and not replays and not any(arena.chunks for arena in tried)


def test_no_more_passes_are_recorded_than_may_be(monkeypatch, replays, device):
    ours, count = recorded(device, FEW)
    assert count > 1
    monkeypatch.setattr(Recorder, "RECORDED", 1)
    replays.clear()
    equal(ours, fit(np.random.default_rng(0)))
    assert len(replays) == 1


def test_a_device_that_does_not_record_is_done_without(monkeypatch, replays, device):
    ours, _ = recorded(device, "none")

    def broken(self, work, arena, init=graph.Graph.__init__):
        init(self, work, arena)
        if self._calls:
            raise OSError("no graphs today")

    monkeypatch.setattr(graph.Graph, "__init__", broken)
    replays.clear()
    with pytest.warns(UserWarning, match="not replayed: OSError: no graphs today"):
        theirs = fit(np.random.default_rng(0), dropout="none")
    assert not replays
    equal(ours, theirs)


def test_layers_that_are_exchanged_are_the_ones_that_train(replays, device):
    def exchange(net, record):
        net.model_.layers[1] = GELU()

    plain, count = recorded(device, "none")
    replays.clear()
    ours = fit(np.random.default_rng(0), dropout="none", callbacks=[exchange])
    assert len(replays) + count == 3 + 1 and ours.history_[-1]["loss"] != plain.history_[-1]["loss"]


@pytest.mark.parametrize("place", [0, 2])
def test_a_weight_that_is_frozen_stays_as_it_is(monkeypatch, replays, place):
    def freeze(net, record):
        frozen.append(np.array(net.model_.layers[place].weight.numpy()))
        net.model_.layers[place].weight.requires_grad = False
        found.append(sum(replays.values()))

    frozen, found = [], []
    ours = fit(np.random.default_rng(0), callbacks=[freeze], epochs=5)
    np.testing.assert_array_equal(frozen[0], ours.model_.layers[place].weight.numpy())
    found.append(sum(replays.values()))
    assert found[-1] - found[0] >= 12 - 4 * 2  # of four epochs; passes are met anew when a weight is frozen
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    equal(ours, fit(np.random.default_rng(0), callbacks=[freeze], epochs=5))


def test_weights_that_are_exchanged_are_the_ones_that_train(replays):
    """By a callback, after passes with the old ones were recorded."""

    def exchange(net, record):
        for p in net.model_.parameters():
            p.data = p.device.copy(p.data)

    ours, theirs = (fit(np.random.default_rng(0), callbacks=[callback]) for callback in (exchange, lambda net, record: None))
    equal(ours, theirs)
    assert replays
