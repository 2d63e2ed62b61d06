"""Convolutions on the CPU with WIDTH images at a time, each in a lane of a vector.

If a patch has few columns or the weight few outputs, gathering patches takes as long as multiplying them, and SGEMM is slow on
such narrow matrices. Here the images of a tile are transposed, pixels first: a vector holds the same pixel of each image. Then
patches are multiplied in place, by factors that are equal in all lanes, and all vectors are full even with few channels.

    out[p, o] = sum_k pixels[base[p] + offset[k]] w[k, o]       vectors of WIDTH images; positions p, columns k, outputs o

`bases` holds the first float of each position's patch among the transposed pixels, `offsets` those of its columns, `targets`
the index of its outputs. Dropped positions are not listed. Padding of lists has unused outputs or gradients.
"""

from __future__ import annotations

from numba import float32, int64, void
from numba.core import cgutils
from numba.extending import intrinsic

from ...host.simd import FLOATS, NUMBER, REAL, WIDTH, data_of, multiply_add, spread, vector_at
from ...host.transpose import transpose_block
from ...runtime.declare import host_function, host_kernel
from .cpu_im2col_loops import clear

REGISTERS = 24 if WIDTH == 16 else 12  # sums in registers
OUTPUTS = 8  # largest number of outputs of a position among them
POSITIONS = 8  # largest number of positions among them; lists are padded to a multiple of it
PIECE = 256  # columns per partial sum, because errors grow with the number of terms
ROWS = 4  # largest number of outputs in registers for the gradient of the weight
COLUMNS = 6 if WIDTH == 16 else 3  # columns in registers for it; their lists are padded to a multiple of it
STRETCH = 64  # positions that are summed over all columns before the next ones
ALIGNED = 4 * WIDTH


