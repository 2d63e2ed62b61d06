"""Joints are the places in a model where units may be removed; they are found by walking the tree of its layers.

Units are removed between two layers of a path. A path is a list of layers that run one after the other: the output of a layer
is the input of the next one, and is used nowhere else. The model is one path, which includes the layers of the `Sequential`s in
it.

A user's layer, such as a residual block, is called with a batch of zeros to find the layers that it calls. If it calls a
`Sequential` once, and does not also call layers of it directly, this `Sequential` is a separate path. Its inputs and outputs
keep their width, because other layers may depend on it. Units of layers that are called one by one are not removed, because the
use of their outputs is unknown. If a user's layer calls such a `Sequential` and also uses the weight of a layer in it, this is
not detected.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...layers import (
    ActivationSpec,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    Select,
    Sequential,
    Tree,
    trial,
    walk,
)
from ...plans import Plans

NORMS = BatchNorm1d, BatchNorm2d


class Place(NamedTuple):
    """A layer in the list of the `Sequential` `chain`, and the specification of its input."""

    chain: Sequential
    layer: Any
    spec: ActivationSpec

    def replace(self, *layers: Layer, before: int = 0) -> None:
        """Replace this layer, and `before` layers in front of it, by other layers."""
        index = self.chain.layers.index(self.layer)
        self.chain.layers[index - before : index + 1] = layers


@dataclasses.dataclass(frozen=True)
class Joint:
    """A place where units may be removed: between two layers with weights, or before the first one.

    Attributes
    ----------
    source : Linear, Conv2d or None
        The layer whose outputs are the units. None if it is unknown, or if an array that changes with the units, such as a bias
        or a batch norm, is also used elsewhere.
    passed : tuple of Place
        The layers before the reader, from the source on; if there is a source, all but a `Select` process units independently.
    place : Place
        The place of the reader, the layer whose inputs are the units.
    after : Layer or None
        The layer after the reader.
    spec : ActivationSpec
        The specification of the source's output.
    owner : ndarray
        For each input of the reader, the index of its unit; without a source, the index of the input itself.
    """

    source: Linear | Conv2d | None
    passed: tuple[Place, ...]
    place: Place
    after: Layer | None
    spec: ActivationSpec
    owner: np.ndarray

    @property
    def reader(self) -> Linear | Conv2d:
        """The layer whose inputs are the units."""
        return self.place.layer

    @property
    def between(self) -> tuple[Layer, ...]:
        """The layers between the source and the reader."""
        return tuple(place.layer for place in self.passed)

    @property
    def flat(self) -> bool:
        """True if the reader's input is (N, features), so that a `Select` can be inserted before it."""
        return len(self.place.spec.shape) == 2

    @property
    def select(self) -> Select | None:
        """The `Select` directly before the reader in the same `Sequential`; None if there is none."""
        before = self.passed[-1] if self.passed else self.place
        return before.layer if before.chain is self.place.chain and before.layer.acts_as(Select) else None

    @property
    def pixels(self) -> int:
        """The number of features per unit in the input of the reader, or of a `Select` before it."""
        inputs = self.select.plan.n if self.select else self.owner.size
        return inputs // self.source.weight.shape[0] if self.source else 1


def trainable(model: Layer) -> list[Linear | Conv2d]:
    """Return the layers whose weights may be changed, in the order of the tree: instances of `Linear`, and of `Conv2d` without
    groups, whose weight is trained and not shared.
    """
    tree = Tree(model)
    return [
        layer
        for layer in dict.fromkeys(tree.layers.values())
        if isinstance(layer, (Linear, Conv2d))
        and getattr(layer, "groups", 1) == 1
        and layer.weight.requires_grad
        and layer.weight not in tree.shared
    ]


