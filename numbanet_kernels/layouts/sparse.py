"""Layouts of sparse matrices: CSR, ELL (rows padded to one length) and BSR (dense tiles).

    CSR   row o has values[k] at column indices[k] for indptr[o] <= k < indptr[o + 1]
    ELL   row o has values[o, k] at column indices[o, k], up to the first negative index; the rest of the row is padding
    BSR   block row r has the tile values[k] at block column indices[k] for indptr[r] <= k < indptr[r + 1]; tiles at the far
          edges may extend beyond the matrix

All three are immutable values, which are checked when they are made. Indices increase within a row. Kernels take the structure
as `Entries`, which also lists the entries sorted by column, for products with the transpose.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .entries import Entries, assign, check_finite, check_rows, ends, entries, frozen, sides


@dataclasses.dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix by rows.

    Parameters
    ----------
    indptr : array_like of int
        (rows + 1,) the first entry of each row, and the end of the last row.
    indices : array_like of int
        (nnz,) the column of each entry, increasing within a row.
    values : array_like of float
        (nnz,) finite; explicit zeros are allowed.
    shape : tuple of int
        (rows, columns).

    Raises
    ------
    ValueError
        If the arrays do not fit together, or an entry is out of range, unsorted, duplicate or not finite; it says where.
    TypeError
        If an argument is not an array of numbers.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        assign(
            self,
            shape=sides("CSR", self.shape),
            indptr=frozen("CSR", "indptr", self.indptr, np.int32, 1),
            indices=frozen("CSR", "indices", self.indices, np.int32, 1),
            values=frozen("CSR", "values", self.values, np.float32, 1),
        )
        if self.values.shape != self.indices.shape:
            raise ValueError(f"CSR: values {self.values.shape} and indices {self.indices.shape} must have the same shape")
        check_rows("CSR", self.indptr, self.indices, self.shape)
        check_finite("CSR", self.values)

    @property
    def nnz(self) -> int:
        """The number of entries."""
        return self.indices.size

    @property
    def density(self) -> float:
        """The share of the matrix that has entries."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def rows(self) -> np.ndarray:
        """The row of each entry, an array (nnz,)."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int32), np.diff(self.indptr))

    def entries(self) -> Entries:
        """Return the structure as kernels take it, for `values`."""
        return entries(self.indptr[:-1], self.indptr[1:], self.indices, self.shape[1])

    def dense(self) -> np.ndarray:
        """Return the matrix as a dense float32 array."""
        matrix = np.zeros(self.shape, np.float32)
        matrix[self.rows, self.indices] = self.values
        return matrix

    @classmethod
    def from_dense(cls, matrix: Any, mask: Any = None) -> CSR:
        """Return a CSR with the entries of a matrix that `mask` selects, by default those that are not zero."""
        matrix = np.asarray(matrix, np.float32)
        mask = matrix != 0 if mask is None else np.asarray(mask, bool)
        if matrix.ndim != 2 or mask.shape != matrix.shape:
            raise ValueError(f"CSR.from_dense: matrix {matrix.shape} and mask {mask.shape} must be of one shape with two axes")
        rows, columns = np.nonzero(mask)
        return cls(ends(np.bincount(rows, minlength=len(matrix))), columns, matrix[mask], matrix.shape)

    def to_ell(self) -> ELL:
        """Return the same matrix as an ELL, in which each row is padded to the length of the longest row."""
        counts = np.diff(self.indptr)
        shape = self.shape[0], int(counts.max(initial=0))
        present = np.arange(shape[1]) < counts[:, None]
        indices, values = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
        indices[present], values[present] = self.indices, self.values
        return ELL(indices, values, self.shape)

    def to_bsr(self, tile: int) -> BSR:
        """Return the same matrix as a BSR of all tiles with an entry; other elements of these tiles are explicit zeros."""
        if tile < 1:
            raise ValueError(f"CSR.to_bsr: tile must be at least 1, got {tile}")
        grid = tuple(-(-n // tile) for n in self.shape)
        block_of = (self.rows // tile).astype(np.int64) * grid[1] + self.indices // tile
        blocks, of = np.unique(block_of, return_inverse=True)
        values = np.zeros((blocks.size, tile, tile), np.float32)
        values[of.reshape(-1), self.rows % tile, self.indices % tile] = self.values
        columns = max(grid[1], 1)
        return BSR(ends(np.bincount(blocks // columns, minlength=grid[0])), blocks % columns, values, self.shape)

    @classmethod
    def from_scipy(cls, matrix: Any) -> CSR:
        """Make a CSR from a `scipy.sparse` array or matrix, adding up duplicates; raise TypeError for anything else."""
        import scipy.sparse

        if not scipy.sparse.issparse(matrix):
            raise TypeError(
                f"CSR.from_scipy: expected a scipy.sparse matrix, got a {type(matrix).__name__}; convert a "
                "dense one by CSR.from_dense(matrix)"
            )
        matrix = matrix.tocsr(copy=True)
        matrix.sum_duplicates()
        return cls(matrix.indptr, matrix.indices, matrix.data, matrix.shape)

    def to_scipy(self) -> Any:
        """Return a copy as a `scipy.sparse.csr_array`."""
        import scipy.sparse

        return scipy.sparse.csr_array((np.array(self.values), np.array(self.indices), np.array(self.indptr)), self.shape)

    @classmethod
    def from_torch(cls, tensor: Any) -> CSR:
        """Make a CSR from a `torch.sparse_csr` tensor."""
        return cls(*_of_torch("CSR.from_torch", tensor, "sparse_csr"), tuple(tensor.shape))

    def to_torch(self) -> Any:
        """Return a `torch.sparse_csr` tensor of the same values."""
        return _to_torch("sparse_csr_tensor", self)


@dataclasses.dataclass(frozen=True, eq=False)
class ELL:
    """A sparse matrix with rows padded to one length, for structures with the same number of entries in each row.

    Parameters
    ----------
    indices : array_like of int
        (rows, K) the column of each entry, increasing; -1 after the last one of a row.
    values : array_like of float
        (rows, K), 0 where the index is -1.
    shape : tuple of int
        (rows, columns).

    Raises
    ------
    ValueError, TypeError
        As for `CSR`.
    """

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        assign(
            self,
            shape=sides("ELL", self.shape),
            indices=frozen("ELL", "indices", self.indices, np.int32, 2),
            values=frozen("ELL", "values", self.values, np.float32, 2),
        )
        if self.values.shape != self.indices.shape or len(self.values) != self.shape[0]:
            raise ValueError(
                f"ELL: indices {self.indices.shape} and values {self.values.shape} must have the same shape, "
                f"with the {self.shape[0]} rows of the matrix"
            )
        present = self.present
        counts = present.sum(1)
        if (gaps := np.flatnonzero((present != (np.arange(present.shape[1]) < counts[:, None])).any(1))).size:
            raise ValueError(f"ELL: row {gaps[0]} has an entry after its padding: negative indices belong at the end of a row")
        if (left := np.argwhere(~present & (self.values != 0))).size:
            raise ValueError(f"ELL: row {left[0, 0]} has the value {self.values[tuple(left[0])]} in its padding; it must be 0")
        check_rows("ELL", ends(counts), self.indices[present], self.shape)
        check_finite("ELL", self.values)

    @property
    def present(self) -> np.ndarray:
        """An array (rows, K) of bool that is False in padding."""
        return self.indices >= 0

    @property
    def nnz(self) -> int:
        """The number of entries without padding."""
        return int(self.present.sum())

    def entries(self) -> Entries:
        """Return the structure as kernels take it, for flat `values`; the gradient of padding is 0."""
        starts = np.arange(self.shape[0]) * self.indices.shape[1]
        return entries(starts, starts + self.present.sum(1), self.indices.ravel(), self.shape[1])

    def to_csr(self) -> CSR:
        """Return the same matrix as a CSR, without padding."""
        present = self.present
        return CSR(ends(present.sum(1)), self.indices[present], self.values[present], self.shape)

    def dense(self) -> np.ndarray:
        """Return the matrix as a dense float32 array."""
        return self.to_csr().dense()


@dataclasses.dataclass(frozen=True, eq=False)
class BSR:
    """A sparse matrix of dense square tiles, sorted by block rows. Pruning tiles of a weight gives such a matrix.

    Parameters
    ----------
    indptr : array_like of int
        (block rows + 1,) the first tile of each block row, and the end of the last block row.
    indices : array_like of int
        (tiles,) the block column of each tile, increasing within a block row.
    values : array_like of float
        (tiles, T, T), 0 beyond the edges of the matrix.
    shape : tuple of int
        (rows, columns) of the matrix.

    Raises
    ------
    ValueError, TypeError
        As for `CSR`.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        assign(
            self,
            shape=sides("BSR", self.shape),
            indptr=frozen("BSR", "indptr", self.indptr, np.int32, 1),
            indices=frozen("BSR", "indices", self.indices, np.int32, 1),
            values=frozen("BSR", "values", self.values, np.float32, 3),
        )
        if self.values.shape != (self.indices.size, self.tile, self.tile) or self.tile < 1:
            raise ValueError(
                f"BSR: values {self.values.shape} must have one square tile for each of the {self.indices.size} indices"
            )
        check_rows("BSR", self.indptr, self.indices, self.grid, "block row", "block column")
        check_finite("BSR", self.values)
        if (out := np.argwhere((self.values != 0) & ~self.inside())).size:
            raise ValueError(f"BSR: tile {out[0, 0]} is not 0 outside of the matrix {self.shape}")

    @property
    def tile(self) -> int:
        """T, the side of a tile."""
        return self.values.shape[1]

    @property
    def grid(self) -> tuple[int, int]:
        """(block rows, block columns): the numbers of tile rows and tile columns that cover the matrix."""
        return -(-self.shape[0] // self.tile), -(-self.shape[1] // self.tile)

    @property
    def nnz(self) -> int:
        """The number of elements of the matrix that are in stored tiles."""
        return int(self.inside().sum())

    @property
    def density(self) -> float:
        """The share of the matrix that is in stored tiles."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    def inside(self) -> np.ndarray:
        """Return an array (tiles, T, T) of bool that is True for elements inside the matrix."""
        rows, columns = self._elements()
        return (rows < self.shape[0])[:, :, None] & (columns < self.shape[1])[:, None, :]

    def _elements(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays (tiles, T): the rows and the columns of the matrix that each tile covers."""
        block_rows, across = np.repeat(np.arange(self.grid[0]), np.diff(self.indptr)), np.arange(self.tile)
        return block_rows[:, None] * self.tile + across, self.indices[:, None] * self.tile + across

    def entries(self) -> Entries:
        """Return the structure as kernels take it; an entry is a tile."""
        return entries(self.indptr[:-1], self.indptr[1:], self.indices, self.grid[1])

    def dense(self) -> np.ndarray:
        """Return the matrix as a dense float32 array."""
        out, (rows, columns) = np.zeros(tuple(n * self.tile for n in self.grid), np.float32), self._elements()
        out[rows[:, :, None], columns[:, None, :]] = self.values
        return np.ascontiguousarray(out[: self.shape[0], : self.shape[1]])

    @classmethod
    def from_dense(cls, matrix: Any, tile: int, mask: Any = None) -> BSR:
        """Return a BSR with the tiles that `mask` (block rows, block columns) selects, by default those that are not all 0."""
        matrix = np.asarray(matrix, np.float32)
        if tile < 1 or matrix.ndim != 2:
            raise ValueError(f"BSR.from_dense: tile {tile} must be at least 1, and matrix {matrix.shape} have two axes")
        grid = tuple(-(-n // tile) for n in matrix.shape)
        padded = np.pad(matrix, [(0, g * tile - n) for g, n in zip(grid, matrix.shape)])
        tiles = padded.reshape(grid[0], tile, grid[1], tile).swapaxes(1, 2)
        mask = (tiles != 0).any((2, 3)) if mask is None else np.asarray(mask, bool)
        if mask.shape != grid:
            raise ValueError(f"BSR.from_dense: mask {mask.shape} must have one element for each of the {grid} tiles")
        return cls(ends(mask.sum(1)), np.nonzero(mask)[1], tiles[mask], matrix.shape)

    def to_csr(self) -> CSR:
        """Return the same matrix as a CSR; all elements of tiles that are inside the matrix become entries, also zeros."""
        inside, (rows, columns) = self.inside(), self._elements()
        mask = np.zeros(self.shape, bool)
        mask[tuple(np.broadcast_to(part, inside.shape)[inside] for part in (rows[:, :, None], columns[:, None, :]))] = True
        return CSR.from_dense(self.dense(), mask)

    @classmethod
    def from_scipy(cls, matrix: Any) -> BSR:
        """Make a BSR from a `scipy.sparse` array or matrix of the format bsr with square tiles."""
        if getattr(matrix, "format", None) != "bsr":
            raise TypeError(
                f"BSR.from_scipy: expected a scipy.sparse matrix of format bsr, got a {type(matrix).__name__}; "
                "call tobsr((T, T)), or BSR.from_dense(matrix, tile) for a dense one"
            )
        matrix = matrix.copy()
        matrix.sum_duplicates()
        return cls(matrix.indptr, matrix.indices, matrix.data, matrix.shape)

    def to_scipy(self) -> Any:
        """Return a `scipy.sparse.bsr_array` of the same values; raise ValueError if tiles extend beyond the matrix."""
        import scipy.sparse

        self._whole("to_scipy")
        return scipy.sparse.bsr_array((np.array(self.values), np.array(self.indices), np.array(self.indptr)), self.shape)

    @classmethod
    def from_torch(cls, tensor: Any) -> BSR:
        """Make a BSR from a `torch.sparse_bsr` tensor with square tiles."""
        return cls(*_of_torch("BSR.from_torch", tensor, "sparse_bsr"), tuple(tensor.shape))

    def to_torch(self) -> Any:
        """Return a `torch.sparse_bsr` tensor of the same values; raise ValueError if tiles extend beyond the matrix."""
        self._whole("to_torch")
        return _to_torch("sparse_bsr_tensor", self)

    def _whole(self, name: str) -> None:
        if any(n % self.tile for n in self.shape):
            raise ValueError(f"BSR.{name}: {self.shape} is not a multiple of the tile {self.tile}; to_csr() has no such limit")


def _of_torch(name: str, tensor: Any, layout: str) -> tuple[np.ndarray, ...]:
    """Return (indptr, indices, values) of a sparse tensor of PyTorch."""
    if str(getattr(tensor, "layout", "")) != f"torch.{layout}":
        raise TypeError(
            f"{name}: expected a tensor of layout {layout}, got "
            f"{getattr(tensor, 'layout', type(tensor).__name__)}; call to_{layout}()"
        )
    parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tuple(part.detach().cpu().numpy() for part in parts)


def _to_torch(maker: str, matrix: CSR | BSR) -> Any:
    import torch

    parts = (torch.from_numpy(np.array(part)) for part in (matrix.indptr, matrix.indices, matrix.values))
    return getattr(torch, maker)(*parts, size=matrix.shape, check_invariants=True)
