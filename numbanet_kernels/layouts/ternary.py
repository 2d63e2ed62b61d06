"""A random matrix of -1, 0 and 1 as index lists, as the kernels of `families.projection` read them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

PIECE = 128  # columns of a piece, a power of 2; 32 samples of a piece take 16 KiB, which fit into the L1 cache or shared memory


class Ternary(NamedTuple):
    """The index lists of a matrix R (k, d) of -1, 0 and 1. The columns of R are divided into pieces of PIECE columns. For each
    row of a piece there are two lists: the columns with 1 (s = 0), then the columns with -1 (s = 1).

    List s of row j in piece p is columns[starts[l]:starts[l + 1]], where l = 2 (p k + j) + s.
    """

    columns: Any  # (ones and minus ones,) int32, increasing within a list
    starts: Any  # (2 k pieces + 1,) int32


@functools.lru_cache(maxsize=64)
def ternary(rows: int, width: int, seed: int) -> Ternary:
    """Return the lists of a random R (rows, width): an element is 1 with probability 1/6, and -1 with probability 1/6."""
    signs = np.random.default_rng((seed, rows, width)).integers(6, size=(rows, width), dtype=np.int8)
    row, column = np.nonzero(signs < 2)
    lists = 2 * (column // PIECE * rows + row) + signs[row, column]
    order = np.argsort(lists, kind="stable")
    counts = np.bincount(lists, minlength=2 * rows * -(-width // PIECE))
    return Ternary(column[order].astype(np.int32), np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def dense(lists: Ternary, rows: int, width: int) -> np.ndarray:
    """Return the matrix R (rows, width) of -1, 0 and 1 that the lists describe."""
    matrix = np.zeros((rows, width))
    numbers = np.repeat(np.arange(lists.starts.size - 1), np.diff(lists.starts))
    matrix[numbers // 2 % max(rows, 1), lists.columns] = np.where(numbers % 2, -1.0, 1.0)
    return matrix
