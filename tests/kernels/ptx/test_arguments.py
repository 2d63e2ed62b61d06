"""Arrays as arguments that do not lie in one piece in C order: Fortran order, slices, transposes, repeated ones."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import arrays, availability, declare, emulation, launch
from tests.kernels.ptx.handwritten import run as run_text

pytestmark = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
cuda, kernel = declare.cuda, declare.kernel
F = np.float32


@kernel("void(f4[:, :], f4[:, :], f4)")
def scaled(x, y, a):
    """y = a x, of arrays that lie in any way."""
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[i, j] = a * x[i, j]


@kernel("void(f4[::1, :], f4[::1, :])")
def fortran(x, y):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[i, j] = x[i, j] + 1


@kernel("void(f4[:, ::1], f4[:, :])")
def copied(x, y):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[i, j] = x[i, j]


def run(made, *arguments, block=(8, 8), **options):
    return ptx.run(emulation.program(made, emulation.EMULATED), (1,), block, arguments, name=made.__name__, **options)


def numbered(*shape):
    return np.arange(np.prod(shape), dtype=F).reshape(shape)


WAYS = {  # what a 5 x 3 array may be of a larger one
    "transposed": lambda: numbered(3, 5).T,
    "Fortran order": lambda: np.asfortranarray(numbered(5, 3)),
    "columns": lambda: numbered(5, 7)[:, 2:5],
    "every other row": lambda: numbered(10, 3)[1::2],
    "every other column": lambda: numbered(5, 7)[:, 1::2],
    "rows back to front": lambda: numbered(5, 3)[::-1],
    "all back to front": lambda: numbered(5, 3)[::-1, ::-1],
    "of three axes": lambda: numbered(3, 4, 5)[:, 2, :].T,
    "of a structure": lambda: np.zeros((5, 3), [("a", "i4"), ("b", "f4")])["b"],
}


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("given", WAYS)
@pytest.mark.parametrize("taken", WAYS)
def test_arrays_are_read_and_written_where_they_lie(given, taken, emulated):
    """What lies around and between the elements of the result stays."""
    x, y = WAYS[given](), WAYS[taken]()
    around = y
    while isinstance(around.base, np.ndarray):
        around = around.base
    around = around if around.flags.c_contiguous else around.T
    expected, before = 3 * x, around.copy()
    if emulated:
        with emulation.emulated():
            launch.launch(scaled, 1, (8, 8), x, y, 3)
    else:
        run(scaled, x, y, 3)
    np.testing.assert_array_equal(y, expected)
    y[...] = 0
    changed = before.copy()
    place = np.ndarray(y.shape, y.dtype, changed, y.ctypes.data - around.ctypes.data, y.strides)
    place[...] = 0
    np.testing.assert_array_equal(around.view(np.uint8), changed.view(np.uint8))


def test_arrays_in_fortran_order_where_that_is_declared():
    x, y = np.asfortranarray(numbered(5, 3)), np.zeros((3, 5), F).T
    run(fortran, x, y)
    np.testing.assert_array_equal(y, x + 1)
    with emulation.emulated():
        on_device = arrays.to_device(x)
        assert on_device.flags.f_contiguous and not on_device.flags.c_contiguous  # as Numba's to_device keeps it
        launch.launch(fortran, 1, (8, 8), on_device, on_device)
    np.testing.assert_array_equal(on_device.copy_to_host(), x + 1)


@pytest.mark.parametrize(
    "made, x, problem",
    [
        (
            fortran,
            numbered(5, 3),
            r"x is not in Fortran order: shape \(5, 3\), strides \(12, 4\): pass a copy in that order, or "
            r"declare float32\[:, :\], which takes any",
        ),
        (fortran, np.asfortranarray(numbered(9, 3))[::2], "x is not in Fortran order: shape"),
        (copied, numbered(5, 3).T, r"x is not contiguous: shape \(3, 5\), strides \(4, 12\): pass a copy in that order, or "),
    ],
)
def test_other_orders_than_the_declared_are_refused(made, x, problem):
    with pytest.raises(ptx.PtxError, match=f"{made.__name__}: argument {problem}"):
        run(made, x, np.asfortranarray(numbered(5, 3)))


def test_order_is_not_asked_for_where_nothing_is_declared():
    """Hand-written PTX is given the strides, and reads them or not."""
    found = np.zeros((4, 8), np.uint32)
    run_text(
        """
        ld.param.u64 %rd9, [p0_6];
        cvt.u64.u32 %rd2, %r0;
        mad.lo.s64 %rd2, %rd2, %rd9, %rd0;
        st.global.u32 [%rd2], %r0;
    """,
        found[:, 3],
        threads=4,
    )
    np.testing.assert_array_equal(found[:, 3], np.arange(4))
    assert found.sum() == 6


# --- faults are still found -------------------------------------------------------------------------------------------
@kernel("void(f4[:], f4[::1], i4)")
def gathered(x, y, by):
    """y[i] = x[i by], which with another step than 1 lies beyond an end."""
    i = cuda.threadIdx.x
    y[i] = x[i * by]


@pytest.mark.parametrize(
    "x, by, problem",
    [
        (numbered(4, 8)[:, 3], 2, r"global out of bounds: byte 128 of the nearest array, which has 100 bytes, shape \(4,\)"),
        (numbered(4, 8)[:, 3], -2, r"global out of bounds: byte -64 of the nearest array"),  # Numba takes x[-6] for x[4 - 6]
        (numbered(32)[::-8], 2, r"global out of bounds: byte -32 of the nearest array"),
    ],
)
def test_what_runs_over_the_end_of_a_slice_is_found(x, by, problem):
    run(gathered, x, np.zeros(4, F), 1, block=(4,))
    with pytest.raises(ptx.PtxError, match=problem):
        run(gathered, x, np.zeros(4, F), by, block=(4,))


def test_what_lies_between_the_elements_of_a_slice_is_none_of_them():
    """A kernel that takes a column for an array in one piece reads the other columns."""
    body = "mad.wide.u32 %rd2, %r0, 4, %rd0;\n{access}"
    for access, where in (("ld.global.f32 %f1, [%rd2];", "ld"), ("st.global.f32 [%rd2], %f1;", "st")):
        x = numbered(4, 8)
        problem = "byte 4, between the elements, of the nearest array, which has 100 bytes, shape .4,. of float32, strides .32"
        with pytest.raises(ptx.PtxError, match=f"{where}.global.f32 .*: global out of bounds: {problem}"):
            run_text(body.format(access=access), x[:, 3], threads=4)
        np.testing.assert_array_equal(x, numbered(4, 8))


def test_wide_accesses_of_rows_in_pieces():
    """16 bytes at once, all of them in a row of the slice, or some beyond it."""
    memory = np.zeros(200, F)
    start = -memory.ctypes.data % 16 // 4
    rows = memory[start : start + 160].reshape(5, 32)
    body = "mul.wide.u32 %rd2, %r0, 128;\nadd.s64 %rd2, %rd2, %rd0;\nld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd2+{at}];"
    run_text(body.format(at=16), rows[:, :8], threads=5)
    with pytest.raises(ptx.PtxError, match="between the elements"):
        run_text(body.format(at=16), rows[:, :7], threads=5)


def test_threads_that_write_one_element_of_a_slice_race():
    with pytest.raises(ptx.PtxError, match="global race: written by several threads at once"):
        run_text("st.global.u32 [%rd0], %r0;", np.zeros((4, 8), np.uint32)[:, 3], threads=4)


def test_elements_that_share_memory():
    """A row for all rows may be read; the threads that write it race, as they do where windows overlap."""
    x, y = np.broadcast_to(numbered(3), (5, 3)), np.zeros((5, 3), F)
    run(scaled, x, y, 2)
    np.testing.assert_array_equal(y, 2 * x)
    windows = np.lib.stride_tricks.sliding_window_view(numbered(7), 3)
    run(scaled, windows, y, 2)
    np.testing.assert_array_equal(y, 2 * windows)
    for shared in (
        np.lib.stride_tricks.as_strided(np.zeros(3, F), (5, 3), (0, 4)),
        np.lib.stride_tricks.as_strided(np.zeros(7, F), (5, 3), (4, 4)),
    ):
        with pytest.raises(ptx.PtxError, match="st.f32 .*: global race: written by several threads at once"):
            run(scaled, y, shared, 2)
    with pytest.raises(ptx.PtxError, match="the array is read-only"):
        run(scaled, y, x, 2)


def test_slices_of_one_array_are_that_array():
    """A matrix is transposed within itself: two views of it, and a barrier between reading and writing."""

    @kernel("void(f4[:, :], f4[:, :], b1)")
    def moved(x, y, waits):
        i, j = cuda.grid(2)
        value = x[i, j]
        if waits:
            cuda.syncthreads()
        y[i, j] = value

    x = numbered(8, 8)
    run(moved, x, x.T, True)
    np.testing.assert_array_equal(x, numbered(8, 8).T)
    with pytest.raises(ptx.PtxError, match="global race"):
        run(moved, x, x.T, False)


def test_columns_cost_sectors():
    """A row of 32 floats are 4 sectors, a column of a wide matrix is one for each."""
    x, y = numbered(32, 64), np.zeros((32, 1), F)
    assert run(scaled, x[:, 5:6], y, 1, block=(32, 1)).summary()["sectors"] == 32 + 4
    assert run(scaled, x[5:6, :32].T, y, 1, block=(32, 1)).summary()["sectors"] == 4 + 4


@pytest.mark.parametrize(
    "kind, value, held", [("i4", 2**31, None), ("i1", -129, None), ("u4", 2**32, None), ("u4", -1, 2**32 - 1)]
)
def test_integers_that_their_type_cannot_hold_are_refused(kind, value, held):
    """On a card they lose their upper bits: 2**32 + 5 would be 5."""

    @declare.kernel(f"void(f8[::1], {kind})")
    def number(y, n):
        if declare.cuda.threadIdx.x + declare.cuda.threadIdx.y == 0:
            y[0] = n

    y = np.zeros(1)
    if held is None:
        with pytest.raises(ptx.PtxError, match=rf"number: argument n is {value}, which u?int\d+ cannot hold"):
            run(number, y, value)
    else:
        run(number, y, value)
        assert y[0] == held
