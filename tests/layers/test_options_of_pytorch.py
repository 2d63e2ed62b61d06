"""Options of PyTorch's layers, `padding_mode` of Conv2d and `affine` of batch norm: values and gradients equal PyTorch's."""

import warnings

import numpy as np
import pytest

from numbanet import (
    BatchNorm1d,
    BatchNorm2d,
    BlockSensitiveDropout,
    Context,
    Conv2d,
    Flatten,
    GroupLasso,
    Linear,
    MaxPool2d,
    Net,
    Plans,
    ReLU,
    RowPlan,
    Sequential,
    Tensor,
    no_grad,
    ops,
)
from numbanet.layers import ActivationSpec
from numbanet.ops import border

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")

MODES = ["reflect", "replicate", "circular"]


def passes(ours, theirs, host, dev):
    """Outputs and gradients of the input and the parameters of both layers, in training; theirs has the values of ours."""
    theirs.load_state_dict({name: torch.tensor(value) for name, value in ours.state_dict().items()})
    x, other = Tensor(host, dev, requires_grad=True), torch.tensor(host, requires_grad=True)
    y, expected = ours(x, Context(dev, training=True)), theirs(other)
    dy = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
    y.backward(dy)
    expected.backward(torch.tensor(dy))
    pairs = [(y.numpy(), expected.detach()), (x.grad.numpy(), other.grad)]
    named = dict(theirs.named_parameters())
    return pairs + [(tensor.grad.numpy(), named[name].grad) for name, tensor, trained in ours.named() if trained]


def close(pairs):
    for mine, other in pairs:
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [{"padding": 1}, {"padding": (2, 1), "stride": 2}, {"padding": (0, 2), "groups": 2, "dilation": 2, "bias": False}],
    ids=str,
)
def test_padding_modes_equal_pytorchs(dev, rng, mode, options):
    ours = Conv2d(2, 4, 3, **options, padding_mode=mode, rng=0, device=dev)
    theirs = torch.nn.Conv2d(2, 4, 3, **options, padding_mode=mode)
    close(passes(ours, theirs, rng.standard_normal((2, 2, 6, 7), np.float32), dev))
    shape = ours.cost(ActivationSpec((2, 2, 6, 7)), Plans())[1].shape
    assert shape == tuple(theirs(torch.ones(2, 2, 6, 7)).shape) and f"padding_mode={mode!r}" in repr(ours)


@pytest.mark.parametrize(
    "kind, shape", [("BatchNorm1d", (6, 5)), ("BatchNorm1d", (3, 5, 4)), ("BatchNorm2d", (2, 3, 4, 5))], ids=str
)
def test_batch_norm_without_weights_equals_pytorchs(dev, rng, kind, shape):
    ours = {"BatchNorm1d": BatchNorm1d, "BatchNorm2d": BatchNorm2d}[kind](shape[1], affine=False, device=dev)
    theirs = getattr(torch.nn, kind)(shape[1], affine=False)
    assert not list(ours.parameters()) and repr(ours) == f"{kind}({shape[1]}, affine=False)"
    x = rng.standard_normal(shape, np.float32)
    close(passes(ours, theirs, x, dev))
    close([(ours(Tensor(x, dev)).numpy(), theirs.eval()(torch.tensor(x)))])  # with the running values of the pass before


def test_compact_channels_are_normed_as_if_they_were_alone(dev, rng):
    host, plan = rng.standard_normal((6, 8), np.float32), RowPlan(8, 2, 1)
    kept = plan.indices()
    layers = Sequential([Linear(8, 8, rng=0, device=dev), BatchNorm1d(8, affine=False, device=dev)])
    y = layers(Tensor(host, dev), Context(dev, {layers.layers[0]: plan}, training=True)).numpy()
    alone = Sequential([Linear(8, len(kept), rng=0, device=dev), BatchNorm1d(len(kept), affine=False, device=dev)])
    alone.layers[0].weight.assign(dev.upload(layers.layers[0].weight.numpy()[kept]))
    alone.layers[0].bias.assign(dev.upload(layers.layers[0].bias.numpy()[kept]))
    expected = np.zeros((6, 8), np.float32)
    expected[:, kept] = alone(Tensor(host, dev), Context(dev, training=True)).numpy()
    np.testing.assert_allclose(y / plan.scale, expected, atol=1e-4)


def network(mode):
    layers = [
        Conv2d(1, 6, 3, padding=1, padding_mode=mode, rng=0),
        BatchNorm2d(6, affine=False),
        ReLU(),
        MaxPool2d(2, 2, ceil_mode=True),
    ]
    return [*layers, Conv2d(6, 8, 3, padding=1, padding_mode=mode, rng=1), ReLU(), Flatten(), Linear(8 * 16, 3, rng=2)]


@pytest.mark.parametrize("dropout", ["none", "rdp", "rsdp", BlockSensitiveDropout(0.3), "dsg"], ids=str)
def test_networks_train_replay_save_and_load(tmp_path, rng, dropout):
    X, y = rng.random((60, 1, 7, 7), np.float32), np.arange(60) % 3
    net = Net(network("circular"), dropout=dropout, dropout_rate=0.4, epochs=6, batch_size=10, random_state=0, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what these policies do in a network as small as this
        net.fit(X, y)
    net.save(tmp_path / "net")
    again = Net.load(tmp_path / "net")
    np.testing.assert_array_equal(again.predict_proba(X), net.predict_proba(X))
    assert again.model_.layers[0].padding_mode == "circular" and again.model_.layers[3].ceil_mode
    assert again.model_.layers[1].weight is None and repr(again.model_) == repr(net.model_)
    assert np.isfinite(net.history_[-1]["loss"])


def test_a_shrinking_network_keeps_its_function(rng):
    X, y = rng.random((60, 1, 7, 7), np.float32), np.arange(60) % 3
    lasso = GroupLasso(0.5, groups="filters")
    net = Net(network("replicate"), sparsity=lasso, epochs=8, batch_size=10, random_state=0, device="cpu").fit(X, y)
    assert net.history_[-1]["weights_kept"] < 1 and np.isfinite(net.predict_proba(X)).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="padding_mode must be 'zeros', 'reflect', 'replicate', 'circular', got 'mirror'"):
        Conv2d(1, 1, 3, padding=1, padding_mode="mirror")
    with pytest.raises(ValueError, match="too small to be mirrored"):
        Conv2d(1, 1, 3, padding=2, padding_mode="reflect").cost(ActivationSpec((1, 1, 2, 8)), Plans())


def test_predictions_build_no_lists_for_gradients(rng):
    border._grouped.cache_clear()
    x = Tensor(rng.random((2, 5, 6, 3), np.float32), requires_grad=True)
    with no_grad():
        ops.pad2d(x, padding=(1, 2), mode="reflect")
    y = ops.pad2d(x, padding=(1, 2), mode="reflect")
    assert border._grouped.cache_info().misses == 0
    y.sum().backward()
    assert border._grouped.cache_info().misses == 1 and x.grad.sum().item() == 2 * 7 * 10 * 3
