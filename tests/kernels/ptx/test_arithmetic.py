"""Arithmetic of the PTX machine against exact numbers, Python's integers and NumPy."""

import fractions
import math

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.ptx import arithmetic as A
from numbanet_kernels.ptx.parse import parse
from numbanet_kernels.runtime import fused
from tests.kernels.ptx import rounding as exactly
from tests.kernels.ptx.handwritten import each

F = np.float32


@pytest.fixture(params=["numpy", "compiled"])
def fma(request, monkeypatch):
    """The fused multiply-add, in NumPy and compiled."""
    monkeypatch.setattr(A, "FUSED", fused.FUSED if request.param == "compiled" else {})
    return A.fma


def nearest(exact, rounding):
    """The float32 that an exact number is rounded to."""
    with np.errstate(over="ignore"):
        middle = F(float(exact))
    around = sorted({middle, np.nextafter(middle, F(-np.inf)), np.nextafter(middle, F(np.inf))})
    around = [x for x in around if np.isfinite(x)]
    below = [x for x in around if fractions.Fraction(float(x)) <= exact]
    above = [x for x in around if fractions.Fraction(float(x)) >= exact]
    if rounding == "rm" or (rounding == "rz" and exact >= 0):
        return below[-1]
    if rounding == "rp" or rounding == "rz":
        return above[0]
    return min(around, key=lambda x: (abs(fractions.Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def awkward(rng, n):
    """Float32 numbers of all sizes, many of them near to cancelling and on ties."""
    values = rng.standard_normal(n) * 2.0 ** rng.integers(-30, 30, n)
    values[::3] = rng.integers(-4, 5, values[::3].size) * 2.0 ** rng.integers(-26, 26, values[::3].size)
    values[::7] *= 2.0**-120
    return values.astype(F)


@pytest.mark.parametrize("rounding", A.ROUNDINGS)
def test_fma_add_mul_round_once(rng, rounding, fma):
    a, b, c = (awkward(rng, 3000) for _ in range(3))
    c[::2] = -(a * b)[::2] * (1 + rng.integers(-2, 3, 1500) * F(2) ** -23)
    exact = [fractions.Fraction(float(x)) for x in np.concatenate([a, b, c])]
    x, y, z = exact[:3000], exact[3000:6000], exact[6000:]
    close = np.isfinite(a * b + c)
    found = fma(a, b, c, rounding)
    expected = [nearest(p * q + r, rounding) for p, q, r in zip(x, y, z)]
    np.testing.assert_array_equal(found[close], np.array(expected, F)[close])
    total = np.empty(512, F)
    each(f"add.{rounding}.f32 %f1, %f11, %f12;", total, a[:512], c[:512])
    np.testing.assert_array_equal(total, [nearest(p + r, rounding) for p, r in zip(x[:512], z[:512])])


def test_fma_of_float64_rounds_once(fma):
    a, b, c = (exactly.some("f64", seed=seed) for seed in range(3))
    with np.errstate(all="ignore"):
        c[1::2] = -(a * b)[1::2] * (1 + np.arange(c[1::2].size) % 5 * 2.0**-52)  # it cancels nearly all
        found = fma(a, b, c, dtype=np.dtype("f8"))
    wanted = exactly.expected(lambda x, y, z: x * y + z, "f64", "rn", a, b, c)
    finite = np.isfinite(a) & np.isfinite(b)
    np.testing.assert_array_equal(found, np.where(finite & np.isinf(c), c, wanted))


def test_fma_keeps_what_is_special(fma):
    inf, nan = F(np.inf), F(np.nan)
    a, b, c = (np.array(v, F) for v in ([inf, 0, nan, 1e38, -0.0], [2, inf, 1, 10, 5], [1, 1, 1, 0, -0.0]))
    with np.errstate(all="ignore"):
        found = fma(a, b, c)
    np.testing.assert_array_equal(found, np.array([inf, nan, nan, inf, -0.0], F))
    assert np.signbit(found[4])


INTEGERS = np.array([0, 1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 - 7], np.uint32)


def signed(x):
    return x - 2**32 if x >= 2**31 else x


def with_carry(a, b):
    """The upper half of a b + b + (7 << 32), of signed numbers."""
    product = signed(a) * signed(b)
    return (product >> 32) + (product % 2**32 + b >> 32) + 7


@pytest.mark.parametrize(
    "code, expected",
    [
        ("div.s32 %r1, %r11, %r12;", lambda a, b: int(math.trunc(fractions.Fraction(signed(a), signed(b)))) if b else -1),
        ("rem.s32 %r1, %r11, %r12;", lambda a, b: int(math.fmod(signed(a), signed(b))) if b else a),
        ("div.u32 %r1, %r11, %r12;", lambda a, b: a // b if b else -1),
        ("rem.u32 %r1, %r11, %r12;", lambda a, b: a % b if b else a),
        ("mul.hi.s32 %r1, %r11, %r12;", lambda a, b: signed(a) * signed(b) >> 32),
        ("mul.hi.u32 %r1, %r11, %r12;", lambda a, b: a * b >> 32),
        ("mul.lo.s32 %r1, %r11, %r12;", lambda a, b: a * b),
        ("mad.lo.s32 %r1, %r11, %r12, 5;", lambda a, b: a * b + 5),
        ("shl.b32 %r1, %r11, %r12;", lambda a, b: a << min(b, 32)),
        ("shr.u32 %r1, %r11, %r12;", lambda a, b: a >> min(b, 32)),
        ("shr.s32 %r1, %r11, %r12;", lambda a, b: signed(a) >> min(b, 32)),
        ("min.s32 %r1, %r11, %r12;", lambda a, b: min(signed(a), signed(b))),
        ("not.b32 %r1, %r11;", lambda a, b: ~a),
        ("neg.s32 %r1, %r11;", lambda a, b: -signed(a)),
        ("abs.s32 %r1, %r11;", lambda a, b: abs(signed(a))),
        ("clz.b32 %r1, %r11;", lambda a, b: 32 - a.bit_length()),
        ("popc.b32 %r1, %r11;", lambda a, b: bin(a).count("1")),
        ("brev.b32 %r1, %r11;", lambda a, b: int(f"{a:032b}"[::-1], 2)),
        ("bfe.u32 %r1, %r11, 4, 9;", lambda a, b: a >> 4 & 511),
        ("bfe.u32 %r1, %r11, 28, 9;", lambda a, b: a >> 28),
        ("bfe.s32 %r1, %r11, 5, 3;", lambda a, b: ((a >> 5 & 7) ^ 4) - 4),
        ("bfe.s32 %r1, %r11, 30, 9;", lambda a, b: signed(a) >> 30),
        ("bfi.b32 %r1, %r11, %r12, 8, 12;", lambda a, b: (b & ~(4095 << 8)) | (a & 4095) << 8),
        ("shf.l.wrap.b32 %r1, %r11, %r12, 35;", lambda a, b: ((b << 32 | a) << 3) >> 32),
        ("shf.r.clamp.b32 %r1, %r11, %r12, 5;", lambda a, b: (b << 32 | a) >> 5),
        ("prmt.b32 %r1, %r11, %r12, 0x7d10;", lambda a, b: (a & 0xFFFF) | (255 if b >> 15 & 1 else 0) << 16 | (b >> 24) << 24),
        (
            "lop3.b32 %r1, %r11, %r12, 0x0f0f, 0xE2;",
            lambda a, b: sum((0xE2 >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (0x0F0F >> k & 1)) & 1) << k for k in range(32)),
        ),
        ("prmt.b32 %r1, 0x89ABCDEF, %r11, 0x5140;", lambda a, b: 0x00CD00EF | (a & 255) << 8 | (a >> 8 & 255) << 24),
        ("lop3.b32 %r1, 15, %r11, %r12, 0x80;", lambda a, b: 15 & a & b),
        ("mad.hi.cc.s32 %r1, %r11, %r12, %r12;", lambda a, b: (signed(a) * signed(b) >> 32) + b),
        (
            "mad.hi.cc.s32 %r2, %r11, %r12, %r11;\naddc.u32 %r1, 0, 0;",
            lambda a, b: (signed(a) * signed(b) >> 32) % 2**32 + a >> 32,
        ),
        ("mad.lo.cc.s32 %r2, %r11, %r12, %r12;\nmadc.hi.s32 %r1, %r11, %r12, 7;", lambda a, b: with_carry(a, b)),
        (
            "cvt.s64.s32 %rd5, %r11;\ncvt.s64.s32 %rd6, %r12;\nmad.hi.cc.s64 %rd7, %rd5, %rd6, 3;\ncvt.u32.u64 %r1, %rd7;",
            lambda a, b: (signed(a) * signed(b) >> 64) + 3,
        ),
        ("mul.wide.u32 %rd5, %r11, %r12;\nshr.u64 %rd5, %rd5, 7;\ncvt.u32.u64 %r1, %rd5;", lambda a, b: a * b >> 7),
        (
            "cvt.s64.s32 %rd5, %r11;\ncvt.s64.s32 %rd6, %r12;\nmul.hi.s64 %rd7, %rd5, %rd6;\ncvt.u32.u64 %r1, %rd7;",
            lambda a, b: signed(a) * signed(b) >> 64,
        ),
        ("mov.b64 %rd5, {%r11, %r12};\nshr.u64 %rd5, %rd5, 16;\nmov.b64 {%r1, %r2}, %rd5;", lambda a, b: (b << 32 | a) >> 16),
        ("add.cc.u32 %r2, %r11, %r12;\naddc.u32 %r1, %r11, 0;", lambda a, b: a + (a + b >> 32)),
        ("sub.cc.u32 %r2, %r11, %r12;\nsubc.u32 %r1, %r12, 5;", lambda a, b: b - 5 - (a < b)),
        ("mad.lo.cc.u32 %r2, %r11, %r12, %r12;\nmadc.hi.u32 %r1, %r11, %r12, 7;", lambda a, b: (a * b + b >> 32) + 7),
        (
            "setp.lt.s32 %p1|%p2, %r11, %r12;\nselp.u32 %r1, 1, 2, %p1;\n@%p2 add.s32 %r1, %r1, 8;",
            lambda a, b: 1 if signed(a) < signed(b) else 10,
        ),
        (
            "setp.lt.u32 %p1, %r12, 9;\nsetp.lt.and.u32 %p1|%p2, %r11, %r12, %p1;\nselp.u32 %r1, 1, 2, %p1;\n"
            "@%p2 add.s32 %r1, %r1, 8;",
            lambda a, b: (1 if a < b < 9 else 2) + 8 * (b < 9 and a >= b),
        ),
    ],
)
def test_integers_equal_python(code, expected):
    a, b = (x.ravel() for x in np.meshgrid(INTEGERS, INTEGERS))
    found = each(code, np.zeros(a.size, np.uint32), a, b)
    np.testing.assert_array_equal(found, [expected(int(p), int(q)) % 2**32 for p, q in zip(a, b)])


FLOATS = np.array([0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, np.inf, -np.inf, np.nan, 1e-40, 3.25e-39, -7.7], F)


@pytest.mark.parametrize(
    "code, expected",
    [
        (
            "cvt.rni.s32.f32 %r1, %f11;",
            lambda x: np.nan_to_num(np.clip(np.rint(np.float64(x)), -(2.0**31), 2.0**31 - 1), nan=0),
        ),
        ("cvt.rzi.u32.f32 %r1, %f11;", lambda x: np.nan_to_num(np.clip(np.trunc(np.float64(x)), 0, 2.0**32 - 1), nan=0)),
        ("cvt.rmi.f32.f32 %f1, %f11;", np.floor),
        ("cvt.sat.f32.f32 %f1, %f11;", lambda x: np.nan_to_num(np.clip(x, 0, 1), nan=0)),
        ("add.ftz.f32 %f1, %f11, 0f00000000;", lambda x: np.where(np.abs(x) < 1.1754944e-38, 0, x)),
        ("ex2.approx.ftz.f32 %f1, %f11;", np.exp2),
        ("abs.f32 %f1, %f11;", np.abs),
        ("neg.f32 %f1, %f11;", np.negative),
        ("max.f32 %f1, %f11, 0f00000000;", lambda x: np.fmax(x, F(0))),
        ("sqrt.rn.f32 %f1, %f11;", np.sqrt),
        (
            "cvt.rna.tf32.f32 %r2, %f11;\nmov.b32 %f1, %r2;",
            lambda x: np.where(np.isfinite(x), (x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(F), x),
        ),
        ("cvt.rn.f16.f32 %rs1, %f11;\ncvt.f32.f16 %f1, %rs1;", lambda x: F(np.float16(x))),
        ("setp.ne.f32 %p1, %f11, %f11;\nselp.f32 %f1, 0f3F800000, 0f00000000, %p1;", lambda x: 0 * np.nan_to_num(x)),
        ("setp.neu.f32 %p1, %f11, %f11;\nselp.f32 %f1, 0f3F800000, 0f00000000, %p1;", lambda x: F(np.isnan(x))),
        ("copysign.f32 %f1, %f11, 0f40000000;", lambda x: np.copysign(F(2), x)),
    ],
)
def test_floats_equal_numpy(code, expected):
    with np.errstate(all="ignore"):
        wanted = expected(FLOATS)
        found = each(code, np.zeros(FLOATS.size, F if "%f1," in code else np.uint32), FLOATS)
    if found.dtype != F and "s32" in code:
        found = found.view(np.int32)
    np.testing.assert_array_equal(found, np.asarray(wanted).astype(found.dtype if found.dtype == F else np.float64))


@pytest.mark.parametrize("source", ["f2", "f4", "f8"])
@pytest.mark.parametrize("target", ["i4", "u4", "i8", "u8"])
def test_nan_as_an_integer(source, target):
    """The upper bit alone if either type has 64 bits, else 0 (PTX ISA, "cvt")."""
    kinds = [{"f": "f", "i": "s", "u": "u"}[name[0]] + str(8 * int(name[1])) for name in (target, source)]
    registers = "%r1" if "4" in target else "%rd1", {"f2": "%rs11", "f4": "%f11", "f8": "%fd11"}[source]
    found = each(f"cvt.rzi.{'.'.join(kinds)} {', '.join(registers)};", np.zeros(1, target), np.full(1, np.nan, source))
    wanted = np.array(1 << 8 * found.itemsize - 1 if "8" in source + target else 0, f"u{found.itemsize}")
    assert found.view(wanted.dtype) == wanted


def test_smaller_zero_is_the_minus_one():
    zeros, others = np.array([0.0, -0.0], F), np.array([-0.0, 0.0], F)
    assert np.signbit(each("min.f32 %f1, %f11, %f12;", np.zeros(2, F), zeros, others)).all()
    assert not np.signbit(each("max.f32 %f1, %f11, %f12;", np.zeros(2, F), zeros, others)).any()


def test_tables_in_global_and_constant_memory():
    text = """
        .version 8.0
        .target sm_80
        .address_size 64
        .global .align 4 .u32 squares[4] = {0, 1, 4, 9};
        .const .align 4 .f32 half = 0f3F000000;
        .visible .entry test(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u64 y, .param .u64 f,
                             .param .u64 g)
        {
            .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
            ld.param.u64 %rd1, [y];
            mov.u32 %r1, %tid.x;
            mov.u64 %rd2, squares;
            mad.wide.u32 %rd2, %r1, 4, %rd2;
            ld.global.u32 %r2, [%rd2];
            ld.global.u32 %r3, [squares+12];
            cvt.rn.f32.u32 %f1, %r2;
            cvt.rn.f32.u32 %f2, %r3;
            ld.const.f32 %f3, [half];
            fma.rn.f32 %f1, %f1, %f3, %f2;
            mad.wide.u32 %rd1, %r1, 4, %rd1;
            st.global.f32 [%rd1], %f1;
            ret;
        }
    """
    found = np.zeros(4, F)
    ptx.run(parse(text), (1,), (4,), [found])
    np.testing.assert_array_equal(found, np.arange(4) ** 2 / 2 + 9)
