"""Initial weights of layers that are given: `random_state` decides those that nobody chose."""

import copy
import pickle

import numpy as np
import pytest

from numbanet import (
    LSTM,
    BatchNorm2d,
    Conv2d,
    Embedding,
    Flatten,
    LastStep,
    Layer,
    Linear,
    MaxPool2d,
    Net,
    ReLU,
    Sequential,
    SparseLinear,
)
from numbanet.datasets import load_digits

X, Y, _, _ = load_digits()
X, Y = X[:200], Y[:200]
IMAGES, SYMBOLS = X.reshape(-1, 1, 8, 8), np.int64(16 * X[:, :12])
FAST = {"epochs": 1, "learning_rate": 1e-9, "random_state": 0, "device": "cpu"}


class Own(Layer):
    """Holds a layer."""

    def __init__(self):
        self.inner = Linear(64, 64)

    def __call__(self, x):
        return x


KINDS = {
    "linear": (lambda: [Linear(64, 16), ReLU(), Linear(16, 10, init="glorot", variance_factor=0.5)], X),
    "images": (lambda: [Conv2d(1, 4, 3), BatchNorm2d(4), ReLU(), MaxPool2d(2), Flatten(), Linear(36, 10)], IMAGES),
    "sequences": (
        lambda: [Embedding(17, 8, padding_idx=0), LSTM(8, 9, 2, batch_first=True), LastStep(), Linear(9, 10)],
        SYMBOLS,
    ),
    "sparse": (lambda: [SparseLinear(64, 32, density=0.2), ReLU(), Linear(32, 10)], X),
    "nested": (lambda: [Sequential([Linear(64, 16), ReLU()]), Linear(16, 10)], X),
}


def weights(net):
    return net.model_.state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", KINDS)
def test_three_runs_have_one_result(kind):
    """Layers made without `rng` in each of them, as in three processes."""
    made, samples = KINDS[kind]
    nets = [Net(made(), **FAST).fit(samples, Y) for _ in range(3)]
    assert same(weights(nets[0]), weights(nets[1])) and same(weights(nets[0]), weights(nets[2]))
    assert not same(weights(nets[0]), weights(Net(made(), **{**FAST, "random_state": 1}).fit(samples, Y)))
    again = pickle.loads(pickle.dumps(nets[0]))
    assert same(weights(again.fit(samples, Y)), weights(nets[0].fit(samples, Y)))


def test_what_was_chosen_trained_or_loaded_is_left_alone():
    def loaded(layer):
        layer.load_state_dict(Linear(64, 16, rng=5).state_dict())
        return layer

    def trained(layer):
        layer.weight.data *= np.float32(0.5)
        return layer

    first = Linear(64, 16)
    for layer in (Linear(64, 16, rng=3), loaded(Linear(64, 16)), trained(Linear(64, 16)), first):
        before = layer.weight.numpy().copy()
        net = Net([layer, ReLU(), Linear(16, 10, rng=4)], **FAST).fit(X, Y)
        np.testing.assert_array_equal(layer.weight.numpy(), before)  # it trains copies
        close = np.abs(net.model_[0].weight.numpy() - before).max() < 1e-6
        assert close == (layer is not first)
    once = Net([first, ReLU(), Linear(16, 10)], **FAST, warm_start=True).fit(X, Y)
    kept = weights(once)
    assert np.abs(weights(once.fit(X, Y))["0.weight"] - kept["0.weight"]).max() < 1e-6  # not drawn again
    assert np.abs(weights(once.partial_fit(X, Y))["0.weight"] - kept["0.weight"]).max() < 1e-6


def test_without_a_random_state_layers_keep_their_weights():
    layer = Linear(64, 10)
    net = Net([layer], **{**FAST, "random_state": None}).fit(X, Y)
    assert np.abs(net.model_[0].weight.numpy() - layer.weight.numpy()).max() < 1e-6


def test_layers_that_others_hold_are_drawn_too():
    own = Own()
    before = own.inner.weight.numpy().copy()
    twin = copy.deepcopy(own)
    own.redraw(np.random.default_rng(0))
    twin.redraw(np.random.default_rng(0))
    assert not np.array_equal(own.inner.weight.numpy(), before)
    np.testing.assert_array_equal(own.inner.weight.numpy(), twin.inner.weight.numpy())


def test_initial_values_are_of_the_distribution_that_the_layer_says():
    layer = Linear(300, 200, variance_factor=0.5)
    layer.redraw(np.random.default_rng(0))
    assert layer.weight.numpy().var() == pytest.approx(0.5 * 2 / 300, rel=0.03)
    padded = Embedding(9, 4, padding_idx=2)
    padded.redraw(np.random.default_rng(0))
    assert not padded.weight.numpy()[2].any() and padded.weight.numpy().any()
