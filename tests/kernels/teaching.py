"""Run kernels that others wrote to teach (tutorials, courses, puzzles) on the emulated card, and compare their results.

    python -m tests.kernels.teaching FOLDER [--list FILE] [--only WORD …] [--limit SECONDS] [--out FILE]
    python -m tests.kernels.teaching FOLDER --get

FOLDER holds the repositories of the list, `teaching.toml`, as FOLDER/owner/name, at the commits that it names; `--get` clones
those that are missing. Nothing of them is copied. A program is a file or a notebook. Its cells run in their order, in a process
of its own, within a limit of CPU seconds each; lines of the shell are left out, and what `%timeit` measures runs once. If a
cell raises an error, the next one runs, as it does by hand.

A check stands after a cell, for one kernel. Its outcome is

    right         its test holds: a comparison with what NumPy computes, or with the program's own assertion or printed result
    fault named   the program has a fault, planted or not, and the machine names it: `fault` is a part of the message
    faulty        the program does not run on a card either, with the Numba of today: `faulty` says why
    unchecked     the cells ran, and there is nothing to compare with
    failed, slow, crashed, or missing, if the file is not in FOLDER

FILE is a JSON object: the machine, the number of kernels by outcome, of all and by repository, and a list of kernels: name,
outcome, number of launches, the reason of a failure, and why it is out of scope, if it is. The share of those that are right is
of all kernels but those of programs that are faulty, or have a fault that is named.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib.util
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from tests.kernels.others import CHECKOUT, Slow, apart, counted, launches, limited, print_reasons, record

LISTS = Path(__file__).with_suffix(".toml")


class List:
    """A list of programs: `programs`, the commits of their repositories, and code that several of them need."""

    def __init__(self, path: Path) -> None:
        import tomllib  # from Python 3.11 on

        held = tomllib.loads(path.read_text(encoding="utf-8"))
        self.path, self.commits, self.references = path, held["commits"], held.get("references", {}).get("code", "")
        self.programs = []
        for entry in held["program"]:
            before = held.get("surroundings", {}).get(entry.get("before"), entry.get("before", ""))
            for file in entry.get("files", [entry.get("file")]):
                self.programs.append({**entry, "file": file, "name": f"{entry['source']}: {file}", "before": before})

    def chosen(self, words: list[str]) -> list[dict]:
        """Return the programs whose names hold one of the words; all, if there are none."""
        return [program for program in self.programs if not words or any(word in program["name"] for word in words)]

    def checks(self) -> dict[str, dict]:
        """Return the check of each kernel, by the name that it has in the outcomes."""
        return {_name(program, check): check for program in self.programs for check in program["checks"]}

    def scope(self, line: dict) -> dict:
        """Return the entry that says why an outcome is out of scope; an empty one if it is not."""
        check = self.checks().get(line["name"], {})
        return {"out of scope": check["scope"]} if "scope" in check and line["outcome"] in ("failed", "slow", "crashed") else {}


def _name(program: dict, check: dict) -> str:
    return f"{program['name']}: {check['kernel']}"


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

    def __init__(self, program: dict, references: str, folder: Path, scratch: Path, limit: float) -> None:
        self.program, self.references, self.limit, self.scratch = program, references, limit, scratch
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
        exec(self.references, names)
        try:
            code = compile(test.strip(), "check", "eval")
        except SyntaxError:
            file = self.scratch / "check.py"
            file.write_text(test, encoding="utf-8")
            exec(compile(test, str(file), "exec"), names)
        else:
            assert bool(np.all(eval(code, names))), f"not so: {test}"


def run_program(name: str, known: List, folder: Path, limit: float, report: Path) -> None:
    """Run a program under the emulated card; append a line of JSON to `report` for each check."""
    import numbanet

    (program,) = (made for made in known.programs if made["name"] == name)
    os.environ["MPLBACKEND"] = "Agg"
    with numbanet.emulated(), tempfile.TemporaryDirectory() as scratch:
        run = Run(program, known.references, folder, Path(scratch), limit)
        os.chdir(run.path.parent)
        sys.path.insert(0, str(run.path.parent))
        run.names.update(__name__="__main__", __builtins__=builtins, display=print)
        _notebook()
        exec(program["before"], run.names)
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
def outcomes(program: dict, known: List, folder: Path, limit: float) -> list[dict]:
    """Run a program in a process of its own, and return the outcomes of its checks, with those that it did not reach."""
    if not (folder / program["source"] / program["file"]).exists():
        return [_line(program, check, "missing", 0, "the file is not there") for check in program["checks"]]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report")
        given = ["--list", str(known.path.resolve()), "--limit", str(limit), "--report", str(report)]
        status, said = apart("tests.kernels.teaching", str(folder.resolve()), "--program", program["name"], *given)
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
    return {"name": _name(program, check), "outcome": outcome, "launches": launched, "reason": reason, **known, **less}


def summary(found: list[dict], known: List) -> dict:
    """Return the number of kernels by outcome: of all, and by repository."""
    sources = sorted({line["name"].partition(":")[0] for line in found})
    return {
        "all": counted(found),
        "by repository": {s: counted([line for line in found if line["name"].startswith(s + ":")]) for s in sources},
        "commits": {source: commit for source, commit in known.commits.items() if source in sources},
    }


def rows(found: list[dict]) -> list[dict]:
    """Return what a page may say of the outcomes (`python -m bench report`): numbers, and the share of those that are right."""
    kinds = counted(found)
    counts = {**kinds, "all": len(found), "repositories": len({line["name"].partition(":")[0] for line in found})}
    share = {"share": kinds.get("right", 0) / (len(found) - kinds.get("fault named", 0) - kinds.get("faulty", 0) or 1)}
    row = {"suite": "teaching-kernels", "implementation": "emulated"}
    return [{**row, "case": kind, "count": n, **(share if kind == "right" else {})} for kind, n in counts.items()]


def get(folder: Path, commits: dict[str, str]) -> None:
    """Clone the repositories that are missing, at their commits."""
    for source, commit in commits.items():
        if not (folder / source).exists():
            url = f"https://github.com/{source}"
            subprocess.run(["git", "clone", "--quiet", url, str(folder / source)], check=True)
            subprocess.run(["git", "-C", str(folder / source), "checkout", "--quiet", commit], check=True)


def run_all(options: argparse.Namespace, known: List) -> None:
    """Run the programs that the command line names, and write their outcomes."""
    chosen = known.chosen(options.only)
    again = tuple(f"{program['name']}: " for program in chosen)
    kept = json.loads(options.out.read_text())["kernels"] if options.out.exists() and options.only else []
    found = [line for line in kept if line["name"] in known.checks() and not line["name"].startswith(again)]
    for program in chosen:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        lines = outcomes(program, known, options.folder, options.limit)
        found += lines
        taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        print(f"{program['name']}: {counted(lines)}, {taken:.0f} s", flush=True)
        about = {**summary(found, known), "quick": False, "rows": rows(found)}
        record(options.out, options.limit, about, known.scope, kernels=found)
    print(json.dumps(counted(found), indent=1))
    print_reasons([line for line in found if line["outcome"] in ("failed", "slow", "crashed", "missing")])


def main() -> None:
    """Parse the command line; run all programs, or, in a process of its own, one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", type=Path, default=LISTS, help="the list of programs")
    parser.add_argument("--get", action="store_true", help="clone the repositories that are missing, and end")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="programs with one of these words in their names")
    parser.add_argument("--limit", type=float, default=60, help="CPU seconds of a cell")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "bench/results/teaching-kernels.json")
    for hidden in ("--program", "--report"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = List(options.list)
    if options.get:
        get(options.folder, known.commits)
    elif options.program:
        run_program(options.program, known, options.folder, options.limit, Path(options.report))
    else:
        run_all(options, known)


if __name__ == "__main__":
    main()
