"""Run kernels that others wrote to teach (tutorials, courses, puzzles) on the emulated card, and compare their results.

    python -m tests.kernels.teaching FOLDER [--only WORD …] [--limit SECONDS] [--out FILE]
    python -m tests.kernels.teaching FOLDER --get

FOLDER holds the repositories that `teaching.toml` lists, as FOLDER/owner/name, at the commits that it names; `--get` clones those
that are missing. Nothing of them is copied. A program is a file or a notebook. Its cells run in their order, in a process of its own, within a
limit of CPU seconds each; lines of the shell are left out, and what `%timeit` measures runs once. If a cell raises an error, the next one
runs, as it does by hand.

A check stands after a cell, for one kernel. Its outcome is

    right         its test holds: it compares with what NumPy computes, or asks for the program's own assertion or printed result
    fault named   the program has a fault, planted or not, and the machine names it: `fault` is a part of the message
    faulty        the program does not run on a card either, with the Numba of today: `faulty` says why
    unchecked     the cells ran, and there is nothing to compare with
    failed, slow, crashed, or missing, if the file is not in FOLDER

FILE is a JSON object: the machine, the number of kernels by outcome, of all and by repository, and a list of kernels: name, outcome,
number of launches, the reason of a failure, and why it is out of scope, if it is. The share of those that are right is of all kernels
but those of programs that are faulty or have a fault that is named.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import importlib.util
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
import types
from pathlib import Path

from tests.kernels.others import CHECKOUT, Slow, apart, counted, launches, limited, print_reasons, record

LISTS = Path(__file__).with_suffix(".toml")


@functools.cache
def lists() -> dict:
    """Return what `teaching.toml` holds."""
    return tomllib.loads(LISTS.read_text(encoding="utf-8"))


def programs(words: list[str]) -> list[dict]:
    """Return the programs of the list whose names hold one of the words; all, if there are none."""
    made = []
    for entry in lists()["program"]:
        for file in entry.get("files", [entry.get("file")]):
            made.append({**entry, "file": file, "name": f"{entry['source']}: {file}"})
    return [program for program in made if not words or any(word in program["name"] for word in words)]


# --- cells ------------------------------------------------------------------------------------------------------------
def cells(path: Path, begin: str | None) -> list[str]:
    """Return the cells of a notebook; of a Python file the parts that begin with the line `begin`, or the whole file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    if begin is None:
        return [text]
    return re.split(rf"^{re.escape(begin)}$", text, flags=re.MULTILINE)


def plain(cell: str) -> str:
    """Return a cell as Python: without lines of the shell, and with what a magic measures in its place."""
    first, _, rest = cell.lstrip().partition("\n")
    if first.startswith("%%"):
        cell = rest if re.match(r"%%(time|timeit|capture)\b", first) else ""
    lines = []
    for line in cell.split("\n"):
        indent = re.match(r"\s*", line).group()
        if measured := re.match(r"\s*%(?:timeit|time)\s+(?:-\w+\s*\d*\s+)*(.*)", line):
            line = indent + measured.group(1)
        elif re.match(r"\s*([%!]|\?)", line):
            line = indent + "pass"
        lines.append(line)
    return "\n".join(lines)


