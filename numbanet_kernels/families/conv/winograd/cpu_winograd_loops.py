"""Convolutions on the CPU by Winograd's filtering (`matrices` has the formula): the loops.

A thread transforms the pixels of a stretch of tiles, which then stay in its cache. It multiplies them by the transformed
weight, and transforms the sums to outputs; both are done for PANEL outputs at a time, a panel. A transformed array has a plane
for each of the (m + 2)^2 elements of a tile:

    v    B^T d B        a row for each tile, a column for each channel
    u    G g G^T        a row for each channel, a column for each output of the panel
    s    their products, or A dY A^T        a row for each tile, a column for each output of the panel

The geometry g holds m; the height, width, channels and padding (above, left) of the images that are read; the number of tiles
along the height and the width of an image; the height, width and channels of the outputs.
"""

from __future__ import annotations

from numba import float32, int64

from ....host.search import before
from ....host.transpose import transpose_block
from ....runtime.declare import host_function, host_kernel
from ..cpu_im2col_loops import clear
from ..cpu_panel_products import PANEL, multiply
from .cpu_winograd_transforms import gather_input, gather_slopes, scatter_output, transform_back, transform_taps

TAPS, BLOCK = 9, 32  # of a window; channels whose taps are transposed at a time: they stay in the L1 cache


