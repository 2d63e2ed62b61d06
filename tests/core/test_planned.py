"""Planned equals masked-dense: planned(x, W, plan) == dense(x, W * plan.mask()) for y, dx, dW and db, on every device."""

import numpy as np
import pytest

from numbanet import (
    Context,
    IndexPlan,
    Linear,
    Order,
    ReLU,
    RowPlan,
    Sequential,
    Shuffle,
    Tanh,
    Tensor,
    TilePlan,
    WindowPlan,
    check_grad,
    ops,
)
from numbanet.gradients import Packed
from numbanet.layers import ActivationSpec, Tree
from numbanet.plans import BernoulliPlan

N = 5
ANY = [([1, 2, 6], None), (None, [0, 3, 4, 8]), ([0, 6], [2, 3]), ([], [1]), ([3], [])]
ROWS = [(None, None), ((2, 1), None), (None, (3, 0)), ((2, 0), (3, 2)), ((8, 7), (2, 1)), ((2, 1), (16, 14))]
WINDOWS = [("window", 5, 4), ("window", 7, 6)]
TILES = [((9, 11), 4, 1), ((9, 11), 4, 3), ((8, 16), 4, 4), ((18, 10), 4, 5), ((3, 2), 2, 6)]


def masked_dense(x, w, b, mask, relu, scale_inside, scale_outside, dy):
    """float64: y, dx, dW, db of y = scale_outside act(scale_inside x (w * mask).T + b)."""
    w = w * mask
    z = scale_inside * (x @ w.T) + b
    y = scale_outside * (np.maximum(z, 0) if relu else z)
    dz = scale_outside * dy * (z > 0 if relu else 1.0)
    return y, scale_inside * (dz @ w), scale_inside * (dz.T @ x) * mask, dz.sum(0)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("row_pattern, col_pattern", [*ROWS, *ANY, WINDOWS, (None, WINDOWS[1]), (WINDOWS[0], (3, 0))])
def test_rows(dev, rng, row_pattern, col_pattern, relu):
    """Indices of a pattern, given by a period and a bias, windows, and any indices."""

    def plan(n, pattern, scale=1.0):
        if pattern and pattern[0] == "window":
            return WindowPlan(n, *pattern[1:], scale)
        return IndexPlan(n, pattern, scale) if isinstance(pattern, list) else RowPlan(n, *(pattern or (1, 0)), scale)

    o, i, scale = 7, 9, 1.75
    rows, cols = plan(o, row_pattern, scale), plan(i, col_pattern)
    x, w, b, dy = (rng.standard_normal(s) for s in ((N, i), (o, i), (o,), (N, o)))
    x, dy = x * cols.mask(), dy * rows.mask()
    X, W, B = (Tensor(a, dev, requires_grad=True) for a in (x[:, cols.mask()], w, b))
    y = ops.linear_rows(X, W, B, rows=rows, cols=cols, relu=relu)
    y.backward(dy[:, rows.mask()])
    expected = masked_dense(x, w, b, rows.mask()[:, None] & cols.mask(), relu, 1.0, scale, dy)
    close(ops.expand(y.detach(), plan=rows).numpy(), expected[0] * rows.mask())
    close(ops.expand(X.grad, plan=cols).numpy(), expected[1])
    close(W.grad.numpy(), expected[2])
    close(B.grad.numpy(), expected[3])
    assert isinstance(W.gradient, Packed) and W.gradient.values.shape == (rows.count, cols.count)
    assert isinstance(B.gradient, Packed) and B.gradient.values.size == rows.count


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape, tile, dp", TILES)
def test_tiles(dev, rng, shape, tile, dp, relu):
    (o, i), scale = shape, 1.75
    x, w, b, dy = (rng.standard_normal(s) for s in ((N, i), (o, i), (o,), (N, o)))
    for bias, mix in ((0, 0), (dp - 1, 3)):
        plan = TilePlan(shape, tile, dp, bias, scale, mix)
        X, W, B = (Tensor(a, dev, requires_grad=True) for a in (x, w, b))
        y = ops.linear_tiles(X, W, B, plan=plan, relu=relu)
        y.backward(dy)
        expected = masked_dense(x, w, b, plan.mask(), relu, scale, 1.0, dy)
        for found, wanted in zip((y, X.grad, W.grad, B.grad), expected):
            close(found.numpy(), wanted)
        assert isinstance(W.gradient, Packed) == (dp > 1)  # all tiles are the dense product


@pytest.mark.parametrize("dp", [1, 3])
def test_tiles_of_shuffled_inputs(dev, rng, dp):
    order, plan = rng.permutation(11), TilePlan((9, 11), 4, dp, 0, 1.75)
    x, w, b, mean, dy = (rng.standard_normal(s).astype(np.float32) for s in ((N, 11), (9, 11), (9,), (11,), (N, 9)))
    X, W, B = (Tensor(a, dev, requires_grad=True) for a in (x, w, b))
    y = ops.linear_tiles(ops.shuffle(X, order=Order(order, mean)), W, B, plan=plan, relu=True)
    y.backward(dy)
    value, dx, *others = masked_dense((x - mean)[:, order], w, b, plan.mask(), True, plan.scale, 1.0, dy)
    dx_in_order = np.empty_like(dx)
    dx_in_order[:, order] = dx
    for found, wanted in zip((y, X.grad, W.grad, B.grad), (value, dx_in_order, *others)):
        close(found.numpy(), wanted)


