"""Sparsity during training: this package removes groups of weights, prunes single weights, and moves the entries of sparse
weights."""

from __future__ import annotations

from .base import Sparsity, Thinning
from .lasso import GroupLasso
from .pruning import MagnitudePruning
from .rewiring import Rewire

__all__ = ["GroupLasso", "MagnitudePruning", "Rewire", "Sparsity", "Thinning"]
