"""Products with listed entries and with tiles of a matrix against their float64 references, on every device."""

import numpy as np
import pytest

from numbanet_kernels.families import bsr, csr
from numbanet_kernels.layouts.entries import Entries
from numbanet_kernels.layouts.rows import RowLists
from numbanet_kernels.layouts.sparse import BSR, CSR

N, I, O = 70, 45, 39  # samples: a panel and a piece of the next one


def mask_of(name, rng, shape=(O, I)):
    """Which elements a matrix has."""
    mask = rng.random(shape) < (0.1 if name == "sparse" else 0.5)
    if name == "empty":
        mask[:] = False
    if name == "empty rows":
        mask[::2] = mask[:, 1::3] = False
    if name == "one long row":
        mask[:] = False
        mask[2] = True
    if name == "one long column":
        mask[:] = False
        mask[:, 2] = True
    return mask


MASKS = ["sparse", "half", "empty", "empty rows", "one long row", "one long column"]


def kept(n, step):
    """The lists of every step-th index."""
    indices, places = np.arange(1, n, step, dtype=np.int32), np.full(n, -1, np.int32)
    places[indices] = np.arange(indices.size)
    return RowLists(places, np.zeros(n, np.int32), indices)


def close(found, reference):
    """Equal to rounding of the largest."""
    np.testing.assert_allclose(found, reference, rtol=1e-5, atol=1e-5 * max(np.abs(reference).max(initial=0), 1))


def products(suffix, put, get, rng, at, v, n=N, rows=None, cols=None, sides=(O, I)):
    """Forward, dx and dw against the references."""
    outs, ins = (len(lists.indices) if lists else side for lists, side in zip((rows, cols), sides))
    x, dy, values, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, ins), (n, outs), v, (sides[0],)))
    on = Entries(*map(put, at))
    thinned = {"rows": rows and RowLists(*map(put, rows)), "cols": cols and RowLists(*map(put, cols))}
    plain = {"rows": rows, "cols": cols}
    op = {name: getattr(csr, f"{name}_{suffix}") for name in ("csr", "csr_dx", "csr_dw", "csr_transposed")}
    x_, dy_, values_ = map(put, (x, dy, values))
    transposed = {"x_transposed": op["csr_transposed"](x_), "dy_transposed": op["csr_transposed"](dy_)}
    close(get(op["csr"](x_, values_, on, put(b), True, **thinned)), csr.csr_reference(x, values, at, b, True, **plain))
    close(
        get(op["csr"](x_, values_, on, transposed=transposed["x_transposed"], **thinned)),
        csr.csr_reference(x, values, at, **plain),
    )
    close(get(op["csr_dx"](dy_, values_, on, **thinned)), csr.csr_dx_reference(dy, values, at, **plain))
    close(
        get(op["csr_dx"](dy_, values_, on, transposed=transposed["dy_transposed"], **thinned)),
        csr.csr_dx_reference(dy, values, at, **plain),
    )
    for given in ({}, transposed):
        close(get(op["csr_dw"](dy_, x_, on, **thinned, **given)), csr.csr_dw_reference(dy, x, at, **plain))


@pytest.mark.parametrize("name", MASKS)
def test_csr_products_equal_their_references(suffix, put, get, rng, name):
    at = CSR.from_dense(np.ones((O, I)), mask_of(name, rng)).entries()
    products(suffix, put, get, rng, at, at.ids.shape)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 130])
def test_any_number_of_samples(suffix, put, get, rng, n):
    at = CSR.from_dense(np.ones((O, I)), mask_of("sparse", rng)).entries()
    products(suffix, put, get, rng, at, at.ids.shape, n)


@pytest.mark.parametrize("sides", [(1, 1), (0, 4), (4, 0), (33, 1), (1, 65)])
def test_any_sides(suffix, put, get, rng, sides):
    at = CSR.from_dense(np.ones(sides)).entries()
    products(suffix, put, get, rng, at, at.ids.shape, 3, sides=sides)


