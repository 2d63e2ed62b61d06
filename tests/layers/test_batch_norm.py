"""BatchNorm1d: equal to PyTorch's, compact where it may be, kept whole by all that keeps a network."""

import copy
import pickle

import numpy as np
import pytest

from numbanet import (
    GRU,
    LSTM,
    SGD,
    BatchNorm1d,
    BernoulliDropout,
    Context,
    Embedding,
    Flow,
    IndexPlan,
    LastStep,
    Linear,
    Net,
    ReLU,
    RowDropout,
    RowPlan,
    Sequential,
    SparseLinear,
    Tensor,
    WindowPlan,
    ops,
)
from numbanet.gradients import Packed
from numbanet.layers import to

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


def pair(dev, channels=5, momentum=0.1):
    theirs, rng = torch.nn.BatchNorm1d(channels, momentum=momentum), np.random.default_rng(1)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(rng.uniform(0.5, 2, channels)))
        theirs.bias.copy_(torch.from_numpy(rng.standard_normal(channels)))
    ours = BatchNorm1d(channels, momentum=momentum, device=dev)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("momentum", [0.1, None, 0, 1])
@pytest.mark.parametrize("shape", [(12, 5), (7, 5, 3)], ids=str)
@pytest.mark.slow
def test_batch_norm_equals_pytorchs_over_20_steps(dev, rng, shape, momentum):
    ours, theirs = pair(dev, momentum=momentum)
    optimizers = SGD(ours.parameters(), 0.1, 0.9), torch.optim.SGD(theirs.parameters(), 0.1, 0.9)
    for _ in range(20 if dev.name == "cpu" else 3):
        host, dy = (rng.normal(3, 2, shape).astype(np.float32), rng.standard_normal(shape).astype(np.float32))
        x, x_theirs = Tensor(host, dev, requires_grad=True), torch.from_numpy(host).requires_grad_()
        y, y_theirs = ours(x, Context(dev, training=True)), theirs(x_theirs)
        y.backward(dy)
        y_theirs.backward(torch.from_numpy(dy))
        close(y.numpy(), y_theirs.detach())
        close(x.grad.numpy(), x_theirs.grad, 2e-5)
        for name, (mine, other) in {"weight": (ours.weight, theirs.weight), "bias": (ours.bias, theirs.bias)}.items():
            np.testing.assert_allclose(mine.grad.numpy(), other.grad, rtol=1e-4, atol=1e-4, err_msg=name)
        for optimizer in optimizers:
            optimizer.step()
        theirs.zero_grad()
    for name, value in ours.state_dict().items():
        close(value, theirs.state_dict()[name])
    theirs.eval()
    host = rng.standard_normal(shape).astype(np.float32)
    x, x_theirs = Tensor(host, dev, requires_grad=True), torch.from_numpy(host).requires_grad_()
    y, y_theirs = ours(x), theirs(x_theirs)
    y.backward(host)
    y_theirs.backward(torch.from_numpy(host))
    for mine, other in (
        (y.numpy(), y_theirs.detach()),
        (x.grad.numpy(), x_theirs.grad),
        (ours.weight.grad.numpy(), theirs.weight.grad),
        (ours.bias.grad.numpy(), theirs.bias.grad),
    ):
        close(mine, other, 5e-5)


@pytest.mark.parametrize("plan", [RowPlan(6, 2, 1, 2.0), IndexPlan(6, [0, 1, 5], 1.5)], ids=str)
def test_batch_norm_stays_compact(dev, rng, plan):
    """Linear, BatchNorm1d, ReLU, Linear with dropped neurons: as if the others had never been there."""
    layers = [Linear(4, 6, rng=0, device=dev), BatchNorm1d(6, device=dev), ReLU(), Linear(6, 3, rng=1, device=dev)]
    rows, x = plan.mask(), Tensor(rng.standard_normal((8, 4)), dev)
    step = Context(dev, {layers[0]: plan}, training=True)
    flow = Sequential(layers[:3]).forward(Flow(x), step)
    assert flow.x.shape == (8, 3) and flow.indices.plan == plan and flow.pending == (plan,)
    y = Sequential(layers)(x, step)
    y.sum().backward()
    assert isinstance(layers[1].weight.gradient, Packed) and isinstance(layers[3].weight.gradient, Packed)
    dense = [Tensor(np.float32(p.numpy()), dev, requires_grad=True) for layer in layers for p in layer.parameters()]
    w1, b1, gamma, beta, w2, b2 = dense
    z = ops.linear(x, w1[rows], b1[rows])
    h = ops.relu(ops.batch_norm(z, gamma[rows], beta[rows])) * plan.scale
    expected = h @ w2.T[rows] + b2
    expected.sum().backward()
    close(y.numpy(), expected.numpy(), 2e-5)
    for mine, other in zip((p for layer in layers for p in layer.parameters()), dense, strict=True):
        close(mine.grad.numpy(), other.grad.numpy(), 5e-5)
    assert (layers[1].running_mean.numpy()[~rows] == 0).all() and (layers[1].running_mean.numpy()[rows] != 0).all()


