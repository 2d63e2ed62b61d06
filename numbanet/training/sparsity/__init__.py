"""Sparsity during training: groups that are removed, weights that are pruned, entries that move."""

from __future__ import annotations

from .base import Sparsity, Thinning
from .lasso import GroupLasso
from .pruning import MagnitudePruning
from .rewiring import Rewire

__all__ = ["GroupLasso", "MagnitudePruning", "Rewire", "Sparsity", "Thinning"]
