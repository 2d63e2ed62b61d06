"""Data: the samples of a fit; Batch: those of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..device import Device


@dataclasses.dataclass
class Data:
    """Samples of one fit; training and held-out samples share one X."""

    X: Any  # (n, …) float32 on the device; or integers, which stay on the host: there it is known
    # which rows of a table they name
    y: np.ndarray  # (n, …) targets
    weights: np.ndarray | None = None  # (n,) how much each sample counts, or (n, T) each of its time steps
    rows: np.ndarray | None = None  # which of them belong here; None: all

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    def at(self, places: np.ndarray) -> np.ndarray:
        """The numbers in X of the samples at some places."""
        return places if self.rows is None else self.rows[places]


class Batch(NamedTuple):
    """The samples of one step."""

    rows: np.ndarray  # their numbers in `Data`
    inputs: Any  # what the model takes, on the device; before `fetch`, the same numbers there
    targets: Any  # on the device
    weights: Any  # on the device, summing to 1; None: each sample counts the same
    total: float  # the sum of the weights, or the number of samples: how much the batch counts in an epoch
    ids: np.ndarray | None = None  # inputs that are integers, on the host
    resets_state: bool = True  # whether layers that remember begin anew

    def fetch(self, X: Any, dev: Device, out: Any = None) -> Batch:
        """With its inputs taken from X, into an array that is given."""
        if self.ids is not None:
            return self._replace(inputs=dev.upload(self.ids) if out is None else dev.copy(self.ids, out=out))
        return self._replace(inputs=dev.take_rows(X, self.inputs, out=out))


def on_device(X: np.ndarray, dev: Device) -> Any:
    """The inputs of all samples as `Data` has them."""
    return X if on_host(X) else dev.upload(X)


def on_host(X: Any) -> bool:
    """Whether inputs are integers, which stay on the host."""
    return isinstance(X, np.ndarray) and X.dtype.kind in "iu"


def in_order(data: Data, order: np.ndarray, size: int, dev: Device) -> Iterator[Batch]:
    """The samples with these numbers in batches, without inputs yet; what is fed is uploaded at once.

    Batches of samples without any weight are left out.
    """
    rows, y = None if on_host(data.X) else dev.upload(order.astype(np.int32)), dev.upload(data.y[order])
    shares, totals = None, None
    starts = range(0, len(order), size)
    if data.weights is not None:
        weights = data.weights[order]
        totals = [float(weights[start : start + size].sum()) for start in starts]
        lengths = [min(size, len(order) - start) for start in starts]
        sums = np.repeat(np.array([total or 1.0 for total in totals], np.float32), lengths)
        shares = dev.upload(weights / sums.reshape(-1, *[1] * (weights.ndim - 1)), np.float32)
    for i, start in enumerate(starts):
        some = slice(start, min(start + size, len(order)))
        total = some.stop - start if totals is None else totals[i]
        if total == 0:
            continue
        inputs, targets, share = (None if array is None else dev.part(array, start, some.stop) for array in (rows, y, shares))
        ids = np.asarray(data.X[order[some]], np.int32) if on_host(data.X) else None
        yield Batch(order[some], inputs, targets, share, total, ids)
