"""Search of the distribution d (N,) of pattern periods: d[dp] is the probability to draw the period dp = 1..N, chosen so that
the mean drop rate is p.   d >= 0, sum(d) = 1

A pattern with period dp and bias b in 0..dp-1 keeps the indices b, b + dp, b + 2 dp, ... and drops all others. So it drops the
share

    p_u[dp] = (dp - 1) / dp                                  p_u (N,)

of the neurons. With a single period, only these rates are possible, and the same neurons are always dropped together. So
approximate random dropout draws dp from d in each step, and b uniformly: every neuron is then dropped with probability
d . p_u = p, as in conventional dropout. If d has a high entropy, many different sub-networks are drawn.

``sgd``    Algorithm 1 of the paper: d = softmax(v) for the v (N,) that minimises, from v = 0 on,

               loss(v) = lambda1 (d . p_u - p)^2 + lambda2 (1/N) sum_i d_i log d_i

``exact``  the same goal without a compromise: of all d with d . p_u = p, the one with the largest entropy.

Both solutions have one form. The loss is strictly convex in d on the simplex, so its only stationary point is where
dloss/dd_i = 2 lambda1 (d . p_u - p) p_u,i + (lambda2/N) (log d_i + 1) is the same for all i, that is

    d_i = exp(c p_u,i) / sum_j exp(c p_u,j)       with       c = 2 N (lambda1/lambda2) (p - d . p_u)

The exact solution is of the same family, with the scalar c for which d . p_u = p. So the rate of ``sgd`` must be off by
c lambda2 / (2 N lambda1): it lies between p and the rate of the uniform distribution (N = 8: p = 0.7 ends at 0.6963).

Why N is small. High entropy spreads the probability over all periods, and most periods up to a large N drop nearly all neurons:
for p = 0.7 and N = 64, dp > 20 has a probability of 46 %, and these patterns keep under 5 % of the neurons. To keep the mean
rate, steps that drop nothing must be frequent, too (dp = 1: 23 %). The papers' example has N = 8 (``DP_MAX``). Still smaller N
learns better (examples/12_why_it_works.py): so the default is `default_dp_max`, the smallest period that drops more than the
rate, but at least three: N = 3 for p = 0.5, N = 4 for p = 0.7. ``sgd`` needs more periods to approach its rate (N = 3: 0.1 ends
at 0.154, 0.6 at 0.549), so by default it has the papers' 8, or more if the rate is above 0.8: it is off by less than 0.033 at
0.1 and 0.2, by less than 0.021 from 0.3 to 0.9. That costs accuracy: N = 8 by ``sgd`` was 0.2 to 0.4 points behind bernoulli on
MNIST and 1.3 to 4.3 on Fashion-MNIST, where the smallest N by ``exact`` is within 0.3 (`python -m bench mlp-settings`, one
seed).

Every function checks its arguments: a ValueError names the argument that is out of range, or the smallest N that reaches the
rate.

Source: Song, Wang, Ru, Peng, Huang, Zhao, Liang, Jiang, "Approximate Random Dropout for DNN training acceleration in
GPGPU" (2018), Algorithm 1 "SGD-based Search Algorithm". The exponential form and the exact search are derived above.
"""

from __future__ import annotations

import math
import numbers
from functools import lru_cache

import numpy as np

__all__ = ["DP_MAX", "default_dp_max", "drop_rates", "pattern_distribution", "search_exact", "search_loss", "search_sgd"]

DP_MAX = 8  # the largest period in the papers; "Why N is small" above explains the choice
LAMBDA1, LAMBDA2 = 0.9, 0.1  # weights of the squared rate error and of the negative entropy, as in the paper


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_rate(rate) -> float:
    """Return the rate as a float; raise ValueError if it is not in [0, 1)."""
    # For Python a bool is a Real, but rate=True is more likely a misplaced flag than a rate of 1
    real = isinstance(rate, numbers.Real) and not isinstance(rate, (bool, np.bool_))
    if not real or not 0 <= rate < 1:
        raise ValueError(f"search: the drop rate must be a number in [0, 1), got {rate!r}")
    return float(rate)


def _check_dp_max(dp_max) -> int:
    """Return the largest period as an int; raise ValueError if it is not an integer of at least 1."""
    if isinstance(dp_max, (bool, np.bool_)) or not isinstance(dp_max, numbers.Integral) or dp_max < 1:
        raise ValueError(f"search: dp_max must be an integer of at least 1, got {dp_max!r}")
    return int(dp_max)


