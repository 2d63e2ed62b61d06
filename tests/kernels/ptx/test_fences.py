"""Order by fences and atomic instructions, and threads that wait for each other."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.ptx import fences as fences_of, machine
from numbanet_kernels.ptx.fences import Fences, Moment
from tests.kernels.ptx.handwritten import run

HAND_OVER = """
    mov.u32 %r1, %ctaid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra TAKE;
    st.global.u32 [%rd0+4], 7;
    {fence}
    {set}
    bra.uni DONE;
    TAKE:
    {get}
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra TAKE;
    ld.global.u32 %r3, [%rd0+4];
    st.global.u32 [%rd0+8], %r3;
    DONE:
"""
WAYS = [
    ("atom.global.exch.b32 %r4, [%rd0], 1;", "atom.global.add.u32 %r2, [%rd0], 0;"),
    ("st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.relaxed.gpu.global.u32 %r2, [%rd0];"),
    ("red.global.add.u32 [%rd0], 1;", "ld.volatile.global.u32 %r2, [%rd0];"),
]


@pytest.mark.parametrize("fence", ["membar.gl;", "fence.acq_rel.gpu;", "membar.sys;", "membar.cta;", ""])
@pytest.mark.parametrize("set_it, get_it", WAYS)
def test_what_is_handed_over_from_block_to_block(fence, set_it, get_it):
    """A fence of the card orders it; one of the block does not, nor does none."""
    memory = np.zeros(3, np.uint32)
    body = HAND_OVER.format(fence=fence, set=set_it, get=get_it)
    if fence and "cta" not in fence:
        run(body, memory, threads=1, blocks=2)
        np.testing.assert_array_equal(memory, [1, 7, 7])
    else:
        with pytest.raises(ptx.PtxError, match="race: read here, and written by thread 0 of block 0 .*other access: .*st"):
            run(body, memory, threads=1, blocks=2)


@pytest.mark.parametrize(
    "set_it, right",
    [
        ("st.release.gpu.global.u32 [%rd0], 1;", True),
        ("atom.acq_rel.gpu.global.exch.b32 %r4, [%rd0], 1;", True),
        ("atom.relaxed.gpu.global.exch.b32 %r4, [%rd0], 1;", False),
    ],
)
def test_accesses_that_are_fences_themselves(set_it, right):
    body = HAND_OVER.format(fence="", set=set_it, get="ld.acquire.gpu.global.u32 %r2, [%rd0];")
    if right:
        run(body, np.zeros(3, np.uint32), threads=1, blocks=2)
    else:
        with pytest.raises(ptx.PtxError, match="global race"):
            run(body, np.zeros(3, np.uint32), threads=1, blocks=2)


@pytest.mark.parametrize("waits", [True, False])
def test_what_an_atomic_instruction_has_read_is_read_again(waits):
    """In a kernel with a fence elsewhere, which notes who has read which location; without it, no order is looked for."""
    body = HAND_OVER.format(fence="", set="red.global.add.u32 [%rd0], 1;", get="atom.global.add.u32 %r2, [%rd0], 0;")
    body = body.replace("st.global.u32 [%rd0+4], 7;", "").replace("[%rd0+4]", "[%rd0]").replace("DONE:", "DONE: membar.gl;")
    memory = np.zeros(3, np.uint32)
    if waits:
        run(body, memory, threads=1, blocks=2)
        np.testing.assert_array_equal(memory, [1, 0, 1])
    else:  # block 1 reads a location that it has not seen changed
        body = body.replace("atom.global.add.u32 %r2, [%rd0], 0;", "mov.u32 %r2, 1;")
        with pytest.raises(ptx.PtxError, match="race: read here, and changed"):
            run(body, memory, threads=1, blocks=2)


def at(block, stamp, epoch=0, lane=0, warp_epoch=0):
    return Moment(block << 12 | lane, stamp, epoch, warp_epoch)


def test_order_is_handed_on_from_thread_to_thread():
    """Block 0 releases to block 1, which acquires, and releases to block 2."""
    fences = Fences(3)
    fences.fence([(0, 0, 0)], wide=True)
    fences.touch(0, [0], [(0, 0, 0)], reads=False, writes=True)
    fences.touch(0, [0], [(1 << 12, 0, 0)], reads=True, writes=False)
    fences.fence([(1 << 12, 0, 0)], wide=True)
    fences.touch(0, [8], [(1 << 12, 0, 0)], reads=False, writes=True)
    before = at(0, 0)
    assert not fences.ordered(before, at(2, fences.clock), one=True, everywhere=False)
    fences.touch(0, [8], [(2 << 12, 0, 0)], reads=True, writes=False)
    assert fences.ordered(before, at(2, fences.clock), one=True, everywhere=False)
    assert not fences.ordered(at(0, 1), at(2, fences.clock), one=True, everywhere=False)  # after its fence
    assert not fences.ordered(at(0, 0, lane=1), at(2, fences.clock), one=True, everywhere=False)  # another thread, no barrier
    assert not fences.ordered(before, at(2, 3), one=True, everywhere=False)  # before the acquire
    assert fences.ordered(before, at(2, fences.clock), one=False, everywhere=True)  # blocks 0 and 1 are before
    assert not Fences(4).ordered(before, at(2, fences.clock), one=False, everywhere=True)


def test_barriers_around_a_fence_count():
    """What other threads of the block did before a barrier before the fence, and what they do after one after the acquire."""
    fences = Fences(2)
    fences.fence([(0, 1, 0)], wide=True)
    fences.touch(0, [0], [(0, 1, 0)], reads=False, writes=True)
    fences.touch(0, [0], [(1 << 12, 4, 0)], reads=True, writes=False)
    for epoch, later, ordered in ((0, 5, True), (1, 5, False), (0, 4, False)):
        found = fences.ordered(at(0, 0, epoch, lane=3), at(1, fences.clock, later, lane=3), one=True, everywhere=False)
        assert found == ordered


POLL = """
    LOOP:
    ld.volatile.global.u32 %r1, [%rd0];
    setp.lt.u32 %p1, %r1, %r0;
    @%p1 bra LOOP;
    add.u32 %r2, %r0, 1;
    st.volatile.global.u32 [%rd0], %r2;
