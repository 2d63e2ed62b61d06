"""A copy that exchanges two axes: squares are read into shared memory, and written from there."""

from __future__ import annotations

from numba import float32, int32

from ..runtime.declare import cuda, kernel, kernels

EDGE, HEIGHT = 32, 8  # side of the square that a block transposes, and number of rows of its threads
SQUARE = EDGE * (EDGE + 1)  # with this padding, the elements of a column are in 32 different banks


@kernels("indexing")
def turning():
    @kernel("void(f4[::1], f4[::1], i4, i4, i4, i4, i4, i4, i4, i4, i4)")
    def turned_copy(x, y, n_a, n_b, s_b, t_a, n1, s0, t0, s1, t1):
        """y[i0 t0 + i1 t1 + a t_a + b] = x[i0 s0 + i1 s1 + a + b s_b]: where x is contiguous along a, and y along b. The copy
        goes through shared memory, so that adjacent threads read and write adjacent elements.
        """
        square = cuda.shared.array(SQUARE, float32)
        tx, ty, outer = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.z)
        a0, b0 = int32(cuda.blockIdx.y * EDGE), int32(cuda.blockIdx.x * EDGE)
        i0, i1 = outer // n1, outer % n1
        for j in range(0, EDGE, HEIGHT):
            if a0 + tx < n_a and b0 + ty + j < n_b:
                square[(ty + j) * (EDGE + 1) + tx] = x[i0 * s0 + i1 * s1 + a0 + tx + (b0 + ty + j) * s_b]
        cuda.syncthreads()
        for j in range(0, EDGE, HEIGHT):
            if a0 + ty + j < n_a and b0 + tx < n_b:
                y[i0 * t0 + i1 * t1 + (a0 + ty + j) * t_a + b0 + tx] = square[tx * (EDGE + 1) + ty + j]

    return turned_copy
