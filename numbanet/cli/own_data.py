"""Tables of the user's own: CSV and NPY files with a target column."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

KINDS = (".csv", ".npy")


class Table(NamedTuple):
    """The columns of a file, apart: features (n, columns) float32, the target (n,) or None, and their names."""

    X: np.ndarray
    y: np.ndarray | None
    names: list[str]  # of the features: those of the header, or the numbers of the columns


def is_file(name: str) -> bool:
    """Return True if `name` is that of a file rather than of a data set."""
    return Path(name).suffix.lower() in KINDS


def read(name: str, target: str | None) -> Table:
    """Read a CSV or NPY file. `target` is the name or the number of the target column, counted from 0, or from the end if it is
    negative; None if there is none.

    The target consists of integers, of other numbers, or of text; all other columns are numbers. A first line of a CSV file
    is a header if a cell of it is text where the line after it has a number, or if all its cells are text.

    Raises
    ------
    ValueError
        If the file is no such table, or has no such column; the message names the file and the column.
    FileNotFoundError
        If there is no such file.
    """
    try:
        return _npy(name, target) if Path(name).suffix.lower() == ".npy" else _csv(name, target)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {name}") from None
    except (ValueError, EOFError, csv.Error) as error:
        raise ValueError(f"{name}: {error}") from error


def _npy(name: str, target: str | None) -> Table:
    values = np.load(name, allow_pickle=False)
    if values.dtype.kind not in "fiub" or (target is not None and values.ndim != 2):
        raise ValueError(f"a table of numbers (rows, columns) expected, got {values.dtype} {values.shape}")
    names = [str(i) for i in range(values.shape[-1])]
    if target is None:
        return Table(values, None, names)
    at = _column(target, names)
    return Table(np.delete(values, at, 1).astype(np.float32), _typed(values[:, at]), names[:at] + names[at + 1 :])


def _csv(name: str, target: str | None) -> Table:
    with open(name, newline="", encoding="utf-8-sig") as file:
        first = [row for row, _ in zip(csv.reader(file), range(2))]
    if not first:
        raise ValueError("the file is empty")
    header = _is_header(*first)
    names = [cell.strip() for cell in first[0]] if header else [str(i) for i in range(len(first[0]))]
    at = None if target is None else _column(target, names)
    others = [i for i in range(len(names)) if i != at]
    options: dict[str, Any] = {
        "delimiter": ",",
        "ndmin": 2,
        "skiprows": int(header),
        "comments": None,
        "quotechar": '"',
        "encoding": "utf-8-sig",
    }
    if at is None:
        return Table(np.loadtxt(name, np.float32, **options), None, names)
    y = np.loadtxt(name, str, usecols=[at], **options)[:, 0]
    for i in others if len(first) > header else ():
        if not _is_number(first[header][i]):
            raise ValueError(f"column {names[i]!r} has the text {first[header][i]!r}: features must be numbers")
    return Table(np.loadtxt(name, np.float32, usecols=others, **options), _typed(y), [names[i] for i in others])


def _is_header(first: list[str], second: list[str] | None = None) -> bool:
    text = [not _is_number(cell) for cell in first]
    return all(text) or any(before and _is_number(after) for before, after in zip(text, second or ()))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _column(target: str, names: list[str]) -> int:
    """Return the number of the target column."""
    if target in names:
        return names.index(target)
    if target.lstrip("-").isdecimal() and -len(names) <= int(target) < len(names):
        return int(target) % len(names)
    shown = ", ".join(names[:20]) + ", …" * (len(names) > 20)
    raise ValueError(f"there is no column {target!r}; --target is one of {shown}, or a number, -1 for the last column")


def _typed(y: np.ndarray) -> np.ndarray:
    """Return a target as int64 if all values are integers, as float64 if all are numbers, else as text."""
    try:
        values = y.astype(np.float64)
    except ValueError:
        return np.char.strip(y)
    if not np.isfinite(values).all():
        raise ValueError("the target column has missing or infinite values")
    return values.astype(np.int64) if np.array_equal(values, np.floor(values)) else values
