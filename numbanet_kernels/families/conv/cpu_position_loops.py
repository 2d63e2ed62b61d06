"""Convolutions on the CPU of listed positions, all images of a position at once: the loops.

The images that keep a position are the rows of a product with the taps that are inside the image there: of a 3 x 3 window,
these are 4 in a corner. Nothing is multiplied by the zeros around images. A piece is a position and some images that keep it.

    v    a row for each image of a piece: the pixels of its taps, one after the other; or dz, a value for each output
    u    for each tap, a row for each term of the sums and a column for each of PANEL results: the weight, or its gradient
    s    a row for each image of a piece, a column for each of PANEL results

A stretch is as many pieces as v holds. The geometry g holds the height, width and channels of the images; the numbers of
positions along both; the number of outputs; and the kernel, stride, padding and dilation along the height and the width.
"""

from __future__ import annotations

from numba import float32, int64

from ...host.simd import LINE
from ...host.transpose import transpose_block
from ...runtime.declare import host_function, host_kernel
from .cpu_im2col_loops import clear
from .winograd.cpu_winograd_loops import _even, _multiply, blank
from .winograd.cpu_winograd_transforms import PANEL

IMAGES = 48  # of a piece, at most
BLOCK = 32  # rows of a weight, or channels, whose taps are transposed at a time
POSITION, FIRST, END, ROWS, TAPS = range(5)  # of a piece; rows before it, and rows times taps


# --- lists ------------------------------------------------------------------------------------------------------------
@host_function
def _pixel(g, q, tap):
    """The pixel that position q reads with a tap; -1 if it is outside the image."""
    row = q // g[4] * g[8] - g[10] + tap // g[7] * g[12]
    column = q % g[4] * g[9] - g[11] + tap % g[7] * g[13]
    return row * g[1] + column if 0 <= row < g[0] and 0 <= column < g[1] else int64(-1)


@host_function
def _set(pieces, i, position, first, end, taps):
    piece = pieces[i]
    piece[POSITION], piece[FIRST], piece[END], piece[ROWS], piece[TAPS] = position, first, end, first, taps


@host_kernel("void(i8[::1], i4[::1], i8, i8[::1], i4[::1], i8[:, ::1])")
def cut(g, rows, images, starts, members, pieces):
    """List the images that keep each position, `members`, and cut them into pieces; the last and unused ones are empty."""
    positions, count, taps = g[3] * g[4], int64(0), int64(0)
    starts[:] = 0
    for r in rows:
        if r < images * positions:
            starts[r % positions + 1] += 1
    for q in range(positions):
        inside = int64(0)
        for tap in range(g[6] * g[7]):
            inside += _pixel(g, q, tap) >= 0
        first, stop = starts[q], starts[q] + starts[q + 1]
        starts[q + 1] = stop
        while first < stop:
            size = _even(stop - first, IMAGES)
            _set(pieces, count, q, first, first + size, taps)
            first, taps, count = first + size, taps + size * inside, count + 1
    for i in range(count, pieces.shape[0]):
        _set(pieces, i, int64(0), starts[positions], starts[positions], taps)
    for r in rows:
        if r < images * positions:
            q = r % positions
            members[starts[q]] = r // positions
            starts[q] += 1


@host_function
def _place(pieces, piece, depth, tapped):
    """The first float of a piece if v begins with the first piece of all; between rows there are LINE more floats, so that they
    do not displace each other in the cache.
    """
    return pieces[piece, TAPS if tapped else ROWS] * depth + pieces[piece, ROWS] * LINE


@host_function
def _end(pieces, begin, depth, tapped, size):
    """The end of the stretch that begins with a piece: the next ones as long as v, of this size, holds them."""
    end, first = begin, _place(pieces, begin, depth, tapped)
    while end + 1 < pieces.shape[0] and pieces[end, FIRST] < pieces[end, END]:
        if _place(pieces, end + 1, depth, tapped) - first > size:
            break
        end += 1
    return end


@host_function
def _row(pieces, piece, depth, tapped):
    """Floats from one row of a piece to the next."""
    count = max(pieces[piece, END] - pieces[piece, FIRST], 1)
    return (pieces[piece + 1, TAPS] - pieces[piece, TAPS]) // count * depth + LINE if tapped else depth + LINE


@host_function
def _copy(source, first, out, at, length):
    for i in range(length):
        out[at + i] = source[first + i]


