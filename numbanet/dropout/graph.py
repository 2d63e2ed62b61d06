"""Dynamic sparse graphs: the neurons that will matter are guessed before a layer is computed, and only these are computed.

A random projection f to k numbers nearly keeps inner products, so that f(x) . f(w) guesses the output x . w; the largest share
1 - rate of them is kept (*Dynamic Sparse Graph for Efficient Deep Learning*, ICLR 2019: dimension-reduction search and
double-mask selection). It is a selection, not dropout: nothing is scaled. f(w) is worked out anew every `refresh` steps.

    batch    one set of neurons for a whole batch, guessed from a few of its samples: a dense product with the kept neurons,
             whose compact output, input gradient and weight gradient all shrink

What that costs, of N samples, I inputs, O outputs and S samples looked at: S I k / 3 additions and 2 S k O FLOPs a step, and
O I k / 3 additions every `refresh` steps, beside the 2 N I O (1 - rate) FLOPs of the product.
"""
from __future__ import annotations

import functools
import math
import numbers
import weakref
from typing import Any

import numpy as np

from numbanet_kernels.layouts.ternary import Ternary, ternary

from ..autograd import no_grad
from ..device import Device
from ..layers import Flow
from ..plans import IndexPlan
from ..tensor import Tensor
from .base import Dropout
from .schedule import Rate

SHARES = ("batch",)
SAMPLES = 16  # of a batch that are looked at


def johnson_lindenstrauss(outputs: int, epsilon: float) -> int:
    """k = floor(4 ln n / (epsilon² / 2 - epsilon³ / 3)): so many numbers keep the distances of n points to 1 ± epsilon
    (Dasgupta & Gupta 2003, theorem 2.1)."""
    return max(int(4 * math.log(outputs) / (epsilon**2 / 2 - epsilon**3 / 3)), 1)


class DynamicSparseGraph(Dropout):
    """dsg: of each layer those neurons are computed whose outputs a random projection guesses to be largest.

    Parameters
    ----------
    rate : float, callable, or sequence of these, default=0.5
        Share of the neurons that is left out, in [0, 1); a function gives it for an epoch, a sequence one for each layer.
    epsilon : float, default=0.5
        How far distances may be off, in (0, 1): it gives the number k of the projection (`johnson_lindenstrauss`). The paper's.
    share : {"batch"}, default="batch"
        Who shares a set of neurons: all samples of a batch.
    refresh : int, default=50
        After so many steps the weights are projected anew, which takes as long as a product with k / 6 samples. The paper's.
    samples : int, default=16
        So many of a batch are looked at, evenly spaced. A neuron's score is the sum of their ReLU(f(x) . f(w) + b), what it
        would give on: magnitudes would keep neurons that are far below 0, and after ReLU all of their samples are 0.
    seed : int, default=0
        Of the projection, which is fixed for a run.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    name, looks = "dsg", True

    def __init__(self, rate: Rate = 0.5, epsilon: float = 0.5, share: str = "batch", refresh: int = 50, samples: int = SAMPLES,
                 seed: int = 0) -> None:
        super().__init__(rate)
        if isinstance(epsilon, bool) or not isinstance(epsilon, numbers.Real) or not 0 < epsilon < 1:
            raise ValueError(f"epsilon must be a number between 0 and 1, got {epsilon!r}; a larger one makes the projection "
                             "cheaper and its guesses worse")
        if share not in SHARES:
            raise ValueError(f"share must be one of {', '.join(map(repr, SHARES))}, got {share!r}")
        for name, value, least in (("refresh", refresh, 1), ("samples", samples, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        self.epsilon, self.share, self.refresh, self.samples, self.seed = epsilon, share, refresh, samples, seed
        self._guesses = Guesses(epsilon, refresh, seed)

    def plan(self, site, rng):
        return None

    def calibrated(self, model, x):
        return self._with(self.rate)

    def _with(self, rate):
        """A copy whose weights are projected anew: what an epoch does depends on nothing before it but the weights."""
        policy = super()._with(rate)
        policy._guesses = Guesses(self.epsilon, self.refresh, self.seed)
        return policy

    def concern(self, site):
        outputs, inputs = site.shape[0], math.prod(site.shape[1:])
        if self.rate_of(site) and (k := johnson_lindenstrauss(outputs, self.epsilon)) >= inputs:
            return (f"dsg: a layer of {inputs} inputs and {outputs} outputs would be projected to {k} numbers, which saves "
                    "nothing: its outputs are looked at themselves. A larger epsilon projects to fewer")
        return None

    def look_at(self, site, flow, w, rng):
        if not self.rate_of(site):
            return None
        with no_grad():
            some = _evenly(flow, self.samples).dense().data
        scores = np.asarray(w.device.download(self._guesses.scores(some, w, site.layer.bias)))
        return IndexPlan(scores.size, largest(scores, kept_of(scores.size, self.rate_of(site))))

    def spent(self):
        return self._guesses.spent()


def kept_of(n: int, rate: float) -> int:
    """How many of n are kept, one at least."""
    return max(round((1 - rate) * n), 1)


def largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Where the largest ones are, increasing."""
    return np.sort(np.argpartition(-scores, count - 1)[:count])


