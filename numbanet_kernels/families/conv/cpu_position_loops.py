"""Convolutions on the CPU of listed positions, all images of a position at once: the loops.

The images of a block that keep a position are the rows of a product with the taps that are inside the image there: of a 3 x 3
window, these are 4 in a corner. Nothing is multiplied by the zeros around images. A block of images stays in a core's cache
while all results of its positions are computed, a panel of PANEL after the other.

    starts, members    the images of block b that keep position q are members[starts[b, q]:starts[b, q + 1]]
    u    for each tap, a row for each term of the sums and a column for each result of a panel: the weight, or its gradient
    v    dz of a block, a row for each kept position of each image; for dw, pixels of a block (`_gather`)
    s    a row for each image that keeps a position, a column for each result of a panel; for dw, the panels of dz of a block

The geometry g holds the height, width and channels of the images; the numbers of positions along both; the number of outputs;
and the kernel, stride, padding and dilation along the height and the width.
"""

from __future__ import annotations

from numba import float32, int64

from ...host.simd import LINE
from ...host.transpose import transpose_block
from ...runtime.declare import host_function, host_kernel
from .cpu_im2col_loops import clear
from .cpu_panel_products import PANEL, copy_row, multiply, multiply_columns, multiply_listed
from .winograd.cpu_winograd_loops import blank

BLOCK = 32  # rows of a weight, or channels, whose taps are transposed at a time


# --- lists ------------------------------------------------------------------------------------------------------------
@host_function
def _pixel(g, q, tap):
    """The pixel that position q reads with a tap; -1 if it is outside the image."""
    row = q // g[4] * g[8] - g[10] + tap // g[7] * g[12]
    column = q % g[4] * g[9] - g[11] + tap % g[7] * g[13]
    return row * g[1] + column if 0 <= row < g[0] and 0 <= column < g[1] else int64(-1)


