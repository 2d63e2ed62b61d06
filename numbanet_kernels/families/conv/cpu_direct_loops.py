"""Convolutions on the CPU with WIDTH images at a time, each in a lane of a vector: tiles of images, for `cpu_direct`.

If a patch has few columns or the weight few outputs, gathering patches takes as long as multiplying them, and SGEMM is slow on
such narrow matrices. Here the images of a tile are transposed, pixels first: a vector holds the same pixel of each image. Then
patches are multiplied in place (`cpu_direct_products`). Arguments of all loops:

    x, where, gated         the images, and if `gated` what a ReLU left: x is 0 where this is not positive
    geometry                of the transposed images (`cpu_direct.Sight`)
    bases, targets, starts, listed      lists of positions (`cpu_direct.Positions`)
    offsets                 of each column of a patch, its first float (padded)
    kept, block             (block rows, Q): the kept block columns of each block row; `block` is its height, the width of a
                            block column, and the numbers of positions and of columns. Images of a tile keep the same blocks.
                            If no blocks are dropped, the height is 0
    pool, marks             of the max pooling that follows (`cpu_direct_pool`); `pool` is empty if none does
    line, turned, out, pooled           a thread's buffers; `seen` is one for the taps of a window
    first, stop             the thread's tiles are first … stop - 1
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64

from ...host.simd import WIDTH
from ...host.transpose import transpose_block
from ...runtime.declare import host_function, host_kernel
from .cpu_direct_pool import lines_read, pool_lines, spread_lines, taps_of
from .cpu_direct_products import COLUMNS, OUTPUTS, POSITIONS, ROWS, STRETCH, add_back, add_products, add_slopes, multiply
from .cpu_im2col_loops import clear


# --- reading ----------------------------------------------------------------------------------------------------------
@host_function
def _chunk(left, most):
    """The number of outputs of the next chunk, if the remaining ones are cut into as few and as equal chunks as possible."""
    return -(-left // -(-left // most))


@host_function
def _read(x, where, gated, n0, n1, geometry, line, turned):
    """Copy images n0 … n1 - 1 to the lanes of the transposed pixels, inside their padding; if `gated`, 0 unless where > 0."""
    height, width, padded, above, left = geometry[0], geometry[1], geometry[2], geometry[3], geometry[4]
    for h in range(height):
        c0, row = h * width, (h + above) * padded + left
        if not gated:
            transpose_block(x, n0, n1, c0, c0 + width, turned, row, 0, True)
            continue
        for n in range(n0, n1):
            values, gate, out = x[n, c0 : c0 + width], where[n, c0 : c0 + width], line[n - n0, :width]
            for c in range(out.size):
                out[c] = values[c] if gate[c] > 0 else float32(0)
        transpose_block(line, 0, n1 - n0, 0, width, turned, row, 0, True)


@host_function
def _read_slopes(dz, where, gated, pool, marks, n0, n1, geometry, line, pooled, seen, turned):
    """Copy gradients to the lanes, those before pooling: each is that of the pixel that was the maximum."""
    if pool.size == 0:
        _read(dz, where, gated, n0, n1, geometry, line, turned)
        return
    outs = dz.shape[1] // (pool[8] * pool[9])
    if n1 - n0 < WIDTH:  # lanes without an image
        clear(pooled, 0, dz.shape[1])
    transpose_block(dz, n0, n1, 0, dz.shape[1], pooled, 0, 0, True)
    padded, above, left = geometry[2], geometry[3], geometry[4]
    spread_lines(pooled, marks[n0 // WIDTH], outs, pool, padded, above * padded + left, seen, turned)


@host_function
def _list_of(starts, listed, tile):
    """(begin, end) of a tile's list of positions; if not `listed`, all tiles use the first list, of all positions."""
    return (starts[tile], starts[tile + 1]) if listed else (starts[0], starts[1])


@host_function
def _without_padding(targets, begin, end, places):
    """The end of a list without its padding, whose target is `places`."""
    while end > begin and targets[end - 1] == places:
        end -= 1
    return end


