"""Dropout policies: each step and for each site of a model, a policy draws the plan that says what is computed."""
from __future__ import annotations

from .base import BernoulliDropout, Dropout, NoDropout, Rate
from .patterns import RowDropout, TileDropout

__all__ = ["POLICIES", "BernoulliDropout", "Dropout", "NoDropout", "Rate", "RowDropout", "TileDropout", "policy"]

POLICIES = {policy.name: policy for policy in (NoDropout, BernoulliDropout, RowDropout, TileDropout)}


def policy(dropout: str | Dropout, rate: Rate = 0.5) -> Dropout:
    """The policy of that name at that rate; a policy object is returned as it is, with its own rate.

    Raises
    ------
    ValueError
        If there is no policy of that name, or the rate is not in [0, 1).
    """
    if isinstance(dropout, Dropout):
        return dropout
    if not isinstance(dropout, str) or dropout not in POLICIES:
        raise ValueError(f"there is no dropout {dropout!r}; choose one of {', '.join(map(repr, POLICIES))}, or a policy object")
    return POLICIES[dropout](rate)
