"""Networks that become smaller while they learn: history, dropout, sparse layers, recorded passes, bad input."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from numbanet import (
    SGD,
    GroupLasso,
    Layer,
    Linear,
    Net,
    NetRegressor,
    ReLU,
    Select,
    Sequential,
    SparseLinear,
    Tensor,
    TileDropout,
)
from numbanet.device import problem
from numbanet.training import recovery
from numbanet.training.hooks import Hook
from numbanet.training.sparsity import compaction, joints, lasso
from numbanet.training.sparsity.base import rounded_up
from numbanet_kernels.runtime import graph
from tests.training.sparsity.networks import IMAGES, SMALL, X_TEST, Y_TEST, X, Y, convolutions, fitted, sizes


@pytest.fixture
def compared(monkeypatch):
    """Predictions before and after each compaction, of any network, have to be the same; gives how many there were."""
    found = []

    def compact(model, optimizer, shape, original=compaction.compact):
        dev = next(model.parameters()).device
        small = np.random.default_rng(0).random((16, *shape[1:]), np.float32) / 4  # outputs of about 1: rounded by less
        x = Tensor(small, dev)
        before = np.array(model(x).numpy())
        changed = original(model, optimizer, shape)
        np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-6, atol=1e-6)
        found.append(changed)
        return changed

    monkeypatch.setattr(compaction, "compact", compact)
    return found


CASES = {
    "rows": {},
    "columns": {"sparsity": GroupLasso(8e-3, "columns")},
    "tiles": {"sparsity": GroupLasso(8e-3, "tiles"), "layers": (96, 64)},
    "rows and columns": {"sparsity": GroupLasso(5e-3, ("rows", "columns"))},
    "filters and rows": {"sparsity": GroupLasso(1.5e-2, ("filters", "rows")), "layers": convolutions(), "X": IMAGES},
    "time": {"sparsity": GroupLasso(1.2e-2, cost_weight=0.5)},
    "adam": {"sparsity": GroupLasso(0.9), "optimizer": "adam", "learning_rate": 0.002},
    "bernoulli": {"dropout": "bernoulli", "dropout_rate": 0.3},
    "rdp": {"dropout": "rdp", "dropout_rate": 0.3},
    "tdp": {"dropout": TileDropout(0.3, tile=8)},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tdp")
@pytest.mark.parametrize("name", CASES)
def test_a_network_shrinks_while_it_learns(name, compared):
    net = fitted(**CASES[name])
    dense = fitted(None, **{k: v for k, v in CASES[name].items() if k != "sparsity"})
    kept = [record["weights_kept"] for record in net.history_]
    assert any(compared) and kept[-1] < 0.75 and kept == sorted(kept, reverse=True)
    assert net.score(X_TEST.reshape(-1, 1, 8, 8) if "X" in CASES[name] else X_TEST, Y_TEST) > 0.65
    assert len(set(kept[2:])) == 1, "half of the epochs are at fixed structure"
    assert kept[-1] == pytest.approx(compaction.count_nonzero(net.model_) / compaction.count_nonzero(dense.model_))
    assert all(a["flops_share"] <= b["flops_share"] * 1.001 for a, b in zip(net.history_, dense.history_)) or "tdp" in name
    assert net.history_[-1]["flops_share"] < dense.history_[-1]["flops_share"]
    assert net.history_[0]["sparsity_loss"] > 0 == net.history_[-1]["sparsity_loss"]
    assert (net.history_[0]["time_loss"] > 0) == (name == "time")
    again = pickle.loads(pickle.dumps(net))
    samples = X_TEST.reshape(-1, 1, 8, 8) if "X" in CASES[name] else X_TEST
    np.testing.assert_array_equal(again.predict(samples), net.predict(samples))
    assert sizes(again.partial_fit(X if "X" not in CASES[name] else IMAGES, Y)) == sizes(net)
    assert again.history_[-1]["weights_kept"] == pytest.approx(kept[-1])


def test_a_compact_network_is_saved_and_loaded():
    net, other = fitted(), fitted(None)
    with pytest.raises(ValueError, match="shape"):
        other.model_.load_state_dict(net.model_.state_dict())
    again = fitted(epochs=6)
    again.model_.load_state_dict(net.model_.state_dict())
    np.testing.assert_array_equal(again.predict(X_TEST), net.predict(X_TEST))


def test_features_that_are_not_read_leave():
    net = fitted(GroupLasso(8e-3, "columns"))
    first = net.model_.layers[0]
    assert isinstance(first, Select) and first.plan.count < 64 and net.model_.layers[1].in_features == first.plan.count
    assert not set(np.flatnonzero(X.max(0) == 0)) & set(first.plan.indices())  # what is always 0 is not needed


def test_the_same_seed_gives_the_same_network():
    nets = [fitted() for _ in range(2)]
    for a, b in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_loss_parts_are_the_penalty(monkeypatch):
    """strength sum_g sqrt(n_g) |w_g| of the weights after the last step, rounded groups included."""
    seen = []

    def compact(model, optimizer, shape):
        seen.append([layer.weight.numpy().copy() for layer in model.layers if isinstance(layer, Linear)])
        return False

    monkeypatch.setattr(compaction, "compact", compact)
    net = fitted(GroupLasso(1e-3, "tiles", cost_weight=0.25), epochs=2)
    expected = sum(
        np.sqrt(part.size) * np.linalg.norm(part)
        for w in seen[0][:2]
        for rows in np.split(w, range(32, len(w), 32))
        for part in np.split(rows, range(32, w.shape[1], 32), 1)
    )
    assert net.history_[0]["sparsity_loss"] == pytest.approx(0.75e-3 * expected, rel=1e-4)
    costs = [net._thinning.costs[layer] for layer in net.model_.layers if isinstance(layer, Linear)]
    assert all(np.log2(cost) % 1 == 0 for cost in costs) and len(costs) == 3


def test_costs_are_those_of_the_device(monkeypatch):
    """A layer that takes longer is shrunk more."""
    model = fitted(None, layers=(64, 64), epochs=1).model_

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    for number, layer in enumerate(layer for layer in model.layers if isinstance(layer, Linear)):

        def forward(flow, step, original=layer.forward, number=number):
            clock.now += 4.0**number
            return original(flow, step)

        monkeypatch.setattr(layer, "forward", forward)
    monkeypatch.setattr(lasso, "time", clock)
    found = list(lasso.seconds(model, (8, 64), next(model.parameters()).device).values())
    assert found[1] / found[0] == 4 and found[2] / found[1] >= 4 * 4


def test_kept_tiles_become_a_sparse_layer(compared, monkeypatch):
    """Also where copies to go back to are rare, and their memory is used again."""
    monkeypatch.setattr(recovery, "APART", 1)
    net = fitted(GroupLasso(6e-3, "tiles"), layers=(160, 160))
    layer = next(layer for layer in net.model_.layers if isinstance(layer, SparseLinear))
    assert layer.tile == 32 and len(layer.values) < 25
    assert any(parameter is layer.values for parameter in net.optimizer_.parameters)
    assert not any(parameter.shape == (layer.out_features, layer.in_features) for parameter in net.optimizer_.parameters)
    assert net.score(X_TEST, Y_TEST) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("tile", [None, 4])
def test_a_sparse_layer_learns_as_the_dense_one_with_zeros(tile, dev):
    """Its state goes along."""
    mask = np.random.default_rng(1).random((9, 10) if tile is None else (3, 3)) < 0.5
    mask = mask if tile is None else np.kron(mask, np.ones((4, 4), bool))[:9, :10]
    found, x = [], Tensor(np.random.default_rng(2).standard_normal((6, 10)), dev)
    for sparse in (False, True):
        first = Linear(10, 9, rng=0, device=dev)
        model, kept = Sequential([first, ReLU(), Linear(9, 3, rng=1, device=dev)]), dev.upload(np.float32(mask))
        optimizer = SGD(list(model.parameters()), 0.05, 0.9)
        for step in range(5):
            y = model(x)
            (y * y).mean().backward()
            optimizer.step()
            if step <= 1 or not sparse:
                dev.mul(first.weight.data, kept, out=first.weight.data)
            if sparse and step == 1:
                compaction.to_sparse(joints.places(model, (16, first.in_features))[first], optimizer, tile)
        found.append(np.array(model(x).numpy()))
    assert isinstance(model.layers[0], SparseLinear) and model.layers[0].bias is first.bias
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


# --- devices ----------------------------------------------------------------------------------------------------------
DEVICES = [name for name in ("cuda", "emulated") if problem(name) is None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.slow
def test_recorded_passes_are_forgotten_when_shapes_change(device, optimizer, monkeypatch):
    counts = {}

    def replay(self, original=graph.Graph.replay):
        original(self)
        counts[self] = counts.get(self, 0) + 1

    monkeypatch.setattr(graph.Graph, "replay", replay)
    rng, found = np.random.default_rng(0), []
    x, y = rng.standard_normal((16, 6)), np.arange(16) % 3
    strength = {"sgd": 0.12, "adam": 2.0}[optimizer]
    for where in ("cpu", device):
        net = Net(
            (8,),
            sparsity=GroupLasso(strength, ("rows", "columns"), fine_tuning=0.4),
            epochs=5,
            batch_size=4,
            learning_rate=0.05 if optimizer == "sgd" else 0.01,
            optimizer=optimizer,
            random_state=0,
            device=where,
        )
        found.append(net.fit(x, y))
    assert len(counts) >= 2 and sizes(found[0]) == sizes(found[1]) != [(8, 6), (3, 8)]
    for ours, theirs in zip(*(net.model_.parameters() for net in found), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


# --- the seam ---------------------------------------------------------------------------------------------------------
def test_the_seam_is_called_in_order(monkeypatch):
    calls = []

    class Told(Hook):
        def epoch_start(self, run, epoch):
            assert epoch == run.epoch
            calls.append(f"start {epoch}")

        def after_update(self, run):
            calls.append("update")

        def epoch_end(self, run, record):
            calls.append("end")
            return {"told": len(calls)}

    class Telling(GroupLasso):
        def begin(self, model, shape, epochs, dev):
            assert shape == (500, 64) and epochs == 2
            return Told()

    net = fitted(Telling(0.0), epochs=2, batch_size=500)
    steps = -(-len(X) // 500)
    assert calls == [call for epoch in range(2) for call in (f"start {epoch}", *["update"] * steps, "end")]
    assert net.history_[1]["told"] == len(calls)


def test_without_strength_nothing_changes():
    for a, b in zip(fitted(GroupLasso(0.0)).model_.parameters(), fitted(None).model_.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


# --- bad input --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments, message",
    [
        ((-1.0,), "strength"),
        ((np.nan,), "strength"),
        (("a",), "strength"),
        ((True,), "strength"),
        ((1, "lines"), "no groups 'lines'"),
        ((1, ()), "no groups"),
        ((1, ("rows", 3)), "no groups"),
        ((1, 3), "no groups 3"),
        ((1, "rows", -0.1), "cost_weight"),
        ((1, "rows", 1.1), "cost_weight"),
        ((1, "rows", 0, 1.0), "fine_tuning"),
        ((1, "rows", 0, None), "fine_tuning"),
        ((1, "rows", 0, 0.5, 2), "keep"),
    ],
    ids=str,
)
def test_what_is_no_lasso_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GroupLasso(*arguments)


class Own(Layer):
    def __call__(self, x):
        return x.relu()


@pytest.mark.parametrize(
    "sparsity, options, message",
    [
        ("rows", {}, "sparsity must be None or a Sparsity"),
        (GroupLasso(1, "filters"), {}, "no filters that can be removed"),
        (GroupLasso(1, ("rows", "filters")), {}, "no filters"),
        (GroupLasso(1), {"layers": ()}, "no rows"),
        (GroupLasso(1), {"layers": [Linear(64, 8), Own(), Linear(8, 10)]}, "no rows"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_training(sparsity, options, message):
    net = Net(**{**SMALL, "sparsity": sparsity, **options})
    with pytest.raises(ValueError, match=message):
        net.fit(X, Y)
    assert not hasattr(net, "model_")


@pytest.mark.parametrize("groups", ["rows", "tiles"])
def test_a_layer_without_weights_is_told_of(groups):
    with pytest.warns(UserWarning, match=r"all weights of Linear\(.*\) are zero; try a smaller strength than 2.0$"):
        net = fitted(GroupLasso(2.0, groups), epochs=2)
    assert ((1, 1) if groups == "rows" else (0, 32, 32)) in sizes(net) and np.isfinite(net.predict_proba(X_TEST)).all()


@pytest.mark.parametrize("rate, said", [(0.02, r"about 0\.0[2-9] would remove"), (0.0, "the learning rate is 0")])
def test_a_strength_that_is_too_small_is_told_of_with_a_larger_one(rate, said):
    with pytest.warns(UserWarning, match=f"strength=0.01 has removed nothing in 3 epochs of 5 steps; {said}"):
        fitted(GroupLasso(0.01), layers=(48,), batch_size=300, learning_rate=rate)
    assert [rounded_up(value) for value in (0.0101, 0.02, 3.1, 0.95)] == pytest.approx([0.02, 0.02, 4, 1])


def test_it_is_a_value():
    assert GroupLasso(0.1) == GroupLasso(0.1, "rows") != GroupLasso(0.2) and len({GroupLasso(0.1), GroupLasso(0.1)}) == 1
    net = clone(Net((8,), sparsity=GroupLasso(0.1, ("rows", "columns"))))
    assert net.sparsity == GroupLasso(0.1, ("rows", "columns"))
    with pytest.raises(AttributeError):
        net.sparsity.strength = 1


def test_a_regressor_shrinks_too():
    net = NetRegressor(
        (32,), sparsity=GroupLasso(0.6), learning_rate=0.01, epochs=16, batch_size=32, random_state=0, device="cpu"
    ).fit(X[:300], X[:300, 20] * 3)
    assert net.history_[-1]["weights_kept"] < 0.9 and net.score(X[:300], X[:300, 20] * 3) > 0.8
