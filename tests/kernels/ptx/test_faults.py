"""Faults that the PTX machine has to find: races, addresses, barriers that part of a block never reaches."""

import contextlib

import numpy as np
import pytest

from numbanet_kernels import ptx
from tests.kernels.ptx.handwritten import run

F = np.float32


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
    with pytest.raises(
        ptx.PtxError,
        match=r"test, line \d+: ld.shared.u32 %r5, \[%r4\]: shared race: read here, and written "
        r"by thread 32 with no barrier between by thread \(0, 0, 0\), block \(0, 0, 0\)",
    ):
        run(EXCHANGE.format(barrier="", other=128), found, threads=64, shared=256)


def test_a_barrier_of_the_warp_orders_its_threads_alone():
    found = np.zeros(64, np.uint32)
    run(EXCHANGE.format(barrier="bar.warp.sync -1;", other=4), found, threads=64, shared=256)
    np.testing.assert_array_equal(found, np.arange(64) ^ 1)
    with pytest.raises(ptx.PtxError, match="shared race"):
        run(EXCHANGE.format(barrier="", other=4), found, threads=64, shared=256)
    with pytest.raises(ptx.PtxError, match="shared race"):
        run(EXCHANGE.format(barrier="bar.warp.sync -1;", other=128), found, threads=64, shared=256)


HALF = "and.b32 %r8, %r0, 16;\nsetp.eq.u32 %p2, %r8, 0;\nselp.b32 %r9, 0x0000FFFF, 0xFFFF0000, %p2;\nbar.warp.sync %r9;"
READ = "xor.b32 %r4, %r1, {0};\nadd.u32 %r4, %r4, %r2;\nld.shared.u32 %r5, [%r4];"


@pytest.mark.parametrize("other, orders", [(4, True), (60, True), (64, False), (128, False)])
def test_a_barrier_of_half_a_warp_orders_its_threads_alone(other, orders):
    body = f"""
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, room;
        add.u32 %r3, %r1, %r2;
        {{barrier}}
        st.shared.u32 [%r3], %r0;
        {{barrier}}
        {READ.format(other)}
        {{barrier}}
        st.shared.u32 [%r3], 7;
    """
    with contextlib.nullcontext() if orders else pytest.raises(ptx.PtxError, match="shared race: read here, and written"):
        run(body.format(barrier=HALF), np.zeros(64, np.uint32), threads=64, blocks=3, shared=256)
    with pytest.raises(ptx.PtxError, match="shared race: read here, and written"):
        run(body.format(barrier=""), np.zeros(64, np.uint32), threads=64, blocks=3, shared=256)


@pytest.mark.parametrize("first, second, orders", [(3, 6, True), (6, 3, False)])
def test_barriers_of_parts_of_a_warp_order_one_after_the_other(first, second, orders):
    """Lane 2 reads what lane 0 has written, and may have ended: lane 1 meets both, in one order or the other."""
    meet = (
        "mov.u32 %r5, {0};\nshr.u32 %r6, %r5, %r0;\nand.b32 %r6, %r6, 1;\nsetp.eq.u32 %p2, %r6, 1;\n@%p2 bar.warp.sync {0};\n"
    )
    body = "setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [room], 5;\n" + meet.format(first) + meet.format(second)
    body += "setp.eq.u32 %p1, %r0, 2;\n@%p1 ld.shared.u32 %r7, [room];"
    for last in ("", "bar.sync 0;"):
        with contextlib.nullcontext() if orders else pytest.raises(ptx.PtxError, match="read here, and written by thread 0"):
            run(body + last, np.zeros(1, F), shared=16)


@pytest.mark.parametrize("readers, orders", [(16, True), (17, False)])
def test_a_barrier_of_half_a_warp_orders_all_that_read_one_word(readers, orders):
    body = f"""
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.u32 [room], %r0;
        bar.sync 0;
        setp.lt.u32 %p3, %r0, {readers};
        @%p3 ld.shared.u32 %r5, [room];
        {HALF}
        @%p1 st.shared.u32 [room], 5;
    """
    with contextlib.nullcontext() if orders else pytest.raises(ptx.PtxError, match="race: written here, and read by several"):
        run(body, np.zeros(1, F), shared=16)


@pytest.mark.parametrize("mask, orders", [(0xFFFFFFFF, True), (0xFFFFFFFE, False)])
def test_a_thread_that_has_ended_takes_part_if_it_is_in_the_mask(mask, orders):
    body = f"""
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.u32 [room], 5;
        @%p1 bra LAST;
        bar.warp.sync {mask};
        ld.shared.u32 %r7, [room];
        LAST:
    """
    with contextlib.nullcontext() if orders else pytest.raises(ptx.PtxError, match="read here, and written by thread 0"):
        run(body, np.zeros(1, F), shared=16)


