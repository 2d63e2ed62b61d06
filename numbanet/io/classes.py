"""What must be known of a network if its outputs are to be computed elsewhere: the classes of its layers, no link, and no
selection of neurons."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from ..layers import Layer, registry
from .card import kept_epoch


def class_of(layer: Layer, path: str, known: Collection[str]) -> str:
    """Return the name of the library's class that computes the outputs of a layer; raise TypeError if there is none."""
    for name in registry.__all__:
        if name in known and layer.acts_as(getattr(registry, name)):
            return name
    where = f"layer {path}" if path else "the layer"
    raise TypeError(f"{where} is a {type(layer).__name__}, a layer of your own, which cannot be written: use numbanet's layers")


def check_no_link(name: str, net: Any) -> None:
    """Raise TypeError, beginning with `name`, if the loss of an estimator has an inverse link, which only its code computes."""
    loss = net.loss_
    if loss.linked:
        raise TypeError(f"{name}: the inverse link of {loss!r} is code for numbanet's tensors; convert net.model_ by to_torch")


def check_no_selection(name: str, net: Any) -> None:
    """Raise ValueError, beginning with `name`, if the dropout of an estimator selects the neurons that predictions compute."""
    policy = net.policy_.inference_policy(kept_epoch(net)["epoch"] - 1)
    parts = () if policy is None else getattr(policy, "policies", (policy,))
    if selecting := [part.name for part in parts if np.any(part.rate)]:
        raise ValueError(
            f"{name}: dropout {selecting[0]!r} selects the neurons that predictions compute, which only numbanet does: train "
            "with select_in_prediction=False, or convert net.model_ by to_torch, which computes all neurons"
        )
