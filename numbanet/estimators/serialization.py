"""Settings and layers as what JSON has, and back. A file makes values, and objects of the classes listed here, nothing else."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from numbanet_kernels.layouts.sparse import BSR, CSR

from ..dropout import POLICIES, ConstantSchedule, Dropout, GateSparsity, SkewNormalSchedule
from ..layers import Conv2d, Layer, Linear, Sequential, SparseLinear, Tree, registry
from ..losses import OF_CLASSES, OF_NUMBERS
from ..training.augment import FlipsAndCrops
from ..training.schedule import ReduceLROnPlateau
from ..training.sparsity import GroupLasso, MagnitudePruning, Rewire
from .vocabulary import Vocabulary

# what estimators are given, or learn; each keeps the arguments of its constructor as attributes
SETTINGS = {
    kind.__name__: kind
    for kind in (
        *POLICIES.values(),
        ConstantSchedule,
        FlipsAndCrops,
        GateSparsity,
        GroupLasso,
        MagnitudePruning,
        ReduceLROnPlateau,
        Rewire,
        SkewNormalSchedule,
        Vocabulary,
        *OF_NUMBERS.values(),
        *OF_CLASSES.values(),
    )
}


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
        own = {
            name: described(part)
            for name, part in vars(value).items()
            if isinstance(value, Dropout)
            and name[0] != "_"
            and name not in arguments
            and part is not getattr(type(value), name, value)
        }
        if unknown := own.keys() - set(getattr(value, "set_on_copies", ())):
            raise TypeError(f"{value!r} was given {', '.join(sorted(unknown))}, which {type(value).__name__} does not take")
        return {
            "setting": type(value).__name__,
            **({"set": own} if own else {}),
            "with": {name: described(part) for name, (part, default) in given.items() if part is not default},
        }
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
        if name not in getattr(found, "set_on_copies", ()):
            raise ValueError(f"{value['setting']} has no {name!r} that can be set")
        setattr(found, name, made(part))
    return found


# --- layers -----------------------------------------------------------------------------------------------------------
def described_layer(layer: Layer) -> dict[str, Any]:
    """A layer as JSON has it, without the values of its tensors (`Layer.config`); TypeError where it is not made by arguments
    that JSON has, or its class cannot be found by its name.

    Where training has changed shapes of what the constructor makes (`GroupLasso`), "holds" has by path the layers of each
    `Sequential` that are others now; a subclass of `Linear` or `Conv2d` is described as its base.
    """
    kind, config = type(layer), _config(layer)
    _known(kind.__name__, kind)
    holds = {}
    if getattr(registry, kind.__name__, None) is not kind and _shapes_of(layer) != _shapes_of(fresh := kind(**config)):
        for base in (Linear, Conv2d):
            if layer.acts_as(base):
                kind, config = base, base.config(layer)
        holds = {path: list(map(described_layer, chain.layers)) for path, chain in _changed(layer, fresh)}
    described_config = {name: _argument(value) for name, value in config.items()}
    return {"layer": kind.__name__, "with": described_config, **({"holds": holds} if holds else {})}


def _shapes_of(layer: Layer) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tensor.shape) for name, tensor, _ in layer.named()]


def _changed(layer: Layer, fresh: Layer, path: str = "") -> Iterator[tuple[str, Sequential]]:
    """(path, chain) of each `Sequential` that has other layers or shapes than in a layer that was made anew."""
    if isinstance(layer, Sequential) and _shapes_of(layer) != _shapes_of(fresh):
        yield path, layer
        return
    others = dict(fresh.children())
    for name, child in layer.children():
        if name in others:
            yield from _changed(child, others[name], f"{path}.{name}" if path else name)


def _config(layer: Layer) -> dict[str, Any]:
    """The arguments that a layer is made by; those of its constructor, by their names, where it inherits a `config` that says
    others."""
    found = layer.config()
    try:
        inspect.signature(type(layer)).bind(**found)
    except TypeError:
        return Layer.config(layer)
    return found


def _argument(value: Any) -> Any:
    """A value as JSON has it, which may be a layer, or a list of some."""
    if isinstance(value, Layer):
        return described_layer(value)
    if isinstance(value, (list, tuple)) and any(isinstance(part, Layer) for part in value):
        return {"layers": list(map(_argument, value))}
    return described(value)


def _known(name: str, asked: type[Layer] | None = None) -> type[Layer]:
    """The layer of that name, numbanet's or one that was defined by whoever asks; TypeError where there is none, or several."""
    found, kinds = [], [Layer]
    while kinds:
        kinds += (own := kinds.pop().__subclasses__())
        found += [kind for kind in own if kind.__name__ == name]
    found = list(dict.fromkeys(found))
    if len(found) > 1:  # of a class that was defined again, as in a notebook, the one that its module has now
        found = [kind for kind in found if getattr(sys.modules.get(kind.__module__), name, None) is kind] or found
    if not found or (asked is not None and found != [asked]) or len(found) > 1:
        raise TypeError(
            f"there {'is no layer' if not found else 'are several layers'} of the class {name}"
            f"{'; import or define it first' if not found else '; give each a name of its own'}"
        )
    return found[0]


