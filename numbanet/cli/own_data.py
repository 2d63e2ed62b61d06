"""Tables of the user's own: CSV and NPY files with a target column."""

from __future__ import annotations

import csv
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

KINDS = (".csv", ".npy")
NO_NUMBER = r".*to float32 at row (\d+), column (\d+)"  # what NumPy says of a cell that is no number
LARGEST = float(np.finfo(np.float32).max)
RANGE = "must be between -3.4e38 and 3.4e38, the range of float32"
LENGTH = 40  # characters of a cell in a message
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


def read(name: str, target: str | None, known: Sequence[str] = (), text: bool = False) -> Table:
    """Read a CSV or NPY file. `target` is the name or the number of the target column, counted from 0, or from the end if it is
    negative; None if there is none. `known` are the names of the features of a network: if the columns of the file have names,
    too, its features are those columns, in this order, and no others are read.

    The target consists of integers, of other numbers, or of text, as which it is read from a CSV file if `text` is True;
    features are numbers. A first line of a CSV file is a header
    if a cell of it is text where the line after it has a number, or if all its cells are text.

    Raises
    ------
    ValueError
        If the file is no such table, lacks a column, has two of one name, or has a cell that cannot be used; the message names
        the file, the column, and the line of the cell.
    FileNotFoundError
        If there is no such file.
    """
    try:
        return _npy(name, target) if Path(name).suffix.lower() == ".npy" else _csv(name, target, known, text)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {name}") from None
    except (ValueError, EOFError, csv.Error) as error:
        raise ValueError(f"{name}: {error}") from error


def shown(names: Sequence[str]) -> str:
    """Return the first names, for a message."""
    return ", ".join(map(repr, names[:20])) + ", …" * (len(names) > 20)


def _npy(name: str, target: str | None) -> Table:
    values = np.load(name, allow_pickle=False)
    if not isinstance(values, np.ndarray):
        values.close()
        raise ValueError("it is a .npz archive of arrays: save the table alone, by numpy.save")
    if values.dtype.kind not in "fiub" or values.ndim < 2 or (target is not None and values.ndim != 2):
        raise ValueError(f"a table of numbers (rows, columns) expected, got {values.dtype} {values.shape}")
    if not len(values):
        raise ValueError("the file has no rows")
    names = [str(i) for i in range(values.shape[-1])]
    if target is None:
        _check_range(values, names)
        return Table(values, None, names)
    at, others = _apart(target, names)
    X, features = np.delete(values, at, 1), [names[i] for i in others]
    _check_range(X, features)
    return Table(X.astype(np.float32), _typed(values[:, at], names[at]), features)


def _check_range(X: np.ndarray, names: list[str]) -> None:
    """Raise ValueError if a number of an array (rows, columns) is missing or beyond float32; it names row and column."""
    if X.dtype.kind != "f" or X.ndim != 2:
        return  # of arrays with more axes, the network names what it cannot take
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(X.astype(np.float32, copy=False))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"{_counted(row)}: column {names[column]!r} has {_problem(str(X[row, column]))}")


def _counted(row: int) -> str:
    return f"row {row} (counted from 0)"


def _csv(name: str, target: str | None, known: Sequence[str], text: bool) -> Table:
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
    if repeated := [column for column, count in Counter(names).items() if count > 1]:
        raise ValueError(f"the first row names more than one column {shown(repeated)}: name each column differently")
    if header and len(first) == 1:
        raise ValueError("the file has no rows")
    _check_lengths(name, len(names))
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
    X = _numbers(name, names, header, known, {**options, "usecols": used})
    features, unused = [names[i] for i in used], [names[i] for i in others if i not in used]
    if at is None:
        return Table(X, None, features, unused)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Input line .* contained no data")  # NumPy reads texts in parts of so many rows
        y = np.loadtxt(name, str, usecols=[at], **options)[:, 0]
    return Table(X, _typed(y, names[at], lambda row: f"line {_row(name, row + header)[0]}", text), features, unused)


def _check_lengths(name: str, width: int) -> None:
    """Raise ValueError if a row has not as many cells as there are columns; it names the line."""
    for line, row in _rows(name):
        if len(row) != width:
            cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
            raise ValueError(
                f"line {line} has {cells}, and the first row has {width}: write a cell for each column, and quote cells with "
                "commas"
            )


