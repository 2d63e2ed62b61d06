"""Policies with dropout patterns of rows (`rdp`) and of tiles (`tdp`).

    rdp         row dropout pattern: the neurons bias, bias + dp, … are kept; the other neurons are not computed
    tdp         tile dropout pattern: one tile in dp of the weight is kept; the other tiles are not computed

dp is the period of a pattern. Both policies draw dp from the distribution that `search` computes for the rate p, and bias
uniformly from 0 … dp - 1. Every neuron (or weight) is then dropped with probability exactly p, as in conventional dropout. But
the neurons (or weights) of a pattern are dropped together (*Approximate Random Dropout for DNN training acceleration in GPGPU*,
sections 3 and 4).

The largest period affects the accuracy most, then the scale; the search hardly matters. So by default the largest period is the
smallest one that drops more than the rate, but at least 3; the scale is "root" for rows and "pattern" for tiles; and the search
is "exact". examples/12_why_it_works.py explains why, and shows the recorded figures.
"""

from __future__ import annotations

import bisect
import functools
import math
from typing import NamedTuple

import numpy as np

from ..arguments import check_count
from ..plans import RowPlan, Site, TilePlan, TimePlan
from .base import Dropout, Style
from .schedule import Rate
from .search import pattern_distribution

SCALES = {"rate": 0.0, "root": 0.5, "pattern": 1.0}


class _Periods(NamedTuple):
    """The distribution of the periods for one rate, and the scale for each period."""

    cumulative: list[float]  # (largest dp,): the probability of a period of at most dp
    scales: list[float]  # (largest dp,): the factor of the kept values with the period dp
    variance_factor: float  # 1 / E[scale² / dp]: the mean square of a sum without dropout, divided by that with dropout


@functools.lru_cache(maxsize=64)
def _periods(rate: float, dp_max: int | None, search: str, scale: str) -> _Periods:
    """Return the distribution of dp and the scales scale(dp) = dp^a / E[dp^(a - 1)], where a is SCALES[scale]. A pattern keeps
    the share 1 / dp, and E[scale / dp] = 1 for every a, so the mean of sums is preserved.
    """
    distribution = pattern_distribution(rate, dp_max, search)
    dp, a = np.arange(1, len(distribution) + 1.0), SCALES[scale]
    scales = dp**a / (distribution @ dp ** (a - 1))
    return _Periods(np.cumsum(distribution).tolist(), scales.tolist(), float(1 / (distribution @ (scales**2 / dp))))


# a network has few different plans, so they are cached
_row_plan, _tile_plan = (functools.lru_cache(maxsize=4096)(kind) for kind in (RowPlan, TilePlan))


class _PatternDropout(Dropout):
    """Base class of rdp and tdp. It draws the period dp and the bias of a pattern."""

    def __init__(self, rate: Rate = 0.5, dp_max: int | None = None, search: str = "exact", scale: str = "root") -> None:
        super().__init__(rate)
        if not isinstance(scale, str) or scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(map(repr, SCALES))}; got {scale!r}")
        self.dp_max, self.search, self.scale = dp_max, search, scale
        self._check_reach(self)

    def _check_reach(self, policy: Dropout) -> None:
        """Raise ValueError if no distribution over the periods reaches a rate of `policy`."""
        for rate in policy.rate if isinstance(policy.rate, tuple) else (policy.rate,):
            if not callable(rate):  # `at` checks rates that are functions
                pattern_distribution(rate, self.dp_max, self.search)

    def at(self, epoch):
        policy = super().at(epoch)
        self._check_reach(policy)
        return policy

    def _of(self, site: Site | int) -> _Periods:
        return _periods(self.rate_of(site), self.dp_max, self.search, self.scale)

    def periods(self, site: Site | int) -> int:
        """Return the largest dp that can be drawn for a site."""
        return len(self._of(site).scales)

    def variance_factor(self, site: Site | int) -> float:
        """Return the factor of the initial variance of weights with dropout at `site` (`variance_factor` of `Linear`)."""
        return self._of(site).variance_factor

    def draw(self, site: Site | int, rng: np.random.Generator) -> tuple[int, int, float]:
        """Draw (dp, bias, scale) of the pattern for one step."""
        cumulative, scales, _ = self._of(site)
        dp = 1 + min(bisect.bisect_right(cumulative, rng.random()), len(cumulative) - 1)
        bias = int(dp * rng.random())  # about three times faster than rng.integers(dp)
        return dp, bias, scales[dp - 1]


