"""Convolutions on the CPU: patches of images are gathered into a tile that stays in cache, and multiplied there.

The im2col matrix A (N P, K) has a row for each of the P output positions of an image: the patch that the position reads, with
columns k = (kh, kw, c), channels fastest. It is never built. Each thread gathers a tile of its rows, multiplies it by the
transposed weight (K, O), and reuses the buffer for the next tile. The backward pass also adds each tile of dA to the gradients
of the pixels that the tile reads. Dropped rows and blocks of A are not gathered.

Loops take the sizes as one int64 array (`geometry`), the columns of a row as a table (`segments`), and a plan as lists: `rows`,
kept rows of A, or `kept`, the kept block columns of each block row.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import float32, int64

from ...host.blas import multiply
from ...host.search import before
from ...host.simd import VECTOR, copy_vector, copy_vectors
from ...runtime.declare import host_function, host_kernel

CLEARED = 16  # gaps of y are cleared for this many listed rows at once: single gaps would take as long as the product

ZEROS = np.zeros(VECTOR, np.float32)


# --- patches ----------------------------------------------------------------------------------------------------------
# A row of A consists of segments: columns that are contiguous in memory. Relative to the patch's first pixel they are the same
# for all rows, so a table holds, for each segment, (lines below the patch's first line, floats from its first pixel, columns),
# and the first segment of each block column.


@functools.lru_cache(maxsize=256)
def geometry(window, shape, positions):
    """Return the sizes of images for the loops, and the extent of a patch, in lines and in floats."""
    down, across = (step * (k - 1) for step, k in zip(window.dilation, window.kernel))
    return np.array([*shape[1:3], *window.stride, *window.padding, *positions, down, (across + 1) * shape[3]])


@functools.lru_cache(maxsize=256)
def segments(window, channels, own, block):
    """Return the table (S, 3) of the segments of a row of A with `own` channels at each tap, and the first segment of each
    block column, (block columns + 1,). `block` is the number of columns of a block column; None if there is only one.
    """
    (kernel_h, kernel_w), step_h, step_w = window.kernel, *window.dilation
    depth = kernel_h * kernel_w * own
    joined = own * (kernel_w if step_w == 1 and own == channels else 1)  # largest contiguous run
    edges = range(0, depth, block or max(depth, 1))
    cuts = sorted({*range(0, depth, max(joined, 1)), *edges, depth})
    table = [
        (k // (kernel_w * own) * step_h, k // own % kernel_w * step_w * channels + k % own, stop - k)
        for k, stop in zip(cuts, cuts[1:])
    ]
    return np.array(table, np.int64).reshape(-1, 3), np.searchsorted(cuts, [*edges, depth])


@host_function
def patch_origin(row, geometry, before):
    """Return (first row of A on this output line, first line of this image, top line of the patch, which may be above the
    image). If an earlier result, `before`, is for the same line, return it: divisions take longer than a short copy.
    """
    height, _, stride_h, _, pad_h, _, out_h, out_w, _, _ = geometry
    if 0 <= row - before[0] < out_w:
        return before
    line = row // out_w
    n = line // out_h
    return line * out_w, n * height, (line - n * out_h) * stride_h - pad_h


@host_function
def patch_left(row, geometry, place, width):
    """Return the float of its line at which the patch of a row of A begins, which may be left of the image; a pixel has `width`
    floats.
    """
    return ((row - place[0]) * geometry[3] - geometry[5]) * width


@host_function
def _inside(segment, top, left, height, line):
    """Return (float of the image's line at which a segment begins, first column of the segment inside the image, end of these
    columns, number of all columns of the segment).
    """
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
    """Copy the segments `table` of a row of A, whose patch may be partly outside the image, to `room` from `at` on; return
    their end.
    """
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
    """Add the segments `table` of a row of dA, whose patch may be partly outside the image, to their pixels; return the end of
    the columns.
    """
    for s in range(table.shape[0]):
        start, inside, outside, count = _inside(table[s], top, left, height, line)
        _add(room, at + inside, pixels, (base + top + table[s, 0]) * line + start + inside, outside - inside)
        at += count
    return at


@host_function
def _kept(table, starts, kept, block_row, own):
    """Write the segments of the kept columns of a block row to `own`, and return their number; without blocks, all segments.
    Adjacent segments are merged. The list of kept columns ends at the first index outside the matrix.
    """
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
    """Copy the rows of the weight for a block row to `own`; return their number."""
    count = 0
    for column in kept[block_row]:
        for k in range(column * width, min((column + 1) * width, wt.shape[0])):
            source, target = wt[k], own[count]
            for o in range(target.size):
                target[o] = source[o]
            count += 1
    return count


@host_function
def _add_rows(own_dw, kept, width, block_row, dwt):
    """Add the rows of the gradient for a block row to those of the weight's gradient."""
    count = 0
    for column in kept[block_row]:
        for k in range(column * width, min((column + 1) * width, dwt.shape[0])):
            source, target = own_dw[count], dwt[k]
            for o in range(target.size):
                target[o] += source[o]
            count += 1


@host_function
def _fill(room, pixels, count, t0, geometry, channels, first, table, rows, listed):
    """room = `count` rows of A from t0 on, with the table's columns. Up to a vector of elements after them is overwritten."""
    at, found = int64(0), (-geometry[7], int64(0), int64(0))  # a literal would make Numba compile a second version
    height, line = geometry[0], geometry[1] * channels
    lowest, rightmost = height - geometry[8], line - geometry[9]  # largest origin of a patch inside the image
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
    """Add `count` rows of dA from t0 on, with the table's columns, to their pixels."""
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
    """y[first:stop] = 0, as a loop, because an assignment with two axes takes seconds to compile."""
    width, flat = y.shape[1], y.reshape(y.size)
    for i in range(first * width, stop * width):
        flat[i] = float32(0)


@host_function
def _ends(rows, listed, first, stop):
    """Return (begin, end) of the entries of a list that are in first … stop - 1; (first, stop) if not `listed`."""
    return (before(rows, first), before(rows, stop)) if listed else (first, stop)


@host_function
def _finish(part, count, t0, y, bias, low, scale, rows, listed):
    """y = max(scale part + bias, low) for `count` rows from t0 on; if `listed`, y is 0 between the rows of the list."""
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
    """part = scale dz for `count` rows from t0 on, and db += the sum of dz over these rows."""
    for i in range(count):
        row = rows[t0 + i] if listed else t0 + i
        slopes, gate, dz = dy[row], where[row if gated else 0], part[i]
        for o in range(dz.size):
            slope = slopes[o] if not gated or gate[o] > 0 else float32(0)
            db[o] += slope
            dz[o] = scale * slope


@host_function
def unpacked(g):
    """Return the geometry as a tuple, so that it stays in registers."""
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
    """y[r] = act(scale A[r] wt + bias) for those of the rows first … stop - 1 of A that are listed; other rows of y are 0."""
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
    """dx = scale dz wt.T, added to the pixels of A, dwt = scale A.T dz, db = sum of dz, for those of the rows first … stop - 1
    of A that are listed: dz = dy, 0 unless where > 0. The images of these rows are the pixels dx_first … dx_stop - 1.
    """
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
            _add_rows(own_dw, kept, width, block_row, dwt)


# --- the sum over all threads ----------------------------------------------------------------------------------------
@host_kernel("void(f8[:, ::1], f4[::1])")
def add_up(sums, db):
    """db[o] = sum_t sums[t, o]"""
    for o in range(db.size):
        total = 0.0
        for t in range(sums.shape[0]):
            total += sums[t, o]
        db[o] = total
