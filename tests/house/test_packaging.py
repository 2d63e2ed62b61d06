"""Wheel and sdist build, and work when installed outside the checkout."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from numbanet import __version__

ROOT = Path(__file__).parents[2]
pytest.importorskip("build", reason="builds wheel and sdist (extra `test`)")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with sdist and wheel, built from a copy of the tracked folders."""
    folder = tmp_path_factory.mktemp("packaging")
    copy = folder / "source"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.egg-info", "build", "_build", "dist")
    )
    here = ["--no-isolation"] if importlib.util.find_spec("setuptools") else []
    command = [sys.executable, "-m", "build", "--sdist", *here, "--outdir", folder / "dist", copy]
    subprocess.run(command, check=True, capture_output=True, timeout=400)
    # the wheel of the sdist, in an environment that has what pyproject.toml asks for alone
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist"]
    subprocess.run([*command, next((folder / "dist").glob("*.tar.gz"))], check=True, timeout=400)
    return folder / "dist"


def test_the_wheel_holds_the_packages_and_no_other(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"numbanet", "numbanet_kernels"}
    sources = {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")}
    sources |= {f"numbanet/{path.relative_to(ROOT)}" for path in (ROOT / "bench").rglob("*.py")}
    assert not [name for name in names if "bench/results/" in name]
    assert sources | {"numbanet/datasets/mnist.py", "numbanet/py.typed", "numbanet_kernels/py.typed"} <= set(names)


def test_the_sdist_holds_licence_tests_and_examples(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "datasets/mnist.py",
        "tests/estimators/test_net.py",
        "examples/05_net.py",
    } <= names


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Runs Python in a folder of its own, with the wheel installed and no checkout at hand."""
    folder = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
            folder / "site",
            next(built.glob("*.whl")),
        ],
        check=True,
        timeout=200,
    )
    cache = os.environ.get("NUMBA_CACHE_DIR", str(folder / "cache"))  # compiled code is found by the content of its sources
    environment = {"PYTHONPATH": str(folder / "site"), "PATH": "/usr/bin:/bin", "NUMBA_CACHE_DIR": cache}
    return lambda *arguments: subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=120, env=environment
    )


def test_the_wheel_works_outside_the_checkout(installed):
    code = (
        "import numbanet, numbanet.datasets; from numbanet.datasets import load_digits; "
        "X, y, Xt, yt = load_digits(); print(numbanet.Net((64,), dropout='rdp').fit(X, y).score(Xt, yt) > 0.85, "
        "numbanet.__file__)"
    )
    done = installed("-c", code)
    assert done.stdout.startswith("True") and "site/numbanet/__init__.py" in done.stdout, done.stderr


def test_kernels_are_measured_without_a_checkout(installed):
    done = installed("-m", "numbanet", "bench", "loss", "--shape", "32,1,5", "--only", "squared", "--json", "a.json")
    assert done.returncode == 0 and "squared_error n=32 width=5" in done.stdout, done.stderr
    record = json.loads(installed("-c", "print(open('a.json').read())").stdout)
    assert record["commit"] is None and record["machine"]["numbanet"] == __version__ and record["shape"] == [32, 1, 5]
    done = installed("-m", "numbanet", "bench", "report")
    assert done.returncode == 2 and done.stderr == (
        "numbanet bench: error: report needs a checkout of numbanet, with its tests and results\n"
    )
