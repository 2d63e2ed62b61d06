"""What Numba compiles: numbers of all kinds, records, memory of all kinds, and debug mode, against NumPy."""

import cmath
import math

import numba
import numpy as np
import pytest
from numba import types

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, driverless

compiler = pytest.importorskip("numba.cuda.compiler")
pytestmark = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
cuda = declare.cuda
N = 40
RNG = np.random.default_rng(0)
Z = RNG.standard_normal(N) + 1j * RNG.standard_normal(N)
X, K = RNG.standard_normal(N), RNG.integers(-1000, 1000, N)


def compiled(function, signature, **options):
    """A program of a Python function, as @cuda.jit compiles it."""
    with driverless.compiling_for((8, 0)):
        texts, _ = compiler.compile_all(function, signature, device=False, abi="numba", output="ptx", cc=(8, 0), **options)
    return ptx.parse("\n".join(text.decode() if isinstance(text, bytes) else text for text in texts))


def launched(function, signature, *arguments, block=32, **options):
    program = compiled(function, signature, **options)
    ptx.run(program, (-(-N // block),), (block,), arguments, name=function.__name__)


# --- complex numbers --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["c16", "c8"])
def test_complex_numbers(dtype):
    """Arrays of them, and one as an argument."""

    def combined(x, y, s, z):
        i = cuda.grid(1)
        if i < x.size:
            z[i] = (x[i] * y[i] + x[i] / y[i] - s) * abs(x[i]) + x[i].conjugate() * y[i].real

    x, y = Z.astype(dtype), Z[::-1].astype(dtype)
    z = np.zeros(N, dtype)
    launched(combined, f"void({dtype}[::1], {dtype}[::1], {dtype}, {dtype}[::1])", x, y, 2 - 1j, z)
    expected = (x * y + x / y - (2 - 1j)) * abs(x) + x.conj() * y.real
    np.testing.assert_allclose(z, expected, rtol=1e-5 if dtype == "c8" else 1e-13)


@pytest.mark.parametrize("name", ["exp", "sqrt", "tan"])
def test_functions_of_complex_numbers(name):
    function = getattr(cmath, name)

    def mapped(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i])

    y = np.zeros(N, complex)
    launched(mapped, "void(c16[::1], c16[::1])", Z, y)
    np.testing.assert_allclose(y, getattr(np, name)(Z), rtol=1e-14)


# --- records ----------------------------------------------------------------------------------------------------------
FIELDS = [("a", "i4"), ("b", "f8"), ("c", "u1"), ("d", "i2"), ("f", "f4", (3,))]
PACKED = [("b", "f8"), ("f", "f4", (3,)), ("a", "i4"), ("d", "i2"), ("c", "u1"), ("e", "u1", (5,))]  # 32 bytes


@pytest.mark.parametrize("fields, align", [(FIELDS, True), (PACKED, False)], ids=["aligned", "packed"])
def test_records(fields, align):
    """Fields are read and written, nested arrays as well. Numba compiles packed ones if each field is aligned."""
    dtype = np.dtype(fields, align=align)
    kind = numba.from_dtype(dtype)

    def changed(x, y):
        i = cuda.grid(1)
        if i < x.size:
            x[i].a += 1
            x[i]["b"] *= 2
            x[i].d = x[i].c
            for k in range(3):
                x[i].f[k] = k + x[i].a
            y[i] = x[i]

    x = np.zeros(N, dtype)
    x["a"], x["b"], x["c"] = K, X, np.arange(N)
    expected, y = x.copy(), np.zeros(N, dtype)
    expected["a"] += 1
    expected["b"] *= 2
    expected["d"] = expected["c"]
    expected["f"] = expected["a"][:, None] + np.arange(3)
    launched(changed, types.void(kind[::1], kind[::1]), x, y)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, expected)


def test_a_single_record_as_an_argument():
    dtype = np.dtype(FIELDS, align=True)

    def read(x, y):
        i = cuda.grid(1)
        if i == 0:
            x.a = 5
        if i < y.size:
            y[i] = x.b

    x, y = np.zeros(3, dtype), np.zeros(N)
    x["b"] = 1, 2, 3
    launched(read, types.void(numba.from_dtype(dtype), numba.float64[::1]), x[1], y)
    np.testing.assert_array_equal(y, 2)
    np.testing.assert_array_equal(x["a"], [0, 5, 0])


def test_random_states():
    """The states of numba.cuda.random, and its uniform and normal numbers, are those of its functions on the host."""
    from numba.cuda import random

    def drawn(states, uniform, normal):
        i = cuda.grid(1)
        if i < uniform.size:
            uniform[i] = random.xoroshiro128p_uniform_float64(states, i)
            normal[i] = random.xoroshiro128p_normal_float64(states, i)

    def once(s0, s1):
        """Blackman and Vigna, Scrambled linear pseudorandom number generators, 2018: xoroshiro128+ 1.0."""
        total, mask = (s0 + s1) % 2**64, 2**64 - 1
        s1 ^= s0
        turned = [(x << k | x >> 64 - k) & mask for x, k in ((s0, 55), (s1, 36))]
        return total, turned[0] ^ s1 ^ s1 << 14 & mask, turned[1]

    states = np.zeros(N, random.xoroshiro128p_dtype)
    states["s0"], states["s1"] = RNG.integers(1, 2**63, (2, N))
    before, uniform, normal = states.copy(), np.zeros(N), np.zeros(N)
    launched(drawn, types.void(random.xoroshiro128p_type[::1], types.float64[::1], types.float64[::1]), states, uniform, normal)
    for i in range(N):
        s0, s1, numbers = int(before[i]["s0"]), int(before[i]["s1"]), []
        for _ in range(3):
            total, s0, s1 = once(s0, s1)
            numbers.append((total >> 11) * 2.0**-53)
        assert (int(states[i]["s0"]), int(states[i]["s1"])) == (s0, s1) and uniform[i] == numbers[0]
        expected = math.sqrt(-2 * math.log(numbers[1])) * math.cos(2 * math.pi * numbers[2])
        np.testing.assert_allclose(normal[i], expected, rtol=1e-5, atol=1e-6)  # of float32 numbers


# --- other arguments --------------------------------------------------------------------------------------------------
def test_dates_and_tuples():
    def late(x, y, by, z):
        i = cuda.grid(1)
        if i < x.size:
            z[i] = (x[i] - y) * by[0] + by[1]

    day, seconds = types.NPDatetime("s"), types.NPTimedelta("s")
    x = np.arange(N).astype("M8[s]")
    z = np.zeros(N, "m8[s]")
    by = (3, np.timedelta64(5, "s"))
    launched(
        late, types.void(day[::1], day, types.Tuple((types.int64, seconds)), seconds[::1]), x, np.datetime64(7, "s"), by, z
    )
    np.testing.assert_array_equal(z, (x - np.datetime64(7, "s")) * 3 + by[1])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "b1"])
