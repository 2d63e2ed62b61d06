"""Counters by line of Python, which the commands `check` and `kernels` show."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..emulation import Counts


def add_listing(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Declare --html and --card; `condition` is what their help says first."""
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help=f"{condition}write the source text with the counters of each line as one HTML page",
    )
    parser.add_argument(
        "--card",
        metavar="NAME",
        help=f"{condition}the card whose data sheet gives occupancy and roofline, such as T4 or H200 (default: A100)",
    )


def card_of(options: argparse.Namespace) -> str:
    """Return the card of --card. Raise the errors for a card without data sheet, and for a page that cannot be written."""
    from ..arguments import PAGES, check_target
    from ..emulation import sheet

    if options.html is not None:
        check_target(options.html, PAGES)
    return sheet(options.card or "A100").name


def show(counts: Counts, table: bool, html: Path | None) -> None:
    """Print counters by line as tables, and write them as a page to `html`."""
    from ..emulation.table import text

    if table:
        print(text(counts.kernels, counts.sheet, colours=True, legend=True), end="")
    if html is not None:
        print(f"listing: {counts.html(html)}")
