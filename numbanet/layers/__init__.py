"""Layers: modules that may hold parameters and map a Flow to a Flow under a Context."""

from . import registry
from .activation import ACTIVATIONS, Activation
from .base import Layer, to, trial
from .context import Context
from .embedding import sequence_lengths
from .flow import (
    CHANNELS_LAST,
    DENSE,
    ActivationSpec,
    ChannelsLast,
    Columns,
    Cost,
    Dense,
    Flow,
    Layout,
    PerSample,
    Symbols,
    Tags,
)
from .linear import INITS
from .recurrent import Recurrent
from .registry import *  # noqa: F403
from .tree import Tree, walk

__all__ = [
    "ACTIVATIONS",
    "CHANNELS_LAST",
    "DENSE",
    "INITS",
    "Activation",
    "ActivationSpec",
    "ChannelsLast",
    "Columns",
    "Context",
    "Cost",
    "Dense",
    "Flow",
    "Layer",
    "Layout",
    "PerSample",
    "Recurrent",
    "Symbols",
    "Tags",
    "Tree",
    "sequence_lengths",
    "to",
    "trial",
    "walk",
]
__all__ += registry.__all__
