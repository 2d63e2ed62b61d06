"""Plans: which part of a product is computed, as pure values; and what they are on a device."""
from .base import AxisPlan, Plan, Region
from .kept import Kept, KeptAxis, KeptTiles, kept
from .rows import IndexPlan, RowPlan
from .samples import BernoulliPlan
from .tiles import TilePlan

__all__ = ["AxisPlan", "BernoulliPlan", "IndexPlan", "Kept", "KeptAxis", "KeptTiles", "Plan", "Region", "RowPlan", "TilePlan",
           "kept"]
