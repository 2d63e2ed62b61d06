"""Sparsity during training: removing groups of weights, pruning single weights, and moving the entries of sparse weights."""

from __future__ import annotations

from .base import Sparsity, Thinning
from .lasso import GroupLasso
from .pruning import MagnitudePruning
from .rewiring import Rewire

__all__ = ["GroupLasso", "MagnitudePruning", "Rewire", "Sparsity", "Thinning"]