"""


def test_threads_of_a_warp_wait_for_each_other():
    """Thread k waits for thread k - 1, at the same instruction: those that have gone on must run."""
    memory = np.zeros(1, np.uint32)
    run(POLL, memory)
    assert memory[0] == 32


def test_a_barrier_is_passed_while_others_poll():
    """Warp 0 polls until warp 1 has met at a barrier of its own, and gone on."""
    body = """
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra OTHER;
        LOOP:
        ld.volatile.global.u32 %r1, [%rd0];
        setp.eq.u32 %p2, %r1, 0;
        @%p2 bra LOOP;
        bra.uni DONE;
        OTHER:
        bar.sync 1, 64;
        st.volatile.global.u32 [%rd0], 5;
        DONE:
    """
    memory = np.zeros(1, np.uint32)
    run(body, memory, threads=96)
    assert memory[0] == 5


def test_threads_that_poll_for_ever_are_told_soon(monkeypatch):
    monkeypatch.setattr(machine, "MOST_POLLS", 200)
    with pytest.raises(ptx.PtxError, match="does not end: all threads that run wait here .* none of them changes; polled by"):
        run(POLL.replace("setp.lt.u32 %p1, %r1, %r0", "setp.le.u32 %p1, %r1, %r0"), np.zeros(1, np.uint32))


def test_blocks_that_wait_for_later_ones_are_told_of_them(monkeypatch):
    monkeypatch.setattr(machine, "MOST_POLLS", 200)
    monkeypatch.setattr(machine, "WAVE", 32)
    body = POLL.replace("%r0;\n    @%p1", "1;\n    @%p1")
    with pytest.raises(ptx.PtxError, match="the last 2 blocks of the grid run when these have ended"):
        run(body, np.zeros(1, np.uint32), threads=1, blocks=3)


def test_reading_much_memory_is_no_poll(monkeypatch):
    """A long loop of volatile loads, each of another element."""
    monkeypatch.setattr(machine, "MOST_POLLS", 50)
    body = """
        mov.u64 %rd1, %rd0;
        mov.u32 %r2, 0;
        LOOP:
        ld.volatile.global.u32 %r1, [%rd1];
        add.u32 %r2, %r2, %r1;
        add.s64 %rd1, %rd1, 4;
        setp.lt.u32 %p1, %r1, 500;
        @%p1 bra LOOP;
        setp.eq.u32 %p2, %r0, 0;
        @%p2 st.global.u32 [%rd0], %r2;
    """
    memory = np.arange(501, dtype=np.uint32)
    run(body.replace("@%p2 st", "bar.sync 0;\n@%p2 st"), memory)
    assert memory[0] == 500 * 501 // 2


@pytest.mark.slow
def test_threads_that_read_two_words_at_once_wait_for_others(monkeypatch):
    """A flag in the second of two words, and the one who sets it comes last."""
    memory = np.zeros(2, np.uint32)
    body = """
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra SET;
        WAIT:
        ld.volatile.global.v2.u32 {%r2, %r3}, [%rd0];
        setp.eq.u32 %p2, %r3, 0;
        @%p2 bra WAIT;
        bra.uni DONE;
        SET:
        atom.global.exch.b32 %r4, [%rd0+4], 1;
        DONE:
    """
    run(body, memory, threads=64)
    assert memory.tolist() == [0, 1]
    monkeypatch.setattr(machine, "MOST_POLLS", 500)
    with pytest.raises(ptx.PtxError, match="all threads that run wait here"):
        run(body, np.zeros(2, np.uint32), threads=32)


def test_accesses_that_wait_are_looked_at_before_they_are_too_many():
    """The last of them decides, at once or later."""
    fences, lanes = Fences(2), np.array([[code, 0, 0] for code in range(32)])
    for _ in range(3 * fences_of.MOST_WAITING + 5):
        fences.touch(7, np.arange(32), lanes, reads=True, writes=True)
        assert sum(map(len, fences.waiting.values())) <= fences_of.MOST_WAITING
    now = Moment(0, fences.clock, 1, 1)
    assert fences.observed((7, 31), now) and not fences.observed((7, 31), Moment(0, 5, 0, 0))