def _evenly(flow: Flow, count: int) -> Flow:
    """Some of the samples of a batch, evenly spaced."""
    n, dev = flow.x.shape[0], flow.x.device
    if n <= count:
        return flow
    every = n // count
    return flow._replace(x=Tensor.wrap(dev.getitem(flow.x.data, slice(0, every * count, every)), dev))


class Guesses:
    """Virtual outputs f(x) . f(w) + b, and the projected weights f(w), each worked out anew after `refresh` uses."""

    def __init__(self, epsilon: float, refresh: int, seed: int) -> None:
        self.epsilon, self.refresh, self.seed, self._flops = epsilon, refresh, seed, 0.0
        self._projected: weakref.WeakKeyDictionary[Tensor, tuple[Any, int]] = weakref.WeakKeyDictionary()

    def scores(self, x: Any, w: Tensor, bias: Tensor | None) -> Any:
        """What each output gives on after ReLU, guessed: the sum over samples x (S, I), an array of the device; w (O, …)."""
        dev, (outputs, inputs) = w.device, (w.shape[0], math.prod(w.shape[1:]))
        k, weights, packed = johnson_lindenstrauss(outputs, self.epsilon), dev.reshape(w.data, (outputs, inputs)), None
        if k < inputs:
            lists = _lists(k, inputs, self.seed, dev)
            weights, packed = self._weights(w, weights, lists, k)
            x = dev.project(x, lists, k)
            self._flops += x.shape[0] * lists.columns.size
        self._flops += 2.0 * x.shape[0] * x.shape[1] * outputs
        return dev.scores(x, weights, None if bias is None else bias.data, packed)

    def _weights(self, w: Tensor, matrix: Any, lists: Ternary, k: int) -> tuple[Any, Any]:
        """f(w), and the same as the device packs it for `scores`."""
        found, uses = self._projected.get(w, (None, 0))
        if uses % self.refresh == 0:
            projected = w.device.project(matrix, lists, k)
            found = projected, w.device.scores_packed(projected)
            self._flops += w.shape[0] * lists.columns.size
        self._projected[w] = found, uses + 1
        return found

    def spent(self) -> float:
        """FLOPs since the last call: an addition is one."""
        found, self._flops = self._flops, 0.0
        return found

    def __reduce__(self) -> tuple:
        return Guesses, (self.epsilon, self.refresh, self.seed)


@functools.lru_cache(maxsize=64)
def _lists(k: int, inputs: int, seed: int, dev: Device) -> Ternary:
    """R on the device."""
    return Ternary(*map(dev.upload, ternary(k, inputs, seed)))
