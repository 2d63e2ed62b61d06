"""The policies that have names, one line an import and one in `__all__`: `Net(dropout=…)`, the command line, tables and plots
know them from here, in this order, and `numbanet` gives their classes."""

from .base import BernoulliDropout, NoDropout
from .batchwise import BatchwiseDropout
from .graph import DynamicSparseGraph
from .patterns import RowDropout, TileDropout
from .sensitive import BlockSensitiveDropout, RowSensitiveDropout
from .window import WindowDropout

__all__ = [  # noqa: RUF022  in the order of tables
    "NoDropout",
    "BernoulliDropout",
    "RowDropout",
    "TileDropout",
    "BatchwiseDropout",
    "WindowDropout",
    "RowSensitiveDropout",
    "BlockSensitiveDropout",
    "DynamicSparseGraph",
]

POLICIES = {policy.name: policy for policy in map(globals().__getitem__, __all__)}
