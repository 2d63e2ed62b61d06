"""Placement: which device computes which layer, by measured time, power and energy.

table     `Profile`: what was measured, by layer, device and direction; reads and writes its file
walk      whole steps with the time of each layer, and of changes of device
choice    `choose`: the best device of each layer, exact for a chain of layers
race      `steps`: whole steps of the best placements, measured in turns
"""

from .choice import OBJECTIVES, choose, enumerate_all, pareto
from .energy import Meter
from .figures import ESTIMATED, MEASURED, NONE, UNAVAILABLE, Figure
from .measure import profile, profiles
from .predict import Predictor
from .race import steps
from .result import Placed, Placement, Tried, placement
from .table import DeviceFacts, LayerTimes, Profile, Stage, Transfer, folder

__all__ = [
    "ESTIMATED",
    "MEASURED",
    "NONE",
    "OBJECTIVES",
    "UNAVAILABLE",
    "DeviceFacts",
    "Figure",
    "LayerTimes",
    "Meter",
    "Placed",
    "Placement",
    "Predictor",
    "Profile",
    "Stage",
    "Transfer",
    "Tried",
    "choose",
    "enumerate_all",
    "folder",
    "pareto",
    "placement",
    "profile",
    "profiles",
    "steps",
]
