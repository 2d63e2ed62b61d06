"""Normalize: the formula, its gradient, its state, and what it refuses before training starts."""

import copy
import pickle

import numpy as np
import pytest

from numbanet import Flatten, Linear, Net, Normalize, Plans, ReLU, RowPlan, Sequential, Tensor, check_grad
from numbanet.layers import ActivationSpec, to

MEAN, STD = np.float32([0.5, -1.0, 2.0]), np.float32([0.25, 2.0, 0.5])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (0, 3, 2, 2), (1, 3, 1, 1)], ids=str)
def test_value_and_gradient(dev, rng, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    layer = Normalize(MEAN, STD, device=dev)
    each = (1, 3, *(1,) * (len(shape) - 2))
    y = layer(Tensor(x, dev))
    np.testing.assert_allclose(y.numpy(), (np.float64(x) - MEAN.reshape(each)) / STD.reshape(each), rtol=1e-5, atol=1e-5)
    if x.size:
        check_grad(layer, [Tensor(x, dev, requires_grad=True)])


def test_one_number_is_that_of_all(rng):
    x = rng.standard_normal((2, 7, 3)).astype(np.float32)
    np.testing.assert_allclose(Normalize(0.1307, 0.3081)(Tensor(x)).numpy(), (x - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)


def test_what_was_dropped_before_it_is_zero_when_it_comes(rng):
    """It does not commute with a scale or with zeros: it takes the dense activation."""
    first, plan = Linear(4, 6, rng=0), RowPlan(6, 2, 1, 2.0)
    x = rng.standard_normal((3, 4)).astype(np.float32)
    y = Sequential([first, ReLU(), Normalize(0.5, 2.0)])(Tensor(x), {first: plan})
    hidden = np.maximum(first(Tensor(x)).numpy(), 0) * plan.mask() * 2.0
    np.testing.assert_allclose(y.numpy(), (hidden - 0.5) / 2, rtol=1e-5, atol=1e-6)


def test_state(dev):
    layer = Sequential([Normalize(MEAN, STD), Flatten(), Linear(12, 2, rng=0)])
    to(layer, dev)
    state = layer.state_dict()
    assert list(state) == ["0.mean", "0.std", "2.weight", "2.bias"] and len(list(layer.parameters())) == 2
    np.testing.assert_array_equal(state["0.std"], STD)
    other = Sequential([Normalize(0 * MEAN, 0 * STD + 1), Flatten(), Linear(12, 2, rng=1)])
    other.load_state_dict(state)
    for same in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        np.testing.assert_array_equal(same.layers[0].mean.numpy(), MEAN)
    with pytest.raises(ValueError, match=r"0.mean has shape \(1,\), the layer's is \(3,\)"):
        other.load_state_dict({**state, "0.mean": [1.0]})


@pytest.mark.slow
def test_a_net_with_it_learns_as_on_inputs_that_are_normalised(dev, rng):
    x = (5 + 3 * rng.standard_normal((12, 3, 2, 2))).astype(np.float32)
    y, layers = np.arange(12) % 3, [Flatten(), Linear(12, 4, rng=0), ReLU(), Linear(4, 3, rng=1)]
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3))
    options = {"dropout": "none", "epochs": 3, "batch_size": 4, "random_state": 0, "device": dev.name}
    ours = Net([Normalize(mean, std), *layers], **options).fit(x, y)
    normalised = (x - mean[:, None, None]) / std[:, None, None]
    theirs = Net(layers, **options).fit(normalised, y)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(normalised), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(ours.model_.layers[0].mean.numpy(), mean)
    assert ours.model_.records


def test_cost():
    cost, spec = Normalize(MEAN, STD).cost(ActivationSpec((10, 3, 4, 4)), Plans())
    assert spec == ActivationSpec((10, 3, 4, 4))
    assert cost.flops == 0 and cost.bytes_forward == 2 * 4 * 480 and cost.bytes_backward == 0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Normalize([0, 1], [1]), r"mean \(2,\) and std \(1,\) must have one number per channel"),
        (lambda: Normalize([], []), "one number per channel"),
        (lambda: Normalize([[0]], [[1]]), "one number per channel"),
        (lambda: Normalize([0, 1], [1, 0]), "std positive; use std 1 for a constant feature"),
        (lambda: Normalize(np.nan, 1), "must be finite"),
        (lambda: Normalize(0, np.inf), "must be finite"),
        (
            lambda: Normalize(MEAN, STD)(Tensor(np.ones((2, 4, 3)))),
            r"Normalize\(3 channels\): x \(2, 4, 3\) must be \(N, C, …\)",
        ),
        (lambda: Normalize(0, 1)(Tensor(np.ones(4))), r"x \(4,\) must be \(N, C, …\)"),
        (
            lambda: Net([Normalize(MEAN, STD), Linear(4, 2)], device="cpu").fit(np.eye(4), [0, 1, 0, 1]),
            r"Normalize\(3 channels\): x \(128, 4\)",
        ),
    ],
)
def test_misuse_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