@host_function
def _read(g, x, pieces, piece, members, v, at):
    """v of a piece from x."""
    q, channels, end, row = pieces[piece, POSITION], g[2], at, _row(pieces, piece, g[2], True)
    for tap in range(g[6] * g[7]):
        pixel = _pixel(g, q, tap)
        if pixel >= 0:
            for i in range(pieces[piece, FIRST], pieces[piece, END]):
                first = (int64(members[i]) * g[0] * g[1] + pixel) * channels
                _copy(x, first, v, end + (i - pieces[piece, FIRST]) * row, channels)
            end += channels


@host_function
def _slopes(g, dy, where, gated, pieces, piece, members, o0, o1, v, at, row):
    """dz of the outputs o0 … o1 - 1 of a piece: dy, but 0 unless where > 0 if `gated`."""
    outs = g[5]
    for i in range(pieces[piece, FIRST], pieces[piece, END]):
        first = (int64(members[i]) * g[3] * g[4] + pieces[piece, POSITION]) * outs
        place = at + (i - pieces[piece, FIRST]) * row - o0
        if gated:
            for o in range(o0, o1):
                v[place + o] = dy[first + o] if where[first + o] > 0 else float32(0)
        else:
            for o in range(o0, o1):
                v[place + o] = dy[first + o]


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
    "void(i8[::1], f4[::1], f4[:, ::1], f4, f4[::1], f4, i4[::1], i8, i8[:, ::1], i4[::1], f4[:, ::1], f4[::1], f4[::1], b1,"
    " f4[::1], f4[::1], i8, i8)"
)
def forward(g, x, w, scale, bias, low, rows, images, pieces, members, room, v, u, ready, s, y, p0, p1):
    """y = max(scale the convolution + bias, low) at the listed positions, and 0 elsewhere, for the panels p0 … p1 - 1. If u is
    `ready`, it holds all panels; if not, v holds all pieces, and each panel is packed when its turn comes.
    """
    channels, outs, taps = g[2], g[5], g[6] * g[7]
    size = taps * channels * PANEL
    if p0 < p1:
        blank(rows, int64(0), images * g[3] * g[4], outs, p0 * PANEL, min(p1 * PANEL, outs), y)
    begin, end = int64(0), _end(pieces, int64(0), channels, True, v.size)
    while end > begin and p0 < p1:
        start = _place(pieces, begin, channels, True)
        for piece in range(begin, end):
            _read(g, x, pieces, piece, members, v, _place(pieces, piece, channels, True) - start)
        for panel in range(p0, p1):
            b = panel * size if ready else 0
            if not ready:
                _pack(w, taps, channels, False, panel, room, u, 0)
            for piece in range(begin, end):
                at, row = _place(pieces, piece, channels, True) - start, _row(pieces, piece, channels, True)
                q, first, add = pieces[piece, POSITION], pieces[piece, FIRST], False
                for tap in range(taps):
                    if _pixel(g, q, tap) >= 0:
                        _multiply(v, at, row, 1, u, b + tap * channels * PANEL, channels, pieces[piece, END] - first, s, 0, add)
                        at, add = at + channels, True
                for i in range(first, pieces[piece, END]):
                    _put(s, (i - first) * PANEL, add, scale, bias, low, panel * PANEL, y, members[i] * g[3] * g[4] + q)
        begin, end = end, _end(pieces, end, channels, True, v.size)


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
    "void(i8[::1], f4[::1], f4[::1], b1, f4[:, ::1], f4, i8, i8[:, ::1], i4[::1], f4[:, ::1], f4[::1], f4[::1], b1, f4[::1],"
    " f4[::1], i8, i8)"
)
def backward(g, dy, where, gated, w, scale, images, pieces, members, room, v, u, ready, s, dx, p0, p1):
    """dx for the panels of channels p0 … p1 - 1."""
    pixels, channels, outs, taps = g[0] * g[1], g[2], g[5], g[6] * g[7]
    for pixel in range(images * pixels if p0 < p1 else 0):
        for i in range(pixel * channels + p0 * PANEL, pixel * channels + min(p1 * PANEL, channels)):
            dx[i] = float32(0)
    begin, end, row = int64(0), _end(pieces, int64(0), outs, False, v.size), outs + LINE
    while end > begin and p0 < p1:
        start = _place(pieces, begin, outs, False)
        for piece in range(begin, end):
            _slopes(g, dy, where, gated, pieces, piece, members, 0, outs, v, _place(pieces, piece, outs, False) - start, row)
        for panel in range(p0, p1):
            b = panel * taps * outs * PANEL if ready else 0
            if not ready:
                _pack(w, taps, channels, True, panel, room, u, 0)
            for piece in range(begin, end):
                at, first = _place(pieces, piece, outs, False) - start, pieces[piece, FIRST]
                for tap in range(taps):
                    pixel = _pixel(g, pieces[piece, POSITION], tap)
                    if pixel < 0:
                        continue
                    _multiply(v, at, row, 1, u, b + tap * outs * PANEL, outs, pieces[piece, END] - first, s, 0, False)
                    for i in range(first, pieces[piece, END]):
                        _add(s, (i - first) * PANEL, scale, panel * PANEL, channels, dx, members[i] * pixels + pixel)
        begin, end = end, _end(pieces, end, outs, False, v.size)


