"""Losses and their gradients against float64 references on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import loss

ERRORS = ["squared_error", "absolute_error", "sigmoid_cross_entropy", "huber_error", "quantile_error"]
SHAPES = [(1, 1), (3, 10), (7, 3), (2, 35), (0, 4)]


def weights_like(rng, rows, weighted):
    w = rng.random(rows) + 0.1
    return (w / w.sum()).astype(np.float32) if weighted else None


def check(pair, expected, get):
    for y, reference in zip(pair, expected):
        assert y.dtype == np.float32 and y.shape == reference.shape
        np.testing.assert_allclose(get(y), reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale, weighted", [(1.0, False), (1e4, True)])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1030)], ids=str)
def test_softmax_cross_entropy(shape, scale, weighted, suffix, put, get, rng):
    logits = (scale * rng.standard_normal(shape)).astype(np.float32)
    labels = rng.integers(0, shape[1], shape[0]).astype(np.int32)
    weights = weights_like(rng, shape[0], weighted)
    pair = getattr(loss, f"softmax_cross_entropy_{suffix}")(put(logits), put(labels), None if weights is None else put(weights))
    check(pair, loss.softmax_cross_entropy_reference(logits, labels, weights), get)


def test_softmax_cross_entropy_is_exact_to_rounding(suffix, put, get):
    """Its exponential is written out on the CPU: every part of the range in which it is a polynomial."""
    logits = np.stack([np.linspace(-4, 4, 257), np.zeros(257)], 1).astype(np.float32)
    labels = np.ones(257, np.int32)
    pair = getattr(loss, f"softmax_cross_entropy_{suffix}")(put(logits), put(labels))
    for ours, expected in zip(pair, loss.softmax_cross_entropy_reference(logits, labels), strict=True):
        np.testing.assert_allclose(get(ours), expected, rtol=1.5e-6, atol=1e-9)


@pytest.mark.parametrize("level", [-1e8, 1e5, 1e8, 1e30])
def test_large_logits_do_not_hide_the_sum_of_exponentials(suffix, put, get, level):
    logits = np.full((1, 3), level, np.float32)
    losses, _ = getattr(loss, f"softmax_cross_entropy_{suffix}")(put(logits), put(np.zeros(1, np.int32)))
    np.testing.assert_allclose(get(losses), np.log(3), rtol=1e-6)


@pytest.mark.parametrize("scale, weighted", [(1.0, False), (1e4, True)])
@pytest.mark.parametrize("shape", [*SHAPES, (5,), (3, 2, 4), (3, 0)], ids=str)
@pytest.mark.parametrize("op", ERRORS)
def test_errors(op, shape, scale, weighted, suffix, put, get, rng):
    prediction = (scale * rng.standard_normal(shape)).astype(np.float32)
    target = rng.random(shape).astype(np.float32)
    weights = weights_like(rng, shape[0], weighted)
    pair = getattr(loss, f"{op}_{suffix}")(put(prediction), put(target), None if weights is None else put(weights))
    check(pair, getattr(loss, f"{op}_reference")(prediction, target, weights), get)


@pytest.mark.parametrize("op, values", [("huber_error", (0.3, 1, 20.0)), ("quantile_error", (0.1, 0.5, 0.9))])
@pytest.mark.parametrize("weighted", [False, True])
def test_errors_with_a_parameter(op, values, weighted, suffix, put, get, rng):
    for value in values:
        prediction, target = np.float32(3 * rng.standard_normal((7, 5))), np.float32(rng.standard_normal((7, 5)))
        target[2] = prediction[2]  # at 0
        prediction[3], target[3] = 0.3, 0  # at a bend
        weights = weights_like(rng, 7, weighted)
        pair = getattr(loss, f"{op}_{suffix}")(put(prediction), put(target), None if weights is None else put(weights), value)
        check(pair, getattr(loss, f"{op}_reference")(prediction, target, weights, value), get)


def test_far_errors_are_finite_where_they_can_be(suffix, put, get):
    p, t = np.float32([[1e30, -1e30, np.inf, -np.inf]]), np.zeros((1, 4), np.float32)
    _, gradient = getattr(loss, f"huber_error_{suffix}")(put(p), put(t), delta=2.0)
    np.testing.assert_array_equal(get(gradient), [[0.5, -0.5, 0.5, -0.5]])


@pytest.mark.parametrize("op", ["softmax_cross_entropy", *ERRORS])
def test_gradient_reference_is_the_derivative(op, rng):
    x, direction = rng.standard_normal((2, 6, 4))
    target = rng.integers(0, 4, 6) if op == "softmax_cross_entropy" else rng.random((6, 4))
    f = getattr(loss, f"{op}_reference")
    slope = (f(x + 1e-6 * direction, target)[0] - f(x - 1e-6 * direction, target)[0]).sum() / 2e-6
    np.testing.assert_allclose((f(x, target)[1] * direction).sum(), slope, rtol=1e-6)


def test_reference_is_the_mean(rng):
    p, t = rng.random((2, 6, 4))
    np.testing.assert_allclose(loss.squared_error_reference(p, t)[0].sum(), ((p - t) ** 2).mean())
    one = np.zeros((1, 3)), np.array([1])
    np.testing.assert_allclose(loss.softmax_cross_entropy_reference(*one)[0], np.log([3]))


@pytest.mark.parametrize("op", ["softmax_cross_entropy", *ERRORS])
def test_nan_stays_in_its_row(op, suffix, put, get):
    x = np.zeros((3, 4), np.float32)
    x[1, 2] = np.nan
    target = np.zeros(3, np.int32) if op == "softmax_cross_entropy" else np.zeros((3, 4), np.float32)
    losses, gradient = getattr(loss, f"{op}_{suffix}")(put(x), put(target))
    np.testing.assert_array_equal(np.isnan(get(losses)), [False, True, False])
    assert np.isnan(get(gradient)[1, 2]) and not np.isnan(get(gradient)[[0, 2]]).any()


@pytest.mark.parametrize("op", ERRORS)
def test_nan_stays_in_the_reference(op):
    x, target = np.array([[np.nan, 1], [2, 3], [0, np.nan]]), np.zeros((3, 2))
    with np.errstate(invalid="ignore"):
        losses, gradient = getattr(loss, f"{op}_reference")(x, target)
    np.testing.assert_array_equal(np.isnan(losses), [True, False, True])
    np.testing.assert_array_equal(np.isnan(gradient), np.isnan(x))


def test_masked_logits_and_unknown_labels(suffix, put, get):
    logits, labels = np.float32([[0, -np.inf, 0], [1, 2, 3], [1, 2, 3]]), np.int32([0, 3, -1])
    losses, gradient = map(get, getattr(loss, f"softmax_cross_entropy_{suffix}")(put(logits), put(labels)))
    np.testing.assert_allclose(losses, [np.log(2) / 3, np.nan, np.nan], rtol=1e-6)
    assert gradient[0, 1] == 0 and np.isfinite(gradient).all()


def test_out_is_used(suffix, put, get, rng):
    p, t = rng.random((2, 3, 4))
    out = put(np.full(3, np.nan)), put(np.full((3, 4), np.nan))
    pair = getattr(loss, f"squared_error_{suffix}")(put(p), put(t), out=out)
    assert pair[0] is out[0] and pair[1] is out[1]
    check(pair, loss.squared_error_reference(p, t), get)


def test_shapes_that_do_not_fit(suffix, put):
    p, t, labels = put(np.zeros((3, 2))), put(np.zeros((3, 1))), put(np.zeros(3, np.int32))
    error, entropy = (getattr(loss, f"{op}_{suffix}") for op in ("squared_error", "softmax_cross_entropy"))
    with pytest.raises(ValueError, match=rf"^squared_error \({suffix}\): prediction \(3, 2\), target \(3, 1\) do not match"):
        error(p, t)
    with pytest.raises(ValueError, match=r"weights \(2,\) do not match: weights must be \(3,\)"):
        error(p, p, put(np.ones(2)))
    with pytest.raises(ValueError, match=rf"^softmax_cross_entropy \({suffix}\): logits \(3, 2\)"):
        entropy(p, put(np.zeros(4, np.int32)))
    with pytest.raises(TypeError, match=r"labels must be a contiguous int32 array, not int64 \(3,\)"):
        entropy(p, put(np.zeros(3, np.int64)))
    with pytest.raises(ValueError, match="out"):
        entropy(p, labels, out=(put(np.zeros(3)), put(np.zeros(3))))
