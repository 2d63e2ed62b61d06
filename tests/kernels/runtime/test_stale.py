"""Machine code on disk is of the sources that run: an edit anywhere in the package is seen, and old code goes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from numbanet_kernels.runtime import declare, files

LOOP = """
from ..runtime.declare import host_kernel
from .transpose import transpose_block


@host_kernel("void(f4[:, ::1], f4[:, ::1])")
def transposed(a, b):
    transpose_block(a, 0, a.shape[0], 0, a.shape[1], b, 0, 0, True)
"""
RUN = """
import numba, numpy as np
from numba.core import compiler
from numbanet_kernels.host.loop import transposed

compiled = []
compile_extra = compiler.compile_extra
compiler.compile_extra = lambda *args, **options: compiled.append(args) or compile_extra(*args, **options)
y = np.zeros((2, 3), np.float32)
transposed(np.ones((3, 2), np.float32), y)
print(y[0, 0], "compiled" if compiled else "loaded", numba.config.CACHE_DIR)
"""
WAYS = "compiled", "loaded"


@pytest.fixture
def package(tmp_path):
    """A copy of the package with a loop that calls a function of another file."""
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(declare.PACKAGE, tmp_path / "sources" / "numbanet_kernels", ignore=ignored)
    (copy / "host" / "loop.py").write_text(LOOP)
    return copy


def said(package, **environment):
    """What the loop gives in a process of its own, whether it was loaded from disk, and where the user's own loops would go."""
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=package.parent,
        env={**given, "PYTHONPATH": str(package.parent), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def edited(package, before="= a[n, i]", after="= a[n, i] + a[n, i]"):
    """The function of the other file does something else; its file is as old and as long as it was."""
    path = package / "host" / "transpose.py"
    text, times = path.read_text(), path.stat()
    assert before in text
    path.write_text(text.replace(before, after))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.slow
def test_a_changed_function_of_another_file_is_compiled(package, tmp_path):
    home = {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}
    assert said(package, **home) == f"1.0 compiled {tmp_path / 'mine'}"
    edited(package)
    assert said(package, **home) == f"2.0 compiled {tmp_path / 'mine'}"
    edited(package, "= a[n, i] + a[n, i]", "= a[n, i]")
    assert said(package, **home) == f"1.0 loaded {tmp_path / 'mine'}"  # as after a checkout of the old sources
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"compiled"}


@pytest.mark.slow
def test_without_a_folder_of_the_users_choice_it_is_in_that_of_caches(package, tmp_path):
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home"), "LOCALAPPDATA": str(tmp_path / "home")}
    assert said(package, **home) == "1.0 compiled "
    edited(package)
    assert [said(package, **home) for _ in range(2)] == [f"2.0 {way} " for way in WAYS]
    assert len([path for path in tmp_path.rglob("compiled") if path.parent.name == "numbanet"]) == 1
    assert not list(package.rglob("*.nbi"))


@pytest.mark.slow
def test_where_nothing_can_be_written_nothing_old_is_run(package, tmp_path):
    (tmp_path / "file").write_text("a file where the folder should be")
    blocked = {"NUMBA_CACHE_DIR": str(tmp_path / "file")}
    assert said(package, **blocked).startswith("1.0 compiled")
    edited(package)
    assert said(package, **blocked).startswith("2.0 compiled") and not list(package.rglob("*.nbi"))


def test_folders_of_old_sources_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "compiled" / "of somebody else").mkdir(parents=True)
    names = [f"{number:016x}" for number in range(files.VERSIONS + 3)]
    for age, name in enumerate(reversed(names)):
        os.utime(files.version("compiled", name), (1e9 - age, 1e9 - age))
    folder = tmp_path / "compiled"
    used = names[-1]  # for the longest time not, but now
    files._made.cache_clear()
    assert files.version("compiled", used) == folder / used
    files.version("compiled", "f" * 16)
    left = {path.name for path in folder.iterdir()}
    assert {"of somebody else", "f" * 16, used} <= left and len(left) == files.VERSIONS + 1


def test_a_folder_that_cannot_be_written_is_none(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert files.version("compiled", "0" * 16) is None
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(files, "cache_folder", lambda: Path(tmp_path / "file"))
    files._made.cache_clear()
    assert files.version("compiled", "0" * 16) is None
