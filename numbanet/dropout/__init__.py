"""Dropout policies: each step and for each site of a model, a policy draws the plan that says what is computed."""
from __future__ import annotations

from .base import BernoulliDropout, Dropout, NoDropout
from .batchwise import BatchwiseDropout
from .gates import GateSparsity
from .graph import DynamicSparseGraph
from .patterns import RowDropout, TileDropout
from .schedule import ConstantSchedule, Rate, SkewNormalSchedule
from .sensitive import BlockSensitiveDropout, RowSensitiveDropout, SensitiveDropout
from .together import Together, recurrent

__all__ = ["POLICIES", "BatchwiseDropout", "BernoulliDropout", "BlockSensitiveDropout", "ConstantSchedule", "Dropout",
           "DynamicSparseGraph", "GateSparsity", "NoDropout", "Rate", "RowDropout", "RowSensitiveDropout", "SensitiveDropout",
           "SkewNormalSchedule", "TileDropout", "Together", "policy", "recurrent"]

POLICIES = {policy.name: policy for policy in (NoDropout, BernoulliDropout, RowDropout, TileDropout, BatchwiseDropout,
                                               RowSensitiveDropout, BlockSensitiveDropout, DynamicSparseGraph)}


def policy(dropout: str | Dropout | None, rate: Rate = 0.5) -> Dropout:
    """The policy of that name at that rate, or ValueError; None is "none". A policy object is returned as it is, with its own
    rate."""
    dropout = "none" if dropout is None else dropout
    if isinstance(dropout, Dropout):
        return dropout
    if not isinstance(dropout, str) or dropout not in POLICIES:
        raise ValueError(f"there is no dropout {dropout!r}; choose one of {', '.join(map(repr, POLICIES))}, or a policy object")
    return POLICIES[dropout](rate)
