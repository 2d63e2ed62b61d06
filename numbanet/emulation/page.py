"""Counters as one HTML page: the source text of kernels with the counters of each line. It needs no network and no scripts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..html_page import document
from . import remarks
from .sources import Listing, Row, listings
from .table import cells_of

if TYPE_CHECKING:
    from numbanet_kernels.card.counted import KernelCounts
    from numbanet_kernels.card.sheets import Sheet
    from numbanet_kernels.ptx import Line

TITLE = "Counters by line"
# heading, what it is, and the counter that colours its cells; as `cells_of` has them
COLUMNS = (
    ("instructions", "instructions of warps", "issued"),
    ("lanes", "threads of a warp that run an instruction, on average, of 32", ""),
    ("sectors", "sectors of 32 bytes of global memory that warps touch", "sectors"),
    ("least", "the fewest sectors that could hold the data", ""),
    ("shared", "cycles in which the banks of shared memory serve warps", "transactions"),
    ("conflicts", "those of them that bank conflicts add", "conflicts"),
    ("diverge", "branches at which the threads of a warp go different ways, of all branches", "divergent"),
)
STYLE = """
.counters { --hot: 217 119 6; --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.counters section h2 { font-family: var(--mono); overflow-wrap: anywhere; }
.counters h2 small { font-weight: 400; opacity: 0.75; }
.counters .bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 0.2rem 0.6rem; max-width: 34rem;
  align-items: center; font-size: 0.9rem; margin: 0.5rem 0; }