# --- in the process of a program --------------------------------------------------------------------------------------
class Run:
    """A program that runs: its namespace, and what its cells printed, raised and launched."""

    def __init__(self, program: dict, folder: Path, scratch: Path, limit: float) -> None:
        self.program, self.limit, self.scratch = program, limit, scratch
        self.path = folder / program["source"] / program["file"]
        self.names = types.ModuleType("__main__").__dict__
        self.said: list[str] = []
        self.errors: list[BaseException | None] = []
        self.launched: list[int] = []

    def cells(self) -> list[str]:
        """Return the cells as Python; those that are left out are empty."""
        made = [plain(cell) for cell in cells(self.path, self.program.get("cells"))]
        for old, new in self.program.get("smaller", []):
            if not any(old in cell for cell in made):
                raise ValueError(f"{self.program['name']} has no {old!r}")
            made = [cell.replace(old, new) for cell in made]
        return ["" if str(i) in self.program.get("skip", {}) else cell for i, cell in enumerate(made)]

    def execute(self, cell: str) -> None:
        """Run a cell; keep what it prints and raises, and the number of launches."""
        file = self.scratch / f"cell_{len(self.said)}.py"
        file.write_text(cell, encoding="utf-8")  # Numba and tracebacks look for its lines
        said, error, before = io.StringIO(), None, launches()
        with contextlib.redirect_stdout(said):
            try:
                with limited(self.limit):
                    exec(compile(cell, str(file), "exec"), self.names)
            except (Exception, Slow, SystemExit) as raised:
                error = raised
        self.said.append(said.getvalue())
        self.errors.append(error)
        self.launched.append(launches() - before)

    def outcome(self, check: dict, since: int) -> dict:
        """Return the outcome of a check of the cells from `since` on."""
        errors = [error for error in self.errors[since:] if error is not None]
        before = launches()
        outcome, reason = self._judged(check, "".join(self.said[since:]), errors)
        made = sum(self.launched[since:]) + launches() - before
        if outcome == "right" and not made:
            outcome, reason = "failed", "nothing was launched"
        if outcome == "failed" and "faulty" in check:
            outcome, reason = "faulty", f"{check['faulty']}: {reason}"
        return _line(self.program, check, outcome, made, reason)

    def _judged(self, check, said, errors):
        reason = " / ".join(f"{type(error).__name__}: {error}" for error in errors)
        if "fault" in check:
            return ("fault named" if check["fault"] in reason else "failed"), reason or "no error was raised"
        if "test" not in check:
            return ("failed", reason) if reason else ("unchecked", "")
        try:
            with limited(self.limit), contextlib.redirect_stdout(io.StringIO()):
                self._hold(check["test"], said)
        except (Exception, Slow) as error:
            outcome = "slow" if isinstance(error, Slow) or any(isinstance(e, Slow) for e in errors) else "failed"
            return outcome, " / ".join(filter(None, [reason, f"{type(error).__name__}: {error}"]))
        return "right", ""

    def _hold(self, test: str, said: str) -> None:
        """Raise an error if a test does not hold: an expression, or statements; `said` is what the cells printed."""
        import numpy as np

        names = {**self.names, "np": np, "close": np.allclose, "said": said, "__name__": "check"}
        exec(lists()["references"]["code"], names)
        try:
            code = compile(test.strip(), "check", "eval")
        except SyntaxError:
            file = self.scratch / "check.py"
            file.write_text(test, encoding="utf-8")
            exec(compile(test, str(file), "exec"), names)
        else:
            assert bool(np.all(eval(code, names))), f"not so: {test}"


def run_program(program: dict, folder: Path, limit: float, report: Path) -> None:
    """Run a program under the emulated card; append a line of JSON to `report` for each check."""
    import numbanet

    os.environ["MPLBACKEND"] = "Agg"
    with numbanet.emulated(), tempfile.TemporaryDirectory() as scratch:
        run = Run(program, folder, Path(scratch), limit)
        os.chdir(run.path.parent)
        sys.path.insert(0, str(run.path.parent))
        run.names.update(__name__="__main__", __builtins__=builtins, display=print)
        _notebook()
        before = program.get("before", "")
        exec(lists()["surroundings"].get(before, before), run.names)
        made = run.cells()
        checks = [{"after": len(made) - 1, **check} for check in program["checks"]]
        for i, cell in enumerate(made):
            run.execute(cell)
            for check in checks:
                if check["after"] == i:
                    since = max((other["after"] + 1 for other in checks if other["after"] < i), default=0)
                    with report.open("a") as file:
                        file.write(json.dumps(run.outcome(check, since)) + "\n")


def _notebook() -> None:
    """Put something that does nothing in the place of IPython, if it is not installed."""
    if importlib.util.find_spec("IPython"):
        return
    display = types.ModuleType("IPython.display")
    for name in ("HTML", "IFrame", "Image", "Markdown", "clear_output", "display"):
        setattr(display, name, lambda *given, **named: None)
    ipython = types.ModuleType("IPython")
    ipython.display, ipython.get_ipython, ipython.version_info = display, lambda: None, (9, 0)  # Matplotlib asks for it
    sys.modules.update({"IPython": ipython, "IPython.display": display})


