"""The loops of an LSTM over a sequence on the CPU: they multiply with a packed weight (`host.packed_gemm`), and compute the
gates while the sums are in cache.

At each time step a block of WIDTH units is finished before the next block: its products, its gates, and its part of the packed
input of the next time step. If the weight is large, a thread owns blocks of units, whose panels stay in its cache or are read
by it alone, and all threads synchronise after each time step. If the weight is small, a thread owns tiles of samples and never
synchronises.

The loops take `rows` (S, depth), the rows of the panel that a time step reads, and `place` (S, H): place[s, u] is the column of
unit u in the packed input of the next time step, or -1 if the unit is dropped. A `place` of shape (S, 0) is the identity. S is
1 if all time steps read the same rows, else T; time step t uses row min(t, S - 1).
"""

from __future__ import annotations

import numba
import numpy as np
from numba import float32, int64
from numba.extending import intrinsic

from ...host.packed_gemm import multiply_panel
from ...host.simd import NUMBER, WIDTH, Lanes, data_of, for_lanes, load, store
from ...host.transpose import transpose_block
from ...runtime.declare import host_function, host_kernel


# --- the gates, in registers ------------------------------------------------------------------------------------------
def _gates(builder, data, at, step, some):
    """Load and return the vectors of the four gates, which are `step` floats apart."""
    return [load(builder, data, builder.add(at, builder.mul(step, NUMBER(g))), some) for g in range(4)]


def _store_gates(builder, gates, data, at, step, some):
    for g, gate in enumerate(gates):
        store(builder, gate, data, builder.add(at, builder.mul(step, NUMBER(g))), some)


def _slopes(dy, dc, gates, before, after):
    """Return dz of the four gates, and dc without the factor of the forget gate."""
    i, f, g, o = gates
    q = after.tanh()
    dc = dc + dy * o * (1.0 - q * q)
    return [dc * g * i * (1.0 - i), dc * before * f * (1.0 - f), dc * i * (1.0 - g * g), dy * q * o * (1.0 - o)], dc


INTEGER, REAL = numba.int64, numba.float32


def _places(builder, places, count):
    return [builder.extract_value(places, i) for i in range(count)]


@intrinsic
def _cell(typing_context, room, z, c, h, places, room_step, z_step, scale, width, alive):
    """Compute `width` units of one sample: the gates, computed from z + scale room, overwrite z, and c[after] and h are
    written. `places` are the offsets in room, z, c, c after the step, and h.
    """

    def generate(context, builder, signature, arguments):
        room, z, c, h, places, room_step, z_step, scale, width, alive = data_of(context, builder, signature, arguments)
        room_at, z_at, before, after, h_at = _places(builder, places, 5)

        def units(some):
            products = _gates(builder, room, room_at, room_step, some)
            i, f, g, o = (
                brought + product * scale for brought, product in zip(_gates(builder, z, z_at, z_step, some), products)
            )
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            old = load(builder, c, before, some)
            new = f * old + i * g
            _store_gates(builder, (i, f, g, o), z, z_at, z_step, some)
            store(builder, new.where_not(alive, old), c, after, some)
            store(builder, (o * new.tanh()).where_not(alive, 0.0), h, h_at, some)

        for_lanes(builder, width, units)
        return context.get_dummy_value()

    numbers = numba.types.UniTuple(INTEGER, 5), INTEGER, INTEGER, REAL, INTEGER, numba.boolean
    return numba.void(room, z, c, h, *numbers), generate


@intrinsic
def _cell_grad(typing_context, back, dy, gates, c, dc, out, places, step, out_step, scale, threshold, width, alive):
    """Compute `width` units of one sample: dz, the gradient of the gates for dh = dy + scale back, is written to `out`, which
    may be the array of the gates; dc is updated for the time step before. `places` are the offsets in back, dy and c, gates, c
    after the step, dc, and out.
    """

    def generate(context, builder, signature, arguments):
        back, dy, gates, c, dc, out, places, step, out_step, scale, threshold, width, alive = data_of(
            context, builder, signature, arguments
        )
        back_at, at, gates_at, after, dc_at, out_at = _places(builder, places, 6)

        def units(some):
            held = _gates(builder, gates, gates_at, step, some)
            carried, dh = load(builder, dc, dc_at, some), load(builder, back, back_at, some) * scale
            before, behind = load(builder, c, at, some), load(builder, c, after, some)
            slopes, own = _slopes(load(builder, dy, at, some) + dh, carried, held, before, behind)
            slopes = [_cut(slope, threshold).where_not(alive, 0.0) for slope in slopes]
            _store_gates(builder, slopes, out, out_at, out_step, some)
            store(builder, (own * held[1]).where_not(alive, carried), dc, dc_at, some)

        for_lanes(builder, width, units)
        return context.get_dummy_value()

    numbers = numba.types.UniTuple(INTEGER, 6), INTEGER, INTEGER, REAL, REAL, INTEGER, numba.boolean
    return numba.void(back, dy, gates, c, dc, out, *numbers), generate


