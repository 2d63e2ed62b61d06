"""What is said of this machine is true: devices that are called ready work, and damaged files are named."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from numbanet import cli
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime import availability, declare

PYTHON = [sys.executable, "-c"]


def said(code, **environment):
    """What a process of its own prints."""
    done = subprocess.run([*PYTHON, code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(declare.cuda is None, reason="needs numba-cuda, to be without it")
def test_numba_without_numba_cuda_is_not_ready(tmp_path):
    """Its own half for CUDA compiles some kernels, where a toolkit is installed, and wants a driver for others."""
    found = said(
        "import sys\nsys.modules['torch'] = None  # slow to import\n"
        "sys.meta_path = [f for f in sys.meta_path if 'NumbaCuda' not in type(f).__name__]\n"
        "from numbanet import cli, device\ncli.main(['devices'])\ntry:\n    device('emulated')\n"
        "except RuntimeError as error:\n    print(error)",
        NUMBA_CACHE_DIR=str(tmp_path),
        COLUMNS="300",
    )
    assert found.count("pip install 'numba-cuda[cu13]'") >= 3 and "device 'emulated' is not available here" in found


@pytest.mark.skipif(availability.nvvm_problem() is not None, reason="needs NVVM")
def test_whether_kernels_compile_is_tried_once_and_kept(tmp_path, monkeypatch):
    calls = []
    real = declare.cuda.compile_ptx
    monkeypatch.setattr(declare.cuda, "compile_ptx", lambda *args, **options: calls.append(args) or real(*args, **options))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert availability.nvvm_problem.__wrapped__() is None and availability.nvvm_problem.__wrapped__() is None
    assert len(calls) == 1
    monkeypatch.setattr(declare, "_compilers", lambda: "another version")
    monkeypatch.setattr(declare.cuda, "compile_ptx", lambda *args, **options: 1 / 0)
    problem = availability.nvvm_problem.__wrapped__()
    assert "does not compile (ZeroDivisionError: division by zero)" in problem and "numba-cuda" in problem


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"{", b"[]", json.dumps({"shared_elements": -1}).encode()])
def test_thresholds_that_make_no_sense_are_named_and_not_used(tmp_path, monkeypatch, content):
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    monkeypatch.setenv("NUMBANET_COSTS", str(path))
    with pytest.warns(UserWarning, match=r"costs.json is not used .*numbanet devices --calibrate"):
        assert thresholds.load() == thresholds.Thresholds()


@pytest.mark.parametrize(
    "suffix, damage",
    [
        ("nbi", lambda content: content[:20]),
        ("nbc", lambda content: content[:-50]),
        ("nbi", lambda content: pickle.dumps(numba.__version__) + b"\0"),
    ],
    ids=["cut index", "cut code", "wrong index"],
)
def test_a_damaged_cache_of_compiled_loops_is_named_and_not_used(tmp_path, monkeypatch, suffix, damage):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # Numba looks when it compiles next
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def made():
        @declare.host_kernel("void(f8[::1])")
        def doubled(x):
            for i in range(x.size):
                x[i] *= 2

        return doubled

    x = np.ones(3)
    made()(x)
    (path,) = Path(tmp_path).rglob(f"*.{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    folder = rf"{tmp_path}/compiled/[0-9a-f]+"
    with pytest.warns(UserWarning, match=rf"Numba's cache of .*doubled in {folder} is damaged .*delete that folder"):
        made()(x)
    np.testing.assert_array_equal(x, [4, 4, 4])


def test_a_picture_is_not_drawn_over_a_folder(tmp_path, capsys):
    (tmp_path / "curves.png").mkdir()
    assert cli.main(["train", "--plot", str(tmp_path / "curves.png"), "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "curves.png': it is a folder" in captured.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
@pytest.mark.parametrize("command", ["numbanet kernels", "numbanet devices", "numbanet --help", "bench list"])
@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(command):
    line = f'set -o pipefail; "{sys.executable}" -m {command} | head -1'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout.splitlines()) <= 1