# --- in the first process ---------------------------------------------------------------------------------------------
def outcomes(program: dict, folder: Path, limit: float) -> list[dict]:
    """Run a program in a process of its own, and return the outcomes of its checks, with those that it did not reach."""
    if not (folder / program["source"] / program["file"]).exists():
        return [_line(program, check, "missing", 0, "the file is not there") for check in program["checks"]]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report")
        given = [str(folder.resolve()), "--program", program["name"], "--limit", str(limit), "--report", str(report)]
        status, said = apart("tests.kernels.teaching", *given)
        found = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    reached = {line["name"] for line in found}
    reason = f"status {status}: " + " / ".join(said.strip().splitlines()[-3:])
    others = [_line(program, check, "crashed", 0, reason) for check in program["checks"]]
    return found + [line for line in others if line["name"] not in reached]


def _line(program: dict, check: dict, outcome: str, launched: int, reason: str) -> dict:
    """Return an outcome, with what was compared, and sizes that are reduced."""
    by = {"compared": "the machine's message" if "fault" in check else "own check" if check.get("own") else "reference of ours"}
    known = by if "fault" in check or "test" in check else {}
    less = {"smaller": [f"{old} -> {new}" for old, new in program["smaller"]]} if "smaller" in program else {}
    name = f"{program['name']}: {check['kernel']}"
    return {"name": name, "outcome": outcome, "launches": launched, "reason": reason, **known, **less}


def scope(line: dict) -> dict:
    """Return the entry that says why an outcome is out of scope; an empty one if it is not."""
    for program in programs([]):
        for check in program["checks"]:
            if f"{program['name']}: {check['kernel']}" == line["name"] and line["outcome"] in ("failed", "slow", "crashed"):
                return {"out of scope": check["scope"]} if "scope" in check else {}
    return {}


def summary(found: list[dict]) -> dict:
    """Return the number of kernels by outcome: of all, and by repository."""
    sources = sorted({line["name"].partition(":")[0] for line in found})
    return {
        "all": counted(found),
        "by repository": {s: counted([line for line in found if line["name"].startswith(s + ":")]) for s in sources},
        "commits": {source: commit for source, commit in lists()["commits"].items() if source in sources},
    }


def rows(found: list[dict]) -> list[dict]:
    """Return what a page may say of the outcomes (`python -m bench report`): numbers, and the share of those that are right."""
    kinds = counted(found)
    counts = {**kinds, "all": len(found), "repositories": len(summary(found)["by repository"])}
    share = {"share": kinds.get("right", 0) / (len(found) - kinds.get("fault named", 0) - kinds.get("faulty", 0) or 1)}
    row = {"suite": "teaching-kernels", "implementation": "emulated"}
    return [{**row, "case": kind, "count": n, **(share if kind == "right" else {})} for kind, n in counts.items()]


def get(folder: Path) -> None:
    """Clone the repositories that are missing, at their commits."""
    for source, commit in lists()["commits"].items():
        if not (folder / source).exists():
            url = f"https://github.com/{source}"
            subprocess.run(["git", "clone", "--quiet", url, str(folder / source)], check=True)
            subprocess.run(["git", "-C", str(folder / source), "checkout", "--quiet", commit], check=True)


def main() -> None:
    """Parse the command line; run all programs, or, in a process of its own, one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--get", action="store_true", help="clone the repositories that are missing, and end")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="programs with one of these words in their names")
    parser.add_argument("--limit", type=float, default=60, help="CPU seconds of a cell")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "bench/results/teaching-kernels.json")
    for hidden in ("--program", "--report"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.get:
        return get(options.folder)
    if options.program:
        (program,) = (made for made in programs([]) if made["name"] == options.program)
        return run_program(program, options.folder, options.limit, Path(options.report))
    partly = options.out.exists() and options.only
    known = {f"{made['name']}: {check['kernel']}" for made in programs([]) for check in made["checks"]}
    kept = json.loads(options.out.read_text())["kernels"] if partly else []
    chosen = programs(options.only)
    found = [line for line in kept if line["name"] in known and not line["name"].startswith(tuple(p["name"] for p in chosen))]
    for program in chosen:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        lines = outcomes(program, options.folder, options.limit)
        found += lines
        taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        print(f"{program['name']}: {counted(lines)}, {taken:.0f} s", flush=True)
        record(options.out, options.limit, {}, scope, kernels=found)
    record(options.out, options.limit, {**summary(found), "quick": False, "rows": rows(found)}, scope, kernels=found)
    print(json.dumps(summary(found)["all"], indent=1))
    print_reasons([line for line in found if line["outcome"] in ("failed", "slow", "crashed", "missing")])


if __name__ == "__main__":
    main()
