"""Layer normalisation against its float64 reference, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import layer_norm

SHAPES = [(7, 5), (1, 3), (33, 40), (130, 33), (4, 1), (3, 1000), (0, 3)]


def operands(rng, n, c):
    """dy, x, gamma, beta; x far from 0, so that a sum of squares would lose its digits."""
    x = rng.normal(100, 2, (n, c)).astype(np.float32)
    return (rng.standard_normal((n, c)).astype(np.float32), x, *rng.standard_normal((2, c)).astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(suffix, put, get, rng, shape):
    dy, x, gamma, beta = operands(rng, *shape)
    forward, backward = (getattr(layer_norm, f"{name}_{suffix}") for name in ("layer_norm", "layer_norm_grad"))
    expected = layer_norm.layer_norm_reference(x, gamma, beta, 0.1)
    for ours, theirs in zip(forward(*map(put, (x, gamma, beta)), 0.1), expected, strict=True):
        np.testing.assert_allclose(get(ours), theirs, rtol=1e-4, atol=1e-4)
    _, mean, inverse = np.float32(expected[0]), *map(np.float32, expected[1:])
    found = backward(*map(put, (dy, x, gamma, mean, inverse)))
    for ours, theirs in zip(found, layer_norm.layer_norm_grad_reference(dy, x, gamma, mean, inverse), strict=True):
        np.testing.assert_allclose(get(ours), theirs, rtol=1e-4, atol=1e-4)


def test_no_columns(suffix, put, get):
    """Their mean and variance are 0."""
    x, gamma = np.zeros((5, 0), np.float32), np.zeros(0, np.float32)
    found = getattr(layer_norm, f"layer_norm_{suffix}")(*map(put, (x, gamma, gamma)), 0.25)
    for ours, theirs in zip(found, layer_norm.layer_norm_reference(x, gamma, gamma, 0.25), strict=True):
        np.testing.assert_array_equal(get(ours), theirs)
    np.testing.assert_array_equal(get(found[2]), np.full(5, 2))


def test_gradients_are_those_of_the_formula(rng):
    """Against differences of the forward pass in float64."""
    dy, x, gamma, beta = map(np.float64, operands(rng, 3, 4))
    _, mean, inverse = layer_norm.layer_norm_reference(x, gamma, beta, 0.1)
    found = layer_norm.layer_norm_grad_reference(dy, x, gamma, mean, inverse)
    for place, slopes in enumerate(found):
        inputs = [x, gamma, beta]
        for at in np.ndindex(slopes.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in inputs]
                moved[place][at] += step
                ends.append((layer_norm.layer_norm_reference(*moved, 0.1)[0] * dy).sum())
            assert abs((ends[0] - ends[1]) / 2e-5 - slopes[at]) < 1e-6


@pytest.mark.parametrize("values", [[0.1], None], ids=str)
@pytest.mark.parametrize("shape", [(1_000_000, 1), (1, 1_000_000)], ids=str)
def test_long_sums_lose_nothing(suffix, put, get, rng, shape, values):
    """Equal numbers lose digits soon, as the rounding errors do not cancel out."""
    shape = shape if suffix == "cpu" else tuple(min(n, 4_000) for n in shape)
    x, dy = rng.random((2, *shape), np.float32) if values is None else rng.choice(np.float32(values), (2, *shape))
    given = dy, x, np.ones(shape[1], np.float32), np.zeros(shape[0], np.float32), np.ones(shape[0], np.float32)
    found = getattr(layer_norm, f"layer_norm_grad_{suffix}")(*map(put, given))
    for ours, theirs in zip(found, layer_norm.layer_norm_grad_reference(*given), strict=True):
        np.testing.assert_allclose(get(ours), theirs, rtol=5e-7, atol=2e-7)


@pytest.mark.slow
def test_the_same_comes_out_each_time(suffix, put, get, rng):
    dy, x, gamma, beta = map(put, operands(rng, 501, 6))
    forward, backward = (getattr(layer_norm, f"{name}_{suffix}") for name in ("layer_norm", "layer_norm_grad"))
    found = []
    for _ in range(3):
        y, mean, inverse = forward(x, gamma, beta, 0.1)
        found.append([get(a) for a in (y, *backward(dy, x, gamma, mean, inverse))])
    for again in found[1:]:
        for first, other in zip(found[0], again, strict=True):
            np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda of, ones: of("layer_norm")(ones(4, 3), ones(4), ones(3), 0.1), "gamma"),
        (lambda of, ones: of("layer_norm_grad")(ones(4, 3), ones(5, 3), ones(3), ones(4), ones(4)), "x"),
        (lambda of, ones: of("layer_norm_grad")(ones(4, 3), ones(4, 3), ones(3), ones(3), ones(4)), "mean"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, call, message):
    with pytest.raises(ValueError, match=message):
        call(lambda op: getattr(layer_norm, f"{op}_{suffix}"), lambda *shape: put(np.ones(shape)))
