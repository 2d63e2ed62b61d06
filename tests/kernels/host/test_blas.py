"""Products by BLAS from within compiled loops: of arrays of their own, and of parts of larger ones."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from numbanet_kernels.host import blas, thresholds
from tests.kernels.families.conv.cases import close


@numba.njit("void(i8, f4[:, :], f4[:, :], f4[:, :], b1, b1, f4)")
def multiplied(entry, a, b, c, ta, tb, beta):
    blas.multiply(entry, a, b, c, ta, tb, beta)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize(
    "m, n, k", [(5, 7, 3), (1, 1, 1), (1, 9, 4), (9, 1, 4), (33, 17, 65), (0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0), (1, 1, 0)]
)
def test_multiply(rng, m, n, k, ta, tb, beta):
    """Of arrays of their own, and of parts of larger ones, beside which nothing changes."""
    for beside in (0, 3):
        whole = [
            rng.standard_normal((rows + beside, cols + beside)).astype(np.float32)
            for rows, cols in ((k, m) if ta else (m, k), (n, k) if tb else (k, n), (m, n))
        ]
        a, b, c = (array[: len(array) - beside, beside:] for array in whole)
        if beta == 0:
            c[:] = np.nan  # is not read
        expected = (a.T if ta else a).astype(float) @ (b.T if tb else b) + (beta * np.float64(c) if beta else 0)
        before = whole[2].copy()
        multiplied(blas.entry(), a, b, c, ta, tb, beta)
        close(c, expected)
        before[:m, beside:] = c
        np.testing.assert_array_equal(whole[2], before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openblas", "mkl"])
def test_the_library_can_be_chosen(name):
    """In a process of its own: a library is chosen once. Training learns the same by each, to rounding."""
    if name == "mkl" and not blas.mkl():
        pytest.skip("MKL is not installed")
    program = (
        "import numpy as np\n"
        "from numbanet import Net\n"
        "from numbanet_kernels.host import blas\n"
        f"assert blas.library() == {name!r} and blas.entry() == blas.entry({name!r}) and blas.threads() == [1]\n"
        "X = np.random.default_rng(0).standard_normal((60, 8), np.float32)\n"
        "net = Net((16,), epochs=3, random_state=0).fit(X, (X[:, 0] > 0).astype(int))\n"
        "print(float(net.history_[-1]['loss']))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBANET_BLAS": name, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < float(found.stdout) < 2


def test_a_library_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("NUMBANET_BLAS", "atlas")
    with pytest.raises(ValueError, match="NUMBANET_BLAS must be one of auto, openblas, mkl; it is 'atlas'"):
        blas.library.__wrapped__()
    monkeypatch.setenv("NUMBANET_BLAS", "mkl")
    monkeypatch.setattr(blas, "mkl", list)
    with pytest.raises(ImportError, match="pip install 'numbanet\\[mkl\\]'"):
        blas.library.__wrapped__()


def test_auto_is_what_calibration_found_faster(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBANET_COSTS", str(tmp_path / "costs.json"))
    monkeypatch.delenv("NUMBANET_BLAS", raising=False)
    monkeypatch.setattr(blas, "mkl", lambda: ["there"])
    assert blas.library.__wrapped__() == "openblas"
    thresholds.save(thresholds.Thresholds(), "mkl")
    assert blas.library.__wrapped__() == "mkl" and thresholds.load() == thresholds.Thresholds()
    monkeypatch.setattr(blas, "mkl", list)
    assert blas.library.__wrapped__() == "openblas"