def test_copying_over_what_others_still_read_is_a_race():
    """What double buffering invites: the copy may arrive at once."""
    again = (
        EXCHANGE.format(barrier="bar.sync 0;", other=128)
        + """
        {barrier}
        cp.async.ca.shared.global [%r3], [%rd2], 4;
        cp.async.wait_all;
    """
    )
    run(again.format(barrier="bar.sync 0;"), np.zeros(64, np.uint32), threads=64, shared=256)
    with pytest.raises(ptx.PtxError, match="cp.async.*race: written here, and read by thread 32"):
        run(again.format(barrier=""), np.zeros(64, np.uint32), threads=64, shared=256)


def test_a_copy_that_is_waited_for_after_the_barrier_is_a_race():
    body = """
        shl.b32 %r1, %r0, 2;
        mov.u32 %r2, room;
        add.u32 %r3, %r1, %r2;
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        cp.async.ca.shared.global [%r3], [%rd2], 4;
        {0}
        {1}
        xor.b32 %r4, %r1, 128;
        add.u32 %r4, %r4, %r2;
        ld.shared.u32 %r5, [%r4];
    """
    wait, barrier = "cp.async.wait_all;", "bar.sync 0;"
    run(body.format(wait, barrier), np.zeros(64, np.uint32), threads=64, shared=256)
    with pytest.raises(
        ptx.PtxError, match="ld.shared.*race: read here, and written by thread 32 .*; the other access: .*cp.async"
    ):
        run(body.format(barrier, wait), np.zeros(64, np.uint32), threads=64, shared=256)


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
    run(
        """
        mov.u32 %r2, room;
        add.u32 %r3, %r0, %r2;
        cvt.u16.u32 %rs1, %r0;
        st.shared.u8 [%r3], %rs1;
        ld.shared.u8 %rs2, [%r3];
        cvt.u64.u32 %rd2, %r0;
        add.s64 %rd2, %rd2, %rd0;
        st.global.u8 [%rd2], %rs2;
    """,
        found,
        threads=64,
        shared=64,
    )
    np.testing.assert_array_equal(found, np.arange(64))


def test_writing_what_others_still_read_is_a_race():
    again = EXCHANGE.format(barrier="bar.sync 0;", other=128) + "{barrier}\nst.shared.u32 [%r3], %r5;"
    run(again.format(barrier="bar.sync 0;"), np.zeros(64, np.uint32), threads=64, shared=256)
    with pytest.raises(ptx.PtxError, match="race: written here, and read by thread 32"):
        run(again.format(barrier=""), np.zeros(64, np.uint32), threads=64, shared=256)


@pytest.mark.parametrize(
    "body, problem",
    [
        (
            "mad.wide.u32 %rd2, %r0, 4, %rd0;\nst.global.f32 [%rd2], %f1;",
            r"st.global.f32 \[%rd2\], %f1: global out of bounds: byte 80 of the nearest array, which has 80 bytes, "
            r"shape \(20,\) of float32 by thread \(20, 0, 0\)",
        ),
        ("mad.wide.u32 %rd2, %r0, 4, %rd0;\n@!%p1 ld.global.f32 %f1, [%rd2+-4];", r"global out of bounds: byte -4"),
        ("ld.global.f32 %f1, [%rd0+2];", "global misaligned: address .* is no multiple of 4"),
        ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0+4];", "global misaligned: address .* is no multiple of 16"),
        ("ld.shared.f32 %f1, [room];", "shared read before it was written"),
        ("st.shared.f32 [room+64], %f1;", "shared out of bounds: byte 64 of 64"),
        ("st.shared.f32 [room], %f1;", "shared race: written by several threads at once"),
        (
            "setp.lt.u32 %p1, %r0, 9;\n@%p1 bra OTHER;\nbar.sync 0;\nbra LAST;\nOTHER:\nbar.sync 0;\nLAST:",
            r"line \d+: bar.sync 0: a barrier that part of its block never reaches: others wait at line \d+: bar.sync 0",
        ),
        ("trap;", "trap"),
    ],
)
def test_faults_are_told_with_line_and_thread(body, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        memory = np.zeros(32, F)
        start = -memory.ctypes.data % 16 // 4
        run(body, memory[start : start + 20], shared=64)


@pytest.mark.parametrize("access", ["ld.u32 %r5, [%rd3];", "st.u32 [%rd3], %r0;", "atom.add.u32 %r5, [%rd3], 1;"])
@pytest.mark.parametrize(
    "start, place",
    [
        ("mov.u64 %rd2, room;\ncvta.shared.u64 %rd2, %rd2;", "0xfffffffffffffb0, 80 bytes before shared memory"),
        ("mov.u64 %rd2, 0;", "0xffffffffffffffb0, 80 bytes before global memory"),
        (f"mov.u64 %rd2, {(7 << 59) + 80};", "0x3800000000000000, 0 bytes after const memory"),
    ],
)
def test_generic_addresses_outside_of_every_memory_space(start, place, access):
    with pytest.raises(ptx.PtxError, match=rf"generic out of bounds: address {place} by thread \(4, 0, 0\)"):
        run(f"{start}\nadd.s64 %rd3, %rd2, -80;\nsetp.ge.u32 %p1, %r0, 4;\n@%p1 {access}", np.zeros(32, np.uint32), shared=64)


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
