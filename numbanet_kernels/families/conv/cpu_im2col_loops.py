"""Convolutions on the CPU: patches of images are gathered into a tile that stays in cache, and multiplied there.

The input matrix A (N P, K) has a row for each of the P output positions of an image: the patch that the position sees, its
column k = (kh, kw, c) with the channels fastest. It is never built. Each thread gathers a tile of its rows, multiplies it by
the transposed weight (K, O), and gathers the next tile into the same place. Backward it also adds a tile of dA to the pixels
that A came from. Dropped rows and blocks of A are never gathered.

Loops take the sizes as one int64 array (`geometry`), where a row's columns lie as a table (`segments`), and a plan as lists:
`rows`, kept rows of A, or `kept`, the kept block columns of each block row.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import float32, int64

from ...host.blas import multiply
from ...host.simd import VECTOR, copy_vector, copy_vectors
from ...runtime.declare import host_function, host_kernel

CLEARED = 16  # listed rows of y between which is cleared at once: each by itself would take as long as its product

ZEROS = np.zeros(VECTOR, np.float32)


# --- patches ----------------------------------------------------------------------------------------------------------
# A row of A lies in segments: columns that are neighbours among the pixels too. Where they are does not depend on the row but
# for where its patch begins, so a table has, for each segment, (how far below the patch's first line it lies, how many floats
# from its first pixel, how many columns it has), and for each block column where its segments begin.


@functools.lru_cache(maxsize=256)
def geometry(window, shape, positions):
    """What the loops take of images of this shape: sizes, and how far a patch reaches, in lines and in floats."""
    down, across = (step * (k - 1) for step, k in zip(window.dilation, window.kernel))
    return np.array([*shape[1:3], *window.stride, *window.padding, *positions, down, (across + 1) * shape[3]])


@functools.lru_cache(maxsize=256)
def segments(window, channels, own, block):
    """The table (S, 3), and the starts (block columns + 1,), of rows with `own` of the channels at each tap; block: columns of
    a block column, None for one of all."""
    (kernel_h, kernel_w), step_h, step_w = window.kernel, *window.dilation
    depth = kernel_h * kernel_w * own
    joined = own * (kernel_w if step_w == 1 and own == channels else 1)  # as far as neighbours are together
    edges = range(0, depth, block or max(depth, 1))
    cuts = sorted({*range(0, depth, max(joined, 1)), *edges, depth})
    table = [
        (k // (kernel_w * own) * step_h, k // own % kernel_w * step_w * channels + k % own, stop - k)
        for k, stop in zip(cuts, cuts[1:])
    ]
    return np.array(table, np.int64).reshape(-1, 3), np.searchsorted(cuts, [*edges, depth])


@host_function
def patch_origin(row, geometry, before):
    """(its line of positions' first row of A, line of all images' lines, line of its image) where the patch of a row of A
    begins, perhaps above the image. What it said before holds for all of that line: divisions take longer than a short copy."""
    height, _, stride_h, _, pad_h, _, out_h, out_w, _, _ = geometry
    if 0 <= row - before[0] < out_w:
        return before
    line = row // out_w
    n = line // out_h
    return line * out_w, n * height, (line - n * out_h) * stride_h - pad_h


@host_function
def patch_left(row, geometry, place, width):
    """The float of its line where the patch of a row of A begins, perhaps left of the image, `width` floats a pixel."""
    return ((row - place[0]) * geometry[3] - geometry[5]) * width


@host_function
def _inside(segment, top, left, height, line):
    """(float of the image's line where a segment begins, its columns inside the image, first and last plus one, how many)"""
    start, count = left + segment[1], segment[2]
    if not 0 <= top + segment[0] < height:
        return start, count, count, count
    before = min(max(-start, 0), count)
    return start, before, max(min(count, line - start), before), count


@host_function
def _add(source, start, target, at, count):
    """target[at:at + count] += source[start:start + count]"""
    values, sums = source[start : start + count], target[at : at + count]
    for j in range(sums.size):
        sums[j] += values[j]


@host_function
def _gather_at_edge(pixels, base, top, left, height, line, table, room, at):
    """The columns of a row of A that the segments of a table have, where some of its patch may lie outside the image, to
    `room` from `at` on; returns where they end."""
    for s in range(table.shape[0]):
        start, inside, outside, count = _inside(table[s], top, left, height, line)
        for j in range(0, count, VECTOR):
            copy_vector(ZEROS, 0, room, at + j)
        from_row = (base + top + table[s, 0]) * line + start
        target, source = room[at + inside : at + outside], pixels[from_row + inside : from_row + outside]
        for j in range(target.size):
            target[j] = source[j]
        at += count
    return at


@host_function
def _scatter_at_edge(room, at, base, top, left, height, line, table, pixels):
    """Add the columns of a row of dA that the segments of a table have to the pixels they came from, where some of its patch
    may lie outside the image; returns where the columns end."""
    for s in range(table.shape[0]):
        start, inside, outside, count = _inside(table[s], top, left, height, line)
        _add(room, at + inside, pixels, (base + top + table[s, 0]) * line + start + inside, outside - inside)
        at += count
    return at


@host_function
def _kept(table, starts, kept, block_row, own):
    """How many segments the kept columns of a block row have, written to `own`; all of the table where there are no blocks.
    Segments that go on where one ends become one with it. A list ends with the first column that is none."""
    if kept.shape[0] == 0:
        for s in range(table.shape[0]):
            own[s, 0], own[s, 1], own[s, 2] = table[s, 0], table[s, 1], table[s, 2]
        return table.shape[0]
    count = 0
    for column in kept[block_row]:
        if column >= starts.size - 1:
            break
        for s in range(starts[column], starts[column + 1]):
            down, across, width = table[s, 0], table[s, 1], table[s, 2]
            if count and own[count - 1, 0] == down and own[count - 1, 1] + own[count - 1, 2] == across:
                own[count - 1, 2] += width
            else:
                own[count, 0], own[count, 1], own[count, 2] = down, across, width
                count += 1
    return count


@host_function
def _weight(wt, kept, width, block_row, own):
    """How many rows of the weight a block row meets, copied to `own` one after the other."""
    count = 0
    for column in kept[block_row]:
        for k in range(column * width, min((column + 1) * width, wt.shape[0])):
            source, target = wt[k], own[count]
            for o in range(target.size):
                target[o] = source[o]
            count += 1
    return count


@host_function
def _fill(room, pixels, count, t0, geometry, channels, first, table, rows, listed):
    """room = `count` rows of A from t0 on, those columns that the table has. Less than a vector behind them is written, too."""
    at, found = int64(0), (-geometry[7], int64(0), int64(0))  # Numba compiles once more for a literal
    height, line = geometry[0], geometry[1] * channels
    lowest, rightmost = height - geometry[8], line - geometry[9]  # up to where a patch lies inside the image
    last = pixels.size - geometry[8] * line - geometry[9] - VECTOR
    for i in range(count):
        row = rows[t0 + i] if listed else t0 + i
        found = patch_origin(row, geometry, found)
        _, base, top = found
        left = patch_left(row, geometry, found, channels) + first
        origin = (base + top) * line + left
        if top < 0 or left < 0 or top >= lowest or left > rightmost or origin > last:
            at = _gather_at_edge(pixels, base, top, left, height, line, table, room, at)
            continue
        for s in range(table.shape[0]):
            copy_vectors(pixels, origin + table[s, 0] * line + table[s, 1], room, at, table[s, 2])
            at += table[s, 2]


@host_function
def _spread(room, pixels, count, t0, geometry, channels, first, table, rows, listed):
    """Add to the pixels `count` rows of dA from t0 on, of those columns that the table has."""
    at, found = int64(0), (-geometry[7], int64(0), int64(0))
    height, line = geometry[0], geometry[1] * channels
    lowest, rightmost = height - geometry[8], line - geometry[9]
    for i in range(count):
        row = rows[t0 + i] if listed else t0 + i
        found = patch_origin(row, geometry, found)
        _, base, top = found
        left = patch_left(row, geometry, found, channels) + first
        if top < 0 or left < 0 or top >= lowest or left > rightmost:
            at = _scatter_at_edge(room, at, base, top, left, height, line, table, pixels)
            continue
        for s in range(table.shape[0]):
            _add(room, at, pixels, (base + top + table[s, 0]) * line + left + table[s, 1], table[s, 2])
            at += table[s, 2]


@host_function
def clear(y, first, stop):
    """y[first:stop] = 0, as a loop: of two axes an assignment takes seconds to compile."""
    width, flat = y.shape[1], y.reshape(y.size)
    for i in range(first * width, stop * width):
        flat[i] = float32(0)


@host_function
def _before(rows, row):
    """How many entries of an increasing list are less than a row."""
    low, high = int64(0), int64(rows.size)
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@host_function
def _ends(rows, listed, first, stop):
    """Which entries of a list are rows first … stop - 1 of A; those rows where none are listed."""
    return (_before(rows, first), _before(rows, stop)) if listed else (first, stop)


@host_function
def _finish(part, count, t0, y, bias, low, scale, rows, listed):
    """y = max(scale part + bias, low) at `count` rows from t0 on, and 0 between listed ones, up to the next tile."""
    for i in range(count):
        row = rows[t0 + i] if listed else t0 + i
        if listed and i % CLEARED == 0:
            behind = t0 + min(i + CLEARED, count)
            clear(y, row, min(int64(rows[behind]), y.shape[0]) if behind < rows.size else y.shape[0])
        out, values = y[row], part[i]
        for o in range(out.size):
            value = scale * values[o] + bias[o]
            out[o] = low if value < low else value  # not max(): NaN stays NaN


@host_function
def _slopes(part, count, t0, dy, where, gated, scale, rows, listed, db):
    """part = scale dz at `count` rows from t0 on, and db += the sum of dz."""
    for i in range(count):
        row = rows[t0 + i] if listed else t0 + i
        slopes, gate, dz = dy[row], where[row if gated else 0], part[i]
        for o in range(dz.size):
            slope = slopes[o] if not gated or gate[o] > 0 else float32(0)
            db[o] += slope
            dz[o] = scale * slope


@host_function
def unpacked(g):
    """The geometry as a tuple: registers, not memory."""
    return g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9]


