"""Layers on several devices compute and train what they do on one, and a device that fails is named."""

import copy
import pickle

import numpy as np
import pytest

from numbanet import BatchNorm2d, Context, Conv2d, Flatten, Linear, MaxPool2d, Net, ReLU, Sequential, Tensor
from numbanet.device import DeviceFailure, device, problem
from numbanet.layers import Flow

OTHER = [pytest.param("emulated", marks=pytest.mark.skipif(problem("emulated") is not None, reason="NVVM is missing")), "cpu:1"]


def model(seed=0):
    rng = np.random.default_rng(seed)
    return Sequential(
        [Conv2d(2, 3, 3, padding=1, rng=rng), ReLU(), MaxPool2d(2), BatchNorm2d(3), Flatten(), Linear(3 * 9, 3, rng=rng)]
    )


def passed(given, x):
    """The output of a model in training, and the gradients of its parameters."""
    y = given.forward(Flow(Tensor(x)), Context("cpu", training=True)).dense()
    (y * y).sum().backward()
    return y, [p.grad.numpy() for p in given.parameters()]


@pytest.mark.parametrize("other", OTHER)
@pytest.mark.parametrize("there", ["010101", "001100", "100001"])
def test_both_passes_are_those_of_one_device(rng, other, there):
    x, one = rng.standard_normal((4, 2, 6, 6), np.float32), model()
    several = copy.deepcopy(one)
    several.span([other if place == "1" else "cpu" for place in there])
    (y, gradients), (y_several, gradients_several) = passed(one, x), passed(several, x)
    assert y_several.device is device("cpu")
    np.testing.assert_allclose(y_several.numpy(), y.numpy(), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients_several, gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    placed = [p.device.name for layer in several.layers for p in layer.parameters()]
    assert placed == [other if there[i] == "1" else "cpu" for i in (0, 0, 3, 3, 5, 5)]


def test_one_device_alone_is_not_spanned():
    given = model()
    given.span(["cpu:1"] * 6)
    assert given.spanning is None and {p.device.name for p in given.parameters()} == {"cpu:1"}
    with pytest.raises(ValueError, match="2 devices for 6 layers"):
        given.span(["cpu", "cpu:1"])


def test_a_spanned_model_is_pickled_with_its_devices():
    given = model()
    given.span(["cpu", "cpu", "cpu:1", "cpu:1", "cpu:1", "cpu"])
    passed(given, np.zeros((4, 2, 6, 6), np.float32))
    again = pickle.loads(pickle.dumps(given))
    assert again.spanning.devices == given.spanning.devices


def fitted(monkeypatch, names, epochs=3, **options):
    def adopt(self, model, *given, original=Net._adopt):
        original(self, model, *given)
        if names:
            model.span(names)

    monkeypatch.setattr(Net, "_adopt", adopt)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 20), np.float32), np.arange(80) % 3
    options = {"batch_size": 8, "random_state": 0, "device": "cpu", **options}
    return Net((17, 11), epochs=epochs, **options), X, y


@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp", "window"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_one_device(monkeypatch, dropout, optimizer):
    """30 steps, with plans on each device."""
    weights, answers = [], []
    for names in (None, ["cpu:1", "cpu", "cpu", "cpu:1", "cpu:1"]):
        with monkeypatch.context() as patch:
            net, X, y = fitted(patch, names, dropout=dropout, optimizer=optimizer)
            net.fit(X, y)
        assert (net.model_.spanning is not None) == bool(names)
        weights.append([p.numpy() for p in net.model_.parameters()])
        answers.append(net.predict_proba(X))
    for one, several in zip(*weights, strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "operation, way, epochs", [("gemm", "forward", 2), ("relu_grad", "backward", 2), ("gemm", "forward", 0)]
)
def test_a_device_that_fails_is_named(monkeypatch, operation, way, epochs):
    """After complete epochs the weights are those of the last complete step; before, the estimator is as it was."""
    net, X, y = fitted(monkeypatch, ["cpu", "cpu", "cpu:1", "cpu:1", "cpu"], epochs=4, dropout="none")
    seen, limited = [], device("cpu:1")

    def watch(net, record):
        seen.append([p.numpy().copy() for p in net.model_.parameters()])
        if len(seen) == epochs:
            monkeypatch.setattr(limited, operation, broken)

    def broken(*given, **options):
        raise OSError("the card fell off the bus")

    if not epochs:
        monkeypatch.setattr(limited, operation, broken)
    net.set_params(callbacks=[watch])
    where = "layers 2 to 3 failed on device 'cpu:1'"  # which are computed together
    with pytest.raises(DeviceFailure, match=rf"{where} in the {way} pass: OSError: the card fell"):
        net.fit(X, y)
    assert hasattr(net, "model_") == bool(epochs)
    if epochs:
        assert len(net.history_) == net.n_iter_ == epochs
        for ours, theirs in zip(net.model_.parameters(), seen[-1], strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
