"""Tables of the user's own: CSV and NPY files with a target column."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

KINDS = (".csv", ".npy")
# what NumPy says of a cell that is no number
NO_NUMBER = r"convert string ['\"](.*?)['\"]? to float32 at row (\d+), column (\d+)"
SIGNS = {";": "semicolons", "\t": "tabs"}  # that other programs write between cells


class Table(NamedTuple):
    """The columns of a file, apart: features (n, columns) float32, the target (n,) or None, and their names."""

    X: np.ndarray
    y: np.ndarray | None
    names: list[str]  # of the features: those of the header, or the numbers of the columns
    unused: Sequence[str] = ()  # names of the columns that are neither feature nor target


def is_file(name: str) -> bool:
    """Return True if `name` is that of a file rather than of a data set."""
    return Path(name).suffix.lower() in KINDS


def read(name: str, target: str | None, known: Sequence[str] = ()) -> Table:
    """Read a CSV or NPY file. `target` is the name or the number of the target column, counted from 0, or from the end if it is
    negative; None if there is none. `known` are the names of the features of a network: if the columns of the file have names,
    too, its features are those columns, in this order, and no others are read.

    The target consists of integers, of other numbers, or of text; features are numbers. A first line of a CSV file is a header
    if a cell of it is text where the line after it has a number, or if all its cells are text.

    Raises
    ------
    ValueError
        If the file is no such table, or lacks a column; the message names the file and the column.
    FileNotFoundError
        If there is no such file.
    """
    try:
        return _npy(name, target) if Path(name).suffix.lower() == ".npy" else _csv(name, target, known)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {name}") from None
    except (ValueError, EOFError, csv.Error) as error:
        raise ValueError(f"{name}: {error}") from error


def shown(names: Sequence[str]) -> str:
    """Return the first names, for a message."""
    return ", ".join(map(repr, names[:20])) + ", …" * (len(names) > 20)


def _npy(name: str, target: str | None) -> Table:
    values = np.load(name, allow_pickle=False)
    if values.dtype.kind not in "fiub" or values.ndim < 2 or (target is not None and values.ndim != 2):
        raise ValueError(f"a table of numbers (rows, columns) expected, got {values.dtype} {values.shape}")
    if not len(values):
        raise ValueError("the file has no rows")
    names = [str(i) for i in range(values.shape[-1])]
    if target is None:
        return Table(values, None, names)
    at, others = _apart(target, names)
    return Table(np.delete(values, at, 1).astype(np.float32), _typed(values[:, at]), [names[i] for i in others])


def _csv(name: str, target: str | None, known: Sequence[str]) -> Table:
    with open(name, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        ends = [(row, reader.line_num) for row, _ in zip(filter(None, reader), range(2))]  # empty lines are no rows
    if not ends:
        raise ValueError("the file is empty")
    first = [row for row, _ in ends]
    if len(first[0]) == 1 and (sign := next((sign for sign in ";\t" if sign in first[0][0]), None)):
        raise ValueError(f"the first line has no comma, but {SIGNS[sign]}: separate cells with commas")
    header = _is_header(*first)
    names = [cell.strip() for cell in first[0]] if header else [str(i) for i in range(len(first[0]))]
    if any(len(row) != len(names) for row in first):
        raise ValueError(f"the first rows have {' and '.join(str(len(row)) for row in first)} cells: name each column")
    if header and not all(names):
        raise ValueError(
            f"the first row is text and has an empty cell: {shown(names)}; name each column, or fill missing cells"
        )
    if header and len(first) == 1:
        raise ValueError("the file has no rows")
    options: dict[str, Any] = {
        "delimiter": ",",
        "ndmin": 2,
        "skiprows": ends[0][1] if header else 0,  # lines: a name may have a line break
        "comments": None,
        "quotechar": '"',
        "encoding": "utf-8-sig",
    }
    at, others = (None, [*range(len(names))]) if target is None else _apart(target, names)
    used = _used(names, others, known)
    some = {} if used == [*range(len(names))] else {"usecols": used}  # without it NumPy refuses rows with more cells
    X = _numbers(name, names, {**options, **some})
    features, unused = [names[i] for i in used], [names[i] for i in others if i not in used]
    if at is None:
        return Table(X, None, features, unused)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input line .* contained no data")  # NumPy reads texts in parts of so many rows
        y = np.loadtxt(name, str, usecols=[at], **options)[:, 0]
    return Table(X, _typed(y, lambda row: _line(name, row + header)), features, unused)


def _numbers(name: str, names: list[str], options: dict[str, Any]) -> np.ndarray:
    """Return columns of numbers; an error names the line and the column."""
    try:
        return np.loadtxt(name, np.float32, **options)
    except ValueError as error:
        if not (found := re.search(NO_NUMBER, str(error), re.DOTALL)):
            raise
        line, column = _line(name, int(found[2]) + (options["skiprows"] > 0)), names[int(found[3]) - 1]
        if found[1].strip():
            problem = f"the text {found[1]!r}: features must be numbers"
        else:
            problem = "an empty cell: fill missing cells, by the median of the column for example, or leave the line out"
        raise ValueError(f"line {line}: column {column!r} has {problem}") from None


def _line(name: str, number: int) -> int:
    """Return the line on which a row begins. Rows are counted from 0, without empty lines, and may have several lines."""
    with open(name, newline="", encoding="utf-8-sig") as file:
        before, reader = 0, csv.reader(file)
        for row in reader:
            if row and not number:
                break
            number, before = number - bool(row), reader.line_num
    return before + 1


def _is_header(first: list[str], second: list[str] | None = None) -> bool:
    text = [not _is_number(cell) for cell in first]
    return all(text) or any(before and _is_number(after) for before, after in zip(text, second or ()))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _apart(target: str, names: list[str]) -> tuple[int, list[int]]:
    """Return the numbers of the target column and of the others, the features."""
    at = _column(target, names)
    if len(names) == 1:
        raise ValueError(f"there is no column but the target {names[at]!r}, and so no feature")
    return at, [i for i in range(len(names)) if i != at]


def _used(names: list[str], others: list[int], known: Sequence[str]) -> list[int]:
    """Return the numbers of the columns that are features: those that are `known`, if both have names, or else all `others`."""
    own = [names[i] for i in others]
    if not len(known) or not all(any(not cell.isdecimal() for cell in cells) for cells in (known, own)):
        return others
    for column in known:
        if column not in own:
            raise ValueError(f"there is no column {column!r}; the network was trained on {shown(known)}")
    return [others[own.index(column)] for column in known]


def _column(target: str, names: list[str]) -> int:
    """Return the number of the target column."""
    if names.count(target) > 1:
        raise ValueError(f"{names.count(target)} columns are named {target!r}: give the number of one")
    if target in names:
        return names.index(target)
    if target.lstrip("-").isdecimal() and -len(names) <= int(target) < len(names):
        return int(target) % len(names)
    raise ValueError(f"there is no column {target!r}; --target is one of {shown(names)}, or a number, -1 for the last column")


def _typed(y: np.ndarray, line: Callable[[int], int] = lambda row: row + 1) -> np.ndarray:
    """Return a target as int64 if all values are integers, as float64 if all are numbers, else as text; raise ValueError if
    some are missing, which is what few texts among numbers are taken for. line(row) is the line of the file that has a row.
    """
    if y.dtype.kind in "iub":
        return y.astype(np.int64)
    if y.dtype.kind == "U":
        y = np.char.strip(y)
        wrong = np.flatnonzero(np.char.str_len(y) == 0)
        if not wrong.size and 0 < (text := np.array([not _is_number(cell) for cell in y])).sum() <= len(y) // 2:
            wrong = np.flatnonzero(text)
        if wrong.size:
            where, what = line(int(wrong[0])), str(y[wrong[0]])
            raise ValueError(f"line {where}: the target column has {what!r}: fill such cells, or leave the lines out")
    try:
        values = y.astype(np.float64)
    except ValueError:
        return y
    if not np.isfinite(values).all():
        raise ValueError("the target column has missing or infinite values")
    whole = np.array_equal(values, np.floor(values)) and np.abs(values).max(initial=0) < 2**53
    return values.astype(np.int64) if whole else values
