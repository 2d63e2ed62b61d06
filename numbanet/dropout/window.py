"""window: each step keeps a window of adjacent neurons, which starts at a random neuron and may wrap around the end of the
layer.

K of n neurons are kept: start, start + 1, …, start + K - 1 modulo n. Every start has the same probability, so each neuron is
dropped with probability 1 - K / n exactly. p is the dropout rate. K is (1 - p) n rounded down or up at random, so that its mean
is (1 - p) n. So the mean share of dropped neurons is exactly p. Kept neurons are scaled by n / K.

The kept part of a weight is a slice, or two if the window wraps around, so products read it without a copy. Before training,
the order of a layer's neurons is arbitrary, so adjacent neurons are as suitable as any others. But there are only n windows,
and adjacent neurons are nearly always kept together, so they adapt to each other.
"""

from __future__ import annotations

import functools
import math

from ..plans import Site, WindowPlan
from .base import Dropout, Style

_plan = functools.lru_cache(maxsize=4096)(WindowPlan)


class WindowDropout(Dropout):
    """Window dropout: adjacent neurons from a random one on are kept for a whole batch, and the others are not computed.

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Probability to drop, in [0, 1), or a function that gives it for an epoch; a sequence gives one for each droppable layer.

    Raises
    ------
    ValueError
        If a rate is out of range.
    """

    name, drops = "window", "neurons: neighbours are kept, from a random one on, around the end"
    computes, style = 'as `"rdp"`, (1 − p)² of an H × H layer', Style("#2a9d8f", (0, (4, 1)), "P")

    def variance_factors(self, layers):
        return [1.0, *(1 - self.rate_of(layer) for layer in range(layers))]  # dropout removes terms of the next layer's sums

    def counts(self, site: Site) -> list[tuple[int, float]]:
        """(K, its probability) for the two integers K around (1 - p) n; K is at least 1."""
        mean = (1 - self.rate_of(site)) * site.shape[0]
        least = math.floor(mean)
        return [(max(least, 1), 1 - (mean - least)), (least + 1, mean - least)]

    def plan(self, site, rng):
        if not self.rate_of(site):
            return None
        n, ((count, probability), (more, _)) = site.shape[0], self.counts(site)
        count = count if rng.random() < probability else more
        return _plan(n, int(n * rng.random()), count, n / count)

    def caution(self, site):
        n, rate = site.shape[0], self.rate_of(site)
        if rate and (1 - rate) * n < 1:
            return f"window: a layer of {n} neurons keeps one at least, which is more than this rate leaves"
        return None
