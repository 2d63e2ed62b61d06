"""Units that do nothing leave a network, and it computes the same function as before, on every device."""

import numpy as np
import pytest

from numbanet import (
    GELU,
    SGD,
    Adam,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Context,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Select,
    Sequential,
    Sigmoid,
    Tanh,
    Tensor,
)
from numbanet.layers import Layer, to
from numbanet.training.sparsity import compaction

OUT, IN = 0, 1  # axes of a weight


def zero(layer, axis, places):
    """Leave nothing of a layer's weight at some places of an axis."""
    weight = layer.weight.numpy()
    weight[(slice(None),) * axis + (list(places),)] = 0


class Unknown(Layer):
    def __call__(self, x):
        return x * 2.0


def mlp(*between, widths=(6, 9, 3), bias=True):
    first, last = (Linear(n, m, bias=bias, rng=n) for n, m in zip(widths, widths[1:]))
    return [first, *between, last]


def images(*between, padding=0, bias=True, side=8):
    """Two convolutions and a linear layer."""
    layers = [Conv2d(2, 5, 3, rng=0), *between, Conv2d(5, 4, 3, padding=padding, bias=bias, rng=1), ReLU(), Flatten()]
    shape = np.array(Sequential(layers)(Tensor(np.zeros((2, 2, side, side)))).shape)
    return [*layers, Linear(int(shape[1]), 3, rng=2)]


CASES = {  # layers; (which of those with weights, axis, places) that are zero; weight shapes afterwards
    "rows": (lambda: mlp(ReLU()), [(0, OUT, (1, 4, 8))], [(6, 6), (3, 6)]),
    "rows, sigmoid": (lambda: mlp(Sigmoid()), [(0, OUT, (0, 4))], [(7, 6), (3, 7)]),
    "rows, batch norm": (lambda: mlp(BatchNorm1d(9), GELU()), [(0, OUT, (0, 4))], [(7, 6), (3, 7)]),
    "rows, before a norm without bias": (
        lambda: [*mlp(Tanh(), bias=False)[:2], Linear(9, 4, bias=False, rng=5), BatchNorm1d(4), ReLU(), Linear(4, 3, rng=4)],
        [(0, OUT, (2,))],
        [(8, 6), (4, 8), (3, 4)],
    ),
    "rows, no bias to put it in": (
        lambda: [Linear(6, 9, rng=0), ReLU(), Linear(9, 3, bias=False, rng=1)],
        [(0, OUT, (1, 2))],
        [(8, 6), (3, 8)],
    ),  # one gives 0
    "columns": (lambda: mlp(ReLU()), [(1, IN, (1, 4, 8))], [(6, 6), (3, 6)]),
    "features": (lambda: mlp(ReLU()), [(0, IN, (0, 5))], [(9, 4), (3, 9)]),
    "features again": (lambda: [Select(8, [0, 2, 3, 5, 6, 7]), *mlp(ReLU())], [(0, IN, (0, 5))], [(9, 4), (3, 9)]),
    "all in turn": (
        lambda: [Linear(6, 4, rng=0), ReLU(), Linear(4, 5, rng=1), ReLU(), Linear(5, 3, rng=2)],
        [(2, IN, (0, 1)), (1, IN, (3,)), (0, IN, (2,)), (1, OUT, (4,))],
        [(3, 5), (2, 3), (3, 2)],
    ),
    "what only dead units read": (
        lambda: [Linear(6, 4, rng=0), ReLU(), Linear(4, 5, rng=1), ReLU(), Linear(5, 3, rng=2)],
        [(2, IN, (0, 1, 2, 3))],
        [(4, 6), (1, 4), (3, 1)],
    ),
    "one unit stays": (lambda: mlp(ReLU()), [(0, OUT, range(9))], [(1, 1), (3, 1)]),
    "outputs stay": (lambda: mlp(ReLU()), [(1, OUT, (0, 1))], [(9, 6), (3, 9)]),
    "an unknown layer": (lambda: mlp(Unknown()), [(0, OUT, (1,)), (1, IN, (4,))], [(9, 6), (3, 8)]),
    "filters": (lambda: images(ReLU()), [(0, OUT, (1, 3))], [(3, 2, 3, 3), (4, 3, 3, 3), (3, 64)]),
    "filters, norm and pooling": (
        lambda: images(BatchNorm2d(5), ReLU(), MaxPool2d(2), bias=False, side=12),
        [(0, OUT, (1, 3))],
        [(4, 2, 3, 3), (4, 4, 3, 3), (3, 36)],
    ),  # one gives 0
    "filters, padded": (
        lambda: images(ReLU(), AvgPool2d(2), padding=1),
        [(0, OUT, (1, 2))],
        [(4, 2, 3, 3), (4, 4, 3, 3), (3, 36)],
    ),  # one gives 0
    "filters, read by pixels": (lambda: images(ReLU()), [(1, OUT, (0, 2))], [(5, 2, 3, 3), (2, 5, 3, 3), (3, 32)]),
    "filters that nothing reads": (lambda: images(ReLU()), [(2, IN, range(16, 48))], [(5, 2, 3, 3), (2, 5, 3, 3), (3, 32)]),
    "pixels": (lambda: images(ReLU()), [(2, IN, (0, 1, 63))], [(5, 2, 3, 3), (4, 5, 3, 3), (3, 61)]),
    "pixels, then their filter": (lambda: images(ReLU()), [(2, IN, range(1, 50))], [(5, 2, 3, 3), (2, 5, 3, 3), (3, 15)]),
    "filters of which pixels are selected": (
        lambda: [*images(ReLU())[:-1], Select(64, [0, 3, 17, 20, 21, 33, 50, 63]), Linear(8, 3, rng=4)],
        [(1, OUT, (1,)), (2, IN, (0, 1, 5))],
        [(5, 2, 3, 3), (1, 5, 3, 3), (3, 2)],
    ),  # 0 is not read, 2 neither
    "channels of a convolution": (lambda: images(ReLU()), [(1, IN, (2,))], [(4, 2, 3, 3), (4, 4, 3, 3), (3, 64)]),
    "groups stay": (
        lambda: [Conv2d(2, 4, 3, groups=2, rng=0), ReLU(), Conv2d(4, 4, 3, groups=2, rng=0), Flatten(), Linear(64, 3, rng=0)],
        [(0, OUT, (0,)), (1, OUT, (1,))],
        [(4, 1, 3, 3), (4, 2, 3, 3), (3, 64)],
    ),
}


