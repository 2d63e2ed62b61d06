"""The source text of kernels, line by line, with the counters of each line."""

from __future__ import annotations

import ast
import linecache
import textwrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numbanet_kernels.card.counted import KernelCounts
    from numbanet_kernels.ptx import Line


class Row(NamedTuple):
    """A line of a source file: its number, its text without the indentation that all lines of its function have, and its
    counters, if it has instructions.
    """

    number: int
    text: str
    line: Line | None


class Listing(NamedTuple):
    """A function, or lines outside of functions: the file, the function's name, and its lines."""

    file: str
    name: str
    rows: list[Row]

    @property
    def title(self) -> str:
        """The file and the function."""
        return f"{self.file}, {self.name}" if self.name else self.file

    @property
    def issued(self) -> int:
        """The instructions of its lines."""
        return sum(row.line.issued for row in self.rows if row.line is not None)


def listings(kernel: KernelCounts) -> tuple[list[Listing], Line | None]:
    """Return a listing of each function that has instructions of a kernel, the kernel first and then those that have most, and
    the counters of the instructions whose lines are not known, if there are any.
    """
    by_file: dict[str, dict[int, Line]] = {}
    unknown = None
    for line in kernel.lines:
        file, _, number = line.place.rpartition(":")
        if line.place:
            by_file.setdefault(file, {})[int(number)] = line
        else:
            unknown = line
    files = kernel.counters.program.files
    found = [made for file, lines in by_file.items() for made in _of_file(file, files.get(file, ""), lines)]
    found.sort(key=lambda listing: (listing.name != kernel.name, -listing.issued))
    return found, unknown


def _of_file(file: str, path: str, lines: dict[int, Line]) -> list[Listing]:
    """Return the listings of the functions of a file that hold counted lines, and one of the lines that are in none."""
    linecache.checkcache(path)
    text = [part.rstrip("\n") for part in linecache.getlines(path)]
    spans = _functions("\n".join(text))
    held: dict[tuple[str, range], None] = {}
    alone = []
    for number in sorted(lines):
        inside = [span for span in spans if number in span[1]]
        if inside:
            held[min(inside, key=lambda span: len(span[1]))] = None
        else:
            alone.append(number)
    named = [*held, *([("", alone)] if alone else [])]
    found = []
    for name, numbers in named:
        own = textwrap.dedent("\n".join(text[k - 1] if k <= len(text) else "" for k in numbers)).split("\n")
        found.append(Listing(file, name, [Row(k, line, lines.get(k)) for k, line in zip(numbers, own, strict=True)]))
    return found


def _functions(text: str) -> list[tuple[str, range]]:
    """Return the name and the lines of each function in a text; none if it is not Python, as cells with magic are."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    return [
        (node.name, range(min(part.lineno for part in (node, *node.decorator_list)), (node.end_lineno or node.lineno) + 1))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