BEFORE = {  # layers from (N, 5, 4) or symbols (N, 5) to (N, 5, 6), whose last axis may be compact
    "Embedding": lambda dev: Embedding(9, 6, rng=0, device=dev),
    "GRU": lambda dev: GRU(4, 6, batch_first=True, rng=0, device=dev),
    "LSTM": lambda dev: LSTM(4, 6, batch_first=True, rng=0, device=dev),
    "Linear": lambda dev: Linear(4, 6, rng=0, device=dev),
    "SparseLinear": lambda dev: SparseLinear(4, 6, 0.5, rng=0, device=dev),
}


@pytest.mark.parametrize("plan", [RowPlan(6, 2, 1, 2.0), WindowPlan(6, 4, 3, 2.0), IndexPlan(6, [0, 1, 5], 1.5)], ids=str)
@pytest.mark.parametrize("name", BEFORE)
def test_channels_of_sequences_are_those_of_a_mask(dev, rng, name, plan):
    """The plan drops entries of the last axis, and the channels are the second one: values, gradients and running values are
    those of a dense layer whose output is multiplied by the mask and the scale.
    """
    first, norm = BEFORE[name](dev), BatchNorm1d(5, device=dev)
    host = rng.integers(9, size=(8, 5)).astype(np.int32) if name == "Embedding" else np.float32(rng.standard_normal((8, 5, 4)))
    x, dy = Tensor.wrap(dev.upload(host), dev), np.float32(rng.standard_normal((8, 5, 6)))
    model = Sequential([first, norm])
    y = model(x, Context(dev, {first: plan}, training=True, model=model))
    y.backward(dy)
    found = [np.array(p.grad.numpy()) for p in model.parameters()]
    for parameter in model.parameters():
        parameter.zero_grad()
    masked = first.forward(Flow(x), Context(dev)).dense() * Tensor(
        np.broadcast_to(plan.mask() * np.float32(plan.scale), (8, 5, 6)), dev
    )
    rows = masked.transpose(0, 2, 1).reshape(48, 5)
    expected = ops.batch_norm(rows, norm.weight, norm.bias).reshape(8, 6, 5).transpose(0, 2, 1)
    expected.backward(dy)
    close(y.numpy(), expected.numpy(), 2e-5)
    for mine, parameter in zip(found, model.parameters(), strict=True):
        close(mine, parameter.grad.numpy(), 5e-5)
    close(norm.running_mean.numpy(), 0.1 * rows.numpy().mean(0))
    close(norm.running_var.numpy(), 0.9 + 0.1 * rows.numpy().var(0, ddof=1))


@pytest.mark.parametrize("dropout", ["rdp", "window", "batchwise"])
@pytest.mark.parametrize("name", BEFORE)
def test_a_net_normalises_the_steps_of_sequences(rng, name, dropout):
    X = rng.integers(9, size=(64, 5)) if name == "Embedding" else rng.standard_normal((64, 5, 4))
    layers = [BEFORE[name]("cpu"), BatchNorm1d(5), ReLU(), LastStep(), Linear(6, 2)]
    net = Net(layers, dropout=dropout, epochs=1, batch_size=16, random_state=0).fit(X, np.arange(64) % 2)
    assert np.isfinite(net.history_[-1]["loss"]) and np.isfinite(net.predict_proba(X)).all()


def normed(dev="cpu"):
    return [Linear(6, 8, rng=0, device=dev), BatchNorm1d(8, device=dev), ReLU(), Linear(8, 3, rng=1, device=dev)]


def samples(rng, n=90):
    y = np.arange(n) % 3
    return 0.4 * rng.standard_normal((n, 6)) + y[:, None], y


