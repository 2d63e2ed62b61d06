"""Keys that leave no axes: `x[key]` is a tensor of one value, which can be trained through."""

import numpy as np
import pytest

from numbanet import Layer, Linear, Tensor

from ..training.recording.test_recorded_steps import alone, equal, fit, replays  # noqa: F401  a fixture

KEYS = {
    "integers": (1, -1),
    "integers of NumPy": (np.int64(1), np.int32(-1)),
    "an ellipsis": (1, ..., 2),
    "an array": (np.array(1), 2),
    "arrays": (np.array(1), np.array(-1)),
}


@pytest.mark.parametrize("name", KEYS)
def test_one_element_is_a_tensor_with_a_gradient(dev, name):
    x, expected = Tensor(np.arange(6.0).reshape(2, 3), dev, requires_grad=True), np.zeros((2, 3))
    y = x[KEYS[name]]
    assert y.shape == () and y.item() == 5
    (3 * y).backward()
    expected[1, 2] = 3
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_an_index_that_was_computed_is_a_key(dev):
    x = Tensor([1.0, 4.0, 2.0], dev, requires_grad=True)
    x[x.argmax()].backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0, 1, 0])


class Line(Layer):
    recordable = True

    def __init__(self):
        self.a = Tensor(np.array([0.5, 0.1]), requires_grad=True)

    def __call__(self, x):
        return x * self.a[0] + self.a[np.int64(1)]


def test_scalars_of_a_parameter_train_in_recorded_steps(monkeypatch, replays):  # noqa: F811
    layers = lambda: [Linear(6, 8, rng=0), Line(), Linear(8, 3, rng=1)]  # noqa: E731  each fit has its own
    ours = fit(layers=layers())
    assert sum(replays.values()) > 5
    assert np.abs(ours.model_.state_dict()["1.a"] - [0.5, 0.1]).min() > 1e-3
    equal(ours, alone(monkeypatch, layers=layers()))