def test_small_integers(dtype):
    def moved(x, s, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] if x[i] > s else s

    x = K.astype("?" if dtype == "b1" else dtype)
    y = np.zeros_like(x)
    launched(moved, f"void({dtype}[::1], {dtype}, {dtype}[::1])", x, x.dtype.type(1), y)
    np.testing.assert_array_equal(y, np.maximum(x, x.dtype.type(1)))


# --- memory -----------------------------------------------------------------------------------------------------------
def test_dynamic_shared_memory():
    """Arrays of no size share it, and its size can be asked for."""

    def turned(x, y):
        numbers, places = cuda.shared.array(0, numba.float32), cuda.shared.array(0, numba.int32)[32:]
        t = cuda.threadIdx.x
        numbers[t], places[t] = x[t], 31 - t
        cuda.syncthreads()
        y[t] = numbers[places[t]]

    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    program = compiled(turned, "void(f4[::1], f4[::1])")
    ptx.run(program, (1,), (32,), [x, y], dynamic=256)
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(ptx.PtxError, match=r"shared out of bounds: byte \d+ of 200"):
        ptx.run(program, (1,), (32,), [x, y], dynamic=200)


def test_constant_and_local_memory():
    table, dtype = X.copy(), np.dtype([("a", "i8"), ("b", "f8")])
    records = np.array([(i, i / 2) for i in range(4)], dtype)

    def looked_up(y):
        constants, others = cuda.const.array_like(table), cuda.const.array_like(records)
        own = cuda.local.array(7, numba.float64)
        i = cuda.grid(1)
        if i < y.size:
            for k in range(7):
                own[(3 * k + i) % 7] = constants[(i + k) % 40]
            y[i] = own[i % 7] + others[i % 4].b + table[39 - i]

    y = np.zeros(N)
    launched(looked_up, "void(f8[::1])", y)
    np.testing.assert_array_equal(y, table + np.arange(N) % 4 / 2 + table[::-1])


# --- debug mode -------------------------------------------------------------------------------------------------------
def test_exceptions_in_debug_mode():
    """The code of the exception, and the thread and block of the first one, are in the module's variables."""

    def checked(x, y):
        i = cuda.grid(1)
        if i < x.size:
            if x[i] > 30:
                raise ValueError("too large")
            y[i] = 100 // x[i]

    program = compiled(checked, "void(i8[::1], i8[::1])", debug=True, opt=False)
    fine, tables = np.arange(1, 25), {}
    y = np.zeros(24, np.int64)
    ptx.run(program, (1,), (32,), [fine, y], tables=tables)
    np.testing.assert_array_equal(y, 100 // fine)
    (code,) = (name for name in tables if name.endswith("__errcode__"))
    assert tables[code].view(np.int32)[0] == 0
    ptx.run(program, (2,), (32,), [np.full(N, 31), np.zeros(N, np.int64)], tables=tables)
    assert tables[code].view(np.int32)[0] != 0
    places = {
        name.rpartition("__")[0].rpartition("__")[2]: int(v.view(np.int32)[0]) for name, v in tables.items() if "id" in name
    }
    assert set(places) >= {"tidx", "ctaidx"} and 0 <= places["tidx"] < 32 and 0 <= places["ctaidx"] < 2


def test_device_functions_in_debug_mode():
    """Nothing is inlined, and all numbers are in local memory."""

    @cuda.jit(device=True, debug=True, opt=False)
    def poly(x, n):
        total = 0.0
        for k in range(n):
            total = total * x + k
        return total

    def mapped(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = poly(x[i], 5) + math.sin(x[i])

    y = np.zeros(N)
    launched(mapped, "void(f8[::1], f8[::1])", X, y, debug=True, opt=False)
    np.testing.assert_allclose(y, X**3 + 2 * X**2 + 3 * X + 4 + np.sin(X), rtol=1e-12)