.counters .bar { height: 0.7rem; background: rgb(var(--hot)); min-width: 1px; border-radius: 2px; }
.counters .wide { overflow-x: auto; margin: 0.8rem 0; }
.counters .wide:focus-visible, .counters a:focus-visible { outline: 2px solid rgb(var(--hot)); outline-offset: 2px; }
.counters table { border-collapse: collapse; width: 100%; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
.counters th, .counters td { padding: 0.1rem 0.5rem; text-align: right; white-space: nowrap; vertical-align: top; }
.counters thead th { border-bottom: 1px solid currentcolor; font-weight: 600; }
.counters tfoot td, .counters tfoot th { border-top: 1px solid currentcolor; font-weight: 600; }
.counters .number { opacity: 0.7; font-weight: 400; user-select: none; }
.counters .code { text-align: left; font-family: var(--mono); white-space: pre-wrap; width: 100%; min-width: 18rem; }
.counters td[style] { background: rgb(var(--hot) / calc(var(--share) * 0.6)); }
.counters .remark td { text-align: left; white-space: normal; padding: 0 0.5rem 0.4rem 3.5rem; font-style: italic; }
.counters .remark td::before { content: "\\2191  "; }
.counters caption { text-align: left; opacity: 0.8; padding: 0.2rem 0.5rem; }
@media (max-width: 48rem) {
  .counters thead, .counters .none { display: none; }
  .counters table, .counters tbody, .counters tfoot, .counters caption { display: block; }
  .counters tr { display: flex; flex-wrap: wrap; padding-left: 2.6rem; position: relative; }
  .counters .number { position: absolute; left: 0; width: 2.3rem; padding: 0.1rem 0; }
  .counters .code { flex: 1 0 100%; width: 100%; min-width: 0; min-height: 1.5em; overflow-wrap: anywhere; }
  .counters td[data-name] { font-size: 0.8rem; border-radius: 3px; }
  .counters td[data-name]::before { content: attr(data-name) " "; opacity: 0.8; }
  .counters .remark td { padding: 0 0.5rem 0.4rem; }
  .counters .counted { padding-bottom: 0.3rem; }
  .counters tfoot td, .counters tfoot th { border: 0; }
  .counters tfoot { border-top: 1px solid currentcolor; }
}
"""


def page(kernels: Sequence[KernelCounts], sheet: Sheet) -> str:
    """Return the page of kernels on a card."""
    return document(TITLE, f"<main>\n{_body(kernels, sheet)}\n</main>", STYLE + "body { max-width: 84rem; }")


def fragment(kernels: Sequence[KernelCounts], sheet: Sheet) -> str:
    """Return the content of the page with its style, for notebooks."""
    return f"<style>{STYLE}</style>\n{_body(kernels, sheet)}"


def _body(kernels: Sequence[KernelCounts], sheet: Sheet) -> str:
    names = [f"kernel-{place}" for place in range(1, len(kernels) + 1)]
    links = "".join(
        f'<li><a href="#{name}">{_safe(kernel.name)}</a>: {_safe(remarks.launched(kernel))}</li>'
        for name, kernel in zip(names, kernels, strict=True)
    )
    parts = [
        f'<div class="counters">\n<h1>{TITLE}</h1>',
        f'<nav aria-label="kernels"><ul>{links}</ul></nav>' if len(names) > 1 else "",
        *(part for name, kernel in zip(names, kernels, strict=True) for part in _section(name, kernel, sheet)),
        f"<h2>What is counted</h2><ul>{''.join(f'<li><b>{name}</b>: {said}.</li>' for name, said, _ in COLUMNS)}</ul>",
        "<p>A line is coloured by its share of the instructions, and a number by its share of its column. The counters are "
        "exact, for the kernel as compiled for compute capability 8.0, and know no caches. Occupancy and roofline are models: "
        f"limits and peak rates of the data sheet of the {_safe(sheet.name)}.</p>\n</div>",
    ]
    return "\n".join(part for part in parts if part)


def _section(name: str, kernel: KernelCounts, sheet: Sheet) -> Iterator[str]:
    """Yield the parts of a kernel: what it is, the model of a card, and its functions."""
    total, figures = kernel.total, kernel.figures(sheet)
    yield f'<section id="{name}" aria-labelledby="{name}-title">'
    yield f'<h2 id="{name}-title">{_safe(kernel.name)}<small>({_safe(kernel.types)})</small></h2>'
    yield f"<p>{_safe(remarks.launched(kernel))}</p>"
    yield f"<p><b>Occupancy</b> ({_safe(sheet.name)}, a model): {_safe(remarks.resources(figures, sheet))}</p>"
    yield f"<p><b>Roofline</b> ({_safe(sheet.name)}, a model): {_safe(remarks.roofline(figures, total))}</p>"
    longest = figures.bound.seconds or 1.0
    bars = (
        f'<span>{what}</span><span class="bar" style="width: {100 * seconds / longest:.1f}%"></span>'
        f"<span>{_safe(remarks.seconds_text(seconds))}</span>"
        for what, seconds in (("memory", figures.bound.memory), ("arithmetic", figures.bound.arithmetic))
    )
    yield f'<div class="bars">{"".join(bars)}</div>'
    found, unknown = listings(kernel)
    said, sums = remarks.remarks(kernel), _sums(unknown, total)
    for listing in found:
        rows = "".join(_rows(listing, total, said))
        yield _table(listing.title, f'<tbody role="rowgroup">{rows}</tbody>{sums if listing is found[-1] else ""}')
    if not found:
        yield _table("no line is known", sums)
    yield "</section>"


def _table(title: str, body: str) -> str:
    columns = "".join(f'<th role="columnheader" scope="col" title="{said}">{name}</th>' for name, said, _ in COLUMNS)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_safe(title)}"><table role="table">'
        f'<caption>{_safe(title)}</caption><thead role="rowgroup"><tr role="row">'
        '<th role="columnheader" scope="col" class="number">line</th>'
        f'<th role="columnheader" scope="col" class="code">source</th>{columns}</tr></thead>{body}</table></div>'
    )


def _rows(listing: Listing, total: Line, said: dict[str, list[str]]) -> Iterator[str]:
    """Yield the rows of a function, and below each line what stands out."""
    for row in listing.rows:
        yield _row(row, total)
        for sentence in said.get(f"{listing.file}:{row.number}", []):
            yield f'<tr role="row" class="remark"><td role="cell" colspan="{2 + len(COLUMNS)}">{_safe(sentence)}</td></tr>'


def _row(row: Row, total: Line) -> str:
    number = f'<th role="rowheader" scope="row" class="number">{row.number}</th>'
    if row.line is None:
        empty = "".join('<td role="cell" class="none"></td>' for _ in COLUMNS)
        return f'<tr role="row">{number}<td role="cell" class="code">{_safe(row.text)}</td>{empty}</tr>'
    code = f'<td role="cell" class="code"{_share(row.line.issued, total.issued)}>{_safe(row.text)}</td>'
    return f'<tr role="row" class="counted">{number}{code}{"".join(_cells(row.line, total))}</tr>'


def _cells(line: Line, total: Line | None) -> Iterator[str]:
    """Yield the counters of a line, coloured by their shares of a total if there is one."""
    for (name, _, counter), value in zip(COLUMNS, cells_of(line), strict=True):
        share = _share(getattr(line, counter), getattr(total, counter)) if counter and total else ""
        yield f'<td role="cell" data-name="{name}"{share}>{value}</td>' if value else '<td role="cell" class="none"></td>'


def _share(part: float, whole: float) -> str:
    return f' style="--share: {part / whole:.3f}"' if part else ""


def _sums(unknown: Line | None, total: Line) -> str:
    """Return the sums over all functions, as the foot of a table."""
    rows = "".join(
        '<tr role="row" class="counted"><th role="rowheader" scope="row" class="number"></th>'
        f'<td role="cell" class="code">{name}</td>{"".join(_cells(line, None))}</tr>'
        for name, line in (("lines that are not known", unknown), ("all lines", total))
        if line is not None
    )
    return f'<tfoot role="rowgroup">{rows}</tfoot>'


def _safe(text: str) -> str:
    return html.escape(text)
