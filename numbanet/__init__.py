"""numbanet: neural networks that train faster because work that dropout throws away is never done.

    from numbanet import Net
    Net((2048, 2048)).fit(X, y, dropout="rdp", dropout_rate=0.7)

Five ideas: `Tensor` (an array that can be differentiated), `op` (arithmetic lifted to tensors), `device` (where it runs),
plans (which part of a product is computed), `Net` (a scikit-learn estimator).
"""
from __future__ import annotations

import importlib
from typing import Any

from . import ops
from .autograd import no_grad, op
from .check import check_grad
from .device import device
from .dropout import (
    BatchwiseDropout,
    BernoulliDropout,
    BlockSensitiveDropout,
    ConstantSchedule,
    Dropout,
    DynamicSparseGraph,
    GateSparsity,
    NoDropout,
    RowDropout,
    RowSensitiveDropout,
    SkewNormalSchedule,
    TileDropout,
)
from .layers import (
    GELU,
    GRU,
    LSTM,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Context,
    Conv2d,
    Embedding,
    Flatten,
    Flow,
    LastStep,
    Layer,
    LayerNorm,
    Linear,
    MaxPool2d,
    Normalize,
    ReLU,
    Select,
    Sequential,
    Shuffle,
    Sigmoid,
    SparseLinear,
    Tanh,
)
from .losses import AbsoluteError, CrossEntropy, FunctionLoss, Huber, Loss, Quantile, SquaredError
from .ops import Order, concatenate, where
from .plans import AxisPlan, BernoulliPlan, BlockPlan, IndexPlan, Plan, Plans, RowPlan, SamplePlan, Site, TilePlan, TimePlan
from .tensor import Tensor, from_dlpack
from .training.adam import Adam, AdamW
from .training.augment import FlipsAndCrops
from .training.checkpoint import ModelCheckpoint
from .training.hooks import Hook
from .training.lasso import GroupLasso
from .training.optim import SGD, Optimizer
from .training.pruning import MagnitudePruning
from .training.rewiring import Rewire
from .training.schedule import ReduceLROnPlateau

__version__ = "0.1.0"

# loaded when asked for: scikit-learn costs more than everything else together
_LATER = {"LanguageModel": "language", "Net": "net", "NetRegressor": "net", "Vocabulary": "vocabulary", "alexnet": "zoo",
          "lenet5": "zoo", "vgg19": "zoo"}

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "SGD",
    "AbsoluteError",
    "Adam",
    "AdamW",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "AxisPlan",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchwiseDropout",
    "BernoulliDropout",
    "BernoulliPlan",
    "BlockPlan",
    "BlockSensitiveDropout",
    "ConstantSchedule",
    "Context",
    "Conv2d",
    "CrossEntropy",
    "Dropout",
    "DynamicSparseGraph",
    "Embedding",
    "Flatten",
    "FlipsAndCrops",
    "Flow",
    "FunctionLoss",
    "GateSparsity",
    "GroupLasso",
    "Hook",
    "Huber",
    "IndexPlan",
    "LanguageModel",
    "LastStep",
    "Layer",
    "LayerNorm",
    "Linear",
    "Loss",
    "MagnitudePruning",
    "MaxPool2d",
    "ModelCheckpoint",
    "Net",
    "NetRegressor",
    "NoDropout",
    "Normalize",
    "Optimizer",
    "Order",
    "Plan",
    "Plans",
    "Quantile",
    "ReLU",
    "ReduceLROnPlateau",
    "Rewire",
    "RowDropout",
    "RowPlan",
    "RowSensitiveDropout",
    "SamplePlan",
    "Select",
    "Sequential",
    "Shuffle",
    "Sigmoid",
    "Site",
    "SkewNormalSchedule",
    "SparseLinear",
    "SquaredError",
    "Tanh",
    "Tensor",
    "TileDropout",
    "TilePlan",
    "TimePlan",
    "Vocabulary",
    "alexnet",
    "check_grad",
    "concatenate",
    "device",
    "from_dlpack",
    "lenet5",
    "no_grad",
    "op",
    "ops",
    "vgg19",
    "where",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".estimators.{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
