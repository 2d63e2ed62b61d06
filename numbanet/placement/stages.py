"""The stages of a model: which top-level layers run together, their shapes and costs; and the functions that run them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import check_count
from ..layers import LSTM, ActivationSpec, Context, Cost, Flow, LastStep, Layer, Linear, ReLU, Sequential
from ..plans import Plans
from ..tensor import Tensor
from .table import Stage

BATCH = 64  # samples of a batch if only the name of a network is given


class Part(NamedTuple):
    """The layers from `first` on that run together, and the function that applies them."""

    first: int
    layers: tuple[Layer, ...]
    act: Callable[[Flow, Context], Flow]
    before: frozenset[int] = frozenset()  # the ids of the tensors of earlier parts

    @property
    def trained(self) -> list[Tensor]:
        """The parameters of the layers that are not frozen, each of them once."""
        return list({id(p): p for layer in self.layers for p in layer.parameters() if p.requires_grad}.values())

    @property
    def updated(self) -> list[Tensor]:
        """The trained parameters that no earlier part has: a parameter that several parts share is updated once in a step."""
        return [p for p in self.trained if id(p) not in self.before]

    @property
    def frozen(self) -> list[Tensor]:
        """The frozen parameters that no earlier part has, each of them once."""
        found = {id(p): p for layer in self.layers for p in layer.parameters() if not p.requires_grad}
        return [p for key, p in found.items() if key not in self.before]

    @property
    def tensors(self) -> set[int]:
        """The ids of all parameters and buffers of the layers."""
        return {id(tensor) for layer in self.layers for _, tensor, _ in layer.named()}

    def __call__(self, flow: Flow, context: Context) -> Flow:
        """Apply the layers, as `Sequential` does."""
        return self.act(flow.before(self.layers[0].commutes), context)


def parts(model: Sequential) -> Iterator[Part]:
    """Yield the parts of a model: layers that are fused are one part, because they must run on one device."""
    before: frozenset[int] = frozenset()
    for first, end, act in model.stages():
        part = Part(first, tuple(model.layers[first:end]), act, before)
        before |= part.tensors
        yield part


def stages(model: Sequential, shape: Sequence[int], plans: Plans | None = None) -> list[tuple[Stage, Cost]]:
    """Return the stages of a model for a batch of this shape, and the cost of each under `plans`.

    Raises
    ------
    ValueError
        If a layer cannot take the batch.
    """
    found, spec, together = [], ActivationSpec(tuple(shape)), list(parts(model))
    for part, group in zip(together, groups(together), strict=True):
        cost, given = Cost(), spec
        for layer in part.layers:
            own, spec = layer.cost(spec, plans or Plans())
            cost = cost.plus(own)
        paths = tuple(str(part.first + i) for i in range(len(part.layers)))
        stage = Stage(
            paths[0],
            paths,
            " + ".join(map(repr, part.layers)),
            " + ".join(map(kind, part.layers)),
            tuple(n or 1 for n in given.shape),
            tuple(n or 1 for n in spec.shape),
            sum(parameter.size for parameter in part.trained),
            given.differentiable,
            group,
            frozen=sum(parameter.size for parameter in part.frozen),
            shared=sum(parameter.size for parameter in part.trained if id(parameter) in part.before),
        )
        found.append((stage, cost))
    return found


def groups(found: Sequence[Part]) -> list[str]:
    """Return the group of each part (`Stage.group`): parts that share a tensor, directly or through others, are one group."""
    joined: list[tuple[set[int], list[int]]] = []  # tensors, and numbers of the parts
    for number, part in enumerate(found):
        tensors, members = part.tensors, [number]
        for other in [each for each in joined if each[0] & tensors]:
            joined.remove(other)
            tensors, members = tensors | other[0], other[1] + members
        joined.append((tensors, members))
    names = [""] * len(found)
    for _, members in joined:
        for number in members if len(members) > 1 else ():
            names[number] = str(found[min(members)].first)
    return names


def kind(layer: Layer) -> str:
    """Return the type of a layer and the size of its window, with its stride if that is neither 1 nor the size."""
    name, window = type(layer).__name__, getattr(layer, "window", None)
    if not isinstance(window, tuple):
        return name
    size, stride = window[0], window[1] if len(window) > 2 else 1
    return f"{name} {_pair(size)}" + (f" / {_pair(stride)}" if _pair(stride) not in ("1x1", _pair(size)) else "")


def _pair(value: Any) -> str:
    return "x".join(map(str, value if isinstance(value, tuple) else (value, value)))


def network(model: str | Layer | Sequence[Layer], shape: Sequence[int] | None) -> tuple[Sequential, tuple[int, ...], str]:
    """Return a model, the shape of its batch, and its name.

    Parameters
    ----------
    model : str, Layer or sequence of Layer
        "lenet5", "alexnet", "vgg19", "lstm", or layers.
    shape : sequence of int or None
        Shape of a batch. It may be left out for a name: then it is a batch of samples of the network's usual size.

    Raises
    ------
    ValueError
        If there is no such network, there are no layers, or the shape is none of a batch.
    TypeError
        If the model is none of these.
    """
    if shape is not None:
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise ValueError(f"profile: shape must be the shape of a batch, such as (64, 784), got {shape!r}")
        shape = [check_count("profile: each size in shape", size) for size in shape]
        if not shape:
            raise ValueError("profile: shape must have the number of samples at least, such as (64, 784), got ()")
    if isinstance(model, str):
        zoo = importlib.import_module("..estimators.zoo", __package__)  # found when it is asked for, because it stands above
        named = {**zoo.MODELS, "lstm": lstm}
        if model not in named:
            raise ValueError(f"there is no network {model!r}; choose one of {', '.join(map(repr, named))}")
        make = named[model]
        shape = tuple(shape or (BATCH, *next(iter(inspect.signature(make).parameters.values())).default))
        return Sequential(make(shape[1:], rng=0)), shape, model
    if shape is None:
        raise ValueError("profile: shape, the shape of a batch, is needed for a model that is given by its layers")
    return sequential("profile", model), tuple(shape), "model"


def sequential(owner: str, model: Layer | Sequence[Layer]) -> Sequential:
    """Return a model of one layer or several. Raise an error that begins with `owner` if there are none."""
    if isinstance(model, Layer) and not isinstance(model, Sequential):
        model = [model]
    if isinstance(model, str) or not isinstance(model, Iterable | Sequential):
        raise TypeError(f"{owner}: model must be a Sequential, a layer or a list of layers, got {model!r}")
    found = model if isinstance(model, Sequential) else Sequential(list(model))
    if not found.layers:
        raise ValueError(f"{owner}: the model has no layers; give one at least")
    return found


def lstm(shape: Sequence[int] = (28, 28), classes: int = 10, rng: np.random.Generator | int | None = None) -> list[Layer]:
    """Return the layers of a classifier of sequences: two LSTMs of 128, and linear layers of 64 and `classes`. By default a
    sequence has 28 vectors of 28 values, as the rows of an image of MNIST have."""
    if len(shape) != 2:
        raise ValueError(f"lstm: the shape of a sequence must be (T, features), such as (28, 28), got {tuple(shape)}")
    rng, (_, features) = np.random.default_rng(rng), shape
    recurrent = [LSTM(features, 128, batch_first=True, rng=rng), LSTM(128, 128, batch_first=True, rng=rng), LastStep()]
    return [*recurrent, Linear(128, 64, rng=rng), ReLU(), Linear(64, classes, init="glorot", rng=rng)]
