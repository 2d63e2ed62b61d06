"""Windows of filters: the values and gradients of an IndexPlan with the same filters, to the last bit, and recorded steps."""

import numpy as np
import pytest

from numbanet import (
    SGD,
    BatchNorm2d,
    Context,
    Conv2d,
    Flatten,
    IndexPlan,
    Linear,
    MaxPool2d,
    Net,
    ReLU,
    Sequential,
    Tensor,
    WindowPlan,
)
from numbanet.gradients import Packed
from numbanet.layers import Tree
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime import replay

CHANNELS = 6
WINDOWS = [((1, 3), (4, 4)), ((5, 1), (0, 1)), ((2, 6), (3, 6)), ((4, 3), (1, 2))]  # (start, count) of both convolutions


def gradients(dev, kind, windows, samples):
    """(y, and the gradients of x and of the parameters), and the model, whose filters keep windows."""
    body = [Conv2d(2, CHANNELS, 3, padding=1, rng=0, device=dev), BatchNorm2d(CHANNELS, device=dev), ReLU(), MaxPool2d(2)]
    body += [Conv2d(CHANNELS, CHANNELS, 3, rng=1, device=dev), ReLU(), Flatten(), Linear(CHANNELS * 4, 3, rng=2, device=dev)]
    model, plans = Sequential(body), {}
    for path, (start, count) in zip(("0", "4"), windows, strict=True):
        window = WindowPlan(CHANNELS, start, count, 1.5)
        site = next(site for site in Tree(model).sites.values() if site.path == f"{path}.output")
        plans[site] = window if kind is WindowPlan else IndexPlan(CHANNELS, window.indices(), 1.5)
    rng = np.random.default_rng(3)
    x = Tensor(rng.standard_normal((samples, 2, 8, 8), np.float32), dev, requires_grad=True)
    y = model(x, Context(dev, plans, training=True, model=model))
    (y * Tensor(rng.standard_normal(y.shape, np.float32), dev)).sum().backward()
    return [y.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())], model


@pytest.mark.parametrize("samples", [2, 33])  # gathered, and with one image per lane
@pytest.mark.parametrize("windows", WINDOWS)
def test_windows_are_index_plans_of_the_same_filters(dev, windows, samples):
    if dev.name == "emulated" and samples > 2:
        pytest.skip("only the CPU has a form with one image per lane")
    found, model = gradients(dev, WindowPlan, windows, samples)
    for ours, theirs in zip(found, gradients(dev, IndexPlan, windows, samples)[0], strict=True):
        assert ours.tobytes() == theirs.tobytes()
    if windows[0][1] < CHANNELS:
        gradient = model.layers[4].weight.gradient
        assert isinstance(gradient, Packed) and gradient.values.shape == (windows[1][1], 9 * windows[0][1])


def fit():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((96, 1, 8, 8)).astype(np.float32), np.arange(96) % 3
    chain = [Conv2d(1, 8, 3, rng=0), ReLU(), MaxPool2d(2), Flatten(), Linear(72, 20, rng=1), ReLU(), Linear(20, 3, rng=2)]
    settings = {"epochs": 6, "batch_size": 16, "random_state": 0, "learning_rate": 0.01, "momentum": 0.9, "device": "cpu"}
    return Net(chain, dropout="window", **settings).fit(X, y)


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
def test_steps_under_windows_of_filters_are_replayed(monkeypatch):
    counts, original = [], replay.run
    monkeypatch.setattr(replay, "run", lambda *given: (counts.append(len(given[3])), original(*given))[1])
    fit()
    assert sum(counts) > 20  # of 36 steps


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
def test_training_under_windows_of_filters_is_that_of_updates_of_all(monkeypatch):
    monkeypatch.setattr(thresholds, "current", thresholds.current._replace(lazy_elements=0))
    lazy = fit()
    assert {w.shape for w in lazy.optimizer_.lazy} >= {(8, 1, 3, 3), (20, 72)}
    monkeypatch.setattr(SGD, "_arrange", lambda self, parameter, part: None)
    for ours, theirs in zip(lazy.model_.parameters(), fit().model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
