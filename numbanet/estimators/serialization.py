"""Functions that convert settings and layers to JSON values, and back. Only plain values and objects of the classes that are
listed here can be made from JSON.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from numbanet_kernels.layouts.sparse import BSR, CSR

from ..dropout import POLICIES, ConstantSchedule, Dropout, EarlyDropout, GateSparsity, LateDropout, SkewNormalSchedule, Together
from ..layers import Conv2d, Layer, Linear, Sequential, SparseLinear, Tree, registry
from ..losses import OF_CLASSES, OF_NUMBERS
from ..training.augment import FlipsAndCrops
from ..training.schedule import ReduceLROnPlateau
from ..training.sparsity import GroupLasso, MagnitudePruning, Rewire
from .vocabulary import Vocabulary

# classes of parameters and learned attributes; each stores the arguments of its constructor as attributes
SETTINGS = {
    kind.__name__: kind
    for kind in (
        *POLICIES.values(),
        ConstantSchedule,
        EarlyDropout,
        FlipsAndCrops,
        GateSparsity,
        GroupLasso,
        LateDropout,
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
    """Convert a value to JSON; raise a TypeError that names the value if its class is not listed here."""
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
    if type(value) is Together:
        return {"setting": "Together", "with": {"policies": [described(part) for part in value.policies]}}
    if SETTINGS.get(type(value).__name__) is type(value):
        arguments = inspect.signature(type(value)).parameters
        given = {name: (getattr(value, name), parameter.default) for name, parameter in arguments.items()}
        extra = {
            name: described(part)
            for name, part in vars(value).items()
            if isinstance(value, Dropout)
            and name[0] != "_"
            and name not in arguments
            and part is not getattr(type(value), name, value)
        }
        if unknown := extra.keys() - set(getattr(value, "set_on_copies", ())):
            kind, names = type(value).__name__, ", ".join(sorted(unknown))
            raise TypeError(f"{value!r} has the attribute {names}, which the constructor of {kind} does not take")
        return {
            "setting": type(value).__name__,
            **({"set": extra} if extra else {}),
            "with": {name: described(part) for name, (part, default) in given.items() if part is not default},
        }
    raise TypeError(f"{value!r} cannot be saved: only numbers, strings, containers of these and numbanet's own settings can")


def made(value: Any) -> Any:
    """Convert JSON to the value: the inverse of `described`."""
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
    if value["setting"] == "Together":
        return Together(*made(value["with"]["policies"]))
    setting = SETTINGS[value["setting"]](**{name: made(part) for name, part in value["with"].items()})
    for name, part in value.get("set", {}).items():
        if name not in getattr(setting, "set_on_copies", ()):
            raise ValueError(f"{value['setting']} has no {name!r} that can be set")
        setattr(setting, name, made(part))
    return setting


# --- layers -----------------------------------------------------------------------------------------------------------
class OwnLayerError(TypeError):
    """A layer of a user's class cannot be made, because its class is not defined here, or takes other arguments now."""


def described_layer(layer: Layer) -> dict[str, Any]:
    """Convert a layer to JSON, without the values of its tensors (`Layer.config`). Raise TypeError if JSON cannot hold an
    argument of its constructor, or if its class cannot be found by name.

    If training has changed the shapes that the constructor makes (`GroupLasso`), the entry "holds" maps the path of each
    changed `Sequential` to its layers. A changed subclass of `Linear` or `Conv2d` is saved as its base class.
    """
    kind, config = type(layer), _config(layer)
    _known(kind.__name__, kind)
    holds = {}
    if getattr(registry, kind.__name__, None) is not kind and _shapes_of(layer) != _shapes_of(fresh := kind(**config)):
        for base in (Linear, Conv2d):
            if layer.acts_as(base):
                kind, config = base, base.config(layer)  # type: ignore[arg-type]
        holds = {path: list(map(described_layer, chain.layers)) for path, chain in _changed(layer, fresh)}
    described_config = {name: _argument(value) for name, value in config.items()}
    return {"layer": kind.__name__, "with": described_config, **({"holds": holds} if holds else {})}


def _shapes_of(layer: Layer) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tensor.shape) for name, tensor, _ in layer.named()]


def _changed(layer: Layer, fresh: Layer, path: str = "") -> Iterator[tuple[str, Sequential]]:
    """Yield (path, chain) for each `Sequential` in `layer` whose layers or shapes are not those of the new layer `fresh`."""
    if isinstance(layer, Sequential) and _shapes_of(layer) != _shapes_of(fresh):
        yield path, layer
        return
    others = dict(fresh.children())
    for name, child in layer.children():
        if name in others:
            yield from _changed(child, others[name], f"{path}.{name}" if path else name)


def _config(layer: Layer) -> dict[str, Any]:
    """Return the arguments of the constructor of a layer, which `Layer.config` returns. If `config` is inherited and returns
    other names, return the attributes with the names of the arguments.
    """
    config = layer.config()
    try:
        inspect.signature(type(layer)).bind(**config)
    except TypeError:
        return Layer.config(layer)
    return config


