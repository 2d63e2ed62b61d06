"""Shared by the suites `dsg…`: a wide layer and its inputs, and two policies that dsg is compared with."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np

from numbanet.dropout import DynamicSparseGraph
from numbanet.dropout.graph import Guesses

WIDTH = 2048
SHARES = ("batch", "tile", "sample")


@functools.lru_cache(maxsize=1)
def layer_inputs(width: int, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random x (the output of a ReLU), w, b."""
    rng = np.random.default_rng(7)
    x = np.maximum(rng.standard_normal((batch, width), np.float32), 0)
    return x, rng.standard_normal((width, width), np.float32) / np.float32(np.sqrt(width)), rng.random(width, np.float32) - 0.5


# --- selections without a projection ----------------------------------------------------------------------------------
class Truth(Guesses):
    """Uses the true outputs in place of estimates by projection."""

    def _before(self, x, w):
        self._flops += 2.0 * x.shape[0] * w.size
        return x, w.device.reshape(w.data, (w.shape[0], -1)), None


class Chance(Guesses):
    """Uses random numbers in place of estimates."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rng = np.random.default_rng(self.seed)

    def scores(self, sets, w, bias):
        return w.device.upload(self.rng.random((len(sets), w.shape[0]), np.float32))

    def outputs(self, x, w, bias):
        return w.device.upload(self.rng.random((x.shape[0], w.shape[0]), np.float32))


class WithoutProjection(DynamicSparseGraph):
    """Base class: dsg that selects neurons by `guesses` in place of estimates by projection."""

    guesses: ClassVar[type[Guesses]]
    on_device = False

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._guesses = self.guesses(self.epsilon, self.refresh, self.seed)

    def changed(self, **attributes):
        policy = super().changed(**attributes)
        if "_guesses" in attributes:
            policy._guesses = self.guesses(policy.epsilon, policy.refresh, policy.seed)
        return policy


class Oracle(WithoutProjection):
    """Selects the neurons whose true outputs, over all samples, are largest."""

    name, guesses = "oracle", Truth

    def __init__(self, rate: Any = 0.5, share: str = "batch", **options: Any) -> None:
        super().__init__(rate, share=share, samples=1 << 20, **options)


class RandomChoice(WithoutProjection):
    """Selects the same number of neurons at random."""

    name, guesses = "random", Chance


KINDS = {"dsg": DynamicSparseGraph, "oracle": Oracle, "random": RandomChoice}
