"""The walkthroughs run, each in a fresh interpreter and another folder, and draw the pictures that they announce."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the walkthroughs draw: pip install matplotlib")
from matplotlib import image

from numbanet_kernels.runtime import availability

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
SECONDS = 20  # of CPU: what a reader waits at most, on a machine with nothing else to do
TIMEOUT = 6 * SECONDS  # what a busy machine may take
LOOP = 0.064  # s of CPU that `slowness` takes on the machine that SECONDS was set on


def slowness():
    """How many times slower this machine is now than the one of SECONDS: neighbours make CPU time longer, too."""
    start, counts = time.process_time(), {}
    for i in range(600_000):
        counts[i % 1000] = counts.get(i % 1000, 0) + i * i % 7
    return max(1, (time.process_time() - start) / LOOP)


def run(example, folder, **variables):
    """The finished process and the pictures it announced; one BLAS thread, so that busy machines do not stall."""
    environment = {
        **os.environ,
        "NUMBANET_PICTURES": str(folder),
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", str(example)],
        cwd=folder,
        env=environment,
        encoding="utf-8",
        capture_output=True,
        timeout=TIMEOUT,
    )
    return done, [Path(line.removeprefix("wrote ")) for line in done.stdout.splitlines() if line.startswith("wrote ")]


def cells(example):
    """[(is it prose, its lines), …] of a percent-format file."""
    parts = re.split(r"^# %%(.*)\n", example.read_text(encoding="utf-8"), flags=re.M)
    assert parts[0] == "", f"{example.name} begins with something else than a cell"
    return [(mark.strip() == "[markdown]", body.strip().splitlines()) for mark, body in zip(parts[1::2], parts[2::2])]


def test_there_are_examples():
    numbers = [int(example.name[:2]) for example in EXAMPLES]
    assert len(numbers) >= 5
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
@pytest.mark.slow
def test_runs_and_draws(example, tmp_path):
    if example.name.startswith(("06", "16")) and availability.nvvm_problem() is not None:
        pytest.skip("compiles kernels, and NVVM is missing")
    slow, before = slowness(), os.times()
    done, pictures = run(example, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    after = os.times()
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    slow = (slow + slowness()) / 2
    assert seconds < SECONDS * slow, f"{example.name} took {seconds:.0f} s of CPU time on a machine {slow:.1f} times slower"
    announced = set(re.findall(r'^save\("(.+)"\)$', example.read_text(encoding="utf-8"), re.M))
    assert announced and {picture.name for picture in pictures} == announced
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".png"} == announced
    for picture in pictures:
        pixels = image.imread(picture)[..., :3]
        assert min(pixels.shape[:2]) > 200 and pixels.shape[1] > 600, f"{picture.name} is small: {pixels.shape}"
        colours, counts = np.unique(np.int64(pixels * 255) @ (1, 256, 256**2), return_counts=True)
        assert len(colours) > 10 and counts.max() < 0.99 * counts.sum(), f"{picture.name} is nearly blank"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_opens_as_a_notebook(example):
    found = cells(example)
    prose = [lines for is_prose, lines in found if is_prose]
    assert prose[0][0].startswith(f"# # {int(example.name[:2])}. ")
    for lines in prose:
        assert lines and all(line.startswith("# ") or line == "#" for line in lines), lines
    for is_prose, lines in found:
        if not is_prose:
            ast.parse("\n".join(lines))  # a cell is whole statements


def test_a_failing_example_fails(tmp_path):
    """The check that the checks above can fail."""
    broken = tmp_path / "broken.py"
    broken.write_text("print('wrote nowhere.png')\nassert False\n")
    done, pictures = run(broken, tmp_path)
    assert done.returncode != 0 and not pictures[0].exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
@pytest.mark.long
@pytest.mark.slow
def test_shows_its_pictures_as_a_notebook(example, tmp_path, monkeypatch):
    """In Jupyter's kernel, with the backend that it chooses, from examples/: each cell that saves pictures shows them, too."""
    jupytext, nbclient = (pytest.importorskip(name, reason="extra `docs`") for name in ("jupytext", "nbclient"))
    pytest.importorskip("ipykernel", reason="extra `docs`")
    if example.name.startswith("06") and availability.nvvm_problem() is not None:
        pytest.skip("compiles kernels, and NVVM is missing")
    monkeypatch.delenv("MPLBACKEND", raising=False)
    for name, value in (("NUMBANET_PICTURES", tmp_path), ("PYTHONPATH", ROOT), ("OMP_NUM_THREADS", 1)):
        monkeypatch.setenv(name, str(value))
    notebook = jupytext.read(example)
    nbclient.NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(example.parent)}}).execute()
    shown = 0
    for cell in notebook.cells:
        saved = len(re.findall(r"^save\(", cell.source, re.M)) if cell.cell_type == "code" else 0
        pictures = [output for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
        assert len(pictures) >= saved, cell.source
        shown += saved
    assert shown == len(list(tmp_path.glob("*.png"))) > 0
