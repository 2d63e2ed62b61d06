"""Updates under windows: what a step does not read of a weight, rows and columns, is brought up to date when one does."""

import numpy as np
import pytest

from numbanet import SGD, Conv2d, Flatten, Linear, Net, ReLU, Sequential, WindowPlan
from numbanet.layers import LayerNorm, Tree
from numbanet.plans import Plans
from numbanet_kernels.host import thresholds


@pytest.fixture(autouse=True)
def always_lazy(monkeypatch):
    """However small a weight is."""
    monkeypatch.setattr(thresholds, "current", thresholds.current._replace(lazy_elements=0))


def test_a_chain_knows_whose_outputs_are_whose_inputs():
    first, second, third, last = Linear(4, 6, rng=0), Linear(6, 5, rng=1), Linear(5, 4, rng=2), Linear(4, 3, rng=3)
    tree = Tree(Sequential([first, ReLU(), second, LayerNorm(5), third, last]))
    assert tree.feeds == {second: first, last: third}


@pytest.mark.parametrize("rows, cols", [((1, 3), (70, 60)), (None, (120, 30)), ((3, 4), (1, 129)), ((4, 2), (64, 64))])
def test_what_a_product_reads_are_blocks_of_rows(rows, cols):
    layer, inner = Linear(130, 5, rng=0), Linear(3, 130, rng=1)
    tree = Tree(Sequential([inner, ReLU(), layer]))
    plans = {"0.output": WindowPlan(130, *cols), **({} if rows is None else {"2.output": WindowPlan(5, *rows)})}
    ((weight, part),) = Plans("cpu", tree.sites, plans, feeds=tree.feeds).region(layer, layer.weight).items()
    region = part.plan.region(weight.shape)
    assert weight is layer.weight and region.block == (1, 64) and region.wanted.shape == (5, 3)
    mask = part.plan.mask()
    for r in range(5):
        for b in range(3):
            assert region.wanted[r, b] == mask[r, 64 * b : 64 * (b + 1)].any()


def test_a_chain_of_layers_reads_only_the_windows_of_both_axes():
    """Of the weight of a layer, the rows of its own window and the columns of the window before it."""
    tree = Tree(
        Sequential([Linear(3, 256, rng=0), ReLU(), second := Linear(256, 128, rng=1), ReLU(), last := Linear(128, 2, rng=2)])
    )
    plans = {"0.output": WindowPlan(256, 200, 100), "2.output": WindowPlan(128, 10, 32)}
    read = tree.reads(Plans("cpu", tree.sites, plans, feeds=tree.feeds))
    masks = {weight: part.plan.mask() for weight, part in read.items()}
    assert masks[second.weight].sum() == 32 * 100 and masks[last.weight].sum() == 2 * 32
    region = read[second.weight].plan.region(second.weight.shape)
    assert region.wanted.sum() == 32 * 2  # in each row two blocks of 64 columns: 0 … 63 and 192 … 255


def test_the_pixels_of_channels_are_adjacent_inputs():
    layer, inner = Linear(6 * 50, 2, rng=0), Conv2d(1, 6, 3, rng=0)
    tree = Tree(Sequential([inner, ReLU(), Flatten(), layer]))
    plans = Plans("cpu", tree.sites, {"0.output": WindowPlan(6, 5, 2)}, feeds=tree.feeds)
    ((_, part),) = plans.region(layer, layer.weight).items()
    assert part.plan.mask().tolist() == [np.repeat([True, False, False, False, False, True], 50).tolist()] * 2
    wanted = part.plan.region(layer.weight.shape).wanted
    assert wanted.tolist() == [[True, False, False, True, True]] * 2  # of 64 inputs each; the last one of 44


@pytest.mark.slow
@pytest.mark.parametrize("momentum, nesterov, decay", [(0.9, False, 0.0), (0.9, True, 1e-3), (0.0, False, 1e-2)])
def test_training_under_windows_is_that_of_updates_of_all(dev, monkeypatch, momentum, nesterov, decay):
    """Exact momentum: the same weights as if each step had updated everything."""
    count = 30 if dev.name == "emulated" else 60
    X, y = np.random.default_rng(0).standard_normal((count, 70), np.float32), np.arange(count) % 3
    options = {"dropout": "window", "momentum": momentum, "nesterov": nesterov, "weight_decay": decay, "random_state": 0}
    options |= {"epochs": 1 if dev.name == "emulated" else 3, "batch_size": 10, "learning_rate": 0.05, "device": dev.name}
    lazy = Net((140, 90), **options).fit(X, y)
    assert lazy.optimizer_.lazy
    monkeypatch.setattr(SGD, "_arrange", lambda self, parameter, part: None)
    every = Net((140, 90), **options).fit(X, y)
    assert not every.optimizer_.lazy
    for ours, theirs in zip(lazy.model_.parameters(), every.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
