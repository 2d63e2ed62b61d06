"""Sparsity during training: classes that remove groups of weights, prune single weights, move the entries of sparse weights,
and reorder neurons.
"""

from __future__ import annotations

from .base import Sparsity, Thinning
from .lasso import GroupLasso
from .pruning import MagnitudePruning
from .reordering import Reordering
from .rewiring import Rewire

__all__ = ["GroupLasso", "MagnitudePruning", "Reordering", "Rewire", "Sparsity", "Thinning"]
