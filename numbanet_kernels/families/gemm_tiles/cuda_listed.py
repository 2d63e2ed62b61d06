"""Kernels of `gemm_tiles` that read lists of kept tiles; they run on every CUDA device.

A block of threads computes one tile x tile piece of the result, and each thread 2 x 2 outputs. All threads of a block walk the
same list of tiles, which ends at its first negative index.
"""

from __future__ import annotations

from numba import float32

from ...runtime.declare import cuda, kernel, kernels


@kernels("gemm_tiles")
def forwards(tile=32):
    """Return two kernels, (listed, masked): `listed` loops over the list of a class. `masked`, which is for teaching only,
    loops over all tiles and skips dropped ones before the barrier.
    """
    padded = tile + 1
    side = tile // 2

    def declared(masked):
        @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[:, ::1], f4[::1], b1, b1, f4, f4[:, ::1])")
        def gemm_tiles_forward(x, w, row_class, lists, b, biased, relu, scale, y):
            """Each block computes `tile` samples for one tile row r, in a loop over the list of the row's class."""
            x_tile = cuda.shared.array((tile, padded), float32)
            w_tile = cuda.shared.array((tile, padded), float32)
            tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
            n0, o0 = cuda.blockIdx.y * tile, cuda.blockIdx.x * tile
            z = row_class[cuda.blockIdx.x]
            zero = float32(0)
            y00 = y01 = y10 = y11 = zero
            for m in range(lists.shape[1]):
                c = lists[z, m]
                if masked and c == 0:
                    continue
                if c < 0:
                    break
                c = m if masked else c
                for i in range(ty, tile, side):
                    for j in range(tx, tile, side):
                        col = c * tile + j
                        x_tile[i, j] = x[n0 + i, col] if n0 + i < x.shape[0] and col < x.shape[1] else zero
                        w_tile[i, j] = w[o0 + i, col] if o0 + i < w.shape[0] and col < w.shape[1] else zero
                cuda.syncthreads()
                for k in range(tile):
                    a0, a1, b0, b1 = x_tile[ty, k], x_tile[ty + side, k], w_tile[tx, k], w_tile[tx + side, k]
                    y00, y01, y10, y11 = y00 + a0 * b0, y01 + a0 * b1, y10 + a1 * b0, y11 + a1 * b1
                cuda.syncthreads()
            for i in range(2):
                for j in range(2):
                    n, o = n0 + ty + i * side, o0 + tx + j * side
                    if n < y.shape[0] and o < y.shape[1]:
                        value = scale * ((y11 if j else y10) if i else (y01 if j else y00))
                        if biased:
                            value += b[o]
                        if relu and value < zero:
                            value = zero
                        y[n, o] = value

        return gemm_tiles_forward

    return declared(False), declared(True)


@kernels("gemm_tiles")
def dx(tile=32):
    padded = tile + 1
    side = tile // 2

    @kernel("void(f4[:, ::1], f4[:, ::1], i4[:, ::1], i4[:, ::1], f4, f4[:, ::1])")
    def gemm_tiles_dx(dy, w, class_rows, class_cols, scale, dx):
        """Each block computes `tile` samples for one tile column of class z, in a loop over the tile rows of the class."""
        dy_tile = cuda.shared.array((tile, padded), float32)
        w_tile = cuda.shared.array((tile, padded), float32)
        tx, ty, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
        n0, i0 = cuda.blockIdx.y * tile, class_cols[z, cuda.blockIdx.x] * tile
        if i0 < 0:  # padding, because this class has fewer tile columns than others
            return
        zero = float32(0)
        x00 = x01 = x10 = x11 = zero
        for m in range(class_rows.shape[1]):
            r = class_rows[z, m]
            if r < 0:
                break
            for i in range(ty, tile, side):
                for j in range(tx, tile, side):
                    o = r * tile + j
                    dy_tile[i, j] = dy[n0 + i, o] if n0 + i < dy.shape[0] and o < dy.shape[1] else zero
                    o = r * tile + i
                    w_tile[i, j] = w[o, i0 + j] if o < w.shape[0] and i0 + j < w.shape[1] else zero
            cuda.syncthreads()
            for k in range(tile):
                a0, a1, b0, b1 = dy_tile[ty, k], dy_tile[ty + side, k], w_tile[k, tx], w_tile[k, tx + side]
                x00, x01, x10, x11 = x00 + a0 * b0, x01 + a0 * b1, x10 + a1 * b0, x11 + a1 * b1
            cuda.syncthreads()
        for i in range(2):
            for j in range(2):
                n, col = n0 + ty + i * side, i0 + tx + j * side
                if n < dx.shape[0] and col < dx.shape[1]:
                    dx[n, col] = scale * ((x11 if j else x10) if i else (x01 if j else x00))

    return gemm_tiles_dx


@kernels("gemm_tiles")
def dw(tile=32):
    padded = tile + 1
    side = tile // 2

    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], f4, f4[:, ::1])")
    def gemm_tiles_dw(dy, x, row_class, row_position, class_cols, scale, dw):
        """Each block computes the packed dw of one kept tile (tile row r, its i-th kept column), as a sum over samples."""
        dy_tile = cuda.shared.array((tile, padded), float32)
        x_tile = cuda.shared.array((tile, padded), float32)
        tx, ty, r = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.y
        i0, packed = class_cols[row_class[r], cuda.blockIdx.x] * tile, row_position[r] * tile
        if i0 < 0:  # padding, because this row keeps fewer tiles than others
            return
        zero = float32(0)
        w00 = w01 = w10 = w11 = zero
        for n0 in range(0, x.shape[0], tile):
            for i in range(ty, tile, side):
                for j in range(tx, tile, side):
                    n, o, col = n0 + i, r * tile + j, i0 + j
                    dy_tile[i, j] = dy[n, o] if n < dy.shape[0] and o < dy.shape[1] else zero
                    x_tile[i, j] = x[n, col] if n < x.shape[0] and col < x.shape[1] else zero
            cuda.syncthreads()
            for k in range(tile):
                a0, a1, b0, b1 = dy_tile[k, ty], dy_tile[k, ty + side], x_tile[k, tx], x_tile[k, tx + side]
                w00, w01, w10, w11 = w00 + a0 * b0, w01 + a0 * b1, w10 + a1 * b0, w11 + a1 * b1
            cuda.syncthreads()
        for i in range(2):
            for j in range(2):
                value = scale * ((w11 if j else w10) if i else (w01 if j else w00))
                dw[packed + ty + i * side, cuda.blockIdx.x * tile + tx + j * side] = value

    return gemm_tiles_dw


def block_side(op, tile):
    """Return the number of threads along each axis of a block; raise ValueError if the tile is larger than a block."""
    if tile % 2 or tile > 64:
        raise ValueError(f"{op}: tile {tile} must be even and at most 64 on CUDA")
    return tile // 2
