"""Sequential: a loop over layers, which knows none of them by name."""
from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence

from ..plans import Kept
from ..tensor import Tensor
from .base import Cost, Flow, Layer
from .step import Site, Step


class Sequential(Layer):
    """Layers one after the other; activations between them stay compact where layers take them so.

    Parameters
    ----------
    layers : sequence of Layer
        Each maps a tensor to a tensor. The list may be changed later.

    Raises
    ------
    TypeError
        If one of them is no layer, or defines neither `__call__` nor `forward`.
    """

    recordable = True

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers, self._found = list(layers), None
        for layer in self.layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"Sequential: {layer!r} is not a Layer; make a subclass of numbanet.Layer that calls it")
            if type(layer).__call__ is Layer.__call__ and type(layer).forward is Layer.forward:
                raise TypeError(f"Sequential: {type(layer).__name__} defines neither __call__(x) nor forward(flow, step)")

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, place: int | slice) -> Layer:
        """A layer, or some of them as a `Sequential`; they stay the same layers."""
        return Sequential(self.layers[place]) if isinstance(place, slice) else self.layers[place]

    @property
    def symbols(self) -> int | None:
        return self.layers[0].symbols if self.layers else None

    @property
    def records(self) -> bool:
        return super().records and all(layer.records for layer in self.layers)

    def _stages(self) -> Iterator[tuple[Layer, Callable[[Flow, Step], Flow]]]:
        """Each layer with what it does, those that are fused together."""
        i = 0
        while i < len(self.layers):
            layer = self.layers[i]
            both = layer.absorb(self.layers[i + 1]) if i + 1 < len(self.layers) else None
            yield layer, both or layer.forward
            i += 2 if both else 1

    def forward(self, flow, step):
        flow, last = self.before_last(flow, step)
        return last(flow)

    def before_last(self, flow: Flow, step: Step) -> tuple[Flow, Callable[[Flow], Flow]]:
        """(what comes to the last layer, what that layer does with it, or with some samples of it)"""
        def does(flow: Flow, layer: Layer, stage: Callable[[Flow, Step], Flow]) -> Flow:
            flow = flow if all(map(layer.commutes, flow.due)) else flow.settled()
            if flow.sampled is not None and not layer.commutes(flow.sampled.plan):
                flow = Flow(flow.dense())
            return stage(flow, step)

        *stages, last = self._stages() if self.layers else [(self, lambda flow, step: flow)]
        for stage in stages:
            flow = does(flow, *stage)
        return flow, lambda flow: does(flow, *last)

    def _facts(self) -> tuple:
        """(layers, what `droppable` gives by kind, tensors that several layers have), found once for these layers."""
        layers = tuple(self.layers)
        if self._found is None or self._found[0] != layers:
            kinds: dict[str, list[Site]] = {}
            for site in self.sites():
                own = kinds.setdefault(site.kind, [])
                own.append(site._replace(number=len(own)))
            uses = collections.Counter(tensor for _, tensor, _ in self.named())
            self._found = (layers, {kind: tuple(sites) for kind, sites in kinds.items()},
                           frozenset(tensor for tensor, count in uses.items() if count > 1))
        return self._found

    def reshaped(self) -> None:
        """Layers have weights of another shape now: what was found out about them is forgotten."""
        self._found = None

    def sites(self):
        return tuple(site for layer in self.layers for site in layer.sites())

    def droppable(self, kind: str = "output", answer: bool = False) -> tuple[Site, ...]:
        """The sites of a kind that a policy has plans for, numbered; without `answer`, of outputs and tiles all but the last,
        which gives the answer."""
        found = self._facts()[1].get(kind, ())
        return found if answer or kind not in ("output", "tiles") else found[:-1]

    def cost(self, form, step):
        total = Cost()
        for layer in self.layers:
            own, form = layer.cost(form, step)
            total = total.plus(own)
        return total, form

    def reads(self, step):
        """Of a weight that several layers use, all is read."""
        found: dict[Tensor, Kept] = {}
        for i, layer in enumerate(self.layers):
            found.update(layer.reads(step))
            step = step if i else step.inner()
        shared = self._facts()[2]
        return {weight: kept for weight, kept in found.items() if weight not in shared}

    def check_state(self, arrays):
        for layer in self.layers:
            layer.check_state(arrays)

    def named(self):
        for i, layer in enumerate(self.layers):
            yield from ((f"{i}.{name}", tensor, trained) for name, tensor, trained in layer.named())

    def __repr__(self) -> str:
        return f"Sequential([{', '.join(map(repr, self.layers))}])"
