"""Random projections and what is selected by them, against float64 references, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import projection, top_k
from numbanet_kernels.host.simd import WIDTH
from numbanet_kernels.layouts.ternary import PIECE, dense, ternary

PROJECTED = [
    (1, 1, 1),
    (3, 5, 40),
    (17, 33, PIECE),
    (40, 7, PIECE + 1),
    (70, 66, 3 * PIECE - 1),
    (0, 4, 9),
    (4, 2, 0),
]  # N, k, d
SCORED = [(1, 1, 1), (5, 7, 33), (16, 40, 30), (45, 20, 17), (0, 3, 4), (3, 0, 4), (8, 40, 16)]  # N, I, O


def random(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


# --- projection -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n, k, d", PROJECTED)
def test_project(suffix, put, get, rng, n, k, d):
    (v,), lists = random(rng, (n, d)), ternary(k, d, 3)
    found = get(getattr(projection, f"project_{suffix}")(put(v), type(lists)(*map(put, lists)), k))
    np.testing.assert_allclose(found, projection.project_reference(v, lists, k), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("k, d", [(1, 1), (5, PIECE), (40, 300), (3, 0)])
def test_the_lists_are_those_of_a_ternary_matrix(k, d):
    lists, matrix = ternary(k, d, 1), dense(ternary(k, d, 1), k, d)
    assert matrix.shape == (k, d) and set(np.unique(matrix)) <= {-1.0, 0.0, 1.0}
    assert np.count_nonzero(matrix) == lists.columns.size == lists.starts[-1]  # no place is listed twice
    for piece in range(-(-d // PIECE)):
        for j in range(k):
            number = 2 * (piece * k + j)
            ones, others = (lists.columns[lists.starts[i] : lists.starts[i + 1]] for i in (number, number + 1))
            for found, sign in ((ones, 1), (others, -1)):
                row = matrix[j, piece * PIECE : (piece + 1) * PIECE]
                np.testing.assert_array_equal(found, np.flatnonzero(row == sign) + piece * PIECE)


def test_a_sixth_are_ones_and_a_sixth_minus_ones():
    matrix = dense(ternary(300, 700, 0), 300, 700)
    for sign in (1, -1):  # five standard deviations
        assert abs(np.mean(matrix == sign) - 1 / 6) < 5 * np.sqrt(5 / 36 / matrix.size)
    assert not np.array_equal(matrix, dense(ternary(300, 700, 1), 300, 700))


def test_inner_products_are_kept_in_the_mean(rng):
    """E[f(x) . f(w)] = x . w, over many projections; each is off by about |x| |w| / sqrt(k)."""
    x, w = random(rng, (1, 50), (1, 50))
    k, found = 40, []
    for seed in range(400):
        f = projection.project_cpu(np.concatenate([x, w]), ternary(k, 50, seed), k)
        found.append(float(f[0] @ f[1]))
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - float(x[0] @ w[0])) < 4 * error
    assert np.std(found) == pytest.approx(np.sqrt((np.sum(x**2) * np.sum(w**2) + float(x[0] @ w[0]) ** 2) / k), rel=0.2)


@pytest.mark.parametrize("k, d, message", [(4, 40, "starts"), (5, PIECE + 1, "starts")])
def test_lists_of_another_matrix_are_refused(suffix, put, k, d, message):
    lists = type(ternary(5, 40, 0))(*map(put, ternary(5, 40, 0)))
    with pytest.raises(ValueError, match=message):
        getattr(projection, f"project_{suffix}")(put(np.zeros((2, d), np.float32)), lists, k)


# --- scores -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n, i, o", SCORED)
def test_scores(suffix, put, get, rng, n, i, o, biased, packed):
    x, w, b = random(rng, (n, i), (o, i), (o,))
    ready = getattr(top_k, f"scores_packed_{suffix}")(put(w)) if packed else None
    found = getattr(top_k, f"scores_{suffix}")(put(x), put(w), put(b) if biased else None, ready)
    expected = top_k.scores_reference(x, w, b if biased else None)
    np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-4)


def test_what_is_packed_for_another_weight_is_refused():
    x, w = np.zeros((2, 5), np.float32), np.zeros((40, 5), np.float32)
    with pytest.raises(ValueError, match="packed"):
        top_k.scores_cpu(x, w, None, top_k.scores_packed_cpu(np.zeros((40, 4), np.float32)))


@pytest.mark.parametrize("n, first, count", [(200, 64, 64), (200, 128, 72), (70, 0, 64), (64, 0, 64), (33, 32, 1), (48, 16, 0)])
def test_some_rows_are_packed_anew(suffix, put, get, rng, n, first, count):
    (x, w, rows), packed = random(rng, (5, 7), (n, 7), (count, 7)), getattr(top_k, f"scores_packed_{suffix}")
    ready = packed(put(w))
    assert packed(put(rows), ready, first) is ready
    w[first : first + count] = rows
    found = get(getattr(top_k, f"scores_{suffix}")(put(x), put(w) if suffix == "cpu" else ready, None, ready))
    np.testing.assert_allclose(found, top_k.scores_reference(x, w), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n, width, first", [(90, 7, 0), (64, 7, 64), (64, 7, -64), (64, 6, 0)])
def test_rows_that_do_not_fit_are_refused(suffix, put, n, width, first):
    ready = getattr(top_k, f"scores_packed_{suffix}")(put(np.zeros((66, 7), np.float32)))
    with pytest.raises(ValueError, match="scores_packed"):
        getattr(top_k, f"scores_packed_{suffix}")(put(np.zeros((n, width), np.float32)), ready, first)


@pytest.mark.parametrize("rows, first", [(17, 0), (32, WIDTH // 2)])
def test_cpu_rows_that_are_no_whole_panels_are_refused(rows, first):
    ready = top_k.scores_packed_cpu(np.zeros((70, 5), np.float32))
    with pytest.raises(ValueError, match="whole panels"):
        top_k.scores_packed_cpu(np.zeros((rows, 5), np.float32), ready, first)


def test_cpu_nan_stays_with_its_neuron():
    w = np.eye(3, dtype=np.float32)
    w[1, 0] = np.nan
    found = top_k.scores_cpu(np.ones((2, 3), np.float32), w)
    assert np.isnan(found[1]) and found[0] == found[2] == 2


# --- the largest ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("values", ["normal", "ties", "equal", "negative zero"])
@pytest.mark.parametrize("n, o, k", [(1, 1, 1), (5, 40, 7), (3, 300, 150), (4, 64, 64), (4, 33, 0), (0, 5, 2), (2, 0, 0)])
def test_top_k(suffix, put, get, rng, n, o, k, values):
    v = {
        "normal": lambda: rng.standard_normal((n, o)),
        "ties": lambda: rng.integers(-2, 3, (n, o)),
        "equal": lambda: np.full((n, o), 1.5),
        "negative zero": lambda: -0.0 * rng.integers(0, 2, (n, o)) - 1.0,
    }[values]()
    v = v.astype(np.float32)
    found = get(getattr(top_k, f"top_k_{suffix}")(put(v), k))
    np.testing.assert_array_equal(found, top_k.top_k_reference(v, k))


def test_of_both_zeros_the_first_are_taken(suffix, put, get, rng):
    v = np.where(rng.random((6, 70)) < 0.5, np.float32(0), np.float32(-0.0))
    v[:, ::7], v[:, 3::7] = 1e-45, -1e-45
    v[0, :5] = np.inf, -np.inf, -0.0, 0, -0.0
    for k in (1, 3, 12, 30, 65):
        found = get(getattr(top_k, f"top_k_{suffix}")(put(v), k))
        np.testing.assert_array_equal(found, top_k.top_k_reference(v, k))


def test_nan_is_the_largest_or_with_a_sign_the_smallest(suffix, put, get):
    v = np.array([[1, np.nan, np.inf, 0], [-np.inf, -np.nan, -1, 0]], np.float32)
    v[1, 1] = np.copysign(v[1, 1], -1)
    for k, expected in ((1, [2, 8]), (3, [7, 13])):
        assert get(getattr(top_k, f"top_k_{suffix}")(put(v), k)).ravel().tolist() == expected


@pytest.mark.parametrize("n, k", [(1, 1), (1, 0), (40, 7), (300, 150), (64, 64), (33, 0), (95, 3), (600, 1)])
def test_bit_lists(suffix, put, get, rng, n, k):
    bits = top_k.top_k_reference(rng.standard_normal((1, n)), k)
    found = getattr(top_k, f"bit_lists_{suffix}")(put(bits), n, k)
    for ours, expected in zip(found, top_k.bit_lists_reference(bits, n, k), strict=True):
        np.testing.assert_array_equal(get(ours), expected)


@pytest.mark.parametrize("bits, n, k", [((1, 2), 33, -1), ((1, 2), 33, 34), ((1, 1), 33, 3), ((2, 2), 33, 3)])
def test_bits_of_another_row_are_refused(suffix, put, bits, n, k):
    with pytest.raises(ValueError, match=r"bit_lists"):
        getattr(top_k, f"bit_lists_{suffix}")(put(np.zeros(bits, np.int32)), n, k)


def test_a_list_is_valid_if_fewer_or_more_bits_are_set(suffix, put, get):
    for k, expected in ((4, [3, 35, 0, 0]), (1, [3])):
        inverse, indices = getattr(top_k, f"bit_lists_{suffix}")(put(np.array([[8, 8]], np.int32)), 40, k)
        assert get(indices).tolist() == expected and get(inverse)[3] == 0 and get(inverse)[35] == (1 if k > 1 else -1)


@pytest.mark.parametrize("n, o", [(1, 1), (5, 40), (3, 300), (0, 5), (2, 0)])
def test_above(suffix, put, get, rng, n, o):
    v = rng.integers(-2, 3, (n, o)).astype(np.float32)
    np.testing.assert_array_equal(get(getattr(top_k, f"above_{suffix}")(put(v), 1.0)), top_k.above_reference(v, 1.0))


@pytest.mark.parametrize("k", [-1, 6])
def test_more_than_there_are_is_refused(suffix, put, k):
    with pytest.raises(ValueError, match="of rows of 5"):
        getattr(top_k, f"top_k_{suffix}")(put(np.zeros((2, 5), np.float32)), k)