@host_function
def _columns(kept, block, n0, begin, end, offsets, own, rows):
    """List the columns that the positions of the tile from image n0 on keep: their offsets in `own`, and their rows of the
    weight. Return (how many they are, the end of the positions from `begin` on that keep them); the list is padded to a
    multiple of COLUMNS. If nothing is dropped, `own` and `rows` are the lists of all columns.
    """
    if block[0] == 0:
        return block[3], end
    number, count = (n0 * block[2] + begin) // block[0], 0
    for i in range(kept.shape[1]):
        for k in range(kept[number, i] * block[1], min((kept[number, i] + 1) * block[1], block[3])):
            own[count], rows[count] = offsets[k], k
            count += 1
    for k in range(count, -(-count // COLUMNS) * COLUMNS):
        own[k], rows[k] = offsets[0], offsets.size
    return count, min((number + 1) * block[0] - n0 * block[2], end)


@host_function
def _selected(w, rows, count, block, weights):
    """weights[i] = w[rows[i]] for i < count; if nothing is dropped, `weights` is w."""
    for i in range(count if block[0] > 0 else 0):
        source, target = w[rows[i]], weights[i]
        for o in range(target.size):
            target[o] = source[o]


# --- products ---------------------------------------------------------------------------------------------------------
@host_function
def _multiply(turned, bases, targets, begin, end, offsets, kept, block, n0, w, bias, low, own, rows, weights, out):
    """out = max(A w + bias, low) at the positions begin … end - 1 of a list; the values of a few positions after those may be
    wrong until these are computed.
    """
    outs, end = w.shape[1], end if block[0] == 0 else min(end, block[2])
    while begin < end:
        depth, until = _columns(kept, block, n0, begin, end, offsets, own, rows)
        _selected(w, rows, depth, block, weights)
        count, o = -(-(until - begin) // POSITIONS) * POSITIONS, int64(0)
        while o < outs:
            size = _chunk(outs - o, OUTPUTS)
            multiply(turned, bases[begin:], targets[begin:], count, own, depth, weights, outs, o, size, bias, low, out)
            o += size
        begin = until


LISTS = "i8[::1], i8[::1], i8[::1], i8[::1], b1, i8[::1], i4[:, ::1], i8[::1]"
IMAGES = f"f4[:, ::1], f4[:, ::1], b1, {LISTS}"
POOL = "i8[::1], u1[:, :, ::1]"
ROOMS = "f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1]"


@host_kernel(f"void({IMAGES}, f4[:, ::1], f4[::1], f4, {POOL}, b1, {ROOMS}, f4[:, ::1], i8, i8, i8)")
def forward(
    x,
    where,
    gated,
    geometry,
    bases,
    targets,
    starts,
    listed,
    offsets,
    kept,
    block,
    w,
    bias,
    low,
    pool,
    marks,
    back,
    line,
    turned,
    out,
    pooled,
    y,
    bands,
    first,
    stop,
):
    """y (N, P O) = max(A w + bias, low) for images x (N, H W C), 0 at dropped positions; pooled if `pool` has numbers, with
    the places of maxima in `marks`, if they have tiles. If `back`, x holds gradients of pooled outputs. If threads cannot share
    tiles equally, each is cut into `bands` of positions, or of lines after pooling, and first … stop - 1 are bands, not tiles.
    """
    outs, last, pools = w.shape[1], y.shape[1], pool.size > 0 and not back
    own = np.empty(offsets.size, np.int64) if block[0] > 0 else offsets
    rows, seen = np.empty(offsets.size, np.int64), np.empty((2, taps_of(pool)), np.int64)
    weights = np.empty(w.shape, np.float32) if block[0] > 0 else w
    clear(turned, 0, turned.shape[0])  # padding stays 0
    for number in range(first, stop):
        tile, band = number // bands, number % bands
        n0, n1, (begin, end) = tile * WIDTH, min((tile + 1) * WIDTH, x.shape[0]), _list_of(starts, listed, tile)
        if band == 0 or number == first:
            _read_slopes(x, where, gated, pool if back else pool[:0], marks, n0, n1, geometry, line, pooled, seen, turned)
        if listed:
            clear(out, 0, out.shape[0])
        if not pools:
            count = (end - begin) // POSITIONS
            a, b = begin + count * band // bands * POSITIONS, begin + count * (band + 1) // bands * POSITIONS
            _multiply(turned, bases, targets, a, b, offsets, kept, block, n0, w, bias, low, own, rows, weights, out)
            c0, c1 = (0, last) if bands == 1 else ((a - begin) * outs, min((b - begin) * outs, last))
            transpose_block(out, c0, c1, 0, n1 - n0, y, n0, c0, False)
            continue
        r0, r1 = pool[8] * band // bands, pool[8] * (band + 1) // bands
        done = begin if bands == 1 else max(r0 * pool[2] - pool[4], 0) * pool[7] // POSITIONS * POSITIONS
        keeps, best = marks.shape[0] > 0, marks[tile if marks.shape[0] > 0 else 0]
        for row in range(r0, r1):
            a, wanted = done, lines_read(pool, row) * pool[7]
            while done < end and targets[done] < wanted:
                done += POSITIONS
            _multiply(turned, bases, targets, a, done, offsets, kept, block, n0, w, bias, low, own, rows, weights, out)
            pool_lines(out, outs, pool, row, row + 1, low == 0, keeps, seen, pooled, best)
        transpose_block(pooled, r0 * pool[9] * outs, r1 * pool[9] * outs, 0, n1 - n0, y, n0, r0 * pool[9] * outs, False)


@host_kernel(f"void({IMAGES}, {POOL}, f4[:, ::1], {ROOMS}, i8[::1], f4[:, ::1], i8, i8)")
def spread_back(
    dz,
    where,
    gated,
    geometry,
    bases,
    targets,
    starts,
    listed,
    offsets,
    kept,
    block,
    pool,
    marks,
    w,
    line,
    changes,
    slopes,
    pooled,
    pixels,
    dx,
    first,
    stop,
):
    """dx (N, H W C) from gradients dz (N, P O): each is added to the pixels that its position reads; `pixels` is the geometry
    of the images.
    """
    outs, (height, width, padded, above, left) = w.shape[1], (pixels[0], pixels[1], pixels[2], pixels[3], pixels[4])
    own = np.empty(offsets.size, np.int64) if block[0] > 0 else offsets
    rows, seen = np.empty(offsets.size, np.int64), np.empty((2, taps_of(pool)), np.int64)
    weights = np.empty(w.shape, np.float32) if block[0] > 0 else w
    for tile in range(first, stop):
        n0, n1, (begin, end) = tile * WIDTH, min((tile + 1) * WIDTH, dz.shape[0]), _list_of(starts, listed, tile)
        _read_slopes(dz, where, gated, pool, marks, n0, n1, geometry, line, pooled, seen, slopes)
        clear(changes, 0, changes.shape[0])
        end = _without_padding(targets, begin, end, slopes.shape[0] // outs - 1)
        while begin < end:
            depth, until = _columns(kept, block, n0, begin, end, offsets, own, rows)
            _selected(w, rows, depth, block, weights)
            # all outputs of a few positions: the pixels that they change stay in the L1 cache
            for i in range(begin, until, POSITIONS):
                count, o = min(POSITIONS, until - i), int64(0)
                while o < outs:
                    size = _chunk(outs - o, OUTPUTS)
                    add_back(slopes, bases[i:], targets[i:], count, own, depth, weights, outs, o, size, changes)
                    o += size
            begin = until
        for h in range(height):
            row = (h + above) * padded + left
            transpose_block(changes, row, row + width, 0, n1 - n0, dx, n0, h * width, False)


@host_kernel(f"void({IMAGES}, {POOL}, i8[::1], f4[:, ::1], {ROOMS}, f4[:, :, ::1], f4[:, ::1], i8, i8)")
def gradient(
    dz,
    where,
    gated,
    geometry,
    bases,
    targets,
    starts,
    listed,
    offsets,
    kept,
    block,
    pool,
    marks,
    pixels,
    x,
    line,
    turned,
    slopes,
    pooled,
    dw,
    db,
    first,
    stop,
):
    """Sum the terms of the tiles in dw (K + 1, O, WIDTH), whose last row is that of padding, and db (O, WIDTH)."""
    outs = db.shape[0]
    own = np.empty(offsets.size, np.int64) if block[0] > 0 else offsets
    rows, seen = np.empty(offsets.size, np.int64), np.empty((2, taps_of(pool)), np.int64)
    for k in range(rows.size):
        rows[k] = k
    clear(db, 0, outs)
    clear(dw.reshape(dw.shape[0], outs * WIDTH), 0, dw.shape[0])
    clear(turned, 0, turned.shape[0])  # padding stays 0
    for tile in range(first, stop):
        n0, n1, (begin, end) = tile * WIDTH, min((tile + 1) * WIDTH, dz.shape[0]), _list_of(starts, listed, tile)
        if n1 - n0 < WIDTH:  # lanes without an image
            clear(slopes, 0, slopes.shape[0])
            clear(turned, 0, turned.shape[0])
        _read_slopes(dz, where, gated, pool, marks, n0, n1, geometry, line, pooled, seen, slopes)
        _read(x, x, False, n0, n1, pixels, line, turned)
        end = _without_padding(targets, begin, end, slopes.shape[0] // outs - 1)
        while begin < end:
            depth, until = _columns(kept, block, n0, begin, end, offsets, own, rows)
            depth = -(-depth // COLUMNS) * COLUMNS
            for i in range(begin, until, STRETCH):
                count, o = min(STRETCH, until - i), int64(0)
                while o < outs:
                    size = _chunk(outs - o, ROWS)
                    add_products(turned, bases[i:], targets[i:], count, own, rows, depth, slopes, outs, o, size, dw)
                    add_slopes(targets[i:], count, slopes, outs, o, size, db)
                    o += size
            begin = until


@host_kernel("void(f4[:, :, :, ::1], f4[:, :, ::1], f4, f4[:, :, ::1], f4[::1])")
def add_up(lanes, db_lanes, scale, dw, db):
    """dw (O, C, KH KW) = scale the sums of lanes (T, K, O, WIDTH), K taps and channels, over threads and lanes; db likewise."""
    channels = dw.shape[1]
    for o in range(dw.shape[0]):
        for c in range(channels):
            for tap in range(dw.shape[2]):
                total = float32(0)
                for t in range(lanes.shape[0]):
                    own, values = float32(0), lanes[t, tap * channels + c, o]
                    for i in range(WIDTH):
                        own += values[i]
                    total += own
                dw[o, c, tap] = scale * total
        sums = 0.0
        for t in range(db_lanes.shape[0]):
            for i in range(WIDTH):
                sums += db_lanes[t, o, i]
        db[o] = sums


@host_kernel("void(i4[:, ::1], i8, i8[::1], i8[::1], i8[::1], i8[::1], i8[::1])")
def share_groups(kept, tiles_together, begins, goals, bases, targets, starts):
    """The lists of all tiles, from the kept positions of each group of `tiles_together` tiles."""
    filled, places = 0, kept.shape[1]
    for tile in range(starts.size - 1):
        starts[tile], own = filled, kept[tile // tiles_together]
        for i in range(places):
            if not 0 <= own[i] < places:
                break
            bases[filled], targets[filled] = begins[own[i]], goals[own[i]]
            filled += 1
        while filled % POSITIONS:
            bases[filled], targets[filled] = begins[places], goals[places]
            filled += 1
    starts[starts.size - 1] = filled


@host_kernel("void(i4[:, ::1], i8, i8, i4[::1])")
def list_rows(kept, together, images, rows):
    """The kept rows of A from the kept positions of each group of `together` images, padded with numbers beyond the last."""
    filled, places = 0, kept.shape[1]
    for n in range(images):
        own = kept[n // together]
        for i in range(places):
            if not 0 <= own[i] < places:
                break
            rows[filled] = n * places + own[i]
            filled += 1
    for i in range(filled, rows.size):
        rows[i] = images * places + i - filled


@host_kernel("void(i4[::1], i8, i8, i8[::1], i8[::1], i8[::1], i8[::1], i8[::1])")
def share_lists(rows, images, places, begins, goals, bases, targets, starts):
    """The lists of all tiles, from increasing rows of A; the last of `starts` is negative if images of a tile keep different
    positions. `begins` and `goals` hold the base and target of each position, then those of the padding.
    """
    at, filled, tiles = 0, 0, starts.size - 1
    starts[tiles] = -1
    for tile in range(tiles):
        n0, n1 = tile * WIDTH, min((tile + 1) * WIDTH, images)
        starts[tile], count = filled, 0
        while at + count < rows.size and rows[at + count] < (n0 + 1) * places:
            own = rows[at + count] - n0 * places
            bases[filled + count], targets[filled + count] = begins[own], goals[own]
            count += 1
        for n in range(1, n1 - n0):
            first = at + n * count
            if first + count > rows.size:
                return
            for i in range(count):
                if rows[first + i] != rows[at + i] + n * places:
                    return
        at += (n1 - n0) * count
        if at < rows.size and rows[at] < n1 * places:
            return
        filled += count
        while filled % POSITIONS:
            bases[filled], targets[filled] = begins[places], goals[places]
            filled += 1
    starts[tiles] = filled
