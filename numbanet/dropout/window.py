"""The policy "window": each step keeps a window of adjacent neurons, which starts at a random neuron and may wrap around the
end of the layer.

K of n neurons are kept: start, start + 1, …, start + K - 1 modulo n. Every start has the same probability, so each neuron is
dropped with probability 1 - K / n exactly. K is (1 - p) n rounded down or up at random, where p is the dropout rate, so that
its mean is (1 - p) n and the mean share of dropped neurons is exactly p. Kept neurons are scaled by n / K. In wide layers,
start and K are multiples of a number that divides n (`align`); the probabilities stay the same.

The kept part of a weight is a slice, or two if the window wraps around, so products read it without a copy. Before training,
the order of a layer's neurons is arbitrary, so adjacent neurons are as suitable as any others. But there are at most n
windows of a size, and adjacent neurons are nearly always kept together, so they adapt to each other.
"""

from __future__ import annotations

import functools
import math

from ..arguments import check_count
from ..plans import Site, WindowPlan
from .base import Dropout, Style
from .schedule import Rate

_plan = functools.lru_cache(maxsize=4096)(WindowPlan)
ALIGNMENTS, LEAST_WINDOWS = (32, 16, 8), 128  # by default the first of these numbers that leaves so many windows of a layer


@functools.lru_cache(maxsize=256)
def _step(n: int, rate: float, align: int | None) -> int:
    if align is None:
        align = next((each for each in ALIGNMENTS if n % each == 0 and n >= each * LEAST_WINDOWS), 1)
    return align if n % align == 0 and (1 - rate) * n > align * (1 - 1e-9) else 1


@functools.lru_cache(maxsize=256)
def _counts(n: int, rate: float, step: int) -> tuple[tuple[int, float], tuple[int, float]]:
    mean = (1 - rate) * n / step
    least = math.floor(mean)
    return (max(least, 1) * step, 1 - (mean - least)), ((least + 1) * step, mean - least)


class WindowDropout(Dropout):
    """Window dropout: adjacent neurons from a random one on are kept for a whole batch, and the others are not computed.

        r = start, …, start + K - 1 modulo O;  y = s act(x w[r, c]ᵀ + b[r]);  dx = g w[r, c];  dW[r, c] = gᵀ x;  s = O / K

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        As for `Dropout`.

    shuffle : int, optional
        As for `RowDropout`: after every n epochs, other neurons become adjacent.
    align : int, optional
        A number of which start and K are multiples, so that windows begin and end where the vectors and cache lines of a
        processor do. It is used only in layers whose width is a multiple of it and which keep more than this number of neurons
        on average; in other layers rates would not be exact. By default 32, 16 or 8 in layers of at least 4096, 2048 or 1024
        neurons, which leaves 128 windows or more, else 1. Steps then take some percent less time than with 1 on a processor
        with AVX-512. With fewer windows, 64 or 32 of 1024 neurons, accuracy was 0.1 to 0.2 points lower in the mean
        (`python -m bench mlp-settings`).

    Raises
    ------
    ValueError
        If an argument is out of range. At the start of a fit, if `shuffle` is set and no layer can be reordered, or sparsity is
        trained.
    """

    name, drops = "window", "neurons: neighbours are kept, from a random one on, around the end"
    makes = WindowPlan
    computes, style = 'as `"rdp"`, (1 − p)² of an H × H layer', Style("#2a9d8f", (0, (4, 1)), "P")

    set_on_copies = (*Dropout.set_on_copies, "as_outputs")
    as_outputs: bool = False  # sites of recurrent inputs only: True if the window is that of the layer's outputs (`recurrent`)

    def __init__(self, rate: Rate = 0.5, shuffle: int | None = None, align: int | None = None) -> None:
        super().__init__(rate)
        self.shuffle = self._reordered(shuffle)
        self.align = None if align is None else check_count("window: align", align)

    def variance_factors(self, layers):
        return [1.0, *(1 - self.rate_of(layer) for layer in range(layers))]  # the next layer loses inputs

    def step(self, site: Site) -> int:
        """Return the number of which start and K are multiples."""
        return _step(site.shape[0], self.rate_of(site), self.align)

    def counts(self, site: Site) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return (K, its probability) for the two multiples K of `step` next to (1 - p) n; K is at least 1."""
        return _counts(site.shape[0], self.rate_of(site), self.step(site))

    def plan(self, site, rng):
        n, rate = site.shape[0], self.rate_of(site)
        if not rate:
            return None
        step = _step(n, rate, self.align)
        (count, probability), (more, _) = _counts(n, rate, step)
        count = count if rng.random() < probability else more
        return _plan(n, int(n // step * rng.random()) * step, count, n / count)

    def caution(self, site):
        n, rate = site.shape[0], self.rate_of(site)
        if rate and (1 - rate) * n < 1:
            return f"window: a layer of {n} neurons keeps at least one neuron, which is more than the rate {rate:g} leaves"
        return None
