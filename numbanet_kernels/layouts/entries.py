"""Where the entries of a sparse matrix are: the arrays that kernels take, and the checks of those that `sparse` is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


# --- what kernels take ------------------------------------------------------------------------------------------------
class Entries(NamedTuple):
    """Where the entries of a sparse matrix (O, I) are, by row and by column: int32 arrays. Of a BSR, rows and columns are
    block rows and block columns, and an entry is a tile."""

    starts: Any  # (O,) where the entries of a row begin in the values
    stops: Any  # (O,) and where they end; what lies between there and the next row is padding
    ids: Any  # (V,) the column of each value
    col_starts: Any  # (I,) the same by column: (I,), (I,) and (nnz,)
    col_stops: Any
    col_ids: Any  # the row of each entry
    places: Any  # (nnz,) where the entry of this place by column lies in the values


def entries(starts: np.ndarray, stops: np.ndarray, ids: np.ndarray, columns: int) -> Entries:
    """The entries of rows with these columns."""
    counts = stops - starts
    k = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)  # where the values are, row by row
    of_entries = ids[k]
    order = np.argsort(of_entries, kind="stable")
    ends = np.cumsum(np.bincount(of_entries, minlength=columns))
    rows = np.repeat(np.arange(len(starts)), counts)
    found = starts, stops, ids, np.concatenate([[0], ends[:-1]])[:columns], ends, rows[order], k[order]
    return Entries(*(np.array(array, np.int32) for array in found))  # copies: compiled loops take none that is read-only


# --- checks -----------------------------------------------------------------------------------------------------------
def frozen(name: str, what: str, array: Any, dtype: type, axes: int) -> np.ndarray:
    """A copy of the array as this type, which must hold its values; nobody can write to it."""
    try:
        given = np.asarray(array)
        if np.iscomplexobj(given):
            raise TypeError("they are complex")
        found = np.array(given, dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: {what} cannot be read as {np.dtype(dtype)} numbers ({error})") from error
    if given.ndim != axes:
        raise ValueError(f"{name}: {what} {given.shape} must have {axes} ax{'is' if axes == 1 else 'es'}")
    if np.issubdtype(dtype, np.integer) and given.dtype != found.dtype and (wrong := np.flatnonzero(found != given)).size:
        raise ValueError(f"{name}: {what} must be integers below 2^31, and {what}[{wrong[0]}] is {given.flat[wrong[0]]}")
    found.flags.writeable = False
    return found


def sides(name: str, shape: Any) -> tuple[int, int]:
    try:
        rows, columns = (int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: shape must be (rows, columns), got {shape!r}") from error
    if min(rows, columns) < 0 or (rows, columns) != tuple(shape):
        raise ValueError(f"{name}: shape must be two whole numbers from 0 on, got {shape!r}")
    return rows, columns


def check_rows(
    name: str, indptr: np.ndarray, indices: np.ndarray, grid: tuple[int, int], line: str = "row", column: str = "column"
) -> None:
    """ValueError, saying where, unless indptr and indices are those of rows whose indices increase below grid[1]."""
    rows, columns = grid
    if indptr.size != rows + 1:
        raise ValueError(f"{name}: indptr {indptr.shape} must have one number more than the {rows} {line}s there are")
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise ValueError(
            f"{name}: indptr must go from 0 to the {indices.size} indices there are, not from {indptr[0]} to {indptr[-1]}"
        )
    if (falls := np.flatnonzero(np.diff(indptr) < 0)).size:
        raise ValueError(
            f"{name}: {line} {falls[0]} ends before it begins: indptr goes from {indptr[falls[0]]} to {indptr[falls[0] + 1]}"
        )
    row_of = np.repeat(np.arange(rows), np.diff(indptr))
    if (outside := np.flatnonzero((indices < 0) | (indices >= columns))).size:
        k = outside[0]
        raise ValueError(f"{name}: {line} {row_of[k]} names {column} {indices[k]}, and there are {columns}")
    steps = np.diff(indices)
    if (wrong := np.flatnonzero((steps <= 0) & (row_of[1:] == row_of[:-1]))).size:
        k = wrong[0]
        said = (
            f"has {column} {indices[k]} twice"
            if steps[k] == 0
            else f"is not sorted: {column} {indices[k + 1]} follows {indices[k]}"
        )
        raise ValueError(f"{name}: {line} {row_of[k]} {said}; scipy.sparse's sum_duplicates() puts it right")


def check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"{name}: values[{', '.join(map(str, where))}] is {values[where]}: values must be finite")


def assign(value: Any, **fields: Any) -> None:
    """Of a frozen value that is being made."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


def ends(counts: np.ndarray) -> np.ndarray:
    """0, and the sums of so many numbers up to each row: an indptr."""
    return np.concatenate([[0], np.cumsum(counts)])
