"""LayerNorm: PyTorch's in values, gradients and names; dense whatever comes to it; saved and trained as other layers."""

import numpy as np
import pytest

from numbanet import LayerNorm, Linear, Net, ReLU, RowDropout, RowPlan, Sequential, Tensor, check_grad, ops
from numbanet.layers import ActivationSpec
from numbanet.plans import Plans

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}], ids=str)
@pytest.mark.parametrize(
    "x_shape, shape",
    [((5, 7), 7), ((3, 4, 6), 6), ((3, 4, 6), (4, 6)), ((2, 3, 4, 5), [3, 4, 5]), ((2, 70, 33), (33,)), ((5,), 5)],
    ids=str,
)
def test_equals_pytorchs(dev, rng, x_shape, shape, options):
    theirs = torch.nn.LayerNorm(shape, **options)
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    ours = LayerNorm(shape, **options, device=dev)
    assert {name: a.shape for name, a in ours.state_dict().items()} == {
        name: tuple(a.shape) for name, a in theirs.state_dict().items()
    }
    ours.load_state_dict(theirs.state_dict())
    x, dy = (rng.standard_normal(x_shape).astype(np.float32) for _ in range(2))
    mine, other = Tensor(x, dev, requires_grad=True), torch.from_numpy(x).requires_grad_()
    y, expected = ours(mine), theirs(other)
    y.backward(dy)
    expected.backward(torch.from_numpy(dy))
    close(y.numpy(), expected.detach())
    close(mine.grad.numpy(), other.grad)
    for name, parameter in theirs.named_parameters():
        close(getattr(ours, name).grad.numpy(), parameter.grad)


def test_the_gradient_is_that_of_the_value(dev, rng):
    given = [Tensor(rng.standard_normal(shape), dev, requires_grad=True) for shape in ((4, 2, 3), (2, 3), (2, 3))]
    check_grad(lambda x, g, b: ops.layer_norm(x, g, b, shape=(2, 3), eps=0.1), given)
    check_grad(lambda x, b: ops.layer_norm(x, None, b, shape=(2, 3), eps=0.1), given[::2])


def test_what_was_dropped_counts_as_0(dev, rng):
    first, norm, x = Linear(4, 6, rng=0, device=dev), LayerNorm(6, device=dev), Tensor(rng.standard_normal((3, 4)), dev)
    plan = RowPlan(6, 2, 1, 1.5)
    hidden = np.maximum(first(x).numpy(), 0) * plan.mask() * 1.5
    expected = torch.nn.functional.layer_norm(torch.from_numpy(np.float32(hidden)), (6,))
    close(Sequential([first, ReLU(), norm])(x, {first: plan}).numpy(), expected)


def test_batches_are_told_nothing_of_each_other(rng):
    x = rng.standard_normal((6, 9)).astype(np.float32)
    norm = LayerNorm(9)
    np.testing.assert_array_equal(norm(Tensor(x)).numpy()[2:3], norm(Tensor(x[2:3])).numpy())


def test_cost_and_shapes():
    cost, spec = Sequential([LayerNorm((3, 4)), LayerNorm(4)]).cost(ActivationSpec((7, 3, 4)), Plans())
    assert spec.shape == (7, 3, 4) and spec.differentiable and cost.flops == 0 and cost.bytes_forward == 2 * 2 * 4 * 84
    with pytest.raises(ValueError, match=r"LayerNorm\(5\): its input is of shape \(3, 4\) a sample"):
        LayerNorm(5).cost(ActivationSpec((7, 3, 4)), Plans())


@pytest.mark.parametrize("dropout", ["none", RowDropout(0.3)], ids=str)
def test_a_net_with_layer_norm_learns_and_is_saved(rng, tmp_path, dropout):
    X = rng.standard_normal((200, 8)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    layers = [
        Linear(8, 48, rng=0),
        LayerNorm(48),
        ReLU(),
        Linear(48, 32, rng=1),
        LayerNorm(32, bias=False),
        ReLU(),
        Linear(32, 2, rng=2),
    ]
    net = Net(layers, dropout=dropout, epochs=60, batch_size=25, random_state=0, device="cpu").fit(X, y)
    assert net.score(X, y) > 0.95
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Net.load(tmp_path / "net").predict_proba(X), net.predict_proba(X))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: LayerNorm(0), ValueError, "must be positive"),
        (lambda: LayerNorm(()), ValueError, "one axis at least"),
        (lambda: LayerNorm(3, 0.0), ValueError, "above 0"),
        (lambda: LayerNorm(2.5), TypeError, "integer"),
        (lambda: LayerNorm((3, True)), TypeError, "integer"),
        (
            lambda: LayerNorm((3, 4))(Tensor(np.ones((4, 3)))),
            ValueError,
            r"LayerNorm\(\(3, 4\)\): x \(4, 3\) does not end with",
        ),
        (lambda: LayerNorm((3, 4))(Tensor(np.ones(4))), ValueError, "does not end with"),
        (
            lambda: ops.layer_norm(Tensor(np.ones((2, 3))), Tensor(np.ones(2)), shape=(3,)),
            ValueError,
            r"layer_norm: x \(2, 3\), gamma \(2,\) do not end with the axes \(3,\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_it_says_what_it_is():
    assert repr(Sequential([LayerNorm(3), LayerNorm((2, 3), bias=False), LayerNorm(3, elementwise_affine=False)])) == (
        "Sequential([LayerNorm(3), LayerNorm((2, 3), bias=False), LayerNorm(3, elementwise_affine=False)])"
    )
