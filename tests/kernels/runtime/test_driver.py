"""Launches and copies by direct calls of the driver, on the emulated card."""

import numpy as np
import pytest

from numbanet import emulated
from numbanet_kernels.runtime import availability, driver
from numbanet_kernels.runtime.declare import kernel
from numbanet_kernels.runtime.memory import part_cuda

cuda = pytest.importorskip("numba.cuda", reason="Numba has no CUDA part")
pytestmark = pytest.mark.skipif(availability.nvvm_problem() is not None, reason="there is no NVVM")


def affine(x, y, n, shift, factors, flags, last):
    i = cuda.grid(1)
    if i < n and flags[1]:
        y[i // y.shape[1], i % y.shape[1]] = factors[0] * x[i] + factors[1] + shift * last


@pytest.fixture
def card():
    with emulated():
        yield
    driver._default_stream.cache_clear()


def declared():
    return kernel("void(f4[::1], f4[:, ::1], i4, i8, UniTuple(f4, 2), UniTuple(b1, 2), f8)")(affine)


def test_arguments_of_all_types_arrive(card):
    x = cuda.to_device(np.arange(6, dtype=np.float32))
    y = cuda.to_device(np.zeros((2, 3), np.float32))
    driver.start(declared(), (2,), (4,), (x, y, np.int32(5), -2, (2, np.float32(0.5)), (False, True), 3))
    np.testing.assert_array_equal(y.copy_to_host(), [[-5.5, -3.5, -1.5], [0.5, 2.5, 0]])


def test_what_does_not_fit_is_refused(card):
    x, y = (cuda.to_device(np.zeros(shape, np.float32)) for shape in (6, (2, 3)))
    good = x, y, 6, 0, (1.0, 0.0), (True, True), 0.0
    for place, wrong in ((0, np.zeros(6, np.float32)), (0, y), (2, "6"), (4, (1.0,)), (4, 1.0)):
        with pytest.raises(TypeError, match=r"affine: the arguments are not those of void\(f4"):
            driver.start(declared(), (1,), (8,), [*good[:place], wrong, *good[place + 1 :]])
    with pytest.raises(TypeError, match="the arguments are not those"):
        driver.start(declared(), (1,), (8,), good[:-1])


@pytest.mark.parametrize("kind, least, most", [("i4", -(2**31), 2**31 - 1), ("i8", -(2**63), 2**63 - 1), ("u1", -128, 255)])
def test_numbers_that_do_not_fit_their_type_are_refused(card, kind, least, most):
    """As the emulated device does; the driver reads as many bytes as the type has."""
    noted = kernel(f"void(i8[::1], {kind})")(note)
    y = cuda.to_device(np.zeros(1, np.int64))
    for number in (least, most, np.int64(5)):
        driver.start(noted, (1,), (1,), (y, number))
        assert y.copy_to_host()[0] in (number, int(number) + most + 1)
    for number in (least - 1, most + 1, 2**70):
        with pytest.raises(OverflowError, match=f"note: an argument is {number}, which u?int[0-9]+ cannot hold"):
            driver.start(noted, (1,), (1,), (y, number))


def note(y, number):
    y[0] = number


def test_types_that_it_does_not_know_are_left_to_numba(card):
    x, y = cuda.to_device(np.full(3, 1 + 2j, np.complex64)), cuda.device_array(3, np.complex64)

    @kernel("void(c8[::1], c8[::1], c8)")
    def times(x, y, factor):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = factor * x[i]

    driver.start(times, (1,), (4,), (x, y, 1j))
    assert driver.load(times) == (None, None)
    np.testing.assert_array_equal(y.copy_to_host(), np.full(3, -2 + 1j))


def test_bytes_are_copied_from_host_and_device(card):
    x, y = np.arange(6, dtype=np.float32), cuda.device_array((2, 3), np.float32)
    driver.copy(x, y)
    z = cuda.device_array((2, 3), np.float32)
    driver.copy(y, z)
    np.testing.assert_array_equal(z.copy_to_host(), x.reshape(2, 3))
    driver.copy(x[:2], z[1, :2])
    np.testing.assert_array_equal(z.copy_to_host(), [[0, 1, 2], [0, 1, 5]])
    driver.copy(x[:0], cuda.device_array((0, 3), np.float32))
    with pytest.raises(RuntimeError, match="a copy of 24 bytes to the GPU failed: CUDA_ERROR_INVALID_VALUE"):
        driver.copy(x, _beyond(z))


def _beyond(z):
    """An array that claims memory after the end of z."""
    view = z[1]
    view.words = (*driver.words(z)[:4], driver.words(z)[4] + 12, *driver.words(z)[5:])
    return view


def test_parts_of_arrays_without_elements_have_as_many_rows(card):
    """Numba's own part of them has one row."""
    x = cuda.device_array((6, 0), np.int32)
    assert part_cuda(x, 1, 4).shape == (3, 0) and part_cuda(x, 0, 6).shape == (6, 0)


def test_large_arrays_of_the_host_are_copied_too(card):
    x = np.arange(2 * driver.STAGED, dtype=np.float32)
    y = cuda.device_array(x.shape, np.float32)
    driver.copy(x, y)
    np.testing.assert_array_equal(y.copy_to_host(), x)


def test_kernels_run_on_the_card_that_is_there_now():
    """What is loaded on one card is not started on the next."""
    double = kernel("void(f4[::1])")(doubled)
    for _ in range(2):
        with emulated():
            x = cuda.to_device(np.ones(3, np.float32))
            driver.start(double, (1,), (4,), (x,))
            assert x.copy_to_host().tolist() == [2, 2, 2]
            driver._default_stream.cache_clear()


def doubled(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += x[i]
