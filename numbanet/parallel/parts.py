"""The share of a rank of each batch. Weights of samples are such that the loss of a rank is its part of the loss of the joint
batch: losses and gradients are then summed over the ranks.

If each rank was given all samples, all ranks draw the same order, and each takes its share of the rows of each batch. If each
was given samples of its own, each draws the order of its own, and takes as many batches as the others. The samples of a
language model are segments of the text, which a rank reads from the first to the last step, because states of layers are
carried over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..device import Device
from .ranks import Team


def parts(task: Any, data: Any, size: int, rng: np.random.Generator, dev: Device, team: Team) -> Iterator[Any]:
    """Yield the batches of one epoch of this rank, on all ranks equally many.

    Parameters
    ----------
    task : Task
    data : Data
        All samples, or those of this rank if `team.sharded`.
    size : int
        Samples of a joint batch.
    rng : Generator
        Draws the order of rows.
    dev : Device
    team : Team
    """
    if team.sharded:
        yield from (_segments if task.stateful else _shards)(task, data, size, rng, dev, team)
        return
    for batch in task.batches(data, size, rng, dev):
        yield _columns(batch, data, dev, team) if task.stateful else _rows(task, batch, dev, team)


def _even(task: Any, n: int, targets: Any, total: float, dev: Device) -> Any:
    """Return equal weights of n samples of a joint batch with the total weight `total`; some tasks weigh time steps."""
    shape = n, *targets.shape[1 : task.weight_axes]
    return dev.full(shape, 1 / (total * math.prod(shape[1:])))


def _rows(task: Any, batch: Any, dev: Device, team: Team) -> Any:
    """Return the rows of this rank of a joint batch; if there are fewer rows than ranks, a row with weight 0 for some ranks."""
    cut = team.part(len(batch.rows))
    counted = cut.start < cut.stop
    start, stop = (cut.start, cut.stop) if counted else (0, 1)
    inputs, targets, weights = (
        None if array is None else dev.part(array, start, stop) for array in (batch.inputs, batch.targets, batch.weights)
    )
    if weights is None or not counted:
        weights = _even(task, stop - start, targets, batch.total, dev) if counted else _even(task, 1, targets, math.inf, dev)
    return _cut(batch, start, stop)._replace(inputs=inputs, targets=targets, weights=weights, counted=counted)


def _cut(batch: Any, start: int, stop: int) -> Any:
    """Return the batch with some of its rows, and of its inputs on the host."""
    ids, values = (None if array is None else array[start:stop] for array in (batch.ids, batch.values))
    return batch._replace(rows=batch.rows[start:stop], ids=ids, values=values)


def _columns(batch: Any, data: Any, dev: Device, team: Team) -> Any:
    """Return the segments of this rank of a joint batch of segments, which are the columns of its ids (T, N)."""
    cut = team.part(batch.ids.shape[1])
    rows = np.ascontiguousarray(batch.rows.reshape(batch.ids.shape)[:, cut]).reshape(-1)
    weights = dev.full((rows.size,), 1 / batch.total)
    return batch._replace(
        rows=rows, targets=dev.upload(data.y[rows]), weights=weights, ids=np.ascontiguousarray(batch.ids[:, cut])
    )


def _shards(task: Any, data: Any, size: int, rng: np.random.Generator, dev: Device, team: Team) -> Iterator[Any]:
    """Yield the batches of this rank's samples; a rank with fewer batches than others adds some with weight 0."""
    steps = math.ceil(team.count(len(data)) / size)
    own = list(task.batches(data, max(1, math.ceil(len(data) / steps)), rng, dev))
    if not own:
        raise ValueError(f"parallel: all samples of rank {team.rank} have weight 0; give it others")
    totals = np.zeros(steps)
    totals[: len(own)] = [batch.total for batch in own]
    for i, total in enumerate(team.sum(totals).tolist()):
        if not total:
            continue
        batch = own[i] if i < len(own) else _first(own[0], dev)
        n, share = len(batch.rows), batch.total / total
        given = batch.weights
        weights = _even(task, n, batch.targets, total, dev) if given is None else dev.affine(given, mul=share)
        yield batch._replace(weights=weights, total=total)


def _first(batch: Any, dev: Device) -> Any:
    """Return a batch of the first sample of `batch`, with weight 0."""
    inputs, targets = (None if array is None else dev.part(array, 0, 1) for array in (batch.inputs, batch.targets))
    weights = dev.full((1, *((1,) if batch.weights is None else batch.weights.shape)[1:]), 0.0)
    return _cut(batch, 0, 1)._replace(inputs=inputs, targets=targets, weights=weights, total=0.0, counted=False)


def _segments(task: Any, data: Any, size: int, rng: np.random.Generator, dev: Device, team: Team) -> Iterator[Any]:
    """Yield the batches of this rank's text; all ranks read segments of the length of the shortest one."""
    cut = team.part(size)
    n = cut.stop - cut.start
    length = min(team.gather((len(data.y) - 1) // n))
    text = type(data)(data.X[: length * n + 1], data.y[: length * n + 1])
    for batch in task.batches(text, n, rng, dev):
        total = batch.ids.shape[0] * size
        yield batch._replace(weights=dev.full((batch.rows.size,), 1 / total), total=total)
