"""Plans that keep single activations; each sample may keep different ones."""

from __future__ import annotations

import dataclasses
import functools
import numbers
from collections.abc import Callable

import numpy as np

from numbanet_kernels.layouts.samples import WORD, SampleLists, key_words

from .base import Plan

OTHER_KEY = 0x9E3779B97F4A7C15  # distance between the keys of ranks: 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4)


@dataclasses.dataclass(frozen=True)
class BernoulliPlan(Plan):
    """Keep each element of an (N, n) activation with probability 1 - rate: conventional dropout, which skips no work.

    Parameters
    ----------
    n : int
        Length of the activation's last axis.
    rate : float
        Probability to drop, in [0, 1).
    key : int
        Key of the counter-based random bits, in [0, 2**64). A key gives the same bits on every device.
    scale : float, default=1.0
        Factor of the kept values.
    """

    n: int
    rate: float
    key: int
    scale: float = 1.0

    cacheable = False
    density = 1.0

    @property
    def covers(self):
        return (self.n,)

    @property
    def kind(self):
        return BernoulliPlan, self.n, self.rate, self.scale

    def lists(self):
        return (key_words(self.key),)

    def of_rank(self, rank):
        return dataclasses.replace(self, key=(self.key + rank * OTHER_KEY) % (1 << 64))

    def mask(self) -> np.ndarray:
        """Return an array (n,) of True, because all products are computed; `ops.dropout` sets activations to 0."""
        return np.ones(self.n, bool)


@dataclasses.dataclass(frozen=True, eq=False)
class SamplePlan(Plan):
    """Keep different outputs for each sample, or for each group of consecutive samples.

    Only kept outputs are computed. Stored are their values, one sample after the other, and a bit mask (*Dynamic Sparse Graph*,
    zero-value compression).

    Parameters
    ----------
    samples, n : int
        Shape (samples, n) of the activation.
    group : int
        Number of consecutive samples that keep the same outputs; the last group may be smaller.
    bits : array_like of int32, (groups, words)
        Output o is kept if bit o % 32 of word o // 32 is set; bits beyond n are 0.
    double : bool, default=True
        Whether the mask is applied again after batch normalisation, so that following layers see the same zeros.

    Raises
    ------
    ValueError
        If a size is not an integer, or if the bits have another shape, are not 32-bit words, or are set beyond n.
    """

    samples: int
    n: int
    group: int
    bits: np.ndarray
    double: bool = True

    def __post_init__(self) -> None:
        for name in ("samples", "n", "group"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, numbers.Integral):
                raise ValueError(f"SamplePlan: {name} must be an integer, got {value!r}")
        given = np.asarray(self.bits)
        bits = given.astype(np.int32)
        if self.group < 1 or self.n < 0 or bits.shape != (-(-self.samples // self.group), -(-self.n // WORD)):
            raise ValueError(
                f"SamplePlan: bits {bits.shape} are not those of {self.samples} samples of {self.n} outputs in "
                f"groups of {self.group}"
            )
        if given.dtype != np.uint32 and not np.array_equal(bits, given):
            raise ValueError("SamplePlan: bits must be integers, words of 32 bits")
        if self.n % WORD and (bits[:, -1:].view(np.uint32) >> np.uint32(self.n % WORD)).any():
            raise ValueError(f"SamplePlan: bits are set beyond output {self.n - 1}, the last one")
        object.__setattr__(self, "bits", bits)

    def _value(self) -> tuple:
        return self.samples, self.n, self.group, self.double, self.bits.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplePlan) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (samples, n) of the plan's mask."""
        return self.samples, self.n

    @property
    def covers(self):
        return (self.n,)

    @functools.cached_property
    def _mask(self) -> np.ndarray:
        bits = np.unpackbits(self.bits.astype("<i4").view(np.uint8), axis=1, bitorder="little")
        return bits[:, : self.n].astype(bool)

    def mask(self) -> np.ndarray:
        """Return an array (samples, n) of bool that is True for kept outputs."""
        return self._mask[np.arange(self.samples) // self.group]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """The number of outputs that each sample keeps, an array (samples,)."""
        return np.bitwise_count(self.bits.view(np.uint32)).sum(1, dtype=np.int64)[np.arange(self.samples) // self.group]

    @functools.cached_property
    def count(self) -> int:
        """The number of kept values of all samples."""
        return int(self.counts.sum())

    @property
    def kind(self):
        """None unless all samples keep equally many outputs."""
        least, most = (self.counts.min(), self.counts.max()) if self.samples else (0, 0)
        return (SamplePlan, self.samples, self.n, self.group, int(least), self.double) if least == most else None

    @property
    def density(self) -> float:
        return self.count / (self.samples * self.n) if self.samples * self.n else 1.0

    def lists(self) -> SampleLists:
        """Return a `SampleLists`: the bits, and the position of the first value of each sample."""
        return SampleLists(self.bits, np.concatenate([[0], np.cumsum(self.counts)]), self.group, self.n)


class ChosenSamples(SamplePlan):
    """A `SamplePlan` like another one, with outputs that the device has chosen during a pass. The host reads the bits from the
    device when it first needs them, by read(); a recorded step overwrites them when it is replayed again.
    """

    def __init__(self, like: SamplePlan, read: Callable[[], np.ndarray]) -> None:
        for name in ("samples", "n", "group", "double"):
            object.__setattr__(self, name, getattr(like, name))
        object.__setattr__(self, "counts", like.counts)
        object.__setattr__(self, "_read", read)

    _read: Callable[[], np.ndarray]

    @functools.cached_property
    def bits(self) -> np.ndarray:
        """The kept outputs of each group, as a `SamplePlan` has them."""
        return np.array(self._read())
