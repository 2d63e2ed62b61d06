"""Sums by row against their float64 reference, on every device."""
import numpy as np
import pytest

from numbanet_kernels.families import embedding


@pytest.mark.parametrize("n, d, rows", [(1, 1, 1), (40, 9, 7), (300, 33, 40), (5, 3, 9)])
def test_sums_by_row(suffix, put, get, rng, n, d, rows):
    dy, ids = rng.standard_normal((n, d)).astype(np.float32), rng.integers(rows, size=n)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=rows))]).astype(np.int32)
    found = getattr(embedding, f"sum_by_row_{suffix}")(*map(put, (dy, order, starts)))
    np.testing.assert_allclose(get(found), embedding.sum_by_row_reference(dy, order, starts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order, starts, message", [(3, 2, "order"), (4, 0, "starts")])
def test_what_does_not_fit_is_refused(suffix, put, order, starts, message):
    with pytest.raises(ValueError, match=message):
        getattr(embedding, f"sum_by_row_{suffix}")(put(np.ones((4, 3))), *(put(np.zeros(n, np.int32)) for n in (order, starts)))
