"""Guesses: estimates of a layer's outputs by random projection, for `DynamicSparseGraph`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.layouts.ternary import Ternary, ternary

from ..device import Device
from ..tensor import Tensor

ROWS = 256  # rows of a weight that are projected together: with fewer, calls would cost too much


def johnson_lindenstrauss(outputs: int, epsilon: float) -> int:
    """Return k = floor(4 ln n / (epsilon² / 2 - epsilon³ / 3)) for n = outputs. A projection to k dimensions can preserve the
    distances of n points up to a factor of 1 ± epsilon (Dasgupta & Gupta 2003, theorem 2.1).
    """
    return max(int(4 * math.log(outputs) / (epsilon**2 / 2 - epsilon**3 / 3)), 1)


class Projections:
    """f(w) and its packed form for each weight. Recorded steps that read these arrays have this object in their keys."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[Any, Any]] = {}  # by the id of the weight, deleted with the weight

    def follow(self, w: Tensor) -> None:
        """Delete what is stored for a weight, which is new here, when the weight is deleted."""
        if id(w) not in self.by_id:
            weakref.finalize(w, self.by_id.pop, id(w), None).atexit = False


class Guesses:
    """Computes estimated outputs f(x) . f(w) + b, and caches the projections f(w). A row of f(w) is recomputed after at most
    `refresh` uses; if `refresh` is None, it is computed once.
    """

    def __init__(self, epsilon: float, refresh: int | None, seed: int, projections: Projections | None = None) -> None:
        self.epsilon, self.refresh, self.seed, self._flops = epsilon, refresh, seed, 0.0
        self.projections = Projections() if projections is None else projections
        self._uses: dict[int, int] = {}  # of these projections, by id of the weight
        self._prepared = False  # whether `prepare` is called before each use

    def restarted(self) -> Guesses:
        """Return the same estimates for another epoch, which projects all weights again, into the same arrays."""
        return type(self)(self.epsilon, self.refresh, self.seed, self.projections)

    def prepare(self, weights: Sequence[Tensor], finish: Callable[[], None]) -> None:
        """Project the rows of the weights that the next step needs; finish() is called before."""
        self._prepared = True
        for w in weights:
            inputs, k = math.prod(w.shape[1:]), johnson_lindenstrauss(w.shape[0], self.epsilon)
            if k < inputs:
                self._renew(w, _lists(k, inputs, self.seed, w.device), k, finish)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context in which no FLOPs are counted."""
        before = self._flops
        try:
            yield
        finally:
            self._flops = before

    def scores(self, sets: Sequence[Any], w: Tensor, bias: Tensor | None) -> Any:
        """Return the scores (number of sets, O) for w (O, …): for each set of samples (S, I), the sum of the estimated outputs
        of each neuron, after ReLU, over the samples.
        """
        dev, stops = w.device, list(itertools.accumulate((part.shape[0] for part in sets), initial=0))
        x, weights, packed = self._before(sets[0] if len(sets) == 1 else dev.concatenate(sets, 0), w)
        parts = [
            dev.scores(dev.part(x, *ends), weights, None if bias is None else bias.data, packed)
            for ends in itertools.pairwise(stops)
        ]
        parts = [dev.reshape(part, (1, w.shape[0])) for part in parts]
        return parts[0] if len(sets) == 1 else dev.concatenate(parts, 0)

    def outputs(self, x: Any, w: Tensor, bias: Tensor | None) -> Any:
        """Return the estimated outputs (N, O) for samples x (N, I)."""
        x, weights, _ = self._before(x, w)
        return w.device.gemm(x, weights, tb=True, bias=None if bias is None else bias.data)

    def _before(self, x: Any, w: Tensor) -> tuple[Any, Any, Any]:
        """Return f(x), f(w), and f(w) packed for the operation `scores` of the device. If it is less work to multiply x and w
        themselves, return x and w instead of f(x) and f(w).
        """
        dev, (outputs, inputs) = w.device, (w.shape[0], math.prod(w.shape[1:]))
        k, weights, packed = johnson_lindenstrauss(outputs, self.epsilon), dev.reshape(w.data, (outputs, inputs)), None
        if k < inputs:
            lists = _lists(k, inputs, self.seed, dev)
            if not (self._prepared and id(w) in self._uses):
                self._renew(w, lists, k)
            weights, packed = self.projections.by_id[id(w)]
            x = dev.project(x, lists, k)
            self._flops += x.shape[0] * lists.columns.size
        self._flops += 2.0 * x.shape[0] * x.shape[1] * outputs
        return x, weights, packed

    def _renew(self, w: Tensor, lists: Ternary, k: int, finish: Callable[[], None] = lambda: None) -> None:
        """Project the rows that are due; finish() is called before, if there are any."""
        self.projections.follow(w)
        projected, outputs = self.projections.by_id.get(id(w)), w.shape[0]
        if projected is not None and tuple(projected[0].shape) != (outputs, k):
            projected = None
        uses = 0 if projected is None else self._uses.get(id(w), 0)
        rows = self._due(uses, outputs) if uses else slice(0, outputs)
        if count := len(range(*rows.indices(outputs))):
            finish()
            matrix = w.device.reshape(w.data, (outputs, math.prod(w.shape[1:])))
            self.projections.by_id[id(w)] = _anew(w.device, projected, matrix, rows, lists, k)
            self._flops += count * lists.columns.size
        self._uses[id(w)] = uses + 1

    def projection(self, w: Tensor) -> tuple[int, Any] | None:
        """Return (number of uses, f(w) on the host) of a weight; None if it was not used since the epoch began."""
        uses = self._uses.get(id(w))
        return None if uses is None else (uses, np.array(w.device.download(self.projections.by_id[id(w)][0])))

    def project(self, w: Tensor, uses: int, projected: Any) -> None:
        """Set what `projection` returned."""
        self.projections.follow(w)
        given = w.device.upload(projected)
        self.projections.by_id[id(w)], self._uses[id(w)] = (given, w.device.scores_packed(given)), uses

    def _due(self, uses: int, outputs: int) -> slice:
        """Return the rows to project again in use number `uses`, so that each row is projected once in `refresh` uses."""
        if self.refresh is None:
            return slice(0)
        together = math.ceil(outputs / self.refresh / ROWS) * ROWS
        first = uses % self.refresh * together
        return slice(first, first + together)

    def pop_flops(self) -> float:
        """Return the number of FLOPs since the last call; an addition counts as one."""
        flops, self._flops = self._flops, 0.0
        return flops

    def __reduce__(self) -> tuple:
        return type(self), (self.epsilon, self.refresh, self.seed)


def _anew(dev: Device, before: tuple[Any, Any] | None, matrix: Any, rows: slice, lists: Ternary, k: int) -> tuple[Any, Any]:
    """Return f(w) and its packed form, in which the rows `rows` are projected again; `before` holds the previous values of
    both, or is None.
    """
    if before is None:
        projected = dev.project(matrix, lists, k)
        return projected, dev.scores_packed(projected)
    first, stop, _ = rows.indices(matrix.shape[0])
    part = dev.project(dev.part(matrix, first, stop), lists, k)
    packed = dev.scores_packed(part, before[1], first)
    if packed is not before[0]:  # otherwise the rows are already in place
        dev.copy(part, out=dev.part(before[0], first, stop))
    return before[0], packed


@functools.lru_cache(maxsize=64)
def _lists(k: int, inputs: int, seed: int, dev: Device) -> Ternary:
    """Return the index lists of the random matrix R of the projection, on the device."""
    return Ternary(*map(dev.upload, ternary(k, inputs, seed)))