class RowDropout(_PatternDropout):
    """Row dropout pattern: of the neurons 0, 1, …, a step keeps bias, bias + dp, …, and does not compute the others.

        r = bias, bias + dp, … below O;  y = s act(x w[r, c]ᵀ + b[r]);  dx = g w[r, c];  dW[r, c] = gᵀ x;
        s = √dp / E[1 / √dp], another power by `scale`

    For each step the policy draws the period dp and the first kept neuron, bias, which is not the bias b of the layer. c are
    the kept inputs, and g is the gradient of x w[r, c]ᵀ + b[r].

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Probability p to drop, as for `Dropout`.
    dp_max : int, optional
        Largest period. The default is the smallest period that drops more than p, but at least 3; with a larger dp_max,
        patterns that keep very few neurons are drawn (`numbanet.dropout.search`). If the rate depends on the epoch, the default
        does, too; a given dp_max holds for all epochs. If `search` is "sgd", the default is 8, as in the papers, or more if the
        rate is above 0.8.
    search : {"exact", "sgd"}, default="exact"
        How the distribution of dp is computed. "exact" takes the distribution with the largest entropy at exactly this rate.
        "sgd" is Algorithm 1 of the papers, which misses the rate slightly (0.6963 for 0.7 with dp_max=8, 0.133 for 0.1), and
        whose larger periods cost accuracy.
    scale : {"rate", "root", "pattern"}, default="root"
        Kept values are multiplied by dp^a / E[dp^(a - 1)], which preserves the mean; a is 0 for "rate", 1/2 for "root" and 1
        for "pattern". For "rate" this factor is 1 / (1 - p), the inverse of the mean kept share; for "pattern" it is dp, the
        inverse of the kept share of the step; "root" is in between. "rate" minimises the noise of a single product, "pattern"
        the noise that all products of a step share.
    shuffle : int, optional
        The neurons of each hidden layer are reordered at random after every `shuffle` epochs, with their weights and the
        optimiser's state. The network stays the same, but other neurons are kept together afterwards. By default neurons are
        not reordered, as in the papers. A layer is reordered only if it is a `Linear`, or a `Conv2d` without groups, and only
        the next such layer reads its neurons. Both layers, and those between them, must be trained and not shared, and those
        between must process each neuron by itself. `Net.fit` warns of layers that are not reordered. Reordering takes as long
        as a few steps, so `shuffle` should be above 1 if epochs are short.

    Raises
    ------
    ValueError
        If an argument is out of range, or dp_max too small for the rate. At the start of a fit, if `shuffle` is set and no
        layer can be reordered, or sparsity is trained.
    """

    name, drops = "rdp", "neurons: one in dp is kept, bias, bias + dp, …"
    makes = RowPlan
    computes, style = "an H × H layer shrinks to kept rows × kept columns", Style("#134f82", "-", "o")
    set_on_copies = (*Dropout.set_on_copies, "steps")
    # sites of recurrent inputs only: number of time steps, each of which drops other units (`recurrent`)
    steps: int | None = None

    def __init__(
        self,
        rate: Rate = 0.5,
        dp_max: int | None = None,
        search: str = "exact",
        scale: str = "root",
        shuffle: int | None = None,
    ) -> None:
        super().__init__(rate, dp_max, search, scale)
        self.shuffle = self._reordered(shuffle)

    def variance_factors(self, layers):
        return [1.0, *map(self.variance_factor, range(layers))]

    def fits(self, site):
        return super().fits(site) if self.steps is None or self.makes is None else site.supports(TimePlan)

    def plan(self, site, rng):
        if not self.rate_of(site):
            return None
        n, (dp, bias, scale) = site.shape[0], self.draw(site, rng)
        if self.steps is None:
            return _row_plan(n, dp, bias, scale)
        return TimePlan(n, dp, len(range(bias, n, dp)), tuple(rng.integers(n, size=self.steps).tolist()), scale)

    def caution(self, site):
        if self.rate_of(site) and site.shape[0] < self.periods(site):
            return f"rdp: a layer of {site.shape[0]} neurons is too narrow for this rate: some steps drop all of them"
        return None


