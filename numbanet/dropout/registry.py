"""Registry of the named policies: one import and one name in `__all__` per policy. The order of the names in `__all__` is the
order in choices, tables and plots; `numbanet` exports the classes.
"""

from .base import POLICIES, BernoulliDropout, NoDropout
from .batchwise import BatchwiseDropout
from .graph import DynamicSparseGraph
from .patterns import RowDropout, TileDropout
from .sensitive import RowSensitiveDropout
from .sensitive_blocks import BlockSensitiveDropout
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

POLICIES.update({policy.name: policy for policy in map(globals().__getitem__, __all__)})
