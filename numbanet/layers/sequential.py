"""Sequential: applies layers one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..device import Device, device
from ..plans import DevicePlan, Site
from ..tensor import Tensor
from .base import Layer, to
from .context import Context
from .flow import NO_TAGS, Cost, Flow
from .spanning import Spanning
from .summary import summary
from .tree import Tree

# the way out, if dropout is in a list of layers
DROPOUT_IS_NO_LAYER = (
    "it is a kind of dropout: give the estimator the layers alone, and dropout='rdp', dropout_rate=0.5 for what it drops "
    "between them"
)


class Sequential(Layer):
    """Applies layers one after the other. Activations stay compact between layers that support it.

    Parameters
    ----------
    layers : sequence of Layer
        The layers; each maps a tensor to a tensor. The list `layers` may be changed later.

    Raises
    ------
    TypeError
        If an element is not a layer, or defines neither `__call__` nor `forward`.
    """

    recordable = True
    chain = True

    def __init__(self, layers: Sequence[Layer], *others: Layer) -> None:
        if others:
            raise TypeError("Sequential takes one list of layers: Sequential([first, second, ...])")
        self.layers = list(layers)
        self.spanning: Spanning | None = None  # if the layers are on several devices
        # the shape of a sample and the policy that `expect` set
        self._expected: tuple[tuple[int | None, ...] | None, Any] = (None, None)
        for layer in self.layers:
            if not isinstance(layer, Layer):
                # a policy of this library, or a layer of another one
                dropout = any("Dropout" in kind.__name__ for kind in type(layer).__mro__)
                way_out = DROPOUT_IS_NO_LAYER if dropout else "make a subclass of numbanet.Layer that calls it"
                if isinstance(layer, type) and issubclass(layer, Layer):
                    way_out = f"make an object of the class: {layer.__name__}(...)"
                raise TypeError(f"Sequential: {layer!r} is not a Layer; {way_out}")
            if type(layer).__call__ is Layer.__call__ and type(layer).forward is Layer.forward:
                raise TypeError(f"Sequential: {type(layer).__name__} defines neither __call__(x) nor forward(flow, context)")

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int | slice) -> Layer:
        """Return a layer; if the index is a slice, return a `Sequential` of the chosen layer objects."""
        return Sequential(self.layers[index]) if isinstance(index, slice) else self.layers[index]

    @property
    def symbols(self) -> int | None:
        return self.layers[0].symbols if self.layers else None

    @property
    def padding(self) -> int | None:
        return self.layers[0].padding if self.layers else None

    @property
    def records(self) -> bool:
        return super().records and self.spanning is None and all(layer.records for layer in self.layers)

    def _stages(self) -> Iterator[tuple[Layer, Callable[[Flow, Context], Flow]]]:
        """Yield (its first layer, function that applies it) for each stage, on the devices of the layers."""
        for first, end, stage in self.stages():
            yield self.layers[first], stage if self.spanning is None else self.spanning.stage(first, end, stage)

    def stages(self) -> Iterator[tuple[int, int, Callable[[Flow, Context], Flow]]]:
        """Yield (index of its first layer, index after its last one, function that applies it) for each stage. Layers that are
        fused are one stage; they are on one device.
        """
        i = 0
        while i < len(self.layers):
            first = i
            stage: Callable[[Flow, Context], Flow] = self.layers[i].forward
            fuse: Callable[[Layer], Callable[[Flow, Context], Flow] | None] | None = self.layers[i].fuse_with
            i += 1
            while fuse and i < len(self.layers) and self._adjacent(i) and (fused := fuse(self.layers[i])):
                stage, fuse, i = fused, getattr(fused, "fuse_with", None), i + 1
            yield first, i, stage

    def _adjacent(self, i: int) -> bool:
        """Return True if layer i is on the device of the layer before it."""
        return self.spanning is None or self.spanning.devices[i - 1] is self.spanning.devices[i]

    def forward(self, flow, context):
        return self._pass(self._stages(), flow, context)

    @staticmethod
    def _pass(stages: Iterable[tuple[Layer, Callable[[Flow, Context], Flow]]], flow: Flow, context: Context) -> Flow:
        for layer, stage in stages:
            tags, flow = flow.tags, stage(flow.before(layer.commutes), context)
            if flow.tags is NO_TAGS and tags is not NO_TAGS:  # a layer returned a flow without tags, so they are added again
                flow = flow._replace(tags=tags)
        return flow

    def before_last(self, flow: Flow, context: Context) -> tuple[Flow, Callable[[Flow], Flow]]:
        """Apply all layers but the last one. Return the input of the last layer, and a function that applies the last layer to
        this input or to some of its samples.
        """
        *stages, (last, act) = self._stages() if self.layers else [(self, lambda flow, context: flow)]
        flow = self._pass(stages, flow, context)
        return flow, lambda flow: act(flow.before(last.commutes), context)

    def children(self):
        return ((str(i), layer) for i, layer in enumerate(self.layers))

    def droppable(self, kind: str = "output", answer: bool = False) -> tuple[Site, ...]:
        """Return the sites of the kind `kind` for which a policy makes plans (`Tree.droppable`)."""
        return Tree(self).droppable(kind, answer)

    def cost(self, spec, plans):
        total = Cost()
        for layer in self.layers:
            part, spec = layer.cost(spec, plans)
            total = total.plus(part)
        return total, spec

    def reads(self, plans, symbols=None):
        parts: dict[Tensor, DevicePlan] = {}
        for i, layer in enumerate(self.layers):
            parts.update(layer.reads(plans, None if i else symbols))
        return parts

    def config(self):
        return {"layers": self.layers}

    def span(self, devices: Sequence[str | Device]) -> None:
        """Move each layer to its device, in place; if it is one device for all layers, this is the same as `to`.

        Raises
        ------
        ValueError
            If there are not as many devices as layers.
        """
        chosen = [device(name) for name in devices]
        if len(chosen) != len(self.layers):
            raise ValueError(f"span: {len(chosen)} devices for {len(self.layers)} layers; give one device for each layer")
        for layer, dev in zip(self.layers, chosen):
            to(layer, dev)
        self.spanning = Spanning(chosen) if len(set(chosen)) > 1 else None

    def expect(self, shape: tuple[int | None, ...], policy: Any = None) -> None:
        """Set the sample shape and the policy that `print(model)` shows."""
        self._expected = tuple(shape), policy

    def __str__(self) -> str:
        """Return a table of the layers (`summary`)."""
        return summary(self, *self._expected)

    def __repr__(self) -> str:
        return f"Sequential([{', '.join(map(repr, self.layers))}])"