@host_kernel("void(i8[::1], i4[::1], i8, i8, i8[:, ::1], i4[::1])")
def cut(g, rows, images, block, starts, members):
    """List the images that keep each position, for each block of `block` images."""
    positions = g[3] * g[4]
    starts[:] = 0
    for fills in range(2):  # count, then list
        image, first = int64(0), int64(0)
        for r in rows:
            while r >= first + positions:
                image, first = image + 1, first + positions
            if image >= images:
                break
            own = starts[image // block]
            if fills:
                members[own[r - first + 1]] = image
            own[r - first + 1] += 1
        place = int64(0)
        for b in range(0 if fills else starts.shape[0]):
            starts[b, 0] = place
            for q in range(positions):
                count = starts[b, q + 1]
                starts[b, q + 1] = place
                place += count


@host_function
def _share(number, of, ways):
    """(first, end) of one of `ways` equal parts of `of` panels."""
    return number * of // ways, (number + 1) * of // ways


@host_function
def _slopes(g, dy, where, gated, q, image, o0, o1, v, at):
    """v[at:] = dz of the outputs o0 … o1 - 1 of a position of an image: dy, but 0 unless where > 0 if `gated`."""
    first = (int64(image) * g[3] * g[4] + q) * g[5]
    slopes, gate, out = dy[first + o0 : first + o1], where[first + o0 : first + o1], v[at : at + o1 - o0]
    if gated:
        for o in range(out.size):
            out[o] = slopes[o] if gate[o] > 0 else float32(0)
    else:
        for o in range(out.size):
            out[o] = slopes[o]


# --- the weight -------------------------------------------------------------------------------------------------------
@host_function
def _pack(w, taps, channels, turned, panel, room, u, at):
    """u of a panel from w (O, C taps); if `turned`, the results of the panel are channels."""
    outs, depth = (channels, w.shape[0]) if turned else (w.shape[0], channels)
    o0 = panel * PANEL
    o1 = min(o0 + PANEL, outs)
    if o1 - o0 < PANEL:
        clear(room, 0, room.shape[0])
    for c0 in range(0, depth, BLOCK):
        c1 = min(c0 + BLOCK, depth)
        if turned:
            pairs = w.reshape(w.size // taps, taps)
            for c in range(c0, c1):
                transpose_block(pairs, c * outs + o0, c * outs + o1, 0, taps, room, (c - c0) * taps, 0, True)
        else:
            transpose_block(w, o0, o1, c0 * taps, c1 * taps, room, 0, 0, True)
        for c in range(c0, c1):
            for tap in range(taps):
                values, first = room[(c - c0) * taps + tap], at + (tap * depth + c) * PANEL
                for o in range(PANEL):
                    u[first + o] = values[o]


@host_kernel("void(f4[:, ::1], i8, i8, b1, f4[:, ::1], f4[::1], i8, i8)")
def pack(w, taps, channels, turned, room, u, first, stop):
    """u of the panels first … stop - 1."""
    size = taps * (w.shape[0] if turned else channels) * PANEL
    for panel in range(first, stop):
        _pack(w, taps, channels, turned, panel, room, u, panel * size)


# --- forward ----------------------------------------------------------------------------------------------------------
@host_kernel(
    "void(i8[::1], f4[::1], f4[:, ::1], f4, f4[::1], f4, i4[::1], i8, i8, i8[:, ::1], i4[::1], f4[:, ::1], f4[::1], b1,"
    " f4[::1], f4[::1], i8, i8, i8)"
)
def forward(g, x, w, scale, bias, low, rows, images, block, starts, members, room, u, ready, s, y, ways, first, stop):
    """y = max(scale the convolution + bias, low) at the listed positions, and 0 elsewhere. A unit is one of `ways` parts of the
    panels of a block; those from `first` to stop - 1 are computed. If u is `ready`, it holds all panels; if not, each panel is
    packed when its turn comes.
    """
    positions, channels, outs, taps = g[3] * g[4], g[2], g[5], g[6] * g[7]
    size, image = taps * channels * PANEL, g[0] * g[1] * channels
    for unit in range(first, stop):
        b = unit // ways
        p0, p1 = _share(unit % ways, -(-outs // PANEL), ways)
        end = min((b + 1) * block, images)
        blank(rows, b * block * positions, end * positions, outs, p0 * PANEL, min(p1 * PANEL, outs), y)
        for panel in range(p0, p1):
            at = panel * size if ready else 0
            if not ready:
                _pack(w, taps, channels, False, panel, room, u, 0)
            for q in range(positions):
                i0, i1, add = starts[b, q], starts[b, q + 1], False
                for tap in range(taps if i0 < i1 else 0):
                    pixel = _pixel(g, q, tap)
                    if pixel >= 0:
                        right = at + tap * channels * PANEL
                        multiply_listed(x, pixel * channels, image, members, i0, u, right, channels, i1 - i0, s, 0, add)
                        add = True
                for i in range(i0, i1):
                    _put(s, (i - i0) * PANEL, add, scale, bias, low, panel * PANEL, y, members[i] * positions + q)


@host_function
def _put(s, at, added, scale, bias, low, o0, y, r):
    """y[r, o] = max(scale s[at + o - o0] + bias[o], low) for the outputs of a panel; s is 0 unless products were `added`."""
    outs = bias.size
    o1 = min(o0 + PANEL, outs)
    terms, own, out = s[at : at + PANEL], bias[o0:o1], y[r * outs + o0 : r * outs + o1]  # slices: LLVM then uses vectors
    if not added:
        terms[:] = 0
    for o in range(out.size):
        value = terms[o] * scale + own[o]
        out[o] = low if value < low else value


# --- backward ---------------------------------------------------------------------------------------------------------
@host_kernel(
    "void(i8[::1], f4[::1], f4[::1], b1, f4[:, ::1], f4, i8, i8, i8[:, ::1], i4[::1], f4[:, ::1], f4[::1], f4[::1], b1,"
    " f4[::1], f4[::1], i8, i8, i8)"
)
def backward(g, dy, where, gated, w, scale, images, block, starts, members, room, v, u, ready, s, dx, ways, first, stop):
    """dx; units are those of `forward`, with panels of channels."""
    positions, pixels, channels, outs, taps = g[3] * g[4], g[0] * g[1], g[2], g[5], g[6] * g[7]
    row, last = outs + LINE, int64(-1)  # rows do not displace each other in the cache
    for unit in range(first, stop):
        b = unit // ways
        p0, p1 = _share(unit % ways, -(-channels // PANEL), ways)
        for pixel in range(b * block * pixels, min((b + 1) * block, images) * pixels):
            dx[pixel * channels + p0 * PANEL : pixel * channels + min(p1 * PANEL, channels)] = 0
        begin = starts[b, 0]
        for q in range(positions if b != last else 0):
            for i in range(starts[b, q], starts[b, q + 1]):
                _slopes(g, dy, where, gated, q, members[i], int64(0), outs, v, (i - begin) * row)
        last = b
        for panel in range(p0, p1):
            at = panel * taps * outs * PANEL if ready else 0
            if not ready:
                _pack(w, taps, channels, True, panel, room, u, 0)
            for q in range(positions):
                i0, i1 = starts[b, q], starts[b, q + 1]
                for tap in range(taps if i0 < i1 else 0):
                    pixel = _pixel(g, q, tap)
                    if pixel < 0:
                        continue
                    right = at + tap * outs * PANEL
                    multiply(v, (i0 - begin) * row, row, 1, u, right, outs, i1 - i0, s, 0, False)
                    for i in range(i0, i1):
                        _add(s, (i - i0) * PANEL, scale, panel * PANEL, channels, dx, members[i] * pixels + pixel)


@host_function
def _add(s, at, scale, c0, channels, dx, pixel):
    """dx[pixel, c] += scale s[at + c - c0] for the channels of a panel."""
    terms, sums = s[at : at + PANEL], dx[pixel * channels + c0 : pixel * channels + min(c0 + PANEL, channels)]
    for c in range(sums.size):
        sums[c] += terms[c] * scale


@host_function
def _gather(g, x, b, starts, members, tap, c0, c1, wide, v, size, listed):
    """v of the channels c0 … c1 - 1 of the pixels that the kept positions of a block read with a tap, if these are inside the
    image: `wide` channels of all pixels, then the next ones, each `size` floats long. Also list the rows of s that belong to
    the pixels; return how many there are.
    """
    positions, image, count = g[3] * g[4], g[0] * g[1] * g[2], int64(0)
    for q in range(positions):
        pixel = _pixel(g, q, tap)
        for i in range(starts[b, q], starts[b, q + 1] if pixel >= 0 else starts[b, q]):
            at, first = count * wide, members[i] * image + pixel * g[2]
            for c in range(c0, c1, wide):
                copy_row(x, first + c, v, at, min(wide, c1 - c))
                at += size
            listed[count] = i - starts[b, 0]
            count += 1
    return count


@host_kernel(
    "void(i8[::1], f4[::1], f4[::1], f4[::1], b1, f4, i8, i8[:, ::1], i4[::1], f4[:, ::1], i8[::1], f4[::1], f4[::1], f4[::1],"
    " f4[:, ::1], f8[::1], f4[::1], i8, i8)"
)
def gradient(g, x, dy, where, gated, scale, wide, starts, members, room, listed, v, u, s, dw, sums, db, c0, c1):
    """dw (O, C taps) of the channels c0 … c1 - 1, `wide` at a time; and db, if c0 is 0. u holds all panels."""
    positions, channels, outs, taps = g[3] * g[4], g[2], g[5], g[6] * g[7]
    size, rows = taps * channels * PANEL, s.size // (-(-outs // PANEL) * PANEL)
    if c0 == 0 and c0 < c1:
        sums[:] = 0
    for b in range(starts.shape[0] if c0 < c1 else 0):
        for q in range(positions):
            for i in range(starts[b, q], starts[b, q + 1]):
                for o0 in range(0, outs, PANEL):
                    o1, at = min(o0 + PANEL, outs), o0 * rows + (i - starts[b, 0]) * PANEL
                    _slopes(g, dy, where, gated, q, members[i], o0, o1, s, at)
                    if c0 == 0:
                        total, values = sums[o0:o1], s[at : at + o1 - o0]
                        for o in range(total.size):
                            total[o] += values[o]
        for tap in range(taps):
            length = listed.size * wide + LINE
            count = _gather(g, x, b, starts, members, tap, c0, c1, wide, v, length, listed)
            for o0 in range(0, outs, PANEL):
                slopes, at = s[o0 * rows : (o0 + PANEL) * rows], o0 // PANEL * size + tap * channels * PANEL
                for c in range(c0, c1, wide):
                    own, place = min(wide, c1 - c), (c - c0) // wide * length
                    multiply_columns(v, place, wide, slopes, listed, count, own, u, at + c * PANEL, b > 0)
    for panel in range(-(-outs // PANEL) if c0 < c1 else 0):
        _finish(u, panel * size, panel, taps, channels, c0, c1, room, scale, dw)
    if c0 == 0 and c0 < c1:
        for o in range(outs):
            db[o] = sums[o]


@host_function
def _finish(u, at, panel, taps, channels, first, stop, room, scale, dw):
    """dw (O, C taps) of a panel and of the channels first … stop - 1 from its sums."""
    o0 = panel * PANEL
    count = min(PANEL, dw.shape[0] - o0)
    for c0 in range(first, stop, BLOCK):
        c1 = min(c0 + BLOCK, stop)
        for c in range(c0, c1):
            for tap in range(taps):
                values, begin = room[(c - c0) * taps + tap], at + (tap * channels + c) * PANEL
                for o in range(PANEL):
                    values[o] = u[begin + o] * scale
        transpose_block(room, 0, (c1 - c0) * taps, 0, count, dw, o0, c0 * taps, False)
