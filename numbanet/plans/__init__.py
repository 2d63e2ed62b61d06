"""Plans: which part of a product is computed, as pure values; and what they are on a device."""
from .assigned import Plans, Site
from .base import AxisPlan, Plan, Region
from .gates import GateChoice, GatePlan
from .kept import Kept, KeptAxis, KeptBlocks, KeptSamples, KeptTiles, KeptTimes, kept
from .rows import DrawnPlan, IndexPlan, RowPlan, TimePlan, widened
from .samples import BernoulliPlan, SamplePlan
from .tiles import BlockPlan, TilePlan

__all__ = ["AxisPlan", "BernoulliPlan", "BlockPlan", "DrawnPlan", "GateChoice", "GatePlan", "IndexPlan", "Kept", "KeptAxis",
           "KeptBlocks", "KeptSamples", "KeptTiles", "KeptTimes", "Plan", "Plans", "Region", "RowPlan", "SamplePlan", "Site",
           "TilePlan", "TimePlan", "kept", "widened"]
