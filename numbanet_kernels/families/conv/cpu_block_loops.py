"""Convolutions on the CPU from wide kept blocks of the im2col matrix A: the loops.

A thread computes one block row of A after the other. It multiplies each kept block by its rows of the packed weight, where
these lie: no rows of the weight are copied. The block is gathered, unless y is computed and lines are long.

    v    the kept blocks of a block row, one after the other: a row for each position, a column for each column of the block
    u    the packed weight, or its gradient (`cpu_position_loops`): for each panel of PANEL results a row for each term
    z    dz of a block row
    s    a row for each position of a block row, a column for each of PANEL results
"""

from __future__ import annotations

from numba import float32, int64

from ...host.simd import copy_vectors
from ...runtime.declare import host_function, host_kernel
from .cpu_im2col_loops import unpacked
from .cpu_position_loops import _finish, _put
from .winograd.cpu_winograd_loops import _even, _multiply
from .winograd.cpu_winograd_transforms import PANEL, ROWS

LONG = 6  # least number of positions on a line for which pixels are multiplied where they lie, and not gathered


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
def _gather(pixels, channels, g, table, starts, kept, width, first, count, v):
    """v of `count` rows of A from `first` on."""
    step, at = g[3] * channels, int64(0)
    for column in kept:
        segment, row = table[starts[column]], first
        while row < first + count:
            end, begin, stop, base = _line(g, row, first + count, channels, segment)
            for r in range(row, end):
                if begin <= r < stop:
                    copy_vectors(pixels, base + r * step, v, at, width)
                else:
                    v[at : at + width] = 0
                at += width
            row = end


@host_function
def _add(s, scale, dx, channels, g, segment, first, count):
    """Add scale s, `count` rows of dA from `first` on of PANEL columns, to the pixels of its segment."""
    row, step = first, g[3] * channels
    while row < first + count:
        end, begin, stop, base = _line(g, row, first + count, channels, segment)
        for r in range(begin, stop):
            values, sums = s[(r - first) * PANEL : (r - first + 1) * PANEL], dx[base + r * step : base + r * step + PANEL]
            for i in range(PANEL):
                sums[i] += scale * values[i]
        row = end


@host_function
def _add_gathered(v, kept, width, u, at, s, count):
    """s = v times the panel of u that begins at `at`."""
    r = 0
    while r < count:
        rows = _even(count - r, ROWS)
        for j in range(kept.size):
            own = at + kept[j] * width * PANEL
            _multiply(v, (j * count + r) * width, width, 1, u, own, width, rows, s, r * PANEL, j > 0)
        r += rows


