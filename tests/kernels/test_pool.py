"""The pool: pieces that are lent never overlap, and what came back is one again."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from numbanet_kernels.pool import Pool

STEP, CHUNK = 16, 1024


def small_pool(keep=1 << 20, most=1 << 30):
    """A pool, and the sizes that it asked for; more than `most` bytes at once are refused."""
    asked = []

    def allocate(size):
        asked.append(size)
        if size > most:
            raise MemoryError
        return np.empty(size, np.uint8)

    return Pool(allocate, CHUNK, keep, STEP), asked


@given(st.lists(st.one_of(st.integers(1, 2 * CHUNK), st.floats(0, 1, exclude_max=True))))
def test_pieces_never_overlap_and_join_again(moves):
    """An integer takes so many bytes, a number below 1 gives back the piece at that place among those that are lent."""
    pool, _ = small_pool()
    lent = []
    for move in moves:
        if isinstance(move, int):
            piece = pool.take(move)
            assert piece.stop - piece.start == -(-move // STEP) * STEP
            lent.append(piece)
        elif lent:
            pool.give_back(lent.pop(int(move * len(lent))))
        for chunk in pool.chunks:
            taken = sorted([(p.start, p.stop) for p in lent if p.chunk is chunk] + chunk.free)
            assert [start for start, _ in taken] == [0, *(stop for _, stop in taken[:-1])] and taken[-1][1] == chunk.size
            assert all(a[1] < b[0] for a, b in zip(chunk.free, chunk.free[1:]))
    for piece in lent:
        pool.give_back(piece)
    assert all(chunk.idle for chunk in pool.chunks)


def test_other_sizes_take_the_same_bytes():
    pool, asked = small_pool()
    for sizes in ((512, 256), (160, 160, 160), (768,), (64, 640)):
        pieces = [pool.take(size) for size in sizes]
        assert pieces[0].start == 0
        for piece in pieces:
            pool.give_back(piece)
    assert asked == [CHUNK] and pool.allocations == 1


def test_no_more_is_kept_than_was_said():
    pool, _ = small_pool(keep=3 * CHUNK)
    pieces = [pool.take(CHUNK) for _ in range(5)]
    for piece in pieces:
        pool.give_back(piece)
    assert len(pool.chunks) == 3
    large = pool.take(8 * CHUNK)
    assert large.chunk.size == 8 * CHUNK
    pool.give_back(large)
    assert len(pool.chunks) == 3


def test_where_memory_is_short_what_is_idle_is_given_up_first():
    pool, asked = small_pool(most=CHUNK // 2)
    piece = pool.take(100)
    assert asked == [CHUNK, 112] and piece.chunk.size == 112
    pool.give_back(piece)
    with pytest.raises(MemoryError):
        pool.take(CHUNK)
    assert not pool.chunks and pool.take(100).chunk.size == 112
