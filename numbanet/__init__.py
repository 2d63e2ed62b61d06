"""numbanet: neural networks that train faster, because products with dropped neurons or weights are not computed.

    from numbanet import Net
    Net((2048, 2048)).fit(X, y, dropout="rdp", dropout_rate=0.7)

Five ideas: `Tensor` (an array that can be differentiated), `op` (turns a function of arrays into a differentiable function of
tensors), `device` (CPU, CUDA or emulated), plans (which part of a product is computed), `Net` (a scikit-learn estimator).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import ops
from .autograd import no_grad, op
from .check import check_grad
from .device import device
from .dropout import (
    ConstantSchedule,
    Dropout,
    EarlyDropout,
    GateSparsity,
    LateDropout,
    SkewNormalSchedule,
    registry as _policies,
)
from .dropout.registry import *  # noqa: F403
from .emulation import emulate_if_asked as _emulate_if_asked, emulated
from .layers import Context, Flow, Layer, registry as _layers
from .layers.registry import *  # noqa: F403
from .losses import AbsoluteError, CrossEntropy, FunctionLoss, Huber, Loss, Quantile, SquaredError
from .ops import Order, concatenate, where
from .plans import (
    AxisPlan,
    BernoulliPlan,
    BlockPlan,
    IndexPlan,
    Plan,
    Plans,
    RowPlan,
    SamplePlan,
    Site,
    TilePlan,
    TimePlan,
    WindowPlan,
)
from .tensor import Tensor, from_dlpack
from .training.adam import Adam, AdamW
from .training.augment import FlipsAndCrops
from .training.checkpoint import ModelCheckpoint
from .training.hooks import Hook
from .training.optim import Optimizer
from .training.schedule import ReduceLROnPlateau
from .training.sgd import SGD
from .training.sparsity import GroupLasso, MagnitudePruning, Rewire

if TYPE_CHECKING:  # type checkers do not run __getattr__
    from .estimators.language import LanguageModel
    from .estimators.net import Net, NetRegressor
    from .estimators.vocabulary import Vocabulary
    from .estimators.zoo import alexnet, lenet5, vgg19

__version__ = "0.1.0"

# imported on first access: scikit-learn takes longer to import than everything else together
_LATER = {
    "LanguageModel": "language",
    "Net": "net",
    "NetRegressor": "net",
    "Vocabulary": "vocabulary",
    "alexnet": "zoo",
    "lenet5": "zoo",
    "vgg19": "zoo",
}

__all__ = [
    "SGD",
    "AbsoluteError",
    "Adam",
    "AdamW",
    "AxisPlan",
    "BernoulliPlan",
    "BlockPlan",
    "ConstantSchedule",
    "Context",
    "CrossEntropy",
    "Dropout",
    "EarlyDropout",
    "FlipsAndCrops",
    "Flow",
    "FunctionLoss",
    "GateSparsity",
    "GroupLasso",
    "Hook",
    "Huber",
    "IndexPlan",
    "LanguageModel",
    "LateDropout",
    "Layer",
    "Loss",
    "MagnitudePruning",
    "ModelCheckpoint",
    "Net",
    "NetRegressor",
    "Optimizer",
    "Order",
    "Plan",
    "Plans",
    "Quantile",
    "ReduceLROnPlateau",
    "Rewire",
    "RowPlan",
    "SamplePlan",
    "Site",
    "SkewNormalSchedule",
    "SquaredError",
    "Tensor",
    "TilePlan",
    "TimePlan",
    "Vocabulary",
    "WindowPlan",
    "alexnet",
    "check_grad",
    "concatenate",
    "device",
    "emulated",
    "from_dlpack",
    "lenet5",
    "no_grad",
    "op",
    "ops",
    "vgg19",
    "where",
]
__all__ += _policies.__all__
__all__ += _layers.__all__


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".estimators.{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_emulate_if_asked()
