"""Report: tables between `<!-- bench:SUITE -->` and `<!-- /bench:SUITE -->`, rewritten from the files of results.

`<!-- bench:SUITE PATTERN -->` shows the cases alone in whose name the regular expression is found.
"""
from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .machine import ROOT
from .results import load
from .table import markdown

MARKED = re.compile(r"(?P<start><!-- bench:(?P<suite>[\w-]+)(?: (?P<cases>.+?))? -->)\n.*?"
                    r"(?P<end><!-- /bench:(?P=suite) -->)", re.S)
PAGES = (ROOT / "README.md", ROOT / "bench" / "README.md", ROOT / "numbanet" / "dropout" / "patterns.py")
FOLDER = ROOT / "bench" / "results"


def caption(record: dict[str, Any]) -> str:
    """What the figures of one file belong to, in a line or two."""
    machine = record["machine"]
    where = "; ".join(machine["gpus"]) if record.get("device") == "cuda" and machine.get("gpus") else \
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
    versions = ", ".join(f"{name} {machine[key]}" for name, key in (
        ("Python", "python"), ("NumPy", "numpy"), ("BLAS", "blas"), ("Numba", "numba"), ("PyTorch", "torch"))
        if machine.get(key))
    return textwrap.fill(f"_{record.get('device', 'cpu')}: {where}; {versions}; commit "
                         f"{(record.get('commit') or 'unknown')[:12]}, {record['date'][:10]}_", 128)


def section(suite: str, cases: str | None, records: Iterable[dict[str, Any]]) -> str:
    """The tables of one suite, one for each file that has rows of it."""
    parts = [f"{caption(record)}\n\n{markdown(rows)}" for record in records
             if (rows := [row for row in record["rows"] if row["suite"] == suite and re.search(cases or "", row["case"])])]
    return "\n\n".join(parts) or "_No results recorded yet._"


def rewrite(text: str, records: Sequence[dict[str, Any]]) -> str:
    """The text with every marked table made anew; all else as it is."""
    return MARKED.sub(lambda m: f"{m['start']}\n\n{section(m['suite'], m['cases'], records)}\n\n{m['end']}", text)


def report(pages: Iterable[Path] = PAGES, folder: Path = FOLDER) -> list[Path]:
    """Rewrite the pages from the files in the folder, quick ones left out; returns the pages that changed."""
    records = [record for path in sorted(folder.glob("*.json")) if not (record := load(path)).get("quick")]
    changed = []
    for page in pages:
        if not page.exists():
            continue
        old = page.read_text(encoding="utf-8")
        new = rewrite(old, records)
        if new != old:
            page.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed
