"""The script that runs kernels of tutorials: the outcomes of the programs of a small list, of a notebook and of files."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from numbanet_kernels import card
from tests.kernels import teaching

pytest.importorskip("tomllib")
pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))

NOTEBOOK = [
    "%matplotlib inline\nimport numpy as np\nfrom numba import cuda\nfrom IPython.display import Image",
    "@cuda.jit\ndef twice(x):\n    i = cuda.grid(1)\n    if i < x.size:\n        x[i] *= 2\nx = np.ones(40)",
    "!nvidia-smi\n%timeit -n 3 twice[1, 64](x)\nprint(x.sum())",
    "@cuda.jit\ndef racing(x):\n    x[0] += 1\nracing[1, 64](x)",
    "this is left out",
    "undefined",
    "%%time\ntwice[1, 64](x)",
]
FILE = """
    import numpy as np
    from numba import cuda

    # +
    @cuda.jit
    def thrice(x):
        x[cuda.threadIdx.x] *= 3

    def check():
        print("right" if (x == 3).all() else "wrong")

    # +
    x = np.ones(SIZE)
    thrice[1, SIZE](x)
    if __name__ == "__main__":
        check()
"""
LIST = """
    [commits]
    "me/course" = "0"

    [surroundings]
    size = "SIZE = 64"

    [references]
    code = "def doubled(x): return 2 * x"

    [[program]]
    source = "me/course"
    file = "lesson.ipynb"
    skip = { 4 = "it is no code" }
    checks = [
      { kernel = "twice", after = 2, test = "(x == doubled(1)).all() and said == '80.0\\\\n'" },
      { kernel = "twice, wrong", after = 2, test = '''
    assert x[0] == 3
    ''' },
      { kernel = "racing", after = 3, fault = "race" },
      { kernel = "lost", after = 5, test = "undefined", scope = "what is not there" },
      { kernel = "faulty", after = 5, test = "undefined", faulty = "it is not defined" },
      { kernel = "again", after = 6 },
      { kernel = "not launched", after = 1, test = "True" },
    ]

    [[program]]
    source = "me/course"
    files = ["one.py", "two.py"]
    cells = "# +"
    before = "size"
    smaller = [["SIZE)", "SIZE // 2)"]]
    checks = [{ kernel = "thrice", own = true, test = "said == 'right\\\\n' and x.size == 32" }]
"""
OUTCOMES = {
    "lesson.ipynb: twice": ("right", 1),
    "lesson.ipynb: twice, wrong": ("failed", 1),
    "lesson.ipynb: racing": ("fault named", 1),
    "lesson.ipynb: lost": ("failed", 0),
    "lesson.ipynb: faulty": ("faulty", 0),
    "lesson.ipynb: again": ("unchecked", 1),
    "lesson.ipynb: not launched": ("failed", 0),
    "one.py: thrice": ("right", 1),
    "two.py: thrice": ("missing", 0),
}


@pytest.mark.slow
def test_a_small_list(tmp_path):
    folder, out, listed = tmp_path / "me/course", tmp_path / "out.json", tmp_path / "list.toml"
    folder.mkdir(parents=True)
    listed.write_text(textwrap.dedent(LIST))
    notebook = {"cells": [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in NOTEBOOK]}
    (folder / "lesson.ipynb").write_text(json.dumps(notebook))
    (folder / "one.py").write_text(textwrap.dedent(FILE).replace("[1, SIZE]", "[1, x.size]"))
    subprocess.run(
        [sys.executable, "-m", "tests.kernels.teaching", str(tmp_path), "--list", str(listed), "--out", str(out)],
        cwd=Path(teaching.__file__).parents[2],
        env=dict(os.environ),
        timeout=300,
        check=True,
    )
    found = json.loads(out.read_text())
    outcomes = {line["name"].removeprefix("me/course: "): (line["outcome"], line["launches"]) for line in found["kernels"]}
    assert outcomes == OUTCOMES
    ones = dict.fromkeys(("fault named", "out of scope", "faulty", "unchecked", "missing"), 1)
    assert found["all"] == {"right": 2, "failed": 2, **ones}
    shares = {row["case"]: row.get("share") for row in found["rows"]}
    assert shares["right"] == 2 / 7 and shares["failed"] is None
    assert next(line["smaller"] for line in found["kernels"] if "one.py" in line["name"]) == ["SIZE) -> SIZE // 2)"]


def test_the_list_of_the_repository():
    """Each program names its repository, each kernel comes once, and says what is compared or why nothing is."""
    known = teaching.List(teaching.LISTS)
    checks = [f"{program['name']}: {check['kernel']}" for program in known.programs for check in program["checks"]]
    assert len(checks) == len(set(checks)) == len(known.checks()) >= 60
    assert {program["source"] for program in known.programs} <= set(known.commits)
    assert all(len(commit) == 40 for commit in known.commits.values())
    assert all("test" in check or "fault" in check for check in known.checks().values())
    for program in known.programs:
        places = [check["after"] for check in program["checks"] if "after" in check]
        assert places == sorted(places), program["name"]


@pytest.mark.parametrize(
    "cell, wanted",
    [
        ("x = 1\n%timeit -n 5 -r 2 f(x)", "x = 1\nf(x)"),
        ("if x:\n    %time f(x); g(x)", "if x:\n    f(x); g(x)"),
        ("%%timeit -n 3\nf(x)", "f(x)"),
        ("%%writefile a.py\nf(x)", ""),
        ("!ls\n  !ls\n%matplotlib inline", "pass\n  pass\npass"),
        ("y = x % 3\ny %= 2", "y = x % 3\ny %= 2"),
    ],
)
def test_a_cell_without_magic(cell, wanted):
    assert teaching.plain(cell) == wanted