@host_function
def _add(s, at, scale, c0, channels, dx, pixel):
    """dx[pixel, c] += scale s[at + c - c0] for the channels of a panel."""
    terms, sums = s[at : at + PANEL], dx[pixel * channels + c0 : pixel * channels + min(c0 + PANEL, channels)]
    for c in range(sums.size):
        sums[c] += terms[c] * scale


@host_kernel(
    "void(i8[::1], f4[::1], f4[::1], f4[::1], b1, f4, i8[:, ::1], i4[::1], f4[:, ::1], f4[::1], f4[::1], b1, f4[::1],"
    " f4[:, ::1], f8[::1], f4[::1], i8, i8)"
)
def gradient(g, x, dy, where, gated, scale, pieces, members, room, v, u, held, s, dw, sums, db, p0, p1):
    """dw (O, C taps) and db for the panels p0 … p1 - 1. If u is not `held`, it holds one panel, and v all pieces."""
    channels, outs, taps = g[2], g[5], g[6] * g[7]
    size = taps * channels * PANEL
    for i in range(p0 * size, p1 * size if held else p0 * size):
        u[i] = float32(0)
    for o in range(p0 * PANEL, min(p1 * PANEL, outs)):
        sums[o] = 0
    begin, end = int64(0), _end(pieces, int64(0), channels, True, v.size)
    while p0 < p1 and (end > begin or (begin == 0 and not held)):
        start = _place(pieces, begin, channels, True)
        for piece in range(begin, end):
            _read(g, x, pieces, piece, members, v, _place(pieces, piece, channels, True) - start)
        for panel in range(p0, p1):
            o0, o1, b = panel * PANEL, min((panel + 1) * PANEL, outs), panel * size if held else 0
            for i in range(b, b if held else size):
                u[i] = float32(0)
            for piece in range(begin, end):
                count, at = pieces[piece, END] - pieces[piece, FIRST], _place(pieces, piece, channels, True) - start
                _slopes(g, dy, where, gated, pieces, piece, members, o0, o1, s, 0, PANEL)
                for i in range(count):
                    for o in range(o0, o1):
                        sums[o] += s[i * PANEL + o - o0]
                row = _row(pieces, piece, channels, True)
                for tap in range(taps):
                    if _pixel(g, pieces[piece, POSITION], tap) >= 0:
                        _multiply(v, at, 1, row, s, 0, count, channels, u, b + tap * channels * PANEL, True)
                        at += channels
            if not held:
                _finish(u, 0, panel, taps, channels, room, scale, dw)
        begin, end = max(end, 1), _end(pieces, end, channels, True, v.size)
    for panel in range(p0, p1 if held else p0):
        _finish(u, panel * size, panel, taps, channels, room, scale, dw)
    for o in range(p0 * PANEL, min(p1 * PANEL, outs)):
        db[o] = sums[o]


@host_function
def _finish(u, at, panel, taps, channels, room, scale, dw):
    """dw (O, C taps) of a panel from its sums."""
    o0 = panel * PANEL
    count = min(PANEL, dw.shape[0] - o0)
    for c0 in range(0, channels, BLOCK):
        c1 = min(c0 + BLOCK, channels)
        for c in range(c0, c1):
            for tap in range(taps):
                values, first = room[(c - c0) * taps + tap], at + (tap * channels + c) * PANEL
                for o in range(PANEL):
                    values[o] = u[first + o] * scale
        transpose_block(room, 0, (c1 - c0) * taps, 0, count, dw, o0, c0 * taps, False)