# --- sizes ------------------------------------------------------------------------------------------------------------
def plane_of(rows, width):
    """Return the number of floats from one plane to the next: an odd number of cache lines, so that planes do not displace each
    other in the cache.
    """
    return ((rows * width + 15) // 16 | 1) * 16


def row_of(channels):
    """Floats from one row of v to the next."""
    return (channels + 15) // 16 * 16 + 16


_plane_of, _row_of = host_function(plane_of), host_function(row_of)


@host_function
def _place(tile, g, places, goals):
    """List the first float of each pixel that a tile reads, and of each of its outputs; -1 outside the images."""
    m, height, width, channels, above, left, down, across, high, wide, outs = (
        g[0],
        g[1],
        g[2],
        g[3],
        g[4],
        g[5],
        g[6],
        g[7],
        g[8],
        g[9],
        g[10],
    )
    line = tile // across
    n, top, begin = line // down, line % down * m, (tile - line * across) * m
    for r in range(m + 2):
        h = top - above + r
        for s in range(m + 2):
            w = begin - left + s
            inside = 0 <= h < height and 0 <= w < width
            places[r * (m + 2) + s] = ((n * height + h) * width + w) * channels if inside else -1
    for r in range(m):
        for s in range(m):
            inside = top + r < high and begin + s < wide
            goals[r * m + s] = ((n * high + top + r) * wide + begin + s) * outs if inside else -1


@host_function
def _read(g, x, t0, count, places, goals, zeros, v, plane):
    """v of `count` tiles from t0 on, and their goals."""
    row = _row_of(g[3])
    for t in range(count):
        _place(t0 + t, g, places, goals[t])
        gather_input(g[0], x, places, zeros, 0, g[3], v, t * row, plane)


# --- the weight -------------------------------------------------------------------------------------------------------
@host_function
def _weigh(m, w, channels, turned, reverse, panel, room, u, at):
    """u of a panel from w (O, 9 C). If `turned`, the outputs of the panel are channels of w; if `reverse`, so are the taps."""
    outs, depth = (channels, w.shape[0]) if turned else (w.shape[0], channels)
    o0, plane = panel * PANEL, _plane_of(depth, PANEL)
    o1 = min(o0 + PANEL, outs)
    if o1 - o0 < PANEL:
        clear(room, 0, room.shape[0])
    for c0 in range(0, depth, BLOCK):
        c1 = min(c0 + BLOCK, depth)
        if turned:
            pairs = w.reshape(w.size // TAPS, TAPS)
            for c in range(c0, c1):
                transpose_block(pairs, c * outs + o0, c * outs + o1, 0, TAPS, room, (c - c0) * TAPS, 0, True)
        else:
            transpose_block(w, o0, o1, c0 * TAPS, c1 * TAPS, room, 0, 0, True)
        for c in range(c0, c1):
            first = (c - c0) * TAPS + (TAPS - 1 if reverse else 0)
            transform_taps(m, room, first * PANEL, -PANEL if reverse else PANEL, u, at + c * PANEL, plane)


@host_kernel("void(i8, f4[:, ::1], i8, b1, b1, f4[:, ::1], f4[::1], i8, i8)")
def weigh(m, w, channels, turned, reverse, room, u, first, stop):
    """u of the panels first … stop - 1."""
    size = (m + 2) * (m + 2) * _plane_of(w.shape[0] if turned else channels, PANEL)
    for panel in range(first, stop):
        _weigh(m, w, channels, turned, reverse, panel, room, u, panel * size)


# --- forward ----------------------------------------------------------------------------------------------------------
@host_kernel(
    "void(i8[::1], f4[::1], f4[:, ::1], b1, f4, f4[::1], f4, i8[::1], i8[:, ::1], f4[::1], f4[:, ::1], f4[::1], f4[::1], b1,"
    " f4[::1], f4[::1], i8, i8, i8, i8)"
)
def forward(
    g, x, w, turned, scale, bias, low, places, goals, zeros, room, v, u, ready, s, y, first, stop, panel_first, panel_stop
):
    """y = max(scale the convolution + bias, low) of the tiles first … stop - 1 and the panels panel_first … panel_stop - 1. If
    u is `ready`, it holds all panels, else each panel is transformed when its turn comes.
    """
    m, channels, outs, most = g[0], g[3], g[10], goals.shape[0]
    elements, row = (m + 2) * (m + 2), _row_of(channels)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(channels, PANEL), _plane_of(most, PANEL)
    for t0 in range(first, stop if panel_first < panel_stop else first, most):
        count = min(most, stop - t0)
        _read(g, x, t0, count, places, goals, zeros, v, plane_v)
        for panel in range(panel_first, panel_stop):
            at = panel * elements * plane_u if ready else 0
            if not ready:
                _weigh(m, w, outs if turned else channels, turned, turned, panel, room, u, at)
            for i in range(elements):
                multiply(v, i * plane_v, row, 1, u, at + i * plane_u, channels, count, s, i * plane_s, False)
            o0 = panel * PANEL
            for t in range(count):
                scatter_output(m, s, t * PANEL, plane_s, scale, bias, low, goals[t], o0, min(PANEL, outs - o0), y)


@host_function
def blank(rows, first, stop, width, o0, o1, y):
    """y = 0 in those of the rows first … stop - 1 that are not listed, in the columns o0 … o1 - 1 of `width`."""
    i = before(rows, first)
    for r in range(first, stop):
        if i < rows.size and rows[i] == r:
            i += 1
            continue
        for o in range(r * width + o0, r * width + o1):
            y[o] = float32(0)


@host_kernel("void(i4[::1], i8, i8, i8, f4[::1])")
def blank_rows(rows, first, stop, width, y):
    """y = 0 in those of the rows first … stop - 1 that are not listed."""
    blank(rows, first, stop, width, int64(0), width, y)


# --- backward ---------------------------------------------------------------------------------------------------------
@host_kernel("void(f4[:, ::1], f4[:, ::1], b1, i4[::1], b1, f4[:, ::1], f8[:, ::1], i8, i8)", makes_arrays=True)
def gate(dy, where, gated, rows, listed, dz, sums, first, stop):
    """dz = dy, but 0 unless where > 0 if `gated`, and in rows that are not listed if `listed`; written only if one of them is
    True. sums = the sums of dz, of its slices first … stop - 1.
    """
    for number in range(first, stop):
        total = sums[number]
        total[:] = 0
        r0, r1 = number * dy.shape[0] // sums.shape[0], (number + 1) * dy.shape[0] // sums.shape[0]
        i = before(rows, r0)
        for r in range(r0, r1):
            slopes = dy[r]
            if listed:
                kept = i < rows.size and rows[i] == r
                if not kept:
                    dz[r, :] = 0
                    continue
                i += 1
                if not gated:
                    dz[r, :] = slopes
            if gated:
                values, out = where[r], dz[r]
                for o in range(out.size):
                    out[o] = slopes[o] if values[o] > 0 else float32(0)
                    total[o] += out[o]
            else:
                for o in range(slopes.size):
                    total[o] += slopes[o]


@host_function
def _finish(m, u, slices, panel, at, room, scale, dw, channels):
    """dw (O, 9 C) of a panel from u, which is added up over its slices."""
    o0, plane = panel * PANEL, _plane_of(channels, PANEL)
    count, size = min(PANEL, dw.shape[0] - o0), (m + 2) * (m + 2) * plane
    total = u[at : at + size]
    for number in range(1, slices):
        start = at + number * (u.size // slices)
        term = u[start : start + size]
        for i in range(total.size):
            total[i] += term[i]
    for c0 in range(0, channels, BLOCK):
        c1 = min(c0 + BLOCK, channels)
        for c in range(c0, c1):
            transform_back(m, u, at + c * PANEL, plane, room, (c - c0) * TAPS * PANEL, PANEL)
        if scale != 1:
            for i in range((c1 - c0) * TAPS):
                values = room[i]
                for o in range(values.size):
                    values[o] *= scale
        transpose_block(room, 0, (c1 - c0) * TAPS, 0, count, dw, o0, c0 * TAPS, False)


@host_kernel(
    "void(i8[::1], f4[::1], f4[::1], f4, i8[::1], i8[:, ::1], f4[::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], b1, f4[:, ::1],"
    " i8, i8, i8, i8)"
)
def gradient(g, x, dz, scale, places, goals, zeros, room, v, u, s, kept, dw, first, stop, panel_first, panel_stop):
    """The sums u of dw over the tiles first … stop - 1, for the panels panel_first … panel_stop - 1. If u is not `kept`, it
    holds one panel, all tiles are one stretch, and dw is computed at once.
    """
    m, channels, outs, most = g[0], g[3], g[10], goals.shape[0]
    elements, row = (m + 2) * (m + 2), _row_of(channels)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(channels, PANEL), _plane_of(most, PANEL)
    for t0 in range(first, stop if panel_first < panel_stop else first, most):
        count = min(most, stop - t0)
        _read(g, x, t0, count, places, goals, zeros, v, plane_v)
        for panel in range(panel_first, panel_stop):
            at, o0 = panel * elements * plane_u if kept else 0, panel * PANEL
            for t in range(count):
                gather_slopes(m, dz, goals[t], zeros, o0, min(PANEL, outs - o0), s, t * PANEL, plane_s)
            for i in range(elements):
                multiply(v, i * plane_v, 1, row, s, i * plane_s, count, channels, u, at + i * plane_u, t0 > first)
            if not kept:
                _finish(m, u, 1, panel, 0, room, scale, dw, channels)


@host_kernel("void(i8, f4[:, ::1], f4, f4[:, ::1], f4[:, ::1], i8, i8)")
def finish(m, terms, scale, room, dw, first, stop):
    """dw (O, 9 C) of the panels first … stop - 1 from the sums of all slices."""
    channels, u = dw.shape[1] // TAPS, terms.reshape(terms.size)
    size = (m + 2) * (m + 2) * _plane_of(channels, PANEL)
    for panel in range(first, stop):
        _finish(m, u, terms.shape[0], panel, panel * size, room, scale, dw, channels)
