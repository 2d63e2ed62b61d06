"""The policy "batchwise": each step drops a random set of neurons, of a fixed size, for the whole batch.

At a rate p, m = round((1 - p) n) of n neurons are kept and scaled by n / m; every set of m neurons has the same probability. A
neuron is dropped with probability 1 - m / n. All samples of a batch drop the same neurons, so activations and weight gradients
are compact: if the inputs and the outputs of a layer are dropped in this way, it computes (m / n)^2 of its products.

A row pattern (`rdp`) computes as many products on average, E[1 / dp_1] E[1 / dp_2] = (1 - p)^2, because layers draw their
periods dp_1 and dp_2 independently. But with `rdp` the number varies: one step may compute all products and another one a
ninth. And `rdp` has only few sets of neurons, which are trained repeatedly. `rdp` reads its rows with a stride; batchwise reads
them by an index list, which takes a tenth more time (`python -m bench mlp`). The suites `mlp-accuracy` and `papers-lstm`
measure the accuracy or the perplexity of batchwise: on text and on few images of MNIST it is better than with `rdp`, and nearly
as good as with conventional dropout. At a rate of 0.7 on Fashion-MNIST it is worse than with both, and with 2048 neurons
training diverged at the learning rate of that suite. Compared with conventional dropout, a reason is that all samples of a
batch have the same noise, which does not average out.

Source: Graham, Reizenstein, Robinson, "Efficient batchwise dropout training using submatrices" (2015), with a fixed instead of
a random number of neurons.
"""

from __future__ import annotations

from ..plans import DrawnPlan, Site
from .base import Dropout, Style


class BatchwiseDropout(Dropout):
    """Batchwise dropout: a random set of neurons of fixed size is kept for a whole batch; dropped neurons are not computed.

        r = K = round((1 - p) O) random neurons;  y = s act(x w[r, c]ᵀ + b[r]);  dx = g w[r, c];  dW[r, c] = gᵀ x;  s = O / K

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Share of the neurons that is dropped; otherwise as for `Dropout`.
    """

    name, drops = "batchwise", "neurons: a random set of always the same size, for the whole batch"
    makes = DrawnPlan
    computes, style = 'as `"rdp"`, (1 − p)² of an H × H layer', Style("#c44e52", (0, (7, 2)), "v")

    def variance_factors(self, layers):
        return [1.0, *(1 - self.rate_of(layer) for layer in range(layers))]  # the next layer loses inputs

    def plan(self, site, rng):
        rate, n = self.rate_of(site), site.shape[0]
        if not rate:
            return None
        count = self._count(site)
        chosen = rng.random(n).argpartition(count - 1)[:count]  # for few neurons, a quarter of the time of rng.choice
        chosen.sort()
        return DrawnPlan(n, chosen, n / count)

    def _count(self, site: Site) -> int:
        return max(1, round((1 - self.rate_of(site)) * site.shape[0]))

    def caution(self, site):
        n, count = site.shape[0], self._count(site)
        if self.rate_of(site) and abs(1 - count / n - self.rate_of(site)) > 0.1:
            return f"batchwise: {n - count} of the {n} neurons of a layer are dropped, which is far from this rate"
        return None
