"""Sparse matrices as text: each entry is a line `row<TAB>column<TAB>value`. Rows and columns are counted from 1, and lines are
sorted by column and then by row.

Large pieces of a file are parsed at once with NumPy: the positions of the separators give the fields of all lines, and one
operation adds the digits at the same place of all fields.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from numbanet_kernels.runtime.interrupt import deferred

PIECE = 1 << 23  # number of bytes that are parsed at once
DIGITS, LETTERS = 9, 40  # maximal lengths of a number and of a value
TAB, END, RETURN = 9, 10, 13
DECIMAL = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\r?")  # the text of a value


class Triples(NamedTuple):
    """The entries of a sparse matrix: their rows and columns, counted from 0 (int32), and their values (float32)."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def read_entries(file: BinaryIO, source: object, shape: tuple[int, int], tick: Callable[[], Any] = lambda: None) -> Triples:
    """Read the entries of a matrix of shape `shape`; in the file they must be sorted by column and then by row.

    Raises
    ------
    ValueError
        If a line does not have three fields, if a number or value is invalid or out of range, if entries are not sorted, or if
        the last line has no end. The message names `source` and the line.
    """
    parts, line, last = [], 1, -1
    for piece in pieces(file, source):
        rows, columns, values = _parse(piece, source, line, shape)
        keys = columns * np.int64(shape[0]) + rows
        steps = np.diff(keys, prepend=last)
        if not (steps > 0).all():
            at = int(np.argmax(steps <= 0))
            problem = "occurs twice" if steps[at] == 0 else "is out of order: sort by column, then by row"
            raise ValueError(f"{source}, line {line + at}: the entry {rows[at] + 1}, {columns[at] + 1} {problem}")
        parts.append((rows.astype(np.int32), columns.astype(np.int32), values))
        line, last = line + len(rows), keys[-1]
        tick()
    if not parts:
        raise ValueError(f"{source}: entries expected, got an empty file")
    return Triples(*map(np.concatenate, zip(*parts)))


def read_numbers(file: BinaryIO, source: object, limit: int) -> np.ndarray:
    """Read a file with one number per line; the numbers must increase and be in 1 … limit. Return them minus 1, int64."""
    parts, line = [np.zeros(0, np.int64)], 1
    for piece in pieces(file, source):
        ends = np.flatnonzero(piece == END)
        before = ends - (piece[ends - 1] == RETURN)  # where lines end in CR LF
        numbers = _numbers(piece, np.concatenate([[0], ends[:-1] + 1]), before, source, line, limit, "number")
        parts.append(numbers)
        line += len(numbers)
    numbers = np.concatenate(parts)
    if (numbers[1:] <= numbers[:-1]).any():
        raise ValueError(f"{source}, line {int(np.argmax(numbers[1:] <= numbers[:-1])) + 2}: numbers must increase")
    return numbers


def pieces(file: BinaryIO, source: object):
    """Yield the bytes of a file in pieces of whole lines."""
    rest = b""
    while True:
        with deferred:  # signals wait, because a time-out in a signal handler may be raised as OSError
            try:
                read = file.read(PIECE)
            except (EOFError, OSError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
                raise ValueError(f"{source}: truncated or corrupt: {error}") from error
        if not read:
            break
        whole, end, after = read.rpartition(b"\n")
        if end:
            yield np.frombuffer(rest + whole + end, np.uint8)
            rest = after
        else:
            rest += read
            if len(rest) > PIECE:
                raise ValueError(f"{source}: lines expected, got {len(rest)} bytes without a line end")
    if rest:
        raise ValueError(f"{source}: truncated: the last line, {rest[:LETTERS]!r}, has no end")


# --- fields -----------------------------------------------------------------------------------------------------------
def _parse(piece, source, line, shape):
    """Parse a piece of whole lines, and return (rows, columns, values); `line` is the number of its first line, for errors."""
    ends, tabs = np.flatnonzero(piece == END), np.flatnonzero(piece == TAB)
    starts = np.concatenate([[0], ends[:-1] + 1])
    inside = np.searchsorted(tabs, ends) - np.searchsorted(tabs, starts) if len(tabs) != 2 * len(ends) else 2
    if np.any(inside != 2) or (tabs[::2] < starts).any() or (tabs[1::2] > ends).any():
        counts = np.searchsorted(tabs, ends) - np.searchsorted(tabs, starts)
        at = int(np.argmax(counts != 2))
        text = bytes(piece[starts[at] : ends[at]][:LETTERS])
        raise ValueError(
            f"{source}, line {line + at}: three fields, row, column and value, with tabs between them expected, got {text!r}"
        )
    first, second = tabs[::2], tabs[1::2]
    rows = _numbers(piece, starts, first, source, line, shape[0], "row")
    columns = _numbers(piece, first + 1, second, source, line, shape[1], "column")
    return rows, columns, _values(piece, second + 1, ends, source, line)


def _numbers(piece, starts, ends, source, line, limit, name):
    """Parse the integers at starts … ends - 1 of the piece, and return them minus 1; raise ValueError if one is not in 1 …
    limit.
    """
    lengths = ends - starts
    total, wrong = np.zeros(len(ends), np.int64), (lengths < 1) | (lengths > DIGITS)
    for position in range(min(int(lengths.max(initial=0)), DIGITS)):
        has = lengths > position
        digits = piece[np.where(has, ends - 1 - position, 0)].astype(np.int64) - ord("0")
        wrong |= has & ((digits < 0) | (digits > 9))
        total += np.where(has, digits, 0) * 10**position
    wrong |= (total < 1) | (total > limit)
    if wrong.any():
        at = int(np.argmax(wrong))
        text = bytes(piece[starts[at] : ends[at]][:LETTERS])
        raise ValueError(f"{source}, line {line + at}: a {name} from 1 to {limit} expected, got {text!r}")
    return total - 1


def _values(piece, starts, ends, source, line):
    """Parse finite float32 values; this is fast if all lines have the same text."""
    lengths = ends - starts
    if lengths.max() > LETTERS:
        at = int(np.argmax(lengths > LETTERS))
        raise ValueError(f"{source}, line {line + at}: a value expected, got {lengths[at]} bytes")
    index = np.arange(lengths.max())
    if (lengths == lengths[0]).all() and all((piece[starts + i] == piece[starts[0] + i]).all() for i in index):
        texts, which = [bytes(piece[starts[0] : ends[0]])], np.zeros(len(ends), np.intp)
    else:
        index = np.arange(lengths.max() + 1)  # each text with at least one END, so that a trailing NUL is not lost
        read = piece[np.minimum(starts[:, None] + index, len(piece) - 1)]
        letters = np.where(index < lengths[:, None], read, np.uint8(END))
        texts, which = np.unique(np.ascontiguousarray(letters).view(f"S{len(index)}").ravel(), return_inverse=True)
        texts = [bytes(text).rstrip(b"\n") for text in texts]
    values = np.array([_value(text) for text in texts], np.float64)
    if not np.isfinite(values).all():
        at = int(np.argmax(~np.isfinite(values[which])))
        raise ValueError(f"{source}, line {line + at}: a finite value expected, got {texts[which[at]]!r}")
    return values.astype(np.float32)[which]


def _value(text):
    """Return the value of a text; NaN if it is not a float32 number."""
    value = float(text) if DECIMAL.fullmatch(text) else np.nan
    return value if abs(value) <= float(np.finfo(np.float32).max) else np.nan
