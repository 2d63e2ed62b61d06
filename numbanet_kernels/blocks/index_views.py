"""The index views of what a plan keeps of a convolution's input matrix, made on the device from its list or table.

row_places      places[r] = where row r stands in the list, -1 where it is dropped
block_places    places[b, j] = where block column j stands among those that block row b keeps, -1 where it is dropped
block_columns   of each block column, the block rows that keep it, increasing, and how many these are
"""

from __future__ import annotations

from numba import int32

from ..runtime.declare import cuda, kernel, kernels
from ..runtime.expect import INT32
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, blocks_for, empty_cuda


@kernels("conv")
def _lists():
    @kernel("void(i4[::1], i4[::1])")
    def row_places(rows, places):
        """A thread searches the list for its row."""
        r = cuda.grid(1)
        if r < places.size:
            low, high = int32(0), int32(rows.size)
            while low < high:
                middle = (low + high) >> 1
                if rows[middle] < r:
                    low = int32(middle + 1)
                else:
                    high = int32(middle)
            places[r] = low if low < rows.size and rows[low] == r else int32(-1)

    @kernel("void(i4[:, ::1], i4[:, ::1])")
    def block_places(kept, places):
        """A thread has one block of the matrix."""
        i = cuda.grid(1)
        if i < places.size:
            b, j, place = i // places.shape[1], i % places.shape[1], int32(-1)
            for q in range(kept.shape[1]):
                if kept[b, q] == j:
                    place = int32(q)
            places[b, j] = place

    @kernel("void(i4[:, ::1], i4[:, ::1], i4[::1])")
    def block_columns(places, columns, counts):
        """A block has a block column: a thread counts what its block rows keep, then lists it after those before it."""
        found = cuda.shared.array(THREADS, int32)
        t, j = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        share = (places.shape[0] + THREADS - 1) // THREADS
        first, stop = t * share, min((t + 1) * share, places.shape[0])
        own = int32(0)
        for b in range(first, stop):
            if places[b, j] >= 0:
                own += int32(1)
        found[t] = own
        cuda.syncthreads()
        at = int32(0)
        for other in range(t):
            at += found[other]
        for b in range(first, stop):
            if places[b, j] >= 0:
                columns[j, at] = b
                at += int32(1)
        if t == THREADS - 1:
            counts[j] = at

    return row_places, block_places, block_columns


def row_places(rows, total):
    """(total,) int32 of an increasing list of rows."""
    places = empty_cuda((total,), INT32)
    launch(_lists()[0], blocks_for(total), THREADS, rows, places)
    return places


def block_places(blocks, depth):
    """(block rows, block columns) int32 for a matrix of so many columns."""
    places = empty_cuda((blocks.kept.shape[0], ceil_div(depth, blocks.width)), INT32)
    launch(_lists()[1], blocks_for(places.size), THREADS, blocks.kept, places)
    return places


def block_columns(blocks, depth):
    """((block columns, block rows), (block columns,)) int32: the block rows of each block column, and how many they are."""
    places = block_places(blocks, depth)
    columns, counts = empty_cuda(places.shape[::-1], INT32), empty_cuda((places.shape[1],), INT32)
    launch(_lists()[2], places.shape[1], THREADS, places, columns, counts)
    return columns, counts
