"""Layers -> PyTorch's modules: a function for each class of layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import nn

from ..layers import Layer
from . import torch_modules as modules
from .card import check_fitted
from .classes import check_no_link, check_no_selection, class_of

Shared = dict[int, Any]  # the module of each layer and the parameter of each tensor, by id, so that tied weights stay tied


# --- layers -----------------------------------------------------------------------------------------------------------
def _recurrent(kind: type[nn.Module], layer: Any) -> nn.Module:
    sizes = layer.input_size, layer.hidden_size, layer.num_layers, layer.has_bias, layer.batch_first
    return kind(*sizes, 0.0, layer.bidirectional)


WRITERS: dict[str, Callable[[Any], nn.Module]] = {
    "AdaptiveAvgPool2d": lambda layer: nn.AdaptiveAvgPool2d(**layer.config()),
    "AvgPool2d": lambda layer: nn.AvgPool2d(**layer.config()),
    "BatchNorm1d": lambda layer: nn.BatchNorm1d(**layer.config()),
    "BatchNorm2d": lambda layer: nn.BatchNorm2d(**layer.config()),
    "Conv2d": lambda layer: nn.Conv2d(**layer.config()),
    "Embedding": lambda layer: modules.Embedding(**layer.config()),
    "Flatten": lambda layer: nn.Flatten(),
    "GELU": lambda layer: nn.GELU(),
    "GRU": lambda layer: _recurrent(modules.GRU, layer),
    "LSTM": lambda layer: _recurrent(modules.LSTM, layer),
    "LastStep": lambda layer: modules.LastStep(layer.bidirectional),
    "LayerNorm": lambda layer: nn.LayerNorm(**layer.config()),
    "Linear": lambda layer: nn.Linear(**layer.config()),
    "MaxPool2d": lambda layer: nn.MaxPool2d(**layer.config()),
    "Normalize": lambda layer: modules.Normalize(**layer.config()),
    "ReLU": lambda layer: nn.ReLU(),
    "Select": lambda layer: modules.Gather(layer.plan.n, layer.plan.indices()),
    "Shuffle": lambda layer: modules.Gather(layer.order.size, layer.order.order, layer.order.mean),
    "Sigmoid": lambda layer: nn.Sigmoid(),
    "SparseLinear": lambda layer: nn.Linear(**layer.config()),
    "Tanh": lambda layer: nn.Tanh(),
}


def _module(layer: Layer, path: str, shared: Shared) -> nn.Module:
    """The module of a layer; a layer that is used again has the same one."""
    if id(layer) not in shared:
        shared[id(layer)] = _made(layer, path, shared)
    return shared[id(layer)]


def _made(layer: Layer, path: str, shared: Shared) -> nn.Module:
    name = class_of(layer, path, {*WRITERS, "Sequential"})
    if name == "Sequential":
        return modules.Chain(*_modules(layer, path, shared))
    module = WRITERS[name](layer)
    if name == "SparseLinear":
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(layer.weight.dense()))  # type: ignore[attr-defined, operator]
    named = {key: tensor for key, tensor, _ in layer.named()}
    for key, own in itertools.chain(list(module.named_parameters()), list(module.named_buffers())):
        if key not in named:
            continue
        tensor = named[key]
        if id(tensor) in shared:
            module.register_parameter(key, shared[id(tensor)])
            continue
        with torch.no_grad():
            own.copy_(torch.tensor(tensor.numpy()))
        if isinstance(own, nn.Parameter):
            own.requires_grad_(tensor.requires_grad)
            shared[id(tensor)] = own
    return module


def _modules(layer: Any, path: str, shared: Shared) -> list[nn.Module]:
    at = f"{path}." if path else ""
    return [_module(part, f"{at}{i}", shared) for i, part in enumerate(layer.layers)]


# --- networks ---------------------------------------------------------------------------------------------------------
def written(model: Any) -> nn.Module:
    """The module of an estimator or of layers (`numbanet.io.to_torch`). `cpu` lets recurrent modules notice shared weights."""
    if isinstance(model, Layer):
        return _module(model, "", {}).eval().cpu()
    if not isinstance(model, BaseEstimator):
        raise TypeError(f"to_torch takes a fitted estimator or a layer, not {type(model).__name__}")
    check_fitted("to_torch", model)
    check_no_selection("to_torch", model)
    if hasattr(model, "target_scale_"):
        check_no_link("to_torch", model)
    parts, kind = _modules(model.model_, "", {}), modules.Language if hasattr(model, "vocabulary_") else modules.Chain
    if hasattr(model, "target_scale_"):
        parts.append(modules.Units(model.target_mean_, model.target_scale_))
    images = getattr(model, "image_shape", None) is not None and len(model.input_shape_) == 3  # widths take flat samples
    return kind(*parts).takes(model.image_shape if images else None).eval().cpu()
