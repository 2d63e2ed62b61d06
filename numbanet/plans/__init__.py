"""Plans are immutable values that define which part of a product is computed. This package also makes their index arrays on a
device."""

from .assigned import Plans, Site
from .base import AxisPlan, Plan, Region
from .gates import GateChoice, GatePlan
from .on_device import DeviceAxis, DeviceBlocks, DevicePlan, DeviceSamples, DeviceTiles, DeviceTimes, DeviceUnits, on_device
from .positions import GroupPlan, PositionPlan, PositionTilePlan
from .rows import DrawnPlan, IndexPlan, RowPlan, TimePlan, repeat_indices
from .samples import BernoulliPlan, SamplePlan
from .tiles import BlockPlan, ChannelBlockPlan, TilePlan
from .windows import UnitWindow, WindowPlan

__all__ = [
    "AxisPlan",
    "BernoulliPlan",
    "BlockPlan",
    "ChannelBlockPlan",
    "DeviceAxis",
    "DeviceBlocks",
    "DevicePlan",
    "DeviceSamples",
    "DeviceTiles",
    "DeviceTimes",
    "DeviceUnits",
    "DrawnPlan",
    "GateChoice",
    "GatePlan",
    "GroupPlan",
    "IndexPlan",
    "Plan",
    "Plans",
    "PositionPlan",
    "PositionTilePlan",
    "Region",
    "RowPlan",
    "SamplePlan",
    "Site",
    "TilePlan",
    "TimePlan",
    "UnitWindow",
    "WindowPlan",
    "on_device",
    "repeat_indices",
]
