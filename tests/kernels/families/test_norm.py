"""Batch normalisation against its float64 reference, on every device."""
import numpy as np
import pytest

from numbanet_kernels.families import norm

SHAPES = [(7, 5), (1, 3), (33, 40), (130, 33), (4, 1), (1000, 6)]


def operands(rng, n, c):
    """dy, x, gamma, beta, mean, variance; x far from 0, so that a sum of squares would lose its digits."""
    x = rng.normal(100, 2, (n, c)).astype(np.float32)
    dy, (gamma, beta) = rng.standard_normal((n, c)).astype(np.float32), rng.standard_normal((2, c)).astype(np.float32)
    return dy, x, gamma, beta, np.float32(x.mean(0, np.float64)), np.float32(x.var(0, np.float64) + 0.1)


def close(found, expected, tolerance=1e-4):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(suffix, put, get, rng, shape):
    dy, x, gamma, beta, mean, variance = operands(rng, *shape)
    forward, applied, backward = (getattr(norm, f"{name}_{suffix}") for name in (
        "batch_norm", "batch_norm_apply", "batch_norm_grad"))
    close(map(get, forward(*map(put, (x, gamma, beta)), 0.1)), norm.batch_norm_reference(x, gamma, beta, 0.1), 1e-3)
    close([get(applied(*map(put, (x, gamma, beta, mean, variance)), 0.1))],
          [norm.batch_norm_apply_reference(x, gamma, beta, mean, variance, 0.1)])
    close(map(get, backward(*map(put, (dy, x, gamma, mean, variance)), 0.1)),
          norm.batch_norm_grad_reference(dy, x, gamma, mean, variance, 0.1))


def test_the_same_comes_out_each_time(suffix, put, get, rng):
    dy, x, gamma, beta, mean, variance = map(put, operands(rng, 1001, 6))
    forward, backward = (getattr(norm, f"{name}_{suffix}") for name in ("batch_norm", "batch_norm_grad"))
    found = [[get(array) for array in (*forward(x, gamma, beta, 0.1), *backward(dy, x, gamma, mean, variance, 0.1))]
             for _ in range(3)]
    for again in found[1:]:
        for first, other in zip(found[0], again, strict=True):
            np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("call, message", [
    (lambda of, ones: of("batch_norm")(ones(4, 3), ones(4), ones(3), 0.1), "gamma"),
    (lambda of, ones: of("batch_norm_grad")(ones(4, 3), ones(5, 3), ones(3), ones(3), ones(3), 0.1), "x")])
def test_what_does_not_fit_is_refused(suffix, put, call, message):
    with pytest.raises(ValueError, match=message):
        call(lambda op: getattr(norm, f"{op}_{suffix}"), lambda *shape: put(np.ones(shape)))