def _cut(slope, threshold):
    """Return 0 where the magnitude of a gradient is at most the threshold, else the gradient; NaN stays NaN."""
    small = slope.builder.fcmp_ordered("<=", slope.size().value, slope.of(threshold).value)
    return Lanes(slope.builder, slope.builder.select(small, slope.of(0.0).value, slope.value))


@intrinsic
def _cell_scores(typing_context, dy, dy_at, gates, gates_at, step, c, before, after, scores, at, width):
    """scores += |dz| of `width` units of one sample, without recurrent gradients."""

    def generate(context, builder, signature, arguments):
        dy, dy_at, gates, gates_at, step, c, before, after, scores, at, width = data_of(context, builder, signature, arguments)

        def units(some):
            slope = load(builder, dy, dy_at, some)
            slopes, _ = _slopes(
                slope,
                slope.of(0.0),
                _gates(builder, gates, gates_at, step, some),
                load(builder, c, before, some),
                load(builder, c, after, some),
            )
            sums = [total + slope.size() for total, slope in zip(_gates(builder, scores, at, step, some), slopes)]
            _store_gates(builder, sums, scores, at, step, some)

        for_lanes(builder, width, units)
        return context.get_dummy_value()

    return numba.void(dy, INTEGER, gates, INTEGER, INTEGER, c, INTEGER, INTEGER, scores, INTEGER, INTEGER), generate


# --- through time -----------------------------------------------------------------------------------------------------
@host_function
def _hand_over(values, n0, n1, j, width, hidden, place, x):
    """x[place[i], n - n0] = values[n, i] for n0 <= n < n1 and the units j … j + width - 1 with place >= 0."""
    for first in range(j, values.shape[1], hidden):
        if place.size == 0:
            transpose_block(values, n0, n1, first, first + width, x, first, int64(0), False)
            continue
        for i in range(first, first + width):
            if place[i] >= 0:
                for n in range(n0, n1):
                    x[place[i], n - n0] = values[n, i]


TABLES = "i4[:, ::1], i4[:, ::1], i4[::1], f4"


@host_kernel(
    f"void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, :, :, ::1], {TABLES}, f4[:, :, :, ::1], i8, i8, i8, i8, i8, i8)"
)
def forward(z, h, c, panels, rows, place, lengths, scale, x, first, stop, block0, block1, tile0, tile1):
    """Compute the time steps first … stop - 1 for the units of the blocks block0 … block1 - 1 and the samples of the tiles
    tile0 … tile1 - 1; time step -1 packs h[0].
    """
    (steps, n, four), hidden, size = z.shape, h.shape[2], x.shape[3]
    room = np.zeros((4, size, WIDTH), np.float32)
    for t in range(first, stop):
        following, listed = x[(t + 1) % 2], rows[min(max(t, 0), rows.shape[0] - 1)]
        for b in range(block0, block1):
            j, width = b * WIDTH, min(WIDTH, hidden - b * WIDTH)
            for tile in range(tile0, tile1):
                n0, n1 = tile * size, min((tile + 1) * size, n)
                if t >= 0:
                    for g in range(4 if x.shape[2] else 0):
                        multiply_panel(x[t % 2, tile], panels[g, b], listed, room[g])
                    for s in range(n0, n1):
                        at, alive = (t * n + s) * hidden + j, lengths.size == 0 or t < lengths[s]
                        places = (s - n0) * WIDTH, (t * n + s) * four + j, at, at + n * hidden, at + n * hidden
                        _cell(room, z, c, h, places, size * WIDTH, hidden, scale, width, alive)
                if t + 1 < steps and x.shape[2]:
                    _hand_over(h[t + 1], n0, n1, j, width, hidden, place[min(t + 1, place.shape[0] - 1)], following[tile])


@host_function
def _spread(room, place, b, j, width, back):
    """back[r, i] = room[r, q], where q is the panel column of unit j + i; 0 if the unit has no column in this panel."""
    for i in range(width):
        q = place[j + i] - b * WIDTH if place[j + i] >= 0 else int64(-1)
        for r in range(room.shape[0]):
            back[r, i] = room[r, q] if q >= 0 else float32(0)


