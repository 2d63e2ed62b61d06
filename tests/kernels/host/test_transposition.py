"""Activations transposed and back, at sizes that leave edges of every kind."""

import numba
import numpy as np
import pytest
import threadpoolctl

from numbanet_kernels.families.indexing.cpu import transpose_cpu
from numbanet_kernels.host import transpose

SIZES = [(1, 1), (7, 9), (8, 8), (16, 40), (20, 33), (129, 65), (300, 31)]


def places_of(rng, count):
    """Where each feature goes, -1 for every fifth."""
    places = rng.permutation(count).astype(np.int32)
    places[::5] = -1
    return places


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("n, k", SIZES)
def test_turn_in(rng, n, k, gated):
    x, y, places = np.float32(rng.standard_normal((n, k))), np.float32(rng.standard_normal((n, k))), places_of(rng, k)
    sums = np.ones(k, np.float32)
    transposed = transpose.transpose_in(x, k, places, 1.5, y if gated else None, sums)
    z = np.where(y > 0, x, 0) if gated else x
    np.testing.assert_allclose(transposed[places[places >= 0]], 1.5 * z.T[places >= 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, 1 + z.sum(axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("n, k", SIZES)
def test_turn_back(rng, n, k, terms, relu):
    parts, bias, places = np.float32(rng.standard_normal((terms, k, n))), np.float32(rng.standard_normal(k)), places_of(rng, k)
    parts[0, 0, 0] = np.nan
    y = np.full((n, k), 7, np.float32)
    transpose.transpose_back(parts, y, slice(0, k), bias, relu, 2.0, 1.5, places)
    z = 1.5 * np.where(places >= 0, parts.sum(axis=0)[places].T, 0) + bias
    np.testing.assert_allclose(y, 2 * (np.where(z < 0, 0, z) if relu else z), rtol=1e-4, atol=1e-4)


@numba.njit
def transposed(*given):
    """What loops call has no wrapper for Python."""
    transpose.transpose_block(*given)


def test_the_transpose_in_registers_is_that_of_numpy(rng):
    a, (found, expected) = np.float32(rng.standard_normal((9, 19))), np.zeros((2, 11, 10), np.float32)
    transposed(a, 1, 9, 10, 18, found, 2, 1, True)
    transpose._transpose(a, 1, 10, expected, 2, 1)  # outside compiled code it is NumPy's
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape, axes",
    [
        ((3, 40, 5, 7), (0, 2, 3, 1)),
        ((3, 5, 7, 40), (0, 3, 1, 2)),
        ((2, 130, 33), (0, 2, 1)),
        ((129, 257), (1, 0)),
        ((8, 8), (1, 0)),
        ((2, 64, 1024), (0, 2, 1)),
        ((600, 9, 31), (0, 2, 1)),
        ((3, 7, 40), (0, 2, 1)),  # NumPy's loops: an axis is short, others are moved, or the shape is empty
        ((40, 30, 20), (2, 1, 0)),
        ((0, 9, 9), (0, 2, 1)),
    ],
)
def test_axes_are_moved_as_numpy_moves_them(shape, axes, threads):
    x = np.random.default_rng(0).integers(1 << 32, size=shape, dtype=np.uint32).view(np.float32)  # any bits, also NaN
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        found = transpose_cpu(x, axes)
    assert found.flags.c_contiguous and found.tobytes() == x.transpose(axes).tobytes()


def test_an_array_that_is_read_only_is_transposed():
    x = np.arange(256 * 128, dtype=np.float32).reshape(256, 128)
    x.flags.writeable = False
    np.testing.assert_array_equal(transpose_cpu(x, (1, 0)), x.T)
