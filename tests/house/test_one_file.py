"""A policy, a layer, a data set and a suite are each one file and its export: help, docstrings, tables and plots follow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

POLICY = '''
import numpy as np

from ..plans import IndexPlan
from .base import Dropout, Style


class HalvesDropout(Dropout):
    """Halves: one half of the neurons is kept, the first or the second."""

    name, drops, computes, style = "halves", "neurons: one half, of two", "a quarter", Style("#123456", "--", "h")

    def plan(self, site, rng):
        half = site.shape[0] // 2
        return IndexPlan(site.shape[0], half * int(rng.integers(2)) + np.arange(half), 2.0)
'''
LAYER = '''
from .base import Layer


class Twice(Layer):
    """y = 2 x"""

    def __call__(self, x):
        return x + x
'''
DATA = '''
import numpy as np


def load_stripes():
    """Images of 2 x 2 pixels, of which one column is light."""
    y = np.arange(80) % 2
    X = np.zeros((80, 1, 2, 2), np.float32)
    X[np.arange(80), 0, :, y] = 1
    return X[:60], y[:60], X[60:], y[60:]
'''
SUITE = '''
"""Nothing, which takes no time."""
SUITE, RECORDED = "nothing", ("--json bench/results/nothing.json",)


def run(options, results, say):
    """One row."""
    rows = [{"suite": SUITE, "case": "a case", "implementation": "numbanet", "median_ms": 1.0, "p10": 1.0, "p90": 1.0}]
    results.add(rows)
    return rows
'''
IN_TURN = """
import contextlib, io, json, runpy, sys
said = []
for kind, what, *arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        sys.argv = [what, *arguments]
        try:
            if kind == "-c":
                exec(what, {"__name__": "__main__"})
            else:
                runpy.run_module(what, run_name="__main__", alter_sys=True)
        except SystemExit as left:
            if left.code:
                raise
    said.append(out.getvalue())
print(json.dumps(said))
"""


DRAWING = """if True:
    from numbanet import plots
    from bench.machinery.plots import COLOURS
    plots._save = lambda figure, path: print(*(line.get_color() + line.get_linestyle() + line.get_marker()
                                               for line in figure.axes[0].lines))
    record = {"epoch": 1, "seconds": 1.0, "score": 0.5, "loss": 1.0}
    plots.learning_curves({"halves": [record]}, "a.png")
    print(COLOURS["halves"])"""
SAVED = """if True:
    import numpy as np
    from numbanet import Linear, Net, Twice
    X = np.random.default_rng(0).random((12, 3))
    net = Net([Linear(3, 4), Twice(), Linear(4, 2)], epochs=1, random_state=0).fit(X, np.arange(12) % 2)
    net.save("a.safetensors")
    print(np.array_equal(Net.load("a.safetensors").predict_proba(X), net.predict_proba(X)))"""
REPORTED = """if True:
    from bench.machinery import report
    report.report()
    print(report.PAGES[1].read_text(encoding="utf-8"))"""
OPTIONS = "--layers 16 --epochs 20 --batch-size 10 --dropout none --learning-rate 0.1 --quiet --save b.safetensors"
COMMANDS = {  # arguments of Python, of each test
    "place": [["-c", "import numbanet; print(numbanet.__file__)"]],
    "layer": [["-c", SAVED]],
    "data set": [
        ["-m", "numbanet", "train", "--help"],
        ["-m", "numbanet", "train", "--data", "stripes", *OPTIONS.split()],
        ["-m", "numbanet", "predict", "b.safetensors", "stripes"],
    ],
    "suite": [
        ["-m", "bench", "list"],
        ["-m", "bench", "--help"],
        ["-m", "bench", "nothing", "--json", "bench/results/nothing.json"],
        ["-c", REPORTED],
    ],
    "policy": [
        ["-m", "numbanet", "train", "--help"],
        ["-c", "from numbanet import *; print(HalvesDropout.name, Net.__doc__, LanguageModel.__doc__)"],
        ["-c", "from bench.machinery import report; print(report.policies('', '', []))"],
        ["-c", DRAWING],
        ["-m", "numbanet", "train", "--dropout", "halves", "--layers", "8,8", "--epochs", "1", "--quiet"],
    ],
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each of COMMANDS prints where numbanet, its data sets and its bench are copies with one file more of each kind: all
    in one process, which imports numbanet once."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("numbanet", "datasets", "bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    _export(folder, "numbanet/dropout/halves.py", POLICY, "numbanet/dropout/registry.py", "HalvesDropout")
    _export(folder, "numbanet/layers/twice.py", LAYER, "numbanet/layers/registry.py", "Twice")
    _export(folder, "datasets/stripes.py", DATA, "numbanet/datasets.py", "load_stripes", "numbanet.datasets.stripes")
    path = folder / "numbanet/datasets.py"
    path.write_text(path.read_text(encoding="utf-8").replace("IMAGES = (", 'IMAGES = ("stripes", ', 1), encoding="utf-8")
    (folder / "bench/steps/nothing.py").write_text(SUITE.lstrip(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, json.dumps([command for some in COMMANDS.values() for command in some])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    texts = iter(json.loads(done.stdout))
    found = {name: [next(texts) for _ in some] for name, some in COMMANDS.items()}
    assert found["place"] == [f"{folder / 'numbanet/__init__.py'}\n"]
    return found


def _export(folder, path, text, registry, name, module=None):
    """Write a file; import a name from it in a registry, and add that to its `__all__`."""
    (folder / path).write_text(text, encoding="utf-8")
    found = (folder / registry).read_text(encoding="utf-8")
    before, mark, after = found.partition("\n__all__ = [")
    assert mark
    line = f"from {module or f'.{Path(path).stem}'} import {name}\n"
    (folder / registry).write_text(f'{before}{line}{mark}"{name}", {after}', encoding="utf-8")


@pytest.mark.slow
def test_a_policy_stands_in_help_docstrings_tables_and_plots(said):
    usage, docstrings, table, drawn, trained = said["policy"]
    assert "halves" in usage
    assert docstrings.startswith("halves") and docstrings.count('"halves"') == 3  # of dropout twice, of recurrent_dropout once
    assert '| `"halves"` | neurons: one half, of two | a quarter |' in table
    assert drawn == "#123456--h\n#123456\n"
    assert "halves" in trained


@pytest.mark.slow
def test_a_layer_is_public_and_can_be_saved(said):
    assert said["layer"] == ["True\n"]


@pytest.mark.slow
def test_a_data_set_is_trained_on_and_predicted(said):
    usage, trained, predicted = said["data set"]
    assert "stripes" in usage and "stripes" in trained and "100.00%" in trained
    assert predicted.split() == ["0", "1"] * 10


@pytest.mark.slow
def test_a_suite_stands_in_the_list_in_help_and_in_the_page(said):
    names, usage, _, page = said["suite"]
    assert "nothing " in names and "nothing" in usage
    assert "| `nothing` | Nothing, which takes no time. | `python -m bench nothing --json bench/results/nothing.json` |" in page
    assert "## `nothing`\n\nNothing, which takes no time.\n\n_cpu: " in page and "| a case | numbanet |" in page


@pytest.mark.slow
def test_two_suites_of_one_name_are_refused(tmp_path):
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__", "results"))
    (tmp_path / "bench/steps/more.py").write_text('SUITE = "mlp"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode != 0 and "both define SUITE = 'mlp'" in done.stderr
