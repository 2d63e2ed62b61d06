"""The sets that windows keep: how often each neuron is dropped, which are kept together, and how many sets there are."""

import numpy as np
import pytest

from numbanet import WindowDropout
from numbanet.plans import AxisPlan, Site

N, DRAWS = 48, 30_000


@pytest.fixture(scope="module", params=[0.5, 0.3])
def drawn(request):
    site, policy = Site("0.output", "output", (N, N), (AxisPlan,)), WindowDropout(request.param)
    rng = np.random.default_rng(0)
    return request.param, np.array([policy.plan(site, rng).mask() for _ in range(DRAWS)])


def test_every_neuron_is_dropped_at_the_rate(drawn):
    rate, kept = drawn
    error = np.sqrt(rate * (1 - rate) / DRAWS)
    assert abs(1 - kept.mean(0) - rate).max() < 5 * error


def test_neurons_are_kept_together_by_their_distance(drawn):
    """P(both kept) = E[max(K - d, 0) + max(K - (n - d), 0)] / n at the distance d around the circle of n neurons."""
    rate, kept = drawn
    mean = (1 - rate) * N
    sizes = {int(mean): 1 - mean % 1, int(mean) + 1: mean % 1}
    for distance in range(1, N // 2 + 1):
        both = (kept & np.roll(kept, distance, axis=1)).mean()
        expected = sum(p * (max(k - distance, 0) + max(k - N + distance, 0)) / N for k, p in sizes.items())
        assert abs(both - expected) < 5 * np.sqrt(0.25 / DRAWS)


def test_there_are_as_many_sets_as_neurons_for_each_size(drawn):
    rate, kept = drawn
    sizes = 1 if (1 - rate) * N % 1 == 0 else 2
    assert len(np.unique(kept, axis=0)) == sizes * N
