"""Data: the samples of a fit; Batch: the samples of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..device import Device
from .large.rows import Later, Rows


@dataclasses.dataclass
class Data:
    """The samples of a fit; training and held-out samples share one X."""

    X: Any  # (n, …): float32 on the device, or read batch by batch (`Rows`); or integers on the host, where they
    # determine which rows of an `Embedding` a step reads
    y: np.ndarray  # (n, …) targets
    weights: np.ndarray | None = None  # (n,) weight of each sample, or (n, T) of each of its time steps
    rows: np.ndarray | None = None  # indices in X of the samples that belong here; None: all

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    def weigh(self, weights: np.ndarray | None) -> None:
        """Set the weights of the samples."""
        self.weights = weights

    def targets(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the targets of all samples, and their weights."""
        return self.y, self.weights

    def on(self, dev: Device) -> Data:
        """Return the data with X in the form for training on the device."""
        return dataclasses.replace(self, X=on_device(self.X, dev))

    def hook(self) -> Any:
        """Return the hook of a fit that the data need; None if they need none."""
        return None

    def sample(self, dev: Device) -> Data:
        """Return samples on the device or in a file: all of them."""
        return self

    def batches(self, size: int, rng: np.random.Generator, dev: Device) -> Iterator[Batch]:
        """Yield the batches of one epoch, of samples in random order."""
        return Batches(self, self.at(rng.permutation(len(self))), size, dev)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the indices in X of the samples at `positions` of this data."""
        return positions if self.rows is None else self.rows[positions]


class Batch(NamedTuple):
    """The samples of one training step."""

    rows: np.ndarray  # their indices in `Data`
    inputs: Any  # (N, …), the model's input on the device; before `fetch`, the indices of the samples, on the device
    targets: Any  # (N, …) on the device
    weights: Any  # (N,) on the device, with sum 1; None for equal weights
    total: float  # sum of the samples' weights, or the number of samples: the batch's weight in the figures of the epoch
    ids: np.ndarray | None = None  # a copy of `inputs` on the host, if they are integers
    resets_state: bool = True  # True if recurrent layers start from zero states
    values: np.ndarray | Later | None = None  # the inputs on the host, or in a file, if X is not on the device
    counted: bool = True  # False if all weights are 0, because there are fewer samples than ranks (`parallel.parts`)

    def without_inputs(self) -> Batch:
        """Return the batch without its inputs on the host, which a step that is done no longer needs."""
        return self if self.ids is None and self.values is None else self._replace(ids=None, values=None)

    def fetch(self, X: Any, dev: Device, out: Any = None) -> Batch:
        """Return the batch with its inputs fetched from X; if `out` is given, they are copied to it."""
        if self.ids is not None:
            return self._replace(inputs=dev.upload(self.ids) if out is None else dev.copy(self.ids, out=out))
        if self.values is not None:
            values = dev.upload(np.asarray(self.values))
            return self._replace(inputs=values if out is None else dev.copy(values, out=out))
        return self._replace(inputs=dev.take_rows(X, self.inputs, out=out))


def on_device(X: np.ndarray, dev: Device) -> Any:
    """Return the inputs X of all samples in the form of `Data.X`: integers stay on the host, floats are uploaded, unless they
    are read batch by batch (`Rows`).
    """
    return X if on_host(X) or isinstance(X, Rows) else dev.upload(X)


def rows_of(X: Any, rows: np.ndarray, dev: Device) -> Any:
    """Return the inputs `rows` of X, which has the form of `Data.X` and holds floats, on the device."""
    return dev.upload(X[rows]) if isinstance(X, Rows) else dev.take_rows(X, dev.upload(rows.astype(np.int32)))


def view_of(X: Any, rows: np.ndarray, dev: Device) -> Any:
    """Return the inputs `rows` of X, which are adjacent, as `rows_of` does, but without a copy if loops take a view."""
    refused = isinstance(X, np.ndarray) and not (X.flags.c_contiguous and X.flags.writeable)
    if isinstance(X, Rows) or not len(rows) or refused:
        return rows_of(X, rows, dev)
    return dev.part(X, int(rows[0]), int(rows[-1]) + 1)


def on_host(X: Any) -> bool:
    """Return True if the inputs X are integers, which stay on the host."""
    return isinstance(X, np.ndarray) and X.dtype.kind in "iu"


class Several(NamedTuple):
    """The samples of several training steps of one size, which follow each other in an epoch."""

    rows: np.ndarray  # (steps * size,), as those of `Batch`
    inputs: Any  # (steps, size), the indices of the samples, on the device
    targets: Any  # (steps, size, …) on the device
    weights: Any  # (steps, size, …) on the device; None for equal weights
    total: list[float]  # that of `Batch` for each step
    ends: bool  # True if no other step follows in the epoch
    counted: bool = True

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.total)

    @property
    def size(self) -> int:
        """Number of samples of a step."""
        return self.inputs.shape[1]

    def first(self, steps: int, dev: Device) -> Several:
        """Return the samples of the first steps."""
        if steps == self.steps:
            return self
        inputs, targets = (dev.part(array, 0, steps) for array in (self.inputs, self.targets))
        weights = None if self.weights is None else dev.part(self.weights, 0, steps)
        return Several(self.rows[: steps * self.size], inputs, targets, weights, self.total[:steps], False)


class Batches(Iterator[Batch]):
    """The batches of an epoch: the samples with the indices `order`, in this order. The inputs of a batch are not fetched yet;
    the targets and the weights of all batches are uploaded together.

    A last sample that is left over joins the batch before, because batch normalisation needs two. Batches in which all weights
    are 0 are left out.
    """

    def __init__(self, data: Data, order: np.ndarray, size: int, dev: Device) -> None:
        self.data, self.order, self.size, self.dev = data, order, size, dev
        self.streamed, self.on_host = isinstance(data.X, Rows), on_host(data.X)
        self.rows = None if self.on_host or self.streamed else dev.upload(order.astype(np.int32))
        self.y, self.shares = dev.upload(data.y[order]), None
        left = 1 if size < len(order) and len(order) % size == 1 else 0
        starts = range(0, len(order) - left, size)
        spans = list(zip(starts, [*starts[1:], len(order)]))
        totals: list[float] = [stop - start for start, stop in spans]
        if data.weights is not None:
            weights = data.weights[order]
            totals = [float(weights[start:stop].sum()) for start, stop in spans]
            sums = np.repeat(np.array([total or 1.0 for total in totals], np.float32), [stop - start for start, stop in spans])
            self.shares = dev.upload(weights / sums.reshape(-1, *[1] * (weights.ndim - 1)), np.float32)
        self.spans = [(start, stop, total) for (start, stop), total in zip(spans, totals) if total]
        self.at = 0  # index of the next batch
        # number of batches, from the first, that have `size` samples each and leave out none
        whole = len(self.spans) == len(spans) and self.rows is not None
        self.like = sum(stop - start == size for start, stop, _ in self.spans) if whole else 0

    def __next__(self) -> Batch:
        if self.at >= len(self.spans):
            raise StopIteration
        (start, stop, total), self.at, dev = self.spans[self.at], self.at + 1, self.dev
        rows = self.order[start:stop]
        inputs = None if self.rows is None else dev.part(self.rows, start, stop)
        targets, share = dev.part(self.y, start, stop), None if self.shares is None else dev.part(self.shares, start, stop)
        ids = np.asarray(self.data.X[rows], np.int32) if self.on_host else None
        return Batch(rows, inputs, targets, share, total, ids, values=Later(self.data.X, rows) if self.streamed else None)

    def go_to(self, index: int) -> None:
        """Yield the batch with this index next."""
        self.at = index

    def several(self, first: int, most: int) -> Several | None:
        """Return the samples of at most `most` batches from the one with index `first` on; None unless there are two or more
        of one size, with inputs on the device.
        """
        steps = min(most, self.like - first)
        if steps < 2:
            return None
        start, stop = first * self.size, (first + steps) * self.size

        def part(array: Any) -> Any:
            return self.dev.reshape(self.dev.part(array, start, stop), (steps, self.size, *array.shape[1:]))

        shares = None if self.shares is None else part(self.shares)
        totals = [total for *_, total in self.spans[first : first + steps]]
        return Several(self.order[start:stop], part(self.rows), part(self.y), shares, totals, first + steps == len(self.spans))


class Pairs(Iterator[tuple[Batch, Any]]):
    """Yields each batch of an epoch, with the following one; the last one with None."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches, self.following = batches, next(batches, None)

    def __next__(self) -> tuple[Batch, Batch | None]:
        if self.following is None:
            raise StopIteration
        batch, self.following = self.following, next(self.batches, None)
        return batch, self.following

    def _current(self, batches: Batches) -> int:
        return batches.at - 1 - (self.following is not None)

    def several(self, most: int) -> Several | None:
        """Return the samples of the batch that was yielded last and of those after it, at most `most`, as `Batches.several`;
        None if batches are yielded one by one.
        """
        if most < 2 or not isinstance(self.batches, Batches):
            return None
        return self.batches.several(self._current(self.batches), most)

    def skip(self, steps: int) -> None:
        """After `several`: continue with the batch after the first `steps` of them."""
        assert isinstance(self.batches, Batches)
        self.batches.go_to(self._current(self.batches) + steps)
        self.following = next(self.batches, None)
