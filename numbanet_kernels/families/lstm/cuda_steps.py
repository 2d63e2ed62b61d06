"""The kernels of `lstm`: there is one launch per time step or, for small layers, one launch for all time steps.

    step         a block computes SAMPLES samples x UNITS units with all four gates of these units: 4 samples of one unit a
                 thread, 16 sums in registers, 2 shared loads of 16 bytes for 16 multiply-adds. Each half of the threads sums
                 over one half of each tile. The pre-activations never reach memory: the block computes gates, c and h from the
                 sums at once.
    step back    the sums over 4 H columns of dz[t + 1] are four times as long, and there are a quarter as many of them: each
                 warp sums over its eighth of each tile, 4 samples x 4 units a thread. The block adds dy[t], and writes dz[t].
    sequence     for at most SMALL units: a block owns FEW samples for all time steps and keeps their h (backward their dz) in
                 shared memory. It reads w from the cache once a step, and no block waits for another.

    step         w: 64 k x 16 units x 4 gates (the gates of a unit side by side), h: 64 k x 32 samples; both have k in rows
                 padded by 4 floats, so that a warp, which copies 8 k x 4 columns, uses 32 banks
    step back    w: 128 columns x 16 units, as in memory; dz: 128 columns x 32 samples, in rows padded by 4 floats

An empty array for `units`, `order`, `places` or `lengths` means that nothing is dropped. Inner loops count with `while` and
index with uint32: `range` counts in 64 bits, and Numba tests signed indices for negative values, which took a quarter of the
time of such a loop.

A step takes as long as reading w: 16 H^2 bytes for 8 N H^2 FLOPs. A faster one would copy the next tiles while these are
multiplied (`copies`). One cooperative launch with as many blocks as fit the device could keep w in registers for all time
steps, with a barrier of the whole grid after each step.
"""

from __future__ import annotations

import math

from numba import float32, int32, uint32

from ...blocks.intrinsics import sigmoids
from ...runtime.declare import cuda, inlined, kernel, kernels

# These sizes are not tuned on a device.
SAMPLES, UNITS = 32, 16  # samples and units of a block that computes one time step
BLOCK, WARPS = (16, 16), 8  # shape of its threads, and number of its warps
DEPTH, COLUMNS = 64, 128  # number of units of h, and of columns of dz, in a tile
SMALL, FEW = 128, 4  # a layer of at most SMALL units is computed by blocks of FEW samples, which run through all time steps
# `lstm_scores`: threads down and across a block, and number of blocks that share the time steps
ROWS, ACROSS, SHARES = 8, 32, 32


def _cells():
    """Return device functions (forward, backward, writer of dz) for unit u of sample n in time step t (`inlined`)."""
    sigmoid = sigmoids()

    @inlined
    def cell(z, c, h, lengths, scale, t, n, u, i, f, g, o):
        """Compute h[t + 1], given the products of h[t], which `scale` multiplies; write z, c and h."""
        zero, hidden = float32(0), int32(c.shape[2])
        i, f = sigmoid(z[t, n, u] + scale * i), sigmoid(z[t, n, hidden + u] + scale * f)
        g, o = math.tanh(z[t, n, 2 * hidden + u] + scale * g), sigmoid(z[t, n, 3 * hidden + u] + scale * o)
        z[t, n, u], z[t, n, hidden + u], z[t, n, 2 * hidden + u], z[t, n, 3 * hidden + u] = i, f, g, o
        before, ended = c[t, n, u], lengths.size > 0 and t >= lengths[n]
        after = f * before + i * g
        out = zero if ended else o * math.tanh(after)
        c[t + 1, n, u], h[t + 1, n, u] = before if ended else after, out
        return out

    @inlined
    def cell_back(dy, gates, c, lengths, threshold, t, n, u, dh, dc):
        """Return dz of the four gates, and dc for the time step before, given the gradients of h[t + 1] and c[t + 1]."""
        zero, one, hidden = float32(0), float32(1), int32(c.shape[2])
        di, df, dg, do = zero, zero, zero, zero
        if lengths.size == 0 or t < lengths[n]:
            i, f, g, o = gates[t, n, u], gates[t, n, hidden + u], gates[t, n, 2 * hidden + u], gates[t, n, 3 * hidden + u]
            dh, q = dh + dy[t, n, u], math.tanh(c[t + 1, n, u])
            dc += dh * o * (one - q * q)
            di, df = dc * g * i * (one - i), dc * c[t, n, u] * f * (one - f)
            dg, do = dc * i * (one - g * g), dh * q * o * (one - o)
            dc *= f
        return (
            zero if math.fabs(di) <= threshold else di,
            zero if math.fabs(df) <= threshold else df,
            zero if math.fabs(dg) <= threshold else dg,
            zero if math.fabs(do) <= threshold else do,
            dc,
        )

    @inlined
    def write(dz, places, t, n, u, hidden, di, df, dg, do):
        """Write dz of the four gates to their columns if they are kept."""
        for gate, value in ((0, di), (1, df), (2, dg), (3, do)):
            place = places[gate * hidden + u] if places.size > 0 else gate * hidden + u
            if place >= 0:
                dz[t, n, place] = value

    return cell, cell_back, write