def _positions(outputs):
    """The number of positions that are multiplied together: a power of 2, because lists are padded."""
    return min(1 << max((REGISTERS // outputs).bit_length() - 1, 0), POSITIONS)


def _number(builder, data, at):
    return builder.load(builder.gep(data, [at]))


def _by_outputs(builder, size, most, body):
    """Generate body(n) for each n from 1 to `most`, and a switch that runs the one with n = size."""
    for n in range(1, most + 1):
        with builder.if_then(builder.icmp_signed("==", size, NUMBER(n))):
            body(n)


def _sums(builder, count):
    return [cgutils.alloca_once_value(builder, FLOATS([REAL(0.0)] * WIDTH)) for _ in range(count)]


def _zero(builder, sums):
    for total in sums:
        builder.store(FLOATS([REAL(0.0)] * WIDTH), total)


@intrinsic
def _multiply(typing_context, pixels, bases, targets, count, offsets, depth, w, outs, o0, size, bias, low, out):
    """out[targets[i] outs + o] = max(sum_k pixels[bases[i] + offsets[k]] w[k outs + o] + bias[o], low) for i < count, a
    multiple of POSITIONS, and `size` outputs o from o0 on; bases and offsets count floats."""

    def generate(context, builder, signature, arguments):
        pixels, bases, targets, count, offsets, depth, w, outs, o0, size, bias, low, out = data_of(
            context, builder, signature, arguments
        )
        least = spread(builder, low).value

        def products(n):
            together = _positions(n)
            sums, totals = _sums(builder, n * together), _sums(builder, n * together)

            def add_column(begins, k):
                offset, factors = _number(builder, offsets, k), builder.gep(w, [builder.add(builder.mul(k, outs), o0)])
                vectors = [builder.load(vector_at(builder, begin, offset), align=ALIGNED) for begin in begins]
                for o in range(n):
                    factor = spread(builder, _number(builder, factors, NUMBER(o))).value
                    for p, vector in enumerate(vectors):
                        own = sums[o * together + p]
                        builder.store(multiply_add(builder, vector, factor, builder.load(own)), own)

            with cgutils.for_range_slice(builder, NUMBER(0), count, NUMBER(together)) as (i, _):
                begins = [builder.gep(pixels, [_number(builder, bases, builder.add(i, NUMBER(p)))]) for p in range(together)]
                _zero(builder, totals)
                with cgutils.for_range_slice(builder, NUMBER(0), depth, NUMBER(PIECE)) as (first, _):
                    _zero(builder, sums)
                    stop = builder.add(first, NUMBER(PIECE))
                    stop = builder.select(builder.icmp_signed("<", stop, depth), stop, depth)
                    with cgutils.for_range_slice(builder, first, stop, NUMBER(1)) as (k, _):
                        add_column(begins, k)
                    for own, total in zip(sums, totals):
                        builder.store(builder.fadd(builder.load(total), builder.load(own)), total)
                for p in range(together):
                    place = builder.add(builder.mul(_number(builder, targets, builder.add(i, NUMBER(p))), outs), o0)
                    for o in range(n):
                        added = spread(builder, _number(builder, bias, builder.add(o0, NUMBER(o)))).value
                        value = builder.fadd(builder.load(totals[o * together + p]), added)
                        # in this order, NaN stays NaN
                        value = builder.select(builder.fcmp_ordered("<", value, least), least, value)
                        at = builder.mul(builder.add(place, NUMBER(o)), NUMBER(WIDTH))
                        builder.store(value, vector_at(builder, out, at), align=ALIGNED)

        _by_outputs(builder, size, OUTPUTS, products)
        return context.get_dummy_value()

    return void(pixels, bases, targets, int64, offsets, int64, w, int64, int64, int64, bias, float32, out), generate


@intrinsic
def _add_products(typing_context, pixels, bases, targets, count, offsets, depth, dz, outs, o0, size, dw):
    """dw[k outs + o] += sum_i pixels[bases[i] + offsets[k]] dz[targets[i] outs + o] for `size` outputs o from o0 on and the
    columns k, padded; separately per lane.
    """

    def generate(context, builder, signature, arguments):
        pixels, bases, targets, count, offsets, depth, dz, outs, o0, size, dw = data_of(context, builder, signature, arguments)

        def products(n):
            sums = _sums(builder, n * COLUMNS)
            with cgutils.for_range_slice(builder, NUMBER(0), depth, NUMBER(COLUMNS)) as (k, _):
                columns = [builder.gep(pixels, [_number(builder, offsets, builder.add(k, NUMBER(c)))]) for c in range(COLUMNS)]
                _zero(builder, sums)
                with cgutils.for_range(builder, count) as loop:
                    i = loop.index
                    base = _number(builder, bases, i)
                    place = builder.add(builder.mul(_number(builder, targets, i), outs), o0)
                    slopes = builder.gep(dz, [builder.mul(place, NUMBER(WIDTH))])
                    slopes = [builder.load(vector_at(builder, slopes, NUMBER(o * WIDTH)), align=ALIGNED) for o in range(n)]
                    for c, column in enumerate(columns):
                        vector = builder.load(vector_at(builder, column, base), align=ALIGNED)
                        for o in range(n):
                            total = sums[o * COLUMNS + c]
                            builder.store(multiply_add(builder, vector, slopes[o], builder.load(total)), total)
                for c in range(COLUMNS):
                    place = builder.add(builder.mul(builder.add(k, NUMBER(c)), outs), o0)
                    for o in range(n):
                        at = vector_at(builder, dw, builder.mul(builder.add(place, NUMBER(o)), NUMBER(WIDTH)))
                        value = builder.fadd(builder.load(at, align=ALIGNED), builder.load(sums[o * COLUMNS + c]))
                        builder.store(value, at, align=ALIGNED)

        _by_outputs(builder, size, ROWS, products)
        return context.get_dummy_value()

    return void(pixels, bases, targets, int64, offsets, int64, dz, int64, int64, int64, dw), generate


@intrinsic
def _add_slopes(typing_context, targets, count, dz, outs, o0, size, db):
    """db[o] += sum_i dz[targets[i] outs + o] for `size` outputs o from o0 on; separately per lane."""

    def generate(context, builder, signature, arguments):
        targets, count, dz, outs, o0, size, db = data_of(context, builder, signature, arguments)

        def added(n):
            sums = _sums(builder, n)
            _zero(builder, sums)
            with cgutils.for_range(builder, count) as loop:
                place = builder.add(builder.mul(_number(builder, targets, loop.index), outs), o0)
                slopes = builder.gep(dz, [builder.mul(place, NUMBER(WIDTH))])
                for o, total in enumerate(sums):
                    slope = builder.load(vector_at(builder, slopes, NUMBER(o * WIDTH)), align=ALIGNED)
                    builder.store(builder.fadd(builder.load(total), slope), total)
            for o, total in enumerate(sums):
                at = vector_at(builder, db, builder.mul(builder.add(o0, NUMBER(o)), NUMBER(WIDTH)))
                builder.store(builder.fadd(builder.load(at, align=4), builder.load(total)), at, align=4)

        _by_outputs(builder, size, ROWS, added)
        return context.get_dummy_value()

    return void(targets, int64, dz, int64, int64, int64, db), generate


@intrinsic
def _add_back(typing_context, dz, bases, targets, count, offsets, depth, w, outs, o0, size, changes):
    """changes[bases[i] + offsets[k]] += sum_o dz[targets[i] outs + o] w[k outs + o] over `size` outputs o from o0 on."""

    def generate(context, builder, signature, arguments):
        dz, bases, targets, count, offsets, depth, w, outs, o0, size, changes = data_of(context, builder, signature, arguments)

        def products(n):
            with cgutils.for_range(builder, count) as loop:
                i = loop.index
                begin = builder.gep(changes, [_number(builder, bases, i)])
                place = builder.add(builder.mul(_number(builder, targets, i), outs), o0)
                slopes = builder.gep(dz, [builder.mul(place, NUMBER(WIDTH))])
                slopes = [builder.load(vector_at(builder, slopes, NUMBER(o * WIDTH)), align=ALIGNED) for o in range(n)]
                with cgutils.for_range(builder, depth) as inner:
                    k = inner.index
                    factors = builder.gep(w, [builder.add(builder.mul(k, outs), o0)])
                    at = vector_at(builder, begin, _number(builder, offsets, k))
                    value = builder.load(at, align=ALIGNED)
                    for o, slope in enumerate(slopes):
                        value = multiply_add(builder, slope, spread(builder, _number(builder, factors, NUMBER(o))).value, value)
                    builder.store(value, at, align=ALIGNED)

        _by_outputs(builder, size, OUTPUTS, products)
        return context.get_dummy_value()

    return void(dz, bases, targets, int64, offsets, int64, w, int64, int64, int64, changes), generate


# --- tiles ------------------------------------------------------------------------------------------------------------
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
def _list_of(starts, listed, tile):
    """(begin, end) of a tile's list of positions; if not `listed`, all tiles use the first list, of all positions."""
    return (starts[tile], starts[tile + 1]) if listed else (starts[0], starts[1])


@host_function
def _without_padding(targets, begin, end, places):
    """The end of a list without its padding, whose target is `places`."""
    while end > begin and targets[end - 1] == places:
        end -= 1
    return end


LISTS = "i8[::1], i8[::1], i8[::1], i8[::1], b1, i8[::1]"
IMAGES = f"f4[:, ::1], f4[:, ::1], b1, {LISTS}"
ROOMS = "f4[:, ::1], f4[:, ::1], f4[:, ::1]"


@host_kernel(f"void({IMAGES}, f4[:, ::1], f4[::1], f4, {ROOMS}, f4[:, ::1], i8, i8, i8)")
def forward(
    x, where, gated, geometry, bases, targets, starts, listed, offsets, w, bias, low, line, turned, out, y, bands, first, stop
):
    """y (N, P O) = max(A w + bias, low) for images x (N, H W C), 0 at dropped positions, of the tiles first … stop - 1; if
    tiles cannot be shared equally, each is cut into `bands` of positions, and first … stop - 1 are bands.
    """
    outs, last = w.shape[1], y.shape[1]
    clear(turned, 0, turned.shape[0])  # padding stays 0
    for number in range(first, stop):
        tile, band = number // bands, number % bands
        n0, n1, (begin, end) = tile * WIDTH, min((tile + 1) * WIDTH, x.shape[0]), _list_of(starts, listed, tile)
        if band == 0 or number == first:
            _read(x, where, gated, n0, n1, geometry, line, turned)
        if listed:
            clear(out, 0, out.shape[0])
        own, count = begin, (end - begin) // POSITIONS
        begin, end = own + count * band // bands * POSITIONS, own + count * (band + 1) // bands * POSITIONS
        begins, goals = bases[begin:end], targets[begin:end]
        o = int64(0)
        while o < outs:
            size = _chunk(outs - o, OUTPUTS)
            _multiply(turned, begins, goals, end - begin, offsets, w.shape[0], w, outs, o, size, bias, low, out)
            o += size
        c0, c1 = (0, last) if bands == 1 else ((begin - own) * outs, min((end - own) * outs, last))
        transpose_block(out, c0, c1, 0, n1 - n0, y, n0, c0, False)


@host_kernel(f"void({IMAGES}, f4[:, ::1], {ROOMS}, i8[::1], f4[:, ::1], i8, i8)")
def spread_back(
    dz, where, gated, geometry, bases, targets, starts, listed, offsets, w, line, changes, slopes, pixels, dx, first, stop
):
    """dx (N, H W C) of the tiles first … stop - 1 from gradients dz (N, P O): each is added to the pixels that its position
    reads; `pixels` is the geometry of the images.
    """
    outs, (height, width, padded, above, left) = w.shape[1], (pixels[0], pixels[1], pixels[2], pixels[3], pixels[4])
    for tile in range(first, stop):
        n0, n1, (begin, end) = tile * WIDTH, min((tile + 1) * WIDTH, dz.shape[0]), _list_of(starts, listed, tile)
        _read(dz, where, gated, n0, n1, geometry, line, slopes)
        clear(changes, 0, changes.shape[0])
        end = _without_padding(targets, begin, end, slopes.shape[0] // outs - 1)
        # all outputs of a few positions: the pixels that they change stay in the L1 cache
        for i in range(begin, end, POSITIONS):
            count, o = min(POSITIONS, end - i), int64(0)
            while o < outs:
                size = _chunk(outs - o, OUTPUTS)
                _add_back(slopes, bases[i:], targets[i:], count, offsets, w.shape[0], w, outs, o, size, changes)
                o += size
        for h in range(height):
            row = (h + above) * padded + left
            transpose_block(changes, row, row + width, 0, n1 - n0, dx, n0, h * width, False)


@host_kernel(f"void({IMAGES}, i8[::1], f4[:, ::1], {ROOMS}, f4[:, :, ::1], f4[:, ::1], i8, i8)")
def gradient(
    dz, where, gated, geometry, bases, targets, starts, listed, offsets, pixels, x, line, turned, slopes, dw, db, first, stop
):
    """Sum the terms of the tiles first … stop - 1 in dw (K, O, WIDTH) and db (O, WIDTH); dz (N, P O), x (N, H W C)."""
    outs = db.shape[0]
    clear(db, 0, outs)
    clear(dw.reshape(dw.shape[0], outs * WIDTH), 0, dw.shape[0])
    clear(turned, 0, turned.shape[0])  # padding stays 0
    for tile in range(first, stop):
        n0, n1, (begin, end) = tile * WIDTH, min((tile + 1) * WIDTH, dz.shape[0]), _list_of(starts, listed, tile)
        if n1 - n0 < WIDTH:  # lanes without an image
            clear(slopes, 0, slopes.shape[0])
            clear(turned, 0, turned.shape[0])
        _read(dz, where, gated, n0, n1, geometry, line, slopes)
        _read(x, x, False, n0, n1, pixels, line, turned)
        end = _without_padding(targets, begin, end, slopes.shape[0] // outs - 1)
        for i in range(begin, end, STRETCH):
            own, goals = bases[i : min(i + STRETCH, end)], targets[i : min(i + STRETCH, end)]
            o = int64(0)
            while o < outs:
                size = _chunk(outs - o, ROWS)
                _add_products(turned, own, goals, own.size, offsets, offsets.size, slopes, outs, o, size, dw)
                _add_slopes(goals, own.size, slopes, outs, o, size, db)
                o += size


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
