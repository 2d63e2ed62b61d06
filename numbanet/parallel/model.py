"""Predicted times of training steps by the number of ranks: measured computation, and an alpha-beta model of the all-reduce.

A message of n bytes takes alpha + n beta: alpha is the latency, and 1 / beta the bandwidth of a rank. An all-reduce over P
ranks takes, if additions cost nothing (Thakur, Rabenseifner & Gropp 2005, sections 4.1 and 4.5):

    ring    2 (P - 1) alpha + 2 (P - 1) / P n beta     each rank sends 2 (P - 1) messages of n / P bytes
    tree    2 log2(P) (alpha + n beta)                 a reduction to one rank and a broadcast, log2(P) messages of n bytes each
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Link(NamedTuple):
    """How ranks are connected: `latency` of a message in seconds, and `bandwidth` of a rank in bytes per second."""

    latency: float
    bandwidth: float

    def ring(self, size: float, ranks: int) -> float:
        """Return the seconds of a ring all-reduce of `size` bytes."""
        return 2 * (ranks - 1) * self.latency + 2 * (ranks - 1) / ranks * size / self.bandwidth

    def tree(self, size: float, ranks: int) -> float:
        """Return the seconds of a tree all-reduce of `size` bytes; the depth of the tree is a whole number."""
        return 2 * math.ceil(math.log2(ranks)) * (self.latency + size / self.bandwidth)

    def best(self, size: float, ranks: int) -> float:
        """Return the seconds of the faster one; MPI libraries choose by the size as well."""
        return min(self.ring(size, ranks), self.tree(size, ranks))


class Step(NamedTuple):
    """A training step of one rank: the seconds of its computation, and the bytes of its gradients."""

    seconds: float
    size: float

    def predicted(self, ranks: int, link: Link) -> float:
        """Return the seconds of a step of several ranks with as many samples each; nothing travels while they compute."""
        return self.seconds + link.best(self.size, ranks)

    def efficiency(self, ranks: int, link: Link) -> float:
        """Return the samples per second and rank, divided by those of one rank."""
        return self.seconds / self.predicted(ranks, link)


def counts(most: int) -> Iterable[int]:
    """Yield 1, 2, 4, … and `most`, the largest number of ranks."""
    n = 1
    while n < most:
        yield n
        n *= 2
    yield most
