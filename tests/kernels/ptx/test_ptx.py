"""The PTX machine: arithmetic against exact numbers, instructions of warps, and faults that it has to find."""
import fractions
import math

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.ptx import arithmetic as A, instructions
from numbanet_kernels.ptx.parse import Address, Number, parse
from numbanet_kernels.runtime import arrays, availability, declare, emulation
from tests.kernels.ptx.handwritten import each, kernel, run

F = np.float32
needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")


# --- parsing ----------------------------------------------------------------------------------------------------------
def test_parse_reads_what_an_instruction_is_made_of():
    body = "LOOP:\n@!%p1 ld.global.v2.f32 {%f1, %f2}, [%rd0+-8];\nmov.f32 %f3, 0f40490FDB;\n@%p2 bra LOOP;"
    program = kernel(body, shared=48)
    first = program.labels["LOOP"]
    load, move, branch = program.instructions[first:first + 3]
    assert load.guard == ("%p1", True) and load.opcode == "ld" and load.modifiers == ("global", "v2", "f32")
    assert load.operands == (("%f1", "%f2"), Address("%rd0", -8)) and move.operands[1] == Number(0x40490FDB, 4)
    assert branch.guard == ("%p2", False) and program.shared["room"].size == 48 and program.registers["%f39"] == "f32"
    assert program.parameters["p0_4"] == (32, "u64")


@pytest.mark.parametrize("text, problem", [
    ("", "no .entry"), (".version 8.0\n.visible .func f() { ret; }", "line 2: only one .entry"),
    (".entry f()\n{\n?what;\n}", "line 3: not understood")])
