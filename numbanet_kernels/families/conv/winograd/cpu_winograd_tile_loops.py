"""Convolutions on the CPU by Winograd's filtering of some tiles: the loops. Names and arrays are those of `cpu_winograd_loops`.

`kept` lists the tiles that are computed, increasing, and then numbers beyond the last tile. How many there are is read from
the list, because recordings are replayed with other lists. The outputs of other tiles are 0, and their gradients are not read.
dx is the transpose of the forward pass: the pixels that overlapping tiles share are added up. So no two threads have tiles of
one image, unless they compute different channels.
"""

from __future__ import annotations

from numba import float32, int64

from ....host.search import before
from ....runtime.declare import host_function, host_kernel
from ..cpu_panel_products import PANEL, even, multiply
from .cpu_winograd_loops import _finish, _place, _plane_of, _row_of, _weigh
from .cpu_winograd_transforms import gather_input, gather_slopes, scatter_output, scatter_pixels


# --- lists ------------------------------------------------------------------------------------------------------------
@host_function
def _image(kept, tiles, images, number, parts):
    """The first image of part `number`: images are shared so that parts have about equally many kept tiles. An image has
    `tiles` tiles.
    """
    count = before(kept, tiles * images)
    i = count * number // parts
    return int64(0) if number == 0 else int64(kept[i] // tiles) if i < count and number < parts else int64(images)


@host_function
def _tiles(g):
    """The number of tiles of an image."""
    return g[6] * g[7]


# --- forward ----------------------------------------------------------------------------------------------------------
@host_function
def _blank(g, kept, first, stop, places, goals, o0, o1, y):
    """y = 0 in the dropped ones of the tiles first … stop - 1, for the outputs o0 … o1 - 1."""
    i = before(kept, first)
    for tile in range(first, stop):
        if i < kept.size and kept[i] == tile:
            i += 1
            continue
        _place(tile, g, places, goals)
        for r in range(goals.size):
            if goals[r] >= 0:
                for o in range(goals[r] + o0, goals[r] + o1):
                    y[o] = float32(0)


@host_kernel(
    "void(i8[::1], f4[::1], f4[:, ::1], f4, f4[::1], f4, i4[::1], i8, i8[::1], i8[:, ::1], f4[::1], f4[:, ::1], f4[::1],"
    " f4[::1], b1, f4[::1], f4[::1], i8, i8, i8, i8)"
)
def forward(g, x, w, scale, bias, low, kept, images, places, goals, zeros, room, v, u, ready, s, y, number, parts, p0, p1):
    """y = max(scale the convolution + bias, low) of the kept tiles of part `number` of the images, and 0 of the others, for the
    panels p0 … p1 - 1. If u is `ready`, it holds all panels, else each panel is transformed when its turn comes.
    """
    m, channels, outs, most, tiles = g[0], g[3], g[10], goals.shape[0], _tiles(g)
    elements, row = (m + 2) * (m + 2), _row_of(channels)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(channels, PANEL), _plane_of(most, PANEL)
    first, stop = _image(kept, tiles, images, number, parts) * tiles, _image(kept, tiles, images, number + 1, parts) * tiles
    if p0 < p1:
        _blank(g, kept, first, stop, places, goals[0], p0 * PANEL, min(p1 * PANEL, outs), y)
    i0, stop = before(kept, first), before(kept, stop)
    while i0 < stop and p0 < p1:
        count = even(stop - i0, most)
        for t in range(count):
            _place(int64(kept[i0 + t]), g, places, goals[t])
            gather_input(m, x, places, zeros, 0, channels, v, t * row, plane_v)
        for panel in range(p0, p1):
            at, o0 = panel * elements * plane_u if ready else 0, panel * PANEL
            if not ready:
                _weigh(m, w, channels, False, False, panel, room, u, at)
            for i in range(elements):
                multiply(v, i * plane_v, row, 1, u, at + i * plane_u, channels, count, s, i * plane_s, False)
            for t in range(count):
                scatter_output(m, s, t * PANEL, plane_s, scale, bias, low, goals[t], o0, min(PANEL, outs - o0), y)
        i0 += count


# --- backward ---------------------------------------------------------------------------------------------------------
@host_kernel("void(i8[::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i8, i8[::1], i8[::1], f4[:, ::1], f8[:, ::1], i8, i8)")
def gate(g, dy, where, gated, kept, images, places, goals, dz, sums, first, stop):
    """dz = dy, but 0 unless where > 0, written only if `gated`, in the kept tiles; sums = the sums of dz in them, of the slices
    first … stop - 1 of the list.
    """
    count, outs = before(kept, _tiles(g) * images), dy.shape[1]
    for number in range(first, stop):
        total = sums[number]
        total[:] = 0
        for i in range(number * count // sums.shape[0], (number + 1) * count // sums.shape[0]):
            _place(int64(kept[i]), g, places, goals)
            for goal in goals:
                if goal < 0:
                    continue
                r = goal // outs
                slopes = dy[r]
                if gated:
                    values, out = where[r], dz[r]
                    for o in range(outs):
                        out[o] = slopes[o] if values[o] > 0 else float32(0)
                        total[o] += out[o]
                else:
                    for o in range(outs):
                        total[o] += slopes[o]


@host_function
def _clear(g, first, stop, c0, c1, x):
    """x = 0 in the images first … stop - 1, for the channels c0 … c1 - 1."""
    size, channels = g[1] * g[2], g[3]
    if c1 - c0 == channels:
        for i in range(first * size * channels, stop * size * channels):
            x[i] = float32(0)
        return
    for pixel in range(first * size, stop * size):
        for i in range(pixel * channels + c0, pixel * channels + c1):
            x[i] = float32(0)


@host_kernel(
    "void(i8[::1], f4[::1], f4[:, ::1], f4, i4[::1], i8, i8[:, ::1], i8[::1], f4[::1], f4[:, ::1], f4[::1], f4[::1], b1,"
    " f4[::1], f4[::1], i8, i8, i8, i8)"
)
def backward(g, dz, w, scale, kept, images, places, goals, zeros, room, v, u, ready, s, dx, number, parts, p0, p1):
    """dx of part `number` of the images, for the panels of channels p0 … p1 - 1; v holds A dY A^T."""
    m, channels, outs, most, tiles = g[0], g[3], g[10], places.shape[0], _tiles(g)
    elements, row = (m + 2) * (m + 2), _row_of(outs)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(outs, PANEL), _plane_of(most, PANEL)
    cleared, last = _image(kept, tiles, images, number, parts), _image(kept, tiles, images, number + 1, parts)
    begin, end = p0 * PANEL, min(p1 * PANEL, channels)
    i0, stop = before(kept, cleared * tiles), before(kept, last * tiles)
    while i0 < stop and p0 < p1:
        count = even(stop - i0, most)
        reached = kept[i0 + count - 1] // tiles + 1
        _clear(g, cleared, reached, begin, end, dx)
        cleared = max(cleared, reached)
        for t in range(count):
            _place(int64(kept[i0 + t]), g, places[t], goals)
            gather_slopes(m, dz, goals, zeros, 0, outs, v, t * row, plane_v)
        for panel in range(p0, p1):
            at, c0 = panel * elements * plane_u if ready else 0, panel * PANEL
            if not ready:
                _weigh(m, w, channels, True, False, panel, room, u, at)
            for i in range(elements):
                multiply(v, i * plane_v, row, 1, u, at + i * plane_u, outs, count, s, i * plane_s, False)
            for t in range(count):
                scatter_pixels(m, s, t * PANEL, plane_s, scale, places[t], c0, min(PANEL, channels - c0), dx)
        i0 += count
    if p0 < p1:
        _clear(g, cleared, last, begin, end, dx)


@host_kernel(
    "void(i8[::1], f4[::1], f4[::1], f4, i4[::1], i8, i8[::1], i8[:, ::1], f4[::1], f4[:, ::1], f4[::1], f4[::1], f4[::1], b1,"
    " f4[:, ::1], i8, i8, i8, i8)"
)
def gradient(g, x, dz, scale, kept, images, places, goals, zeros, room, v, u, s, held, dw, number, slices, p0, p1):
    """The sums u of dw over slice `number` of the kept tiles, for the panels p0 … p1 - 1. If u is not `held`, it holds one
    panel, all tiles are one stretch, and dw is computed at once.
    """
    m, channels, outs, most = g[0], g[3], g[10], goals.shape[0]
    elements, row, total = (m + 2) * (m + 2), _row_of(channels), before(kept, _tiles(g) * images)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(channels, PANEL), _plane_of(most, PANEL)
    first, stop = total * number // slices, total * (number + 1) // slices
    if first == stop:
        for i in range(elements * plane_u * (p1 - p0 if held else 1)):
            u[(p0 * elements * plane_u if held else 0) + i] = float32(0)
    i0 = first
    while p0 < p1 and (i0 < stop or (i0 == first and not held)):
        count = even(stop - i0, most) if i0 < stop else int64(0)
        for t in range(count):
            _place(int64(kept[i0 + t]), g, places, goals[t])
            gather_input(m, x, places, zeros, 0, channels, v, t * row, plane_v)
        for panel in range(p0, p1):
            at, o0 = panel * elements * plane_u if held else 0, panel * PANEL
            for t in range(count):
                gather_slopes(m, dz, goals[t], zeros, o0, min(PANEL, outs - o0), s, t * PANEL, plane_s)
            for i in range(elements if count else 0):
                multiply(v, i * plane_v, 1, row, s, i * plane_s, count, channels, u, at + i * plane_u, i0 > first)
            if not held:
                _finish(m, u, 1, panel, 0, room, scale, dw, channels)
        i0 += max(count, 1)
