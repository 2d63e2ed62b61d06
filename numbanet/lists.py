"""What a device has of a plan: index arrays that say what is kept, where they lie, and gradients that are packed by them."""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from .device import Device


class Packing(NamedTuple):
    """How a packed gradient lies in its (R, C) weight: int32 device arrays, as `numbanet_kernels.packed` defines them."""

    row_pos: object     # (R,)
    row_class: object   # (R,)
    cols: object        # (L, K)
    col_pos: object     # (L, C)


class RowLists(NamedTuple):
    """The kept indices of an axis of length n, as kernels read them: int32 arrays."""

    places: Any     # (n,) place of each index among the kept ones, -1 where dropped
    classes: Any    # (n,) zeros: for a `Packing`, which has the other two with another axis, too
    kept: Any       # (K,)
    cols: Any       # (1, K)
    col_pos: Any    # (1, n)


class Lists(NamedTuple):
    """The index arrays of a plan on a device, in one array: all of them are copied at once."""

    whole: Any      # int32
    parts: Any      # parts of it, a `RowLists`, or the arrays of a `Packing` and a `TileLists`

    @classmethod
    def uploaded(cls, host: tuple, dev: Device) -> Lists:
        """Host arrays as the lists of a device."""
        padded = [np.pad(array.reshape(-1).astype(np.int32), (0, -array.size % APART)) for array in host]
        return cls._of(dev.upload(np.concatenate(padded)), host, dev)

    @classmethod
    def _of(cls, whole: Any, like: tuple, dev: Device) -> Lists:
        parts, start = [], 0
        for array in like:
            found = dev.part(whole, start, start + array.size) if array.size else dev.empty((0,), np.int32)
            parts.append(dev.reshape(found, array.shape))
            start += array.size + -array.size % APART
        return cls(whole, RowLists(*parts) if isinstance(like, RowLists) else tuple(parts))

    def place(self, dev: Device) -> Lists:
        """Room for lists of this kind."""
        return self._of(dev.empty(self.whole.shape, np.int32), self.parts, dev)


APART = 64  # numbers between the starts of two lists: 256 bytes, as a device aligns its own arrays


class Blocks(NamedTuple):
    """A division of a weight into blocks, and which of them a plan reads."""

    size: tuple[int, int]   # rows and columns of a block
    wanted: object          # (block rows, block columns) bool device array


@functools.lru_cache(maxsize=64)
def every_block(shape: tuple[int, int], dev: Device) -> tuple[Any, Any]:
    """(block rows, block columns) device arrays: int32, none is behind, and bool, all are wanted."""
    return dev.upload(np.zeros(shape, np.int32)), dev.upload(np.ones(shape, bool))


class PackedGradient(NamedTuple):
    """Gradient of a weight on what a plan kept: `values` packed as `packing` says, zero elsewhere."""

    values: object
    packing: Packing
    shape: tuple[int, ...]

    def dense(self, dev: Device):
        """The gradient as an array of the weight's shape."""
        matrix = self.shape if len(self.shape) == 2 else (1, self.shape[0])
        return dev.reshape(dev.unpack_gradient(self.values, self.packing, matrix), self.shape)
