"""Which indices of an axis are kept."""

from __future__ import annotations

from typing import Any, NamedTuple


class Period(NamedTuple):
    """Indices that are a step apart, in both forms that devices take. On CUDA recorded launches know the step, and find in
    `indices` where they begin; on the CPU the slice is a view."""

    indices: Any  # (K,) int32
    slice: slice

    @property
    def size(self) -> int:
        return self.indices.size


class RowLists(NamedTuple):
    """The kept indices of an axis of length n, as kernels read them: int32 arrays."""

    inverse: Any  # (n,) place of each index among the kept ones, -1 where dropped
    classes: Any  # (n,) zeros: rows are of one class (`packed.Packing`)
    indices: Any  # (K,)
