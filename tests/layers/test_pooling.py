"""Pooling and Flatten of images: equal to PyTorch's; compact channels as if the others had never been there."""

import numpy as np
import pytest

from numbanet import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    BernoulliPlan,
    Context,
    Flatten,
    Flow,
    IndexPlan,
    Linear,
    MaxPool2d,
    Plans,
    ReLU,
    RowPlan,
    Sequential,
    Tensor,
    device,
)
from numbanet.layers import ActivationSpec, ChannelsLast
from numbanet.plans import DeviceAxis, on_device, repeat_indices

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


def passes(ours, theirs, host, dev, step=None):
    """Output and gradient of the input, ours and PyTorch's."""
    x, other = Tensor(host, dev, requires_grad=True), torch.from_numpy(host).requires_grad_()
    y, y_other = ours(x, step), theirs(other)
    assert y.shape == tuple(y_other.shape)
    dy = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
    y.backward(dy)
    y_other.backward(torch.from_numpy(dy))
    return (y.numpy(), x.grad.numpy()), (y_other.detach(), other.grad)


# name of the layer, arguments, options, images; FEW run on every device
FEW = [
    ("MaxPool2d", (2,), {}, (2, 3, 5, 4)),
    ("MaxPool2d", (3, 2, 1), {}, (1, 2, 5, 6)),
    ("AvgPool2d", (3, 2, 1), {"count_include_pad": False}, (1, 2, 5, 6)),
    ("AdaptiveAvgPool2d", ((2, 3),), {}, (1, 2, 5, 4)),
    ("MaxPool2d", (2,), {}, (0, 3, 4, 4)),
    ("MaxPool2d", (3, 2, 1), {"ceil_mode": True}, (2, 2, 6, 7)),
    ("MaxPool2d", ((2, 3), (3, 2)), {"ceil_mode": True, "dilation": 2}, (2, 3, 9, 8)),
    ("AvgPool2d", (3, 2, 1), {"ceil_mode": True}, (2, 2, 6, 7)),
    ("AvgPool2d", (2, 3, 1), {"ceil_mode": True, "count_include_pad": False}, (2, 3, 5, 6)),
]
MANY = [
    *(
        (name, (kernel, stride, padding), {"ceil_mode": True}, (2, 3, height, 7))
        for name in ("MaxPool2d", "AvgPool2d")
        for kernel, stride, padding in ((2, 2, 0), (2, 2, 1), (3, 2, 0), (3, 4, 1), (2, 5, 1))
        for height in (5, 6, 8)
    ),
    ("MaxPool2d", (4, 3), {"ceil_mode": True}, (2, 3, 3, 2)),
    ("MaxPool2d", (2, 2), {}, (3, 20, 8, 8)),
    ("MaxPool2d", (3,), {"stride": 2}, (2, 5, 13, 11)),
    ("MaxPool2d", ((3, 2), (1, 2), (1, 0), (2, 1)), {}, (2, 5, 9, 8)),
    ("MaxPool2d", (1,), {}, (2, 3, 4, 5)),
    ("MaxPool2d", (3, 1), {"padding": 1, "dilation": 2}, (2, 3, 7, 6)),
    ("MaxPool2d", (17,), {"stride": 1}, (1, 3, 19, 18)),
    ("MaxPool2d", (7,), {}, (2, 3, 7, 7)),
    ("AvgPool2d", (2,), {}, (3, 20, 8, 7)),
    ("AvgPool2d", (3, 1, 1), {}, (2, 3, 5, 4)),
    ("AvgPool2d", ((2, 3), (3, 1), (1, 1)), {}, (1, 3, 7, 6)),
    ("AvgPool2d", (1,), {"stride": 2}, (2, 3, 5, 5)),
    ("AvgPool2d", (2,), {}, (0, 3, 4, 4)),
    ("AdaptiveAvgPool2d", (1,), {}, (2, 20, 7, 6)),
    ("AdaptiveAvgPool2d", (6,), {}, (2, 3, 4, 13)),
    ("AdaptiveAvgPool2d", ((3, 5),), {}, (1, 1, 3, 5)),
]
OURS = {"MaxPool2d": MaxPool2d, "AvgPool2d": AvgPool2d, "AdaptiveAvgPool2d": AdaptiveAvgPool2d}


