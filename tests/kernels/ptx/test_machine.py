"""The PTX machine: what it reads, launches and refuses, control flow, counters, and compiled kernels."""

import math
import time

import numpy as np
import pytest

from numbanet_kernels import examples, ptx
from numbanet_kernels.ptx import plain
from numbanet_kernels.ptx.parse import Address, Number, parse
from numbanet_kernels.runtime import arrays, availability, declare, emulation
from tests.kernels.ptx.handwritten import kernel, run

F = np.float32
needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")


# --- parsing ----------------------------------------------------------------------------------------------------------
def test_parse_reads_what_an_instruction_is_made_of():
    body = "LOOP:\n@!%p1 ld.global.v2.f32 {%f1, %f2}, [%rd0+-8];\nmov.f32 %f3, 0f40490FDB;\n@%p2 bra LOOP;"
    program = kernel(body, shared=48)
    first = program.labels["LOOP"]
    load, move, branch = program.instructions[first : first + 3]
    assert load.guard == ("%p1", True) and load.opcode == "ld" and load.modifiers == ("global", "v2", "f32")
    assert load.operands == (("%f1", "%f2"), Address("%rd0", -8)) and move.operands[1] == Number(0x40490FDB, 4)
    assert branch.guard == ("%p2", False) and program.shared["room"].size == 48 and program.registers["%f39"] == "f32"
    assert program.parameters["p0_4"] == (32, "u64")


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "no .entry"),
        (".version 8.0\n.visible .func f() { ret; }", "line 2: only one .entry"),
        (".entry f()\n{\n?what;\n}", "line 3: not understood"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(text, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        parse(text)


@pytest.mark.parametrize(
    "code",
    [
        "wgmma.fence.sync.aligned;",
        "add.sat.u16 %rs1, %rs2, %rs3;",
        "div.bf16 %rs1, %rs2, %rs3;",
        "max.f32 %f1, %f2, %f3, %f4;",
        "bar.arrive 0;",
        "barrier.cluster.arrive;",
        "cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;",
        "vadd4.u32.u32.u32 %r1, %r2, %r3, %r4;",
        "tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [x, {%r1, %r2}];",
    ],
)
def test_an_unknown_instruction_is_named(code):
    with pytest.raises(ptx.PtxError, match="this machine does not know|not in this machine"):
        run(code, np.zeros(1, F))


def test_decoding_that_was_broken_off_is_done_again(monkeypatch):
    def broken(*given):
        raise KeyboardInterrupt

    program, y = kernel("mov.u32 %r1, 3;\nst.global.u32 [%rd0], %r1;"), np.zeros(1, F)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(plain, "step", broken)
        ptx.run(program, (1,), (1,), [y])
    ptx.run(program, (1,), (1,), [y])
    assert y.view(np.int32)[0] == 3


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (((1,), (1025,), [np.zeros(4, F)]), "a block of .1025,. has more than 1024 threads"),
        (((1,), (1, 1, 65), [np.zeros(4, F)]), "a block of .1, 1, 65. has more than 64 threads along its third axis"),
        (((1, 65536), (1,), [np.zeros(4, F)]), "a grid of .1, 65536. has more"),
        (((1,), (1,), []), "has 7 parameters, got 0"),
    ],
)
def test_a_launch_that_a_card_refuses_is_refused(arguments, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        ptx.run(kernel(""), *arguments)


@pytest.mark.parametrize(
    "room, dynamic, problem",
    [
        (".shared .b8 held[52000];", 0, "52000 bytes of static shared memory: the most are 49152, so use smaller tiles"),
        ("", 240000, "240000 bytes of dynamic shared memory and 0 static ones: the most are 232448 together"),
        (".local .b8 own[600000];", 0, "600000 bytes of local memory: a thread has at most 524288"),
    ],
)
def test_more_memory_than_a_card_has_is_refused(room, dynamic, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        ptx.run(kernel(room), (1,), (1,), [np.zeros(4, F)], dynamic)


# --- control ----------------------------------------------------------------------------------------------------------
def test_threads_part_at_branches_and_meet_again():
    steps = np.zeros(64, np.uint32)
    counters = run(
        """
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
    """,
        steps,
        threads=64,
    )
    np.testing.assert_array_equal(steps, 3200 + np.arange(64) % 4)
    assert counters.summary()["divergent branches"] == 6


def test_a_kernel_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr("numbanet_kernels.ptx.machine.LIMIT", 0.2)
    with pytest.raises(ptx.PtxError, match="the kernel does not end"):
        run("LOOP:\nbra.uni LOOP;", np.zeros(1, F))


def test_threads_that_leave_a_loop_one_after_the_other_have_time(monkeypatch):
    """The limit is that of the time in which none leaves it."""
    monkeypatch.setattr("numbanet_kernels.ptx.machine.LIMIT", 0.1)
    began, steps = time.thread_time(), np.zeros(256, np.uint32)
    run(
        """
        mov.u32 %r1, 0;
        mul.lo.u32 %r2, %r0, 64;
        LOOP:
        add.u32 %r1, %r1, 1;
        setp.le.u32 %p1, %r1, %r2;
        @%p1 bra LOOP;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        st.global.u32 [%rd2], %r1;
        """,
        steps,
        threads=256,
    )
    np.testing.assert_array_equal(steps, 64 * np.arange(256) + 1)
    assert time.thread_time() - began > 0.1


def test_threads_that_go_through_loops_together_have_time(monkeypatch):
    """The limit is that of the time in which they get no further."""

    def loops(count):
        begin = time.thread_time()
        run(
            "\n".join(
                f"mov.u32 %r1, 0;\nLOOP{i}:\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 1000;\n@%p1 bra LOOP{i};"
                for i in range(count)
            ),
            np.zeros(1, F),
        )
        return time.thread_time() - begin

    loops(1)
    monkeypatch.setattr("numbanet_kernels.ptx.machine.LIMIT", 4 * loops(1))
    loops(16)


# --- counters ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pitch, conflicts", [(32, 31), (33, 0), (34, 1), (36, 3)])
def test_bank_conflicts_by_the_pitch_of_a_tile(pitch, conflicts):
    counters = run(
        f"""
        mad.lo.u32 %r1, %r0, {4 * pitch}, 0;
        mov.u32 %r2, room;
        add.u32 %r1, %r1, %r2;
        st.shared.u32 [%r1], %r0;
    """,
        np.zeros(1, F),
        shared=4 * pitch * 32,
    )
    assert counters.summary()["bank conflicts"] == conflicts


@pytest.mark.parametrize("stride, sectors, least", [(4, 4, 4), (8, 8, 4), (128, 32, 4), (0, 1, 1)])
def test_sectors_by_the_stride_of_a_warp(stride, sectors, least):
    memory = np.zeros(2048, F)
    start = -memory.ctypes.data % 32 // 4
    counters = run(f"mad.wide.u32 %rd2, %r0, {stride}, %rd0;\nld.global.f32 %f1, [%rd2];", memory[start : start + 1024])
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
        with pytest.raises(ptx.PtxError, match=r"turned, \S+\.py:\d+ \(PTX line \d+: .*\.shared\.f32.*\): shared race"):
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


def test_examples_have_the_names_of_their_operations():
    assert all(examples.example(name).op == name.partition(",")[0] for name in examples.families())


FIRST = {module: name for name, module in reversed(examples.families().items())}  # of each family


@needs_nvvm
@pytest.mark.parametrize("name", FIRST.values())
def test_examples_are_counted_and_the_counters_left_alone(name):
    emulation.counters.clear()
    found = examples.counted(name, (13, 24, 17))
    assert found and all(counters.summary()["issued"] > 0 for counters in found.values()) and not emulation.counters


@needs_nvvm
@pytest.mark.alone
def test_a_product_is_soon_done(rng):
    """128 x 128 x 64 in less than 2 s, its kernel compiled before."""
    from numbanet_kernels.families import gemm

    a, b = rng.standard_normal((128, 64)).astype(F), rng.standard_normal((64, 128)).astype(F)
    with emulation.emulated():
        gemm.gemm_cuda(*(arrays.to_device(x[:1, :1].copy()) for x in (a, b)))
        start = time.perf_counter()
        c = gemm.gemm_cuda(arrays.to_device(a), arrays.to_device(b))
        seconds = time.perf_counter() - start
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    assert seconds < 2


def test_a_jump_by_a_table_is_one_branch():
    """Of two warps, the threads of one go three ways, and those of the other one way."""
    counters = run(
        """
        rem.u32 %r2, %r0, 3;
        setp.lt.u32 %p1, %r0, 32;
        @!%p1 mov.u32 %r2, 1;
        TABLE: .branchtargets ONE, TWO, LAST;
        brx.idx %r2, TABLE;
        ONE: mov.u32 %r1, 10;
        TWO: mov.u32 %r1, 20;
        LAST: mov.u32 %r1, 30;
        """,
        np.zeros(1, np.int32),
        threads=64,
    )
    total = counters.total()
    assert (total.branches, total.divergent) == (2, 1)


def test_what_was_issued_until_an_error_is_counted():
    program = kernel(
        """
        setp.eq.u32 %p1, %r0, 0;
        @%p1 add.f32 %f1, %f1, %f1;
        st.global.u32 [%rd0+4096], %r0;
        """
    )
    counters = ptx.Counters(program)
    with pytest.raises(ptx.PtxError, match="out of bounds"):
        ptx.run(program, (1,), (32,), [np.zeros(1, np.int32)], name="test", counters=counters)
    total = counters.total()
    assert (total.flops, total.lanes) == (1, 32 * total.issued - 31) and total.issued >= 4
