"""The proximal step of a sparsity is a part of the recorded step: fits give the weights of fits that compute op by op."""

import pytest
from threadpoolctl import threadpool_limits

from numbanet import GroupLasso, Hook, MagnitudePruning
from numbanet.training.queue import Queue
from numbanet.training.sparsity.lasso import REFRESHED
from numbanet_kernels.host import thresholds
from tests.training.recording.test_recorded_steps import alone, equal, replays  # noqa: F401  a fixture
from tests.training.sparsity.networks import IMAGES, convolutions, fitted

CASES = {
    "rows and columns": {"sparsity": GroupLasso(5e-3, ("rows", "columns"))},
    "tiles": {"sparsity": GroupLasso(8e-3, "tiles"), "layers": (96, 64)},
    "filters and rows": {"sparsity": GroupLasso(1.5e-2, ("filters", "rows")), "layers": convolutions, "X": IMAGES},
    "all by the same length": {"sparsity": GroupLasso(2e-3, adaptive=False)},
    "adam": {"sparsity": GroupLasso(0.9), "optimizer": "adam", "learning_rate": 0.002},
    "rdp": {"sparsity": GroupLasso(8e-3), "dropout": "rdp", "dropout_rate": 0.3},
    "pruning": {"sparsity": MagnitudePruning(0.7)},
    "pruning, rdp": {"sparsity": MagnitudePruning(0.7), "dropout": "rdp", "dropout_rate": 0.3},
}


def fit(**options):
    layers = options.get("layers")
    return fitted(**{**options, **({"layers": layers()} if callable(layers) else {})})


@pytest.fixture
def together(monkeypatch):
    """How many steps each replay computed."""
    counts = []

    def finish(self, original=Queue.finish):
        counts.append(self.count)
        original(self)
        self.most = self.MOST  # however long a step takes here

    monkeypatch.setattr(Queue, "finish", finish)
    return counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rdp")
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_recorded_proximal_steps_give_the_same_network(monkeypatch, replays, together, name, size):  # noqa: F811
    options = {**CASES[name], "n_jobs": size}
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options)
        assert sum(replays.values()) > 100 and max(together) >= REFRESHED - 1
        shrinking = [recorded for recorded in replays if "_shrink" in recorded.names.values()]
        assert bool(shrinking) == (not name.startswith("pruning")) and all(recorded.threads == size for recorded in replays)
        with monkeypatch.context() as patch:
            patch.setattr("tests.training.recording.test_recorded_steps.fit", fit)
            equal(ours, alone(monkeypatch, **options))


class Freezing(Hook):
    """Freezes the first weight before the second epoch, and trains it again from the third one on; sees each update."""

    def epoch_start(self, run, epoch):
        next(run.model.parameters()).requires_grad = epoch != 1

    def after_update(self, run):
        assert run.optimizer.proximal is not None


def test_hooks_change_what_is_shrunk(monkeypatch, replays):  # noqa: F811
    options = {"sparsity": GroupLasso(4e-3, fine_tuning=0.0), "callbacks": [Freezing()], "epochs": 4}
    ours = fit(**options)
    assert len(replays) >= 4
    with monkeypatch.context() as patch:
        patch.setattr("tests.training.recording.test_recorded_steps.fit", fit)
        equal(ours, alone(monkeypatch, **options))
