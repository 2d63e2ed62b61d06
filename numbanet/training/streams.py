"""Streams: random numbers apart by what they are for, so that one use does not move another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Streams(NamedTuple):
    """Generators for plans, the order of rows, noise, and initial weights.

    Processes that train together share `plans` and `weights`, and have `rows` and `noise` of their own.
    """

    plans: np.random.Generator
    rows: np.random.Generator
    noise: np.random.Generator
    weights: np.random.Generator

    @classmethod
    def from_seed(cls, seed: int) -> Streams:
        """All four from one seed."""
        return cls(*map(np.random.default_rng, np.random.SeedSequence(seed).spawn(len(cls._fields))))

    def state(self) -> list[Any]:
        """Where they are."""
        return [rng.bit_generator.state for rng in self]

    def restore(self, state: list[Any]) -> None:
        """Go back there."""
        for rng, saved in zip(self, state, strict=True):
            rng.bit_generator.state = saved
