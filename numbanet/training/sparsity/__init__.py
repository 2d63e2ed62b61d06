"""Sparsity during training: removing groups of weights, pruning single weights, and moving the entries of sparse weights; and
reordering neurons, which keeps all of them.
"""

from __future__ import annotations

from .base import Sparsity, Thinning
from .lasso import GroupLasso
from .pruning import MagnitudePruning
from .reordering import Reordering
from .rewiring import Rewire

__all__ = ["GroupLasso", "MagnitudePruning", "Reordering", "Rewire", "Sparsity", "Thinning"]
