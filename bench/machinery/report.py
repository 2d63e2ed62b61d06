"""Report: rewrites the text between `<!-- WHAT:NAME … -->` and `<!-- /WHAT:NAME -->` in the README files and the pages of
the documentation, and the charts.

    <!-- bench:SUITE PATTERN ### HEADING -->    the tables of a suite, with the rows whose "CASE" or "CASE: IMPLEMENTATION"
                                                matches the pattern
    <!-- ratios:NAME PATTERN -->                ratios of all suites in one table, a column for each processor, with the rows
                                                whose "SUITE CASE: IMPLEMENTATION" matches the pattern; with the name `mkl`
                                                those with MKL's products, with other names those with NumPy's library
    <!-- parameters:NAME OTHER -->              the parameters of the estimator of that name, from its docstring; with the
                                                name OTHER of another estimator, only what differs from its parameters
    <!-- policies:NAME -->                      the kinds of dropout: what each drops and what it saves
    <!-- behind:SUITE -->                       for each kind of dropout, the cases in which its score is more than a hundredth
                                                behind that of conventional dropout at the same rate
    <!-- suites:NAME -->                        the suites: what each measures, and the command that recorded it
    <!-- sections:NAME -->                      the tables of all suites with results that have no mark of their own on the
                                                page, each under a heading
    <!-- value:FIELD SUITE PATTERN -->          within a line: one figure of the newest row of a suite, not with MKL's products;
                                                its pattern matches "CASE: IMPLEMENTATION"

Tables and charts come from the files in bench/results. Pattern and heading are optional. If the mark contains a heading and
there are no results, the section is empty.
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
from .results import by_library, load, mixed_processors
from .runs import chooses
from .table import markdown, markdown_of

MARKED = re.compile(
    r"(?P<start><!-- (?P<what>bench|ratios|parameters|policies|formulas|behind|suites|sections):(?P<name>[\w-]+)"
    r"(?: (?P<pattern>(?!#)[^\n]+?))?(?: (?P<heading>#+ [^\n]+?))? -->)\n.*?"
    r"(?P<end><!-- /(?P=what):(?P=name) -->)",
    re.S,
)
VALUE = re.compile(
    r"(?P<start><!-- value:(?P<field>\w+) (?P<suite>[\w-]+) (?P<pattern>[^\n]+?) -->)[^\n]*?(?P<end><!-- /value -->)"
)
FORMS = {
    "ratio": "{:.1f}",
    "accuracy": "{:.1%}",
    "points": "{:+.1f}",
    "to_target": "{:.2f}",
    "perplexity": "{:.0f}",
    "of_baseline": "{:.2f}",
    "weights_kept": "{:.0%}",
    "flops_share": "{:.0%}",
    "training_shorter": "{:.1f}",
    "prediction_shorter": "{:.1f}",
    "above": "{:+.3f}",
    "score": "{:.2f}",
    "ceiling": "{:.1f}",
    "count": "{:d}",
    "share": "{:.0%}",
}
PAGES = (ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FOLDER = ROOT / "bench" / "results"
BEHIND = 0.01

Records = Sequence[dict[str, Any]]


def processor(record: dict[str, Any]) -> str:
    """The processor on which a record was measured."""
    machine = record["machine"]
    return "; ".join(machine["gpus"]) if record.get("device") == "cuda" and machine.get("gpus") else machine["cpu"]


def caption(record: dict[str, Any]) -> str:
    """Device, processors, versions, commits and dates of one file, as one paragraph: those of its training runs, if it has any.
    Versions are those of the last command.
    """
    machine, ran_on = record["machine"], mixed_processors(record)
    on_gpu = record.get("device") == "cuda" and machine.get("gpus")
    hardware = processor(record) + ("" if on_gpu else f", {machine['cores']} cores, {machine['threads']} threads")
    if ran_on:
        hardware = f"runs of the file on {'; on '.join(ran_on)}; last command"
    versions = ", ".join(
        f"{name} {machine[key]}"
        for name, key in (("Python", "python"), ("NumPy", "numpy"), ("BLAS", "blas"), ("Numba", "numba"), ("PyTorch", "torch"))
        if machine.get(key)
    )
    return textwrap.fill(f"_{record.get('device', 'cpu')}: {hardware}; {versions}; {_when(record)}_", 128)


def _when(record: dict[str, Any]) -> str:
    """Commit and date of a record, or those of its training runs."""
    runs = [run for run in record.get("runs", ()) if not chooses(run)]
    runs = sorted(runs, key=lambda run: run["date"]) if all(run.get("date") for run in runs) else []
    commits = list(dict.fromkeys((run.get("commit") or "unknown")[:12] for run in runs or [record]))
    days = list(dict.fromkeys(run["date"][:10] for run in runs or [record]))
    several = f"{len(commits)} commits from {commits[0]} to {commits[-1]}"
    return f"{several if len(commits) > 1 else f'commit {commits[0]}'}, {' to '.join(dict.fromkeys((days[0], days[-1])))}"


# --- text between marks -----------------------------------------------------------------------------------------------
def tables(suite: str, pattern: str, records: Records) -> str:
    """The tables of one suite, one for each file that contains rows of it."""

    def wanted(row: dict[str, Any]) -> bool:
        return any(re.search(pattern, name) for name in (row["case"], f"{row['case']}: {row.get('implementation')}"))

    pairs = ((record, [row for row in record["rows"] if row["suite"] == suite and wanted(row)]) for record in records)
    return "\n\n".join(f"{caption(record)}\n\n{markdown(rows)}" for record, rows in pairs if rows)


def ratios(name: str, pattern: str, records: Records) -> str:
    """A line for each ratio and a column for each processor, with the dates of its measurements. If one processor measured a
    ratio several times, the newest one is shown. The name "mkl" stands for the records with MKL's products."""
    by_ratio: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for record in sorted(by_library(records, name == "mkl"), key=lambda record: record["date"]):
        for row in record["rows"]:
            if row.get("ratio") is not None and re.search(pattern, f"{row['suite']} {row['case']}: {row['implementation']}"):
                by_ratio.setdefault((row["case"], row["implementation"], row["peer"]), {})[processor(record)] = {
                    **row,
                    "day": record["date"][:10],
                }
    days_of: dict[str, set[str]] = {}
    for cpu, row in (pair for rows in by_ratio.values() for pair in rows.items()):
        days_of.setdefault(cpu, set()).add(row["day"])
    heads = (f"on {cpu}, {' to '.join(dict.fromkeys((min(days), max(days))))}" for cpu, days in days_of.items())
    lines = [["training step", "dropout", "speed-up over", *heads, "FLOPs ratio"]]
    cases = list(dict.fromkeys(case for case, _, _ in by_ratio))
    for (case, implementation, peer), rows in sorted(by_ratio.items(), key=lambda pair: cases.index(pair[0][0])):
        ceiling = next(iter(rows.values())).get("ceiling")
        spans = (
            "" if row is None else f"**{row['ratio']:.2f}** ({row['ratio_p10']:.2f} – {row['ratio_p90']:.2f})"
            for row in map(rows.get, days_of)
        )
        lines.append([case, implementation, peer, *spans, "" if ceiling is None else f"{ceiling:.2f}"])
    return markdown_of(lines) if by_ratio else ""


