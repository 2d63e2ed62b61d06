"""Type checkers know the operations of a device."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from numbanet_kernels import tables

ROOT = Path(__file__).parents[2]


def test_the_stub_of_the_operations_is_up_to_date():
    assert tables.stub() == (ROOT / "numbanet/operations.pyi").read_text(encoding="utf-8"), "run: make types"


CALLS = {
    "gemm(1, 2, tb=True)": None,
    "gemmm(1, 2)": '"Device" has no attribute "gemmm"',
    "gemm(1)": 'Missing positional argument "b" in call to "gemm"',
    "gemm(1, 2, transposed=True)": "Unexpected keyword",
}


@pytest.mark.slow
def test_type_checkers_know_what_a_device_has(tmp_path):
    """Of one line for each call, they complain of those that are wrong alone, and say what is."""
    pytest.importorskip("mypy", reason="checks types (extra `test`)")
    program = "\n".join(["from numbanet.device import device", *(f"device('cpu').{call}" for call in CALLS)])
    # without NumPy and others, which take most of the time to read
    options = ["--follow-imports=silent", "--no-site-packages", "--cache-dir", tmp_path]
    command = [sys.executable, "-m", "mypy", *options, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    said = dict(re.findall(r"^<string>:(\d+): error: (.*)", done.stdout, re.M))
    assert said.keys() == {str(number) for number, problem in enumerate(CALLS.values(), 2) if problem}, (
        done.stdout + done.stderr
    )
    assert all(problem is None or problem in said[str(number)] for number, problem in enumerate(CALLS.values(), 2)), said
