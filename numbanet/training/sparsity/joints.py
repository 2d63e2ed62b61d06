"""Joints: the places in a model where units may leave, found by walking the tree of its layers.

Units leave between two layers of a path. A path is a list of layers that run one after the other: what one gives goes to the
next, and nowhere else. The model is one, with all `Sequential`s in it.

One batch of zeros shows which layers a user's own layer calls, such as a residual block. A `Sequential` that it calls once,
without calling any of its layers directly as well, is a path of its own. The width of its inputs and outputs stays, because
other layers may depend on it. Units do not leave layers that are called one by one: what their outputs are used for is unknown.
A user's layer that uses the weight of a layer in such a `Sequential`, besides calling it, is not noticed.
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
    """A layer in the list of a `Sequential`, and what comes to it."""

    chain: Sequential
    layer: Any
    spec: ActivationSpec

    def replace(self, *layers: Layer, before: int = 0) -> None:
        """Put others here, in place of the layer and of so many in front of it."""
        index = self.chain.layers.index(self.layer)
        self.chain.layers[index - before : index + 1] = layers


@dataclasses.dataclass(frozen=True)
class Joint:
    """Where units may leave: between two layers with weights, or in front of the first.

    Attributes
    ----------
    source : Linear, Conv2d or None
        The layer whose units these are; None where they are not those of a layer that is known, or where what changes as they
        leave is used elsewhere, too: biases, batch norms.
    passed : tuple of Place
        What they pass through, each by itself.
    place : Place
        Of what reads them.
    after : Layer or None
        The layer behind the reader.
    spec : ActivationSpec
        What the source gives.
    owner : ndarray
        Of each input of the reader, the unit that it comes from; without a source itself.
    """

    source: Linear | Conv2d | None
    passed: tuple[Place, ...]
    place: Place
    after: Layer | None
    spec: ActivationSpec
    owner: np.ndarray

    @property
    def reader(self) -> Linear | Conv2d:
        """What reads the units."""
        return self.place.layer

    @property
    def between(self) -> tuple[Layer, ...]:
        """The layers that the units pass through."""
        return tuple(place.layer for place in self.passed)

    @property
    def flat(self) -> bool:
        """Whether the reader's input is (N, features), so that a `Select` may stand before it."""
        return len(self.place.spec.shape) == 2

    @property
    def select(self) -> Select | None:
        """The features that the reader is given, where they are selected right before it."""
        before = self.passed[-1] if self.passed else self.place
        return before.layer if before.chain is self.place.chain and before.layer.acts_as(Select) else None

    @property
    def pixels(self) -> int:
        """How many features a unit has where the reader, or a `Select` before it, takes them."""
        inputs = self.select.plan.n if self.select else self.owner.size
        return inputs // self.source.weight.shape[0] if self.source else 1


def trainable(model: Layer) -> list[Linear | Conv2d]:
    """The layers whose weights may be changed, in the tree's order: `Linear` and `Conv2d` without groups, and subclasses of
    these, that train and share no weight."""
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
    """Layers that run one after the other, the outer ones first, where what comes to a layer is of this shape."""
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
        elif isinstance(layer, Sequential):  # `super().__call__`: its layers, with something done before or after
            yield from _paths_of(layer, ActivationSpec(shape))


def _paths_of(chain: Any, spec: ActivationSpec) -> Iterator[list[Place]]:
    path = list(_places(chain, spec))
    yield path
    for place in path:
        yield from paths(place.layer, place.spec)


def _places(chain: Any, spec: ActivationSpec) -> Iterator[Place]:
    """The layers of a `Sequential` and of those in it, which are parts of it."""
    for layer in chain.layers:
        if layer.acts_as(Sequential):
            yield from _places(layer, spec)
        else:
            yield Place(chain, layer, spec)
        spec = layer.cost(spec, Plans())[1]


def places(model: Layer, shape: tuple[int, ...]) -> dict[Linear | Conv2d, Place]:
    """Where the layers are whose shapes may change, for inputs of a shape (N, …): those that do what a `Linear` or `Conv2d`
    does, and that stand in a path."""
    known = set(trainable(model))
    found = (place for path in paths(model, ActivationSpec(shape)) for place in path)
    return {place.layer: place for place in found if place.layer in known and place.layer.acts_as(Linear, Conv2d)}


def joints(model: Layer, shape: tuple[int, ...]) -> list[Joint]:
    """Front to back, those inside of layers after those of the path that these stand in; for inputs of a shape (N, …)."""
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
    """With the source, where each of its units passes to the reader by itself."""
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