def _check_reach(rate, dp_max) -> tuple[float, np.ndarray]:
    """Return the checked rate, and the drop rates p_u (dp_max,); raise ValueError if no distribution reaches the rate."""
    rate, p_u = _check_rate(rate), drop_rates(dp_max)
    if rate > p_u[-1]:
        # 1/(1 - rate) may be rounded to either side of an integer (10.000000000000002 for 0.9), so start below it and count up
        enough = max(1, int(1 / (1 - rate)) - 1)
        while (enough - 1) / enough < rate:
            enough += 1
        raise ValueError(
            f"search: rate {rate:g} is out of reach with dp_max={dp_max}, whose largest rate is "
            f"(dp_max - 1)/dp_max = {p_u[-1]:g}; use dp_max >= {enough}"
        )
    return rate, p_u


# --- the searches ---------------------------------------------------------------------------------------------------


def drop_rates(dp_max: int) -> np.ndarray:
    """Return p_u (N,), float64: the share (dp - 1)/dp of the neurons that each period dp = 1..N drops, where N = dp_max."""
    dp = np.arange(1, _check_dp_max(dp_max) + 1)
    return (dp - 1) / dp


def _softmax(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return d = softmax(v) and log d. The logarithm is computed from v, so it stays finite where d underflows to 0."""
    shifted = v - v.max()
    e = np.exp(shifted)
    total = e.sum()
    return e / total, shifted - math.log(total)


def _centred_slope(d, log_d, rate, p_u, lambda1, lambda2) -> np.ndarray:
    """Return dloss/dd (N,) minus its mean under d; it is zero if and only if loss(softmax(v)) is stationary."""
    slope = 2 * lambda1 * (d @ p_u - rate) * p_u + lambda2 / len(d) * (log_d + 1)
    return slope - d @ slope


def search_loss(
    v: np.ndarray,  # (N,), the logits of the periods 1..N
    rate: float,
    *,
    lambda1: float = LAMBDA1,
    lambda2: float = LAMBDA2,
) -> tuple[float, np.ndarray]:
    """Return the loss of the search ``sgd`` and its gradient dloss/dv (N,), where d = softmax(v):

        loss = lambda1 (d . p_u - rate)^2 + lambda2 (1/N) sum_i d_i log d_i
        dloss/dv_j = d_j (g_j - d . g),  where g = dloss/dd

    p_u (N,) holds the drop rates of the periods 1..N (`drop_rates`).
    """
    rate, p_u = _check_rate(rate), drop_rates(len(v))
    d, log_d = _softmax(np.asarray(v, dtype=np.float64))
    loss = lambda1 * (d @ p_u - rate) ** 2 + lambda2 / len(d) * (d @ log_d)
    return float(loss), d * _centred_slope(d, log_d, rate, p_u, lambda1, lambda2)


def search_sgd(
    rate: float,  # in [0, (N - 1)/N]
    dp_max: int = DP_MAX,
    *,
    lambda1: float = LAMBDA1,
    lambda2: float = LAMBDA2,
    learning_rate: float | None = None,
    tolerance: float = 1e-13,  # largest slope at the end, relative to lambda1 + lambda2; a little above rounding errors
    max_steps: int = 200_000,  # number of steps after which RuntimeError is raised; N = 8 needs under 400 at any rate
) -> np.ndarray:
    """Return d (N,) = softmax(v) at the minimum of `search_loss`, by gradient descent from v = 0 (Algorithm 1 of the paper).

    The step is v <- v - learning_rate dloss/dv / d: the factor d_j that softmax gives the gradient is divided out (the natural
    gradient). This direction has the same zeros as the plain gradient, and the minimum is unique, so the result is that of the
    paper's descent. But it also changes the logits of periods with a small probability, for which the plain gradient is nearly
    0: for N = 8 and rate 0, the plain gradient needs 9456 steps with learning rate 64, the natural gradient 123. The search is
    deterministic: the same arguments give bitwise equal results.

    The default learning rate is 1.5 / (lambda1/2 + lambda2/N). The curvature along a step is lambda2/N +
    2 lambda1 Var_d(p_u), and rates in [0, 1) have a variance below 1/4: 2 / (...) is the limit of stability, and 1.5
    leaves a margin.

    The result misses the rate by c lambda2 / (2 N lambda1), towards the rate of the uniform distribution. So ``rate=0``
    does not mean no dropout here: with N = 8 the entropy term still ends at a rate of 0.0451.
    """
    rate, p_u = _check_reach(rate, dp_max)
    if not (0 < lambda1 < math.inf and 0 < lambda2 < math.inf):
        # without the entropy the minimum is not unique; without the rate term there is nothing to search
        raise ValueError(f"search_sgd: lambda1 and lambda2 must be positive, got {lambda1!r} and {lambda2!r}")
    if learning_rate is None:
        learning_rate = 1.5 / (lambda1 / 2 + lambda2 / dp_max)
    v = np.zeros(dp_max)
    for _ in range(max_steps):
        d, log_d = _softmax(v)
        step = _centred_slope(d, log_d, rate, p_u, lambda1, lambda2)
        if np.abs(step).max() <= tolerance * (lambda1 + lambda2):
            return d
        v -= learning_rate * step
    raise RuntimeError(
        f"search_sgd: rate {rate:g}, dp_max={dp_max} not converged after {max_steps} steps with learning_rate="
        f"{learning_rate:g}; raise max_steps, lower learning_rate, or use search_exact"
    )


def search_exact(rate: float, dp_max: int = DP_MAX) -> np.ndarray:
    """Return the d (N,) with the largest entropy among those with d . p_u = rate: d_i = exp(c p_u,i) / sum_j exp(c p_u,j).

    p_u holds the drop rates of the periods (`drop_rates`). d . p_u rises strictly with c, from 0 to (N - 1)/N, because its
    derivative is the variance of p_u under d. So exactly one c meets the rate. For rate 0, dp = 1 has probability 1; for the
    largest rate, dp = N has.
    """
    from scipy.optimize import brentq

    rate, p_u = _check_reach(rate, dp_max)
    if rate in (0.0, p_u[-1]):  # these rates are reached only in the limit, as c goes to -inf or +inf
        return np.where(p_u == rate, 1.0, 0.0)

    def excess(c):
        return _softmax(c * p_u)[0] @ p_u - rate

    low = high = 0.0
    if excess(0.0) < 0:
        high = 1.0
        while excess(high) < 0:
            low, high = high, 2 * high
    else:
        low = -1.0
        while excess(low) > 0:
            low, high = 2 * low, low
    return _softmax(brentq(excess, low, high, xtol=1e-14) * p_u)[0]


# --- for the policies -----------------------------------------------------------------------------------------------

_SEARCHES = {"exact": search_exact, "sgd": search_sgd}


def default_dp_max(rate: float, search: str = "exact") -> int:
    """Return the default of N: for "exact", the smallest period that drops more than the rate, but at least 3, so that patterns
    vary, which is max(3, floor(1/(1 - rate)) + 1). For "sgd", max(8, ceil(1.6/(1 - rate))): see "Why N is small" above.
    """
    odds = round(1 / (1 - _check_rate(rate)), 9)  # rounded, because 1/(1 - 0.8) is 4.999999999999999 in floating point
    return max(DP_MAX, math.ceil(1.6 * odds)) if search == "sgd" else max(3, math.floor(odds) + 1)


def pattern_distribution(rate: float, dp_max: int | None = None, search: str = "exact") -> np.ndarray:
    """Return d (N,), the probability of each period dp = 1..N for a drop rate. The array is cached, and therefore read-only.

    N is `dp_max`, by default `default_dp_max(rate, search)`. `search` is "exact", which meets the rate, or "sgd", the algorithm
    of the papers.
    """
    rate = _check_rate(rate)
    if not isinstance(search, str) or search not in _SEARCHES:
        raise ValueError(f"search: unknown search {search!r}; choose from {', '.join(map(repr, sorted(_SEARCHES)))}")
    return _remembered(rate, default_dp_max(rate, search) if dp_max is None else _check_dp_max(dp_max), search)


@lru_cache(maxsize=256)
def _remembered(rate: float, dp_max: int, search: str) -> np.ndarray:
    """Return the searched distribution; it is read-only, because all callers share the array."""
    d = _SEARCHES[search](rate, dp_max)
    d.flags.writeable = False
    return d
