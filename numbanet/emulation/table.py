"""Counters as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import remarks
from .sources import Listing, listings

if TYPE_CHECKING:
    from numbanet_kernels.card.counted import KernelCounts
    from numbanet_kernels.card.sheets import Sheet
    from numbanet_kernels.ptx import Line

COLUMNS = ("instr.", "lanes", "sectors\n/ least", "shared\n/ confl.", "diverge\n/ branch")
LEGEND = (
    "instr.: instructions of warps; lanes: threads of a warp that run them, of 32; sectors: those of global memory, of 32 "
    "bytes, and the least that the data needs; shared: cycles of shared memory, and those of bank conflicts; diverge: branches "
    "at which threads of a warp go both ways, of all. Counters know no caches. Occupancy and the least time are a model: "
    "limits and peak rates of the {card}'s data sheet."
)
HOT = 0.25  # share of a column's sum from which on a line is bright


def text(kernels: Sequence[KernelCounts], sheet: Sheet, colours: bool = False, legend: bool = False) -> str:
    """Return the tables of kernels on a card, as wide as the terminal. If asked for, they have the escape codes of its colours,
    and below them is what the columns mean.
    """
    from rich.console import Console

    console = Console(color_system="auto" if colours else None, highlight=False, emoji=False, markup=False)
    with console.capture() as written:
        for kernel in kernels:
            _print(console, kernel, sheet)
        if legend:
            console.print(LEGEND.format(card=sheet.name), style="dim")
    return written.get()


def _print(console: Any, kernel: KernelCounts, sheet: Sheet) -> None:
    from rich.text import Text

    total, figures, name = kernel.total, kernel.figures(sheet), sheet.name
    console.print(Text(kernel.name, "bold") + Text(f"({kernel.types})", "dim"))
    console.print(remarks.launched(kernel))
    console.print(f"{name}: {remarks.resources(figures, sheet)}")
    console.print(f"{name}: {remarks.roofline(figures, total)}")
    found, unknown = listings(kernel)
    rows: list[tuple[str, Any, Line | None]] = []
    for listing in found:
        if len(found) > 1:
            rows.append(("", Text(listing.title, "italic"), None))
        rows += _rows(listing, total)
    if unknown is not None:
        rows.append(("", Text("unknown lines", "italic"), unknown))
    console.print(_table([*rows, ("", Text("all"), total)], total, console.width))
    for place, said in remarks.remarks(kernel).items():
        for sentence in said:
            console.print(f"{place or 'unknown lines'}: {sentence}", style="yellow")
    console.print()


def _table(rows: Sequence[tuple[str, Any, Line | None]], total: Line, width: int) -> Any:
    """Return the table of rows of (number, text, counters), without the columns of what the kernel does not do. If it is wider
    than `width`, the text is cut.
    """
    from rich import box
    from rich.table import Column, Table

    shown = [place for place, cell in enumerate(_cells(total)) if cell]
    cells = [_cells(line) if line is not None else [""] * len(COLUMNS) for *_, line in rows]
    names = {place: COLUMNS[place].split("\n") for place in shown}
    needed = sum(max(map(len, (*names[place], *(row[place] for row in cells)))) + 1 for place in shown)
    longest = max(len(str(text)) for _, text, _ in rows)
    cut = len("line ") + longest + needed + 4 > width
    columns = [
        Column("line", justify="right"),
        Column("source", no_wrap=True, overflow="ellipsis", ratio=1 if cut else None),
        *(Column(COLUMNS[place], justify="right", no_wrap=True) for place in shown),
    ]
    table = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=cut)
    for place, ((number, text, _), row) in enumerate(zip(rows, cells, strict=True), 2):
        table.add_row(number, text, *(row[k] for k in shown), end_section=place == len(rows))
    return table


def _cells(line: Line) -> list[str]:
    """Return the counters of a line as text, in the order of `COLUMNS`; those of what the line does not do are empty."""
    issued, lanes, sectors, least, shared, conflicts, diverge = cells_of(line)
    pairs = [f"{a} / {b}" if a else "" for a, b in ((sectors, least), (shared, conflicts))]
    return [issued, lanes, *pairs, diverge.replace("of", "/")]


def _rows(listing: Listing, total: Line) -> Iterator[tuple[str, Any, Line]]:
    """Yield the number, the text and the counters of each line of a function that has instructions."""
    from rich.text import Text

    for row in listing.rows:
        if row.line is not None:
            hot = row.line.issued >= HOT * total.issued
            yield str(row.number), Text(row.text, "bold" if hot else ""), row.line


def cells_of(line: Line) -> list[str]:
    """Return the counters of a line as text, those of what the line does not do are empty: instructions, lanes, sectors, the
    least of them, cycles of shared memory, those of bank conflicts, divergent branches.
    """
    return [
        f"{line.issued:,}",
        f"{remarks.lanes(line):.3g}",
        f"{line.sectors:,}" if line.sectors else "",
        f"{line.least:,}" if line.sectors else "",
        f"{line.transactions:,}" if line.transactions else "",
        f"{line.conflicts:,}" if line.transactions else "",
        f"{line.divergent:,} of {line.branches:,}" if line.branches else "",
    ]
