"""Mapped: the samples of a memory-mapped file, of which only the rows of a batch are ever in memory."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from .rows import Rows, is_large as is_large_shape

FEW = 4096  # fewer samples are read as a whole


def is_large(X: Any) -> bool:
    """Return True if X is a memory-mapped array of real numbers that should not be read as a whole."""
    return isinstance(X, np.memmap) and X.ndim > 1 and X.dtype.kind in "fiub" and len(X) > FEW and is_large_shape(X.shape)


class Mapped(Rows):
    """The samples of a memory-mapped array, converted to float32 when they are read.

    Pages of a map that were read count as memory of the process, up to megabytes around each sample. So samples are read from
    the file itself where that is possible; otherwise the pages are unmapped after each batch. The operating system keeps what
    was read in its cache as long as it has room.

    Parameters
    ----------
    array : numpy.memmap
        The array (n, …), such as `numpy.load(name, mmap_mode="r")` returns.
    """

    def __init__(self, array: np.memmap) -> None:
        self.array = array
        self.file, self.start = _opened(array)
        if self.file is not None:
            weakref.finalize(self, self.file.close)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def reshape(self, *shape: int) -> Mapped:
        """Return the same samples in another shape."""
        view: Any = self.array.reshape(*shape)  # also of the class memmap
        return Mapped(view)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        rows: Sequence[int] = range(len(self))[index] if isinstance(index, slice) else np.asarray(index).tolist()
        if self.file is None:
            found = np.array(self.array[index], np.float32, order="C")
            self._unmap()
            return found
        found = np.empty((len(rows), *self.shape[1:]), self.array.dtype)
        if isinstance(rows, range) and rows.step == 1 and self.array.flags.c_contiguous:
            self._read(found, rows.start)
        else:
            for own, row in zip(found, rows):
                self._read(own, row)
        return found.astype(np.float32, copy=False)

    def _read(self, out: np.ndarray, row: int) -> None:
        """Fill a contiguous array from the file, from sample `row` on."""
        content: Any = out.reshape(-1).view(np.uint8)
        at, left = self.start + row * self.array.strides[0], memoryview(content)
        while len(left):
            count = os.preadv(self.file.fileno(), [left], at)
            if not count:
                raise OSError(f"{self.array.filename} has become shorter while it is read")
            at, left = at + count, left[count:]

    def _unmap(self) -> None:
        """Unmap the pages that were read. A copy-on-write map keeps its pages, which may have been changed."""
        if self.array.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                map_of(self.array).madvise(mmap.MADV_DONTNEED)

    def check_finite(self, name: str) -> None:
        """Raise ValueError, as scikit-learn does, if a number is not finite in float32."""
        with np.errstate(all="ignore"):
            for part in self.chunks() if self.array.dtype.kind == "f" else ():
                if not math.isfinite(part.sum(dtype=np.float64)):
                    what = "NaN" if np.isnan(part).any() else "infinity or a value too large for dtype('float32')"
                    raise ValueError(f"Input {name} contains {what}.")


def map_of(array: np.memmap) -> mmap.mmap:
    """Return the map of an array."""
    return vars(array)["_mmap"]  # NumPy has no other name for it


def _opened(array: np.memmap) -> tuple[Any, int]:
    """Return the file of an array, opened for reading, and the position of the array in it. The file is None if it is not
    known, or is no longer that of the array, or if samples are not contiguous.
    """
    if not hasattr(os, "preadv") or array.mode not in ("r", "r+") or not array[0].flags.c_contiguous or array.strides[0] < 0:
        return None, 0
    try:
        file = open(os.fspath(array.filename or ""), "rb", buffering=0)  # noqa: SIM115  it is read until this object is deleted
    except (OSError, TypeError):
        return None, 0
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + _place(array)
    for row in (0, len(array) - 1):
        if os.pread(file.fileno(), array[0].nbytes, start + row * array.strides[0]) != array[row].tobytes():
            file.close()
            return None, 0
    return file, start


def _place(array: np.memmap) -> int:
    """Return the offset in bytes of the first sample in the map. Bisection finds it: the bytes of the map before the offset
    share no memory with the sample, and the byte at the offset does.
    """
    mapped, first = np.frombuffer(map_of(array), np.uint8), array[:1]
    low, high = 0, mapped.size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if np.may_share_memory(mapped[:middle], first) else (middle, high)
    return low
