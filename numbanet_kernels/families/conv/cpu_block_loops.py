"""Convolutions on the CPU from wide kept blocks of the im2col matrix A: the loops.

A thread computes one block row of A after the other. It multiplies each kept block by its rows of the packed weight, where
these lie: no rows of the weight are copied. A block has columns of one tap, and pixels are read where they lie; nothing is
multiplied by the zeros around images.

    rows, places    for each tap, the rows of A (from the first of the block row) that are inside the image there, and the first
                    float of their pixels
    u    the packed weight, or its gradient (`cpu_position_loops`): for each panel of PANEL results a row for each term
    v    the pixels of a block
    z    dz of a block row
    s    a row for each position, a column for each of PANEL results; for dw, the panels of dz, one after the other
"""

from __future__ import annotations

from numba import float32, int64

from ...host.simd import LINE
from ...runtime.declare import host_function, host_kernel
from .cpu_im2col_loops import unpacked
from .cpu_panel_products import PANEL, add_scattered, copy_row, multiply_columns
from .cpu_position_loops import _finish, _put


@host_function
def _count(kept, columns):
    """The number of kept blocks: their list ends at the first number outside."""
    blocks = 0
    while blocks < kept.size and kept[blocks] < columns:
        blocks += 1
    return blocks


@host_function
def _line(g, row, last, channels, segment):
    """(end of the rows that are on the same line of outputs, first and end of those whose pixels are inside the image, what
    is added to row * step to get the first float that a row reads) for a segment of a pixel's channels.
    """
    height, width, down, across, above, left, high, wide, _, _ = g
    line = row // wide
    start, n = line * wide, line // high
    end, h = min(start + wide, last), (line - n * high) * down - above + segment[0]
    base = (n * height + h) * width * channels - left * channels + segment[1]
    if not 0 <= h < height:
        return end, end, end, base
    before = left - segment[1] // channels  # pixels that row 0 reads left of the image
    begin = start + max(-(-before // across), 0)
    stop = start + max((before + width - 1) // across + 1, 0)
    return end, min(max(begin, row), end), min(max(stop, row), end), base - start * across * channels


@host_function
def _list_rows(g, channels, table, starts, width, first, count, rows, places, counts):
    """List the rows and places of each tap for `count` rows of A from `first` on."""
    step = g[3] * channels
    for tap in range(counts.size):
        segment, row, n = table[starts[tap * channels // width]], first, int64(0)
        while row < first + count:
            end, begin, stop, base = _line(g, row, first + count, channels, segment)
            for r in range(begin, stop):
                rows[tap, n], places[tap, n] = r - first, base + r * step
                n += 1
            row = end
        counts[tap] = n


@host_kernel(
    "void(f4[::1], i8, i8[::1], i8[:, ::1], i8[::1], i4[:, ::1], i8, i8, i8[:, ::1], i8[:, ::1], i8[::1], f4[::1], f4, f4[::1],"
    " f4, f4[::1], f4[::1], i8, i8, i8)"
)
def forward(
    pixels,
    channels,
    geometry,
    table,
    starts,
    kept,
    height,
    width,
    rows,
    places,
    counts,
    u,
    scale,
    bias,
    low,
    s,
    y,
    total,
    first,
    stop,
):
    """y = max(scale the sums + bias, low) of the block rows first … stop - 1; y has `total` rows."""
    numbers, outs, depth = unpacked(geometry), bias.size, (starts.size - 1) * width
    for b in range(first, stop):
        r0 = b * height
        count = min(height, total - r0)
        own = kept[b, : _count(kept[b], starts.size - 1)]
        _list_rows(numbers, channels, table, starts, width, r0, count, rows, places, counts)
        for o0 in range(0, outs, PANEL):
            s[0 : count * PANEL] = 0
            for column in own:
                tap, c0, at = column * width // channels, column * width % channels, o0 * depth + column * width * PANEL
                add_scattered(pixels, c0, places[tap], 1, u, at, width, counts[tap], s, 0, rows[tap], PANEL)
            for i in range(count):
                _put(s, i * PANEL, True, scale, bias, low, o0, y, r0 + i)


# --- backward ---------------------------------------------------------------------------------------------------------
@host_function
def _slopes(dy, where, gated, first, count, o0, o1, dz, row):
    """dz of `count` rows from `first` on, for the outputs o0 … o1 - 1, and then 0 in a row of dz: dy, but 0 unless where > 0 if
    `gated`.
    """
    for i in range(count):
        slopes, gate = dy[first + i, o0:o1], where[first + i, o0:o1]
        out = dz[i * row : (i + 1) * row]
        out[o1 - o0 :] = 0
        if gated:
            for o in range(o1 - o0):
                out[o] = slopes[o] if gate[o] > 0 else float32(0)
        else:
            for o in range(o1 - o0):
                out[o] = slopes[o]


@host_kernel(
    "void(i8, i8[::1], i8[:, ::1], i8[::1], i4[:, ::1], i8, i8, i8[:, ::1], i8[:, ::1], i8[::1], f4[:, ::1], f4[:, ::1], b1,"
    " f4[::1], f4, f4[::1], f4[::1], i8, i8, i8, i8)"
)
def backward(
    channels,
    geometry,
    table,
    starts,
    kept,
    height,
    width,
    rows,
    places,
    counts,
    dy,
    where,
    gated,
    u,
    scale,
    z,
    dx,
    dx_first,
    dx_stop,
    first,
    stop,
):
    """dx of the block rows first … stop - 1, whose images are its floats dx_first … dx_stop - 1."""
    numbers, (total, outs), taps = unpacked(geometry), dy.shape, counts.size
    row = outs + LINE  # rows do not displace each other in the cache
    dx[dx_first:dx_stop] = 0
    for b in range(first, stop):
        r0 = b * height
        count = min(height, total - r0)
        _slopes(dy, where, gated, r0, count, int64(0), outs, z, row)
        for i in range(count * row if scale != 1 else 0):
            z[i] *= scale
        _list_rows(numbers, channels, table, starts, width, r0, count, rows, places, counts)
        for column in kept[b, : _count(kept[b], starts.size - 1)]:
            tap, c0 = column * width // channels, column * width % channels
            for c in range(c0, c0 + width, PANEL):
                at = (c // PANEL * taps + tap) * outs * PANEL
                add_scattered(z, 0, rows[tap], row, u, at, outs, counts[tap], dx, c, places[tap], 1)


@host_function
def _add_up(s, at, count, sums):
    """Add `count` rows of s, from s[at] on, to sums."""
    for i in range(count):
        values = s[at + i * PANEL : at + i * PANEL + sums.size]
        for o in range(sums.size):
            sums[o] += values[o]


@host_kernel(
    "void(f4[::1], i8, i8[::1], i8[:, ::1], i8[::1], i4[:, ::1], i8, i8, i8[:, ::1], i8[:, ::1], i8[::1], i8, f4[:, ::1],"
    " f4[:, ::1], b1, f4[::1], f4[::1], f4[::1], f8[::1], i8, i8, i8, i8)"
)
def gradient(
    pixels,
    channels,
    geometry,
    table,
    starts,
    kept,
    height,
    width,
    rows,
    places,
    counts,
    wide,
    dy,
    where,
    gated,
    v,
    s,
    terms,
    sums,
    first,
    stop,
    panel_first,
    panel_stop,
):
    """`terms` = the sums of dw, and `sums` = those of db, over the block rows first … stop - 1, for the panels panel_first …
    panel_stop - 1; `wide` columns of a block at a time.
    """
    numbers, (total, outs), size = unpacked(geometry), dy.shape, (starts.size - 1) * width * PANEL
    terms[panel_first * size : panel_stop * size] = 0
    sums[panel_first * PANEL : min(panel_stop * PANEL, outs)] = 0
    for b in range(first, stop if panel_first < panel_stop else first):
        r0 = b * height
        count = min(height, total - r0)
        for panel in range(panel_first, panel_stop):
            o0, at = panel * PANEL, (panel - panel_first) * count * PANEL
            o1 = min(o0 + PANEL, outs)
            _slopes(dy, where, gated, r0, count, o0, o1, s[at : at + count * PANEL], PANEL)
            _add_up(s, at, count, sums[o0:o1])
        _list_rows(numbers, channels, table, starts, width, r0, count, rows, places, counts)
        for column in kept[b, : _count(kept[b], starts.size - 1)]:
            tap, c0 = column * width // channels, column * width % channels
            length = counts[tap] * wide + LINE
            for i in range(counts[tap]):
                for c in range(0, width, wide):
                    copy_row(pixels, places[tap, i] + c0 + c, v, c // wide * length + i * wide, min(wide, width - c))
            for panel in range(panel_first, panel_stop):
                at, goal = (panel - panel_first) * count * PANEL, panel * size + column * width * PANEL
                slopes = s[at : at + count * PANEL]
                for c in range(0, width, wide):
                    own, place = min(wide, width - c), c // wide * length
                    multiply_columns(v, place, wide, slopes, rows[tap], counts[tap], own, terms, goal + c * PANEL, True)


@host_kernel("void(f4[:, ::1], i8, i8, f4, f4[:, ::1], f4[:, ::1], i8, i8)")
def finish(terms, taps, channels, scale, room, dw, first, stop):
    """dw (O, C taps) of the panels first … stop - 1: the sum of the terms of all slices."""
    size = taps * channels * PANEL
    total = terms[0]
    for panel in range(first, stop):
        for t in range(1, terms.shape[0]):
            term = terms[t]
            for i in range(panel * size, (panel + 1) * size):
                total[i] += term[i]
        _finish(total, panel * size, panel, taps, channels, 0, channels, room, scale, dw)
