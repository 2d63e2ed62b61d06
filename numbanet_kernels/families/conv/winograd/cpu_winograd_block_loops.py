"""Convolutions on the CPU by Winograd's filtering of some channels, different ones in each group of images: the loops. Names
and arrays are those of `cpu_winograd_loops`.

`kept` (groups of images, Q) lists the blocks of `width` channels that each group keeps, increasing, and then numbers beyond the
last block; `width` is a multiple or a divisor of PANEL. Other channels of the images count as 0, and their gradients are 0. A
group has `size` tiles, the last one may have fewer; a stretch consists of whole groups, as many as v has room for.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64

from ....runtime.declare import host_function, host_kernel
from ..cpu_panel_products import PANEL, multiply
from .cpu_winograd_loops import _finish, _place, _plane_of, _row_of, _weigh
from .cpu_winograd_transforms import gather_input, gather_slopes, scatter_output

LOW = -np.inf  # nothing is less


@host_function
def _holds(kept, block):
    """True if a group keeps a block."""
    for i in range(kept.size):
        if kept[i] >= block:
            return kept[i] == block
    return False


@host_function
def _cleared(kept, width, goals, first, count, c0, c1, dx):
    """dx = 0 in tiles for the dropped ones of the channels c0 … c1 - 1; True if none is kept."""
    none = True
    for c in range(c0, c1, min(width, PANEL)):
        if _holds(kept, c // width):
            none = False
        else:
            _clear(goals, first, count, c, min(c + width, c1), dx)
    return none


@host_function
def _read(g, x, t0, count, kept, width, every, places, goals, zeros, v, at, plane):
    """v of `count` tiles of a group from t0 on, and their goals; of kept channels only, unless of `every` one."""
    channels, row = g[3], _row_of(g[3])
    for t in range(count):
        _place(t0 + t, g, places, goals[t])
        if every:
            gather_input(g[0], x, places, zeros, 0, channels, v, at + t * row, plane)
            continue
        for i in range(kept.size):
            first = int64(kept[i]) * width
            if first < channels:
                gather_input(g[0], x, places, zeros, first, min(width, channels - first), v, at + t * row + first, plane)


@host_kernel(
    "void(i8[::1], f4[::1], f4[:, ::1], f4, f4[::1], f4, i4[:, ::1], i8, i8, i8, i8[::1], i8[:, ::1], f4[::1],"
    " f4[:, ::1], f4[::1], f4[::1], b1, f4[::1], f4[::1], i8, i8, i8, i8)"
)
def forward(
    g, x, w, scale, bias, low, kept, width, size, total, places, goals, zeros, room, v, u, ready, s, y, first, stop, p0, p1
):
    """y = max(scale * convolution + bias, low) of the groups first … stop - 1 and the panels p0 … p1 - 1 of outputs. If
    `ready`, u holds the transformed weight of all panels; else each panel is transformed when its turn comes.
    """
    m, channels, outs, most = g[0], g[3], g[10], goals.shape[0]
    elements, row = (m + 2) * (m + 2), _row_of(channels)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(channels, PANEL), _plane_of(size, PANEL)
    for b0 in range(first, stop if p0 < p1 else first, most // size):
        b1 = min(b0 + most // size, stop)
        for b in range(b0, b1):
            t0, t = b * size, (b - b0) * size
            _read(g, x, t0, min(size, total - t0), kept[b], width, False, places, goals[t:], zeros, v, t * row, plane_v)
        for panel in range(p0, p1):
            at, o0 = panel * elements * plane_u if ready else 0, panel * PANEL
            if not ready:
                _weigh(m, w, channels, False, False, panel, room, u, at)
            for b in range(b0, b1):
                t, count, own = (b - b0) * size, min(size, total - b * size), kept[b]
                for i in range(elements):
                    _sum(own, width, v, i * plane_v + t * row, row, u, at + i * plane_u, channels, count, s, i * plane_s)
                for n in range(count):
                    scatter_output(m, s, n * PANEL, plane_s, scale, bias, low, goals[t + n], o0, min(PANEL, outs - o0), y)


@host_function
def _sum(kept, width, v, at, row, u, b, channels, count, s, place):
    """s of an element of `count` tiles: the sum of products over the kept channels."""
    added = False
    for i in range(kept.size):
        c0 = int64(kept[i]) * width
        if c0 < channels:
            multiply(v, at + c0, row, 1, u, b + c0 * PANEL, min(width, channels - c0), count, s, place, added)
            added = True
    if not added:
        for i in range(place, place + count * PANEL):
            s[i] = float32(0)


@host_kernel(
    "void(i8[::1], f4[::1], f4[:, ::1], f4, f4[::1], i4[:, ::1], i8, i8, i8, i8[::1], i8[:, ::1], f4[::1], f4[:, ::1], f4[::1],"
    " f4[::1], b1, f4[::1], f4[::1], i8, i8, i8, i8)"
)
def backward(
    g, dz, w, scale, bias, kept, width, size, total, places, goals, zeros, room, v, u, ready, s, dx, first, stop, p0, p1
):
    """dx of the groups first … stop - 1 and the panels p0 … p1 - 1 of channels: the convolution of dz by w with its taps
    reversed.
    """
    m, depth, channels, most = g[0], g[3], g[10], goals.shape[0]
    elements, row = (m + 2) * (m + 2), _row_of(depth)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(depth, PANEL), _plane_of(size, PANEL)
    for b0 in range(first, stop if p0 < p1 else first, most // size):
        b1 = min(b0 + most // size, stop)
        for b in range(b0, b1):
            t0, t = b * size, (b - b0) * size
            _read(g, dz, t0, min(size, total - t0), kept[b], width, True, places, goals[t:], zeros, v, t * row, plane_v)
        for panel in range(p0, p1):
            at, c0 = panel * elements * plane_u if ready else 0, panel * PANEL
            c1 = min(c0 + PANEL, channels)
            weighed = ready
            for b in range(b0, b1):
                t, count = (b - b0) * size, min(size, total - b * size)
                if _cleared(kept[b], width, goals, t, count, c0, c1, dx):
                    continue
                if not weighed:
                    _weigh(m, w, channels, True, True, panel, room, u, at)
                    weighed = True
                for i in range(elements):
                    multiply(v, i * plane_v + t * row, row, 1, u, at + i * plane_u, depth, count, s, i * plane_s, False)
                for c in range(c0, c1, min(width, PANEL)):
                    end = min(c + width, c1) if _holds(kept[b], c // width) else c
                    for n in range(count):
                        scatter_output(m, s, n * PANEL + c - c0, plane_s, scale, bias, LOW, goals[t + n], c, end - c, dx)


@host_function
def _clear(goals, first, count, c0, c1, dx):
    """dx = 0 in tiles, for the channels c0 … c1 - 1."""
    for t in range(first, first + count):
        for i in range(goals.shape[1]):
            if goals[t, i] >= 0:
                for c in range(goals[t, i] + c0, goals[t, i] + c1):
                    dx[c] = float32(0)


@host_kernel(
    "void(i8[::1], f4[::1], f4[::1], f4, i4[:, ::1], i8, i8, i8, i8[::1], i8[:, ::1], f4[::1], f4[:, ::1], f4[::1],"
    " f4[::1], f4[::1], b1, f4[:, ::1], i8, i8, i8, i8)"
)
def gradient(g, x, dz, scale, kept, width, size, total, places, goals, zeros, room, v, u, s, held, dw, first, stop, p0, p1):
    """The sums u of dw over the groups first … stop - 1, for the panels p0 … p1 - 1 of outputs. If u is not `held`, it holds
    one panel, all groups are one stretch, and dw is computed at once.
    """
    m, channels, outs, most = g[0], g[3], g[10], goals.shape[0]
    elements, row = (m + 2) * (m + 2), _row_of(channels)
    plane_v, plane_u, plane_s = _plane_of(most, row), _plane_of(channels, PANEL), _plane_of(size, PANEL)
    for b0 in range(first, stop if p0 < p1 else first, most // size):
        b1 = min(b0 + most // size, stop)
        for b in range(b0, b1):
            t0, t = b * size, (b - b0) * size
            _read(g, x, t0, min(size, total - t0), kept[b], width, False, places, goals[t:], zeros, v, t * row, plane_v)
        for panel in range(p0, p1):
            at, o0 = panel * elements * plane_u if held else 0, panel * PANEL
            if b0 == first:
                for i in range(at, at + elements * plane_u):
                    u[i] = float32(0)
            for b in range(b0, b1):
                t, count, own = (b - b0) * size, min(size, total - b * size), kept[b]
                for n in range(count):
                    gather_slopes(m, dz, goals[t + n], zeros, o0, min(PANEL, outs - o0), s, n * PANEL, plane_s)
                for i in range(elements):
                    for j in range(own.size):
                        c0 = int64(own[j]) * width
                        if c0 < channels:
                            place, depth = at + i * plane_u + c0 * PANEL, min(width, channels - c0)
                            multiply(v, i * plane_v + t * row + c0, 1, row, s, i * plane_s, count, depth, u, place, True)
            if not held:
                _finish(m, u, 1, panel, 0, room, scale, dw, channels)
