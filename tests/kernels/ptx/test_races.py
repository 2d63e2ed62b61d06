"""Races within one block on global memory: kernels with one planted, and the same kernels with what orders their threads."""

import numpy as np
import pytest

from numbanet_kernels import ptx
from numbanet_kernels.runtime import availability, declare, emulation
from tests.kernels.ptx.handwritten import run

pytestmark = pytest.mark.skipif(availability.nvvm_problem() is not None, reason=str(availability.nvvm_problem()))
cuda = declare.cuda
kernel = declare.kernel


def histogram(right):
    """How often each number comes: lanes that have one number add at once."""

    @kernel("void(i4[::1], i4[::1])")
    def counted(x, y):
        i = cuda.threadIdx.x
        if right:
            cuda.atomic.add(y, x[i], 1)
        else:
            y[x[i]] += 1

    return counted, lambda x: np.bincount(x, minlength=x.size)


def neighbours(right):
    """y[i] = 2 x[i] + 2 x[i + 32]: what threads of another warp have written."""

    @kernel("void(i4[::1], i4[::1])")
    def doubled(x, y):
        i = cuda.threadIdx.x
        x[i] = 2 * x[i]
        if right:
            cuda.syncthreads()
        y[i] = x[i] + x[(i + 32) % x.size]

    return doubled, lambda x: 2 * x + 2 * np.roll(x, -32)


def one_word(right):
    """The last thread's number: all write it, or that one alone does."""

    @kernel("void(i4[::1], i4[::1])")
    def last(x, y):
        i = cuda.threadIdx.x
        if not right or i == cuda.blockDim.x - 1:
            y[0] = x[i]

    return last, lambda x: np.array([x[-1]] + [0] * (x.size - 1))


def in_place(right):
    """x moved by one: who reads what its neighbour, a lane of its warp, has overwritten?"""

    @kernel("void(i4[::1], i4[::1])")
    def moved(x, y):
        i = cuda.threadIdx.x
        value = x[(i + 1) % x.size]
        if right:
            cuda.syncthreads()
        x[i] = value
        y[i] = value

    return moved, lambda x: np.roll(x, -1)


def total(right):
    """A sum by atomics, read before all have added."""

    @kernel("void(i4[::1], i4[::1])")
    def summed(x, y):
        i = cuda.threadIdx.x
        if i == 0:
            y[1] = 0
        cuda.syncthreads()
        cuda.atomic.add(y, 1, x[i])
        if right:
            cuda.syncthreads()
        if i == 0:
            y[0] = y[1]

    return summed, lambda x: np.array([x.sum(), x.sum()] + [0] * (x.size - 2))


def tree(right):
    """A sum by halves in global memory; the last steps within one warp want a barrier of the warp."""

    @kernel("void(i4[::1], i4[::1])")
    def halved(x, y):
        i = cuda.threadIdx.x
        step = x.size // 2
        while step > 0:
            if i < step:
                x[i] += x[i + step]
            if step > 32:
                cuda.syncthreads()
            elif right:
                cuda.syncwarp()
            step //= 2
        if i == 0:
            y[0] = x[0]

    return halved, lambda x: np.array([x.sum()] + [0] * (x.size - 1))


PLANTED = [histogram, neighbours, one_word, in_place, total, tree]


def launch(made, blocks=1, threads=128):
    x, y = np.random.default_rng(0).integers(0, 9, blocks * threads).astype(np.int32), np.zeros(blocks * threads, np.int32)
    before = x.copy()
    ptx.run(emulation.program(made, emulation.EMULATED), (blocks,), (threads,), (x, y), name=made.__name__)
    return before, y


@pytest.mark.parametrize("planted", PLANTED)
def test_a_race_within_a_block_is_found_and_without_it_nothing_is(planted):
    made, expected = planted(right=True)
    x, y = launch(made)
    np.testing.assert_array_equal(y, expected(x))
    with pytest.raises(ptx.PtxError, match=r"global race: (read|written) .*by (thread|several)"):
        launch(planted(right=False)[0])


def test_a_barrier_orders_its_block_alone():
    @kernel("void(i4[::1], i4[::1])")
    def handed_on(x, y):
        i = cuda.grid(1)
        if cuda.blockIdx.x == 0:
            y[i] = x[i]
        cuda.syncthreads()
        x[i] = y[cuda.threadIdx.x]

    launch(handed_on)
    with pytest.raises(ptx.PtxError, match="global race: read here, and written by thread 0 of block 0 by .* block .1,"):
        launch(handed_on, blocks=2)


def test_writes_of_equal_values_are_a_race():
    @kernel("void(i4[::1], i4[::1])")
    def flagged(x, y):
        y[0] = 1

    with pytest.raises(ptx.PtxError, match="global race: written by several threads at once"):
        launch(flagged)


def test_a_read_that_nobody_writes_beside_is_only_remembered(monkeypatch):
    """An array that is written late: the reads before it count, whether they were noted at once or remembered."""
    made, _ = in_place(right=False)
    for most in (1 << 20, 0):
        monkeypatch.setattr("numbanet_kernels.ptx.races.LOG", most)
        with pytest.raises(ptx.PtxError, match="global race: written here, and read by thread"):
            launch(made)


@pytest.mark.parametrize(
    "others", ["ld.relaxed.gpu.global.u32 %r2, [%rd1];", "st.global.u32 [%rd1], 7;", "ld.global.u32 %r2, [%rd1];"]
)
def test_strong_reads_race_with_plain_writes_alone(others):
    program = ptx.parse(f"""
        .visible .entry polled(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u64 x, .param .u64 e,
                              .param .u64 f)
        {{
            .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [x];
            mov.u32 %r1, %tid.x;
            setp.eq.u32 %p1, %r1, 0;
            @%p1 ld.relaxed.gpu.global.u32 %r2, [%rd1];
            setp.eq.u32 %p1, %r1, 1;
            @%p1 {others}
            ret;
        }}
    """)
    arguments = (1,), (2,), [np.zeros(1, np.int32)]
    if others.startswith("ld"):
        assert ptx.run(program, *arguments).summary()["issued"] == 7
    else:
        with pytest.raises(ptx.PtxError, match="race: written here, and looked at by thread 0 with no barrier between"):
            ptx.run(program, *arguments)


def test_each_word_of_a_wide_access_is_its_threads():
    """Threads that write their own word, then both of their own words at once, and read one of them, do not race."""
    y = np.zeros(64, np.uint32)
    run(
        """
        mul.wide.u32 %rd30, %r0, 8;
        add.s64 %rd31, %rd0, %rd30;
        st.global.u32 [%rd31], 7;
        st.global.v2.u32 [%rd31], {%r0, %r0};
        ld.global.u32 %r1, [%rd31+4];
        """,
        y,
    )
    np.testing.assert_array_equal(y, np.arange(32).repeat(2))
