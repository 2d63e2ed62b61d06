"""Which of the library's classes a layer is, if its outputs are to be computed elsewhere."""

from __future__ import annotations

from collections.abc import Collection

from ..layers import Layer, registry


def class_of(layer: Layer, path: str, known: Collection[str]) -> str:
    """Return the name of the library's class that computes the outputs of a layer; raise TypeError if there is none."""
    for name in registry.__all__:
        if name in known and layer.acts_as(getattr(registry, name)):
            return name
    where = f"layer {path}" if path else "the layer"
    raise TypeError(f"{where} is a {type(layer).__name__}, whose outputs only its own code computes; use numbanet's layers")