def made(name, dev="cpu", optimizer=None, n=5):
    """(model, n samples, optimiser after one step, with zeros planted)"""
    layers, zeros, _ = CASES[name]
    model, rng = Sequential(layers()), np.random.default_rng(0)
    weighted = [layer for layer in model.layers if type(layer) in (Linear, Conv2d)]
    first = model.layers[0]
    shape = (
        (2, 12, 12)
        if "pooling" in name
        else (2, 8, 8)
        if isinstance(first, Conv2d)
        else ((first.plan.n if isinstance(first, Select) else 6),)
    )
    x = rng.standard_normal((n, *shape)).astype(np.float32)
    optimizer = (optimizer or SGD)(list(model.parameters()), 0.01, *([0.9] if optimizer in (None, SGD) else []))
    model(Tensor(x), Context("cpu", training=True)).sum().backward()
    optimizer.step()
    for tensor_name, tensor, _ in model.named():
        if "bias" in tensor_name or "running" in tensor_name:
            tensor.numpy()[...] = np.abs(rng.standard_normal(tensor.shape)) * (-1) ** np.arange(tensor.size)
        if "running_var" in tensor_name:
            tensor.numpy()[...] = 1 + np.arange(tensor.size)
    for place, axis, places in zeros:
        zero(weighted[place], axis, places)
    to(model, dev)
    return model, x, optimizer


