"""Shrinking groups against its float64 reference, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import group_shrink

CASES = [  # shape of the weight, of a group
    ((7, 300), (1, 300)),
    ((70, 33), (70, 1)),
    ((70, 66), (32, 32)),
    ((33, 27), (33, 9)),
    ((5, 1), (1, 1)),
    ((40, 50), (9, 1)),
    ((3, 4), (8, 8)),
    ((64, 65), (1, 7)),
    ((0, 4), (1, 4)),
    ((4, 0), (4, 1)),
]


def operands(rng, shape, group):
    """A weight some of whose groups are zero, some nearly, some near the threshold and some far above."""
    w = rng.standard_normal(shape).astype(np.float32)
    for u, b in np.ndindex(*(-(-n // side) for n, side in zip(shape, group))):
        w[u * group[0] : (u + 1) * group[0], b * group[1] : (b + 1) * group[1]] *= (0, 0.3, 1, 3, 1e-22, 1e-20)[(u + b) % 6]
    return w


@pytest.mark.parametrize("recorded", [False, True], ids=["numbers", "arrays"])
@pytest.mark.parametrize("threshold, reference", [(0.0, 0.0), (0.4, 0.0), (100.0, 0.0), (0.4, 0.7), (0.0, 0.7)])
@pytest.mark.parametrize("shape, group", CASES, ids=str)
def test_shrink(suffix, put, get, rng, shape, group, threshold, reference, recorded):
    """The two numbers, and where the norms go, may be arrays of the device, which a recorded step reads and writes."""
    w = operands(rng, shape, group)
    expected, norms = group_shrink.shrink_reference(w, *group, threshold, reference)
    there = put(w)
    given, room = (threshold, reference), put(np.zeros(norms.shape, np.float32))
    options = {"norms": room} if recorded else {}
    given = (put(np.float32(given)),) if recorded else given
    same, found = getattr(group_shrink, f"shrink_{suffix}")(there, *group, *given, **options)
    assert (found is room) == recorded
    found = get(found)
    assert same is there
    np.testing.assert_allclose(get(there), expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found, norms, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(get(there) == 0, expected == 0)
    np.testing.assert_array_equal(found == 0, norms == 0)


def test_the_reference_is_the_proximal_step():
    """It minimises |v - w|² / 2 + t sqrt(n) |v| for each group."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((2, 3))
    v, _ = group_shrink.shrink_reference(w, 1, 3, 0.3)

    def objective(v):
        return ((v - w) ** 2).sum() / 2 + 0.3 * np.sqrt(3) * np.linalg.norm(v, axis=1).sum()

    assert all(objective(v) < objective(v + 1e-3 * rng.standard_normal(v.shape)) for _ in range(200))


def test_what_is_no_number_stays_one_that_is_none(suffix, put, get):
    """A weight that has broken must not look as if it had been shrunk to zero."""
    w = put(np.array([[np.nan, 1.0], [1.0, 1.0]], np.float32))
    getattr(group_shrink, f"shrink_{suffix}")(w, 1, 2, 0.1, 1.0)
    assert np.isnan(get(w)[0]).all() and np.isfinite(get(w)[1]).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 2, 0.1), "groups of 0 x 2"),
        ((1, 2, -1.0), "threshold"),
        ((1, 2, np.inf), "threshold"),
        ((1, 2, 0.1, -1.0), "reference"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(suffix, put, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(group_shrink, f"shrink_{suffix}")(put(np.ones((2, 2))), *arguments)
    with pytest.raises(ValueError, match="w"):
        getattr(group_shrink, f"shrink_{suffix}")(put(np.ones(4)), 1, 2, 0.1)
    with pytest.raises(ValueError, match="numbers"):
        getattr(group_shrink, f"shrink_{suffix}")(put(np.ones((2, 2), np.float32)), 1, 2, put(np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="norms"):
        getattr(group_shrink, f"shrink_{suffix}")(
            put(np.ones((2, 2), np.float32)), 1, 2, 0.1, norms=put(np.ones((1, 1), np.float32))
        )
