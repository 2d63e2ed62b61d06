"""Updates against their float64 references and against PyTorch's optimisers, dense and packed."""
import numpy as np
import pytest

from numbanet_kernels import update


def packing(rng, shape, classes):
    """A random packing: some rows without gradient, each row in one of some classes with lists of different lengths."""
    r, c = shape
    row_pos = np.full(r, -1, np.int32)
    kept = np.flatnonzero(rng.random(r) < 0.6)
    row_pos[kept] = rng.permutation(kept.size)
    row_class = rng.integers(classes, size=r).astype(np.int32)
    lists = [np.flatnonzero(rng.random(c) < 0.5) for _ in range(classes)]
    width = max(len(x) for x in lists) + 1
    cols, col_pos = np.full((classes, width), -1, np.int32), np.full((classes, c), -1, np.int32)
    for z, columns in enumerate(lists):
        cols[z, :columns.size], col_pos[z, columns] = columns, np.arange(columns.size)
    return (row_pos, row_class, cols, col_pos), (kept.size, width)


CASES = [((5, 9), None), ((5, 9), 1), ((12, 7), 3), ((1, 1), None), ((0, 3), None)]


@pytest.fixture(params=CASES, ids=str)
def problem(request, rng):
    shape, classes = request.param
    kept, packed_shape = (None, shape) if classes is None else packing(rng, shape, classes)
    w, s1, g = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(packed_shape)
    return w, s1, np.abs(s1) + 0.1, g, kept


@pytest.mark.parametrize("momentum, nesterov, decay", [(0.0, False, 0.0), (0.9, False, 0.0), (0.9, True, 0.01)])
def test_sgd_equals_reference(suffix, put, get, problem, momentum, nesterov, decay):
    w, v, _, g, kept = problem
    arrays = put(w.copy()), put(v.copy())
    getattr(update, f"sgd_{suffix}")(*arrays, put(g), 0.1, momentum, nesterov, decay, kept and tuple(map(put, kept)))
    for found, expected in zip(arrays, update.sgd_reference(w, v, g, 0.1, momentum, nesterov, decay, kept)):
        np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step, decay", [(1, 0.0), (7, 0.01)])
def test_adam_equals_reference(suffix, put, get, problem, step, decay):
    w, m, s, g, kept = problem
    arrays = put(w.copy()), put(m.copy()), put(s.copy())
    numbers = (0.1, 0.9, 0.999, 1e-8, step, decay)
    getattr(update, f"adam_{suffix}")(*arrays, put(g), *numbers, kept and tuple(map(put, kept)))
    for found, expected in zip(arrays, update.adam_reference(w, m, s, g, *numbers, kept)):
        np.testing.assert_allclose(get(found), expected, rtol=1e-5, atol=1e-6)


def test_unpack_gradient(suffix, put, get, rng):
    kept, packed_shape = packing(rng, (12, 7), 3)
    g = rng.standard_normal(packed_shape)
    dense = get(getattr(update, f"unpack_gradient_{suffix}")(put(g), tuple(map(put, kept)), (12, 7)))
    row_pos, row_class, _, col_pos = kept
    expected = [[g[row_pos[r], col_pos[row_class[r], c]] if row_pos[r] >= 0 and col_pos[row_class[r], c] >= 0 else 0
                 for c in range(7)] for r in range(12)]
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


def test_shapes_that_do_not_match_are_named(suffix, put):
    with pytest.raises(ValueError, match=rf"sgd \({suffix}\).*\(2, 3\).*\(3, 2\)"):
        getattr(update, f"sgd_{suffix}")(put(np.zeros((2, 3))), put(np.zeros((2, 3))), put(np.zeros((3, 2))), 0.1)
