"""Networks that have become smaller go back to what they were: early stopping, checkpoints, errors."""

import numpy as np
import pytest

from numbanet import GroupLasso, MagnitudePruning
from numbanet.training.sparsity import Thinning, compaction
from tests.training.sparsity.networks import X, Y, fitted, sizes


def test_early_stopping_keeps_the_best_compact_network():
    net = fitted(epochs=30, early_stopping=True, patience=2, sparsity=GroupLasso(8e-3, fine_tuning=0.8))
    kept = [record["weights_kept"] for record in net.history_]
    assert 6 < net.n_iter_ < 30 and compaction.count_nonzero(net.model_) == pytest.approx(kept[-1] * (64 * 48 + 48 * 48 + 480))
    assert kept[-1] < 0.7


@pytest.mark.parametrize(
    "chosen",
    [GroupLasso(5e-3, ("rows", "columns")), GroupLasso(6e-3, "tiles"), MagnitudePruning(0.8)],
    ids=["units", "tiles", "single weights"],
)
def test_a_checkpoint_brings_back_layers_and_shapes(monkeypatch, chosen):
    """To before they shrank; training then goes on as it did."""
    found = []

    def epoch_end(self, run, record, original=Thinning.epoch_end):
        before = run.snapshot()
        weights = [p.numpy().copy() for p in run.model.parameters()]
        first = original(self, run, record)
        shapes = [p.shape for p in run.model.parameters()]
        run.restore(before)
        for p, saved in zip(run.model.parameters(), weights, strict=True):
            np.testing.assert_array_equal(p.numpy(), saved)
        self.epoch_start(run, run.epoch)
        again = original(self, run, record)
        assert again["weights_kept"] == first["weights_kept"] and shapes == [p.shape for p in run.model.parameters()]
        found.append(len(shapes))
        return first

    plain = fitted(chosen, layers=(96, 96))
    monkeypatch.setattr(Thinning, "epoch_end", epoch_end)
    net = fitted(chosen, layers=(96, 96))
    assert len(found) == 6 and sizes(net) != [(96, 64), (96, 96), (10, 96)]
    for ours, theirs in zip(net.model_.parameters(), plain.model_.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_an_error_leaves_the_network_as_it_was(monkeypatch):
    """Also where it had shrunk meanwhile."""
    net = fitted(epochs=20)
    net.history_[:] = net.history_[:3]  # as if it were to shrink further
    before, layers = [p.numpy().copy() for p in net.model_.parameters()], list(net.model_.layers)
    net._thinning.chosen = GroupLasso(0.1, ("rows", "columns"))

    def epoch_end(self, run, record, original=Thinning.epoch_end):
        original(self, run, record)
        assert run.model.layers != layers
        raise OSError("now")

    monkeypatch.setattr(Thinning, "epoch_end", epoch_end)
    with pytest.raises(OSError, match="now"):
        net.partial_fit(X, Y)
    assert net.model_.layers == layers
    for p, saved in zip(net.model_.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), saved)
    monkeypatch.undo()
    net.partial_fit(X, Y)
