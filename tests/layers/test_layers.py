"""Layers: shapes, initial weights, errors."""

import numpy as np
import pytest

from numbanet import (
    GELU,
    BatchNorm1d,
    BernoulliPlan,
    Context,
    Flatten,
    Flow,
    Layer,
    Linear,
    Plan,
    Plans,
    ReLU,
    RowDropout,
    RowPlan,
    Sequential,
    Shuffle,
    Sigmoid,
    Tanh,
    Tensor,
    TilePlan,
    device,
)
from numbanet.layers import ActivationSpec, Columns, Tree
from numbanet.plans import on_device


@pytest.mark.parametrize(
    "init, variance_factor, variance", [("he", 1.0, 2 / 300), ("glorot", 1.0, 2 / 500), ("he", 0.3, 0.6 / 300)]
)
def test_initial_weights_have_the_stated_variance(init, variance_factor, variance):
    weight = Linear(300, 200, init=init, variance_factor=variance_factor, rng=0).weight.numpy()
    assert weight.shape == (200, 300) and weight.var() == pytest.approx(variance, rel=0.02)
    assert abs(weight.mean()) < 5 * np.sqrt(variance / weight.size)


def test_linear_takes_any_leading_axes(rng):
    layer = Linear(6, 4, rng=0)
    x = rng.standard_normal((2, 3, 6))
    expected = x @ np.float64(layer.weight.numpy()).T + layer.bias.numpy()
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert list(Linear(6, 4, bias=False).parameters())[0].shape == (4, 6) and Linear(6, 4, bias=False).bias is None


def test_flatten_and_activations(rng):
    x = Tensor(rng.standard_normal((2, 3, 4)))
    assert Sequential([Flatten(), Linear(12, 5), Tanh(), Sigmoid(), GELU(), ReLU()])(x).shape == (2, 5)


def test_a_layer_that_is_not_elementwise_sees_the_dense_activation(rng):
    first, last = Linear(4, 6, rng=0), Linear(6, 2, rng=1)
    x, plan = Tensor(rng.standard_normal((3, 4))), RowPlan(6, 2, 1, 2.0)
    hidden = np.maximum(first(x).numpy(), 0) * plan.mask() * 2.0
    y = Sequential([first, ReLU(), Flatten(), last])(x, {first: plan})
    np.testing.assert_allclose(y.numpy(), last(Tensor(hidden)).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Linear(0, 4), "in_features must be a positive integer, got 0"),
        (lambda: Linear(3.0, 2), "in_features must be a positive integer, got 3.0"),
        (lambda: Linear(4, 4, init="zeros"), "init must be one of 'he', 'glorot', 'fan_in'; got 'zeros'"),
        (lambda: Linear(4, 4, bias_init="ones"), "bias_init must be 'zeros' or 'uniform', got 'ones'"),
        (lambda: Linear(4, 4, variance_factor=0), "variance_factor must be"),
        (lambda: Shuffle([0, 2]), "must be a permutation"),
        (lambda: Shuffle([True, False]), "must be a permutation"),
        (lambda: Shuffle([1, 0], [1, np.nan]), "mean must be 2 finite numbers"),
        (lambda: Shuffle([1, 0], 1.0), "mean must be 2"),
        (lambda: Sequential([Shuffle([1, 0]), Linear(2, 2)])(Tensor(np.ones((4, 5, 2)))), "shuffle: x .* must have two axes"),
        (lambda: Shuffle([1, 0])(Tensor(np.ones((4, 3)))), r"x \(4, 3\) must have two axes, the last one of 2 features"),
        (lambda: Linear(4, 3)(Tensor(np.ones((2, 5)))), r"x \(2, 5\) does not match weight \(3, 4\)"),
        (
            lambda: Linear(4, 3).forward(
                Flow(Tensor(np.ones((2, 4))), Columns(on_device(RowPlan(4, 2, 0), device("cpu")))), Context()
            ),
            r"must be 2",
        ),
    ],
)
def test_misuse_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_repr_shows_the_network():
    assert repr(Sequential([Shuffle(range(4)), Linear(4, 3), ReLU(), Linear(3, 2, bias=False)])) == (
        "Sequential([Shuffle(4 features), Linear(4, 3), ReLU(), Linear(3, 2, bias=False)])"
    )


def test_tiles_after_rows_see_zeros_for_dropped_neurons(rng):
    first, second = Linear(6, 8, rng=0), Linear(8, 5, rng=1)
    rows, tiles = RowPlan(8, 3, 1), TilePlan((5, 8), 2, 2, 1)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    y = Sequential([first, ReLU(), second])(Tensor(x), {first: rows, second: tiles})
    hidden = np.maximum(x @ first.weight.numpy().T, 0) * rows.mask()
    np.testing.assert_allclose(y.numpy(), hidden @ (second.weight.numpy() * tiles.mask()).T, rtol=1e-4, atol=1e-6)


def test_shuffle_takes_the_mean_away_in_the_order_of_its_input(rng):
    x, order, mean = rng.standard_normal((4, 3)).astype(np.float32), [2, 0, 1], [1.0, 2.0, 3.0]
    np.testing.assert_allclose(Shuffle(order, mean)(Tensor(x)).numpy(), (x - np.float32(mean))[:, order], rtol=1e-6)


