"""`Exchange`: after the passes of a step, the gradients are summed over the ranks, each one as it is stored.

All ranks draw equal plans, so their packed gradients hold the same elements of a weight: only these travel. Which rows of an
`Embedding` have gradients, the samples of each rank decide: these rows are gathered, with their numbers, and added up
(`JointRows`). The loss of a rank is its part of the loss of the joint batch (`parts`), so the gradient of the joint batch is
the sum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..autograd import of_leaves
from ..device import Device
from ..gradients import LookedUp, Packed
from ..tensor import Tensor
from .nccl import CardSums
from .ranks import Ranks

MOST = 1 << 30  # bytes of the rows of a table that are gathered: MPI counts them in 32 bits


class NotFinite(FloatingPointError):
    """The loss of a step is not finite on some ranks; raised on all ranks in this step, before the update.

    Attributes
    ----------
    where : str
        The number of the step in its epoch, from 1, and the ranks.
    """

    def __init__(self, step: int, ranks: Sequence[int]) -> None:
        self.where = f"{step} (rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))})"
        super().__init__(f"the loss was not finite in step {self.where}")


class Exchange:
    """Sums the gradients of a step over the ranks; an optimiser calls it after the passes (`Optimizer.reducer`).

    On the host, large arrays are summed in place, each as a bucket of its own. Small ones, such as those of biases, are copied
    to one bucket, which also has the loss of the rank. Large packed gradients start to travel when they are complete, while the
    backward pass computes the others (`complete`), as far as the ranks sum as many bytes at a time; the rest starts after it.
    In memory that ranks share (`Ranks.shared`), all are summed after it.

    Parameters
    ----------
    ranks : Ranks
    dev : Device
        The device of the gradients.
    card : CardSums, optional
        Sums gradients in the memory of GPUs, all that are contiguous. By default the ranks sum them on the host.

    Attributes
    ----------
    sent, dense : int
        Bytes of gradients that this rank has given to be summed since `begin`, and that dense gradients would have had.
    seconds : float
        Seconds that this rank has spent on the exchange since `begin`, waiting for slower ranks included.
    step : int
        Number of steps since then.
    """

    SMALL = 1 << 14  # elements: smaller arrays share a bucket

    def __init__(self, ranks: Ranks, dev: Device, card: CardSums | None = None) -> None:
        self.ranks, self.dev, self.card = ranks, dev, card
        self.records = dev.asides()  # whether steps with this exchange may be recorded
        self.started: dict[int, Callable[[], None]] = {}  # by array, what waits for the end of its sum
        self.joint: dict[tuple[Tensor, int], JointRows] = {}  # by table and number of its columns that are kept
        self.begin()

    def begin(self, sent: int = 0, dense: int = 0, seconds: float = 0.0, step: int = 0) -> None:
        """Count from 0, because an epoch starts, or from what `counted` returned."""
        self.sent, self.dense, self.seconds, self.step = sent, dense, seconds, step
        self.started.clear()

    def counted(self) -> tuple[int, int, float, int]:
        """Return (sent, dense, seconds, step), counted since the epoch began."""
        return self.sent, self.dense, self.seconds, self.step

    def lending(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which gradients are allocated where the ranks sum them fastest."""
        return self.ranks.lending()

    def complete(self, parameter: Tensor) -> None:
        """Start to sum the gradient of a parameter, which is complete, if its array is large and nothing else reads it: dense
        gradients may be those of other tensors as well.
        """
        gradient = parameter.gradient
        if (
            isinstance(gradient, Packed)
            and not isinstance(gradient, LookedUp)
            and math.prod(gradient.values.shape) > self.SMALL
        ):
            self._do(functools.partial(self._start, gradient.values))

    @contextlib.contextmanager
    def passes(self) -> Iterator[None]:
        """A context for both passes of a step, in which large gradients start to travel."""
        with of_leaves.within(self), self._aborting():
            yield

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        """A context that ends what GPUs sum if an exception leaves it: they would wait for other ranks, in memory that is used
        again.
        """
        try:
            yield
        except BaseException:
            if self.card is not None:
                self.card.abort()
            raise

    def _do(self, work: Callable[[], None]) -> None:
        """Call work() now, or, while a step is recorded, at this point of each replay."""
        if self.records:
            self.dev.aside(work)
        else:
            work()

    def _start(self, array: Any) -> None:
        began = time.perf_counter()
        if self.card is not None and array.flags["C_CONTIGUOUS"]:
            self.started[id(array)] = self.card.start([array])
        elif self.records and array.flags["C_CONTIGUOUS"]:  # on the CPU: its arrays are summed in place
            self.started[id(array)] = self.ranks.start(array)
        self.seconds += time.perf_counter() - began

    def __call__(self, parameters: Sequence[Tensor], loss: Any = None) -> None:
        """Replace the gradients of the parameters by their sums over the ranks.

        While a step is recorded, the exchange is recorded: each replay makes it between the passes and the update.

        Parameters
        ----------
        parameters : sequence of Tensor
        loss : array, optional
            The loss of the step on this rank, a device array of one number.

        Raises
        ------
        NotFinite
            On all ranks, if the loss is not finite on one of them.
        """
        arrays: list[Any] = []
        dense, tables = 0, []
        for parameter in parameters:
            gradient = parameter.gradient
            if gradient is None:
                continue
            dense += 4 * parameter.size
            if isinstance(gradient, LookedUp):
                tables.append(self._table(parameter, gradient))
            else:
                arrays.append(gradient.values)
        self._do(functools.partial(self._sum, arrays, tables, loss, dense))

    def _table(self, parameter: Tensor, gradient: LookedUp) -> Callable[[], int]:
        """Replace the gradient of a table by that of all ranks, which the function that is returned computes."""
        key = parameter, gradient.values.shape[1]
        if key not in self.joint:
            self.joint[key] = JointRows(self.dev, parameter.shape[0], key[1])
        joint = self.joint[key]
        packing = gradient.packing._replace(row_pos=joint.places)
        parameter.zero_grad()
        parameter.receive(dataclasses.replace(gradient, values=joint.values, packing=packing))
        return functools.partial(joint.fill, self.ranks, gradient)

    def _sum(self, arrays: Sequence[Any], tables: Sequence[Callable[[], int]], loss: Any, dense: int) -> None:
        with self._aborting():
            self._summed(arrays, tables, loss, dense)

    def _summed(self, arrays: Sequence[Any], tables: Sequence[Callable[[], int]], loss: Any, dense: int) -> None:
        began, dev = time.perf_counter(), self.dev
        started, self.started = self.started, {}
        waits = list(started.values())
        by_host = list(arrays)
        if self.card is not None:
            by_host = [array for array in arrays if not array.flags["C_CONTIGUOUS"]]
            left = [array for array in arrays if array.flags["C_CONTIGUOUS"] and id(array) not in started]
            waits.append(self.card.start(left))
        hosts = [np.ascontiguousarray(dev.download(array)) for array in by_host]
        waits += [self.ranks.start(host) for host in hosts if host.size > self.SMALL and id(host) not in started]
        small = [host for host in hosts if host.size <= self.SMALL]
        last = np.zeros(1, np.float32) if loss is None else np.reshape(dev.download(loss), 1)
        bucket = np.concatenate([*(host.reshape(-1) for host in small), last], dtype=np.float32)
        fine = math.isfinite(float(last[0]))
        waits.append(self.ranks.start(bucket))
        self.sent += sum(fill() for fill in tables)
        for wait in waits:
            wait()
        self.step += 1
        if not math.isfinite(float(bucket[-1])):
            self._refuse(fine)
        parts = np.split(bucket, np.cumsum([host.size for host in small]))
        for host, part in zip(small, parts):
            host.reshape(-1)[:] = part
        for array, host in zip(by_host, hosts):
            if host is not array:  # on the CPU they are the same array
                dev.copy(host, out=array)
        self.sent += sum(4 * math.prod(array.shape) for array in arrays)
        self.dense += dense
        self.seconds += time.perf_counter() - began

    def _refuse(self, fine: bool) -> None:
        """Raise NotFinite, with the ranks on which something is not finite."""
        wrong = [rank for rank, other in enumerate(self.ranks.gather(fine)) if not other]
        raise NotFinite(self.step, wrong or list(range(self.ranks.size)))


