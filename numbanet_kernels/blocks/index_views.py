"""Index views of the kept rows or blocks of a convolution's im2col matrix, computed on the device from its list or table.

row_inverse      inverse[r] = position of row r in the list, -1 if dropped
block_inverse    inverse[b, j] = position of block column j among those that block row b keeps, -1 if dropped
block_columns    for each block column, the block rows that keep it, increasing, and their number
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
    def row_inverse(rows, inverse):
        """Each thread finds one row by binary search in the list."""
        r = cuda.grid(1)
        if r < inverse.size:
            low, high = int32(0), int32(rows.size)
            while low < high:
                middle = (low + high) >> 1
                if rows[middle] < r:
                    low = int32(middle + 1)
                else:
                    high = int32(middle)
            inverse[r] = low if low < rows.size and rows[low] == r else int32(-1)

    @kernel("void(i4[:, ::1], i4[:, ::1])")
    def block_inverse(kept, inverse):
        """Each thread finds one block of the matrix in the list of its block row."""
        i = cuda.grid(1)
        if i < inverse.size:
            b, j, position = i // inverse.shape[1], i % inverse.shape[1], int32(-1)
            for q in range(kept.shape[1]):
                if kept[b, q] == j:
                    position = int32(q)
            inverse[b, j] = position

    @kernel("void(i4[:, ::1], i4[:, ::1], i4[::1])")
    def block_columns(inverse, columns, counts):
        """Each block lists one block column: a thread counts the kept block rows in its share, then writes them."""
        counted = cuda.shared.array(THREADS, int32)
        t, j = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        share = (inverse.shape[0] + THREADS - 1) // THREADS
        first, stop = t * share, min((t + 1) * share, inverse.shape[0])
        count = int32(0)
        for b in range(first, stop):
            if inverse[b, j] >= 0:
                count += int32(1)
        counted[t] = count
        cuda.syncthreads()
        at = int32(0)
        for other in range(t):
            at += counted[other]
        for b in range(first, stop):
            if inverse[b, j] >= 0:
                columns[j, at] = b
                at += int32(1)
        if t == THREADS - 1:
            counts[j] = at

    return row_inverse, block_inverse, block_columns


def row_inverse(rows, total):
    """Return an int32 array (total,): the position of each row in the increasing list `rows`, or -1 if it is dropped."""
    inverse = empty_cuda((total,), INT32)
    launch(_lists()[0], blocks_for(total), THREADS, rows, inverse)
    return inverse


def block_inverse(blocks, depth):
    """Return an int32 array (block rows, block columns) for a matrix with `depth` columns: the position of each block among
    those that its block row keeps, or -1 if it is dropped.
    """
    inverse = empty_cuda((blocks.kept.shape[0], ceil_div(depth, blocks.width)), INT32)
    launch(_lists()[1], blocks_for(inverse.size), THREADS, blocks.kept, inverse)
    return inverse


def block_columns(blocks, depth):
    """Return two int32 arrays: columns (block columns, block rows) lists the block rows that keep each block column, and counts
    (block columns,) holds how many they are.
    """
    inverse = block_inverse(blocks, depth)
    columns, counts = empty_cuda(inverse.shape[::-1], INT32), empty_cuda((inverse.shape[1],), INT32)
    launch(_lists()[2], inverse.shape[1], THREADS, inverse, columns, counts)
    return columns, counts