def test_reads_names_the_weights_of_which_a_step_reads_a_part():
    first, second, last = Linear(6, 8), Linear(8, 8), Linear(8, 3)
    model = Sequential([first, ReLU(), second, ReLU(), second, ReLU(), last])
    rows = RowPlan(8, 2, 1)
    read = Tree(model).reads(Context(plans={first: rows, second: rows}, model=model).plans)
    assert {weight: part.plan for weight, part in read.items()} == {first.weight: rows}  # the second is used twice
    all_read = Context(plans={first: RowPlan(8, 1, 0), second: BernoulliPlan(8, 0.5, 1)}, model=model).plans
    assert Tree(model).reads(all_read) == Tree(model).reads(Plans()) == {}


# --- state ------------------------------------------------------------------------------------------------------------
def test_a_state_has_pytorchs_names_and_shapes():
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")
    ours = Sequential([Linear(6, 8, rng=0), BatchNorm1d(8), ReLU(), Sequential([Linear(8, 3, bias=False, rng=1)])])
    theirs = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(8, 3, bias=False))
    )
    ours.load_state_dict(theirs.state_dict())
    state = ours.state_dict()
    assert [(name, value.shape) for name, value in state.items()] == [
        (name, tuple(value.shape)) for name, value in theirs.state_dict().items()
    ]
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(state[name], value)
    state["0.bias"][:] = 7  # a copy
    assert not (ours.layers[0].bias.numpy() == 7).any()
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in ours.state_dict().items()})


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda s: s.pop("0.bias"), ValueError, "lacks 0.bias"),
        (lambda s: s.update(extra=1), ValueError, "unknown entries: extra"),
        (
            lambda s: s.update({"1.weight": np.ones((3, 9))}),
            ValueError,
            r"1.weight has shape \(3, 9\), the layer's is \(3, 8\)",
        ),
        (lambda s: s.update({"1.weight": "many"}), TypeError, "1.weight is not an array of numbers"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, error, message):
    layer = Sequential([Linear(6, 8, rng=0), Linear(8, 3, rng=1)])
    before = layer.state_dict()
    state = {name: value + 1 for name, value in before.items()}
    change(state)
    with pytest.raises(error, match=message):
        layer.load_state_dict(state)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_layer_of_ones_own_has_its_tensors_named():
    class Own(Layer):
        def __init__(self):
            self.gain, self.others = Tensor([1.0], requires_grad=True), [Tensor([2.0], requires_grad=True)]

        def parameters(self):
            return iter([self.gain, *self.others])

        def __call__(self, x):
            return x * self.gain

    assert [name for name, _, trained in Sequential([Own()]).named() if trained] == ["0.gain", "0.others.0"]


def test_a_layer_that_does_nothing_is_refused():
    with pytest.raises(TypeError, match="Nothing defines neither"):
        Sequential([type("Nothing", (Layer,), {})()])


# --- cost -------------------------------------------------------------------------------------------------------------
def test_costs_follow_shapes_through_any_layers():
    model = Sequential([Flatten(), Linear(12, 5), ReLU(), BatchNorm1d(5), Linear(5, 2)])
    cost, spec = model.cost(ActivationSpec((7, 3, 4)), Plans())
    assert spec.shape == (7, 2) and cost.flops == 2 * 7 * (2 * 12 * 5 + 3 * 5 * 2) and cost.bytes_forward > 4 * 7 * 12
    with pytest.raises(ValueError, match=r"Linear\(5, 2\): it takes 5 features, and its input has \(6,\)"):
        Sequential([Linear(4, 6), Linear(5, 2)]).cost(ActivationSpec((7, 4)), Plans())


@pytest.mark.parametrize(
    "plan, error, message",
    [
        (RowPlan(9, 2, 0), ValueError, r"Linear\(4, 8\): RowPlan\(n=9.* is not made for output, of shape \(8, 4\)"),
        (TilePlan((4, 8), 2, 2, 0), ValueError, "is not made for"),
        (BernoulliPlan(4, 0.5, 1), ValueError, "is not made for"),
        (type("P", (Plan,), {"mask": lambda self: np.ones(8)})(), TypeError, "does not know the plan"),
        (3, TypeError, "is not a Plan"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(rng, plan, error, message):
    layer = Linear(4, 8)
    with pytest.raises(error, match=message):
        layer(Tensor(rng.standard_normal((3, 4))), {layer: plan})


def test_plans_are_given_by_sites_their_paths_or_layers():
    model, policy = Sequential([Linear(4, 8, rng=0), ReLU(), Linear(8, 2, rng=0)]), RowDropout(0.5)
    x, plans = Tensor(np.ones((3, 4), np.float32)), {"0.output": RowPlan(8, 2, 1, 2.0)}
    expected = model(x, {policy.sites(model)[0]: plans["0.output"]}).numpy()
    np.testing.assert_array_equal(model(x, plans).numpy(), expected)
    np.testing.assert_array_equal(model(x, {model[0]: plans["0.output"]}).numpy(), expected)
    with pytest.raises(ValueError, match=r"no layer has the site 1\.output; pass its model"):
        model(x, {"1.output": plans["0.output"]})
    with pytest.raises(TypeError, match="given by sites, their paths, or layers, not by 0"):
        model(x, {0: plans["0.output"]})