def parameters(name: str, pattern: str, records: Records) -> str:
    """Name, values, default, first sentence, and what None means, of each parameter of an estimator, from its docstring; if
    `pattern` names another estimator, only of those whose default is not that of the other one, and the names of those that are
    missing."""
    import numbanet

    def lines_of(name: str) -> list[list[str]]:
        text, lines = inspect.cleandoc(getattr(numbanet, name).__doc__).split("\nAttributes\n")[0], []
        for parameter, kind, description in re.findall(r"^(\w+) : (.+)\n((?:    .*\n?)+)", text, re.M):
            values, _, default = kind.partition(", default=")
            said = " ".join(description.split())
            none = re.search(r"\bNone(?: or -1)?: (.+?)(?:\.(?=\s|$)|;(?= with))", said)
            lines.append([f"`{parameter}`", values, default, re.split(r"(?<=\.)\s", said)[0], none[1] if none else ""])
        return lines

    own, other = lines_of(name), {line[0]: (line[2], line[4]) for line in (lines_of(pattern) if pattern else [])}
    found = [line for line in own if other.get(line[0]) != (line[2], line[4])]
    missing = other.keys() - {line[0] for line in own}
    found += [[parameter, "", "", f"`{name}` has no such parameter.", ""] for parameter in sorted(missing)]
    return markdown_of([["parameter", "values", "default", "what it is", "what None means"], *found])


def policies(name: str, pattern: str, records: Records) -> str:
    """A line for each kind of dropout, from attributes of its class."""
    from numbanet.dropout import POLICIES

    lines = [["`dropout=`", "what is dropped in a step", "FLOPs at rate p"]]
    return markdown_of([*lines, *([f'`"{kind}"`', policy.drops, policy.computes] for kind, policy in POLICIES.items())])


def formulas(name: str, pattern: str, records: Records) -> str:
    """A line for each kind of dropout with the formulas of its class's docstring: an indented block, divided by ";  "."""
    from numbanet.dropout import POLICIES

    lines = [["`dropout=`", "kept", "result", "dx or dA", "dW", "scale"]]
    for kind, policy in POLICIES.items():
        found = re.search(r"((?:^    .+\n)*^    .*dW.*\n(?:    .+\n)*)", f"{inspect.getdoc(policy)}\n", re.M)
        if found:
            parts = re.split(r";\s+", " ".join(found[1].split("\n")).strip())
            lines.append([f'`"{kind}"`', *(f"`{' '.join(part.replace('`', '').split())}`" for part in parts)])
    return markdown_of(lines)