@pytest.mark.parametrize("name, arguments, options, shape", FEW, ids=str)
def test_pooling_equals_pytorchs(dev, rng, name, arguments, options, shape):
    host = np.float32(rng.integers(-4, 4, shape))  # some are equal
    ours, theirs = passes(OURS[name](*arguments, **options), getattr(torch.nn, name)(*arguments, **options), host, dev)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)


@pytest.mark.parametrize("name, arguments, options, shape", MANY, ids=str)
def test_pooling_equals_pytorchs_for_any_window(rng, name, arguments, options, shape):
    test_pooling_equals_pytorchs("cpu", rng, name, arguments, options, shape)


@pytest.mark.parametrize(
    "layer", [MaxPool2d(3, 2, 1), AvgPool2d(2), AdaptiveAvgPool2d((2, 1)), BatchNorm2d(5), Flatten()], ids=str
)
@pytest.mark.parametrize("plan", [RowPlan(5, 2, 1, 2.0), IndexPlan(5, [0, 1, 4], 1.5)], ids=str)
def test_compact_channels_stay_compact(dev, rng, layer, plan):
    """As the dense layer on a masked input, for kept channels; what is pending still is, or was applied."""
    host = np.float32(rng.standard_normal((2, 4, 5, 5)))  # channels last
    held = Tensor(host[..., plan.indices()], dev, requires_grad=True)
    dense = Tensor(np.float32(host * plan.mask()).transpose(0, 3, 1, 2), dev, requires_grad=True)
    if isinstance(layer, BatchNorm2d):
        layer = BatchNorm2d(5, device=dev)
    flow = layer.forward(Flow(held, ChannelsLast(on_device(plan, dev)), (plan,)), Context(dev))
    assert flow.indices.plan.count == flow.x.shape[-1] < flow.indices.plan.n
    mask = flow.indices.plan.mask() if flow.x.ndim == 2 else plan.mask()[:, None, None]
    expected = layer(dense) * np.float32(mask * plan.scale)
    y = flow.dense()
    close(y.numpy(), expected.numpy())
    dy = np.float32(rng.standard_normal(y.shape))
    y.backward(dy)
    expected.backward(dy)
    close(held.grad.numpy(), dense.grad.numpy().transpose(0, 2, 3, 1)[..., plan.indices()])


# --- a network --------------------------------------------------------------------------------------------------------
def test_layers_of_images_give_pytorchs_order_of_features(dev, rng):
    ours = Sequential([BatchNorm2d(3, device=dev), ReLU(), MaxPool2d(2), AvgPool2d(2, 1), Flatten(), Linear(6, 4, device=dev)])
    theirs = torch.nn.Sequential(
        torch.nn.BatchNorm2d(3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.AvgPool2d(2, 1),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 4),
    )
    ours.load_state_dict(theirs.state_dict())
    found = passes(ours, theirs.eval(), np.float32(rng.standard_normal((2, 3, 6, 5))), dev)
    for mine, other in zip(*found):
        close(mine, other)
    assert ours.cost(ActivationSpec((2, 3, 6, 5)), Plans(dev))[1].shape == (2, 4)
    assert ours.records


def test_costs_say_what_is_compact():
    plan = RowPlan(4, 2, 1)
    for layer, shape, count in ((MaxPool2d(2), (2, 4, 3, 2), 2), (BatchNorm2d(4), (2, 4, 6, 5), 2), (Flatten(), (2, 120), 60)):
        cost, spec = layer.cost(ActivationSpec((2, 4, 6, 5), plan, True), Plans())
        assert spec.shape == shape and spec.plan.count == count and cost.flops == 0
    assert MaxPool2d(2).cost(ActivationSpec((None, 4, None, None)), Plans())[1].shape == (None, 4, None, None)
    x = Tensor(np.ones((2, 6, 5, 2)))
    own = on_device(plan, x.device)
    for held in (own, DeviceAxis(plan, x.device, own.buffer)):  # the same lists, whether in a given buffer or not
        found, expected = Flatten().forward(Flow(x, ChannelsLast(held)), Context("cpu")).indices, spec.plan
        assert found.plan == expected and [list(part) for part in found.lists] == [list(part) for part in expected.lists()]


