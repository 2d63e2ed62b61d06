"""Images moved and mirrored, against the definition, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import augment
from numbanet_kernels.runtime import memory

SHAPES = [(5, 3, 8, 8), (7, 1, 5, 11), (3, 2, 1, 1), (2, 4, 9, 3), (0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reach", [0, 2, 12, 2**31 - 1])
def test_crop_flip(suffix, put, get, rng, shape, reach):
    """Moves beyond the image leave nothing of it."""
    x = rng.standard_normal(shape).astype(np.float32)
    moves = rng.integers(-reach, reach, (shape[0], 3), endpoint=True).astype(np.int32)
    moves[:, 2] = rng.random(shape[0]) < 0.5
    crop_flip, expected = getattr(augment, f"crop_flip_{suffix}"), augment.crop_flip_reference(x, moves)
    np.testing.assert_array_equal(get(crop_flip(put(x), put(moves))), expected)
    out = put(np.full(shape, np.nan))
    assert crop_flip(put(x), put(moves), out=out) is out
    np.testing.assert_array_equal(get(out), expected)


def test_one_image_by_hand(suffix, put, get):
    """Down and right, as torchvision's RandomCrop takes them, and then the mirror."""
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 2, 3)
    for moves, expected in (
        ((0, 0, 0), [[1, 2, 3], [4, 5, 6]]),
        ((0, 0, 1), [[3, 2, 1], [6, 5, 4]]),
        ((1, 0, 0), [[4, 5, 6], [0, 0, 0]]),
        ((0, 1, 0), [[2, 3, 0], [5, 6, 0]]),
        ((-1, 1, 1), [[0, 0, 0], [0, 3, 2]]),
        ((0, -2, 0), [[0, 0, 1], [0, 0, 4]]),
    ):
        found = getattr(augment, f"crop_flip_{suffix}")(put(x), put(np.int32([moves])))
        np.testing.assert_array_equal(get(found)[0, 0], expected, str(moves))


@pytest.mark.parametrize(
    "x, moves, error, message",
    [
        (np.ones((2, 3, 4)), np.zeros((2, 3), np.int32), ValueError, "x .*does not match|do not match"),
        (np.ones((2, 3, 4, 4)), np.zeros((3, 3), np.int32), ValueError, r"moves must be \(2, 3\)"),
        (np.ones((2, 3, 4, 4)), np.zeros((2, 2), np.int32), ValueError, r"moves must be \(2, 3\)"),
        (np.ones((2, 3, 4, 4)), np.zeros((2, 3)), TypeError, "moves must be a contiguous int32"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, x, moves, error, message):
    with pytest.raises(error, match=f"^crop_flip .*{message}"):
        getattr(augment, f"crop_flip_{suffix}")(put(x), put(moves))


def test_in_place_is_refused(suffix, put):
    x = put(np.ones((2, 3, 4, 4)))
    with pytest.raises(ValueError, match="out must not be x"):
        getattr(augment, f"crop_flip_{suffix}")(x, put(np.zeros((2, 3), np.int32)), out=x)


def test_a_result_that_overlaps_the_images_is_refused(suffix, put):
    """Another view of their memory, or of a part of it; images beside them are taken."""
    part, moves = getattr(memory, f"part_{suffix}"), put(np.zeros((2, 3), np.int32))
    crop_flip, whole = getattr(augment, f"crop_flip_{suffix}"), put(np.ones((4, 3, 4, 4)))
    for start in (0, 1):
        with pytest.raises(ValueError, match=rf"crop_flip \({suffix}\): out must not be x, or overlap it"):
            crop_flip(part(whole, 0, 2), moves, out=part(whole, start, start + 2))
    crop_flip(part(whole, 0, 2), moves, out=part(whole, 2, 4))
