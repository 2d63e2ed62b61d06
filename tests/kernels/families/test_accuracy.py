"""Elementwise maps over the whole range of float32: references against mpmath, kernels against references."""

import mpmath
import numpy as np
import pytest

from numbanet_kernels.families import elementwise, loss, lstm

mpmath.mp.dps = 40
TINY = np.finfo(np.float32).tiny  # the least normal float
ROOT_2 = mpmath.sqrt(2)


def sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def phi(x):
    return mpmath.erfc(-x / ROOT_2) / 2


EXACT = {  # of floats x: what the reference of each map should give
    "exp": mpmath.exp,
    "log": mpmath.log,
    "sqrt": mpmath.sqrt,
    "tanh": mpmath.tanh,
    "sigmoid": sigmoid,
    "abs": abs,
    "sign": mpmath.sign,
    "relu": lambda x: max(x, 0),
    "gelu": lambda x: x * phi(x),
    "affine": lambda x: x * 2.5 - 1,
    "power": lambda x: x ** mpmath.mpf(-0.5),
    "relu_grad": lambda dy, y: dy * 1.5 if y > 0 else 0,
    "tanh_grad": lambda dy, y: dy * (1 - y * y),
    "sigmoid_grad": lambda dy, y: dy * y * (1 - y),
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "gelu_grad": lambda dy, x: dy * (phi(x) + x * mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "maximum": max,
    "minimum": min,
}
KWARGS = {"affine": {"mul": 2.5, "add": -1.0}, "power": {"exponent": -0.5}, "relu_grad": {"scale": 1.5}}
POSITIVE = "log", "sqrt", "power", "pow"
PAIRS = (
    "relu_grad",
    "tanh_grad",
    "sigmoid_grad",
    "gelu_grad",
    "greater",
    "greater_equal",
    "equal",
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
)


def floats(count, most=88.0):
    """Floats of all sizes up to so large a one, and the same below 0."""
    x = np.concatenate([np.geomspace(1e-38, most, count), np.linspace(0.001, min(most, 20), count)]).astype(np.float32)
    return np.concatenate([x, -x])


def test_every_map_is_here():
    assert set(EXACT) == {name.removesuffix("_reference") for name in vars(elementwise) if name.endswith("_reference")}


@pytest.mark.parametrize("op", EXACT)
def test_references_are_right(op, rng):
    x = floats(100)
    given = [np.abs(x) if op in POSITIVE else x]
    if op in PAIRS:
        first = rng.permutation(np.abs(x) if op in POSITIVE else x)
        given = [first, np.tanh(x) if op == "tanh_grad" else 1 / (1 + np.exp(-x)) if op == "sigmoid_grad" else x]
    found = getattr(elementwise, f"{op}_reference")(*given, **KWARGS.get(op, {}))
    exact = [EXACT[op](*map(mpmath.mpf, map(float, values))) for values in zip(*given, strict=True)]
    size = np.abs(found)
    if op in ("add", "sub", "affine"):
        size = 1 + 3 * sum(np.abs(np.float64(array)) for array in given)  # terms may cancel
    elif op.endswith("_grad"):
        size = np.abs(np.float64(given[0]))  # so may 1 and what is subtracted
    elif op == "pow":
        size = size * (1 + np.abs(given[1] * np.log(np.float64(given[0]))))  # of a rounded exponent
    elif op == "gelu":
        size = size * (1 + np.square(x, dtype=np.float64))  # e^-x^2/2 of a rounded x
    for value, right, scale in zip(found, exact, np.maximum(size, 1e-300), strict=True):
        assert abs(value - right) <= 1e-14 * scale


def relative(found, expected):
    """The largest relative error where the result is a normal float."""
    normal = np.abs(expected) >= TINY
    return np.max(np.abs(found[normal] - expected[normal]) / np.abs(expected[normal]))


@pytest.mark.parametrize("op", ["sigmoid", "tanh"])
def test_sigmoid_and_tanh_are_right_at_all_sizes(op, suffix, put, get):
    x = floats(20_000 if suffix == "cpu" else 2_000, 110.0)
    found, expected = (getattr(elementwise, f"{op}_{name}") for name in (suffix, "reference"))
    found, expected = get(found(put(x))), expected(x)
    assert relative(found, expected) <= 2e-7
    np.testing.assert_allclose(found, expected, atol=1.5 * np.finfo(np.float32).smallest_subnormal, rtol=2e-7)


def test_far_below_zero_sigmoid_is_small_and_has_a_gradient(suffix, put, get):
    x = put(np.float32([-10, -17, -20, -60]))
    y = getattr(elementwise, f"sigmoid_{suffix}")(x)
    expected = [4.5397868e-05, 4.1399377e-08, 2.0611537e-09, 8.7565108e-27]
    np.testing.assert_allclose(get(y), expected, rtol=2e-7)
    slope = getattr(elementwise, f"sigmoid_grad_{suffix}")(put(np.ones(4, np.float32)), y)
    np.testing.assert_allclose(get(slope), np.multiply(expected, np.subtract(1, expected)), rtol=4e-7)


def test_gelu_far_below_zero(suffix, put, get):
    """Within what floats of size 1 are apart, and of the right sign: the CPU takes a polynomial for 1 - erf."""
    x = -np.linspace(0.001, 13, 400, dtype=np.float32)
    found, expected = getattr(elementwise, f"gelu_{suffix}")(put(x)), elementwise.gelu_reference(x)
    np.testing.assert_allclose(get(found), expected, atol=1e-6, rtol=0)
    assert (get(found) <= 0).all()


@pytest.mark.parametrize("size", [1e-30, 1e-4, 0.01, 0.3, 0.59, 0.63, 3.0, 30.0])
def test_small_states_of_an_lstm_are_not_rounded(size, suffix, put, get, rng):
    """h = sigmoid(a_o) tanh(c) and g = tanh(a_g), with relative errors."""
    z = np.float32(size * rng.uniform(-1, 1, (1, 3, 80)))
    z[..., :40] += 20  # i = f = 1: c = c0 + g
    h0, c0, w = np.zeros((3, 20)), size * rng.uniform(0.5, 1, (3, 20)), np.zeros((80, 20))
    expected = lstm.lstm_reference(z, w, h0, np.float32(c0))
    gates = put(z)
    h, c = getattr(lstm, f"lstm_{suffix}")(gates, put(w), put(h0), put(c0))
    assert relative(get(gates), expected[0]) <= 1e-6
    np.testing.assert_allclose(get(c), expected[2], rtol=1e-6, atol=3e-7 * size)  # c0 + g may cancel
    np.testing.assert_allclose(get(h), expected[1], rtol=1e-6, atol=3e-7 * min(size, 1))


def test_cross_entropy_of_sigmoids_keeps_small_slopes(suffix, put, get):
    x = np.float32([[-10, -20, -60, 20]])
    _, slopes = getattr(loss, f"sigmoid_cross_entropy_{suffix}")(put(x), put(np.zeros((1, 4))))
    np.testing.assert_allclose(4 * get(slopes), 1 / (1 + np.exp(-np.float64(x))), rtol=3e-7)
