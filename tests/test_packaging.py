"""Wheel and sdist build, and work when installed outside the checkout."""
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("build", reason="builds wheel and sdist (extra `test`)")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with sdist and wheel, built from a copy of the tracked folders."""
    folder = tmp_path_factory.mktemp("packaging")
    copy = folder / "source"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.egg-info", "build", "dist"))
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder / "dist", copy], check=True, capture_output=True,
                   timeout=400)
    return folder / "dist"


def test_the_wheel_holds_the_packages_and_no_other(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"numbanet", "numbanet_kernels"}
    sources = {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")}
    assert sources | {"numbanet/datasets/mnist.py", "numbanet/py.typed", "numbanet_kernels/py.typed"} <= set(names)


def test_the_sdist_holds_licence_tests_and_examples(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "datasets/mnist.py", "tests/test_net.py",
            "examples/05_net.py"} <= names


def test_the_wheel_works_outside_the_checkout(built, tmp_path):
    target = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target,
                    next(built.glob("*.whl"))], check=True, timeout=200)
    code = ("import numbanet, numbanet.datasets; from numbanet.datasets import load_digits; "
            "X, y, Xt, yt = load_digits(); print(numbanet.Net((64,), dropout='rdp').fit(X, y).score(Xt, yt) > 0.85, "
            "numbanet.__file__)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120,
                          env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin", "NUMBA_CACHE_DIR": str(tmp_path / "cache")})
    assert done.stdout.split()[0] == "True" and str(target) in done.stdout, done.stderr
