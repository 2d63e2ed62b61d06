"""Initial weights."""

import numpy as np
import pytest

from numbanet.initial import BLOCK, uniform


@pytest.mark.parametrize("shape", [(), (0,), 7, (3, BLOCK + 5), (2, 3, 4)])
def test_they_are_the_numbers_of_the_generator_rounded(shape):
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    weights, expected = uniform(rng, 0.3, shape), same.uniform(-0.3, 0.3, shape)
    assert weights.dtype == np.float32 and weights.shape == np.shape(expected)
    assert np.array_equal(weights, np.float32(expected))
    assert rng.random() == same.random()
