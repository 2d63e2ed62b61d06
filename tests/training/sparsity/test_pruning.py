"""Magnitude pruning: the smallest weights become zero by and by, and layers sparse."""

import pickle

import numpy as np
import pytest

from numbanet import GroupLasso, Linear, MagnitudePruning, Net, ReLU, SparseLinear
from tests.training.sparsity.networks import IMAGES, X_TEST, Y_TEST, X, Y, convolutions, fitted


def test_the_smallest_weights_go_by_and_by():
    net = fitted(MagnitudePruning(0.8), layers=(48, 40), epochs=8)
    total, last = 64 * 48 + 48 * 40 + 400, 400
    shares = [1 - (1 - min(epoch / 4, 1)) ** 3 for epoch in range(1, 9)]
    assert [record["weights_kept"] for record in net.history_] == pytest.approx(
        [1 - 0.8 * share * (total - last) / total for share in shares], abs=2 / total
    )
    first, _, second, _, answer = net.model_.layers
    assert (type(first), type(second), type(answer)) == (SparseLinear, SparseLinear, Linear) and first.weight.nnz == 614
    assert net.score(X_TEST, Y_TEST) > 0.9 and net.history_[-1]["flops_share"] < 0.35 < 1 == net.history_[3]["flops_share"]
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again.predict(X_TEST), net.predict(X_TEST))
    again.partial_fit(X, Y)
    assert again.history_[-1]["weights_kept"] == net.history_[-1]["weights_kept"]


def test_a_frozen_last_layer_is_the_one_that_is_not_pruned():
    layers = [Linear(64, 24, rng=0), ReLU(), Linear(24, 20, rng=1), ReLU(), Linear(20, 10, rng=2)]
    layers[-1].requires_grad_(False)
    net = fitted(MagnitudePruning(0.5), layers=layers, epochs=4)
    first, _, second, _, answer = net.model_.layers
    assert (type(first), type(second), type(answer)) == (SparseLinear, SparseLinear, Linear)


def test_a_mask_of_a_convolution_stays():
    net = fitted(MagnitudePruning(0.6, schedule=lambda progress: progress), layers=convolutions(), X=IMAGES)
    assert (net.model_.layers[0].weight.numpy() == 0).sum() == round(0.6 * 72)
    assert isinstance(net.model_.layers[4], SparseLinear) and net.score(X_TEST.reshape(-1, 1, 8, 8), Y_TEST) > 0.85


@pytest.mark.filterwarnings("ignore:GroupLasso")
@pytest.mark.parametrize("sparsity", [MagnitudePruning(0.8), GroupLasso(0.05, "tiles")], ids=["single", "tiles"])
def test_a_warm_start_goes_on_with_the_sparse_network(sparsity, tmp_path):
    net = fitted(sparsity, layers=(48, 40), warm_start=True, epochs=4)
    sparse, kept = [type(layer) for layer in net.model_.layers], [tuple(p.shape) for p in net.model_.parameters()]
    assert SparseLinear in sparse
    net.save(tmp_path / "net.safetensors")
    net.fit(X, Y, checkpoint=tmp_path / "run", every=20, keep=99)
    resumed = Net.resume(tmp_path / "run").fit(X, Y)
    for other in (net, resumed, Net.load(tmp_path / "net.safetensors").fit(X, Y)):
        assert [type(layer) for layer in other.model_.layers] == sparse and other.n_iter_ == 4
        assert [tuple(p.shape) for p in other.model_.parameters()] == kept
        assert {record["weights_kept"] for record in other.history_} == {1.0}


def test_a_warm_start_keeps_masks_and_prunes_what_is_not_pruned(tmp_path):
    images = {"layers": convolutions(), "X": IMAGES, "warm_start": True, "epochs": 4}
    net = fitted(MagnitudePruning(0.6), **images)
    masked = net.model_.layers[0].weight.numpy() == 0
    net.fit(IMAGES, Y, checkpoint=tmp_path / "run", keep=9)
    np.testing.assert_array_equal(net.model_.layers[0].weight.numpy() == 0, masked)
    first = sorted((tmp_path / "run").iterdir())[0]
    (tmp_path / "one").mkdir()
    first.rename(tmp_path / "one" / first.name)
    resumed = Net.resume(tmp_path / "one").fit(IMAGES, Y)
    for ours, theirs in zip(net.model_.parameters(), resumed.model_.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    net = fitted(None, **images).set_params(sparsity=MagnitudePruning(0.6)).fit(IMAGES, Y)
    assert isinstance(net.model_.layers[4], SparseLinear)


def test_pruning_on_another_device(dev):
    x, y = np.random.default_rng(0).standard_normal((16, 6)), np.arange(16) % 3
    nets = [
        Net((8,), sparsity=MagnitudePruning(0.5), epochs=3, batch_size=8, random_state=0, device=where).fit(x, y)
        for where in ("cpu", dev.name)
    ]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message", [((1.0,), "sparsity"), ((0.5, 1.0), "fine_tuning"), ((0.5, 0.5, 3), "schedule")], ids=str
)
def test_what_is_no_pruning_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"MagnitudePruning: {message}"):
        MagnitudePruning(*arguments)
    with pytest.raises(ValueError, match="no layer to prune"):
        fitted(MagnitudePruning(), layers=())
