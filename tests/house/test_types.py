"""Type checkers know the operations of a device."""

import subprocess
import sys
from pathlib import Path

import pytest

from numbanet_kernels import tables

ROOT = Path(__file__).parents[2]


def test_the_stub_of_the_operations_is_up_to_date():
    assert tables.stub() == (ROOT / "numbanet/operations.pyi").read_text(encoding="utf-8"), "run: make types"


@pytest.mark.parametrize(
    "call, problem",
    [
        ("gemm(1, 2, tb=True)", None),
        ("gemmm(1, 2)", '"Device" has no attribute "gemmm"'),
        ("gemm(1)", 'Missing positional argument "b" in call to "gemm"'),
        ("gemm(1, 2, transposed=True)", "Unexpected keyword"),
    ],
)
@pytest.mark.slow
def test_type_checkers_know_what_a_device_has(call, problem, tmp_path):
    pytest.importorskip("mypy", reason="checks types (extra `test`)")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--follow-imports=silent",
            "--cache-dir",
            tmp_path,
            "-c",
            f"from numbanet.device import device\ndevice('cpu').{call}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode == 0) == (problem is None) and (problem or "Success") in done.stdout, done.stdout + done.stderr
