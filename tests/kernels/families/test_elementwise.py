"""Elementwise maps against their float64 references on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import elementwise

SHAPES = [(), (0, 4), (2, 3, 5)]
ANY, POSITIVE, APART_FROM_ZERO = range(3)
CASES = [  # op, number of arrays, domain, keyword arguments
    *((op, 1, ANY, {}) for op in ("exp", "tanh", "sigmoid", "relu", "gelu", "abs", "sign")),
    ("log", 1, POSITIVE, {}),
    ("sqrt", 1, POSITIVE, {}),
    ("affine", 1, ANY, {}),
    ("affine", 1, ANY, {"mul": -2.5}),
    ("affine", 1, ANY, {"mul": 0.5, "add": 3.0}),
    ("affine", 1, ANY, {"add": -1.0}),
    ("power", 1, ANY, {"exponent": 2}),
    ("power", 1, ANY, {"exponent": 3.0}),
    ("power", 1, POSITIVE, {"exponent": -0.5}),
    *((op, 2, ANY, {}) for op in ("add", "sub", "mul", "maximum", "minimum", "greater", "greater_equal", "equal")),
    ("div", 2, APART_FROM_ZERO, {}),
    ("pow", 2, POSITIVE, {}),
    ("relu_grad", 2, ANY, {}),
    ("relu_grad", 2, ANY, {"scale": 3.5}),
    *((op, 2, ANY, {}) for op in ("tanh_grad", "sigmoid_grad", "gelu_grad")),
]
COMPARISONS = ("greater", "greater_equal", "equal")
# 1 ** NaN is 1, as in C and NumPy
PROPAGATING = [op for op in dict.fromkeys(case[0] for case in CASES) if op not in (*COMPARISONS, "relu_grad", "pow")]


def op_named(name):
    return getattr(elementwise, name)


def numbers(rng, shape, domain):
    x = np.asarray(3 * rng.standard_normal(shape), np.float32)
    if domain == ANY and x.size > 1:
        x.reshape(-1)[0] = 0
    return np.abs(x) + np.float32(0.1) if domain == POSITIVE else x + np.sign(x) if domain == APART_FROM_ZERO else x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op, count, domain, kwargs", CASES, ids=lambda v: str(v))
def test_reference(op, count, domain, kwargs, shape, suffix, put, get, rng):
    hosts = [numbers(rng, shape, domain) for _ in range(count)]
    y = op_named(f"{op}_{suffix}")(*map(put, hosts), **kwargs)
    assert y.shape == shape and y.dtype == np.float32
    expected = op_named(f"{op}_reference")(*hosts, **kwargs)
    np.testing.assert_allclose(get(y), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("op, count, domain, kwargs", CASES, ids=lambda v: str(v))
def test_out_may_be_an_argument(op, count, domain, kwargs, suffix, put, get, rng):
    hosts = [numbers(rng, (5, 3), domain) for _ in range(count)]
    for place in range(count):
        arrays = [put(host.copy()) for host in hosts]
        y = op_named(f"{op}_{suffix}")(*arrays, **kwargs, out=arrays[place])
        assert y is arrays[place]
        expected = op_named(f"{op}_reference")(*hosts, **kwargs)
        np.testing.assert_allclose(get(y), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("op", PROPAGATING)
def test_nan_propagates(op, suffix, put, get):
    count, kwargs = next((case[1], case[3]) for case in CASES if case[0] == op)
    for place in range(count):
        hosts = [np.ones(3, np.float32) for _ in range(count)]
        hosts[place][1] = np.nan
        y = get(op_named(f"{op}_{suffix}")(*map(put, hosts), **kwargs))
        np.testing.assert_array_equal(np.isnan(y), [False, True, False])


def test_values_at_the_edges(suffix, put, get):
    x = put(np.array([-1e4, -0.0, 0.0, 1e4], np.float32))
    edges = {
        "sigmoid": [0, 0.5, 0.5, 1],
        "tanh": [-1, 0, 0, 1],
        "relu": [0, 0, 0, 1e4],
        "gelu": [0, 0, 0, 1e4],
        "sign": [-1, 0, 0, 1],
    }
    for op, expected in edges.items():
        np.testing.assert_array_equal(get(op_named(f"{op}_{suffix}")(x)), np.float32(expected), op)
    nan, one = np.float32([np.nan]), np.float32([1])
    for op in COMPARISONS:
        for a, b in ((nan, one), (one, nan), (nan, nan)):
            assert get(op_named(f"{op}_{suffix}")(put(a), put(b)))[0] == 0
    ties, others = np.float32([1, 0, np.inf, -np.inf, 1]), np.float32([1, -0.0, np.inf, np.inf, 2])
    for op, expected in (("greater", [0, 0, 0, 0, 0]), ("greater_equal", [1, 1, 1, 0, 0]), ("equal", [1, 1, 1, 0, 0])):
        np.testing.assert_array_equal(get(op_named(f"{op}_{suffix}")(put(ties), put(others))), expected, op)
    assert np.isnan(get(op_named(f"relu_grad_{suffix}")(put(nan), put(one)))[0])
    for y in (-one, 0 * one):  # what a ReLU let not through, NaN or not, gets nothing back
        assert [get(op_named(f"relu_grad_{suffix}")(put(dy), put(y)))[0] for dy in (nan, one)] == [0, 0]


@pytest.mark.parametrize("op", [case[0] for case in CASES if case[1] == 2])
def test_shapes_must_be_equal(op, suffix, put):
    a, b = put(np.ones((3, 2))), put(np.ones((3, 1)))
    with pytest.raises(ValueError, match=rf"^{op} \({suffix}\): .*\(3, 2\), .*\(3, 1\) do not match"):
        op_named(f"{op}_{suffix}")(a, b)
    with pytest.raises(ValueError, match=rf"^{op} \({suffix}\): .*out \(3, 2\) do.* must be \(3, 1\)"):
        op_named(f"{op}_{suffix}")(b, b, out=a)