def _squares():
    """Return device functions for the 4 x 4 sums a<row><column> of a thread; each factory makes its own (`inlined`)."""

    @inlined
    def add_products(sums, rows, cols, first, stop, r, c):
        """Return sums + the products of rows[k, r:r + 4] and cols[k, c:c + 4] for first <= k < stop."""
        ((a00, a01, a02, a03), (a10, a11, a12, a13), (a20, a21, a22, a23), (a30, a31, a32, a33)), k = sums, first
        while k < stop:
            b0, b1, b2, b3 = cols[k, c], cols[k, c + 1], cols[k, c + 2], cols[k, c + 3]
            h0, h1, h2, h3 = rows[k, r], rows[k, r + 1], rows[k, r + 2], rows[k, r + 3]
            a00, a01, a02, a03 = a00 + h0 * b0, a01 + h0 * b1, a02 + h0 * b2, a03 + h0 * b3
            a10, a11, a12, a13 = a10 + h1 * b0, a11 + h1 * b1, a12 + h1 * b2, a13 + h1 * b3
            a20, a21, a22, a23 = a20 + h2 * b0, a21 + h2 * b1, a22 + h2 * b2, a23 + h2 * b3
            a30, a31, a32, a33 = a30 + h3 * b0, a31 + h3 * b1, a32 + h3 * b2, a33 + h3 * b3
            k = uint32(k + 1)
        return (a00, a01, a02, a03), (a10, a11, a12, a13), (a20, a21, a22, a23), (a30, a31, a32, a33)

    @inlined
    def leave(sums, shared, part, r, c):
        """shared[part, r + i, c + j] = sums[i][j]; then all threads of the block wait for each other."""
        for i, row in ((0, sums[0]), (1, sums[1]), (2, sums[2]), (3, sums[3])):
            for j in range(4):
                shared[part, r + i, c + j] = row[j]
        cuda.syncthreads()

    return add_products, leave


