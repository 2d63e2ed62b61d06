"""What the pages say of versions and of the environment is so."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import numbanet

ROOT = Path(__file__).parents[2]


def text(name):
    """A file of the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


# --- environment variables --------------------------------------------------------------------------------------------
def variables(source):
    """The names of environment variables in a program: words in capitals, where it reads the environment."""
    if not re.search(r"\bos\.(environ|getenv)\b", source):
        return set()
    return {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[A-Z]+(_[A-Z]+)+|[A-Z]{8,}", node.value)
    }


def test_a_page_lists_the_environment_variables():
    read = set().union(
        *(
            variables(path.read_text(encoding="utf-8"))
            for folder in ("numbanet", "numbanet_kernels", "datasets", "bench", "examples")
            for path in (ROOT / folder).rglob("*.py")
        )
    )
    rows = re.findall(r"^\| (`.+?) \|", text("docs/environment.md"), re.M)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert {"NUMBANET_DATA", "NUMBA_CACHE_DIR", "LOCALAPPDATA"} <= read
    assert sorted(listed) == sorted(read)


def test_variables_are_found_where_the_environment_is_read():
    assert variables("import os\nx = os.environ.get('A_B', 'c')\n") == variables("import os\nos.getenv('A_B')\n") == {"A_B"}
    assert variables("x = 'A_B'\n") == set()


# --- pages ------------------------------------------------------------------------------------------------------------
def test_no_file_holds_the_marks_of_an_unfinished_merge():
    files = [path for kind in ("md", "py", "toml", "txt", "yaml") for path in ROOT.glob(f"[!.]*/**/*.{kind}")]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    marked = re.compile(r"^(<{7}|>{7}) ", re.M)
    assert len(files) > 500
    assert [str(path) for path in files if marked.search(path.read_text(encoding="utf-8", errors="replace"))] == []


# --- versions ---------------------------------------------------------------------------------------------------------
def constraints():
    """{package: version} of constraints.txt."""
    lines = [line for line in text("constraints.txt").splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_the_constraints_are_the_versions_of_the_records():
    known = constraints()
    machines = [json.loads(path.read_text(encoding="utf-8"))["machine"] for path in (ROOT / "bench/results").glob("*.json")]
    machines = [machine for machine in machines if not machine["gpus"]]
    assert len(machines) >= 20
    for machine in machines:
        for key, name in (("numpy", "numpy"), ("numba", "numba"), ("numba_cuda", "numba-cuda"), ("torch", "torch")):
            if key in machine and (machine[key], key) != (None, "numba_cuda"):  # not installed: the CPU alone was measured
                assert machine[key].partition("+")[0] == known[name], name


def test_the_constraints_cover_what_setup_asks_for(monkeypatch):
    setuptools = pytest.importorskip("setuptools", reason="reads setup.py")
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    known, extras = constraints(), given["extras_require"]
    asked = [*given["install_requires"], *extras["cuda"], *extras["bench"]]
    assert len(asked) >= 11
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(known[requirement.name]), requirement


def test_contributing_says_that_the_oldest_versions_were_tried(monkeypatch):
    given = {}
    monkeypatch.setattr(pytest.importorskip("setuptools"), "setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    lines = text("CONTRIBUTING.md").partition("\n## Versions\n")[2].partition("\n## ")[0].splitlines()
    heads, _, oldest, *others = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    least = {part.name: part.specifier for part in map(Requirement, given["install_requires"])}
    for name, version in zip(heads[1:-1], oldest[1:-1], strict=True):
        assert str(least[name]) in {f">={'.'.join(version.split('.')[:n])}" for n in (2, 3)}, name
    assert len(others) >= 3 and all(row[-1] == "passes" for row in (oldest, *others))


def test_the_version_is_said_in_one_place():
    assert re.search(r"^version: (.+)$", text("CITATION.cff"), re.M)[1] == numbanet.__version__
    assert re.search(r"^## \[(\d.+?)\]", text("CHANGELOG.md"), re.M)[1] == numbanet.__version__
    assert numbanet.__version__ not in text("setup.py")
