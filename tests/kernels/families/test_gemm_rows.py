"""Kept rows and columns: every function against its float64 reference, and against the masked dense product."""

import numpy as np
import pytest

from numbanet_kernels.families import gemm_rows
from numbanet_kernels.layouts.rows import Period, Window
from numbanet_kernels.runtime import emulation

OLDER = True  # products have other kernels on an older card: all tests run on one as well

# (N, O, I), (dp, bias) of the rows, (dp, bias) of the columns; None: all
CASES = [
    ((3, 4, 5), None, None),
    ((5, 9, 11), (2, 1), None),
    ((5, 9, 11), None, (3, 2)),
    ((5, 9, 11), (2, 0), (3, 1)),
    ((1, 1, 1), (1, 0), (1, 0)),
    ((4, 3, 6), (8, 5), (2, 1)),
    ((4, 6, 3), (2, 1), (8, 7)),
    ((0, 6, 3), (2, 1), (2, 1)),
    ((33, 37, 35), (2, 1), (1, 0)),
]


def lists(n, pattern, kind="slice", put=None):
    """(what kernels take, the host's list) of the indices bias, bias + dp, …: a slice, an array or a period; or of as many that
    are no period."""
    if pattern is None:
        return None, np.arange(n)
    dp, bias = pattern
    host, indices = np.arange(bias, n, dp), slice(bias, n, dp)
    if kind == "any":
        host = np.sort(np.random.default_rng(n).permutation(n)[: host.size])
    if kind == "slice":
        return indices, host
    return Period(put(np.int32(host)), indices) if kind == "period" else put(np.int32(host)), host


