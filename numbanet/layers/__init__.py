"""Layers: what holds parameters or shape, and turns a Flow into a Flow under a Context."""
from .activation import ACTIVATIONS, GELU, Activation, ReLU, Sigmoid, Tanh
from .base import Layer, to
from .context import Context
from .conv import Conv2d
from .embedding import Embedding, sequence_lengths
from .flow import CHANNELS_LAST, DENSE, ChannelsLast, Columns, Cost, Dense, Flow, Form, Layout, PerSample, Symbols, Tags
from .gru import GRU
from .last_step import LastStep
from .layer_norm import LayerNorm
from .linear import Linear
from .lstm import LSTM
from .norm import BatchNorm1d, BatchNorm2d
from .normalize import Normalize
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .recurrent import Recurrent
from .sequential import Sequential
from .shape import Flatten, Select, Shuffle
from .sparse import SparseLinear
from .tree import Tree, walk

__all__ = [
    "ACTIVATIONS", "CHANNELS_LAST", "DENSE", "GELU", "GRU", "LSTM", "Activation", "AdaptiveAvgPool2d", "AvgPool2d",
    "BatchNorm1d", "BatchNorm2d", "ChannelsLast", "Columns", "Context", "Conv2d", "Cost", "Dense", "Embedding", "Flatten",
    "Flow", "Form", "LastStep", "Layer", "LayerNorm", "Layout", "Linear", "MaxPool2d", "Normalize", "PerSample", "ReLU",
    "Recurrent", "Select", "Sequential", "Shuffle", "Sigmoid", "SparseLinear", "Symbols", "Tags", "Tanh", "Tree",
    "sequence_lengths", "to", "walk",
]
