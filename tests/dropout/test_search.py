"""The search for the distribution over pattern periods: the numbers of the paper, the two forms, the errors."""

import subprocess
import sys
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from numbanet.dropout.search import drop_rates, pattern_distribution, search_exact, search_loss, search_sgd

SIZES = st.integers(1, 40)
SHARES = st.floats(0, 1)  # a rate as a share of the largest that N reaches: every N gets rates of its whole range


def log_fit_error(d):
    """Largest deviation of log d from its straight line in p_u, and the slope c of that line."""
    p_u = drop_rates(len(d))
    c, intercept = np.polyfit(p_u, np.log(d), 1)
    return np.abs(np.log(d) - c * p_u - intercept).max(), c


# --- the numbers ----------------------------------------------------------------------------------------------------


def test_drop_rates():
    np.testing.assert_allclose(drop_rates(4), [0, 1 / 2, 2 / 3, 3 / 4])


def test_sgd_ends_at_the_rate_of_algorithm_1():
    d = search_sgd(0.7, 8, lambda1=0.9, lambda2=0.1)
    assert round(d @ drop_rates(8), 4) == 0.6963


def test_exact_distribution_of_eight_periods():
    d = search_exact(0.7, 8)
    np.testing.assert_array_equal(d.round(3), [0.083, 0.112, 0.124, 0.130, 0.134, 0.137, 0.139, 0.140])


@pytest.mark.parametrize("search", [search_exact, search_sgd])
def test_64_periods_put_nearly_half_of_the_mass_beyond_20(search):
    assert 0.46 < search(0.7, 64)[20:].sum() < 0.47


@pytest.mark.alone
@pytest.mark.parametrize("search", [search_exact, search_sgd])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 0.875])
def test_search_of_eight_periods_is_fast(search, rate):
    search(rate)  # the first call of search_exact imports scipy
    seconds = []
    for _ in range(3):  # the best of three: another process may take the core away
        start = perf_counter()
        search(rate)
        seconds.append(perf_counter() - start)
    assert min(seconds) < 0.05


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, rate", [(2, 0.3), (8, 0.0), (8, 0.3), (8, 0.7), (8, 0.875), (20, 0.9), (64, 0.7)])
@pytest.mark.parametrize("lambda1, lambda2", [(0.9, 0.1), (0.5, 0.5), (10.0, 0.1)])
def test_sgd_has_the_exponential_form(n, rate, lambda1, lambda2):
    d = search_sgd(rate, n, lambda1=lambda1, lambda2=lambda2)
    deviation, c = log_fit_error(d)
    assert deviation < 1e-9
    # straight from the start, the descent would pass that line alone; the slope holds only where it has converged
    expected = 2 * n * (lambda1 / lambda2) * (rate - d @ drop_rates(n))
    assert c == pytest.approx(expected, abs=1e-8, rel=1e-8)


def test_plain_gradient_descent_ends_at_the_same_distribution():
    """The paper's own descent on v, without the natural gradient's division by d."""
    v = np.zeros(8)
    for _ in range(400):
        v -= 64 * search_loss(v, 0.7)[1]
    d = np.exp(v) / np.exp(v).sum()
    np.testing.assert_allclose(search_sgd(0.7, 8), d, atol=1e-11)
    assert log_fit_error(d)[0] < 1e-10


def test_sgd_bias_points_to_the_uniform_rate():
    uniform = drop_rates(8).mean()
    for rate in (0.1, 0.5, 0.7, 0.85):
        reached = search_sgd(rate) @ drop_rates(8)
        assert min(rate, uniform) < reached < max(rate, uniform)


def test_sgd_of_rate_zero_still_drops():
    assert round(search_sgd(0, 8) @ drop_rates(8), 4) == 0.0451


def test_sgd_is_deterministic():
    assert search_sgd(0.6).tobytes() == search_sgd(0.6).tobytes()


@settings(deadline=None)
@given(n=st.integers(1, 16), rate=st.floats(0, 0.99), seed=st.integers(0, 2**32 - 1))
def test_loss_gradient_against_finite_differences(n, rate, seed):
    rng = np.random.default_rng(seed)
    v, direction, h = rng.normal(0, 2, n), rng.normal(0, 1, n), 1e-5
    numeric = (search_loss(v + h * direction, rate)[0] - search_loss(v - h * direction, rate)[0]) / (2 * h)
    assert search_loss(v, rate)[1] @ direction == pytest.approx(numeric, abs=1e-8)


def test_loss_is_the_formula():
    rng = np.random.default_rng(0)
    v = rng.normal(0, 1, 6)
    d = np.exp(v) / np.exp(v).sum()
    expected = 0.8 * (np.sum(d * drop_rates(6)) - 0.4) ** 2 + 0.3 * np.sum(d * np.log(d)) / 6
    assert search_loss(v, 0.4, lambda1=0.8, lambda2=0.3)[0] == pytest.approx(expected, rel=1e-13)


# --- the exact search -----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(n=SIZES, share=SHARES)
def test_exact_is_a_distribution_with_the_rate(n, share):
    p_u = drop_rates(n)
    rate = share * p_u[-1]
    d = search_exact(rate, n)
    assert d.shape == (n,) and (d >= 0).all()
    assert d.sum() == pytest.approx(1, abs=1e-12)
    assert d @ p_u == pytest.approx(rate, abs=1e-9)