def made_layer(value: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str | None) -> Layer:
    """The layer that was described; the names of its arrays begin with the prefix, if that is known. Only shapes, and arrays
    that decide its structure, are read here. ValueError where a weight is not there, or of another shape."""
    kind = _known(value["layer"])
    given = {name: _made_argument(kind, name, part, arrays, prefix) for name, part in value["with"].items()}
    shapes = {array.shape for array in arrays.values()} if prefix is None else ()
    for name, shape in _shapes(kind, given):
        if prefix is None:
            if shape not in shapes:
                raise ValueError(f"it lacks an array of shape {shape} for {value['layer']}, {name}")
        elif prefix + name not in arrays:
            raise ValueError(f"it lacks {prefix}{name}")
        elif arrays[prefix + name].shape != shape:
            raise ValueError(f"{prefix}{name} has shape {arrays[prefix + name].shape}, and the layer's would be {shape}")
    if kind is not SparseLinear:
        layer = kind(**given)
        for path, parts in value.get("holds", {}).items():
            chain = Tree(layer).layers[path]
            if not isinstance(chain, Sequential):
                raise ValueError(f"{value['layer']} has no Sequential at {path!r}")
            here = None if prefix is None else f"{prefix}{path}." if path else prefix
            chain.layers[:] = [_made_part(part, arrays, here, i) for i, part in enumerate(parts)]
        return layer
    if prefix is None:
        raise ValueError("it does not say which arrays a SparseLinear has: keep it as an attribute of the argument's name")
    crow, col, values = (arrays[prefix + name] for name in ("crow_indices", "col_indices", "values"))
    weight = (CSR if values.ndim == 1 else BSR)(crow, col, values, (given["out_features"], given["in_features"]))
    return SparseLinear(weight=weight, **given)


def _shapes(kind: type[Layer], given: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of tensors, as far as they are known by these arguments."""
    try:
        return kind.shapes(given)
    except KeyError:  # it is made by others than the class that says them
        return ()


def _made_argument(kind: type[Layer], name: str, value: Any, arrays: Mapping[str, np.ndarray], prefix: str | None) -> Any:
    """An argument of a layer's constructor; layers among them are nearly always attributes of the same names."""
    if not (isinstance(value, dict) and ("layer" in value or "layers" in value)):
        return made(value)
    here = None if prefix is None else prefix if issubclass(kind, Sequential) else f"{prefix}{name}."
    if here is not None and not any(array.startswith(here) for array in arrays):
        here = None  # attributes have other names
    if "layer" in value:
        return made_layer(value, arrays, here)
    return [_made_part(part, arrays, here, i) for i, part in enumerate(value["layers"])]


def _made_part(value: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str | None, i: int) -> Layer:
    """The layer that is part i of what has the prefix."""
    return made_layer(value, arrays, None if prefix is None else f"{prefix}{i}.")
