"""`Streams`: one random generator for each purpose. They are independent, so that one use does not affect another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Streams(NamedTuple):
    """Generators for plans, the order of rows, noise, and initial weights.

    If several processes train one model, they use the same streams `plans` and `weights`, and different ones for `rows` and
    `noise`.
    """

    plans: np.random.Generator
    rows: np.random.Generator
    noise: np.random.Generator
    weights: np.random.Generator

    @classmethod
    def from_seed(cls, seed: int) -> Streams:
        """Make all four generators from one seed."""
        return cls(*map(np.random.default_rng, np.random.SeedSequence(seed).spawn(len(cls._fields))))

    @classmethod
    def of_rank(cls, seed: int, rank: int, own_rows: bool) -> Streams:
        """Make the generators of one of several processes: another `noise` for each, and another `rows` if `own_rows`, because
        each process then has its own samples.
        """
        same, own = cls.from_seed(seed), np.random.SeedSequence((seed, rank)).spawn(2)
        if rank == 0:
            return same
        rows, noise = map(np.random.default_rng, own)
        return same._replace(noise=noise, rows=rows if own_rows else same.rows)

    def state(self) -> list[Any]:
        """Return the state of each generator."""
        return [rng.bit_generator.state for rng in self]

    def restore(self, state: list[Any]) -> None:
        """Restore the states that `state` returned."""
        for rng, saved in zip(self, state, strict=True):
            set_state(rng, saved)


def set_state(rng: np.random.Generator, state: Any) -> Any:
    """Set the state of a generator, and return the state that it had."""
    before, rng.bit_generator.state = rng.bit_generator.state, state
    return before