class TileDropout(_PatternDropout):
    """Tile dropout pattern: one tile of the weight in dp is kept, the others are not computed.

        M = 1 in one tile of w in dp, else 0;  y = act(s x (w ∘ M)ᵀ + b);  dx = g (w ∘ M);  dW = gᵀ x ∘ M;
        s = dp, another power by `scale`

    Kept tiles shift by one from tile row to tile row, in one of several orders of the rows and columns (`TilePlan`). A neuron
    reads only the inputs in the kept tiles of its row. So `Net` inserts a `Shuffle` before the first layer. Without a
    `Shuffle`, a tile would hold adjacent features, such as a stripe of an image, and dropping the tile would remove this part
    of a sample. Sums would also change by the mean of the dropped features.

    In the first hidden layer the dropped inputs are features, which dropout of neurons never drops. So at equal rates, tiles
    cost accuracy in this layer, and the other layers can have higher rates (`papers-mlp`, 4096x4096 at (0.7, 0.7) and (0,
    0.7)).

    Parameters
    ----------
    rate, dp_max, search
        As for `RowDropout`.
    scale : {"rate", "root", "pattern"}, default="pattern"
        As for `RowDropout`. All sums of a step lose the same share of their terms. With another scale, all sums of a step are
        too small, or all are too large, which does not average out over neurons. On Fashion-MNIST "pattern" gains half a point
        (`mlp-settings`).
    tile : int, default=32
        Side of a tile; 32 as in the papers.
    mixes : int, default=4
        Number of orders of tile rows and tile columns; each step draws one of them. If it is 1, as in the papers, there is one
        pattern for each pair of dp and bias, and networks overfit to these few patterns. More than a few orders gain nothing,
        and each needs separate index arrays.
    answer : bool, default=False
        If True, the weight of the last layer also has a tile pattern. It drops some inputs of the last layer, as row dropout
        of the previous layer does.

    Raises
    ------
    ValueError
        If an argument is out of range, or dp_max too small for the rate.
    """

    name, drops, computes = "tdp", "weight tiles of 32 × 32: one in dp is kept", "1 − p"
    style = Style("#e07b39", "-.", "s")
    kind, makes = "tiles", TilePlan
    mixes_features = True

    def __init__(
        self,
        rate: Rate = 0.5,
        dp_max: int | None = None,
        search: str = "exact",
        scale: str = "pattern",
        tile: int = 32,
        mixes: int = 4,
        answer: bool = False,
    ) -> None:
        super().__init__(rate, dp_max, search, scale)
        for name, value in (("tile", tile), ("mixes", mixes)):
            check_count(name, value)
        self.tile, self.mixes, self.answer = tile, mixes, bool(answer)

    def plan(self, site, rng):
        if not self.rate_of(site):
            return None
        dp, bias, scale = self.draw(site, rng)
        return _tile_plan(site.shape, self.tile, dp, bias, scale, int(self.mixes * rng.random()) if dp > 1 else 0)

    def variance_factors(self, layers):
        return [*map(self.variance_factor, range(layers)), 1.0]

    def caution(self, site):
        grid = TilePlan(site.shape, self.tile, 1, 0).grid
        tiles = math.prod(grid)
        if self.rate_of(site) and sum(grid) - 1 < self.periods(site):  # a[r] + b[c] takes sum(grid) - 1 values (`TilePlan`)
            return (
                f"tdp: a weight of shape {site.shape} has {tiles} tile{'s' * (tiles > 1)} of {self.tile} x {self.tile}: "
                "some steps drop all of it. Use TileDropout(tile=...) with a smaller tile, or rdp"
            )
        return None
