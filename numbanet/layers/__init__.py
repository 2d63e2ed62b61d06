"""Layers: what holds parameters or shape, and turns a Flow into a Flow under a Step."""
from .activation import ACTIVATIONS, GELU, Activation, ReLU, Sigmoid, Tanh
from .base import Cost, Flow, Form, Layer, to
from .embedding import Embedding
from .linear import Linear
from .norm import BatchNorm1d
from .sequential import Sequential
from .shape import Flatten, Shuffle
from .step import Site, Step

__all__ = [
    "ACTIVATIONS", "GELU", "Activation", "BatchNorm1d", "Cost", "Embedding", "Flatten", "Flow", "Form", "Layer", "Linear",
    "ReLU", "Sequential", "Shuffle", "Sigmoid", "Site", "Step", "Tanh", "to",
]