@pytest.mark.parametrize("dropout", ["none", RowDropout(0.4), BernoulliDropout(0.3)], ids=str)
def test_a_net_with_batch_norm_keeps_its_statistics(rng, dropout):
    X, y = samples(rng)
    net = Net(normed(), dropout=dropout, epochs=30, batch_size=30, random_state=0).fit(X, y)
    state, answers = net.model_.state_dict(), net.predict_proba(X)
    assert state["1.num_batches_tracked"] == 90 and (state["1.running_var"] != 1).all() and net.score(X, y) > 0.8
    for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        np.testing.assert_array_equal(again.predict_proba(X), answers)
    other = Sequential(normed())
    other.load_state_dict(state)
    np.testing.assert_array_equal(other(Tensor(X)).numpy(), net.model_(Tensor(X)).numpy())
    np.testing.assert_array_equal(net.predict_proba(X), answers)  # prediction moves nothing


def test_running_values_that_are_means_of_all_batches_are_saved_and_go_on(rng, tmp_path):
    X, y = samples(rng)
    layers = normed()
    layers[1] = BatchNorm1d(8, momentum=None)
    net = Net(layers, epochs=2, batch_size=30, random_state=0).fit(X, y)
    net.save(tmp_path / "a")
    again = Net.load(tmp_path / "a")
    assert again.model_[1].momentum is None and again.model_[1].num_batches_tracked.item() == 6
    np.testing.assert_array_equal(again.predict_proba(X), net.predict_proba(X))
    hidden = net.model_[:1](Tensor(X)).numpy()
    before, flow = net.model_[1].running_mean.numpy().copy(), Flow(Tensor(hidden))
    net.model_[1].forward(flow, Context("cpu", training=True))
    close(net.model_[1].running_mean.numpy(), before + (hidden.mean(0) - before) / 7)
    with pytest.raises(
        ValueError, match=r"BatchNorm1d\(8\): momentum=None averages .* RowPlan.* drops channels in some .* such as 0.1"
    ):
        Net(layers, dropout=RowDropout(0.5), epochs=1, random_state=0).fit(X, y)


def test_early_stopping_and_errors_put_statistics_back(rng):
    X, y = samples(rng)
    seen = []
    net = Net(
        normed(),
        epochs=40,
        batch_size=30,
        learning_rate=0.5,
        early_stopping=True,
        patience=2,
        random_state=0,
        callbacks=[lambda net, record: seen.append((record["validation_score"], net.model_.state_dict()))],
    ).fit(X, y)
    best = max(range(len(seen)), key=lambda i: (seen[i][0], -i))
    for name, value in net.model_.state_dict().items():
        np.testing.assert_array_equal(value, seen[best][1][name])
    before = net.model_.state_dict()
    with pytest.raises(RuntimeError, match="full disk"):
        net.set_params(callbacks=[lambda net, record: (_ for _ in ()).throw(RuntimeError("full disk"))]).partial_fit(X, y)
    for name, value in net.model_.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_statistics_move_with_the_layer(dev):
    layer, _ = pair("cpu")
    to(layer, dev)
    assert {tensor.device for _, tensor, _ in layer.named()} == {dev}
    assert [name for name, _, trained in layer.named() if not trained] == ["running_mean", "running_var", "num_batches_tracked"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: BatchNorm1d(0), "BatchNorm1d: num_features must be a positive integer, got 0"),
        (lambda: BatchNorm1d(3.5), "num_features must be a positive integer, got 3.5"),
        (lambda: BatchNorm1d(True), "num_features must be a positive integer, got True"),
        (lambda: BatchNorm1d(3, momentum=2), "momentum 2"),
        (
            lambda: BatchNorm1d(3)(Tensor(np.ones((1, 3))), Context(training=True)),
            r"more than one value for each channel, got x \(1, 3\); train with more samples in a batch \(batch_size\)",
        ),
        (
            lambda: BatchNorm1d(3)(Tensor(np.ones((4, 3, 5, 5)))),
            r"1d\(3\): its input is of shape \(3, 5, 5\) a sample; it takes \(C,\) or .* = 3; for images .* use BatchNorm2d",
        ),
        (lambda: BatchNorm1d(3)(Tensor(np.ones((4, 2)))), r"x \(4, 2\) does not match 3 channels"),
    ],
)
def test_misuse_of_batch_norm_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
