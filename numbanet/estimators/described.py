"""Settings and layers as what JSON has, and back. A file makes values, and objects of the classes listed here, nothing else."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from numbanet_kernels.layouts.sparse import BSR, CSR

from ..dropout import POLICIES, ConstantSchedule, Dropout, GateSparsity, SkewNormalSchedule
from ..layers import (
    ACTIVATIONS,
    LSTM,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Embedding,
    Flatten,
    LastStep,
    Layer,
    Linear,
    MaxPool2d,
    Normalize,
    Select,
    Sequential,
    Shuffle,
    SparseLinear,
)
from ..training.augment import FlipsAndCrops
from ..training.lasso import GroupLasso
from ..training.pruning import MagnitudePruning
from ..training.rewiring import Rewire
from ..training.schedule import ReduceLROnPlateau
from .vocabulary import Vocabulary

# what estimators are given, or learn; each keeps the arguments of its constructor as attributes
SETTINGS = {kind.__name__: kind for kind in (*POLICIES.values(), ConstantSchedule, FlipsAndCrops, GateSparsity, GroupLasso,
                                             MagnitudePruning, ReduceLROnPlateau, Rewire, SkewNormalSchedule,
                                             Vocabulary)}
SET_ON_COPIES = ("kind", "steps", "answer")  # attributes of policies that are no arguments (`recurrent`)


# --- values -----------------------------------------------------------------------------------------------------------
def described(value: Any) -> Any:
    """A value as JSON has it; TypeError naming what is of no class listed here."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return described(value.item())
    if isinstance(value, list):
        return [described(part) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [described(part) for part in value]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Mapping):
        return {"dict": [[described(key), described(part)] for key, part in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": described(value.tolist()), "dtype": str(value.dtype)}
    if SETTINGS.get(type(value).__name__) is type(value):
        arguments = inspect.signature(type(value)).parameters
        given = {name: (getattr(value, name), parameter.default) for name, parameter in arguments.items()}
        own = {name: described(part) for name, part in vars(value).items() if isinstance(value, Dropout)
               and name[0] != "_" and name not in arguments and part is not getattr(type(value), name, value)}
        if unknown := own.keys() - set(SET_ON_COPIES):
            raise TypeError(f"{value!r} was given {', '.join(sorted(unknown))}, which {type(value).__name__} does not take")
        return {"setting": type(value).__name__, **({"set": own} if own else {}),
                "with": {name: described(part) for name, (part, default) in given.items() if part is not default}}
    raise TypeError(f"{value!r} is no number, text, or collection of these, and of no class that numbanet has for settings")


def made(value: Any) -> Any:
    """The value that was described."""
    if isinstance(value, list):
        return [made(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(map(made, value["tuple"]))
    if "range" in value:
        return range(*value["range"])
    if "dict" in value:
        return {made(key): made(part) for key, part in value["dict"]}
    if "array" in value:
        return np.array(made(value["array"]), value["dtype"])
    found = SETTINGS[value["setting"]](**{name: made(part) for name, part in value["with"].items()})
    for name, part in value.get("set", {}).items():
        if name not in SET_ON_COPIES:
            raise ValueError(f"{value['setting']} has no {name!r} that can be set")
        setattr(found, name, made(part))
    return found


# --- layers -----------------------------------------------------------------------------------------------------------
def _window(layer: Any) -> dict[str, Any]:
    return {"kernel_size": layer.window.kernel, "stride": layer.window.stride, "padding": layer.window.padding}


def _widths(layer: Any) -> dict[str, Any]:
    return {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}


def _norm(layer: Any) -> dict[str, Any]:
    return {"num_features": layer.num_features, "eps": layer.eps, "momentum": layer.momentum}


# the arguments of a constructor that makes such a layer, but for the values of its tensors
LAYERS: dict[type[Layer], Callable[[Any], dict[str, Any]]] = {
    Linear: _widths,
    SparseLinear: _widths,
    Conv2d: lambda layer: {"in_channels": layer.in_channels, "out_channels": layer.out_channels, **_window(layer),
                           "dilation": layer.window.dilation, "groups": layer.groups, "bias": layer.bias is not None},
    BatchNorm1d: _norm,
    BatchNorm2d: _norm,
    Normalize: lambda layer: {"mean": layer.mean.numpy(), "std": layer.std.numpy()},
    Embedding: lambda layer: {"num_embeddings": layer.weight.shape[0], "embedding_dim": layer.weight.shape[1],
                              "padding_idx": layer.padding_idx},
    LSTM: lambda layer: {"input_size": layer.input_size, "hidden_size": layer.hidden_size, "num_layers": layer.num_layers,
                         "bias": layer.has_bias, "batch_first": layer.batch_first},
    MaxPool2d: lambda layer: {**_window(layer), "dilation": layer.window.dilation},
    AvgPool2d: lambda layer: {**_window(layer), "count_include_pad": layer.count_include_pad},
    AdaptiveAvgPool2d: lambda layer: {"output_size": tuple(layer.window)},
    Shuffle: lambda layer: {"order": layer.order.order, "mean": layer.order.mean},
    Select: lambda layer: {"features": layer.plan.n, "index": np.asarray(layer.plan.indices())},
    **{kind: lambda layer: {} for kind in (Flatten, LastStep, *ACTIVATIONS.values())},
}


def _lstm(given: Mapping[str, Any]) -> Iterable[tuple[str, tuple[int, ...]]]:
    hidden, width = given["hidden_size"], given["input_size"]
    for layer in range(given["num_layers"]):
        yield f"weight_ih_l{layer}", (4 * hidden, hidden if layer else width)
        yield f"weight_hh_l{layer}", (4 * hidden, hidden)


# names and shapes of the weights that a constructor makes for such arguments: what it draws is no larger than what is stored
SHAPES: dict[type[Layer], Callable[[dict[str, Any]], Iterable[tuple[str, tuple[int, ...]]]]] = {
    Linear: lambda given: [("weight", (given["out_features"], given["in_features"]))],
    Conv2d: lambda given: [("weight", (given["out_channels"], given["in_channels"] // given["groups"], *given["kernel_size"]))],
    BatchNorm1d: lambda given: [("weight", (given["num_features"],))],
    BatchNorm2d: lambda given: [("weight", (given["num_features"],))],
    Embedding: lambda given: [("weight", (given["num_embeddings"], given["embedding_dim"]))],
    LSTM: _lstm,
}
KINDS = {kind.__name__: kind for kind in LAYERS}


def described_layer(layer: Layer) -> dict[str, Any]:
    """A layer as JSON has it, without the values of its tensors; TypeError where it is of no class listed here."""
    if type(layer) is Sequential:
        return {"layer": "Sequential", "with": [described_layer(part) for part in layer.layers]}
    if type(layer) not in LAYERS:
        raise TypeError(f"{layer!r} is of a class of one's own, {type(layer).__name__}")
    return {"layer": type(layer).__name__, "with": described(LAYERS[type(layer)](layer))}


def made_layer(value: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str) -> Layer:
    """The layer that was described; the names of its arrays begin with the prefix. Only shapes, and those that decide its
    structure, are read here. ValueError where a weight is not there, or of another shape."""
    if value["layer"] == "Sequential":
        return Sequential([made_layer(part, arrays, f"{prefix}{i}.") for i, part in enumerate(value["with"])])
    kind, given = KINDS[value["layer"]], made(value["with"])
    for name, shape in SHAPES.get(kind, lambda given: ())(given):
        if prefix + name not in arrays:
            raise ValueError(f"it lacks {prefix}{name}")
        if arrays[prefix + name].shape != shape:
            raise ValueError(f"{prefix}{name} has shape {arrays[prefix + name].shape}, and the layer's would be {shape}")
    if kind is not SparseLinear:
        return kind(**given)
    parts = [arrays[prefix + name] for name in ("crow_indices", "col_indices", "values")]
    shape = given["out_features"], given["in_features"]
    return SparseLinear(weight=(CSR if parts[2].ndim == 1 else BSR)(*parts, shape), **given)