@host_function
def _keep(slopes, n0, n1, j, width, hidden, columns, dz, x):
    """dz[n, columns[i]] = x[columns[i], n - n0] = the gradient of gate i, if it has a column, from `slopes`"""
    for g in range(4):
        for i in range(width):
            column = columns[g * hidden + j + i]
            if column >= 0:
                for n in range(n0, n1):
                    x[column, n - n0] = dz[n, column] = slopes[g, n - n0, i]


@host_function
def _cells_back(back, dy, gates, c, dc, out, apart, lengths, scale, threshold, t, n0, n1, j, width):
    """out = dz of the samples n0 … n1 - 1 and the units j … j + width - 1 at time step t. The layout is that of `gates`, or,
    if `apart`, (gate, sample, unit).
    """
    _, n, hidden = dy.shape
    for s in range(n0, n1):
        at, alive = (t * n + s) * hidden + j, lengths.size == 0 or t < lengths[s]
        gates_at, after, room_at = (t * n + s) * 4 * hidden + j, at + n * hidden, (s - n0) * WIDTH
        out_at, out_step = (room_at, out.shape[1] * WIDTH) if apart else (gates_at, hidden)
        places = room_at, at, gates_at, after, s * hidden + j, out_at
        _cell_grad(back, dy, gates, c, dc, out, places, hidden, out_step, scale, threshold, width, alive)


@host_kernel(
    f"void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], f4[:, :, :, ::1], i8[::1], {TABLES}, i4[::1], f4,"
    " f4[:, :, :, ::1], f4[:, :, ::1], f4[:, ::1], f4[:, ::1], i8, i8, i8, i8, i8, i8)"
)
def backward(
    dy,
    gates,
    c,
    panels,
    starts,
    rows,
    place,
    lengths,
    scale,
    columns,
    threshold,
    x,
    dz,
    dc,
    dh0,
    first,
    stop,
    block0,
    block1,
    tile0,
    tile1,
):
    """Compute the time steps T - 1 - first … T - stop, back in time; time step -1 computes dh0. Block b begins at unit
    starts[b]."""
    (steps, n, hidden), size = dy.shape, x.shape[3]
    room, chosen = np.zeros((2, size, WIDTH), np.float32), columns.size > 0
    out = np.empty((4, size, WIDTH), np.float32) if chosen else gates
    for turn in range(first, stop):
        t = steps - 1 - turn
        now, following, seen = gates[max(t, 0)], x[(turn + 1) % 2], place[min(t + 1, place.shape[0] - 1)]
        for b in range(block0, block1):
            for tile in range(tile0, tile1):
                n0, n1, back, target = tile * size, min((tile + 1) * size, n), room[0], following[tile]
                if turn:
                    multiply_panel(x[turn % 2, tile], panels[0, b], rows[0], back)
                for j in range(starts[b], starts[b + 1], WIDTH):
                    width = min(WIDTH, starts[b + 1] - j)
                    if turn and seen.size:
                        back = room[1]
                        _spread(room[0], seen, b, j, width, back)
                    if t < 0:
                        for s in range(n0, n1):
                            for i in range(width):
                                dh0[s, j + i] = scale * back[s - n0, i]
                        continue
                    _cells_back(back, dy, gates, c, dc, out, chosen, lengths, scale, threshold, t, n0, n1, j, width)
                    if chosen:
                        _keep(out, n0, n1, j, width, hidden, columns, dz[t], target)
                    else:
                        _hand_over(now, n0, n1, j, width, hidden, columns, target)


@host_kernel("void(f4[:, :, ::1], f4[:, :, ::1], f4[:, :, ::1], i4[::1], f4[::1], i8, i8)")
def add_scores(dy, gates, c, lengths, scores, first, stop):
    """Add up the scores of the units first … stop - 1."""
    steps, n, hidden = dy.shape
    for t in range(steps):
        for s in range(n):
            if lengths.size == 0 or t < lengths[s]:
                for j in range(first, stop, WIDTH):
                    at = (t * n + s) * hidden + j
                    _cell_scores(
                        dy,
                        at,
                        gates,
                        (t * n + s) * 4 * hidden + j,
                        hidden,
                        c,
                        at,
                        at + n * hidden,
                        scores,
                        j,
                        min(WIDTH, stop - j),
                    )


@host_kernel("void(f4[:, :, ::1], i4[:, ::1], f4[:, :, ::1], i8, i8)")
def copy_seen(h, units, y, first, stop):
    """y[t, n, u] = h[t, n, u] for the units u in the list of time step t, else 0, for first <= t < stop."""
    for t in range(first, stop):
        for n in range(h.shape[1]):
            state, out = h[t, n], y[t, n]
            out[:] = 0
            for u in units[t]:
                if 0 <= u < out.size:
                    out[u] = state[u]
