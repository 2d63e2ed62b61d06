"""python -m bench SUITE --before FOLDER: ratios to what another checkout has."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bench.machinery.harness import Case, Implementation, Schedule, measure, with_before
from bench.machinery.results import load
from bench.machinery.worker import Workers


def test_another_checkout_is_the_peer(monkeypatch, tmp_path):
    """Its own modules are imported where an implementation is measured as it was before."""
    for name, value in (("now", 2.0), ("before", 1.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "measured_here.py").write_text(
            f"from bench.machinery.worker import Task\n\n\ndef build():\n    return Task(int, lambda: {{'result': {value}}})\n"
        )
    monkeypatch.syspath_prepend(tmp_path / "now")
    build = importlib.import_module("measured_here").build
    alone = Case("suite", "case", (Implementation("numbanet", build),), lambda outputs: outputs["result"], 9.0)
    with Workers(1, tmp_path / "before") as workers:
        rows = measure(with_before(alone), workers, Schedule(1, 1e-6, 0, 0))
    assert [(row.implementation, row.peer, row.error) for row in rows] == [
        ("numbanet, before", None, 1.0),
        ("numbanet", "numbanet, before", 2.0),
    ]


@pytest.mark.slow
def test_before_from_the_command_line(run_bench, tmp_path):
    """As a user runs it, with a process for each implementation."""
    path, root = tmp_path / "rows.json", Path(__file__).parents[2]
    arguments = ["elementwise", "--quick", "--only", "^relu ", "--json", str(path), "--before"]
    subprocess.run([sys.executable, "-m", "bench", *arguments, str(root)], cwd=root, check=True, timeout=120)
    found = load(path)
    assert [row["peer"] for row in found["rows"]] == [None, "numbanet, before"] and found["rows"][1]["ratio"] > 0
    assert str(root) not in path.read_text() and "before" in found
    status, _, errors = run_bench(*arguments, tmp_path)
    assert status == 2 and "is not a checkout of numbanet" in errors