@kernels("lstm")
def step():
    (cell, _, _), (add_products, leave) = _cells(), _squares()
    across, wide, down, half = 4 * UNITS, 4 * UNITS + 4, SAMPLES + 4, DEPTH // 2

    @kernel("void(f4[:, :, ::1], f4[:, ::1], i4[:, ::1], i4[::1], f4, i4, f4[:, :, ::1], f4[:, :, ::1])")
    def lstm_step(z, w, units, lengths, scale, t, h, c):
        """Compute step t of the forward pass; each thread has the sums of 4 samples and 4 gates of one unit."""
        w_tile = cuda.shared.array((DEPTH, wide), float32, 16)
        h_tile = cuda.shared.array((DEPTH, down), float32, 16)
        sums = cuda.shared.array((2, SAMPLES, across), float32, 16)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n0, u0 = int32(cuda.blockIdx.y) * SAMPLES, int32(cuda.blockIdx.x) * UNITS
        samples, hidden = int32(z.shape[1]), int32(w.shape[1])
        listed, row = units.shape[0] > 0, t if units.shape[0] > 1 else int32(0)
        depth = int32(units.shape[1]) if listed else hidden
        own, side = tx & 7, uint32((ty * UNITS + tx) >> 3)
        n, u = uint32(n0 + side), uint32(u0 + (side >> 2))
        line = uint32((side & 3) * hidden + u)
        part, n1, u1 = ty >> 3, uint32(4 * (ty & 7)), uint32(4 * tx)
        first, zero = uint32(part * half), float32(0)
        zeros = (zero, zero, zero, zero)
        squares = (zeros, zeros, zeros, zeros)
        for k0 in range(0, depth, DEPTH):
            # load the tiles: 8 threads along k; 32 threads along the samples, and twice along 8 units x 4 gates
            for i in range(0, DEPTH, 8):
                k = uint32(i + own)
                at, inside = uint32(k0 + k), k0 + k < depth
                unit = uint32(units[row, at] if listed else at) if inside else uint32(0)
                h_tile[k, side] = h[t, n, unit] if inside and n < samples else zero
                w_tile[k, side] = w[line, unit] if inside and u < hidden else zero
                w_tile[k, side + 32] = w[line + 8, unit] if inside and u + 8 < hidden else zero
            cuda.syncthreads()
            squares = add_products(squares, h_tile, w_tile, first, first + half, n1, u1)
            cuda.syncthreads()
        leave(squares, sums, part, n1, u1)
        # compute the cell: every sixteenth sample of one unit
        for j in range(ty, SAMPLES, 16):
            n, u = n0 + j, u0 + tx
            if n < samples and u < hidden:
                i, f = sums[0, j, u1] + sums[1, j, u1], sums[0, j, u1 + 1] + sums[1, j, u1 + 1]
                g, o = sums[0, j, u1 + 2] + sums[1, j, u1 + 2], sums[0, j, u1 + 3] + sums[1, j, u1 + 3]
                cell(z, c, h, lengths, scale, t, n, u, i, f, g, o)

    return lstm_step


@kernels("lstm")
def step_back():
    (_, cell_back, write), (add_products, leave), down, share = _cells(), _squares(), SAMPLES + 4, COLUMNS // WARPS

    @kernel(
        "void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, ::1], i4[:, ::1], i4, i4[::1], i4[::1], i4[::1], f4, f4, "
        "i4, f4[:, :, ::1], f4[:, ::1], f4[:, ::1])"
    )
    def lstm_step_back(dy, gates, c, w, order, seen, columns, places, lengths, scale, threshold, t, dz, dc, dh0):
        """Compute step t of the backward pass, or dh0 if t = -1, for the next units of `order`, of which step t + 1 reads the
        first `seen`. Each thread has 4 x 4 sums.
        """
        w_tile, dz_tile = cuda.shared.array((COLUMNS, UNITS), float32, 16), cuda.shared.array((COLUMNS, down), float32, 16)
        sums = cuda.shared.array((WARPS, SAMPLES, UNITS), float32, 16)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n0, q0 = int32(cuda.blockIdx.y) * SAMPLES, int32(cuda.blockIdx.x) * UNITS
        samples, hidden, steps = int32(dy.shape[1]), int32(w.shape[1]), int32(dy.shape[0])
        q, row = q0 + tx, min(t + 1, int32(order.shape[0]) - 1)
        unit = uint32((order[row, q] if order.size > 0 else q) if q < hidden else int32(0))
        depth = int32(dz.shape[2]) if t + 1 < steps and q0 < seen else int32(0)
        thread, listed = ty * UNITS + tx, places.size > 0
        own, side, n = thread & 7, uint32(thread >> 3), uint32(n0 + (thread >> 3))
        part, n1, u1 = thread >> 5, uint32(4 * ((thread & 31) >> 2)), uint32(4 * (thread & 3))
        first, zero = uint32(part * share), float32(0)
        zeros = (zero, zero, zero, zero)
        squares = (zeros, zeros, zeros, zeros)
        for j0 in range(0, depth, COLUMNS):
            # load the tiles: 16 threads along a row of w; 8 threads along a row of dz, 32 across
            for i in range(0, COLUMNS, 16):
                j = uint32(i + ty)
                at, inside = uint32(j0 + j), j0 + j < depth and q < seen
                w_tile[j, tx] = w[uint32(columns[at] if listed else at), unit] if inside else zero
            for i in range(0, COLUMNS, 8):
                j = uint32(i + own)
                dz_tile[j, side] = dz[t + 1, n, uint32(j0 + j)] if j0 + j < depth and n < samples else zero
            cuda.syncthreads()
            squares = add_products(squares, dz_tile, w_tile, first, first + share, n1, u1)
            cuda.syncthreads()
        leave(squares, sums, part, n1, u1)
        # compute the cell: every sixteenth sample of one unit
        for j in range(ty, SAMPLES, 16):
            n, dh = n0 + j, zero
            if n < samples and q < hidden:
                for warp in range(WARPS):
                    dh += sums[warp, j, tx]
                if t < 0:
                    dh0[n, unit] = scale * dh
                else:
                    di, df, dg, do, dc[n, unit] = cell_back(
                        dy, gates, c, lengths, threshold, t, n, unit, scale * dh, dc[n, unit]
                    )
                    write(dz, places, t, n, unit, hidden, di, df, dg, do)

    return lstm_step_back


