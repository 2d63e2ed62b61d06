"""Sparsity during training: this package removes groups of weights, prunes single weights, moves the entries of sparse
weights, and reorders neurons, which keeps all of them."""

from __future__ import annotations

from .base import Sparsity, Thinning
from .lasso import GroupLasso
from .pruning import MagnitudePruning
from .reordering import Reordering
from .rewiring import Rewire

__all__ = ["GroupLasso", "MagnitudePruning", "Reordering", "Rewire", "Sparsity", "Thinning"]
