"""Reductions and softmax against their float64 references on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import reduce, softmax

SHAPES = [(1,), (7,), (1, 1), (3, 4), (11, 2), (2, 40), (3, 2, 5), (2, 3, 2, 4)]
ROWS = [(6,), (1, 1), (3, 10), (2, 2, 5), (2, 33), (0, 3)]
LONG = [((2, 1100), 1), ((2, 4100), 1), ((1100, 3), 0), ((2, 1030, 2), 1)]
EMPTY = [((0,), None), ((0, 3), 0), ((3, 0), 0), ((3, 0), 1), ((0, 3, 0), (0, 2))]
SOFTMAX = ["softmax", "log_softmax"]


def axes_of(ndim):
    """None, every axis from both ends, and every tuple of axes."""
    tuples = [tuple(a for a in range(ndim) if bits >> a & 1) for bits in range(1 << ndim)]
    return [None, *range(-ndim, ndim), *tuples]


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_axis(op, shape, suffix, put, get, rng):
    host = rng.standard_normal(shape).astype(np.float32)
    x = put(host)
    for axis in axes_of(len(shape)):
        for keepdims in (False, True) if axis in (None, -1) else (False,):
            y = getattr(reduce, f"{op}_{suffix}")(x, axis, keepdims)
            expected = getattr(reduce, f"{op}_reference")(host, axis, keepdims)
            assert y.shape == expected.shape and y.dtype == np.float32
            np.testing.assert_allclose(get(y), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [*SHAPES, (0,), (), (5000,), (3, 4100)], ids=str)
def test_squares(shape, suffix, put, get, rng):
    host = rng.standard_normal(shape).astype(np.float32)
    y = getattr(reduce, f"squares_{suffix}")(put(host))
    assert y.shape == ()
    np.testing.assert_allclose(get(y), reduce.squares_reference(host), rtol=1e-5)


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("shape, axis", LONG, ids=str)
def test_long_axis_is_reduced_in_parts(op, shape, axis, suffix, put, get, rng):
    host = rng.standard_normal(shape).astype(np.float32)
    y = get(getattr(reduce, f"{op}_{suffix}")(put(host), axis))
    np.testing.assert_allclose(y, getattr(reduce, f"{op}_reference")(host, axis), rtol=1e-5, atol=1e-4)


def test_long_sums_of_squares_lose_nothing(suffix, put, get, rng):
    n = 20_000_000 if suffix == "cpu" else 20_000
    for host in np.full(n, 0.1, np.float32), rng.random(n, np.float32):
        found = get(getattr(reduce, f"squares_{suffix}")(put(host)))
        np.testing.assert_allclose(found, reduce.squares_reference(host), rtol=5e-6)


@pytest.mark.parametrize(
    "shape, axis",
    [
        ((20_000_000, 1), 0),
        ((18_000_000, 2), 0),
        ((3_000_000, 7), 0),
        ((2, 200_000, 40), 1),
        ((9_000_000, 1, 2), (0, 2)),
        ((70_000, 300), 0),
    ],
    ids=str,
)
def test_long_columns_lose_nothing(shape, axis, suffix, put, get, rng):
    """Added up one after the other in float32, 2^24 ones more make no difference."""
    shape = shape if suffix == "cpu" else (*(n // 1000 + 1 if n > 10_000 else n for n in shape),)
    for host in np.ones(shape, np.float32), rng.random(shape, np.float32):
        x, expected = put(host), reduce.sum_reference(host, axis)
        np.testing.assert_allclose(get(getattr(reduce, f"sum_{suffix}")(x, axis)), expected, rtol=5e-7)
        if axis == 0 and len(shape) == 2:
            np.testing.assert_allclose(get(getattr(reduce, f"sum_rows_{suffix}")(x, 0.5)), expected / 2, rtol=5e-7)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (5, 3), (700, 3), (33, 300), (129, 64), (70, 257)], ids=str)
def test_sums_of_columns_of_any_shape(shape, suffix, put, get, rng):
    host = rng.standard_normal(shape).astype(np.float32)
    out = put(np.full(shape[1:], np.nan, np.float32))
    y = getattr(reduce, f"sum_rows_{suffix}")(put(host), -1.5, out=out)
    np.testing.assert_allclose(get(y), reduce.sum_rows_reference(host, -1.5), rtol=1e-6, atol=1e-5)
    host[-1, -1] = np.nan
    found = np.isnan(get(getattr(reduce, f"sum_{suffix}")(put(host), 0)))
    np.testing.assert_array_equal(found, np.arange(shape[1]) == shape[1] - 1)


@pytest.mark.parametrize("shape, axis", EMPTY, ids=str)
def test_empty(shape, axis, suffix, put, get):
    x = put(np.zeros(shape, np.float32))
    y = get(getattr(reduce, f"sum_{suffix}")(x, axis))
    np.testing.assert_array_equal(y, np.zeros(np.sum(np.zeros(shape), axis).shape))
    if (shape, axis) != ((3, 0), 0):
        with pytest.raises(ValueError, match=rf"^max \({suffix}\): x .* is empty along axis"):
            getattr(reduce, f"max_{suffix}")(x, axis)


def test_bad_axis(suffix, put):
    x = put(np.zeros((2, 3), np.float32))
    for axis in (2, -3, (0, 0), (1, -1)):
        with pytest.raises(ValueError, match=rf"^sum \({suffix}\): axis .* does not fit x \(2, 3\)"):
            getattr(reduce, f"sum_{suffix}")(x, axis)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_nan_propagates(axis, suffix, put, get):
    host = np.ones((3, 4), np.float32)
    host[1, 2] = np.nan
    for op in ("sum", "max"):
        y = get(getattr(reduce, f"{op}_{suffix}")(put(host), axis))
        np.testing.assert_array_equal(np.isnan(y), np.isnan(host.sum(axis)))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 1), (9, 4), (3, 35)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_sum_rows(shape, scale, suffix, put, get, rng):
    host = rng.standard_normal(shape).astype(np.float32)
    out = put(np.full(shape[1:], np.nan, np.float32))
    y = getattr(reduce, f"sum_rows_{suffix}")(put(host), scale, out=out)
    assert y is out
    np.testing.assert_allclose(get(y), reduce.sum_rows_reference(host, scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_argmax(shape, suffix, put, get, rng):
    host = rng.integers(0, 4, shape).astype(np.float32)  # small integers: many ties
    y = getattr(reduce, f"argmax_{suffix}")(put(host))
    assert y.dtype == np.int32 and y.shape == shape[:-1]
    np.testing.assert_array_equal(get(y), reduce.argmax_reference(host))


def test_argmax_of_special_values(suffix, put, get):
    inf, nan = np.inf, np.nan
    host = np.float32([[-inf, -inf, -inf], [1, nan, nan], [inf, 1, inf], [-inf, -inf, 3], [5, inf, nan]])
    np.testing.assert_array_equal(get(getattr(reduce, f"argmax_{suffix}")(put(host))), [0, 1, 0, 2, 2])
    with pytest.raises(ValueError, match="argmax"):
        getattr(reduce, f"argmax_{suffix}")(put(np.zeros((2, 0), np.float32)))


@pytest.mark.parametrize("op", SOFTMAX)
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("shape", [*ROWS, (1, 1030)], ids=str)
def test_softmax(op, scale, shape, suffix, put, get, rng):
    host = (scale * rng.standard_normal(shape)).astype(np.float32)
    y = getattr(softmax, f"{op}_{suffix}")(put(host))
    assert y.shape == shape
    np.testing.assert_allclose(get(y), getattr(softmax, f"{op}_reference")(host), rtol=1e-5, atol=1e-6)
    if op == "softmax":
        np.testing.assert_allclose(get(y).sum(-1), np.ones(shape[:-1]), rtol=1e-5)


@pytest.mark.parametrize("op", SOFTMAX)
def test_softmax_gradient(op, suffix, put, get, rng):
    for shape in [*ROWS, (1, 1030)]:
        host = rng.standard_normal((2, *shape)).astype(np.float32)
        y = getattr(softmax, f"{op}_reference")(host[0]).astype(np.float32)
        dx = get(getattr(softmax, f"{op}_grad_{suffix}")(put(host[1]), put(y)))
        expected = getattr(softmax, f"{op}_grad_reference")(host[1], y)
        np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", SOFTMAX)
def test_gradient_reference_is_the_derivative(op, rng):
    x, dy, direction = rng.standard_normal((3, 4, 5))
    f = getattr(softmax, f"{op}_reference")
    slope = (dy * (f(x + 1e-6 * direction) - f(x - 1e-6 * direction))).sum() / 2e-6
    dx = getattr(softmax, f"{op}_grad_reference")(dy, f(x))
    np.testing.assert_allclose((dx * direction).sum(), slope, rtol=1e-6)


@pytest.mark.parametrize("op", SOFTMAX)
def test_softmax_of_nan_and_masks(op, suffix, put, get):
    host = np.float32([[1, np.nan, 2], [1, 2, 3], [-np.inf, 0, 0]])
    y = get(getattr(softmax, f"{op}_{suffix}")(put(host)))
    assert np.isnan(y[0]).all() and not np.isnan(y[1:]).any()
    assert y[2, 0] == (0 if op == "softmax" else -np.inf)


def test_shapes_that_do_not_fit(suffix, put):
    x, short = put(np.zeros((3, 2))), put(np.zeros((3, 1)))
    with pytest.raises(ValueError, match=rf"^softmax_grad \({suffix}\): dy \(3, 2\), y \(3, 1\) do not match"):
        getattr(softmax, f"softmax_grad_{suffix}")(x, short)
    with pytest.raises(ValueError, match=rf"^sum_rows \({suffix}\): x \(3, 2\), out \(3, 1\) do not match: out must be \(2,\)"):
        getattr(reduce, f"sum_rows_{suffix}")(x, out=short)