@kernels("lstm")
def sequence():
    cell, _, _ = _cells()

    @kernel("void(f4[:, :, ::1], f4[:, ::1], i4[:, ::1], i4[::1], f4, f4[:, :, ::1], f4[:, :, ::1])")
    def lstm_sequence(z, transposed, units, lengths, scale, h, c):
        """Compute all steps; `transposed` is w.T. Thread (u, g) sums gate g of unit u, then computes unit u of sample g."""
        last = cuda.shared.array((SMALL, FEW), float32, 16)
        sums = cuda.shared.array((4, SMALL, FEW), float32, 16)
        u, g = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n, hidden = int32(cuda.blockIdx.x) * FEW + g, int32(c.shape[2])
        listed = units.shape[0] > 0
        depth = int32(units.shape[1]) if listed else hidden
        zero, inside, column = float32(0), n < z.shape[1], uint32(g * hidden + u)
        last[u, g] = h[0, n, u] if inside else zero
        cuda.syncthreads()
        for t in range(int32(z.shape[0])):
            row = t if units.shape[0] > 1 else int32(0)
            a0 = a1 = a2 = a3 = zero
            for k in range(depth):
                unit = uint32(units[row, k]) if listed else uint32(k)
                b = transposed[unit, column]
                a0, a1, a2, a3 = a0 + last[unit, 0] * b, a1 + last[unit, 1] * b, a2 + last[unit, 2] * b, a3 + last[unit, 3] * b
            sums[g, u, 0], sums[g, u, 1], sums[g, u, 2], sums[g, u, 3] = a0, a1, a2, a3
            cuda.syncthreads()
            if inside:
                i, f, o = sums[0, u, g], sums[1, u, g], sums[3, u, g]
                last[u, g] = cell(z, c, h, lengths, scale, t, n, u, i, f, sums[2, u, g], o)
            cuda.syncthreads()

    return lstm_sequence


