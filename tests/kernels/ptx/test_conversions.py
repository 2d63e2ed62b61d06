"""cvt between all types, in all rounding modes, against exact rounding with fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from numbanet_kernels.ptx import PtxError
from tests.kernels.ptx.handwritten import each
from tests.kernels.ptx.rounding import DTYPES, MODES, expected, floats, rounded, some

INTEGERS = {"s16": np.int16, "u16": np.uint16, "s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64}


def register(dtype, k):
    size, floating = np.dtype(dtype).itemsize, np.dtype(dtype).kind == "f"
    return {2: "%rs", 4: "%f" if floating else "%r", 8: "%fd" if floating else "%rd"}[size] + str(k)


def converted(to, source, x, modifiers):
    """x converted by cvt.modifiers.to.source"""
    dtype = {**DTYPES, **INTEGERS}[to]
    code = f"cvt.{modifiers}{'.' if modifiers else ''}{to}.{source} {register(dtype, 1)}, {register(x.dtype, 11)};"
    return each(code, np.zeros(x.size, dtype), x)


def integers(kind, n=300):
    """Integers of all sizes, and some halfway between floats."""
    info, rng = np.iinfo(INTEGERS[kind]), np.random.default_rng(1)
    sizes = [int(x) for x in rng.integers(0, 1 << 16, n)] + [(1 << k) + d for k in range(5, 63) for d in (-1, 0, 1)]
    sizes += [(1 << k + b) + (1 << k - 1) + d for b in (11, 24, 53) for k in range(1, 63 - b) for d in (-1, 0, 1)]
    found = {x for s in sizes for x in (s, -s, info.min, info.max) if info.min <= x <= info.max}
    return np.array(sorted(found), INTEGERS[kind])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to, source", [("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32"), ("bf16", "f64")])
def test_floats_become_narrower(to, source, mode):
    if to == "bf16" and mode in ("rm", "rp"):
        pytest.skip("PTX has no such instruction")
    x = some(source, 600)
    if source == "f64":  # a little more or less than halfway between two numbers, which a float32 in between would not show
        tie = 1 + 2.0 ** -{"f16": 11, "f32": 24, "bf16": 8}[to]
        x = np.concatenate([x, [tie, tie * (1 + 2.0**-50), tie * (1 - 2.0**-50), -tie * (1 + 2.0**-50)]])
    np.testing.assert_array_equal(floats(converted(to, source, x, mode), to), expected(lambda a: a, to, mode, x, of=source))


@pytest.mark.parametrize("to, source", [("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16")])
def test_floats_become_wider(to, source):
    x = some(source, 600)
    np.testing.assert_array_equal(converted(to, source, x, ""), floats(x, source))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to", ["f16", "f32", "f64"])
@pytest.mark.parametrize("source", ["s16", "u32", "s64", "u64"])
def test_integers_become_floats(to, source, mode):
    x = integers(source)
    wanted = [rounded(Fraction(int(v)), to, mode) for v in x]
    np.testing.assert_array_equal(floats(converted(to, source, x, mode), to), wanted)


@pytest.mark.parametrize("mode, function", [("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)])
@pytest.mark.parametrize("source", ["f16", "f32", "f64", "bf16"])
@pytest.mark.parametrize("to", ["s16", "u32", "s64"])
def test_floats_become_integers(to, source, mode, function):
    x = (
        np.concatenate([some(source, 200), (np.arange(-40, 40) / 4).astype(DTYPES[source])])
        if source != "bf16"
        else some(source, 300)
    )
    info = np.iinfo(INTEGERS[to])

    def one(v):
        if math.isnan(v):
            return 0 if source != "f64" and to != "s64" else info.min or info.max // 2 + 1
        return min(max(function(v), info.min), info.max) if math.isfinite(v) else info.max if v > 0 else info.min

    np.testing.assert_array_equal(converted(to, source, x, mode), [one(float(v)) for v in floats(x, source)])


@pytest.mark.parametrize("to, kind", [("f16x2", "f16"), ("bf16x2", "bf16")])
def test_two_floats_become_a_pair(to, kind):
    """The first source becomes the upper half."""
    a, b = some("f32", 200, 1), some("f32", 200, 2)
    found = each(f"cvt.rn.{to}.f32 %r1, %f11, %f12;", np.zeros(a.size, np.uint32), a, b)
    for half, x in ((found & 0xFFFF, b), (found >> 16, a)):
        bits = half.astype(np.uint16).view(DTYPES[kind])
        np.testing.assert_array_equal(floats(bits, kind), expected(lambda v: v, kind, "rn", x, of="f32"))


def test_modifiers_of_conversions():
    x = np.array([-3, 0.3, 7, np.nan, 1e-40, -1e-40], np.float32)
    np.testing.assert_array_equal(converted("f16", "f32", x, "rn.relu")[:4], np.array([0, 0.3, 7, np.nan], np.float16))
    np.testing.assert_array_equal(
        each("cvt.sat.f32.f32 %f1, %f11;", np.zeros(6, np.float32), x)[:4], np.array([0, 0.3, 1, 0], np.float32)
    )
    np.testing.assert_array_equal(each("cvt.ftz.f64.f32 %fd1, %f11;", np.zeros(6), x)[4:], [0, 0])
    np.testing.assert_array_equal(each("cvt.rpi.ftz.f32.f32 %f1, %f11;", np.zeros(6, np.float32), x)[:3], [-3, 1, 7])
    y = np.array([-300, 300, 5, 70000], np.int32)
    np.testing.assert_array_equal(each("cvt.sat.s16.s32 %rs1, %r11;", np.zeros(4, np.int16), y), [-300, 300, 5, 32767])
    np.testing.assert_array_equal(each("cvt.sat.u8.s32 %r1, %r11;", np.zeros(4, np.uint32), y), [0, 255, 5, 255])
    np.testing.assert_array_equal(each("cvt.s8.s32 %r1, %r11;", np.zeros(4, np.int32), y), [-44, 44, 5, 112])


def test_only_float32_is_flushed_in_conversions():
    """PTX ISA, "cvt": .ftz is for inputs and results of that type."""
    small = np.array([1e-40, -1e-40, 1e-6, 3e-5, 1], np.float32)
    half = small.astype(np.float16)
    assert (0 < np.abs(half[2])) and np.abs(half[2]) < np.finfo(np.float16).tiny
    np.testing.assert_array_equal(converted("f16", "f32", small, "rn.ftz"), half)
    np.testing.assert_array_equal(converted("f32", "f16", half, "ftz"), half.astype(np.float32))
    np.testing.assert_array_equal(converted("f64", "f32", small, "ftz"), [0, -0.0, *np.float64(small[2:])])
    np.testing.assert_array_equal(converted("f32", "f64", np.array([1e-40, 1e-310, 2]), "rn.ftz"), np.float32([0, 0, 2]))
    np.testing.assert_array_equal(converted("s32", "f32", small, "rpi.ftz"), [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(converted("s32", "f32", small, "rpi"), [1, 0, 1, 1, 1])
    np.testing.assert_array_equal(converted("s32", "f32", small, "rmi.ftz"), [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(converted("s32", "f16", half, "rpi"), [0, 0, 1, 1, 1])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("mode", ["rn", "rz", "rna"])
def test_float32_becomes_tf32(mode, relu):
    if mode == "rna" and relu:
        pytest.skip("PTX has no such instruction")
    steps = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x2FFF, 0x3001], np.uint32)
    starts = np.array([0x3F800000, 0x00000000, 0x7F7FE000 - 0x4000, 0x00802000, 0x46000000], np.uint32)
    x = np.concatenate([(starts[:, None] + steps).ravel().view(np.float32), some("f32", 600), np.float32([np.inf, 0])])
    x = np.concatenate([x, -x, np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)])
    found = each(f"cvt.{mode}{'.relu' * relu}.tf32.f32 %r1, %f11;", np.zeros(x.size, np.uint32), x)
    assert not (found[~np.isnan(x)] & 0x1FFF).any()  # NaN is the canonical one

    def expected(v):
        if not math.isfinite(v):
            return max(v, 0.0) if relu else v
        unit = 2.0 ** (max(math.frexp(v)[1], -125) - 11)
        number, rest = divmod(abs(Fraction(v)) / Fraction(unit), 1)
        up = rest > Fraction(1, 2) or rest == Fraction(1, 2) and (mode == "rna" or number % 2)
        value = math.copysign(float((number + (up and mode != "rz")) * Fraction(unit)), v)
        value = value if abs(value) < 2.0**128 else math.copysign(math.inf, v)
        return max(value, 0.0) if relu else value

    np.testing.assert_array_equal(found.view(np.float32), [expected(float(v)) for v in x])


@pytest.mark.parametrize("modifiers", ["", "rna.relu.", "rm.", "rn.satfinite.", "rn.ftz.", "rni."])
def test_conversions_to_tf32_that_ptx_does_not_have_are_refused(modifiers):
    with pytest.raises(PtxError, match=r"line \d+.*cvt\."):
        each(f"cvt.{modifiers}tf32.f32 %r1, %f11;", np.zeros(1, np.uint32), np.ones(1, np.float32))
