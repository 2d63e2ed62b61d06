"""Networks of images, too, train the same whether their steps are recorded on the CPU or not."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet import AvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Net, ReLU
from numbanet.dropout import BernoulliDropout, BlockSensitiveDropout, DynamicSparseGraph, RowDropout, RowSensitiveDropout
from numbanet.training.recorder import Recorder
from numbanet_kernels.host import thresholds

from ..networks import on_threads
from .test_recorded_steps import equal, replays  # noqa: F401  a fixture

DIRECT, GATHERED, SHAPE = 70, 14, (2, 13, 13)  # samples: of those in a batch so many, images are convolved side by side


def layers(norm, pool, wide):
    """Two convolutions, with and without padding, the second by joined positions where patches are gathered; if `wide`, by
    Winograd's filtering, of 32 channels or so many.
    """
    first, second = (32 if wide is True else wide, 40) if wide else (6, 8)
    norms = [BatchNorm2d(first)] if norm else []
    pools = [AvgPool2d(2), MaxPool2d(2)] if pool == "avg" else [MaxPool2d(2), MaxPool2d(2, stride=1)]
    return [
        Conv2d(2, first, 3, padding=1, rng=0),
        *norms,
        ReLU(),
        pools[0],
        Conv2d(first, second, 3, rng=1),
        ReLU(),
        pools[1],
        Flatten(),
        Linear(second * (4 if pool == "avg" else 9), 12, rng=2),
        ReLU(),
        Linear(12, 3, rng=3),
    ]


def fit(batch_size=GATHERED, norm=True, pool="max", wide=False, optimizer="adam", **options):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2 * batch_size + 9, *SHAPE), np.float32), np.arange(2 * batch_size + 9) % 3
    return Net(
        layers(norm, pool, wide),
        batch_size=batch_size,
        random_state=0,
        optimizer=optimizer,
        **{"epochs": 5, "dropout": "none", **options},
    ).fit(x, y)


def alone(monkeypatch, **options):
    """The same fit, op by op."""
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        return fit(**options)


OPTIONS = {
    "gathered": {},
    "side by side": {"batch_size": DIRECT},
    "winograd": {"batch_size": DIRECT, "wide": True},
    "averages": {"pool": "avg", "norm": False, "optimizer": "sgd"},
    "bernoulli": {"dropout": BernoulliDropout(0.3), "batch_size": DIRECT},
    "positions": {"dropout": RowSensitiveDropout(0.4)},
    "positions, side by side": {"dropout": RowSensitiveDropout(0.6), "batch_size": DIRECT},
    "tiles": {"dropout": RowSensitiveDropout(0.6, tile="auto"), "batch_size": DIRECT, "wide": True},
    "blocks": {"dropout": BlockSensitiveDropout(0.4)},
    "blocks of channels": {"dropout": BlockSensitiveDropout(0.5, channels=True), "batch_size": DIRECT, "wide": 64},
    "blocks, many images": {"dropout": BlockSensitiveDropout(0.6, scale="rate"), "batch_size": DIRECT, "optimizer": "sgd"},
    "channels": {"dropout": DynamicSparseGraph(0.5), "norm": False},
    "filters": {"dropout": RowDropout(0.5, dp_max=2), "epochs": 12},
    "filters, side by side": {"dropout": RowDropout(0.5, dp_max=2), "batch_size": DIRECT, "epochs": 12, "norm": False},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit. the network answers no better")
@on_threads(OPTIONS)
def test_replayed_steps_train_the_same(monkeypatch, replays, name, size):  # noqa: F811
    options = OPTIONS[name]
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options, n_jobs=size)
        assert sum(replays.values()) > 8 and all(recorded.threads == size for recorded in replays)
        count = len(replays)
        equal(ours, alone(monkeypatch, **options, n_jobs=size))
    assert len(replays) == count