@pytest.mark.parametrize("plan", [None, TilePlan((9, 11), 4, 1, 0, 1.5), TilePlan((9, 11), 4, 2, 1), RowPlan(9, 2, 1)])
@pytest.mark.parametrize("after_rows", [False, True])
def test_a_shuffle_before_a_linear_layer_is_the_same_on_its_own(dev, rng, plan, after_rows):
    first, last = Linear(6, 11, rng=0, device=dev), Linear(11, 9, rng=1, device=dev)
    shuffle, rows = Shuffle(rng.permutation(11), rng.standard_normal(11)), RowPlan(11, 2, 1)
    x = Tensor(rng.standard_normal((N, 6)), dev)
    plans = {layer: p for layer, p in ((first, rows if after_rows else None), (last, plan)) if p is not None}
    hidden = Sequential([first, ReLU()])(x, {first: rows} if after_rows else None)
    expected = Sequential([last])(shuffle(hidden), {last: plan} if plan is not None else None)
    close(Sequential([first, ReLU(), shuffle, last])(x, plans).numpy(), expected.numpy())


def test_gradients_of_planned_ops_by_differences(dev, rng):
    x, w, b = (Tensor(rng.standard_normal(s), dev, requires_grad=True) for s in ((4, 3), (6, 8), (6,)))
    check_grad(lambda *t: ops.linear_rows(*t, rows=RowPlan(6, 2, 1, 2.0), cols=RowPlan(8, 3, 0)), [x, w, b])
    x = Tensor(rng.standard_normal((4, 8)), dev, requires_grad=True)
    check_grad(lambda *t: ops.linear_tiles(*t, plan=TilePlan((6, 8), 2, 3, 1, 2.0)), [x, w, b])


def flops(model, plans=None):
    return model.cost(ActivationSpec((N, 6)), Context(plans=plans, model=model).plans)[0].flops


def droppable(model):
    """The layers of the sites that a policy would have plans for."""
    owners = Tree(model).owners
    return [owners[site.path] for site in model.droppable()]


def two_hidden_layers(dev, activation=ReLU):
    return Sequential(
        [
            Linear(6, 9, rng=0, device=dev),
            activation(),
            Linear(9, 7, rng=1, device=dev),
            activation(),
            Linear(7, 3, rng=2, device=dev),
        ]
    )


@pytest.mark.parametrize("activation, act", [(ReLU, lambda z: np.maximum(z, 0)), (Tanh, np.tanh)])
@pytest.mark.parametrize("patterns", [((2, 1), (3, 0)), ((2, 0), None), (None, (3, 2)), ((16, 9), (2, 0))])
def test_a_network_with_row_plans_equals_the_masked_network(dev, rng, patterns, activation, act):
    model = two_hidden_layers(dev, activation)
    layers = droppable(model)
    plans = {
        layer: RowPlan(layer.out_features, *pattern, scale=1.5 * pattern[0])
        for layer, pattern in zip(layers, patterns)
        if pattern
    }
    x = rng.standard_normal((N, 6))
    y = model(Tensor(x, dev), plans)
    h = x
    for layer in layers:
        plan = plans.get(layer, RowPlan(layer.out_features, 1, 0))
        h = act(h @ np.float64(layer.weight.numpy()).T + layer.bias.numpy()) * plan.mask() * plan.scale
    last = model.layers[-1]
    close(y.numpy(), h @ np.float64(last.weight.numpy()).T + last.bias.numpy())


def test_activations_stay_compact_between_layers(dev, rng):
    model = two_hidden_layers(dev)
    first, second = droppable(model)
    plans = {first: RowPlan(9, 2, 1, 2.0), second: RowPlan(7, 3, 0, 3.0)}
    model(Tensor(rng.standard_normal((N, 6)), dev), plans).sum().backward()
    kept = [layer.weight.gradient.values.shape for layer in (first, second, model.layers[-1])]
    assert kept == [(4, 6), (3, 4), (3, 3)]


def test_the_flops_of_a_step_are_those_of_the_kept_products():
    model = two_hidden_layers("cpu")
    first, second = droppable(model)
    assert flops(model) == 2 * N * (2 * 9 * 6 + 3 * 7 * 9 + 3 * 3 * 7)
    rows = {first: RowPlan(9, 2, 1), second: RowPlan(7, 3, 0)}
    assert flops(model, rows) == 2 * N * (2 * 4 * 6 + 3 * 3 * 4 + 3 * 3 * 3)
    tiles = {first: TilePlan((9, 6), 2, 2, 0)}
    assert flops(model, tiles) == 2 * N * (2 * tiles[first].mask().sum() + 3 * 7 * 9 + 3 * 3 * 7)


def test_bernoulli_drops_after_the_activation(dev, rng):
    model = two_hidden_layers(dev, Tanh)
    first = droppable(model)[0]
    x = Tensor(rng.standard_normal((N, 6)), dev)
    hidden = ops.dropout(first(x).tanh(), plan=BernoulliPlan(9, 0.5, 3, 2.0))
    expected = model.layers[-1](model.layers[2](hidden).tanh())
    close(model(x, {first: BernoulliPlan(9, 0.5, 3, 2.0)}).numpy(), expected.numpy())