@pytest.mark.parametrize("name", ["sparse", "empty rows", "one long row", "empty"])
def test_padding_is_never_read_and_its_gradient_is_zero(suffix, put, get, rng, name):
    """The values are random in the padding too."""
    at = CSR.from_dense(np.ones((O, I)), mask_of(name, rng)).to_ell().entries()
    products(suffix, put, get, rng, at, at.ids.shape)


@pytest.mark.parametrize("rows, cols", [(2, None), (None, 3), (3, 2), (100, 2), (2, 100)])
def test_kept_neurons_and_inputs_alone(suffix, put, get, rng, rows, cols):
    at = CSR.from_dense(np.ones((O, I)), mask_of("half", rng)).entries()
    products(suffix, put, get, rng, at, at.ids.shape, 9, rows and kept(O, rows), cols and kept(I, cols))


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("side, others", [(I, 0), (0, I)], ids=["no inputs", "no neurons"])
def test_gradients_of_dropped_entries_are_zero_in_memory_that_was_used(suffix, put, get, n, side, others):
    """What is let go is filled with 7, and is lent again."""
    at = CSR.from_dense(np.ones((O, I))).entries()
    none = lambda length: RowLists(np.full(length, -1, np.int32), np.zeros(length, np.int32), np.zeros(0, np.int32))  # noqa: E731
    rows, cols = (None, none(I)) if side else (none(O), None)
    dy, x = put(np.ones((n, O if side else 0))), put(np.ones((n, I if others else 0)))
    on, lists = Entries(*map(put, at)), {"rows": rows and RowLists(*map(put, rows)), "cols": cols and RowLists(*map(put, cols))}
    for _ in range(3):
        used = put(np.full(at.ids.size, 7.0))
        del used
        np.testing.assert_array_equal(get(getattr(csr, f"csr_dw_{suffix}")(dy, x, on, **lists)), np.zeros(at.ids.size))


def test_nan_passes_a_relu(suffix, put, get):
    at = CSR.from_dense(np.eye(3)).entries()
    x = np.array([[np.nan, -1.0, 1.0]])
    found = get(getattr(csr, f"csr_{suffix}")(put(x), put(np.ones(3)), Entries(*map(put, at)), relu=True))
    np.testing.assert_array_equal(found, [[np.nan, 0, 1]])


# --- tiles ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tile", [1, 3, 8, 16])
@pytest.mark.parametrize("name", MASKS)
def test_bsr_products_equal_their_references(suffix, put, get, rng, name, tile):
    """With anything where tiles stick out."""
    n, grid = (9 if tile == 1 else 35), tuple(-(-side // tile) for side in (O, I))
    at = BSR.from_dense(np.ones((O, I)), tile, mask_of(name, rng, grid)).entries()
    x, dy, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, I), (n, O), O))
    values = rng.standard_normal((at.ids.size, tile, tile)).astype(np.float32)
    on, op = Entries(*map(put, at)), {name: getattr(bsr, f"{name}_{suffix}") for name in ("bsr", "bsr_dx", "bsr_dw")}
    x_, dy_, values_ = map(put, (x, dy, values))
    close(get(op["bsr"](x_, values_, on, O, put(b), True)), bsr.bsr_reference(x, values, at, O, b, True))
    close(get(op["bsr"](x_, values_, on, O)), bsr.bsr_reference(x, values, at, O))
    close(get(op["bsr_dx"](dy_, values_, on, I)), bsr.bsr_dx_reference(dy, values, at, I))
    close(get(op["bsr_dw"](dy_, x_, on, tile)), bsr.bsr_dw_reference(dy, x, at, tile))