@host_function
def _add_lines(pixels, channels, g, table, starts, kept, width, u, at, s, first, count):
    """s = the kept blocks of A, read where the pixels lie, times the panel of u that begins at `at`, a line after the other."""
    row, step = first, g[3] * channels
    while row < first + count:
        end = min(row // g[7] * g[7] + g[7], first + count)
        for i in range((row - first) * PANEL, (end - first) * PANEL):
            s[i] = float32(0)
        for j in range(kept.size):
            _, begin, stop, base = _line(g, row, first + count, channels, table[starts[kept[j]]])
            own = at + kept[j] * width * PANEL
            _multiply(pixels, base + begin * step, step, 1, u, own, width, stop - begin, s, (begin - first) * PANEL, True)
        row = end


@host_kernel(
    "void(f4[::1], i8, i8[::1], i8[:, ::1], i8[::1], i4[:, ::1], i8, i8, f4[::1], f4, f4[::1], f4, f4[::1], f4[::1], f4[::1],"
    " i8, i8, i8)"
)
def forward(pixels, channels, geometry, table, starts, kept, height, width, u, scale, bias, low, v, s, y, total, first, stop):
    """y = max(scale the sums + bias, low) of the block rows first … stop - 1; y has `total` rows."""
    numbers, outs, depth = unpacked(geometry), bias.size, (starts.size - 1) * width
    for b in range(first, stop):
        r0 = b * height
        count = min(height, total - r0)
        own = kept[b, : _count(kept[b], starts.size - 1)]
        if numbers[7] < LONG:
            _gather(pixels, channels, numbers, table, starts, own, width, r0, count, v)
        for o0 in range(0, outs, PANEL):
            if numbers[7] >= LONG:
                _add_lines(pixels, channels, numbers, table, starts, own, width, u, o0 * depth, s, r0, count)
            else:
                _add_gathered(v, own, width, u, o0 * depth, s, count)
            for i in range(count):
                _put(s, i * PANEL, own.size > 0, scale, bias, low, o0, y, r0 + i)


# --- backward ---------------------------------------------------------------------------------------------------------
@host_function
def _slopes(dy, where, gated, first, count, o0, o1, dz, row):
    """dz of `count` rows from `first` on, for the outputs o0 … o1 - 1, and then 0 in a row of dz: dy, but 0 unless where > 0 if
    `gated`.
    """
    for i in range(count):
        slopes, gate = dy[first + i, o0:o1], where[first + i, o0:o1]
        out = dz[i * row : (i + 1) * row]
        if o1 - o0 < row:
            out[:] = 0
        if gated:
            for o in range(o1 - o0):
                out[o] = slopes[o] if gate[o] > 0 else float32(0)
        else:
            for o in range(o1 - o0):
                out[o] = slopes[o]


@host_kernel(
    "void(i8, i8[::1], i8[::1], i4[:, ::1], i8, i8, i8, f4[:, ::1], f4[:, ::1], b1, f4[::1], f4, f4[::1], f4[::1],"
    " i8[:, ::1], f4[::1], i8, i8, i8, i8)"
)
def backward(
    channels,
    geometry,
    starts,
    kept,
    height,
    width,
    taps,
    dy,
    where,
    gated,
    u,
    scale,
    z,
    s,
    panels,
    dx,
    dx_first,
    dx_stop,
    first,
    stop,
):
    """dx of the block rows first … stop - 1, whose images are its floats dx_first … dx_stop - 1. `panels` is the table of the
    segments of A that are PANEL columns wide.
    """
    numbers, (total, outs) = unpacked(geometry), dy.shape
    dx[dx_first:dx_stop] = 0
    for b in range(first, stop):
        r0 = b * height
        count = min(height, total - r0)
        _slopes(dy, where, gated, r0, count, int64(0), outs, z, outs)
        for column in kept[b, : _count(kept[b], starts.size - 1)]:
            for k in range(column * width, (column + 1) * width, PANEL):
                at = (k % channels // PANEL * taps + k // channels) * outs * PANEL
                _multiply(z, 0, outs, 1, u, at, outs, count, s, 0, False)
                _add(s, scale, dx, channels, numbers, panels[k // PANEL], r0, count)


@host_function
def _add_up(s, count, sums):
    """Add the `count` rows of s to sums."""
    for i in range(count):
        values = s[i * PANEL : i * PANEL + sums.size]
        for o in range(sums.size):
            sums[o] += values[o]


@host_kernel(
    "void(f4[::1], i8, i8[::1], i8[:, ::1], i8[::1], i4[:, ::1], i8, i8, f4[:, ::1], f4[:, ::1], b1, f4[::1], f4[::1],"
    " f4[::1], f8[::1], i8, i8, i8, i8)"
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
    panel_stop - 1.
    """
    numbers, (total, outs), size = unpacked(geometry), dy.shape, (starts.size - 1) * width * PANEL
    terms[panel_first * size : panel_stop * size] = 0
    sums[panel_first * PANEL : min(panel_stop * PANEL, outs)] = 0
    for b in range(first, stop if panel_first < panel_stop else first):
        r0 = b * height
        count = min(height, total - r0)
        own = kept[b, : _count(kept[b], starts.size - 1)]
        _gather(pixels, channels, numbers, table, starts, own, width, r0, count, v)
        for panel in range(panel_first, panel_stop):
            o0 = panel * PANEL
            o1 = min(o0 + PANEL, outs)
            _slopes(dy, where, gated, r0, count, o0, o1, s, PANEL)
            _add_up(s, count, sums[o0:o1])
            for j in range(own.size):
                at = panel * size + own[j] * width * PANEL
                _multiply(v, j * count * width, 1, width, s, 0, count, width, terms, at, True)


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
        _finish(total, panel * size, panel, taps, channels, room, scale, dw)
