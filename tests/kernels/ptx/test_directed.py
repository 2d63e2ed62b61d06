"""Arithmetic of float32 and float64 in all rounding modes, against fractions; carries and other integer instructions."""

import numpy as np
import pytest

from numbanet_kernels.ptx import PtxError
from tests.kernels.ptx.handwritten import each
from tests.kernels.ptx.rounding import MODES, expected, rounded, some

FUNCTIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
}
HELD = {"f32": ("%f", np.float32), "f64": ("%fd", np.float64)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_mode_rounds_once(name, kind, mode):
    count = FUNCTIONS[name].__code__.co_argcount
    given = [np.roll(some(kind, 150, seed), 5 * seed) for seed in range(count)]
    register, dtype = HELD[kind]
    operands = ", ".join(f"{register}{11 + k}" for k in range(count))
    found = each(f"{name}.{mode}.{kind} {register}1, {operands};", np.zeros(given[0].size, dtype), *given)
    with np.errstate(all="ignore"):
        wanted = expected(FUNCTIONS[name], kind, mode, *given).astype(dtype)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", HELD)
def test_square_roots_in_each_mode(kind, mode):
    """The result is on the right side of the exact root, and its neighbour is not."""
    from fractions import Fraction

    register, dtype = HELD[kind]
    x = np.abs(some(kind, 200))
    found = each(f"sqrt.{mode}.{kind} {register}1, {register}11;", np.zeros(x.size, dtype), x)
    for given, root in zip(x, found, strict=True):
        if not np.isfinite(given) or given == 0:
            np.testing.assert_array_equal(root, np.sqrt(given))
            continue
        below, above = (Fraction(float(np.nextafter(root, dtype(side)))) for side in (-np.inf, np.inf))
        exact, middle = Fraction(float(given)), Fraction(float(root))
        if mode in ("rz", "rm"):
            assert middle**2 <= exact < above**2
        elif mode == "rp":
            assert below**2 < exact <= middle**2
        else:
            assert ((below + middle) / 2) ** 2 <= exact <= ((above + middle) / 2) ** 2


@pytest.mark.parametrize("name, function", [("rcp", lambda x: 1 / x), ("rsqrt", lambda x: 1 / np.sqrt(x))])
def test_approximate_functions_of_float64_keep_its_range(name, function):
    """They have 20 bits, and the exponents of float64: those of libdevice's hypot begin with 1.8e308."""
    x = np.concatenate([np.geomspace(1e-300, 1.7e308, 200), [np.inf, 0.0, np.nan]])
    found = each(f"{name}.approx.ftz.f64 %fd1, %fd11;", np.zeros(x.size), x)
    with np.errstate(all="ignore"):
        wanted = np.where(np.abs(function(x)) < np.finfo(float).tiny, 0, function(x))
    np.testing.assert_allclose(found, wanted, rtol=2.0**-20)
    assert not (found[:200].view(np.uint64) & 0xFFFFFFFF).any()


def test_a_square_root_of_float64_with_subnormals_has_all_bits():
    """It is libdevice's rsqrt, of which the programming guide states an error of at most 1 ulp."""
    x = np.geomspace(1e-310, 1.7e308, 200)
    np.testing.assert_array_max_ulp(each("rsqrt.approx.f64 %fd1, %fd11;", np.zeros(x.size), x), 1 / np.sqrt(x), 1)


def test_the_reference_rounds_ties_to_even_and_overflows():
    from fractions import Fraction

    tie = Fraction(1) + Fraction(1, 2**24)
    assert rounded(tie, "f32", "rn") == 1 and rounded(tie, "f32", "rp") == 1 + 2**-23
    assert rounded(-tie, "f32", "rm") == -(1 + 2**-23) and rounded(Fraction(2**16), "f16", "rz") == 65504
    assert rounded(Fraction(1, 2**25), "f16", "rn") == 0 and rounded(Fraction(1, 2**25), "f16", "rp") == 2**-24


# --- integers ---------------------------------------------------------------------------------------------------------
RNG = np.random.default_rng(0)
A, B, C = (RNG.integers(0, 2**32, 200, dtype=np.uint32) for _ in range(3))
A[:4], B[:4] = (0, 2**31, 2**31 - 1, 2**32 - 1), (2**32 - 1, 2**31, 2**31 - 1, 1)
WIDE = RNG.integers(0, 2**64, (4, 200), dtype=np.uint64)
WIDE[:, :2] = 2**64 - 1


def signed(x, bits=32):
    return [int(v) - (1 << bits) * (int(v) >> bits - 1) for v in x]


def parts(x, count, kind):
    return np.ascontiguousarray(x).view(f"{kind}{4 // count}").reshape(-1, count).astype(object)


CASES = {
    "sad.u32 %r1, %r11, %r12, %r13": lambda: [abs(int(a) - int(b)) + int(c) for a, b, c in zip(A, B, C)],
    "sad.s32 %r1, %r11, %r12, %r13": lambda: [abs(a - b) + int(c) for a, b, c in zip(signed(A), signed(B), C)],
    "add.sat.s32 %r1, %r11, %r12": lambda: np.clip(np.add(signed(A), signed(B)), -(2**31), 2**31 - 1),
    "sub.sat.s32 %r1, %r11, %r12": lambda: np.clip(np.subtract(signed(A), signed(B)), -(2**31), 2**31 - 1),
    "mad.hi.sat.s32 %r1, %r11, %r12, %r13": lambda: np.clip(
        [(a * b >> 32) + c for a, b, c in zip(signed(A), signed(B), signed(C))], -(2**31), 2**31 - 1
    ),
    "min.relu.s32 %r1, %r11, %r12": lambda: np.maximum(np.minimum(signed(A), signed(B)), 0),
    "max.relu.s32 %r1, %r11, %r12": lambda: np.maximum(np.maximum(signed(A), signed(B)), 0),
    "mul24.lo.u32 %r1, %r11, %r12": lambda: [(int(a) % 2**24) * (int(b) % 2**24) for a, b in zip(A, B)],
    "mul24.hi.u32 %r1, %r11, %r12": lambda: [(int(a) % 2**24) * (int(b) % 2**24) >> 16 for a, b in zip(A, B)],
    "mad24.lo.s32 %r1, %r11, %r12, %r13": lambda: [
        a * b + int(c) for a, b, c in zip(signed(A % 2**24, 24), signed(B % 2**24, 24), C)
    ],
    "dp4a.u32.u32 %r1, %r11, %r12, %r13": lambda: (parts(A, 4, "u") * parts(B, 4, "u")).sum(axis=1) + C.astype(object),
    "dp4a.s32.u32 %r1, %r11, %r12, %r13": lambda: (parts(A, 4, "i") * parts(B, 4, "u")).sum(axis=1) + C.astype(object),
    "dp2a.lo.s32.s32 %r1, %r11, %r12, %r13": lambda: (
        (parts(A, 2, "i") * parts(B, 4, "i")[:, :2]).sum(axis=1) + C.astype(object)
    ),
    "dp2a.hi.u32.s32 %r1, %r11, %r12, %r13": lambda: (
        (parts(A, 2, "u") * parts(B, 4, "i")[:, 2:]).sum(axis=1) + C.astype(object)
    ),
    "cnot.b32 %r1, %r11": lambda: (A == 0).astype(int),
    "set.gt.u32.s32 %r1, %r11, %r12": lambda: [-(a > b) for a, b in zip(signed(A), signed(B))],
}


@pytest.mark.parametrize("code", CASES)
def test_integer_instructions(code):
    found = each(code + ";", np.zeros(200, np.uint32), A, B, C)
    np.testing.assert_array_equal(found, [int(v) % 2**32 for v in CASES[code]()])


def test_signs_are_changed_of_flushed_numbers():
    """A kernel with fastmath has these for abs(x) and -x."""
    x = np.array([1e-40, -1e-40, 0, -0.0, 2, -2, np.inf], np.float32)
    for name, wanted in (("abs", [0, 0, 0, 0, 2, 2, np.inf]), ("neg", [-0.0, 0, -0.0, 0, -2, 2, -np.inf])):
        found = each(f"{name}.ftz.f32 %f1, %f11;", np.zeros(x.size, np.float32), x)
        np.testing.assert_array_equal(found.view(np.uint32), np.array(wanted, np.float32).view(np.uint32))
        pairs = np.array([1e-7, -1e-7, 2, -2], np.float16).view(np.uint32)
        flushed = np.array([wanted[0], wanted[1], *wanted[4:6]], np.float16).view(np.uint32)
        np.testing.assert_array_equal(each(f"{name}.ftz.f16x2 %r1, %r11;", np.zeros(2, np.uint32), pairs), flushed)


@pytest.mark.parametrize(
    "code", ["atom.global.add.v2.f32 {%f1, %f2}, [%rd1], {%f3, %f4}", "red.global.add.v2.f32 [%rd1], {%f3, %f4}"]
)
def test_atomic_operations_of_vectors_are_refused(code):
    with pytest.raises(PtxError, match="this machine does not know this atomic operation"):
        each(code + ";", np.zeros(200, np.uint32), A)


@pytest.mark.parametrize("code", ["mad24.hi.sat.s32 %r1, %r11, %r12, %r13", "add.relu.s32 %r1, %r11, %r12"])
def test_modifiers_that_the_machine_lacks_are_refused(code):
    with pytest.raises(PtxError, match="this machine does not know the instruction"):
        each(code + ";", np.zeros(200, np.uint32), A, B, C)


@pytest.mark.parametrize("name", ["add", "sub"])
def test_carries_of_64_bits(name):
    """128 bits in two parts."""
    a, b, c, d = WIDE
    found = each(f"{name}.cc.u64 %rd2, %rd11, %rd13;\n{name}c.u64 %rd1, %rd12, %rd14;", np.zeros(200, np.uint64), a, b, c, d)
    sign = 1 if name == "add" else -1
    wanted = [(int(p) + (int(q) << 64) + sign * (int(r) + (int(s) << 64)) >> 64) % 2**64 for p, q, r, s in zip(a, b, c, d)]
    np.testing.assert_array_equal(found, np.array(wanted, np.uint64))


def test_products_with_carries():
    a, b, c, d = WIDE
    code = "mad.lo.cc.u64 %rd2, %rd11, %rd12, %rd13;\nmadc.hi.u64 %rd1, %rd11, %rd12, %rd14;"
    wanted = [(int(p) * int(q) + int(r) + (int(s) << 64) >> 64) % 2**64 for p, q, r, s in zip(a, b, c, d)]
    np.testing.assert_array_equal(each(code, np.zeros(200, np.uint64), a, b, c, d), np.array(wanted, np.uint64))


@pytest.mark.parametrize("test", ["finite", "infinite", "number", "notanumber", "normal", "subnormal"])
def test_classes_of_floats(test):
    x = some("f32", 100)
    tiny = np.finfo(np.float32).tiny
    wanted = {
        "finite": np.isfinite(x),
        "infinite": np.isinf(x),
        "number": ~np.isnan(x),
        "notanumber": np.isnan(x),
        "normal": np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": (np.abs(x) < tiny) & (x != 0),
    }[test]
    found = each(f"testp.{test}.f32 %p1, %f11;\nselp.u32 %r1, 1, 0, %p1;", np.zeros(x.size, np.uint32), x)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("name", ["add", "sub", "fma"])
def test_the_sign_of_a_sum_that_is_zero(name, kind, mode):
    """x - x is -0 if it is rounded down, else +0; the sum of two zeros of one sign keeps it."""
    register, dtype = HELD[kind]
    x, y = (np.array(v, dtype) for v in ([2, -2, 0, -0.0, 0, -0.0, 1], [-2, 2, 0, -0.0, -0.0, 0, 2]))
    given = {"add": (x, y), "sub": (x, -y), "fma": (x, np.ones(7, dtype), y)}[name]
    operands = ", ".join(f"{register}{11 + k}" for k in range(len(given)))
    found = each(f"{name}.{mode}.{kind} {register}1, {operands};", np.ones(7, dtype), *given)
    np.testing.assert_array_equal(found, [0] * 6 + [3])
    np.testing.assert_array_equal(np.signbit(found), np.array([mode == "rm"] * 2 + [0, 1] + [mode == "rm"] * 2 + [0], bool))
