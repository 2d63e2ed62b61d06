"""Barriers after some threads have returned: these count as arrived, those that wait elsewhere do not."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, emulation, launch
from tests.kernels.ptx.handwritten import run

needs_nvvm = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or "")
cuda, kernel = declare.cuda, declare.kernel
RETURN = "setp.lt.u32 %p1, %r0, {gone};\n@%p1 bra LAST;\n"


def numbers(body, threads=64, **options):
    """What each thread leaves in %r5, for those that get so far; 99 for the others."""
    found = np.full(threads, 99, np.uint32)
    run(f"{body}\nmad.wide.u32 %rd2, %r0, 4, %rd0;\nst.global.u32 [%rd2], %r5;\nLAST:", found, threads=threads, **options)
    return found


# 9: part of a warp; 32: a whole warp; 40: a warp and part of another
@pytest.mark.parametrize("gone", [9, 32, 40])
@pytest.mark.parametrize(
    "code, expected",
    [
        ("bar.sync 0;\nmov.u32 %r5, 7;", lambda left: 7),
        ("bar.warp.sync -1;\nmov.u32 %r5, 7;", lambda left: 7),
        ("setp.lt.u32 %p2, %r0, 50;\nbar.red.popc.u32 %r5, 0, %p2;", lambda left: sum(i < 50 for i in left)),
        ("setp.ge.u32 %p2, %r0, {gone};\nbar.red.and.pred %p3, 0, %p2;\nselp.u32 %r5, 1, 0, %p3;", lambda left: 1),
        ("setp.lt.u32 %p2, %r0, {gone};\nbar.red.or.pred %p3, 0, %p2;\nselp.u32 %r5, 1, 0, %p3;", lambda left: 0),
    ],
    ids=["sync", "warp", "count", "and", "or"],
)
def test_threads_that_have_returned_count_as_arrived(gone, code, expected):
    found = numbers((RETURN + code).format(gone=gone))
    left = range(gone, 64)
    np.testing.assert_array_equal(found, [99] * gone + [expected(left)] * len(left))


def test_threads_return_one_after_the_other_between_barriers():
    """Thread i passes i barriers; the last one is alone at its last."""
    found = numbers(
        """
        mov.u32 %r5, 0;
        LOOP:
        setp.eq.u32 %p1, %r5, %r0;
        @%p1 bra LEAVE;
        bar.sync 0;
        add.u32 %r5, %r5, 1;
        bra.uni LOOP;
        LEAVE:
    """,
        threads=40,
    )
    np.testing.assert_array_equal(found, np.arange(40))


def test_blocks_wait_for_their_own_threads():
    """In block 1 the first warp returns, in block 0 nobody does."""
    found = np.zeros(2, np.uint32)
    run(
        """
        mov.u32 %r1, %ctaid.x;
        shl.b32 %r2, %r1, 5;
        setp.lt.u32 %p1, %r0, %r2;
        @%p1 bra LAST;
        setp.eq.u32 %p2, %r0, %r0;
        bar.red.popc.u32 %r5, 0, %p2;
        mad.wide.u32 %rd2, %r1, 4, %rd0;
        setp.ne.u32 %p3, %r0, 63;
        @%p3 bra LAST;
        st.global.u32 [%rd2], %r5;
        LAST:
    """,
        found,
        threads=64,
        blocks=2,
    )
    np.testing.assert_array_equal(found, [64, 32])


@pytest.mark.parametrize("barrier", ["bar.sync 0;", "setp.eq.u32 %p2, %r0, %r0;\nbar.red.popc.u32 %r5, 0, %p2;"])
def test_live_threads_that_never_come_are_an_error(barrier):
    """Some have returned, some wait at another barrier: the first may be missing, the second may not."""
    with pytest.raises(ptx.PtxError, match="part of its block never reaches: others wait at line"):
        numbers(RETURN.format(gone=9) + f"setp.lt.u32 %p1, %r0, 20;\n@%p1 bra OTHER;\n{barrier}\nbra LAST;\nOTHER:\n{barrier}")


@pytest.mark.parametrize("barrier", ["bar.sync 0;", ""])
def test_a_barrier_orders_what_was_done_before_a_return(barrier):
    """The first warp writes what the second one reads, and returns."""
    body = f"""
        mov.u32 %r2, room;
        mad.lo.u32 %r3, %r0, 4, %r2;
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra SECOND;
        st.shared.u32 [%r3], %r0;
        bra.uni LAST;
        SECOND:
        {barrier}
        ld.shared.u32 %r5, [%r3+-128];
    """
    if barrier:
        np.testing.assert_array_equal(numbers(body, shared=256), [99] * 32 + list(range(32)))
    else:
        with pytest.raises(ptx.PtxError, match="shared race: read here, and written by thread 0"):
            numbers(body, shared=256)


@needs_nvvm
def test_a_sum_whose_idle_threads_have_returned():
    """As tutorials write it: a guard that returns, and barriers after it."""

    @kernel("void(f4[::1], f4[::1])")
    def total(x, y):
        partial = cuda.shared.array(64, "f4")
        i, t = cuda.grid(1), cuda.threadIdx.x
        if i >= x.size:
            return
        partial[t] = x[i]
        cuda.syncthreads()
        if t == 0:
            found = partial[0]
            for k in range(1, min(64, x.size - cuda.blockIdx.x * 64)):
                found += partial[k]
            y[cuda.blockIdx.x] = found

    x, y = np.arange(150, dtype=np.float32), np.zeros(3, np.float32)
    with emulation.emulated():
        launch.launch(total, 3, 64, x, y)
    np.testing.assert_array_equal(y, [x[:64].sum(), x[64:128].sum(), x[128:].sum()])


# --- barriers for some threads of a block -----------------------------------------------------------------------------
def test_a_barrier_for_some_warps():
    """Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2; each reads what the other one of its pair wrote."""
    body = """
        mov.u32 %r2, room;
        mad.lo.u32 %r3, %r0, 4, %r2;
        st.shared.u32 [%r3], %r0;
        setp.lt.u32 %p1, %r0, 64;
        @%p1 bra FIRST;
        bar.sync 2, 64;
        bra READ;
        FIRST:
        bar.sync 1, 64;
        READ:
        xor.b32 %r4, %r0, 32;
        mad.lo.u32 %r3, %r4, 4, %r2;
        ld.shared.u32 %r5, [%r3];
    """
    np.testing.assert_array_equal(numbers(body, threads=128, shared=512), np.arange(128) ^ 32)
    with pytest.raises(ptx.PtxError, match="a barrier that part of its block never reaches: others have ended"):
        numbers(body.replace("bar.sync 1, 64", "bar.sync 1, 96"), threads=64, shared=512)


def test_threads_that_arrive_and_go_on():
    """Warp 0 writes and goes on; warp 1 waits for it, and reads. Without the barrier it is a race."""
    body = """
        mov.u32 %r2, room;
        setp.ge.u32 %p1, %r0, 32;
        mov.u32 %r5, 0;
        @%p1 bra TAKE;
        mad.lo.u32 %r3, %r0, 4, %r2;
        st.shared.u32 [%r3], %r0;
        {arrive}
        mov.u32 %r5, 1;
        bra READY;
        TAKE:
        {wait}
        mad.lo.u32 %r3, %r0, 4, %r2;
        ld.shared.u32 %r5, [%r3+-128];
        READY:
    """
    found = numbers(body.format(arrive="bar.arrive 3, 64;", wait="bar.sync 3, 64;"), shared=128)
    np.testing.assert_array_equal(found, [1] * 32 + list(range(32)))
    with pytest.raises(ptx.PtxError, match="shared race|read before it was written"):
        numbers(body.format(arrive="", wait=""), shared=128)


def test_a_counting_barrier_for_some_warps():
    body = """
        mov.u32 %r5, 0;
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra END;
        setp.gt.u32 %p2, %r0, 80;
        bar.red.popc.u32 %r5, 1, 64, %p2;
        END:
    """
    np.testing.assert_array_equal(numbers(body, threads=96), [0] * 32 + [15] * 64)


def test_a_barrier_with_a_predicate():
    """Threads whose predicate is false go on; of the others all have come."""
    body = "setp.lt.u32 %p1, %r0, 32;\nmov.u32 %r5, 1;\n@%p1 bar.sync 1, 32;\n@!%p1 mov.u32 %r5, 2;"
    np.testing.assert_array_equal(numbers(body), [1] * 32 + [2] * 32)