def behind(suite: str, pattern: str, records: Records) -> str:
    """A line for each kind of dropout, with the cases in which its score is more than BEHIND below that of bernoulli."""
    rows = [row for record in records for row in record["rows"] if row["suite"] == suite and re.search(pattern, row["case"])]
    scores = {(row["case"], row["implementation"]): row["score"] for row in rows}
    lines: dict[str, list[str]] = {}
    for (case, implementation), score in scores.items():
        kind, _, rate = implementation.partition(" p=")
        conventional = scores.get((case, f"bernoulli p={rate}"))
        if conventional is not None and kind != "bernoulli":
            less = score - conventional
            named = [f"{case.rpartition(', ')[0]} ({less:+.3f})"] if less < -BEHIND else []
            lines[kind] = lines.get(kind, []) + named
    return "\n".join(f'* `"{kind}"`: {"; ".join(names) or "none"}.' for kind, names in lines.items())


def listed(name: str, pattern: str, records: Records) -> str:
    """A line for each suite that has a file, then the names of the families of kernels without one."""
    lines = [["suite", "what it measures", "recorded by"]]
    for suite in suites.files():
        commands = (f"`python -m bench {suite} {arguments}`" for arguments in suites.recorded(suite))
        lines.append([f"`{suite}`", suites.suites()[suite], "<br>".join(commands)])
    others = ", ".join(f"`{family}`" for family in suites.families() if family not in suites.files())
    return f"{markdown_of(lines)}\n\n{textwrap.fill(f'Families of kernels, measured by their examples: {others}.', 128)}"


def sections(marked: Collection[str], records: Records) -> str:
    """Heading and tables of the suites with results, except those that a mark names, or names a part of: the mark
    `bench:mlp-settings-points` shows the suite mlp-settings."""
    known = suites.suites()
    shown = {max((suite for suite in known if f"{name}-".startswith(f"{suite}-")), key=len, default=name) for name in marked}
    pairs = ((suite, tables(suite, "", records)) for suite in known if suite not in shown)
    return "\n\n".join(f"## `{suite}`\n\n{known[suite]}\n\n{table}" for suite, table in pairs if table)


def value(field: str, suite: str, pattern: str, records: Records) -> str:
    """One figure of the newest row of a suite whose "CASE: IMPLEMENTATION" matches; ValueError if there are none or several."""
    for record in sorted(by_library(records), key=lambda record: record["date"], reverse=True):
        rows = [
            row
            for row in record["rows"]
            if row["suite"] == suite
            and row.get(field) is not None
            and re.search(pattern, f"{row['case']}: {row['implementation']}")
        ]
        if len(rows) > 1:
            raise ValueError(f"value:{field}: several rows of {suite} match {pattern!r}: {[row['case'] for row in rows]}")
        if rows:
            return FORMS[field].format(rows[0][field])
    raise ValueError(f"value:{field}: no row of {suite} matches {pattern!r}")


WRITERS: dict[str, Callable[[str, str, Records], str]] = {
    "bench": tables,
    "ratios": ratios,
    "parameters": parameters,
    "policies": policies,
    "formulas": formulas,
    "behind": behind,
    "suites": listed,
}


# --- pages ------------------------------------------------------------------------------------------------------------
def rewrite(text: str, records: Records) -> str:
    """The text of a page with every marked part replaced; the rest is unchanged."""
    marked = {mark["name"] for mark in MARKED.finditer(text) if mark["what"] == "bench"}

    def replacement(mark: re.Match) -> str:
        if mark["what"] == "sections":
            parts = list(filter(None, [sections(marked, records)]))
        else:
            body, heading = WRITERS[mark["what"]](mark["name"], mark["pattern"] or "", records), mark["heading"]
            parts = [part for part in (heading, body) if part] if body else [] if heading else ["_No results recorded yet._"]
        return "\n\n".join([mark["start"], *parts, mark["end"]]) if parts else f"{mark['start']}\n{mark['end']}"

    def figure(mark: re.Match) -> str:
        return mark["start"] + value(mark["field"], mark["suite"], mark["pattern"], records) + mark["end"]

    return VALUE.sub(figure, MARKED.sub(replacement, text))


def report(pages: Iterable[Path] = PAGES, folder: Path = FOLDER) -> list[Path]:
    """Rewrite the pages and charts from the files in the folder, except those of --quick runs; return the paths of changed
    files."""
    records = [record for path in sorted(folder.glob("*.json")) if not (record := load(path)).get("quick")]
    made = {folder / name: text for name, text in drawings.charts(records).items()}
    made |= {page: rewrite(page.read_text(encoding="utf-8"), records) for page in pages if page.exists()}
    changed = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(made[path], encoding="utf-8")
    return changed
