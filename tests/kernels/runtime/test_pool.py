"""The pool: pieces that are lent never overlap, and what came back is one again."""

import ctypes
import mmap
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from numbanet_kernels import cpu
from numbanet_kernels.runtime import pool as pools, tape
from numbanet_kernels.runtime.memory import empty_cpu
from numbanet_kernels.runtime.pool import Pool, pages

STEP, CHUNK = 16, 1024
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux discards free pages at once")


def small_pool(keep=1 << 20, most=1 << 30, family=None):
    """A pool, and the sizes that it asked for; more than `most` bytes at once are refused."""
    asked = []

    def allocate(size):
        asked.append(size)
        if size > most:
            raise MemoryError
        return np.empty(size, np.uint8)

    return Pool(allocate, CHUNK, keep, STEP, family), asked


@given(st.lists(st.one_of(st.integers(1, 2 * CHUNK), st.floats(0, 1, exclude_max=True))))
def test_pieces_never_overlap_and_join_again(moves):
    """An integer takes so many bytes, a number below 1 gives back the piece at that place among those that are lent."""
    pool, _ = small_pool()
    lent = []
    for move in moves:
        if isinstance(move, int):
            lent.append(pool.take(move))
            assert lent[-1].stop - lent[-1].start == -(-move // STEP) * STEP
        elif lent:
            del lent[int(move * len(lent))]
        pool.give_up(1 << 30)  # nothing, but what came back is seen to
        for chunk in pool.chunks:
            taken = sorted([(p.start, p.stop) for p in lent if p.chunk is chunk] + chunk.free)
            assert [start for start, _ in taken] == [0, *(stop for _, stop in taken[:-1])] and taken[-1][1] == chunk.size
            assert all(a[1] < b[0] for a, b in zip(chunk.free, chunk.free[1:]))
    lent.clear()
    pool.give_up(1 << 30)
    assert all(chunk.idle for chunk in pool.chunks)


def test_other_sizes_take_the_same_bytes():
    pool, asked = small_pool()
    for sizes in ((512, 256), (160, 160, 160), (768,), (64, 640)):
        pieces = [pool.take(size) for size in sizes]
        assert pieces[0].start == 0
        del pieces
    assert asked == [CHUNK] and pool.allocations == 1


def resident():
    """Bytes of this process's arrays that are in memory."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@on_linux
@pytest.mark.parametrize("shift", [0, 3 * STEP])
def test_trimmed_pools_return_the_pages_of_free_ranges_and_no_others(shift):
    """Also if ranges begin or end within a page."""
    size, filled = 1 << 24, []
    pool = Pool(pages, 4 * size, keep=1 << 30, step=STEP)
    lent = [pool.take(size + shift) for _ in range(3)]
    for number, piece in enumerate(lent):
        filled.append(piece.chunk.memory[piece.start : piece.stop])
        filled[-1][:] = number + 1
    before = resident()
    del lent[1]
    pool.trim()
    assert before - resident() > size / 2 and len(pool.chunks) == 1
    assert (filled[0] == 1).all() and (filled[2] == 3).all()
    again = pool.take(size + shift)  # the same bytes, which can be written to
    filled[1][:] = 4
    assert again.start == size + shift and (filled[0] == 1).all() and (filled[2] == 3).all()
    lent.clear()
    del again, piece
    pool.trim()
    assert not pool.chunks


@on_linux
def test_a_recording_returns_the_memory_of_the_run_before_it(monkeypatch):
    """Else a training step would take its memory twice: that of the step that was run, and that of the recorded one."""
    pool = Pool(pages, chunk=1 << 26, keep=1 << 29, step=pools.PAGE)
    for module in (pools, tape):
        monkeypatch.setattr(module, "host_pool", pool)
    x = cpu.full((1 << 22,), 1.0)
    lasting, freed = cpu.relu(x), cpu.relu(x)
    assert len(pool.chunks) == 1
    place = freed.ctypes.data
    del freed
    recorded = cpu.record(lambda: cpu.relu(x))
    assert len(pool.chunks) == 1
    assert not any((ctypes.c_float * x.size).from_address(place)[:: mmap.PAGESIZE])
    recorded.replay()
    assert (recorded.result == 1).all() and (lasting == 1).all()


def test_no_more_idle_chunks_are_kept_than_was_said():
    pool, _ = small_pool(keep=3 * CHUNK)
    pieces = [pool.take(CHUNK) for _ in range(5)]
    assert len(pool.chunks) == 5
    del pieces[1:]
    pool.take(1)
    assert len(pool.chunks) == 4  # and the one that is in use
    assert pool.take(8 * CHUNK).chunk.size == 8 * CHUNK
    pool.take(1)
    assert len(pool.chunks) == 4


def test_a_large_piece_is_let_go_at_once():
    pool, _ = small_pool(keep=CHUNK)
    piece = pool.take(Pool.LARGE)
    assert len(pool.chunks) == 1
    del piece
    assert not pool.chunks


def test_where_memory_is_short_all_pools_give_up_what_is_idle():
    family, left = [], [4 * CHUNK]

    class Memory(np.ndarray):
        def __del__(self):
            left[0] += self.size

    def allocate(size):
        if size > left[0]:
            raise MemoryError
        left[0] -= size
        return np.empty(size, np.uint8).view(Memory)

    first, second = (Pool(allocate, chunk, 1 << 20, STEP, family) for chunk in (2 * CHUNK, CHUNK))
    first.take(3 * CHUNK)
    second.take(CHUNK)
    assert left == [0] and second.take(3 * CHUNK).chunk.size == 3 * CHUNK and not first.chunks
    pieces = [second.take(CHUNK // 2) for _ in range(8)]
    with pytest.raises(MemoryError):
        first.take(STEP)
    del pieces


@pytest.mark.alone
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_an_exception_from_a_signal_leaves_no_lock_behind():
    """In a process of its own: what is raised inside a finaliser is reported, and ignored."""
    program = """if True:
        import signal, sys, time
        import numpy as np
        from numbanet_kernels.runtime import pool as pools

        def interrupt(number, frame):
            if expected:
                raise InterruptedError

        expected = False
        pool = pools.host_pool = pools.Pool(lambda size: np.empty(size, np.uint8), 1024, 1 << 20, 16)
        pool.LARGE = 0  # every piece is seen to when it comes back
        until, interrupted = time.monotonic() + 1, 0
        sys.unraisablehook = lambda report: None
        signal.signal(signal.SIGALRM, interrupt)
        while time.monotonic() < until:
            try:
                expected = True
                signal.setitimer(signal.ITIMER_REAL, 2e-4)
                while True:
                    pools.lend_host(64, (16,), np.dtype(np.float32))
                    if pool.lock.locked():
                        raise SystemExit("the lock is held by nobody")
                    if signal.getitimer(signal.ITIMER_REAL)[0] == 0:  # it rang in a finaliser, or Python is about to see it
                        expected = False
                        break
            except InterruptedError:
                pass
            interrupted += 1
        print(interrupted)
        """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_arrays_start_at_a_page():
    assert [empty_cpu(n).ctypes.data % 4096 for n in (1 << 14, 12345 * 4)] == [0, 0]
