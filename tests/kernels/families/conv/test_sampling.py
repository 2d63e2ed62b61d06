"""How many large entries there are in samples of an input matrix, against the reference, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import conv
from numbanet_kernels.layouts.windows import Window
from tests.kernels.families.conv.cases import FEW, MANY


@pytest.mark.parametrize("height, width", [(4, 5), (1, 1), (7, 100), (1000, 3), (5, 27)])
@pytest.mark.parametrize("case", [FEW[0], MANY[1], MANY[7], MANY[8], FEW[3]], ids=str)
def test_count_large(suffix, put, get, rng, case, height, width):
    (shape, _, window, _), samples = case, 6
    x = np.float32(rng.integers(-8, 9, shape)) / 8  # some are exactly at the threshold
    offsets = np.stack([np.sort(rng.integers(height, size=samples)), rng.integers(width, size=samples)], 1).astype(np.int32)
    found = get(getattr(conv, f"count_large_{suffix}")(put(x), window, height, width, put(offsets), 0.5))
    np.testing.assert_array_equal(found, conv.count_large_reference(x, window, height, width, offsets, 0.5))
    assert found.dtype == np.int32


@pytest.mark.parametrize("positions", [(2, 1), (3, 4), (0, 2)])
def test_more_or_fewer_positions_than_the_windows(suffix, put, get, rng, positions):
    """Positions beyond the image read 0."""
    x, offsets = np.float32(rng.integers(-8, 9, (3, 7, 5, 2))) / 8, np.array([[0, 3], [0, 40], [1, 71]], np.int32)
    window, found = Window((6, 6), (4, 4), (1, 1)), getattr(conv, f"count_large_{suffix}")
    counts = get(found(put(x), window, 1, 72, put(offsets), 0.25, positions=positions))
    assert counts.shape == (3 * positions[0] * positions[1], 1)
    np.testing.assert_array_equal(counts, conv.count_large_reference(x, window, 1, 72, offsets, 0.25, positions))


def test_negative_numbers_of_positions_are_refused(suffix, put):
    offsets = put(np.zeros((1, 2), np.int32))
    with pytest.raises(ValueError, match=r"count_large.*from 0 on, got \(-1, 2\)"):
        getattr(conv, f"count_large_{suffix}")(put(np.ones((2, 5, 4, 3))), Window((3, 3)), 1, 1, offsets, 0.5, (-1, 2))


def test_without_samples_nothing_is_counted(suffix, put, get):
    x, offsets = np.ones((2, 5, 4, 3), np.float32), np.zeros((0, 2), np.int32)
    found = get(getattr(conv, f"count_large_{suffix}")(put(x), Window((3, 3)), 4, 5, put(offsets), 0.5))
    np.testing.assert_array_equal(found, np.zeros((3, 6), np.int32))


@pytest.mark.parametrize(
    "height, width, offsets, message",
    [
        (0, 3, (4, 2), "regions of 0 x 3 must be at least 1 x 1"),
        (3, -1, (4, 2), "regions of 3 x -1"),
        (3, 3, (4, 3), r"offsets \(4, 3\)"),
        (3, 3, (4,), r"offsets \(4,\)"),
    ],
)
def test_regions_that_do_not_fit_are_refused(suffix, put, height, width, offsets, message):
    with pytest.raises(ValueError, match=f"count_large.*{message}"):
        getattr(conv, f"count_large_{suffix}")(
            put(np.ones((2, 5, 4, 3))), Window((3, 3)), height, width, put(np.zeros(offsets, np.int32)), 0.5
        )


def test_negative_offsets_are_refused(rng):
    """They would be read in front of the images; the CPU checks them, because it reads without bounds."""
    x, offsets = rng.standard_normal((4, 9, 8, 4), np.float32), np.array([[0, 2], [-(2**31), 0]], np.int32)
    with pytest.raises(ValueError, match="offsets must be from 0 on, got -2147483648"):
        conv.count_large_cpu(x, Window((3, 3), (1, 1), (1, 1)), 2, 5, offsets, 0.5)
