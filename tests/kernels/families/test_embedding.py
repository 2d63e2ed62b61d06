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


@pytest.mark.slow
def test_many_lookups_of_one_row_lose_nothing(suffix, put, get, rng):
    """Added up one after the other in float32, 2^24 ones more make no difference."""
    n = 20_000_000 if suffix == "cpu" else 2_000
    order, starts = np.arange(n + 5, dtype=np.int32), np.int32([0, n, n, n + 5])
    for dy in *(np.full((n + 5, 1), value, np.float32) for value in (0.1, 1)), rng.random((n + 5, 1), np.float32):
        found = getattr(embedding, f"sum_by_row_{suffix}")(*map(put, (dy, order, starts)))
        np.testing.assert_allclose(get(found), embedding.sum_by_row_reference(dy, order, starts), rtol=5e-7)


@pytest.mark.parametrize("padding", [None, 0, 6])
@pytest.mark.parametrize("n, rows, most", [(0, 3, 8192), (1, 1, 8192), (40, 7, 40), (40, 7, 39), (300, 500, 8192), (5, 9, 4)])
def test_lookups_are_grouped_by_row(suffix, put, get, rng, monkeypatch, n, rows, most, padding):
    """On CUDA with ranges for as many rows as there are look-ups: those beyond the rows that are there are empty. Of more
    look-ups than a card groups soon, the host gives as many as there are."""
    monkeypatch.setattr(embedding, "MOST", most)
    ids = rng.integers(-1, rows + 1, n).astype(np.int32)  # what is no row counts as the nearest one
    order, starts, places = embedding.group_rows_reference(ids, rows, padding)
    found = [get(a) for a in getattr(embedding, f"group_rows_{suffix}")(put(ids), rows, padding)]
    np.testing.assert_array_equal(found[0], order)
    np.testing.assert_array_equal(found[1][: starts.size], starts)
    np.testing.assert_array_equal(found[1][starts.size :], starts[-1])
    assert found[1].size == (n + 1 if suffix == "cuda" and n <= most else starts.size)
    np.testing.assert_array_equal(found[2], places)
    assert sorted(order) == list(range(n)) and (np.diff(starts) > 0).all()
    for row, place in enumerate(places):
        own = order[starts[place] : starts[place + 1]] if place >= 0 else []
        assert own == [] if place < 0 else (np.clip(ids[own], 0, rows - 1) == row).all() and row != padding


@pytest.mark.parametrize("ids, rows, message", [(np.zeros(2), 3, "int32"), (np.zeros(2, np.int32), 0, "0 rows")])
def test_lookups_that_fit_no_table_are_refused(suffix, put, ids, rows, message):
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(embedding, f"group_rows_{suffix}")(put(ids), rows)


@pytest.mark.parametrize("order, starts, message", [(3, 2, "order"), (4, 0, "starts")])
def test_what_does_not_fit_is_refused(suffix, put, order, starts, message):
    with pytest.raises(ValueError, match=message):
        getattr(embedding, f"sum_by_row_{suffix}")(put(np.ones((4, 3))), *(put(np.zeros(n, np.int32)) for n in (order, starts)))
