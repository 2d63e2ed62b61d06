"""Registry of the layers: one import and one name in `__all__` per layer; `numbanet` exports them from here."""

from .activation import GELU, ReLU, Sigmoid, Tanh
from .conv import Conv2d
from .embedding import Embedding
from .gru import GRU
from .last_step import LastStep
from .layer_norm import LayerNorm
from .linear import Linear
from .lstm import LSTM
from .norm import BatchNorm1d, BatchNorm2d
from .normalize import Normalize
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .sequential import Sequential
from .shape import Flatten, Select, Shuffle
from .sparse import SparseLinear

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "Embedding",
    "Flatten",
    "LastStep",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Normalize",
    "ReLU",
    "Select",
    "Sequential",
    "Shuffle",
    "Sigmoid",
    "SparseLinear",
    "Tanh",
]
