"""Products by BLAS from within compiled loops: of arrays of their own, and of parts of larger ones."""

import numba
import numpy as np
import pytest

from numbanet_kernels.host import blas
from tests.kernels.families.conv.test_conv import close


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
