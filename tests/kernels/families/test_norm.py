"""Batch normalisation against its float64 reference, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import norm

SHAPES = [(7, 5), (1, 3), (33, 40), (130, 33), (4, 1), (1000, 6)]  # on CUDA the samples of some are divided into parts


def operands(rng, n, c):
    """dy, x, gamma, beta, mean, variance; x far from 0, so that a sum of squares would lose its digits."""
    x = rng.normal(100, 2, (n, c)).astype(np.float32)
    dy, (gamma, beta) = rng.standard_normal((n, c)).astype(np.float32), rng.standard_normal((2, c)).astype(np.float32)
    return dy, x, gamma, beta, np.float32(x.mean(0, np.float64)), np.float32(x.var(0, np.float64) + 0.1)


def close(found, expected, tolerance=1e-4):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(suffix, put, get, rng, shape):
    dy, x, gamma, beta, mean, variance = operands(rng, *shape)
    forward, applied, backward = (
        getattr(norm, f"{name}_{suffix}") for name in ("batch_norm", "batch_norm_apply", "batch_norm_grad")
    )
    close(map(get, forward(*map(put, (x, gamma, beta)), 0.1)), norm.batch_norm_reference(x, gamma, beta, 0.1), 1e-3)
    close(
        [get(applied(*map(put, (x, gamma, beta, mean, variance)), 0.1))],
        [norm.batch_norm_apply_reference(x, gamma, beta, mean, variance, 0.1)],
    )
    close(
        map(get, backward(*map(put, (dy, x, gamma, mean, variance)), 0.1)),
        norm.batch_norm_grad_reference(dy, x, gamma, mean, variance, 0.1),
    )


def test_no_samples(suffix, put, get):
    """Their mean and variance are 0, and shares of nothing for ranks without samples."""
    x, beta = np.zeros((0, 3), np.float32), np.full(3, 5, np.float32)
    found = getattr(norm, f"batch_norm_{suffix}")(*map(put, (x, beta, beta)), 0.1)
    for ours, theirs in zip(map(get, found), norm.batch_norm_reference(x, beta, beta, 0.1), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(get(found[1]), np.zeros(3))


@pytest.mark.slow
@pytest.mark.parametrize("values", [[12.8], [12.8, 89.6], None], ids=str)
def test_sums_over_many_samples_lose_nothing(suffix, put, get, rng, values):
    """Added up one after the other in float32, thousands of numbers lose digits; few different ones soon do, as the rounding
    errors do not cancel out."""
    n = 1_000_000 if suffix == "cpu" else 4_000
    x = rng.random((n, 2), np.float32) if values is None else rng.choice(np.float32(values), (n, 2))
    ones, zeros, dy = np.ones(2, np.float32), np.zeros(2, np.float32), x[::-1].copy()
    _, mean, variance = getattr(norm, f"batch_norm_{suffix}")(*map(put, (x, ones, zeros)), 1.0)
    close(map(get, (mean, variance)), norm.batch_norm_reference(x, ones, zeros, 1.0)[1:], 5e-7)
    given = dy, x, ones, zeros, ones
    _, *found = getattr(norm, f"batch_norm_grad_{suffix}")(*map(put, given), 1.0)
    for ours, theirs in zip(found, norm.batch_norm_grad_reference(*given, 1.0)[1:], strict=True):
        np.testing.assert_allclose(get(ours), theirs, rtol=5e-7)


@pytest.mark.parametrize("n", [100, 1000])
def test_variances_far_from_zero_keep_their_digits(suffix, put, get, rng, n):
    x = rng.normal(10_000, 1, (n, 3)).astype(np.float32)
    x[:, 2] = 1e37  # of which sums are infinite
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    _, mean, variance = getattr(norm, f"batch_norm_{suffix}")(*map(put, (x, ones, zeros)), 1.0)
    np.testing.assert_allclose(get(mean), x.mean(0, np.float64), rtol=1e-7)
    np.testing.assert_allclose(get(variance), x.var(0, np.float64), rtol=1e-5, atol=0)


def test_the_same_comes_out_each_time(suffix, put, get, rng):
    dy, x, gamma, beta, mean, variance = map(put, operands(rng, 1001, 6))
    forward, backward = (getattr(norm, f"{name}_{suffix}") for name in ("batch_norm", "batch_norm_grad"))
    found = [
        [get(array) for array in (*forward(x, gamma, beta, 0.1), *backward(dy, x, gamma, mean, variance, 0.1))]
        for _ in range(3)
    ]
    for again in found[1:]:
        for first, other in zip(found[0], again, strict=True):
            np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda of, ones: of("batch_norm")(ones(4, 3), ones(4), ones(3), 0.1), "gamma"),
        (lambda of, ones: of("batch_norm_grad")(ones(4, 3), ones(5, 3), ones(3), ones(3), ones(3), 0.1), "x"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, call, message):
    with pytest.raises(ValueError, match=message):
        call(lambda op: getattr(norm, f"{op}_{suffix}"), lambda *shape: put(np.ones(shape)))
