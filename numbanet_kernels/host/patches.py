"""Convolutions on the CPU: patches of images are gathered into a tile that stays in cache, and multiplied there.

The input matrix A (N P, K) has a row for each of the P output positions of an image: the patch that the position sees, its
column k = (kh, kw, c) with the channels fastest. It is never built. Each thread gathers a tile of its rows, multiplies it by
the turned weight (K, O), and gathers the next tile into the same place. Backward it also adds a tile of dA to the pixels that
A came from. Dropped rows and blocks of A are never gathered.

Loops take the sizes as one int64 array (`geometry`), where a row's columns lie as a table (`segments`), and a plan as lists:
`rows`, kept rows of A, or `kept`, the kept block columns of each block row.
"""
from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import float32, int64
from numba.extending import intrinsic

from ..runtime.declare import host_function, host_kernel
from .blas import multiply
from .transposition import _turn

LINE = 64    # outputs that are turned together
VECTOR = 8   # of a register: up to so many behind a tile are written

ZEROS = np.zeros(VECTOR, np.float32)


# --- patches ----------------------------------------------------------------------------------------------------------
# A row of A lies in segments: columns that are neighbours among the pixels too. Where they are does not depend on the row but
# for where its patch begins, so a table has, for each segment, (how far below the patch's first line it lies, how many floats
# from its first pixel, how many columns it has), and for each block column where its segments begin.


def geometry(window, shape, positions):
    """What the loops take of images of this shape: sizes, and how far a patch reaches, in lines and in floats."""
    down, across = (step * (k - 1) for step, k in zip(window.dilation, window.kernel))
    return np.array([*shape[1:3], *window.stride, *window.padding, *positions, down, (across + 1) * shape[3]])


def segments(window, channels, own, block):
    """The table (S, 3), and the starts (block columns + 1,), of rows with `own` of the channels at each tap; block: columns of
    a block column, None for one of all."""
    (kernel_h, kernel_w), step_h, step_w = window.kernel, *window.dilation
    depth = kernel_h * kernel_w * own
    joined = own * (kernel_w if step_w == 1 and own == channels else 1)  # as far as neighbours are together
    edges = range(0, depth, block or max(depth, 1))
    cuts = sorted({*range(0, depth, max(joined, 1)), *edges, depth})
    table = [(k // (kernel_w * own) * step_h, k // own % kernel_w * step_w * channels + k % own, stop - k)
             for k, stop in zip(cuts, cuts[1:])]
    return np.array(table, np.int64).reshape(-1, 3), np.searchsorted(cuts, [*edges, depth])


@host_function
def _place(row, geometry, width):
    """(line of all images' lines, line of its image, float of its line) where the patch of a row of A begins, perhaps outside
    the image, `width` floats a pixel."""
    height, _, stride_h, stride_w, pad_h, pad_w, out_h, out_w, _, _ = geometry
    n, place = divmod(row, out_h * out_w)
    oh, ow = divmod(place, out_w)
    return n * height, oh * stride_h - pad_h, (ow * stride_w - pad_w) * width


@host_function
def _inside(segment, top, left, height, line):
    """(float of the image's line where a segment begins, its columns inside the image, first and last plus one, how many)"""
    start, count = left + segment[1], segment[2]
    if not 0 <= top + segment[0] < height:
        return start, count, count, count
    before = min(max(-start, 0), count)
    return start, before, max(min(count, line - start), before), count


@intrinsic
def _copy_vector(typing_context, source, start, target, at):
    """target[at:at + VECTOR] = source[start:start + VECTOR], through one register."""
    def generate(context, builder, signature, arguments):
        def place(kind, array, index):
            data = context.make_array(kind)(context, builder, array).data
            return builder.bitcast(builder.gep(data, [index]), ir.VectorType(ir.FloatType(), VECTOR).as_pointer())

        kinds = signature.args
        builder.store(builder.load(place(kinds[0], *arguments[:2]), align=4), place(kinds[2], *arguments[2:]), align=4)
        return context.get_dummy_value()

    return numba.void(source, numba.int64, target, numba.int64), generate


@host_function
def _copy(source, start, target, at, count):
    """target[at:at + count] = source[start:start + count], by vectors: some more of them are copied."""
    for j in range(0, count, VECTOR):
        _copy_vector(source, start + j, target, at + j)


@host_function
def _gather(pixels, row, geometry, width, first, table, room, at):
    """The columns of a row of A that the segments of a table have, to `room` from `at` on; returns where they end. Less
    than a vector behind them is written, too."""
    base, top, left = _place(row, geometry, width)
    height, line, origin = geometry[0], geometry[1] * width, (base + top) * geometry[1] * width + left + first
    if (top >= 0 and left >= 0 and top + geometry[8] < height and left + geometry[9] <= line
            and origin + geometry[8] * line + geometry[9] + VECTOR <= pixels.size):  # all of it inside the image
        for s in range(table.shape[0]):
            _copy(pixels, origin + table[s, 0] * line + table[s, 1], room, at, table[s, 2])
            at += table[s, 2]
        return at
    for s in range(table.shape[0]):
        start, inside, outside, count = _inside(table[s], top, left + first, height, line)
        for j in range(0, count, VECTOR):
            _copy_vector(ZEROS, 0, room, at + j)
        from_row = (base + top + table[s, 0]) * line + start
        target, source = room[at + inside:at + outside], pixels[from_row + inside:from_row + outside]
        for j in range(target.size):
            target[j] = source[j]
        at += count
    return at


@host_function
def _scatter(room, at, row, geometry, width, first, table, pixels):
    """Add the columns of a row of dA that the segments of a table have to the pixels they came from; returns where the columns
    end."""
    base, top, left = _place(row, geometry, width)
    height, line = geometry[0], geometry[1] * width
    for s in range(table.shape[0]):
        start, inside, outside, count = _inside(table[s], top, left + first, height, line)
        to_row = (base + top + table[s, 0]) * line + start
        target, source = pixels[to_row + inside:to_row + outside], room[at + inside:at + outside]
        for j in range(source.size):
            target[j] += source[j]
        at += count
    return at


@host_function
def _kept(table, starts, kept, block_row, own):
    """The segments of a block row's kept columns, in `own`; the table itself where there are no blocks. Segments that go on
    where one ends become one with it."""
    if kept.shape[0] == 0:
        return table
    count = 0
    for column in kept[block_row]:
        for s in range(starts[column], starts[column + 1]):
            down, across, width = table[s, 0], table[s, 1], table[s, 2]
            if count and own[count - 1, 0] == down and own[count - 1, 1] + own[count - 1, 2] == across:
                own[count - 1, 2] += width
            else:
                own[count, 0], own[count, 1], own[count, 2] = down, across, width
                count += 1
    return own[:count]


@host_function
def _weight(wt, kept, width, block_row, own):
    """The rows of the weight that a block row meets, one after the other in `own`; the weight itself where there are no
    blocks."""
    if kept.shape[0] == 0:
        return wt
    count = 0
    for column in kept[block_row]:
        for k in range(column * width, min((column + 1) * width, wt.shape[0])):
            source, target = wt[k], own[count]
            for o in range(target.size):
                target[o] = source[o]
            count += 1
    return own[:count]


@host_function
def _fill(room, pixels, count, t0, geometry, channels, first, table, rows, listed):
    """room = `count` rows of A from t0 on, those columns that the table has."""
    at = int64(0)  # Numba compiles once more for a literal
    for i in range(count):
        at = _gather(pixels, rows[t0 + i] if listed else t0 + i, geometry, channels, first, table, room, at)


@host_function
def _spread(room, pixels, count, t0, geometry, channels, first, table, rows, listed):
    """Add to the pixels `count` rows of dA from t0 on, of those columns that the table has."""
    at = int64(0)
    for i in range(count):
        at = _scatter(room, at, rows[t0 + i] if listed else t0 + i, geometry, channels, first, table, pixels)


@host_function
def _clear(y, first, stop):
    """y[first:stop] = 0, as loops: of two axes an assignment takes seconds to compile."""
    for r in range(first, stop):
        out = y[r]
        for o in range(out.size):
            out[o] = float32(0)


@host_function
def _numbers(g):
    """The geometry as a tuple: registers, not memory."""
    return g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9]