def test_what_is_not_understood_is_named_with_its_line(text, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        parse(text)


@pytest.mark.parametrize("code", [
    "wgmma.fence.sync.aligned;", "add.f16x2 %r1, %r2, %r3;", "add.bf16 %rs1, %rs2, %rs3;", "add.sat.s32 %r1, %r2, %r3;",
    "max.f32 %f1, %f2, %f3, %f4;", "bar.red.popc.u32 %r1, 0, 64, %p1;", "bar.arrive 0, 64;", "bar.sync 0, 64;",
    "cvt.rn.f16x2.f32 %r1, %f1, %f2;"])
def test_an_unknown_instruction_is_named(code):
    with pytest.raises(ptx.PtxError, match="this machine does not know|not in this machine"):
        run(code, np.zeros(1, F))


def test_decoding_that_was_broken_off_is_done_again(monkeypatch):
    def broken(*given):
        raise KeyboardInterrupt

    program, y = kernel("mov.u32 %r1, 3;\nst.global.u32 [%rd0], %r1;"), np.zeros(1, F)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(instructions, "_plain", broken)
        ptx.run(program, (1,), (1,), [y])
    ptx.run(program, (1,), (1,), [y])
    assert y.view(np.int32)[0] == 3


@pytest.mark.parametrize("arguments, problem", [
    (((1,), (1025,), [np.zeros(4, F)]), "a block of .1025,. has more than 1024 threads"),
    (((1, 65536), (1,), [np.zeros(4, F)]), "a grid of .1, 65536. has more"),
    (((1,), (1,), []), "has 7 parameters, got 0")])
def test_a_launch_that_a_card_refuses_is_refused(arguments, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        ptx.run(kernel(""), *arguments)


# --- arithmetic -------------------------------------------------------------------------------------------------------
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
def test_fma_add_mul_round_once(rng, rounding):
    a, b, c = (awkward(rng, 3000) for _ in range(3))
    c[::2] = -(a * b)[::2] * (1 + rng.integers(-2, 3, 1500) * F(2) ** -23)
    exact = [fractions.Fraction(float(x)) for x in np.concatenate([a, b, c])]
    x, y, z = exact[:3000], exact[3000:6000], exact[6000:]
    close = np.isfinite(a * b + c)
    found = A.fma(a, b, c, rounding)
    expected = [nearest(p * q + r, rounding) for p, q, r in zip(x, y, z)]
    np.testing.assert_array_equal(found[close], np.array(expected, F)[close])
    total = np.empty(512, F)
    each(f"add.{rounding}.f32 %f1, %f11, %f12;", total, a[:512], c[:512])
    np.testing.assert_array_equal(total, [nearest(p + r, rounding) for p, r in zip(x[:512], z[:512])])


def test_fma_keeps_what_is_special():
    inf, nan = F(np.inf), F(np.nan)
    a, b, c = (np.array(v, F) for v in ([inf, 0, nan, 1e38, -0.0], [2, inf, 1, 10, 5], [1, 1, 1, 0, -0.0]))
    with np.errstate(all="ignore"):
        found = A.fma(a, b, c)
    np.testing.assert_array_equal(found, np.array([inf, nan, nan, inf, -0.0], F))
    assert np.signbit(found[4])


INTEGERS = np.array([0, 1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 - 7], np.uint32)


def signed(x):
    return x - 2**32 if x >= 2**31 else x


@pytest.mark.parametrize("code, expected", [
    ("div.s32 %r1, %r11, %r12;", lambda a, b: int(math.trunc(fractions.Fraction(signed(a), signed(b)))) if b else -1),
    ("rem.s32 %r1, %r11, %r12;", lambda a, b: int(math.fmod(signed(a), signed(b))) if b else a),
    ("div.u32 %r1, %r11, %r12;", lambda a, b: a // b if b else -1),
    ("rem.u32 %r1, %r11, %r12;", lambda a, b: a % b if b else a),
    ("mul.hi.s32 %r1, %r11, %r12;", lambda a, b: signed(a) * signed(b) >> 32),
    ("mul.hi.u32 %r1, %r11, %r12;", lambda a, b: a * b >> 32), ("mul.lo.s32 %r1, %r11, %r12;", lambda a, b: a * b),
    ("mad.lo.s32 %r1, %r11, %r12, 5;", lambda a, b: a * b + 5), ("shl.b32 %r1, %r11, %r12;", lambda a, b: a << min(b, 32)),
    ("shr.u32 %r1, %r11, %r12;", lambda a, b: a >> min(b, 32)),
    ("shr.s32 %r1, %r11, %r12;", lambda a, b: signed(a) >> min(b, 32)),
    ("min.s32 %r1, %r11, %r12;", lambda a, b: min(signed(a), signed(b))), ("not.b32 %r1, %r11;", lambda a, b: ~a),
    ("neg.s32 %r1, %r11;", lambda a, b: -signed(a)), ("abs.s32 %r1, %r11;", lambda a, b: abs(signed(a))),
    ("clz.b32 %r1, %r11;", lambda a, b: 32 - a.bit_length()), ("popc.b32 %r1, %r11;", lambda a, b: bin(a).count("1")),
    ("brev.b32 %r1, %r11;", lambda a, b: int(f"{a:032b}"[::-1], 2)),
    ("bfe.u32 %r1, %r11, 4, 9;", lambda a, b: a >> 4 & 511), ("bfe.u32 %r1, %r11, 28, 9;", lambda a, b: a >> 28),
    ("bfe.s32 %r1, %r11, 5, 3;", lambda a, b: ((a >> 5 & 7) ^ 4) - 4),
    ("bfe.s32 %r1, %r11, 30, 9;", lambda a, b: signed(a) >> 30),
    ("bfi.b32 %r1, %r11, %r12, 8, 12;", lambda a, b: (b & ~(4095 << 8)) | (a & 4095) << 8),
    ("shf.l.wrap.b32 %r1, %r11, %r12, 35;", lambda a, b: ((b << 32 | a) << 3) >> 32),
    ("shf.r.clamp.b32 %r1, %r11, %r12, 5;", lambda a, b: (b << 32 | a) >> 5),
    ("prmt.b32 %r1, %r11, %r12, 0x7d10;", lambda a, b: (a & 0xFFFF) | (255 if b >> 15 & 1 else 0) << 16 | (b >> 24) << 24),
    ("lop3.b32 %r1, %r11, %r12, 0x0f0f, 0xE2;", lambda a, b: sum(
        (0xE2 >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (0x0F0F >> k & 1)) & 1) << k for k in range(32))),
    ("mul.wide.u32 %rd5, %r11, %r12;\nshr.u64 %rd5, %rd5, 7;\ncvt.u32.u64 %r1, %rd5;", lambda a, b: a * b >> 7),
    ("cvt.s64.s32 %rd5, %r11;\ncvt.s64.s32 %rd6, %r12;\nmul.hi.s64 %rd7, %rd5, %rd6;\ncvt.u32.u64 %r1, %rd7;",
     lambda a, b: signed(a) * signed(b) >> 64),
    ("mov.b64 %rd5, {%r11, %r12};\nshr.u64 %rd5, %rd5, 16;\nmov.b64 {%r1, %r2}, %rd5;", lambda a, b: (b << 32 | a) >> 16),
    ("add.cc.u32 %r2, %r11, %r12;\naddc.u32 %r1, %r11, 0;", lambda a, b: a + (a + b >> 32)),
    ("sub.cc.u32 %r2, %r11, %r12;\nsubc.u32 %r1, %r12, 5;", lambda a, b: b - 5 - (a < b)),
    ("mad.lo.cc.u32 %r2, %r11, %r12, %r12;\nmadc.hi.u32 %r1, %r11, %r12, 7;", lambda a, b: (a * b + b >> 32) + 7),
    ("setp.lt.s32 %p1|%p2, %r11, %r12;\nselp.u32 %r1, 1, 2, %p1;\n@%p2 add.s32 %r1, %r1, 8;",
     lambda a, b: 1 if signed(a) < signed(b) else 10),
])
def test_integers_equal_python(code, expected):
    a, b = (x.ravel() for x in np.meshgrid(INTEGERS, INTEGERS))
    found = each(code, np.zeros(a.size, np.uint32), a, b)
    np.testing.assert_array_equal(found, [expected(int(p), int(q)) % 2**32 for p, q in zip(a, b)])


FLOATS = np.array([0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, np.inf, -np.inf, np.nan, 1e-40, 3.25e-39, -7.7], F)


@pytest.mark.parametrize("code, expected", [
    ("cvt.rni.s32.f32 %r1, %f11;", lambda x: np.nan_to_num(np.clip(np.rint(np.float64(x)), -2.0**31, 2.0**31 - 1), nan=0)),
    ("cvt.rzi.u32.f32 %r1, %f11;", lambda x: np.nan_to_num(np.clip(np.trunc(np.float64(x)), 0, 2.0**32 - 1), nan=0)),
    ("cvt.rmi.f32.f32 %f1, %f11;", np.floor), ("cvt.sat.f32.f32 %f1, %f11;", lambda x: np.nan_to_num(np.clip(x, 0, 1), nan=0)),
    ("add.ftz.f32 %f1, %f11, 0f00000000;", lambda x: np.where(np.abs(x) < 1.1754944e-38, 0, x)),
    ("ex2.approx.ftz.f32 %f1, %f11;", np.exp2), ("abs.f32 %f1, %f11;", np.abs), ("neg.f32 %f1, %f11;", np.negative),
    ("max.f32 %f1, %f11, 0f00000000;", lambda x: np.fmax(x, F(0))), ("sqrt.rn.f32 %f1, %f11;", np.sqrt),
    ("cvt.rna.tf32.f32 %r2, %f11;\nmov.b32 %f1, %r2;", lambda x: np.where(
        np.isfinite(x), (x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(F), x)),
    ("cvt.rn.f16.f32 %rs1, %f11;\ncvt.f32.f16 %f1, %rs1;", lambda x: F(np.float16(x))),
    ("setp.ne.f32 %p1, %f11, %f11;\nselp.f32 %f1, 0f3F800000, 0f00000000, %p1;", lambda x: 0 * np.nan_to_num(x)),
    ("setp.neu.f32 %p1, %f11, %f11;\nselp.f32 %f1, 0f3F800000, 0f00000000, %p1;", lambda x: F(np.isnan(x))),
    ("copysign.f32 %f1, %f11, 0f40000000;", lambda x: np.copysign(F(2), x)),
])
def test_floats_equal_numpy(code, expected):
    with np.errstate(all="ignore"):
        wanted = expected(FLOATS)
        found = each(code, np.zeros(FLOATS.size, F if "%f1," in code else np.uint32), FLOATS)
    if found.dtype != F and "s32" in code:
        found = found.view(np.int32)
    np.testing.assert_array_equal(found, np.asarray(wanted).astype(found.dtype if found.dtype == F else np.float64))


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


# --- control ----------------------------------------------------------------------------------------------------------
def test_threads_part_at_branches_and_meet_again():
    steps = np.zeros(64, np.uint32)
    counters = run("""
        mov.u32 %r1, 0;
        and.b32 %r2, %r0, 3;
        LOOP:
        setp.ge.u32 %p1, %r1, %r2;
        @%p1 bra DONE;
        add.u32 %r1, %r1, 1;
        bra.uni LOOP;
        DONE:
        activemask.b32 %r3;
        popc.b32 %r3, %r3;
        mad.lo.u32 %r4, %r3, 100, %r1;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r4;
    """, steps, threads=64)
    np.testing.assert_array_equal(steps, 3200 + np.arange(64) % 4)
    assert counters.summary()["divergent branches"] == 6


def test_a_kernel_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr("numbanet_kernels.ptx.machine.LIMIT", 0.2)
    with pytest.raises(ptx.PtxError, match="the kernel does not end"):
        run("LOOP:\nbra.uni LOOP;", np.zeros(1, F))


# --- warps ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode, clamp, expected", [
    ("up", 0, lambda lane: lane - 3 if lane >= 3 else lane), ("down", 31, lambda lane: lane + 3 if lane < 29 else lane),
    ("bfly", 31, lambda lane: lane ^ 3), ("idx", 31, lambda lane: 3),
    ("down", 0x181F, lambda lane: lane + 3 if lane % 8 < 5 else lane), ("idx", 0x181F, lambda lane: lane // 8 * 8 + 3)])
def test_shuffles(mode, clamp, expected):
    found = np.zeros(64, np.uint32)
    run(f"""
        shfl.sync.{mode}.b32 %r1|%p1, %r0, 3, {clamp}, -1;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r1;
    """, found, threads=64)
    np.testing.assert_array_equal(found, [expected(i % 32) + i // 32 * 32 for i in range(64)])


def test_votes_matches_and_reductions():
    found = np.zeros(5 * 32, np.uint32)
    stores = "\n".join(f"st.global.u32 [%rd2+{128 * k}], %r{k + 2};" for k in range(5))
    run(f"""
        and.b32 %r1, %r0, 3;
        setp.eq.u32 %p1, %r1, 1;
        vote.sync.ballot.b32 %r2, %p1, -1;
        vote.sync.any.pred %p2, %p1, -1;
        selp.u32 %r3, 1, 0, %p2;
        match.any.sync.b32 %r4, %r1, -1;
        redux.sync.add.u32 %r5, %r0, -1;
        redux.sync.max.s32 %r6, %r0, -1;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        {stores}
    """, found)
    ballot, some, match, total, largest = found.reshape(5, 32)
    assert set(ballot) == {0x22222222} and set(some) == {1} and set(total) == {496} and set(largest) == {31}
    np.testing.assert_array_equal(match, [0x11111111 << i % 4 for i in range(32)])


def test_masks_divide_a_warp():
    """Each half with a mask of its own."""
    found = np.zeros(3 * 32, np.uint32)
    run("""
        setp.lt.u32 %p1, %r0, 16;
        selp.b32 %r1, 0x0000FFFF, 0xFFFF0000, %p1;
        and.b32 %r2, %r0, 1;
        setp.eq.u32 %p2, %r2, 1;
        vote.sync.ballot.b32 %r3, %p2, %r1;
        redux.sync.add.u32 %r4, %r0, %r1;
        vote.sync.any.pred %p3, %p1, %r1;
        selp.u32 %r5, 1, 0, %p3;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r3;
        st.global.u32 [%rd2+128], %r4;
        st.global.u32 [%rd2+256], %r5;
    """, found)
    ballot, total, some = found.reshape(3, 2, 16)
    assert set(ballot[0]) == {0xAAAA} and set(ballot[1]) == {0xAAAA0000}
    assert set(total[0]) == {120} and set(total[1]) == {376} and set(some[0]) == {1} and set(some[1]) == {0}
    with pytest.raises(ptx.PtxError, match="a lane is not in its own mask by thread .16, 0, 0."):
        run("vote.sync.ballot.b32 %r3, %p2, 0xFFFF;", found)


def test_a_shuffle_from_a_lane_that_is_elsewhere_is_told():
    with pytest.raises(ptx.PtxError, match="shfl.*: a shuffle reads a lane that does not take part by thread .7, 0, 0."):
        run("setp.lt.u32 %p1, %r0, 7;\n@%p1 bra LAST;\nshfl.sync.idx.b32 %r1, %r0, 3, 31, 0xFFFFFF80;\nLAST:", np.zeros(1, F))


def test_atomics_take_turns():
    sums, olds = np.zeros(4, np.uint32), np.zeros(64, np.uint32)
    run("""
        and.b32 %r1, %r0, 3;
        mad.wide.u32 %rd2, %r1, 4, %rd0;
        atom.global.add.u32 %r2, [%rd2], 1;
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        st.global.u32 [%rd3], %r2;
    """, sums, olds, threads=64)
    np.testing.assert_array_equal(sums, [16] * 4)
    np.testing.assert_array_equal(olds, np.arange(64) // 4)


# --- matrices ---------------------------------------------------------------------------------------------------------
def fragments(lanes, places):
    """Addresses that put the registers of a warp at (row, column): one list of 32 a register."""
    g, t = lanes // 4, lanes % 4
    return [place(g, t) for place in places]


def multiplied(kind, depth, a, b, c, b_places=None):
    """C + A B by one mma; operands are laid into registers here by the lane map of the PTX manual."""
    lane, half = np.arange(32), depth // 2
    pair = 1 if kind == "tf32" else 2
    rows_cols = [(lambda g, t, r=r, k=k: (g + 8 * r, t * pair + half * k)) for k in range(2) for r in range(2)]
    b_places = b_places or [(lambda g, t, k=k: (t * pair + half * k, g)) for k in range(2)]
    code = {"tf32": lambda x: x.astype(F), "f16": lambda x: x.astype(np.float16),
            "bf16": lambda x: (x.astype(F).view(np.uint32) >> 16).astype(np.uint16)}[kind]  # exact for these numbers

    def packed(matrix, places, axis):
        found = []
        for rows, cols in fragments(lane, places):
            parts = [matrix[rows + j * (axis == 0), cols + j * (axis == 1)] for j in range(pair)]
            found.append(np.ascontiguousarray(code(np.stack(parts, 1))).view(np.uint32).ravel())
        return found

    registers = packed(a, rows_cols, 1) + packed(b, b_places, 0)
    c_places = [(lambda g, t, r=r, j=j: (g + 8 * r, 2 * t + j)) for r in range(2) for j in range(2)]
    registers += [c[rows, cols].astype(F).view(np.uint32) for rows, cols in fragments(lane, c_places)]
    data, result = np.concatenate(registers), np.zeros(4 * 32, F)
    loads = "\n".join(f"ld.global.b32 {'%f' if k >= 6 else '%r'}{10 + k}, [%rd3+{128 * k}];" for k in range(10))
    run(f"""
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        {loads}
        mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 {{%f1, %f2, %f3, %f4}}, {{%r10, %r11, %r12, %r13}},
            {{%r14, %r15}}, {{%f16, %f17, %f18, %f19}};
        st.global.f32 [%rd2], %f1;
        st.global.f32 [%rd2+128], %f2;
        st.global.f32 [%rd2+256], %f3;
        st.global.f32 [%rd2+384], %f4;
    """, result, data)
    found = np.zeros((16, 8), F)
    for (rows, cols), values in zip(fragments(lane, c_places), result.reshape(4, 32)):
        found[rows, cols] = values
    return found


@pytest.mark.parametrize("kind, depth", [("tf32", 8), ("f16", 16), ("bf16", 16)])
def test_mma_equals_numpy_and_a_wrong_lane_map_is_seen(rng, kind, depth):
    a, b, c = (rng.integers(-8, 9, shape) / 4 for shape in ((16, depth), (depth, 8), (16, 8)))
    np.testing.assert_array_equal(multiplied(kind, depth, a, b, c), a @ b + c)
    pair, half = (1, 4) if kind == "tf32" else (2, 8)
    wrong = [(lambda g, t, k=k: (t * pair + half * (1 - k), g)) for k in range(2)]
    assert not np.array_equal(multiplied(kind, depth, a, b, c, wrong), a @ b + c)


def test_ldmatrix_gives_each_lane_its_two_numbers():
    source, found = np.arange(64, dtype=np.uint16), np.zeros(64, np.uint32)
    run("""
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        ld.global.u32 %r1, [%rd2];
        shl.b32 %r2, %r0, 2;
        mov.u32 %r3, room;
        add.u32 %r2, %r2, %r3;
        st.shared.u32 [%r2], %r1;
        bar.sync 0;
        and.b32 %r4, %r0, 7;
        shl.b32 %r4, %r4, 4;
        add.u32 %r4, %r4, %r3;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r6}, [%r4];
        mad.wide.u32 %rd3, %r0, 4, %rd1;
        st.global.u32 [%rd3], %r5;
        st.global.u32 [%rd3+128], %r6;
    """, source.view(np.uint32), found, shared=128)
    matrix = source.reshape(8, 8)
    np.testing.assert_array_equal(found[:32].view(np.uint16).reshape(8, 8), matrix)
    np.testing.assert_array_equal(found[32:].view(np.uint16).reshape(8, 8), matrix.T)


COPY = """
    mad.wide.u32 %rd2, %r0, 16, %rd0;
    shl.b32 %r1, %r0, 4;
    mov.u32 %r2, room;
    add.u32 %r1, %r1, %r2;
    cp.async.cg.shared.global [%r1], [%rd2], 16;
    cp.async.commit_group;
    {wait}
    ld.shared.f32 %f1, [%r1+8];
    mad.wide.u32 %rd3, %r0, 4, %rd1;
    st.global.f32 [%rd3], %f1;
"""


def test_asynchronous_copies_arrive_when_they_are_waited_for():
    source, found = np.arange(128, dtype=F), np.zeros(32, F)
    run(COPY.format(wait="cp.async.wait_group 0;"), source, found, shared=512)
    np.testing.assert_array_equal(found, source[2::4])
    with pytest.raises(ptx.PtxError, match=r"ld.shared.f32 .*: shared read before it was written by thread \(0, 0, 0\)"):
        run(COPY.format(wait="cp.async.wait_group 1;"), source, found, shared=512)


# --- faults -----------------------------------------------------------------------------------------------------------
EXCHANGE = """
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, room;
    add.u32 %r3, %r1, %r2;
    st.shared.u32 [%r3], %r0;
    {barrier}
    xor.b32 %r4, %r1, {other};
    add.u32 %r4, %r4, %r2;
    ld.shared.u32 %r5, [%r4];
    mad.wide.u32 %rd2, %r0, 4, %rd0;
    st.global.u32 [%rd2], %r5;
"""


def test_a_missing_barrier_is_a_race():
    found = np.zeros(64, np.uint32)
    run(EXCHANGE.format(barrier="bar.sync 0;", other=128), found, threads=64, shared=256)
    np.testing.assert_array_equal(found, np.arange(64) ^ 32)
    with pytest.raises(ptx.PtxError, match=r"test, line \d+: ld.shared.u32 %r5, \[%r4\]: shared race: read here, and written "
                                           r"by thread 32 with no barrier between by thread \(0, 0, 0\), block \(0, 0, 0\)"):
        run(EXCHANGE.format(barrier="", other=128), found, threads=64, shared=256)


def test_a_barrier_of_the_warp_orders_its_threads_alone():
    found = np.zeros(64, np.uint32)
    run(EXCHANGE.format(barrier="bar.warp.sync -1;", other=4), found, threads=64, shared=256)
    np.testing.assert_array_equal(found, np.arange(64) ^ 1)
    with pytest.raises(ptx.PtxError, match="shared race"):
        run(EXCHANGE.format(barrier="", other=4), found, threads=64, shared=256)
    with pytest.raises(ptx.PtxError, match="shared race"):
        run(EXCHANGE.format(barrier="bar.warp.sync -1;", other=128), found, threads=64, shared=256)


def test_copying_over_what_others_still_read_is_a_race():
    """What double buffering invites: the copy may arrive at once."""
    again = EXCHANGE.format(barrier="bar.sync 0;", other=128) + """
        {barrier}
        cp.async.ca.shared.global [%r3], [%rd2], 4;
        cp.async.wait_all;
    """
    run(again.format(barrier="bar.sync 0;"), np.zeros(64, np.uint32), threads=64, shared=256)
    with pytest.raises(ptx.PtxError, match="cp.async.*race: written here, and read by thread 32"):
        run(again.format(barrier=""), np.zeros(64, np.uint32), threads=64, shared=256)


def test_reading_what_others_change_by_atomics_is_a_race():
    body = """
        mov.u32 %r2, room;
        setp.ne.u32 %p1, %r0, 0;
        @!%p1 st.shared.u32 [%r2], %r0;
        bar.sync 0;
        atom.shared.add.u32 %r3, [%r2], 1;
        {barrier}
        ld.shared.u32 %r4, [%r2];
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r4;
    """
    found = np.zeros(64, np.uint32)
    run(body.format(barrier="bar.sync 0;"), found, threads=64, shared=16)
    assert set(found) == {64}
    with pytest.raises(ptx.PtxError, match="ld.shared.*race: read here, and changed by several threads"):
        run(body.format(barrier=""), found, threads=64, shared=16)


def test_neighbouring_bytes_are_no_race():
    found = np.zeros(64, np.uint8)
    run("""
        mov.u32 %r2, room;
        add.u32 %r3, %r0, %r2;
        cvt.u16.u32 %rs1, %r0;
        st.shared.u8 [%r3], %rs1;
        ld.shared.u8 %rs2, [%r3];
        cvt.u64.u32 %rd2, %r0;
        add.s64 %rd2, %rd2, %rd0;
        st.global.u8 [%rd2], %rs2;
    """, found, threads=64, shared=64)
    np.testing.assert_array_equal(found, np.arange(64))


def test_writing_what_others_still_read_is_a_race():
    again = EXCHANGE.format(barrier="bar.sync 0;", other=128) + "{barrier}\nst.shared.u32 [%r3], %r5;"
    run(again.format(barrier="bar.sync 0;"), np.zeros(64, np.uint32), threads=64, shared=256)
    with pytest.raises(ptx.PtxError, match="race: written here, and read by thread 32"):
        run(again.format(barrier=""), np.zeros(64, np.uint32), threads=64, shared=256)


@pytest.mark.parametrize("body, problem", [
    ("mad.wide.u32 %rd2, %r0, 4, %rd0;\nst.global.f32 [%rd2], %f1;",
     r"st.global.f32 \[%rd2\], %f1: global out of bounds: byte 80 of the nearest array, which has 80 bytes, shape \(20,\) of "
     r"float32 by thread \(20, 0, 0\)"),
    ("mad.wide.u32 %rd2, %r0, 4, %rd0;\n@!%p1 ld.global.f32 %f1, [%rd2+-4];", r"global out of bounds: byte -4"),
    ("ld.global.f32 %f1, [%rd0+2];", "global misaligned: address .* is no multiple of 4"),
    ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0+4];", "global misaligned: address .* is no multiple of 16"),
    ("ld.shared.f32 %f1, [room];", "shared read before it was written"),
    ("st.shared.f32 [room+64], %f1;", "shared out of bounds: byte 64 of 64"),
    ("st.shared.f32 [room], %f1;", "shared race: written by several threads at once"),
    ("setp.lt.u32 %p1, %r0, 9;\n@%p1 bra OTHER;\nbar.sync 0;\nbra LAST;\nOTHER:\nbar.sync 0;\nLAST:",
     r"line \d+: bar.sync 0: a barrier that part of its block never reaches: others wait at line \d+: bar.sync 0"),
    ("trap;", "trap"),
])
def test_faults_are_told_with_line_and_thread(body, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        memory = np.zeros(32, F)
        start = -memory.ctypes.data % 16 // 4
        run(body, memory[start:start + 20], shared=64)


def test_blocks_that_write_one_place_are_a_race():
    body = "mad.wide.u32 %rd2, %r0, 4, %rd0;\nst.global.u32 [%rd2], %r0;"
    run(body, np.zeros(32, np.uint32))
    with pytest.raises(ptx.PtxError, match=r"st.global.u32 .*: global race"):
        run(body, np.zeros(32, np.uint32), blocks=2)


@pytest.mark.parametrize("strong", [".relaxed.gpu", ".volatile", ""])
def test_strong_accesses_of_several_blocks_are_no_race(strong):
    """Both blocks write the same words and read them; whether a plain access does so is found."""
    body = f"""
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st{strong}.global.u32 [%rd2], 7;
        ld{strong}.global.u32 %r4, [%rd2];
    """
    if strong:
        memory = np.zeros(32, np.uint32)
        run(body, memory, blocks=2)
        assert set(memory) == {7}
    else:
        with pytest.raises(ptx.PtxError, match="global race"):
            run(body, np.zeros(32, np.uint32), blocks=2)


# --- counters ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pitch, conflicts", [(32, 31), (33, 0), (34, 1), (36, 3)])
def test_bank_conflicts_by_the_pitch_of_a_tile(pitch, conflicts):
    counters = run(f"""
        mad.lo.u32 %r1, %r0, {4 * pitch}, 0;
        mov.u32 %r2, room;
        add.u32 %r1, %r1, %r2;
        st.shared.u32 [%r1], %r0;
    """, np.zeros(1, F), shared=4 * pitch * 32)
    assert counters.summary()["bank conflicts"] == conflicts


@pytest.mark.parametrize("stride, sectors, least", [(4, 4, 4), (8, 8, 4), (128, 32, 4), (0, 1, 1)])
def test_sectors_by_the_stride_of_a_warp(stride, sectors, least):
    memory = np.zeros(2048, F)
    start = -memory.ctypes.data % 32 // 4
    counters = run(f"mad.wide.u32 %rd2, %r0, {stride}, %rd0;\nld.global.f32 %f1, [%rd2];", memory[start:start + 1024])
    summary = counters.summary()
    assert (summary["sectors"], summary["least sectors"]) == (sectors, least)
    assert summary["issued global load"] == 1 and summary["bytes"] == 32 * sectors


def test_a_predicate_counts_those_it_lets_through():
    counters = run("setp.eq.u32 %p1, %r0, 3;\n@%p1 fma.rn.f32 %f1, %f1, %f1, %f1;", np.zeros(1, F))
    assert counters.summary()["flops"] == 2 and counters.summary()["issued fma"] == 1


# --- compiled kernels -------------------------------------------------------------------------------------------------
@needs_nvvm
@pytest.mark.parametrize("forgotten", [None, "before", "after"])
def test_a_forgotten_barrier_of_a_compiled_kernel(rng, forgotten):
    from numba import float32

    cuda = declare.cuda
    before, after = forgotten != "before", forgotten != "after"

    @declare.kernel("void(f4[::1], f4[::1])")
    def turned(x, y):
        """y = x in the reverse order, in pieces of 64."""
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        for first in range(0, x.size, 64):
            tile[63 - t] = x[first + t]
            if before:
                cuda.syncthreads()
            y[first + t] = tile[t]
            if after:
                cuda.syncthreads()

    x, y = rng.standard_normal(128).astype(F), np.zeros(128, F)
    if forgotten:
        with pytest.raises(ptx.PtxError, match=r"turned, line \d+: .*\.shared\.f32.*: shared race"):
            ptx.run(emulation.program(turned, emulation.EMULATED), (1,), (64,), (x, y), name="turned")
        return
    counters = ptx.run(emulation.program(turned, emulation.EMULATED), (1,), (64,), (x, y))
    np.testing.assert_array_equal(y, x.reshape(2, 64)[:, ::-1].ravel())
    assert counters.summary()["issued barrier"] == 8


@needs_nvvm
@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "exp", "log", "erf", "log1p"])
def test_library_functions_equal_numpy(name):
    """With libdevice's tables and local memory: sin and cos of large numbers."""
    from scipy import special

    cuda, function = declare.cuda, getattr(math, name)

    @declare.kernel("void(f4[::1], f4[::1])")
    def mapped(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i])

    x = np.concatenate([np.linspace(0.01, 9, 50), np.geomspace(10, 1e6 if name in ("sin", "cos") else 80, 46)]).astype(F)
    y = np.zeros_like(x)
    ptx.run(emulation.program(mapped, emulation.EMULATED), (2,), (64,), (x, y))
    expected = getattr(special if name == "erf" else np, name)(x.astype(float))
    np.testing.assert_allclose(y, expected, rtol=3e-6, atol=3e-6 if name in ("sin", "cos") else 0)


@needs_nvvm
def test_examples_are_counted_and_the_counters_left_alone():
    from numbanet_kernels import examples

    emulation.counters.clear()
    assert all(examples.example(name).op == name.partition(",")[0] for name in examples.families())
    for name in {module: name for name, module in examples.families().items()}.values():  # one of each family
        found = examples.counted(name)
        assert found and all(counters.summary()["issued"] > 0 for counters in found.values()) and not emulation.counters


@needs_nvvm
@pytest.mark.alone
def test_a_product_is_soon_done(rng):
    """128 x 128 x 64 in less than 2 s, its kernel compiled before."""
    import time

    from numbanet_kernels.families import gemm

    a, b = rng.standard_normal((128, 64)).astype(F), rng.standard_normal((64, 128)).astype(F)
    with emulation.emulated():
        gemm.gemm_cuda(*(arrays.to_device(x[:1, :1].copy()) for x in (a, b)))
        start = time.perf_counter()
        c = gemm.gemm_cuda(arrays.to_device(a), arrays.to_device(b))
        seconds = time.perf_counter() - start
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    assert seconds < 2