def test_compact_features_are_those_of_the_kept_channels(dev):
    """Also where the lists of channels are written anew."""
    x, host = Tensor(np.ones((2, 6, 5, 2)), dev), on_device(RowPlan(4, 2, 1), device("cpu"))
    own = DeviceAxis(RowPlan(4, 2, 0), dev, dev.upload(host.buffer.copy()))
    found = Flatten().forward(Flow(x, ChannelsLast(own)), Context(dev)).indices
    for name in ("inverse", "classes", "indices"):
        expected = getattr(on_device(repeat_indices(host.plan, 30), device("cpu")).lists, name)
        np.testing.assert_array_equal(dev.download(getattr(found.lists, name)), expected)


def test_scales_may_come_after_pooling_and_random_zeros_may_not():
    for layer in (MaxPool2d(2), AvgPool2d(2), AdaptiveAvgPool2d(1)):
        assert layer.commutes(RowPlan(4, 2, 1, 2.0)) and not layer.commutes(BernoulliPlan(4, 0.5, 1))


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: MaxPool2d(2, return_indices=True), ValueError, "MaxPool2d: return_indices"),
        (lambda: AvgPool2d(0), ValueError, "kernel_size"),
        (lambda: MaxPool2d(3, padding=2), ValueError, r"padding \(2, 2\) must be from 0 to half the kernel_size \(3, 3\)"),
        (lambda: MaxPool2d((2, 2, 2)), TypeError, "kernel_size must be an int or a pair"),
        (lambda: AvgPool2d(2, stride=0), ValueError, r"stride \(0, 0\)"),
        (lambda: AvgPool2d(2.5), TypeError, "got 2.5"),
        (lambda: AdaptiveAvgPool2d((0, 3)), ValueError, r"output_size \(0, 3\)"),
        (lambda: MaxPool2d(2, dilation=0), ValueError, r"dilation \(0, 0\)"),
        (lambda: BatchNorm2d(0), ValueError, "BatchNorm2d: num_features must be a positive integer, got 0"),
        (lambda: BatchNorm2d(3)(Tensor(np.ones((4, 3)))), ValueError, r"BatchNorm2d\(3\): its input is of shape \(3,\)"),
        (lambda: BatchNorm2d(3)(Tensor(np.ones((4, 2, 5, 5)))), ValueError, "does not match 3 channels"),
        (lambda: BatchNorm2d(3)(Tensor(np.ones((1, 3, 1, 1))), Context(training=True)), ValueError, "2d.*more than one value"),
        (lambda: MaxPool2d(2)(Tensor(np.ones((4, 3)))), ValueError, r"MaxPool2d.* \(3,\) a sample; it takes \(C, H, W\)"),
        (
            lambda: MaxPool2d(3).cost(ActivationSpec((4, 3, 2, 9)), Plans()),
            ValueError,
            "MaxPool2d.*larger than its input, .* 2 x 9 pixels",
        ),
        (lambda: AvgPool2d(3)(Tensor(np.ones((1, 3, 2, 9)))), ValueError, "2 x 9 pixels are smaller than the window"),
        (
            lambda: AdaptiveAvgPool2d(3).cost(ActivationSpec((4, 90)), Plans()),
            ValueError,
            r"\(90,\) a sample; it takes \(C, H, W\)",
        ),
        (
            lambda: BatchNorm2d(3).cost(ActivationSpec((4, 2, 5, 5)), Plans()),
            ValueError,
            r"2d\(3\): its input is of shape \(2, 5, 5\) a sample; it takes images \(C, H, W\) with C = 3; .* use BatchNorm1d",
        ),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
