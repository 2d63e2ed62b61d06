"""`Ranks`: the processes that train one model together, as one of them sees them; `current` holds those of the running fit."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbanet_kernels.runtime.context import Scoped

current = Scoped("ranks", None)  # the `Ranks` of the fit that runs in this thread, or None


class RankFailure(RuntimeError):
    """Another rank has ended or has raised an exception; the message names it."""


class Ranks(abc.ABC):
    """A communicator, as one rank sees it. All ranks call the same methods in the same order.

    While a rank waits in a method, it notices that another rank has failed, and raises `RankFailure`.

    Attributes
    ----------
    rank, size : int
        The number of this rank, from 0, and the number of ranks.
    shared : SharedSums or None
        Sums large arrays, if all ranks are processes of one machine.
    counts : bool
        False if the samples of this rank have weight 0, and are in no statistics of a batch (`Team.counting`).
    """

    rank: int
    size: int
    shared: Any = None
    counts: bool = True
    _card_sums: Any = None

    @property
    def first(self) -> bool:
        """True on rank 0, which prints and writes files."""
        return self.rank == 0

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Replace a contiguous array of floats by its sum over the ranks, and return it."""
        self.start(array)()
        return array

    @abc.abstractmethod
    def start(self, array: np.ndarray) -> Callable[[], None]:
        """Start `sum`, or a part of it; the function that is returned waits until it is complete."""

    @abc.abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return a list of the values of all ranks, in their order; the values are objects that can be pickled."""

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0."""
        return self.gather(value if self.first else None)[0]

    @abc.abstractmethod
    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until done() returns True; `RankFailure` if another rank fails meanwhile."""

    def lending(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which new host arrays of this thread are where they are summed fastest."""
        return contextlib.nullcontext() if self.shared is None else self.shared.lending()

    def release(self) -> None:
        """Release what the ranks keep of each other's memory; the next sum takes it again."""
        if self.shared is not None:
            self.shared.forget()

    @abc.abstractmethod
    def fail(self, reason: str) -> None:
        """Tell the other ranks that this one has failed; they raise `RankFailure` with the reason."""

    def keep_card_sums(self, make: Callable[[], Any]) -> Any:
        """Return the `CardSums` of these ranks, one for all fits; make() returns it before the first."""
        if self._card_sums is None:
            self._card_sums = make()
        return self._card_sums

    def part(self, n: int) -> slice:
        """Return the share of this rank of n rows: consecutive rows, and on all ranks equally many, up to one."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def __deepcopy__(self, memo: Any) -> Ranks:
        return self  # scikit-learn's `clone` copies the parameters of an estimator


class Team(Ranks):
    """The ranks of one fit: those of a communicator, and whether each of them has samples of its own.

    Attributes
    ----------
    sharded : bool
        True if each rank was given its own samples; False if each rank was given all samples, of which it takes its share.
    """

    def __init__(self, ranks: Ranks, sharded: bool, counts: bool = True) -> None:
        self.ranks, self.rank, self.size, self.sharded = ranks, ranks.rank, ranks.size, sharded
        self.shared, self.counts = ranks.shared, counts

    def counting(self, counts: bool) -> Team:
        """Return these ranks for a batch whose samples on this rank count in statistics, or do not."""
        return self if counts == self.counts else Team(self.ranks, self.sharded, counts)

    def start(self, array):
        return self.ranks.start(array)

    def gather(self, value):
        return self.ranks.gather(value)

    def wait(self, done):
        self.ranks.wait(done)

    def fail(self, reason):
        self.ranks.fail(reason)

    def count(self, n: int) -> int:
        """Return the number of samples of all ranks, of which this rank was given n."""
        return sum(self.gather(n)) if self.sharded else n

    def weights(self, own: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return the weights of the samples of this rank: those that it has, or weights of 1, of the given shape, if only other
        ranks have some, which is so if only their sequences are padded.
        """
        return np.ones(shape, np.float32) if self.sharded and any(self.gather(own is not None)) and own is None else own

    def joint(self, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Return, for each array of values of samples, the values of all ranks, in the order of the ranks. None stands for
        weights of 1; it stays None if it is None on all ranks.
        """
        own = [array for array in self.gather(list(arrays)) if array[0] is not None and len(array[0])]
        found: list[np.ndarray | None] = list(arrays)
        for i, parts in enumerate(zip(*own)):
            some = next((part for part in parts if part is not None), None)
            whole = [
                np.ones((len(of[0]), *some.shape[1:]), some.dtype) if part is None and some is not None else part
                for part, of in zip(parts, own)
            ]
            found[i] = None if some is None else np.concatenate(whole)
        return found
