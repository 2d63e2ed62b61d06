"""Plans: which part of a product is computed, as pure values; and what they are on a device."""
from .base import AxisPlan, Plan, Region
from .kept import Kept, KeptAxis, KeptBlocks, KeptTiles, kept
from .rows import IndexPlan, RowPlan
from .samples import BernoulliPlan
from .tiles import BlockPlan, TilePlan

__all__ = ["AxisPlan", "BernoulliPlan", "BlockPlan", "IndexPlan", "Kept", "KeptAxis", "KeptBlocks", "KeptTiles", "Plan",
           "Region", "RowPlan", "TilePlan", "kept"]
