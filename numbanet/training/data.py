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
        return in_order(self, self.at(rng.permutation(len(self))), size, dev)

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


def in_order(data: Data, order: np.ndarray, size: int, dev: Device) -> Iterator[Batch]:
    """Yield the batches of the samples with the indices `order`, in this order. The inputs of a batch are not fetched yet; the
    targets and the weights of all batches are uploaded together.

    A last sample that is left over joins the batch before, because batch normalisation needs two. Batches in which all weights
    are 0 are left out.
    """
    in_rows = isinstance(data.X, Rows)
    rows, y = None if on_host(data.X) or in_rows else dev.upload(order.astype(np.int32)), dev.upload(data.y[order])
    shares, totals = None, None
    left = 1 if size < len(order) and len(order) % size == 1 else 0
    starts = range(0, len(order) - left, size)
    stops = [*starts[1:], len(order)]
    if data.weights is not None:
        weights = data.weights[order]
        totals = [float(weights[start:stop].sum()) for start, stop in zip(starts, stops)]
        lengths = [stop - start for start, stop in zip(starts, stops)]
        sums = np.repeat(np.array([total or 1.0 for total in totals], np.float32), lengths)
        shares = dev.upload(weights / sums.reshape(-1, *[1] * (weights.ndim - 1)), np.float32)
    for i, (start, stop) in enumerate(zip(starts, stops)):
        some, total = slice(start, stop), stop - start if totals is None else totals[i]
        if total == 0:
            continue
        inputs = None if rows is None else dev.part(rows, start, stop)
        targets, share = dev.part(y, start, stop), None if shares is None else dev.part(shares, start, stop)
        ids = np.asarray(data.X[order[some]], np.int32) if on_host(data.X) else None
        yield Batch(order[some], inputs, targets, share, total, ids, values=Later(data.X, order[some]) if in_rows else None)