@pytest.mark.parametrize("name", CASES)
def test_the_function_stays_the_same(name):
    model, x, optimizer = made(name)
    before = np.array(model(Tensor(x)).numpy())
    flops = compaction.flops(model, x.shape)
    shapes = CASES[name][2]
    changed = compaction.compact(model, optimizer, x.shape)
    np.testing.assert_allclose(model(Tensor(x)).numpy(), before, rtol=1e-6, atol=2e-6)
    assert [layer.weight.shape for layer in model.layers if type(layer) in (Linear, Conv2d)] == shapes
    assert changed == (compaction.flops(model, x.shape) < flops) == (name not in ("outputs stay", "groups stay"))
    assert not compaction.compact(model, optimizer, x.shape)
    for parameter, state in zip(optimizer.parameters, optimizer.state, strict=True):
        assert [array.shape for array in state] == [parameter.shape] * optimizer.states


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD, Adam])
@pytest.mark.parametrize("name", ["rows", "filters"])
def test_what_stays_takes_the_same_steps(name, optimizer, dev):
    """With the state that it had: units that give 0, and are at rest, have no part in them."""
    found, n = [], 5 if dev.name != "emulated" else 2
    for compacted in (False, True):
        model, x, taught = made(name, optimizer=optimizer, n=n)
        first = model.layers[0]
        dead = ~first.weight.numpy().reshape(len(first.weight.numpy()), -1).any(1)
        first.bias.numpy()[dead] = 0
        for array in [array for arrays in taught.state[:2] for array in arrays]:
            array[dead] = 0
        saved = taught.snapshot()
        to(model, dev)
        taught.restore(saved)
        if compacted:
            assert compaction.compact(model, taught, x.shape)
        for _ in range(2):
            y = model(Tensor(x, dev), Context(dev))
            (y * y).sum().backward()
            taught.step()
        found.append(np.array(model(Tensor(x, dev)).numpy()))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    assert np.abs(found[0] - made(name, n=n)[0](Tensor(x)).numpy()).max() > 0.01


def test_a_selection_passes_features_on(dev, rng):
    layer, x = Select(7, [1, 2, 6]), Tensor(rng.standard_normal((4, 7)), dev, requires_grad=True)
    y = layer(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy()[:, [1, 2, 6]])
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy().sum(0), [0, 4, 4, 0, 0, 0, 4])
    assert repr(layer) == "Select(3 of 7 features)"
    with pytest.raises(ValueError, match="increasing"):
        Select(7, [2, 1])


def test_weights_that_are_shared_or_frozen_stay():
    model, x, optimizer = made("rows")
    model.layers[0].weight.requires_grad = False
    assert not compaction.compact(model, optimizer, x.shape)
    first, last = Linear(4, 4, rng=0), Linear(4, 4, rng=0)
    last.weight = first.weight
    zero(first, OUT, (1,))
    model = Sequential([first, ReLU(), last])
    assert not compaction.compact(model, SGD(list(model.parameters())), (2, 4))


def one_norm():
    """Of two layers."""
    norm = BatchNorm1d(8)
    return [Linear(6, 8, rng=0), norm, ReLU(), Linear(8, 8, rng=1), norm, ReLU(), Linear(8, 3, rng=2)]


def one_bias():
    """Of two layers."""
    layers = [Linear(6, 8, rng=0), ReLU(), Linear(8, 8, rng=1), ReLU(), Linear(8, 3, rng=2)]
    layers[2].bias = layers[0].bias
    return layers


def one_mean():
    """Of two norms; the layer before the second one has no bias, so that constants would be taken off that mean."""
    first, second = BatchNorm1d(8), BatchNorm1d(8)
    second.running_mean = first.running_mean
    return [
        Linear(6, 8, rng=0),
        Sigmoid(),
        Linear(8, 8, bias=False, rng=1),
        first,
        ReLU(),
        Linear(8, 8, rng=2),
        second,
        ReLU(),
        Linear(8, 3, rng=3),
    ]


@pytest.mark.parametrize("make", [one_norm, one_bias, one_mean])
def test_units_stay_whose_bias_or_norm_is_used_elsewhere_too(make, rng):
    model, x = Sequential(make()), Tensor(rng.standard_normal((5, 6)))
    for layer in [layer for layer in model.layers if type(layer) is Linear][:2]:
        zero(layer, OUT, (1, 4))
    before = np.array(model(x).numpy())
    compaction.compact(model, SGD(list(model.parameters())), x.shape)
    np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-6, atol=2e-6)
    assert model.layers[0].weight.shape == (8, 6)
