"""Batchwise dropout: any neurons of a layer, drawn for each batch."""

import functools
import sys

import numpy as np
import pytest

from numbanet import BatchwiseDropout, Conv2d, Flatten, IndexPlan, Linear, Net, ReLU
from numbanet.plans import on_device


def samples(rng, n=90):
    y = np.arange(n) % 3
    return 0.4 * rng.standard_normal((n, 6)) + y[:, None], y


def test_batchwise_rows_learn_and_are_lazy(rng):
    X, y = samples(rng, 300)
    net = Net((64, 64), dropout=BatchwiseDropout(0.5), epochs=60, batch_size=50, random_state=0).fit(X, y)
    assert net.score(X, y) > 0.85 and net.history_[-1]["flops_share"] < 0.5


@pytest.mark.parametrize("layers, placed_in_a_step", [((16, 16), 2), ("images", 2)])
def test_plans_that_hardly_come_twice_are_placed_once_a_step_and_not_kept(rng, monkeypatch, layers, placed_in_a_step):
    """What is derived from a convolution's filters, its columns and the features of `Flatten`, is computed on the device."""
    placed, plans_kept = [], sys.modules["numbanet.plans.on_device"]
    plans_widened = sys.modules["numbanet.plans.rows"]._repeat_indices

    def counted(plan, dev, place=plans_kept.upload_plan):
        placed.append(plan)
        return place(plan, dev)

    monkeypatch.setattr(plans_kept, "upload_plan", counted)
    monkeypatch.setattr(plans_kept, "_held", functools.lru_cache(counted))
    X, y = samples(rng, 60)
    if layers == "images":
        layers = [Conv2d(1, 8, 2, rng=0), ReLU(), Conv2d(8, 6, 1, rng=1), ReLU(), Flatten(), Linear(12, 3, rng=2)]
        X = X.reshape(-1, 1, 2, 3)
    plans_widened.cache_clear()
    Net(layers, dropout=BatchwiseDropout(0.5), epochs=2, batch_size=20, random_state=0, device="cpu").fit(X, y)
    drawn = [plan for plan in placed if not plan.cacheable]
    assert len(drawn) == len({id(plan) for plan in drawn}) == 2 * 3 * placed_in_a_step  # epochs, steps
    cached = {plan for plan in placed if plan.cacheable}
    assert all(plan.trivial for plan in cached)  # whole axes alone, such as the first layer's input
    assert plans_kept._held.cache_info().currsize == len(cached) <= 5 and plans_widened.cache_info().currsize <= 1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_batchwise_rows_train_the_same_on_all_devices(dev, rng, optimizer):
    """Recorded where the device records: their lists are read from device memory."""
    X, y = samples(rng, 24)
    options = {"dropout": BatchwiseDropout(0.5), "optimizer": optimizer, "epochs": 2, "batch_size": 8, "random_state": 0}
    nets = [Net((7, 6), **options, device=name).fit(X, y) for name in ("cpu", dev.name)]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_a_plan_is_made_once_a_device(dev):
    plan = IndexPlan(5, [1, 3])
    assert on_device(plan, dev) is on_device(IndexPlan(5, [1, 3]), dev)
