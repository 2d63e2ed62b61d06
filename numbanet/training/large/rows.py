"""Rows: samples that are dense in memory only batch by batch, from a file or from a sparse matrix."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

LEAST = 1 << 26  # bytes, as float32: what is smaller is dense as a whole, so that steps can be queued
CHUNK = 1 << 24  # bytes of a chunk of a pass over the samples


class Rows(abc.ABC):
    """Samples (n, …) of which some become a float32 array when they are read. Subclasses define `shape`,
    `__getitem__` and `reshape`.
    """

    dtype = np.dtype(np.float32)
    most: int | None = None  # the largest number of samples of a forward pass; by default that of samples in memory

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of all samples."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @abc.abstractmethod
    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        """Return the samples with these indices, which are not negative: float32 (k, …) in memory."""

    @abc.abstractmethod
    def reshape(self, *shape: int) -> Rows:
        """Return the same samples in another shape."""

    @property
    def rows(self) -> int:
        """Number of samples of a chunk."""
        return max(1, CHUNK // max(math.prod(self.shape[1:]) * self.dtype.itemsize, 1))

    def chunks(self, every: int = 1) -> Iterator[np.ndarray]:
        """Yield all samples, or each `every`-th, in chunks."""
        rows = self.rows
        for first in range(0, len(self), rows * every):
            yield self[first : first + rows * every : every]


class SparseRows(Rows):
    """The samples of a sparse matrix.

    Parameters
    ----------
    matrix : sparse matrix or array of SciPy, (n, features)
        It is converted to CSR.
    shape : tuple of int, optional
        The shape of a sample; by default (features,).
    """

    def __init__(self, matrix: Any, shape: tuple[int, ...] | None = None) -> None:
        self.matrix, self.sample = matrix.tocsr(), (matrix.shape[1],) if shape is None else shape
        self.most = self.rows

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape[0], *self.sample

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        some = self.matrix[index if isinstance(index, slice) else np.asarray(index)]
        return np.asarray(some.toarray(order="C"), np.float32).reshape(-1, *self.sample)

    def reshape(self, *shape: int) -> SparseRows:
        """Return the same samples in another shape (n, …)."""
        return SparseRows(self.matrix, tuple(shape[1:]))


class Later:
    """Samples of `Rows` that are read when NumPy makes an array of them."""

    def __init__(self, samples: Rows, rows: np.ndarray) -> None:
        self.samples, self.rows = samples, rows

    def __getitem__(self, index: slice) -> Later:
        """Return some of the samples."""
        return Later(self.samples, self.rows[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.samples[self.rows].astype(dtype or np.float32, copy=False)


def is_large(shape: tuple[int, ...]) -> bool:
    """Return True if float32 samples of this shape should not be dense as a whole."""
    return math.prod(shape) * np.dtype(np.float32).itemsize >= LEAST
