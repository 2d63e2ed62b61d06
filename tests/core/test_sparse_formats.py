"""Formats of sparse matrices: there and back, other libraries, and what is refused."""

import numpy as np
import pytest
import scipy.sparse

from numbanet.sparse import BSR, CSR, ELL

SHAPES = [(7, 10), (64, 64), (33, 70), (1, 1), (0, 3), (3, 0)]


def matrix(shape, density=0.3):
    rng = np.random.default_rng(5)
    return (rng.standard_normal(shape) * (rng.random(shape) < density)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(shape):
    w = matrix(shape)
    csr = CSR.from_dense(w)
    ell, bsr = csr.to_ell(), csr.to_bsr(4)
    for found in (csr, ell, ell.to_csr(), bsr, bsr.to_csr(), BSR.from_dense(w, 4)):
        np.testing.assert_array_equal(found.dense(), w)
        assert found.shape == w.shape
    assert csr.nnz == ell.nnz == ell.to_csr().nnz == np.count_nonzero(w) and bsr.nnz == bsr.to_csr().nnz >= csr.nnz
    if w.size:
        assert csr.density == pytest.approx(np.mean(w != 0)) and csr.density <= bsr.density <= 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [lambda c: c, lambda c: c.to_ell(), lambda c: c.to_bsr(3)], ids=["csr", "ell", "bsr"])
def test_entries_by_row_and_by_column_are_the_same(shape, make):
    """Of tiles, by their first element."""
    found = make(CSR.from_dense(matrix(shape)))
    at = found.entries()
    by_row = {(row, at.ids[k]): k for row in range(len(at.starts)) for k in range(at.starts[row], at.stops[row])}
    by_column = {
        (at.col_ids[k], column): at.order[k]
        for column in range(len(at.col_starts))
        for k in range(at.col_starts[column], at.col_stops[column])
    }
    assert by_row == by_column and all(array.dtype == np.int32 for array in at)
    columns = [[at.col_ids[k] for k in range(*span)] for span in zip(at.col_starts, at.col_stops)]
    assert all(column == sorted(column) for column in columns)


def test_an_entry_may_be_zero():
    w = np.array([[0.0, 1.0], [0.0, 0.0]], np.float32)
    csr = CSR.from_dense(w, mask=[[True, True], [False, False]])
    assert csr.nnz == csr.to_ell().nnz == csr.to_ell().to_csr().nnz == 2
    assert BSR.from_dense(w, 1, mask=[[True, True], [False, False]]).to_csr().nnz == 2


