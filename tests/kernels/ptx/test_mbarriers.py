"""Barriers in shared memory (mbarrier): phases, states, parities, and the order that they make."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.ptx import machine

from .handwritten import run

# room: the barrier, and from byte 16 on a word for each thread
START = """
    mov.u32 %r1, room;
    mad.lo.u32 %r2, %r0, 4, %r1;
    mad.wide.u32 %rd2, %r0, 4, %rd0;
    setp.ne.u32 %p1, %r0, 0;
    @!%p1 mbarrier.init.shared.b64 [%r1], {count};
    {after}
"""
STATE = """
    mbarrier.arrive.shared.b64 %rd3, [%r1];
    WAIT:
    mbarrier.test_wait.shared.b64 %p2, [%r1], %rd3;
    @!%p2 bra WAIT;
"""
PARITY = """
    mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1], 1;
    WAIT:
    mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
"""
# thread i writes its word, waits, and reads that of thread 63 - i
EXCHANGE = """
    st.shared.u32 [%r2+16], %r0;
    {wait}
    sub.u32 %r3, 63, %r0;
    mad.lo.u32 %r4, %r3, 4, %r1;
    ld.shared.u32 %r5, [%r4+16];
    st.global.u32 [%rd2], %r5;
"""


def start(count=64, after="bar.sync 0;"):
    return START.format(count=count, after=after)


def found(body, threads=64, **options):
    result = np.zeros(threads, np.uint32)
    counters = run(body, result, threads=threads, shared=512, **options)
    assert counters.summary()["issued barrier"] > 0
    return result.tolist()


@pytest.mark.parametrize("wait", [STATE, PARITY])
def test_threads_wait_for_each_other(wait):
    assert found(start() + EXCHANGE.format(wait=wait)) == list(range(63, -1, -1))


@pytest.mark.parametrize(
    "wait",
    [
        "",
        "mbarrier.arrive.shared.b64 %rd3, [%r1];",
        STATE.replace("arrive.", "arrive.relaxed.cta."),
        PARITY.replace(".acquire.cta", ".relaxed.cta"),
        # the phase before the first one has ended, whoever arrives
        "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r1], 1;\n@!%p2 bra WAIT;",
    ],
)
def test_what_does_not_order_is_a_race(wait):
    with pytest.raises(ptx.PtxError, match=r"shared race: read here, and written by thread \d+"):
        found(start() + EXCHANGE.format(wait=wait))


def test_what_several_threads_have_read_may_be_written_after_the_barrier():
    body = """
        @!%p1 st.shared.u32 [room+16], 5;
        bar.sync 0;
        ld.shared.u32 %r5, [room+16];
        {wait}
        @!%p1 st.shared.u32 [room+16], 6;
        st.global.u32 [%rd2], %r5;
    """
    assert found(start() + body.format(wait=STATE)) == [5] * 64
    with pytest.raises(ptx.PtxError, match="shared race: written here, and read by several threads"):
        found(start() + body.format(wait="mbarrier.arrive.shared.b64 %rd3, [%r1];"))
    # 63 of 64 are enough for the barrier, and not for the order of what all have read
    skip = "setp.eq.u32 %p3, %r0, 9;\n@%p3 bra LAST;\n"
    with pytest.raises(ptx.PtxError, match="shared race: written here, and read by several threads"):
        found(start(63) + body.format(wait=skip + STATE) + "LAST:")


@pytest.mark.slow
def test_phases_follow_each_other():
    """In each of three phases, a thread adds what the thread before it has written in the last one."""
    body = """
        st.shared.u32 [%r2+16], %r0;
        add.u32 %r3, %r0, 63;
        and.b32 %r3, %r3, 63;
        mad.lo.u32 %r3, %r3, 4, %r1;
        mov.u32 %r5, %r0;
        mov.u32 %r6, 0;
        AGAIN:
        and.b32 %r7, %r6, 1;
        mbarrier.arrive.shared.b64 %rd3, [%r1];
        READS:
        mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;
        @!%p2 bra READS;
        ld.shared.u32 %r8, [%r3+16];
        add.u32 %r5, %r5, %r8;
        mbarrier.arrive.shared.b64 %rd3, [%r1];
        WRITES:
        mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1;
        @!%p2 bra WRITES;
        st.shared.u32 [%r2+16], %r5;
        add.u32 %r6, %r6, 1;
        setp.lt.u32 %p3, %r6, 3;
        @%p3 bra AGAIN;
        st.global.u32 [%rd2], %r5;
    """
    expected = np.arange(64)
    for _ in range(3):
        expected = expected + np.roll(expected, 1)
    assert found(start() + body) == expected.tolist()


def test_states_counts_and_what_is_dropped():
    """Of 40 arrivals, thread 0 makes 3, drops 2 and then makes the rest: 35, of 38 in the next phase."""
    body = """
        mbarrier.arrive.noComplete.shared.b64 %rd3, [%r1], 3;
        mbarrier.pending_count.b64 %r5, %rd3;
        st.global.u32 [%rd0], %r5;
        mbarrier.arrive_drop.shared.b64 %rd4, [%r1], 2;
        mbarrier.pending_count.b64 %r5, %rd4;
        st.global.u32 [%rd0+4], %r5;
        mbarrier.arrive.shared.b64 %rd5, [%r1], 35;
        mbarrier.pending_count.b64 %r5, %rd5;
        st.global.u32 [%rd0+8], %r5;
        mbarrier.test_wait.shared.b64 %p2, [%r1], %rd5;
        selp.u32 %r5, 1, 0, %p2;
        st.global.u32 [%rd0+12], %r5;
        mbarrier.arrive.shared.b64 %rd6, [%r1];
        mbarrier.test_wait.shared.b64 %p2, [%r1], %rd6;
        mbarrier.pending_count.b64 %r5, %rd6;
        selp.u32 %r5, 1, %r5, %p2;
        st.global.u32 [%rd0+16], %r5;
    """
    result = np.zeros(5, np.uint32)
    run(start(40) + body, result, threads=1, shared=64)
    assert result.tolist() == [40, 37, 35, 1, 38]


def test_a_barrier_in_the_memory_of_each_block():
    result = np.zeros(128, np.uint32)
    body = "mov.u32 %r9, %ctaid.x;\nmad.lo.u32 %r9, %r9, 64, %r0;\nmad.wide.u32 %rd2, %r9, 4, %rd0;\n"
    run(start() + body + EXCHANGE.format(wait=STATE), result, threads=64, blocks=2, shared=512)
    assert result.tolist() == 2 * list(range(63, -1, -1))


@pytest.mark.parametrize(
    "body, problem",
    [
        (start(0), "a barrier of 0 arrivals: from 1 to 1048575 are possible"),
        (start() + "mbarrier.arrive.shared.b64 %rd3, [%r1], 65;", "barrier: 65 arrive, and its phase waits for 64 of 64"),
        (start() + "mbarrier.arrive.noComplete.shared.b64 %rd3, [%r1], 1;", "an arrival with .noComplete completes the phase"),
        (start(after="") + STATE, "shared race: used here, and initialised by thread 0 with no barrier between"),
        ("mov.u32 %r1, room;\n" + STATE, "shared read before it was written"),
        (start(1) + "@!%p1 mbarrier.inval.shared.b64 [%r1];\nbar.sync 0;\n" + STATE, "shared read before it was written"),
        ("mov.u32 %r1, room;\nmbarrier.arrive.shared.b64 %rd3, [%r1+4];", "shared misaligned: address .* is no multiple of 8"),
        (
            start() + "mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r1], 8;",
            "does not know the instruction mbarrier.arrive.expect",
        ),
        (start() + "mbarrier.complete_tx.shared.b64 [%r1], 8;", "does not know the instruction mbarrier.complete_tx"),
    ],
)
def test_faults(body, problem):
    with pytest.raises(ptx.PtxError, match=problem):
        run(body, np.zeros(64, np.uint32), threads=64, shared=64)


def test_threads_of_the_warp_of_the_first_one_need_no_barrier():
    assert found(start(32, after="") + STATE + "st.global.u32 [%rd2], %r0;", threads=32) == list(range(32))


def test_too_few_arrivals_are_a_deadlock(monkeypatch):
    monkeypatch.setattr(machine, "MOST_POLLS", 200)
    with pytest.raises(
        ptx.PtxError, match=r"line \d+: mbarrier\.test_wait.*the kernel does not end: all threads that run wait"
    ):
        found(start(65) + STATE)


OTHER = """
    @!%p1 mbarrier.init.shared.b64 [%r1+8], 64;
    {order}
    mbarrier.arrive.shared.b64 %rd3, [%r1+8];
    OTHER:
    mbarrier.test_wait.shared.b64 %p2, [%r1+8], %rd3;
    @!%p2 bra OTHER;
    st.global.u32 [%rd2], %r0;
"""


@pytest.mark.parametrize("wait", [STATE, PARITY])
def test_a_phase_orders_the_initialisation_of_another_barrier_before_its_use(wait):
    assert found(start() + OTHER.format(order=wait)) == list(range(64))
    with pytest.raises(ptx.PtxError, match="shared race: used here, and initialised by thread 0 with no barrier between"):
        found(start() + OTHER.format(order=""))


def test_two_warps_that_initialise_one_barrier_race():
    body = "mov.u32 %r1, room; mad.wide.u32 %rd2, %r0, 4, %rd0; mbarrier.init.shared.b64 [%r1], 64; st.global.u32 [%rd2], %r0;"
    with pytest.raises(ptx.PtxError, match=r"shared race: initialised here, and initialised by thread \d+ with no barrier"):
        found(body)