def paths(layer: Layer, spec: ActivationSpec) -> Iterator[list[Place]]:
    """Yield the paths of a layer, outer ones first, for an input with the specification `spec`; a path is a list of `Place`."""
    if layer.acts_as(Sequential):
        yield from _paths_of(layer, spec)
        return
    if None in spec.shape or next(layer.children(), None) is None:
        return
    calls = trial(layer, spec.shape)[0]
    counts = collections.Counter(called for called, _ in calls)
    for called, shape in calls:
        if counts[called] > 1 or any(inner in counts for path, inner in walk(called) if path):
            continue
        if called is not layer:
            yield from paths(called, ActivationSpec(shape))
        elif isinstance(layer, Sequential):  # an instance of a subclass whose `__call__` calls that of `Sequential`
            yield from _paths_of(layer, ActivationSpec(shape))


def _paths_of(chain: Any, spec: ActivationSpec) -> Iterator[list[Place]]:
    path = list(_places(chain, spec))
    yield path
    for place in path:
        yield from paths(place.layer, place.spec)


def _places(chain: Any, spec: ActivationSpec) -> Iterator[Place]:
    """Yield the places of a `Sequential`, including those of the `Sequential`s in it."""
    for layer in chain.layers:
        if layer.acts_as(Sequential):
            yield from _places(layer, spec)
        else:
            yield Place(chain, layer, spec)
        spec = layer.cost(spec, Plans())[1]


def places(model: Layer, shape: tuple[int, ...]) -> dict[Linear | Conv2d, Place]:
    """Return a dict that maps a trainable layer to its place in a path, for inputs of shape `shape`, (N, …). It contains the
    layers that compute the same as `Linear` or `Conv2d`, so that their shape may change.
    """
    known = set(trainable(model))
    found = (place for path in paths(model, ActivationSpec(shape)) for place in path)
    return {place.layer: place for place in found if place.layer in known and place.layer.acts_as(Linear, Conv2d)}


def joints(model: Layer, shape: tuple[int, ...]) -> list[Joint]:
    """Return the joints of a model for inputs of shape `shape`, (N, …), from the first layer to the last. Joints inside a layer
    come after those of the path to which the layer belongs.
    """
    known, shared = places(model, shape), Tree(model).shared
    return [joint for path in paths(model, ActivationSpec(shape)) for joint in _joints(path, known, shared)]


def _joints(path: list[Place], known: dict[Linear | Conv2d, Place], shared: frozenset[Any]) -> Iterator[Joint]:
    source: Linear | Conv2d | None = None
    passed: list[Place] = []
    for i, place in enumerate(path):
        if place.layer not in known:
            passed.append(place)
            continue
        after = path[i + 1].layer if i + 1 < len(path) else None
        norm = after if after is not None and after.acts_as(*NORMS) else None
        parts = filter(None, (source, *(one.layer for one in passed), place.layer, norm))
        alone = shared.isdisjoint(tensor for part in parts for _, tensor, _ in part.named())
        given = passed[0].spec if passed else place.spec
        yield _joint(source if alone else None, tuple(passed), place, after, given)
        source, passed = place.layer, []


def _joint(
    source: Linear | Conv2d | None, passed: tuple[Place, ...], place: Place, after: Layer | None, spec: ActivationSpec
) -> Joint:
    """Return the joint before `place`; it has the source if each unit passes from there to the reader independently."""
    reader = place.layer
    inputs = reader.weight.shape[1]
    alone = Joint(None, passed, place, after, spec, np.arange(inputs))
    through = alone.between[:-1] if alone.select else alone.between
    if source is None or not all(layer.passes_units for layer in through):
        return alone
    units, features = source.weight.shape[0], alone.select.plan.n if alone.select else inputs
    images = len(spec.shape) == 4
    flattened = images and isinstance(reader, Linear) and any(layer.acts_as(Flatten) for layer in through)
    if (
        not (len(spec.shape) == 2 or flattened or (images and isinstance(reader, Conv2d)))
        or features % units
        or (features != units and not flattened)
    ):
        return alone
    owner = np.repeat(np.arange(units), features // units)
    return dataclasses.replace(alone, source=source, owner=owner[alone.select.plan.indices()] if alone.select else owner)