@pytest.mark.parametrize("kind", ["slice", "array", "period", "any"])
@pytest.mark.parametrize("shape, row_pattern, col_pattern", CASES)
def test_forward_and_dx_equal_reference(suffix, put, get, rng, shape, row_pattern, col_pattern, kind):
    n, o, i = shape
    rows, host_rows = lists(o, row_pattern, kind, put)
    cols, host_cols = lists(i, col_pattern, kind, put)
    w, b = rng.standard_normal((o, i)), rng.standard_normal(o)
    x, dy = rng.standard_normal((n, host_cols.size)), rng.standard_normal((n, host_rows.size))
    y = getattr(gemm_rows, f"gemm_rows_{suffix}")(put(x), put(w), rows, cols, put(b), True, 2.0)
    dx = getattr(gemm_rows, f"gemm_rows_dx_{suffix}")(put(dy), put(w), rows, cols)
    gate = np.maximum(x, 0)  # what a ReLU leaves
    masked = getattr(gemm_rows, f"gemm_rows_dx_{suffix}")(put(dy), put(w), rows, cols, put(gate), 2.0)
    expected = gemm_rows.gemm_rows_dx_reference(dy, w, host_rows, host_cols, gate, 2.0)
    np.testing.assert_allclose(get(masked), expected, rtol=1e-5, atol=1e-5)
    expected = gemm_rows.gemm_rows_reference(x, w, host_rows, host_cols, b, True, 2.0)
    np.testing.assert_allclose(get(y), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(get(dx), gemm_rows.gemm_rows_dx_reference(dy, w, host_rows, host_cols), rtol=1e-5, atol=1e-5)


WINDOWS = [  # (N, O, I), (start, count) of the rows, of the columns; None: all
    ((5, 9, 11), (2, 4), None),
    ((5, 9, 11), None, (7, 6)),
    ((5, 9, 11), (6, 5), (9, 4)),
    ((3, 8, 7), (0, 8), (3, 7)),
    ((4, 6, 7), (5, 1), (6, 1)),
    ((4, 6, 7), (2, 0), (1, 3)),
    ((4, 6, 7), (1, 3), (2, 0)),
    ((0, 6, 3), (4, 4), (1, 2)),
    ((130, 400, 700), (350, 200), (600, 300)),  # views, shared by threads
    ((130, 410, 700), None, (650, 320)),
    ((130, 400, 700), (100, 370), None),
]


@pytest.mark.parametrize("shape, row_window, col_window", WINDOWS)
def test_windows_equal_reference(suffix, put, get, rng, shape, row_window, col_window):
    few = 3 if emulation.emulating() and max(shape) > 100 else 1  # several blocks still, but not that many
    n, o, i = (length // few for length in shape)

    def window(length, given):
        if given is None:
            return None, np.arange(length)
        start, count = (number // few for number in given)
        host = np.sort((start + np.arange(count)) % length)
        return Window(put(np.int32(host)), count, length), host

    (rows, host_rows), (cols, host_cols) = window(o, row_window), window(i, col_window)
    w, b = rng.standard_normal((o, i)), rng.standard_normal(o)
    x, dy = rng.standard_normal((n, host_cols.size)), rng.standard_normal((n, host_rows.size))
    y = getattr(gemm_rows, f"gemm_rows_{suffix}")(put(x), put(w), rows, cols, put(b), True, 2.0)
    dx = getattr(gemm_rows, f"gemm_rows_dx_{suffix}")(put(dy), put(w), rows, cols)
    gate = np.maximum(x, 0)  # what a ReLU leaves
    masked = getattr(gemm_rows, f"gemm_rows_dx_{suffix}")(put(dy), put(w), rows, cols, put(gate), 2.0)
    expected = gemm_rows.gemm_rows_reference(x, w, host_rows, host_cols, b, True, 2.0)
    np.testing.assert_allclose(get(y), expected, rtol=1e-4, atol=1e-4)
    expected = gemm_rows.gemm_rows_dx_reference(dy, w, host_rows, host_cols)
    np.testing.assert_allclose(get(dx), expected, rtol=1e-4, atol=1e-4)
    expected = gemm_rows.gemm_rows_dx_reference(dy, w, host_rows, host_cols, gate, 2.0)
    np.testing.assert_allclose(get(masked), expected, rtol=1e-4, atol=1e-4)


def test_a_window_of_another_axis_is_refused(suffix, put):
    x, w = put(np.ones((2, 4), np.float32)), put(np.ones((5, 4), np.float32))
    with pytest.raises(ValueError, match="window of an axis of length 6, not 5"):
        getattr(gemm_rows, f"gemm_rows_{suffix}")(x, w, Window(put(np.array([1, 2], np.int32)), 2, 6), None)


@pytest.mark.parametrize(
    "indices, said",
    [
        (np.arange(300, 700), "outside an axis of length 600"),
        (np.arange(0, 600, 2), "are not a window"),
        (np.r_[0:200, 201:400, 500:600], "are not a window"),
    ],
)
def test_large_windows_of_other_indices_are_refused(indices, said):
    w, window = np.ones((600, 600), np.float32), Window(np.int32(indices), indices.size, 600)
    x, dy = np.ones((2, 600), np.float32), np.ones((2, indices.size), np.float32)
    for call in (
        lambda: gemm_rows.gemm_rows_cpu(x, w, window, None),
        lambda: gemm_rows.gemm_rows_cpu(dy, w, None, window),
        lambda: gemm_rows.gemm_rows_dx_cpu(dy, w, window, None),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_a_window_multiplies_one_sample_whose_axis_was_added(rng):
    """v[None] may have a stride of 0."""
    w, v, window = rng.standard_normal((600, 700), np.float32), rng.standard_normal(700, np.float32), np.arange(100, 500)
    rows = Window(np.int32(window), window.size, 600)
    np.testing.assert_allclose(gemm_rows.gemm_rows_cpu(v[None], w, rows, None), v[None] @ w[window].T, rtol=1e-4, atol=1e-3)
    dy = v[: window.size]
    np.testing.assert_allclose(gemm_rows.gemm_rows_dx_cpu(dy[None], w, rows, None), dy[None] @ w[window], rtol=1e-4, atol=1e-3)


def test_columns_in_any_order_are_not_taken_for_all(suffix, put, get, rng):
    rows, cols, w = np.array([0, 2, 5], np.int32), np.array([1, 0, 3, 2], np.int32), rng.standard_normal((6, 4))
    for op, width in (("gemm_rows", 4), ("gemm_rows_dx", 3)):
        x = rng.standard_normal((5, width))
        found = getattr(gemm_rows, f"{op}_{suffix}")(put(x), put(w), put(rows), put(cols))
        expected = getattr(gemm_rows, f"{op}_reference")(x, w, rows, cols)
        np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dp, bias", [(1, 0), (2, 1), (3, 0), (20, 19)])
def test_reference_equals_masked_dense(rng, dp, bias):
    x, w = rng.standard_normal((4, 6)), rng.standard_normal((9, 6))
    mask = np.arange(9) % dp == bias
    y = gemm_rows.gemm_rows_reference(x, w, np.flatnonzero(mask), None)
    np.testing.assert_allclose(y, (x @ (w * mask[:, None]).T)[:, mask])


def test_masked_version(rng, on_cuda, put, get):
    x, w, mask = rng.standard_normal((5, 6)), rng.standard_normal((9, 6)), np.arange(9) % 2 == 1
    y = get(gemm_rows.gemm_rows_masked(put(x), put(w), put(mask)))
    np.testing.assert_allclose(y, x @ (w * mask[:, None]).T, rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_match_are_named(suffix, put):
    rows, _ = lists(9, (2, 1))
    with pytest.raises(ValueError, match=rf"gemm_rows \({suffix}\).*\(4, 5\).*\(9, 6\)"):
        getattr(gemm_rows, f"gemm_rows_{suffix}")(put(np.zeros((4, 5))), put(np.zeros((9, 6))), rows, None)


@pytest.mark.parametrize("rows", [slice(0, 8, 2), slice(0, None, -1), slice(0, 10, 1), np.arange(10, dtype=np.int32)])
def test_indices_of_another_axis_are_named(suffix, put, rows):
    rows = rows if isinstance(rows, slice) else put(rows)
    with pytest.raises(ValueError, match=rf"gemm_rows \({suffix}\): .* do not index an axis of length 9"):
        getattr(gemm_rows, f"gemm_rows_{suffix}")(put(np.zeros((4, 6))), put(np.zeros((9, 6))), rows, None)


@pytest.mark.parametrize("rows", [[-1, 2], [3, 9]])
def test_indices_outside_an_axis_are_named_where_they_are_on_the_host(rows):
    x, w, dy = (np.zeros(shape, np.float32) for shape in ((4, 6), (9, 6), (4, 2)))
    products = (gemm_rows.gemm_rows_cpu, x, {}), (gemm_rows.gemm_rows_cpu, x, {"bias": np.zeros(9, np.float32)})
    for product, operand, given in (*products, (gemm_rows.gemm_rows_dx_cpu, dy, {})):
        with pytest.raises(ValueError, match="outside an axis of length 9"):
            product(operand, w, np.array(rows, np.int32), None, **given)
