"""float16 and bfloat16: each instruction against exact rounding; pairs against their elements."""

import math

import numpy as np
import pytest

from tests.kernels.ptx.handwritten import each
from tests.kernels.ptx.rounding import expected, floats, some

KINDS = {"f16": np.float16, "bf16": np.uint16}
EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma.rn": lambda a, b, c: a * b + c,
    "neg": lambda a: -a,
    "abs": abs,
    "min": lambda a, b: np.fmin(a, b) if isinstance(a, float) else min(a, b),
    "max": lambda a, b: np.fmax(a, b) if isinstance(a, float) else max(a, b),
}


def sources(function, kind):
    count = function.__code__.co_argcount if hasattr(function, "__code__") else 1
    found = [some(kind, 700, seed) for seed in range(3)]
    found[1], found[2] = np.roll(found[1], 3), np.roll(found[2], 7)
    return found[:count]


def same(found, kind, wanted):
    """Equal floats; zeros have a sign if the exact value has one."""
    np.testing.assert_array_equal(floats(found, kind), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXACT)
def test_halves_round_once(name, kind):
    given = sources(EXACT[name], kind)
    registers = ", ".join(f"%rs{11 + k}" for k in range(len(given)))
    found = each(f"{name}.{kind} %rs1, {registers};", np.zeros(given[0].size, KINDS[kind]), *given)
    if kind == "bf16":
        wanted = expected(EXACT[name], kind, "rn", *given)
    else:  # all values are exact in float64, and NumPy's conversion from it rounds once
        with np.errstate(all="ignore"):
            functions = {"min": np.fmin, "max": np.fmax}
            wanted = (
                functions.get(name, EXACT[name])(*(g.astype(np.float64) for g in given)).astype(np.float16).astype(np.float64)
            )
            if name == "fma.rn":
                wanted = expected(EXACT[name], kind, "rn", *given)
    same(found, kind, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma.rn", "neg", "abs", "min", "max", "min.NaN", "fma.rn.relu"])
def test_pairs_are_their_elements(name, kind):
    function = EXACT.get(name) or EXACT[name.rpartition(".")[0]]
    given = [g[: g.size // 2 * 2] for g in sources(function, kind)]
    count = len(given)
    one = each(
        f"{name}.{kind} %rs1, {', '.join(f'%rs{11 + k}' for k in range(count))};", np.zeros(given[0].size, KINDS[kind]), *given
    )
    packed = [np.ascontiguousarray(g).view(np.uint32) for g in given]
    two = each(
        f"{name}.{kind}x2 %r1, {', '.join(f'%r{11 + k}' for k in range(count))};", np.zeros(packed[0].size, np.uint32), *packed
    )
    np.testing.assert_array_equal(two, one.view(np.uint32))


@pytest.mark.parametrize("name", ["min", "max"])
def test_nan_and_zeros_of_minima(name):
    """Of NaN and a number it is the number, with .NaN it is NaN; -0 is below +0."""
    a = np.array([0x7FC0, 0x3F80, 0x8000, 0x0000], np.uint16)
    b = np.array([0x3F80, 0xFFC1, 0x0000, 0x8000], np.uint16)
    zero = 0x8000 if name == "min" else 0
    np.testing.assert_array_equal(
        each(f"{name}.bf16 %rs1, %rs11, %rs12;", np.zeros(4, np.uint16), a, b), [0x3F80, 0x3F80, zero, zero]
    )
    found = each(f"{name}.NaN.bf16 %rs1, %rs11, %rs12;", np.zeros(4, np.uint16), a, b)
    np.testing.assert_array_equal(found, [0x7FFF, 0x7FFF, zero, zero])


def test_relu_and_saturation():
    x = np.array([-2, -0.0, 0.25, 3, np.nan, -np.inf, np.inf], np.float16)
    one = np.ones(7, np.float16)
    relu = each("fma.rn.relu.f16 %rs1, %rs11, %rs12, 0;", np.zeros(7, np.float16), x, one)
    np.testing.assert_array_equal(relu, np.array([0, 0, 0.25, 3, np.nan, 0, np.inf], np.float16))
    saturated = each("add.sat.f16 %rs1, %rs11, 0;", np.zeros(7, np.float16), x)
    np.testing.assert_array_equal(saturated, np.array([0, 0, 0.25, 1, 0, 0, 1], np.float16))


def test_approximate_functions_of_halves():
    x = np.linspace(-4, 4, 81).astype(np.float16)
    for name, function in (("ex2", np.exp2), ("tanh", np.tanh)):
        found = each(f"{name}.approx.f16 %rs1, %rs11;", np.zeros(81, np.float16), x)
        np.testing.assert_allclose(found, function(x.astype(float)), rtol=2.0**-10)
    brain = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    found = each("tanh.approx.bf16 %rs1, %rs11;", np.zeros(81, np.uint16), brain)
    np.testing.assert_allclose(floats(found, "bf16"), np.tanh(floats(brain, "bf16")), rtol=2.0**-8)


@pytest.mark.parametrize("kind", KINDS)
def test_comparisons_of_halves(kind):
    a, b = some(kind, 300, 1), np.roll(some(kind, 300, 2), 1)
    a[:50] = b[:50]
    x, y = floats(a, kind), floats(b, kind)
    code = "setp.{0}.{1} %p1, %rs11, %rs12;\nselp.u32 %r1, 1, 0, %p1;"
    for name, holds in (
        ("lt", x < y),
        ("geu", ~(x < y)),
        ("ne", (x != y) & ~np.isnan(x) & ~np.isnan(y)),
        ("nan", np.isnan(x) | np.isnan(y)),
    ):
        np.testing.assert_array_equal(each(code.format(name, kind), np.zeros(a.size, np.uint32), a, b), holds)
    one = each(f"set.eq.{kind}.{kind} %rs1, %rs11, %rs12;", np.zeros(a.size, a.dtype), a, b)
    np.testing.assert_array_equal(floats(one, kind), x == y)


def test_comparisons_of_pairs_give_two_predicates():
    a, b = np.array([1, 5, 2, 2], np.float16).view(np.uint32), np.array([3, 3, 2, np.nan], np.float16).view(np.uint32)
    code = "setp.le.f16x2 %p1|%p2, %r11, %r12;\nselp.u32 %r1, 1, 0, %p1;\n@%p2 add.u32 %r1, %r1, 2;"
    np.testing.assert_array_equal(each(code, np.zeros(2, np.uint32), a, b), [1, 1])
    found = each("set.le.f16x2.f16x2 %r1, %r11, %r12;", np.zeros(2, np.uint32), a, b)
    np.testing.assert_array_equal(found.view(np.float16), [1, 0, 1, 0])


def test_atomics_of_halves():
    """Threads add their numbers to one place each pair of them shares."""
    from tests.kernels.ptx.handwritten import run

    found = np.zeros(2, np.float16)
    run("mov.b16 %rs1, 0x3C00;\natom.global.add.noftz.f16 %rs2, [%rd0+2], %rs1;", found, threads=40)
    np.testing.assert_array_equal(found, [0, 40])
    found = np.array([0.5, 0], np.float16)
    run("mov.b32 %r1, 0x3C004000;\nred.global.add.noftz.f16x2 [%rd0], %r1;", found, threads=10)
    np.testing.assert_array_equal(found, [20.5, 10])
    assert math.isfinite(found[0])