def test_nobody_can_write_to_them():
    csr = CSR.from_dense(matrix((4, 4)))
    for array in (csr.indptr, csr.indices, csr.values, csr.to_bsr(2).values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_what_they_were_made_of_stays_apart():
    given = {"indptr": np.array([0, 2], np.int32), "indices": np.array([0, 1], np.int32), "values": np.ones(2, np.float32)}
    csr = CSR(**given, shape=(1, 2))
    for array in given.values():
        array[:] = 99
    np.testing.assert_array_equal(csr.dense(), [[1, 1]])


# --- other libraries --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["csr_array", "csr_matrix", "coo_array", "csc_matrix"])
def test_from_scipy(form):
    w = matrix((33, 70))
    np.testing.assert_array_equal(CSR.from_scipy(getattr(scipy.sparse, form)(w)).dense(), w)


def test_scipys_entries_may_come_twice_and_in_any_order():
    messy = scipy.sparse.csr_array((np.ones(3), [1, 0, 1], [0, 3]), (1, 2))
    np.testing.assert_array_equal(CSR.from_scipy(messy).dense(), [[1, 2]])
    assert messy.nnz == 3  # it stays as it was


def test_to_scipy_and_torch():
    w = matrix((32, 64))
    csr, bsr = CSR.from_dense(w), BSR.from_dense(w, 8)
    np.testing.assert_array_equal(csr.to_scipy().toarray(), w)
    np.testing.assert_array_equal(bsr.to_scipy().toarray(), w)
    np.testing.assert_array_equal(BSR.from_scipy(bsr.to_scipy()).dense(), w)
    torch = pytest.importorskip("torch")
    for ours, layout in ((csr, torch.sparse_csr), (bsr, torch.sparse_bsr)):
        theirs = ours.to_torch()
        assert theirs.layout == layout
        np.testing.assert_array_equal(theirs.to_dense().numpy(), w)
        np.testing.assert_array_equal(type(ours).from_torch(theirs).dense(), w)
    with pytest.raises(TypeError, match="from_torch: expected a tensor of layout sparse_csr, got torch.strided"):
        CSR.from_torch(torch.ones(2, 2))


# --- what is refused --------------------------------------------------------------------------------------------------
REFUSED = {
    "unsorted": (lambda: CSR([0, 2], [2, 1], [1, 1], (1, 3)), "row 0 is not sorted: column 1 follows 2"),
    "twice": (lambda: CSR([0, 1, 3], [0, 2, 2], [1, 1, 1], (2, 3)), "row 1 has column 2 twice"),
    "out of range": (lambda: CSR([0, 0, 1], [3], [1], (2, 3)), "row 1 contains column 3, but there are 3"),
    "below 0": (lambda: CSR([0, 1], [-1], [1], (1, 3)), "row 0 contains column -1"),
    "nan": (lambda: CSR([0, 2], [0, 1], [1, np.nan], (1, 3)), r"values\[1\] is nan: values must be finite"),
    "inf": (lambda: CSR([0, 1], [0], [np.inf], (1, 3)), r"values\[0\] is inf"),
    "indptr falls": (lambda: CSR([0, 2, 1, 2], [0, 1], [1, 1], (3, 3)), "row 1 ends before it begins: indptr goes from 2 to 1"),
    "indptr begins": (lambda: CSR([1, 1], [0], [1], (1, 3)), "must go from 0 to 1, the number of indices, not from 1 to 1"),
    "indptr ends": (lambda: CSR([0, 2], [0], [1], (1, 3)), "not from 0 to 2"),
    "indptr's length": (lambda: CSR([0, 1], [0], [1], (2, 3)), r"indptr \(2,\) must have one more element than there are rows"),
    "as many": (lambda: CSR([0, 1], [0], [1, 2], (1, 3)), "must have the same shape"),
    "large": (lambda: CSR([0, 1], [2**31], [1], (1, 3)), r"indices\[0\] is 2147483648"),
    "fraction": (lambda: CSR([0, 1], [0.5], [1], (1, 3)), r"indices\[0\] is 0.5"),
    "shape": (lambda: CSR([0], [], [], (-1, 3)), "shape must be two whole numbers"),
    "axes": (lambda: CSR([[0, 1]], [0], [1], (1, 3)), r"indptr \(1, 2\) must have 1 axis"),
    "mask": (lambda: CSR.from_dense(np.ones((2, 2)), np.ones((2, 3))), r"mask \(2, 3\) must be of one shape"),
    "ELL behind": (lambda: ELL([[-1, 1]], [[0, 1]], (1, 3)), "row 0 has an entry after its padding"),
    "ELL padding": (lambda: ELL([[1, -1]], [[1, 2]], (1, 3)), "row 0 has the value 2.0 in its padding"),
    "ELL twice": (lambda: ELL([[0, -1], [1, 1]], [[1, 0], [1, 1]], (2, 3)), "ELL: row 1 has column 1 twice"),
    "ELL rows": (lambda: ELL([[0]], [[1]], (2, 3)), "with the 2 rows of the matrix"),
    "BSR tiles": (lambda: BSR([0, 1], [0], np.ones((1, 2, 3)), (2, 3)), "must have one square tile for each of the 1 indices"),
    "BSR range": (lambda: BSR([0, 1], [2], np.ones((1, 2, 2)), (2, 4)), "block row 0 contains block column 2, but there are 2"),
    "BSR outside": (lambda: BSR([0, 1], [0], np.ones((1, 2, 2)), (2, 1)), r"tile 0 is not 0 outside of the matrix \(2, 1\)"),
    "BSR nan": (lambda: BSR([0, 1], [0], [[[1, np.nan], [0, 0]]], (2, 2)), r"values\[0, 0, 1\] is nan"),
    "BSR ragged": (lambda: BSR.from_dense(np.ones((3, 4)), 2).to_scipy(), r"\(3, 4\) is not a multiple of the tile 2"),
    "BSR mask": (lambda: BSR.from_dense(np.ones((3, 4)), 2, np.ones((2, 3))), r"mask \(2, 3\) must have one element for each"),
    "tile": (lambda: CSR.from_dense(np.ones((3, 4))).to_bsr(0), "tile must be at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: CSR([0, 1], ["a"], [1], (1, 3)), "CSR: indices cannot be read as int32"),
        (lambda: CSR([0, 1], [0], [1 + 2j], (1, 3)), "CSR: values cannot be read as float32 numbers .*complex"),
        (lambda: CSR([0, 1], [0], [1], 3), r"CSR: shape must be \(rows, columns\), got 3"),
        (lambda: BSR.from_scipy(scipy.sparse.csr_array(np.eye(4))), "call tobsr"),
        (lambda: BSR.from_scipy(np.eye(4)), r"got a ndarray; .* BSR.from_dense\(matrix, tile\)"),
        (lambda: CSR.from_scipy(np.eye(4)), r"CSR.from_scipy: expected .*, got a ndarray; .* CSR.from_dense\(matrix\)"),
        (lambda: CSR.from_scipy([[1, 0], [0, 2]]), "got a list; .* CSR.from_dense"),
    ],
)
def test_what_is_no_matrix_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()
