"""Wrong shapes, dtypes and plans are refused by name, and nothing is read or written outside an array."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="needs pages that can be closed")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.slow
def test_calls_that_do_not_fit_are_refused_and_touch_nothing_else(seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.house.fuzzing", str(seed), "2000"], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    fitted, refused = map(int, done.stdout.split())
    assert fitted > 300 and refused > 300
