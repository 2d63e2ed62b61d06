"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], narrow: bool = False) -> None:
    """Print a table with the names of the columns above the rows; if `narrow`, without lines between the columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(
        *(Column(name, overflow="fold") for name in columns),  # nothing is cut off
        title=title or None,
        title_justify="left",
        box=box.SIMPLE if narrow else box.HEAVY_HEAD,
        padding=0 if narrow else (0, 1),
    )
    for row in rows:
        table.add_row(*(str(cell).replace("[", "\\[") for cell in row))
    console = Console()
    with console.capture() as text:  # captured, because rich exits with status 1 if the reader has closed the pipe
        console.print(table)
    print(text.get(), end="")


def short(n: float) -> str:
    """Return a count with three digits, in thousands, millions or billions."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"
