"""Report: what stands between `<!-- WHAT:NAME … -->` and `<!-- /WHAT:NAME -->`, and charts, made from the files of results.

    <!-- bench:SUITE PATTERN ### HEADING -->    the tables of a suite; of those rows alone in whose
                                                "CASE" or "CASE: IMPLEMENTATION" the pattern is found
    <!-- ratios:NAME PATTERN -->                ratios of all suites in one table, a column for each processor; the pattern is
                                                looked for in "SUITE CASE: IMPLEMENTATION"
    <!-- parameters:NAME -->                    what the estimator of that name is given, from its docstring
    <!-- policies:NAME -->                      the kinds of dropout by name: what each drops and saves
    <!-- suites:NAME -->                        the suites: what each measures, and the command that recorded it
    <!-- sections:NAME -->                      the tables of all suites with results that have no mark on the page, each under
                                                a heading

Pattern and heading may be left out. A section that has its heading in the mark is empty as long as there are no results.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from . import drawings, suites
from .machine import ROOT
from .results import load
from .table import markdown, markdown_of

MARKED = re.compile(
    r"(?P<start><!-- (?P<what>bench|ratios|parameters|policies|suites|sections):(?P<name>[\w-]+)"
    r"(?: (?P<pattern>(?!#)[^\n]+?))?(?: (?P<heading>#+ [^\n]+?))? -->)\n.*?"
    r"(?P<end><!-- /(?P=what):(?P=name) -->)",
    re.S,
)
PAGES = (ROOT / "README.md", ROOT / "bench" / "README.md")
FOLDER = ROOT / "bench" / "results"

Records = Sequence[dict[str, Any]]


def processor(record: dict[str, Any]) -> str:
    """Where it was measured."""
    machine = record["machine"]
    return "; ".join(machine["gpus"]) if record.get("device") == "cuda" and machine.get("gpus") else machine["cpu"]


def caption(record: dict[str, Any]) -> str:
    """What the figures of one file belong to, in a line or two."""
    machine = record["machine"]
    on_card = record.get("device") == "cuda" and machine.get("gpus")
    where = processor(record) + ("" if on_card else f", {machine['cores']} cores, {machine['threads']} threads")
    versions = ", ".join(
        f"{name} {machine[key]}"
        for name, key in (("Python", "python"), ("NumPy", "numpy"), ("BLAS", "blas"), ("Numba", "numba"), ("PyTorch", "torch"))
        if machine.get(key)
    )
    return textwrap.fill(
        f"_{record.get('device', 'cpu')}: {where}; {versions}; commit "
        f"{(record.get('commit') or 'unknown')[:12]}, {record['date'][:10]}_",
        128,
    )


# --- what stands between marks ----------------------------------------------------------------------------------------
def tables(suite: str, pattern: str, records: Records) -> str:
    """The tables of one suite, one for each file that has rows of it."""

    def wanted(row: dict[str, Any]) -> bool:
        return any(re.search(pattern, name) for name in (row["case"], f"{row['case']}: {row.get('implementation')}"))

    found = ((record, [row for row in record["rows"] if row["suite"] == suite and wanted(row)]) for record in records)
    return "\n\n".join(f"{caption(record)}\n\n{markdown(rows)}" for record, rows in found if rows)


def ratios(name: str, pattern: str, records: Records) -> str:
    """A line for each ratio, a column for each processor, with the days on which it was measured; of several records of one
    processor the newest counts."""
    found: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["date"]):
        for row in record["rows"]:
            if row.get("ratio") is not None and re.search(pattern, f"{row['suite']} {row['case']}: {row['implementation']}"):
                found.setdefault((row["case"], row["implementation"], row["peer"]), {})[processor(record)] = {
                    **row,
                    "day": record["date"][:10],
                }
    places: dict[str, set[str]] = {}
    for place, row in (pair for rows in found.values() for pair in rows.items()):
        places.setdefault(place, set()).add(row["day"])
    heads = (f"on {place}, {' to '.join(dict.fromkeys((min(days), max(days))))}" for place, days in places.items())
    lines = [["step of", "with", "times shorter than of", *heads, "FLOPs ratio"]]
    cases = list(dict.fromkeys(case for case, _, _ in found))
    for (case, implementation, peer), rows in sorted(found.items(), key=lambda pair: cases.index(pair[0][0])):
        ceiling = next(iter(rows.values())).get("ceiling")
        spans = (
            "" if row is None else f"**{row['ratio']:.2f}** ({row['ratio_p10']:.2f} – {row['ratio_p90']:.2f})"
            for row in map(rows.get, places)
        )
        lines.append([case, implementation, peer, *spans, "" if ceiling is None else f"{ceiling:.2f}"])
    return markdown_of(lines) if found else ""


def parameters(name: str, pattern: str, records: Records) -> str:
    """Name, values, default and the first sentence about each parameter of an estimator, as its docstring has them."""
    import numbanet

    text = inspect.cleandoc(getattr(numbanet, name).__doc__).split("\nAttributes\n")[0]
    lines = [["parameter", "values", "default", "what it is"]]
    for given, kind, said in re.findall(r"^(\w+) : (.+)\n((?:    .*\n?)+)", text, re.M):
        values, _, default = kind.partition(", default=")
        lines.append([f"`{given}`", values, default, re.split(r"(?<=\.)\s", " ".join(said.split()))[0]])
    return markdown_of(lines)


def policies(name: str, pattern: str, records: Records) -> str:
    """A line for each kind of dropout, as its class describes it."""
    from numbanet.dropout import POLICIES

    lines = [["`dropout=`", "what is dropped in a step", "FLOPs at rate p"]]
    return markdown_of([*lines, *([f'`"{kind}"`', policy.drops, policy.computes] for kind, policy in POLICIES.items())])


def listed(name: str, pattern: str, records: Records) -> str:
    """A line for each suite that has a file, and the names of the other families of kernels."""
    lines = [["suite", "what it measures", "recorded by"]]
    for suite in suites.files():
        commands = (f"`python -m bench {suite} {arguments}`" for arguments in suites.recorded(suite))
        lines.append([f"`{suite}`", suites.suites()[suite], "<br>".join(commands)])
    others = ", ".join(f"`{family}`" for family in suites.families() if family not in suites.files())
    return f"{markdown_of(lines)}\n\n{textwrap.fill(f'Families of kernels, measured by their examples: {others}.', 128)}"


def sections(marked: Collection[str], records: Records) -> str:
    """Heading and tables of the suites that have results, and no mark of theirs or of what begins with their name."""
    known = suites.suites()
    shown = {max((suite for suite in known if f"{name}-".startswith(f"{suite}-")), key=len, default=name) for name in marked}
    found = ((suite, tables(suite, "", records)) for suite in known if suite not in shown)
    return "\n\n".join(f"## `{suite}`\n\n{known[suite]}\n\n{table}" for suite, table in found if table)


WRITERS: dict[str, Callable[[str, str, Records], str]] = {
    "bench": tables,
    "ratios": ratios,
    "parameters": parameters,
    "policies": policies,
    "suites": listed,
}


# --- pages ------------------------------------------------------------------------------------------------------------
def rewrite(text: str, records: Records) -> str:
    """The text with every marked part made anew; all else as it is."""
    marked = {mark["name"] for mark in MARKED.finditer(text) if mark["what"] == "bench"}

    def anew(mark: re.Match) -> str:
        if mark["what"] == "sections":
            parts = list(filter(None, [sections(marked, records)]))
        else:
            found, heading = WRITERS[mark["what"]](mark["name"], mark["pattern"] or "", records), mark["heading"]
            parts = [part for part in (heading, found) if part] if found else [] if heading else ["_No results recorded yet._"]
        return "\n\n".join([mark["start"], *parts, mark["end"]]) if parts else f"{mark['start']}\n{mark['end']}"

    return MARKED.sub(anew, text)


def report(pages: Iterable[Path] = PAGES, folder: Path = FOLDER) -> list[Path]:
    """Rewrite the pages, and draw the charts, from the files in the folder, quick ones left out; returns what changed."""
    records = [record for path in sorted(folder.glob("*.json")) if not (record := load(path)).get("quick")]
    made = {folder / name: text for name, text in drawings.charts(records).items()}
    made |= {page: rewrite(page.read_text(encoding="utf-8"), records) for page in pages if page.exists()}
    changed = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(made[path], encoding="utf-8")
    return changed