def entropy(d):
    kept = d[d > 0]
    return -(kept @ np.log(kept))


@settings(deadline=None)
@given(n=st.integers(3, 24), share=st.floats(0.02, 0.98), seed=st.integers(0, 2**32 - 1), size=st.floats(0.01, 1))
def test_no_distribution_with_the_same_rate_has_more_entropy(n, share, seed, size):
    p_u = drop_rates(n)
    d = search_exact(share * p_u[-1], n)
    # a random direction, less its part in the span of the two constraints: sum and rate stay as they are
    constraints, _ = np.linalg.qr(np.stack([np.ones(n), p_u], axis=1))
    z = np.random.default_rng(seed).normal(size=n) * d  # in proportion to d, or the rarest period limits the step
    z -= constraints @ (constraints.T @ z)
    falling = z < 0
    z *= size * np.min(d[falling] / -z[falling]) * (1 - 1e-9)  # up to the edge of the simplex
    moved = d + z
    assert (moved >= 0).all() and moved @ p_u == pytest.approx(d @ p_u, abs=1e-12)
    assert entropy(moved) <= entropy(d) + 1e-13
    # and to first order: the entropy's gradient has no part along z
    assert np.log(d) @ z == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_exact_ends_are_single_periods(n):
    np.testing.assert_array_equal(search_exact(0, n), np.eye(n)[0])
    np.testing.assert_array_equal(search_exact((n - 1) / n, n), np.eye(n)[-1])


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-12, 0.875 - 1e-9, np.nextafter(0.875, 0)])
def test_exact_near_the_ends(rate):
    d = search_exact(rate, 8)
    assert np.isfinite(d).all() and d @ drop_rates(8) == pytest.approx(rate, abs=1e-15)


# --- what the policies call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rate, n", [(0, 3), (0.3, 3), (0.5, 3), (0.6, 3), (0.7, 4), (0.75, 5), (0.76, 5), (0.8, 6), (0.9, 11), (0.95, 21)]
)
def test_default_dp_max(rate, n):
    d = pattern_distribution(rate)
    assert len(d) == n and d @ drop_rates(n) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize("rate,n", [(0.1, 8), (0.5, 8), (0.7, 8), (0.8, 8), (0.85, 11), (0.9, 16), (0.95, 32)])
def test_algorithm_1_has_periods_enough_to_come_near_its_rate(rate, n):
    d = pattern_distribution(rate, search="sgd")
    assert len(d) == n and d @ drop_rates(n) == pytest.approx(rate, abs=0.033 if rate < 0.3 else 0.021)


def test_distribution_is_remembered_and_read_only():
    d = pattern_distribution(0.7)
    assert d is pattern_distribution(np.float64(0.7), dp_max=np.int64(4), search="exact")
    with pytest.raises(ValueError, match="read-only"):
        d[0] = 1


def test_search_by_name():
    np.testing.assert_array_equal(pattern_distribution(0.6, 6, "exact"), search_exact(0.6, 6))
    np.testing.assert_array_equal(pattern_distribution(0.6, 6, "sgd"), search_sgd(0.6, 6))


# --- errors ---------------------------------------------------------------------------------------------------------

SEARCHES = [search_exact, search_sgd, pattern_distribution]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, np.nan, np.inf, "0.5", None, [0.5], True, 0.5j])
def test_bad_rate(search, rate):
    with pytest.raises(ValueError, match=r"rate must be a number in \[0, 1\)"):
        search(rate)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dp_max", [0, -3, 2.5, "8", True])
def test_bad_dp_max(search, dp_max):
    with pytest.raises(ValueError, match="dp_max must be an integer of at least 1"):
        search(0.3, dp_max)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("rate, n, largest, enough", [(0.9, 8, "0.875", 10), (0.3, 1, "0", 2), (0.51, 2, "0.5", 3)])
def test_rate_out_of_reach_says_the_way_out(search, rate, n, largest, enough):
    with pytest.raises(ValueError, match=rf"largest rate is .* = {largest}; use dp_max >= {enough}$"):
        search(rate, n)
    assert len(search(rate, enough)) == enough
    with pytest.raises(ValueError, match="out of reach"):
        search(rate, enough - 1)


@pytest.mark.parametrize("search", ["SGD", "", None, ["sgd"]])
def test_unknown_search_lists_the_names(search):
    with pytest.raises(ValueError, match="unknown search .* 'exact', 'sgd'"):
        pattern_distribution(0.5, search=search)


@pytest.mark.parametrize("lambdas", [{"lambda1": 0}, {"lambda2": 0}, {"lambda2": -1}, {"lambda1": np.nan}])
def test_bad_lambdas(lambdas):
    with pytest.raises(ValueError, match="must be positive"):
        search_sgd(0.5, **lambdas)


def test_sgd_that_does_not_converge_says_so():
    with pytest.raises(RuntimeError, match="not converged after 3 steps"):
        search_sgd(0.3, max_steps=3)
    with pytest.raises(RuntimeError, match="lower learning_rate"):
        search_sgd(0.7, learning_rate=50, max_steps=500)


def test_import_loads_neither_numba_nor_scipy():
    # by path: the package's own __init__ may load more than this file does
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('search', sys.argv[1]);"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec));"
        "sys.exit(bool({'numba', 'scipy'} & set(sys.modules)))"
    )
    path = sys.modules["numbanet.dropout.search"].__file__
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == 0
