"""The script that runs NVIDIA's tests: outcomes, launches and reasons of the tests of a small suite, in its list."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from numbanet_kernels import card
from tests.kernels import numba_suite

pytestmark = pytest.mark.skipif(card.problem() is not None, reason=str(card.problem()))

SMALL = """
    import os, unittest
    import numpy as np
    from numba import cuda

    @cuda.jit
    def double(x):
        x[cuda.grid(1)] *= 2

    class Test(unittest.TestCase):
        def test_right(self):
            x = np.ones(8)
            double[1, 8](x)
            assert (x == 2).all()

        def test_wrong(self):
            double[1, 9](np.ones(8))

        def test_without_kernels(self):
            self.skipTest("no reason")

        def test_without_end(self):
            while True:
                pass

        def test_the_process_ends(self):
            os._exit(3)
"""


@pytest.mark.slow
def test_a_small_suite(tmp_path):
    folder = tmp_path / numba_suite.TESTS / "cudapy"
    folder.mkdir(parents=True)
    (folder / "test_small.py").write_text(textwrap.dedent(SMALL))
    assert numba_suite.modules(tmp_path, []) == ["cudapy.test_small"] and numba_suite.modules(tmp_path, ["large"]) == []
    out = tmp_path / "list.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.numba_suite", str(tmp_path), "--limit", "2", "--out", str(out)],
        cwd=Path(numba_suite.__file__).parents[2],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(out.read_text())
    outcomes = {line["name"].rpartition("::test_")[2]: (line["outcome"], line["launches"]) for line in found["tests"]}
    assert outcomes == {
        "right": ("passed", 1),
        "wrong": ("failed", 1),
        "without_kernels": ("skipped", 0),
        "without_end": ("slow", 0),
        "the_process_ends": ("crashed", 0),
    }
    assert found["that launch kernels"] == {"passed": 1, "failed": 1}
    assert "out of bounds" in next(line["reason"] for line in found["tests"] if line["name"].endswith("wrong"))
    assert "out of bounds" in done.stdout
