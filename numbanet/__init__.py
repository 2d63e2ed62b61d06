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
from .dropout import BernoulliDropout, Dropout, NoDropout, RowDropout, TileDropout
from .layers import (
    GELU,
    BatchNorm1d,
    Embedding,
    Flatten,
    Flow,
    Layer,
    Linear,
    ReLU,
    Sequential,
    Shuffle,
    Sigmoid,
    Site,
    Step,
    Tanh,
)
from .ops import Order, concatenate
from .plans import AxisPlan, BernoulliPlan, IndexPlan, Plan, RowPlan, TilePlan
from .tensor import Tensor, from_dlpack
from .training.optim import SGD, Adam, Optimizer

__version__ = "0.1.0"

_ESTIMATORS = ("Net", "NetRegressor")  # loaded when asked for: scikit-learn costs more than everything else together

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "AxisPlan",
    "BatchNorm1d",
    "BernoulliDropout",
    "BernoulliPlan",
    "Dropout",
    "Embedding",
    "Flatten",
    "Flow",
    "IndexPlan",
    "Layer",
    "Linear",
    "Net",
    "NetRegressor",
    "NoDropout",
    "Optimizer",
    "Order",
    "Plan",
    "ReLU",
    "RowDropout",
    "RowPlan",
    "Sequential",
    "Shuffle",
    "Sigmoid",
    "Site",
    "Step",
    "Tanh",
    "Tensor",
    "TileDropout",
    "TilePlan",
    "check_grad",
    "concatenate",
    "device",
    "from_dlpack",
    "no_grad",
    "op",
    "ops",
]


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:
        return getattr(importlib.import_module(".estimators.net", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