@kernels("lstm")
def sequence_back():
    _, cell_back, _ = _cells()
    columns_of_all = 4 * SMALL

    @kernel(
        "void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, ::1], i4[:, ::1], i4, i4[::1], i4[::1], i4[::1], f4, f4, "
        "f4[:, :, ::1], f4[:, ::1], f4[:, ::1])"
    )
    def lstm_sequence_back(dy, gates, c, w, order, seen, columns, places, lengths, scale, threshold, dz, dc, dh0):
        """Compute all steps back in time. Thread (q, g) sums every fourth column for unit q of `order`, for sample g."""
        after = cuda.shared.array((columns_of_all, FEW), float32, 16)
        sums = cuda.shared.array((4, SMALL, FEW), float32, 16)
        q, g = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        n, hidden, steps = int32(cuda.blockIdx.x) * FEW + g, int32(w.shape[1]), int32(dy.shape[0])
        depth, listed, zero = int32(dz.shape[2]), places.size > 0, float32(0)
        for j in range(q, depth, hidden):  # the sum stays 0 if the block has fewer samples
            after[j, g] = zero
        for t in range(steps - 1, -2, -1):
            # compute dh[t + 1] from dz[t + 1]
            unit = uint32(order[min(t + 1, int32(order.shape[0]) - 1), q] if order.size > 0 else q)
            a0 = a1 = a2 = a3 = zero
            if q < seen and t + 1 < steps:
                for i in range(g, depth, 4):
                    j = uint32(i)
                    b = w[uint32(columns[j]) if listed else j, unit]
                    a0, a1, a2, a3 = a0 + after[j, 0] * b, a1 + after[j, 1] * b, a2 + after[j, 2] * b, a3 + after[j, 3] * b
            sums[g, q, 0], sums[g, q, 1], sums[g, q, 2], sums[g, q, 3] = a0, a1, a2, a3
            cuda.syncthreads()
            # compute the cell
            if n < dy.shape[1]:
                dh = scale * (sums[0, q, g] + sums[1, q, g] + sums[2, q, g] + sums[3, q, g])
                if t < 0:
                    dh0[n, unit] = dh
                else:
                    di, df, dg, do, dc[n, unit] = cell_back(dy, gates, c, lengths, threshold, t, n, unit, dh, dc[n, unit])
                    for gate, value in ((0, di), (1, df), (2, dg), (3, do)):
                        place = places[gate * hidden + unit] if listed else gate * hidden + unit
                        if place >= 0:
                            dz[t, n, place] = value
                            after[place, g] = value
            cuda.syncthreads()

    return lstm_sequence_back


@kernels("lstm")
def ordered():
    @kernel("void(i4[:, ::1], i4[:, ::1])")
    def lstm_order(units, order):
        """Write, for each row, first the listed units and then all other units. Each thread searches the list for its unit."""
        i, hidden, kept = int32(cuda.grid(1)), int32(order.shape[1]), int32(units.shape[1])
        if i < order.size:
            row, unit, low, high = i // hidden, i % hidden, int32(0), kept
            while low < high:
                middle = (low + high) >> 1
                if units[row, middle] < unit:
                    low = middle + int32(1)
                else:
                    high = middle
            found = low < kept and units[row, low] == unit
            order[row, low if found else kept + unit - low] = unit

    return lstm_order


@kernels("lstm")
def scores():
    _, cell_back, _ = _cells()

    @kernel("void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i4[::1], f4[:, ::1])")
    def lstm_scores(dy, gates, c, lengths, totals):
        """totals[s, j] = sum of |dz[t, n, j]| over n and t = s, s + shares, …; each block computes ACROSS units."""
        sums = cuda.shared.array((4, ROWS, ACROSS), float32)
        tx, ty, share = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.blockIdx.y)
        u, hidden, zero = int32(cuda.blockIdx.x) * ACROSS + tx, int32(c.shape[2]), float32(0)
        a0 = a1 = a2 = a3 = zero
        if u < hidden:
            for t in range(share, int32(dy.shape[0]), int32(totals.shape[0])):
                for n in range(ty, int32(dy.shape[1]), ROWS):
                    di, df, dg, do, _ = cell_back(dy, gates, c, lengths, zero, t, n, u, zero, zero)
                    a0, a1, a2, a3 = a0 + math.fabs(di), a1 + math.fabs(df), a2 + math.fabs(dg), a3 + math.fabs(do)
        sums[0, ty, tx], sums[1, ty, tx], sums[2, ty, tx], sums[3, ty, tx] = a0, a1, a2, a3
        cuda.syncthreads()
        if u < hidden and ty < 4:
            total = zero
            for row in range(ROWS):
                total += sums[ty, row, tx]
            totals[share, ty * hidden + u] = total

    return lstm_scores


@kernels("lstm")
def seen():
    @kernel("void(f4[:, :, ::1], i4[:, ::1], f4[:, :, ::1])")
    def lstm_seen(h, units, y):
        """Each thread copies one kept element."""
        i, samples, kept = int32(cuda.grid(1)), int32(h.shape[1]), int32(units.shape[1])
        if i < h.shape[0] * samples * kept:
            t, n = i // (samples * kept), i // kept % samples
            u = units[t, i % kept]
            if 0 <= u < h.shape[2]:
                y[t, n, u] = h[t, n, u]

    return lstm_seen