def _argument(value: Any) -> Any:
    """Convert an argument to JSON; it may be a layer or a list of layers."""
    if isinstance(value, Layer):
        return described_layer(value)
    if isinstance(value, (list, tuple)) and any(isinstance(part, Layer) for part in value):
        return {"layers": list(map(_argument, value))}
    return described(value)


def _known(name: str, asked: type[Layer] | None = None) -> type[Layer]:
    """Return the layer class named `name`, which numbanet or a user defines; raise TypeError unless there is exactly one."""
    matches, kinds = [], [Layer]
    while kinds:
        kinds += (children := kinds.pop().__subclasses__())
        matches += [kind for kind in children if kind.__name__ == name]
    matches = list(dict.fromkeys(matches))
    if len(matches) > 1:  # if a class was defined several times, as in a notebook, take the one that its module has now
        matches = [kind for kind in matches if getattr(sys.modules.get(kind.__module__), name, None) is kind] or matches
    if not matches or (asked is not None and matches != [asked]) or len(matches) > 1:
        raise TypeError(
            f"there are several layers of the class {name}; give them different names"
            if matches
            else "no layer class of this name is known here: define it, or import its module, before loading"
        )
    return matches[0]


def _saved(name: str) -> type[Layer]:
    """Return the layer class that a file names; raise OwnLayerError unless there is exactly one."""
    try:
        return _known(name)
    except TypeError as error:
        raise OwnLayerError(f"a layer of the file has the class {name}: {error}") from None


def _constructed(kind: type[Layer], given: Mapping[str, Any]) -> Layer:
    """Return kind(**given); raise OwnLayerError if a user's class does not take these arguments."""
    try:
        return kind(**given)
    except TypeError as error:
        if getattr(registry, kind.__name__, None) is kind:
            raise
        own = f"{kind.__module__}.{kind.__name__}"
        raise OwnLayerError(
            f"the class {own} has changed since the file was saved, or its config() does not give what it takes: {error}"
        ) from None


def made_layer(value: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str | None) -> Layer:
    """Make a layer from JSON. The names of its arrays begin with `prefix`; None means that this is not known. Only the shapes
    of the arrays are used here, and the values of arrays that define the structure of the layer. Raise ValueError if a weight
    is missing or has another shape.
    """
    kind = _saved(value["layer"])
    given = {name: _made_argument(kind, name, part, arrays, prefix) for name, part in value["with"].items()}
    shapes = {array.shape for array in arrays.values()} if prefix is None else ()
    for name, shape in _shapes(kind, given):
        if prefix is None:
            if shape not in shapes:
                raise ValueError(f"the file lacks an array of shape {shape} for {value['layer']}, {name}")
        elif prefix + name not in arrays:
            raise ValueError(f"the file lacks {prefix}{name}")
        elif arrays[prefix + name].shape != shape:
            raise ValueError(f"{prefix}{name} has shape {arrays[prefix + name].shape}, but the layer needs {shape}")
    if kind is not SparseLinear:
        layer = _constructed(kind, given)
        for path, parts in value.get("holds", {}).items():
            chain = Tree(layer).layers[path]
            if not isinstance(chain, Sequential):
                raise ValueError(f"{value['layer']} has no Sequential at {path!r}")
            here = None if prefix is None else f"{prefix}{path}." if path else prefix
            chain.layers[:] = [_made_part(part, arrays, here, i) for i, part in enumerate(parts)]
        return layer
    if prefix is None:
        raise ValueError("the arrays of a SparseLinear are unknown: store it as an attribute with the argument's name")
    crow, col, values = (arrays[prefix + name] for name in ("crow_indices", "col_indices", "values"))
    weight = (CSR if values.ndim == 1 else BSR)(crow, col, values, (given["out_features"], given["in_features"]))
    return SparseLinear(weight=weight, **given)


def _shapes(kind: type[Layer], given: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return (name, shape) of each tensor of a layer of the class `kind` with the arguments `given`."""
    try:
        return kind.shapes(given)
    except KeyError:  # the class inherited `shapes` from a parent whose constructor has other arguments
        return ()


def _made_argument(kind: type[Layer], name: str, value: Any, arrays: Mapping[str, np.ndarray], prefix: str | None) -> Any:
    """Make an argument of a layer's constructor from JSON. If the argument is a layer, the names of its arrays begin with the
    name of the argument, because the layer usually is the attribute with this name.
    """
    if not (isinstance(value, dict) and ("layer" in value or "layers" in value)):
        return made(value)
    here = None if prefix is None else prefix if issubclass(kind, Sequential) else f"{prefix}{name}."
    if here is not None and not any(array.startswith(here) for array in arrays):
        here = None  # the attribute has another name
    if "layer" in value:
        return made_layer(value, arrays, here)
    return [_made_part(part, arrays, here, i) for i, part in enumerate(value["layers"])]


def _made_part(value: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str | None, i: int) -> Layer:
    """Make layer i of a list of layers; the names of all arrays of the list begin with `prefix`."""
    return made_layer(value, arrays, None if prefix is None else f"{prefix}{i}.")