def _numbers(name: str, names: list[str], header: bool, known: Sequence[str], options: dict[str, Any]) -> np.ndarray:
    """Return columns of numbers; an error names the line, the column and the cell, and a missing header if there may be one."""
    try:
        X = np.loadtxt(name, np.float32, **options)
    except ValueError as error:
        if not (found := re.search(NO_NUMBER, str(error), re.DOTALL)):
            raise
        number, column = int(found[1]), int(found[2]) - 1
    else:
        wrong = ~np.isfinite(X)
        if not wrong.any():
            return X
        number, column = np.argwhere(wrong)[0]
        column = options["usecols"][column]
    line, row = _row(name, number + header)
    problem = f"line {line}: column {names[column]!r} has {_problem(row[column])}"
    if not header and not number and _has_names(known):
        problem += f"; or the file lacks a first line with the names of columns: the network was trained on {shown(known)}"
    raise ValueError(problem)


def _problem(cell: str) -> str:
    """Return what is wrong with a cell of a feature, and the way out."""
    fill = "fill missing cells, by the median of the column for example, or leave the line out"
    if not (cell := cell.strip()):
        return f"an empty cell: {fill}"
    said = _shortened(cell)
    value = float(cell) if _is_number(cell) else 0.0
    if math.isnan(value):
        return f"{said}: {fill}"
    if abs(value) > LARGEST:
        return f"{said}: features {RANGE}"
    return f"the text {said}: features must be numbers"


def _shortened(cell: str) -> str:
    return repr(cell if len(cell) <= LENGTH else f"{cell[:LENGTH]}…")


def _rows(name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which it begins, cells) of each row; empty lines are no rows, and a row may have several lines."""
    with open(name, newline="", encoding="utf-8-sig") as file:
        before, reader = 0, csv.reader(file)
        for row in reader:
            if row:
                yield before + 1, row
            before = reader.line_num


def _row(name: str, number: int) -> tuple[int, list[str]]:
    """Return (line, cells) of a row. Rows are counted from 0."""
    return next(itertools.islice(_rows(name), number, None))


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
    if not (_has_names(known) and _has_names(own)):
        return others
    for column in known:
        if column not in own:
            raise ValueError(f"there is no column {column!r}; the network was trained on {shown(known)}")
    return [others[own.index(column)] for column in known]


def _has_names(columns: Sequence[str]) -> bool:
    """Return True if the columns are not just numbered."""
    return any(not column.isdecimal() for column in columns)


def _column(target: str, names: list[str]) -> int:
    """Return the number of the target column."""
    if target in names:
        return names.index(target)
    if target.lstrip("-").isdecimal() and -len(names) <= int(target) < len(names):
        return int(target) % len(names)
    raise ValueError(f"there is no column {target!r}; --target is one of {shown(names)}, or a number, -1 for the last column")


def _typed(y: np.ndarray, name: str, place: Callable[[int], str] = _counted, as_text: bool = False) -> np.ndarray:
    """Return a target as int64 if all values are integers, as float64 if all are numbers, else, or if `as_text`, as text; raise
    ValueError if some are missing, which is what few texts among numbers are taken for, or beyond float32. The message has the
    name of the column and place(row).
    """
    if y.dtype.kind in "iub":
        return y.astype(np.int64)
    wrong = np.zeros(len(y), bool)
    if y.dtype.kind == "U":
        y = np.char.strip(y)
        wrong = np.char.str_len(y) == 0
        if as_text and not wrong.any():
            return y
        if not wrong.any() and (text := np.array([not _is_number(cell) for cell in y])).sum() <= len(y) // 2:
            wrong = text
    way = "fill such cells, or leave the lines out"
    if not wrong.any():
        try:
            values = y.astype(np.float64)
        except ValueError:
            return y
        wrong = ~(np.abs(values) <= LARGEST)
        if not np.isnan(values[wrong][:1]).any():
            way = f"values {RANGE}"
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{place(row)}: the target column {name!r} has {_shortened(str(y[row]))}: {way}")
    whole = np.array_equal(values, np.floor(values)) and np.abs(values).max(initial=0) < 2**53
    return values.astype(np.int64) if whole else values
