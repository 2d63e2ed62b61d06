"""Queue: recorded steps that wait, so that several of them are done at once (`Device.replay`).

A small step takes less time than the interpreter takes to start it. Nothing of a waiting step has been computed; what it needs
lies in arrays of its own: indices of samples, targets, numbers of the update, and lists of plans.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..device import Device
from ..tensor import Tensor
from .data import Batch


class Pages:
    """Arrays for the results of many steps, which a recorded step leaves in memory that the next one overwrites."""

    SIZE = 64  # steps for which arrays are allocated at once

    def __init__(self, results: Sequence[Any], dev: Device) -> None:
        self.results, self.dev = results, dev
        self.left: Iterator[Any] = iter(())

    def next(self) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """(arrays for the results of a step, the copies that fill them)"""
        pair = next(self.left, None)
        if pair is None:
            self.left = self._allocated()
            pair = next(self.left)
        return pair

    def _allocated(self) -> Iterator[tuple[list[Any], list[tuple[Any, Any]]]]:
        dev, given, lengths = self.dev, [], [math.prod(array.shape[:1]) for array in self.results]
        pages = [dev.empty((self.SIZE * n, *array.shape[1:]), array.dtype) for n, array in zip(lengths, self.results)]
        places, given = [dev.places(page, self.SIZE) for page in pages], [dev.place(array) for array in self.results]
        for i, there in enumerate(zip(*places)):
            parts = [dev.part(page, i * n, i * n + n) for page, n in zip(pages, lengths)]
            scalars = [part if array.shape else dev.reshape(part, ()) for part, array in zip(parts, self.results)]
            yield scalars, list(zip(given, there))


class Ready(NamedTuple):
    """A recorded step, passes and update, that is done again while nothing but batches, plans and numbers change."""

    graph: Any
    fetch: Any  # recorded as well: takes the batch's rows of the samples
    samples: Any
    rows: Any  # the place of the buffer of their indices
    update: Hashable  # what decides how the optimiser updates, apart from its numbers
    state: Any  # of the optimiser: another one has other arrays
    tensors: list[tuple[Tensor, Any, bool]]  # of the model: with their arrays, and whether they are trained
    trained: list[bool]  # by the parameters of the optimiser, whether they have a gradient
    targets: Any  # the places of the buffers that are read
    weights: Any
    numbers: list[Any]
    pages: Pages  # for the results


class Queue:
    """The steps that wait.

    Parameters
    ----------
    dev : Device
    numbers : dict of int to tuple
        The numbers of updates in the buffers, by place, after the last step in the queue.
    """

    SECONDS = 0.005  # of steps that are done at once: signals wait until their end
    MOST = 64  # steps that are done at once

    def __init__(self, dev: Device, numbers: dict[int, tuple[float, ...]]) -> None:
        self.dev, self.numbers = dev, numbers
        self.waiting: list[Any] = []  # arguments of `Device.replay`
        self.count, self.most = 0, 1  # steps that wait, and how many of them are done at once
        self._pages: dict[
            tuple[int, int], tuple[np.ndarray, list[Any]]
        ] = {}  # numbers of each step that waits, and their places

    def put(
        self, ready: Ready, numbers: Sequence[tuple[float, ...]], batch: Batch, lists: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        """Add a step; returns arrays that have its results after `finish`, which is called when enough steps wait.

        Parameters
        ----------
        ready : Ready
        numbers : sequence of tuple of float
            Of the update (`Optimizer.changing`).
        batch : Batch
            Not fetched yet.
        lists : sequence of (array, array)
            Lists of plans, and the buffers where the recorded step reads them.
        """
        waiting = self.waiting
        waiting += self._new(ready, numbers)
        waiting += (batch.inputs, ready.rows), (batch.targets, ready.targets)
        if ready.weights is not None:
            waiting.append((batch.weights, ready.weights))
        waiting += lists
        waiting += ready.fetch, ready.graph
        results, copies = ready.pages.next()
        waiting += copies
        self.count += 1
        if self.count >= self.most:
            self.finish()
        return results

    def _new(self, ready: Ready, numbers: Sequence[tuple[float, ...]]) -> Iterator[tuple[Any, Any]]:
        """The copies of the numbers that are not those of the step before."""
        for place, own in enumerate(numbers):
            if self.numbers.get(place) != own:
                self.numbers[place] = own
                key = place, len(own)
                if key not in self._pages:
                    page = np.zeros((self.MOST, len(own)), np.float32)
                    self._pages[key] = page, self.dev.places(page, self.MOST)
                page, places = self._pages[key]
                page[self.count] = own
                yield places[self.count], ready.numbers[place]

    def finish(self) -> None:
        """Do the steps that wait."""
        if not self.count:
            return
        waiting, count, self.waiting, self.count = self.waiting, self.count, [], 0
        began = time.perf_counter()
        self.dev.replay(waiting)
        seconds = (time.perf_counter() - began) / count
        self.most = max(1, min(self.MOST, int(self.SECONDS / max(seconds, 1e-9))))