# --- forward and backward ---------------------------------------------------------------------------------------------
LISTS = "i8[::1], i8, i8[:, ::1], i8[::1], i4[::1], b1, i4[:, ::1], i8, i8"


@host_kernel(
    f"void(i8, f4[::1], i8, f4[:, ::1], f4[::1], b1, f4, {LISTS}, f4[::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], i8, i8)"
)
def forward(
    entry,
    pixels,
    channels,
    wt,
    bias,
    relu,
    scale,
    geometry,
    groups,
    table,
    starts,
    rows,
    listed,
    kept,
    width,
    tile,
    room,
    part,
    own,
    y,
    first,
    stop,
):
    """y[r] = act(scale A[r] wt + bias) for the rows first … stop - 1 of A, as far as they are listed; the others of y are 0."""
    first, stop = _ends(rows, listed, first, stop)
    numbers, depth, outs = unpacked(geometry), wt.shape[0] // groups, y.shape[1] // groups
    own_table = np.empty_like(table)
    if listed and first == 0:
        clear(y, int64(0), min(int64(rows[0]), y.shape[0]) if rows.size else y.shape[0])
    for t0 in range(first, stop, tile):
        count, segments = min(tile, stop - t0), own_table[: _kept(table, starts, kept, t0 // tile, own_table)]
        for g in range(groups):
            weight = wt[g * depth : (g + 1) * depth]
            if kept.shape[0]:
                weight = own[: _weight(weight, kept, width, t0 // tile, own)]
            cols = room[: count * weight.shape[0]].reshape(count, weight.shape[0])
            _fill(room, pixels, count, t0, numbers, channels, g * (channels // groups), segments, rows, listed)
            multiply(entry, cols, weight, part[:count, g * outs : (g + 1) * outs])
        _finish(part, count, t0, y, bias, float32(0) if relu else float32(-np.inf), scale, rows, listed)


@host_kernel(
    f"void(i8, f4[:, ::1], f4[:, ::1], b1, f4[::1], i8, f4[:, ::1], f4, {LISTS}, f4[::1], f4[:, ::1], f4[:, ::1],"
    " f4[:, ::1], f4[::1], i8, i8, b1, f4[:, ::1], f8[::1], i8, i8)"
)
def backward(
    entry,
    dy,
    where,
    gated,
    pixels,
    channels,
    wt,
    scale,
    geometry,
    groups,
    table,
    starts,
    rows,
    listed,
    kept,
    width,
    tile,
    room,
    part,
    own,
    own_dw,
    dx,
    dx_first,
    dx_stop,
    wants_dx,
    dwt,
    db,
    first,
    stop,
):
    """dx = scale dz wt.T, added up at the pixels of A, dwt = scale A.T dz, db = sum of dz, of the rows first … stop - 1 of A,
    as far as they are listed: dz = dy where where > 0. The images of those rows are the pixels dx_first … dx_stop - 1."""
    first, stop = _ends(rows, listed, first, stop)
    own_table = np.empty_like(table)
    dx[dx_first:dx_stop] = 0
    db[:] = 0
    clear(dwt, int64(0), dwt.shape[0])
    numbers, depth, outs = unpacked(geometry), wt.shape[0] // groups, dy.shape[1] // groups
    for t0 in range(first, stop, tile):
        count, block_row = min(tile, stop - t0), t0 // tile
        segments = own_table[: _kept(table, starts, kept, block_row, own_table)]
        _slopes(part, count, t0, dy, where, gated, scale, rows, listed, db)
        for g in range(groups):
            weight = wt[g * depth : (g + 1) * depth]
            if kept.shape[0]:
                weight = own[: _weight(weight, kept, width, block_row, own)]
            inner, dz, at = weight.shape[0], part[:count, g * outs : (g + 1) * outs], g * (channels // groups)
            cols = room[: count * inner].reshape(count, inner)
            if wants_dx:
                multiply(entry, dz, weight, cols, False, True)
                _spread(room, dx, count, t0, numbers, channels, at, segments, rows, listed)
            _fill(room, pixels, count, t0, numbers, channels, at, segments, rows, listed)
            if kept.shape[0] == 0:
                multiply(entry, cols, dz, dwt[g * depth : (g + 1) * depth], True, False, 1.0)
                continue
            multiply(entry, cols, dz, own_dw[:inner], True)
            at = 0
            for column in kept[block_row]:
                k0, k1 = column * width, min((column + 1) * width, depth)
                for k in range(k0, k1):
                    source, target = own_dw[at + k - k0], dwt[k]
                    for o in range(target.size):
                        target[o] += source[o]
                at += k1 - k0


# --- what threads found, added up -------------------------------------------------------------------------------------
@host_kernel("void(f8[:, ::1], f4[::1])")
def add_up(sums, db):
    """db[o] = the sum of sums[t, o] over t"""
    for o in range(db.size):
        total = 0.0
        for t in range(sums.shape[0]):
            total += sums[t, o]
        db[o] = total


@host_kernel("void(f4[:, :, :, :, :, ::1], i8, f4[:, :, :, ::1])")
def add_joined(terms, step, dw):
    """dw[o, c, kh, kw] = the sum of terms[t, kh, kw + i step, c, i, o] over threads t and joined positions i"""
    for o in range(dw.shape[0]):
        for c in range(dw.shape[1]):
            for kh in range(dw.shape[2]):
                for kw in range(dw.shape[3]):
                    total = float32(0)
                    for t in range(terms.shape[0]):
                        for i in range(terms.shape[4]):
                            total += terms[t, kh, kw + i * step, c, i, o]
                    dw[o, c, kh, kw] = total
