"""Kept indices of an axis, in the forms that kernels read."""

from __future__ import annotations

from typing import Any, NamedTuple


class Period(NamedTuple):
    """Indices with a constant step, in two forms. CUDA reads the first of `indices` and the step; in a recorded launch the step
    is fixed. The CPU uses the slice to make a view.
    """

    indices: Any  # (K,) int32
    slice: slice

    @property
    def size(self) -> int:
        return self.indices.size


class Window(NamedTuple):
    """`count` adjacent indices, modulo the length n of an axis: one run of increasing indices, or two if they wrap around.

    If `times` is above 1, the axis has `times` equal parts, such as the gates of an LSTM, and each part keeps the same window.
    """

    indices: Any  # (count,) int32, increasing
    count: int
    n: int
    times: int = 1

    @property
    def size(self) -> int:
        return self.count


class RowLists(NamedTuple):
    """The kept indices of an axis of length n, as kernels read them: int32 arrays."""

    inverse: Any  # (n,) for each index of the axis, its position among the kept ones, or -1 if it is dropped
    classes: Any  # (n,) int32 zeros, because all rows are of one class (`packed.Packing`)
    indices: Any  # (K,) the kept indices