class JointRows:
    """The gradient of a table of which each rank has some rows: their sums over the ranks, in arrays that updates read. They
    exist before a step is recorded, because replays write to them.

    Parameters
    ----------
    dev : Device
    total, columns : int
        Number of rows of the table, and of its columns that are kept.

    Attributes
    ----------
    places : (total,) int32 device array
        For each row of the table, its row in `values`, or -1.
    values : (total, columns) float32 device array
        The sums, and then rows of zeros.
    """

    def __init__(self, dev: Device, total: int, columns: int) -> None:
        self.dev = dev
        self.places = dev.upload(np.full(total, -1, np.int32))
        self.values = dev.upload(np.zeros((total, columns), np.float32))
        self.used = 0  # rows of `values` that are not 0

    def fill(self, ranks: Ranks, gradient: LookedUp) -> int:
        """Compute the sums of the gradients of all ranks; return the number of bytes that this rank has sent. If ranks have as
        many rows together as the table, a sum of the whole table sends less.
        """
        dev = self.dev
        own, sums = (np.asarray(dev.download(array)) for array in (gradient.packing.row_pos, gradient.values))
        rows = np.flatnonzero(own >= 0).astype(np.int32)
        sums = sums[own[rows]]
        places, values = (dev.download(array) for array in (self.places, self.values))
        count = sum(ranks.gather(len(rows)))
        if count >= len(places) or 4 * count * values.shape[1] > MOST:
            values[:], self.used = 0, len(places)
            values[rows], places[:] = sums, np.arange(len(places))
            ranks.sum(values)
            sent = values.nbytes
        else:
            parts, sent = ranks.gather((rows, sums)), rows.nbytes + sums.nbytes
            every = np.unique(np.concatenate([numbers for numbers, _ in parts]))
            places[:], values[: max(len(every), self.used)], self.used = -1, 0, len(every)
            places[every] = np.arange(len(every))
            for numbers, terms in parts:  # in the order of the ranks: all ranks get the same bits
                values[places[numbers]] += terms
        for host, array in ((places, self.places), (values, self.values)):
            if host is not array:  # on the CPU they are the same array
                dev.copy(dev.upload(host), out=array)
        return sent