# --- lists that are wrong ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("field, number", [("ids", 4000), ("order", 4000), ("col_ids", 4000), ("stops", 9000), ("starts", -9)])
@pytest.mark.parametrize("family", [csr, bsr])
def test_a_number_beyond_an_axis_is_never_read_there(suffix, put, get, rng, family, field, number):
    """It counts as the end of the axis, on every device."""
    tile, name = (1, "csr") if family is csr else (4, "bsr")
    matrix = np.ones((O, I)) * mask_of("half", rng)
    at = (CSR.from_dense(matrix) if family is csr else BSR.from_dense(matrix, tile)).entries()
    last = {
        "ids": at.col_starts.size - 1,
        "col_ids": at.starts.size - 1,
        "order": at.ids.size - 1,
        "stops": at.ids.size,
        "starts": 0,
    }[field]
    wrong, meant = (np.array(getattr(at, field)) for _ in range(2))
    where = -1 if field == "stops" else 0
    wrong[where], meant[where] = number, last
    x, dy = rng.standard_normal((9, I)).astype(np.float32), rng.standard_normal((9, O)).astype(np.float32)
    w = rng.standard_normal(at.ids.shape if family is csr else (at.ids.size, tile, tile)).astype(np.float32)

    def run(changed, *kinds):
        on, (x_, dy_, w_) = Entries(*map(put, at._replace(**{field: changed}))), map(put, (x, dy, w))
        calls = {"": (x_, w_, on, O), "_dx": (dy_, w_, on, I), "_dw": (dy_, x_, on, tile)}
        return [get(getattr(family, f"{name}{kind}_{suffix}")(*calls[kind][: 3 if family is csr else 4])) for kind in kinds]

    kinds = ("", "_dx") if field == "order" else ("", "_dx", "_dw")
    for found, expected in zip(run(wrong, *kinds), run(meant, *kinds), strict=True):
        np.testing.assert_array_equal(found, expected)
    if field == "order":  # what is not named is not written
        found, expected = (np.delete(*run(places, "_dw"), at.order[0], axis=0) for places in (wrong, at.order))
        np.testing.assert_array_equal(found, expected)


# --- what does not fit ------------------------------------------------------------------------------------------------
AT = CSR.from_dense(np.ones((4, 5))).entries()
REFUSED = {
    "inputs": (lambda s, at, a: getattr(csr, f"csr_{s}")(a(3, 6), a(20), at), r"csr \(.*x \(3, 6\)"),
    "values": (lambda s, at, a: getattr(csr, f"csr_{s}")(a(3, 5), a(19), at), r"csr \(.*values"),
    "bias": (lambda s, at, a: getattr(csr, f"csr_{s}")(a(3, 5), a(20), at, a(5)), r"csr \(.*bias"),
    "transposed": (lambda s, at, a: getattr(csr, f"csr_{s}")(a(3, 5), a(20), at, transposed=a(2, 2)), r"csr \(.*transposed"),
    "outputs": (lambda s, at, a: getattr(csr, f"csr_dx_{s}")(a(3, 5), a(20), at), r"csr_dx \(.*dy"),
    "samples": (lambda s, at, a: getattr(csr, f"csr_dw_{s}")(a(2, 4), a(3, 5), at), r"csr_dw \(.*x"),
    "tiles": (lambda s, at, a: getattr(bsr, f"bsr_{s}")(a(3, 11), a(20, 2, 2), at, 8), "bsr .*5 tiles of 2 do not cover 11"),
    "a tile that is not square": (lambda s, at, a: getattr(bsr, f"bsr_{s}")(a(3, 9), a(20, 2, 3), at, 8), r"bsr \(.*values"),
    "rows": (lambda s, at, a: getattr(bsr, f"bsr_dx_{s}")(a(3, 9), a(20, 2, 2), at, 10), r"bsr_dx \(.*do not cover 9"),
    "tile": (lambda s, at, a: getattr(bsr, f"bsr_dw_{s}")(a(3, 8), a(3, 10), at, 0), r"bsr_dw \(.*tile 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(suffix, put, name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call(suffix, Entries(*map(put, AT)), lambda *shape: put(np.ones(shape)))


def test_what_is_no_structure_is_named(suffix, put):
    for op, given in ((csr, ()), (bsr, (4,))):
        name = op.__name__.rpartition(".")[2]
        with pytest.raises(TypeError, match=f"{name} .*must be Entries"):
            getattr(op, f"{name}_{suffix}")(put(np.ones((2, 3))), put(np.ones((1, 2, 2))), (1, 2), *given)
