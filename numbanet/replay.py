"""Replay: a pass that came before, forward and backward, is done again as the device recorded it (`numbanet_kernels.graph`).

With the same plans and the same number of samples a pass is the same launches on the same arrays: only what is in them is new.
On a card a small one takes less time than Python takes to launch it, and a graph is launched at once. Plans come again: there
are few patterns, and each that was met twice is recorded.
"""
from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .device import Device
from .tensor import Tensor


class Replay:
    """The recorded passes of one training run.

    Parameters
    ----------
    dev : Device
        Where they run.
    parameters : sequence of Tensor
        What they leave gradients in.
    possible : bool, default=True
        Whether passes may be replayed at all: not where a layer might do something else each time.
    """

    HELD = 1 << 30  # bytes that recorded passes may hold: those of 100 patterns of two layers of 4096 neurons
    MET = 1 << 14   # patterns that are remembered

    def __init__(self, dev: Device, parameters: Sequence[Tensor], possible: bool = True) -> None:
        self.dev, self.parameters = dev, parameters
        self.possible = possible and dev.record(lambda: None) is not None
        self.held = 0
        self._met: collections.OrderedDict[Hashable, tuple | None] = collections.OrderedDict()
        self._places: dict[tuple, Any] = {}

    def place(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array in which passes find an input of this name and shape; None where nothing is replayed."""
        if not self.possible:
            return None
        key = name, tuple(shape), dtype
        if key not in self._places:
            self._places[key] = self.dev.empty(shape, dtype)
        return self._places[key]

    def put(self, name: str, values: Any) -> Any:
        """An input on the device, in its place; None for None."""
        if values is None:
            return None
        if not self.possible:
            return self.dev.upload(values)
        return self.dev.copy(values, out=self.place(name, values.shape, values.dtype))

    def __call__(self, key: Hashable, work: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """The two arrays that work() returns, which leaves gradients: computed, or replayed where this key was met before.

        The key says all that decides what is launched, and None that nothing does; inputs are in their places.
        """
        if not self.possible or key is None:
            return work()
        if key not in self._met:
            self._remember(key, None)
            return work()
        found = self._met[key] or self._recorded(key, work)
        if found is None:
            return work()
        self._met.move_to_end(key)
        graph, gradients = found
        graph.replay()
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.gradient = gradient
        return tuple(self.dev.copy(array) for array in graph.result)  # the next replay writes to the same arrays

    def _recorded(self, key: Hashable, work: Callable[[], tuple[Any, Any]]) -> tuple | None:
        try:
            graph = self.dev.record(work)
        except Exception as error:  # whatever a driver does not like, or memory that is short: training goes on without
            warnings.warn(f"passes are not replayed: {type(error).__name__}: {error}", stacklevel=2)
            self.possible = False
            self._met.clear()
            graph = None
        found = None if graph is None or graph.nbytes > self.HELD else (graph, [p.gradient for p in self.parameters])
        if found:
            self._remember(key, found)
        else:
            for parameter in self.parameters:
                parameter.zero_grad()  # nothing was computed
        return found

    def _remember(self, key: Hashable, found: tuple | None) -> None:
        self._met[key] = found
        self._met.move_to_end(key)
        self.held += found[0].nbytes if found else 0
        while self.held > self.HELD or len(self._met) > self.MET:
            _, oldest = self._met.popitem(last=False)
            self.held -= oldest[0].nbytes if oldest else 0
