"""Philox against its published vectors; every device against the reference, bit by bit where bits decide."""

import platform

import numba
import numpy as np
import pytest

from numbanet_kernels.families import random

FULL = 0xFFFFFFFF
KNOWN = [  # counter, key, words: the known-answer tests of Random123 for philox4x32-10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FULL,) * 4, (FULL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SIZES = [0, 1, 2, 3, 4, 5, 11]
SEEDS = [(0, 0), (1, 2), (2**64 - 1, 2**64 - 1), (0xDEADBEEF12345678, 0x0123456789ABCDEF)]


@pytest.mark.parametrize("counter, key, words", KNOWN)
def test_known_answers(counter, key, words):
    assert tuple(random.philox_reference(counter, key)) == words


@pytest.mark.parametrize("key, counter", SEEDS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_kept_is_the_same_everywhere(key, counter, size, suffix, put, get):
    bits = random.random_bits_reference(key, counter, size)
    words = np.float64(bits[-2:])
    for rate in (0.0, *words / 2**32, *np.minimum(words + 1, FULL) / 2**32):  # kept, and just not
        y = get(getattr(random, f"dropout_{suffix}")(put(np.ones(size)), rate, key, counter, 1.0))
        np.testing.assert_array_equal(y, bits / 2**32 >= rate)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (3, 5), (2, 4), (2, 3, 7)], ids=str)
def test_dropout(rate, scale, shape, suffix, put, get, rng):
    host = rng.standard_normal(shape).astype(np.float32)
    y = get(getattr(random, f"dropout_{suffix}")(put(host), rate, 12, 34, scale))
    expected = random.dropout_reference(host, rate, 12, 34, scale)
    np.testing.assert_array_equal(y == 0, expected == 0)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_dropped_nan_is_gone(suffix, put, get):
    y = get(getattr(random, f"dropout_{suffix}")(put(np.full(30, np.nan)), 0.5, 0, 0))
    np.testing.assert_array_equal(np.isnan(y), random.random_bits_reference(0, 0, 30) >= 2**31)


def test_statistics():
    size = 1 << 18
    kept = random.dropout_cpu(np.ones(size, np.float32), 0.7, 3, 4, 1.0).mean()
    assert abs(kept - 0.3) < 2 * size**-0.5


def test_large_cpu_arrays_equal_the_reference():
    x = np.ones(10_003, np.float32)
    np.testing.assert_array_equal(random.dropout_cpu(x, 0.4, 5, 6, 1.0), random.dropout_reference(x, 0.4, 5, 6, 1.0))


def test_arguments_out_of_range(suffix, put):
    for key, counter in [(-1, 0), (0, 2**64)]:
        with pytest.raises(ValueError, match=r"not in \[0, 2\*\*64\)"):
            getattr(random, f"dropout_{suffix}")(put(np.ones(4)), 0.5, key, counter)
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"dropout: rate {rate} is not in \[0, 1\)"):
            getattr(random, f"dropout_{suffix}")(put(np.ones(3)), rate, 0, 0)
    with pytest.raises(ValueError, match=r"x \(4,\), out \(3,\) do not match"):
        getattr(random, f"dropout_{suffix}")(put(np.ones(4)), 0.5, 0, 0, out=put(np.ones(3)))


def test_out_is_used(suffix, put, get):
    x, out, drop = put(np.ones(5)), put(np.zeros(5)), getattr(random, f"dropout_{suffix}")
    assert drop(x, 0.5, 1, 2, out=out) is out
    np.testing.assert_array_equal(get(out), get(drop(x, 0.5, 1, 2)))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the name of the instruction is that of x86")
def test_the_cpu_loop_is_vectorised():
    """The loop takes seven times as long if LLVM does not vectorise it."""
    loop = numba.njit("void(i4[::1], u8, u8, u8, f4, i8, f4[::1], f4[::1])", error_model="numpy")(random._drop.__wrapped__)
    assert "pmuludq" in next(iter(loop.inspect_asm().values()))