# --- forward and backward ---------------------------------------------------------------------------------------------
LISTS = "i8[::1], i8, i8[:, ::1], i8[::1], i4[::1], b1, i4[:, ::1], i8, i8"


@host_kernel(f"void(i8, f4[::1], i8, f4[:, ::1], f4[::1], b1, b1, f4, {LISTS}, f4[::1], f4[:, ::1], f4[:, ::1],"
             " f4[:, ::1], i8, i8)")
def forward(entry, pixels, channels, wt, bias, biased, relu, scale, geometry, groups, table, starts, rows, listed, kept, width,
            tile, room, part, own, y, first, stop):
    """y[r] = act(scale A[r] wt + bias) for the rows first … stop - 1, of the list where there is one; the others of y are 0."""
    numbers, depth, outs = _numbers(geometry), wt.shape[0] // groups, y.shape[1] // groups
    own_table = np.empty_like(table)
    if listed and first == 0:
        _clear(y, int64(0), rows[0] if rows.size else y.shape[0])
    for t0 in range(first, stop, tile):
        count, segments = min(tile, stop - t0), _kept(table, starts, kept, t0 // tile, own_table)
        for g in range(groups):
            weight = _weight(wt[g * depth:(g + 1) * depth], kept, width, t0 // tile, own)
            cols = room[:count * weight.shape[0]].reshape(count, weight.shape[0])
            _fill(room, pixels, count, t0, numbers, channels, g * (channels // groups), segments, rows, listed)
            multiply(entry, cols, weight, part[:count, g * outs:(g + 1) * outs])
        for i in range(count):
            row = rows[t0 + i] if listed else t0 + i
            out, values = y[row], part[i]
            for o in range(out.size):
                value = scale * values[o]
                if biased:
                    value += bias[o]
                if relu and value < 0:  # not max(): NaN stays NaN
                    value = float32(0)
                out[o] = value
            if listed:
                _clear(y, row + 1, rows[t0 + i + 1] if t0 + i + 1 < rows.size else y.shape[0])


@host_kernel(f"void(i8, f4[:, ::1], f4[:, ::1], b1, f4[::1], i8, f4[:, ::1], f4, {LISTS}, f4[::1], f4[:, ::1], f4[:, ::1],"
             " f4[:, ::1], f4[::1], i8, i8, b1, f4[:, ::1], f8[::1], i8, i8)")
def backward(entry, dy, where, gated, pixels, channels, wt, scale, geometry, groups, table, starts, rows, listed, kept, width,
             tile, room, part, own, own_dw, dx, dx_first, dx_stop, wants_dx, dwt, db, first, stop):
    """dx = scale dz wt.T, added up at the pixels of A, dwt = scale A.T dz, db = sum of dz, of those rows: dz = dy where
    where > 0. The images of those rows are the pixels dx_first … dx_stop - 1."""
    own_table = np.empty_like(table)
    dx[dx_first:dx_stop] = 0
    _clear(dwt, int64(0), dwt.shape[0])
    numbers, depth, outs = _numbers(geometry), wt.shape[0] // groups, dy.shape[1] // groups
    for t0 in range(first, stop, tile):
        count, block_row = min(tile, stop - t0), t0 // tile
        segments = _kept(table, starts, kept, block_row, own_table)
        for i in range(count):
            row = rows[t0 + i] if listed else t0 + i
            slopes, gate, dz = dy[row], where[row if gated else 0], part[i]
            for o in range(dz.size):
                slope = slopes[o] if not gated or gate[o] > 0 else float32(0)
                db[o] += slope
                dz[o] = scale * slope
        for g in range(groups):
            weight = _weight(wt[g * depth:(g + 1) * depth], kept, width, block_row, own)
            inner, dz, at = weight.shape[0], part[:count, g * outs:(g + 1) * outs], g * (channels // groups)
            cols = room[:count * inner].reshape(count, inner)
            if wants_dx:
                multiply(entry, dz, weight, cols, False, True)
                _spread(room, dx, count, t0, numbers, channels, at, segments, rows, listed)
            _fill(room, pixels, count, t0, numbers, channels, at, segments, rows, listed)
            if kept.shape[0] == 0:
                multiply(entry, cols, dz, dwt[g * depth:(g + 1) * depth], True, False, 1.0)
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


# --- weights ----------------------------------------------------------------------------------------------------------
# LINE outputs and CHANNELS of each at a time: the square between them stays in the nearest cache, and whole lines are written.
CHANNELS = 32


@host_kernel("void(f4[:, ::1], i8, i8, f4[:, ::1], i8, i8)")
def turn(w, taps, groups, wt, first, stop):
    """wt[g K + (tap, c), o] = w[g O + o, (c, tap)] for the lines of outputs first … stop - 1, O of a group."""
    depth, outs = w.shape[1], w.shape[0] // groups
    channels, lines = depth // taps, (outs + LINE - 1) // LINE
    room = np.empty((taps * CHANNELS, LINE), np.float32)
    for line in range(first, stop):
        g, o0 = line // lines, line % lines * LINE
        count = min(LINE, outs - o0)
        for c0 in range(0, channels, CHANNELS):
            width = min(CHANNELS, channels - c0)
            _turn(w, g * outs + o0, g * outs + o0 + count, c0 * taps, (c0 + width) * taps, room, 0, 0, True)
            for tap in range(taps):
                for c in range(width):
                    values, out = room[c * taps + tap], wt[g * depth + tap * channels + c0 + c, o0:o0 + count]
                    for o in range(out.size):
                        out[o] = values[o]


@host_kernel("void(f4[:, :, ::1], i8, i8, f4[:, ::1], i8, i8)")
def turn_back(terms, taps, groups, dw, first, stop):
    """dw[g O + o, (c, tap)] = the sum of terms[t, g K + (tap, c), o] over t, for the lines of outputs first … stop - 1."""
    depth, outs = dw.shape[1], dw.shape[0] // groups
    channels, lines = depth // taps, (outs + LINE - 1) // LINE
    room = np.empty((taps * CHANNELS, LINE), np.float32)
    for line in range(first, stop):
        g, o0 = line // lines, line % lines * LINE
        count = min(LINE, outs - o0)
        for c0 in range(0, channels, CHANNELS):
            width = min(CHANNELS, channels - c0)
            for tap in range(taps):
                for c in range(width):
                    values, k = room[c * taps + tap, :count], g * depth + tap * channels + c0 + c
                    for t in range(terms.shape[0]):
                        source = terms[t, k, o0:o0 + count]
                        for o in range(source.size):
                            values[o] = values[o] + source[o] if t else source[o]
            _turn(room, 0, width * taps, 0, count, dw, g * outs + o0, c0 * taps, False)
