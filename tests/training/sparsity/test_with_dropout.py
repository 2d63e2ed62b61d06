"""Networks that become sparse while dropout thins them out: each layer keeps its own rate."""

import numpy as np
import pytest

from numbanet import GroupLasso, Linear, MagnitudePruning, Net, ReLU, SparseLinear, TileDropout
from numbanet.datasets import load_digits
from numbanet.training.stepper import Stepper

X, Y, X_TEST, Y_TEST = load_digits()


def weighted(model):
    return [layer for layer in model.layers if isinstance(layer, (Linear, SparseLinear))]


@pytest.fixture
def drawn(monkeypatch):
    """By epoch, which of the layers with weights had plans."""
    found = {}

    def begin(self, assigned, policy, original=Stepper.plans_of):
        for path in assigned:
            found.setdefault(self.epoch, set()).add(weighted(self.model).index(self.tree.owners[path]))
        return original(self, assigned, policy)

    monkeypatch.setattr(Stepper, "plans_of", begin)
    return found


@pytest.mark.filterwarnings("ignore:tdp", "ignore:GroupLasso")
@pytest.mark.parametrize("sparsity", [MagnitudePruning(0.8), GroupLasso(3e-2, "tiles")], ids=["single", "tiles"])
def test_rates_stay_with_their_layers_when_some_become_sparse(sparsity, drawn):
    """Tiles are dropped of the first layer alone, and of none when that is sparse; the next two share a weight, and stay."""
    first, second, third = Linear(64, 160, rng=0), Linear(160, 160, rng=1), Linear(160, 160)
    third.weight = second.weight
    net = Net(
        [first, ReLU(), second, ReLU(), third, ReLU(), Linear(160, 10, rng=2)],
        sparsity=sparsity,
        epochs=4,
        dropout=TileDropout((0.8, 0.0, 0.0), tile=8),
        batch_size=32,
        learning_rate=0.02,
        random_state=0,
    ).fit(X, Y)
    assert [type(layer) for layer in weighted(net.model_)] == [SparseLinear, Linear, Linear, Linear]
    assert drawn == {0: {0}, 1: {0}}
    assert [record["dropout_rate"] for record in net.history_] == pytest.approx([0.8 / 3, 0.8 / 3, 0, 0])


def test_a_sparse_layer_counts_among_those_that_have_rates():
    layers = [SparseLinear(64, 32, rng=0), ReLU(), Linear(32, 32, rng=1), ReLU(), Linear(32, 10, rng=2)]
    net = Net(layers, dropout=TileDropout((0.7, 0.5), tile=8), epochs=1, random_state=0).fit(X, Y)
    assert net.history_[0]["dropout_rate"] == 0.25
    with pytest.raises(ValueError, match="dropout_rate has 1 entries for 2 hidden layers"):
        Net(layers, dropout=TileDropout((0.7,))).fit(X, Y)


@pytest.mark.filterwarnings("ignore:dsg", "ignore:partial_fit")
@pytest.mark.parametrize("layers", [(32, 24), [Linear(64, 24, rng=0), ReLU(), Linear(24, 10, rng=1)]], ids=["widths", "given"])
def test_a_pruned_network_is_trained_further_though_nothing_is_left_to_choose(layers, tmp_path):
    def made():
        return Net(layers, sparsity=MagnitudePruning(0.8), dropout="dsg", epochs=4, random_state=0)

    net, steps = made().fit(X, Y, checkpoint=tmp_path / "run", keep=9), made()
    for _ in range(5):
        steps.partial_fit(X, Y)
    assert isinstance(steps.model_.layers[0], SparseLinear)
    (tmp_path / "one").mkdir()
    sorted((tmp_path / "run").iterdir())[2].rename(tmp_path / "one" / sorted((tmp_path / "run").iterdir())[2].name)
    again = Net.resume(tmp_path / "one").fit(X, Y)
    for ours, theirs in zip(net.model_.parameters(), again.model_.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    net.save(tmp_path / "net.safetensors")
    assert Net.load(tmp_path / "net.safetensors").partial_fit(X, Y).n_iter_ == 5
    with pytest.raises(ValueError, match="dsg: it chooses neurons of hidden"):
        Net([SparseLinear(64, 24, rng=0), ReLU(), Linear(24, 10, rng=1)], dropout="dsg").fit(X, Y)
