"""Plans: which part of a product is computed, as pure values; and what they are on a device."""
from .base import AxisPlan, Plan, Region
from .kept import Kept, KeptAxis, KeptBlocks, KeptSamples, KeptTiles, KeptTimes, kept
from .rows import DrawnPlan, IndexPlan, RowPlan, TimePlan, widened
from .samples import BernoulliPlan, SamplePlan
from .tiles import BlockPlan, TilePlan

__all__ = ["AxisPlan", "BernoulliPlan", "BlockPlan", "DrawnPlan", "IndexPlan", "Kept", "KeptAxis", "KeptBlocks", "KeptSamples",
           "KeptTiles", "KeptTimes", "Plan", "Region", "RowPlan", "SamplePlan", "TilePlan", "TimePlan", "kept", "widened"]
