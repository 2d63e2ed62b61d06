"""Values of a checkpoint as JSON: numbers, strings and containers as in saved estimators; arrays are stored beside the JSON,
and layers of the model as their paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...layers import Layer, Sequential, walk
from ..serialization import described, made

PREFIX = "run/"


def packed(value: Any, model: Sequential, arrays: dict[str, np.ndarray]) -> Any:
    """Return a value as an object that `json` can write. Its arrays are added to `arrays` and replaced by their names, and
    layers of `model` are replaced by their paths. Raise TypeError if a part of the value is of an unknown class.
    """
    paths = {layer: path for path, layer in walk(model)}

    def pack(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = f"{PREFIX}{len(arrays)}"
            arrays[name] = np.array(value, order="C")
            return {"stored": name}
        if isinstance(value, Layer) and value in paths:
            return {"layer": paths[value]}
        if isinstance(value, list):
            return [pack(part) for part in value]
        if isinstance(value, tuple):
            return {"tuple": [pack(part) for part in value]}
        if isinstance(value, Mapping):
            return {"dict": [[pack(key), pack(part)] for key, part in value.items()]}
        return {"value": described(value)}

    return pack(value)


def unpacked(value: Any, model: Sequential, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value of JSON that `packed` returned."""
    layers = dict(walk(model))

    def unpack(value: Any) -> Any:
        if isinstance(value, list):
            return [unpack(part) for part in value]
        ((kind, content),) = value.items()
        if kind == "stored":
            return arrays[content]
        if kind == "layer":
            return layers[content]
        if kind == "tuple":
            return tuple(unpack(part) for part in content)
        if kind == "dict":
            return {unpack(key): unpack(part) for key, part in content}
        return made(content)

    return unpack(value)
