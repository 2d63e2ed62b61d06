"""The entries of a sparse matrix in the form that kernels read, and checks of the arguments of the classes in `sparse`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


# --- for kernels ------------------------------------------------------------------------------------------------------
class Entries(NamedTuple):
    """The structure of a sparse matrix (O, I), by row and by column, as int32 arrays. It has V values, of which nnz are
    entries and the others padding. For a BSR, a row is a block row, a column is a block column, and an entry is a tile.
    """

    starts: Any  # (O,) index of the first value of each row
    stops: Any  # (O,) index after the last value of each row; values from there to the next row are padding
    ids: Any  # (V,) the column of each value
    # this field and the next two are the same for columns, with entries sorted by column: (I,), (I,) and (nnz,)
    col_starts: Any
    col_stops: Any
    col_ids: Any  # the row of each entry
    order: Any  # (nnz,) index in the values of each entry, sorted by column


def entries(starts: np.ndarray, stops: np.ndarray, ids: np.ndarray, columns: int) -> Entries:
    """Return the `Entries` of a matrix with `columns` columns. The entries of row o are the values starts[o] … stops[o] - 1;
    value k is in column ids[k].
    """
    counts = stops - starts
    k = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)  # indices of the values, row by row
    of_entries = ids[k]
    order = np.argsort(of_entries, kind="stable")
    ends = np.cumsum(np.bincount(of_entries, minlength=columns))
    rows = np.repeat(np.arange(len(starts)), counts)
    arrays = starts, stops, ids, np.concatenate([[0], ends[:-1]])[:columns], ends, rows[order], k[order]
    return Entries(*(np.array(array, np.int32) for array in arrays))  # copies, because compiled loops reject read-only arrays


# --- checks -----------------------------------------------------------------------------------------------------------
def frozen(name: str, what: str, array: Any, dtype: type, axes: int) -> np.ndarray:
    """Return a read-only copy of `array` with type `dtype`. Raise TypeError or ValueError, which say that it is `what` of the
    class `name`, if it does not have `axes` axes or if the type cannot represent its values.
    """
    try:
        given = np.asarray(array)
        if np.iscomplexobj(given):
            raise TypeError("they are complex")
        copied = np.array(given, dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: {what} cannot be read as {np.dtype(dtype)} numbers ({error})") from error
    if given.ndim != axes:
        raise ValueError(f"{name}: {what} {given.shape} must have {axes} ax{'is' if axes == 1 else 'es'}")
    if np.issubdtype(dtype, np.integer) and given.dtype != copied.dtype and (wrong := np.flatnonzero(copied != given)).size:
        raise ValueError(f"{name}: {what} must be integers below 2^31, and {what}[{wrong[0]}] is {given.flat[wrong[0]]}")
    copied.flags.writeable = False
    return copied


def sides(name: str, shape: Any) -> tuple[int, int]:
    try:
        rows, columns = (int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: shape must be (rows, columns), got {shape!r}") from error
    if min(rows, columns) < 0 or (rows, columns) != tuple(shape):
        raise ValueError(f"{name}: shape must be two whole numbers >= 0, got {shape!r}")
    return rows, columns


def check_rows(
    name: str, indptr: np.ndarray, indices: np.ndarray, grid: tuple[int, int], line: str = "row", column: str = "column"
) -> None:
    """Raise ValueError unless indptr and indices describe grid[0] rows, in each of which the indices increase and are below
    grid[1]; the message names the first wrong row.
    """
    rows, columns = grid
    if indptr.size != rows + 1:
        raise ValueError(f"{name}: indptr {indptr.shape} must have one more element than there are {line}s ({rows})")
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise ValueError(
            f"{name}: indptr must go from 0 to {indices.size}, the number of indices, not from {indptr[0]} to {indptr[-1]}"
        )
    if (falls := np.flatnonzero(np.diff(indptr) < 0)).size:
        raise ValueError(
            f"{name}: {line} {falls[0]} ends before it begins: indptr goes from {indptr[falls[0]]} to {indptr[falls[0] + 1]}"
        )
    row_of = np.repeat(np.arange(rows), np.diff(indptr))
    if (outside := np.flatnonzero((indices < 0) | (indices >= columns))).size:
        k = outside[0]
        raise ValueError(f"{name}: {line} {row_of[k]} contains {column} {indices[k]}, but there are {columns}")
    steps = np.diff(indices)
    if (wrong := np.flatnonzero((steps <= 0) & (row_of[1:] == row_of[:-1]))).size:
        k = wrong[0]
        said = (
            f"has {column} {indices[k]} twice"
            if steps[k] == 0
            else f"is not sorted: {column} {indices[k + 1]} follows {indices[k]}"
        )
        raise ValueError(f"{name}: {line} {row_of[k]} {said}; scipy.sparse's sum_duplicates() merges and sorts them")


def check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"{name}: values[{', '.join(map(str, where))}] is {values[where]}: values must be finite")


def assign(value: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass in its constructor."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


def ends(counts: np.ndarray) -> np.ndarray:
    """Return the indptr of a sparse matrix whose row i has counts[i] entries: 0, followed by the cumulative sums of counts."""
    return np.concatenate([[0], np.cumsum(counts)])
