"""What a user waits for: the import, the first fit with compilation, a fit with a warm cache. Bounds for two cores."""

import os
import subprocess
import sys

import pytest

FIT = """
import time
start = time.perf_counter()
from numbanet import Net
from numbanet.datasets import load_digits
X, y, _, _ = load_digits()
for _ in range(2):
    Net((64,), dropout="{}").fit(X, y)
    print(time.perf_counter() - start)
    start = time.perf_counter()
"""
IMPORT = """
import time
import numba
start = time.perf_counter()
import numbanet
print(time.perf_counter() - start)
"""


def seconds(code, **environment):
    """The numbers that the code prints, run in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env={**os.environ, **environment}
    )
    return [float(line) for line in done.stdout.split()]


@pytest.mark.alone
def test_import_costs_under_half_a_second_beyond_numba():
    assert min(seconds(IMPORT)[0] for _ in range(3)) < 0.5


def test_import_loads_neither_cuda_nor_scikit_learn():
    """They take longer than all of numbanet: whoever uses them waits for them."""
    assert seconds("import sys, numbanet\nprint(sum(name in sys.modules for name in ('numba.cuda', 'sklearn')))") == [0]


@pytest.mark.alone
def test_a_cold_fit_compiles_in_under_15_seconds_and_a_warm_one_takes_under_2(tmp_path):
    for dropout in ("none", "tdp"):
        cold, warm = seconds(FIT.format(dropout), NUMBA_CACHE_DIR=str(tmp_path / dropout))
        assert cold < 15 and warm < 2
        cached, _ = seconds(FIT.format(dropout), NUMBA_CACHE_DIR=str(tmp_path / dropout))
        assert cached < max(cold, 5)


@pytest.mark.slow
def test_profiling_prints_every_op_and_what_it_skipped():
    code = """
from numbanet import Net
from numbanet.datasets import load_digits
X, y, _, _ = load_digits()
Net((64, 64), dropout="rdp", epochs=1, random_state=0).fit(X[:128], y[:128])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "NUMBANET_PROFILE": "1"},
    )
    lines = done.stderr.splitlines()
    assert any(line.startswith("linear_rows ") and "RowPlan" in line and "skipped" in line and " ms" in line for line in lines)
    assert any(line.startswith("softmax_cross_entropy.backward") for line in lines)
