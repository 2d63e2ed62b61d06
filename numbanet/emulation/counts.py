"""`Counts`: the counters of kernels, by kernel and by line of Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numbanet_kernels.card.sheets import DEFAULT, SHEETS, Sheet, sheet

from ..arguments import PAGES, check_target

if TYPE_CHECKING:
    from numbanet_kernels.card.counted import KernelCounts

__all__ = ["SHEETS", "Counts", "Sheet", "sheet"]


class Counts(Sequence):
    """The counters of kernels: a sequence with an entry for each kernel and each shape of its blocks.

        with numbanet.emulated(counters=True) as card:
            transpose[(4, 4), (32, 8)](x, y)

        print(card.counters)                      # a table for each kernel, with a row for each line of Python
        card.counters.html("lines.html")          # the source text with the counters of each line
        card.counters.on("T4").html("t4.html")    # with the data sheet of another card

    An entry has the attributes `name`, `types`, `block`, `lines` (a list of `Line`: `place`, such as "file.py:12", `issued`,
    `lanes`, `flops`, `sectors`, `least`, `transactions`, `conflicts`, `branches`, `divergent`), their sums `total`, and
    `counters`, with one number for each instruction of the PTX.

    Occupancy and the least time on a card are models: limits of its compute capability, and the peak rates of its data sheet.
    The counters are of the kernel as it was compiled for compute capability 8.0, and exact. They know no caches: a sector that
    two warps touch counts twice.

    Parameters
    ----------
    kernels : iterable of KernelCounts
        The entries.
    card : str, default="A100"
        The card whose data sheet is used; `SHEETS` has those that are known. The emulated card states to be an A100.

    Raises
    ------
    ValueError
        If there is no data sheet of this card.
    """

    def __init__(self, kernels: Iterable[KernelCounts], card: str = DEFAULT) -> None:
        self.kernels, self.sheet = list(kernels), sheet(card)

    def __getitem__(self, place: Any) -> Any:
        return self.kernels[place]

    def __iter__(self) -> Iterator[KernelCounts]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def on(self, card: str) -> Counts:
        """Return the same counters with the data sheet of another card."""
        return Counts(self.kernels, card)

    def __repr__(self) -> str:
        return f"Counts({', '.join(map(repr, self.kernels))})"

    def __str__(self) -> str:
        from .table import text

        return text(self.kernels, self.sheet).rstrip() + "\n"  # a blank line between tables that are printed

    def _repr_html_(self) -> str:
        from .page import fragment

        return fragment(self.kernels, self.sheet)

    def html(self, path: str | os.PathLike) -> Path:
        """Write one HTML page to `path`, atomically, and return its path. It has the source text of each kernel with the
        counters of each line, and needs neither a network nor scripts.

        Raises
        ------
        ValueError
            If the file name does not end in .html or .htm.
        FileNotFoundError, IsADirectoryError, PermissionError
            If the file cannot be written.
        """
        from numbanet.datasets.files import write_file

        from .page import page

        target = check_target(path, PAGES)
        write_file(target, page(self.kernels, self.sheet).encode())
        return target
