"""Layers: what holds parameters or shape, and turns a Flow into a Flow under a Step."""
from .activation import ACTIVATIONS, GELU, Activation, ReLU, Sigmoid, Tanh
from .base import Cost, Flow, Form, Layer, to
from .conv import Conv2d
from .embedding import Embedding
from .linear import Linear
from .norm import BatchNorm1d, BatchNorm2d
from .normalize import Normalize
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .recurrent import LSTM, LastStep
from .sequential import Sequential
from .shape import Flatten, Select, Shuffle
from .sparse import SparseLinear
from .step import Site, Step

__all__ = [
    "ACTIVATIONS", "GELU", "LSTM", "Activation", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv2d",
    "Cost", "Embedding", "Flatten", "Flow", "Form", "LastStep", "Layer", "Linear", "MaxPool2d", "Normalize", "ReLU",
    "Select", "Sequential", "Shuffle", "Sigmoid", "Site", "SparseLinear", "Step", "Tanh", "to",
]
