"""The kernel of the implicit GEMM (`cuda_implicit_gemm`). There is a version for each of four products, and for each axis whose
kept indices may be listed by a plan."""

from __future__ import annotations

from typing import NamedTuple

from numba import float32, int32, types

from ...blocks.accumulate import store_of, sums_of
from ...blocks.copies import DEPTH, THREADS, layout
from ...runtime.declare import cuda, inlined, kernel, kernels
from .cuda_gather import CHUNK, NUMBERS, loads_of, number_of, position_of, split, tap_of

TILE = 64
FORWARD, DX, PATCHES, DW = range(4)  # products
NOTHING, SIDE, INNER, COLS = range(4)  # the axis that is listed


class Sizes(NamedTuple):
    """The sizes of the axes of a product; strides are counted in floats."""

    sides: int  # of the side axis; with a list of rows, the kept ones
    length: int  # of a band of it: a block row, in DW a block column; without blocks the whole axis
    tiles: int  # of a band
    depth: int  # of the inner axis
    cols: int  # of a group
    col_tiles: int
    stretch: int  # numbers of the listed axis that an entry of the list stands for
    room: int  # entries of a band's list
    limit: int  # of the numbers of the listed axis
    col_step: int  # stride between columns of the other operand
    source_group: int  # stride between groups: in the source, in the other operand, in the result
    other_group: int
    out_group: int
    out_part: int  # stride between parts of the inner axis in the result
    out_width: int  # stride between rows of the result
    parts: int  # of the inner axis


def _entries(product, listed):
    """Return device functions for the entries of the side and of the inner axis; each factory makes its own (`inlined`)."""
    of_side, of_inner = position_of(product == DX), tap_of(product == DX)
    if product == DW:
        of_side, of_inner = tap_of(False), position_of(False)
    side_of, inner_of = (number_of(listed == axis) for axis in (SIDE, INNER))

    @inlined
    def side_entry(kept, i, end, stretch, limit, geometry):
        number = side_of(kept, int32(0), i, end, stretch, limit)
        return of_side(number, number >= 0, geometry)

    @inlined
    def inner_entry(kept, at, i, end, stretch, limit, geometry):
        number = inner_of(kept, at, i, end, stretch, limit)
        return of_inner(number, number >= 0, geometry)

    return side_entry, inner_entry


def _writing(product, listed, store):
    """Return the device function that writes the sums of a thread. If the side axis is listed, it writes to the listed rows of
    the result. Each factory makes its own (`inlined`).
    """
    side_of, scattered = number_of(listed == SIDE), listed == SIDE and product != PATCHES
    store_row = store_of(types.UniTuple(types.float32, 4), [0], [0, 1, 2, 3], lambda i, j: j, 4)

    @inlined
    def write(sums, out, at, row, width, cols, aligned, bias, bias_at, biased, where, relu, scale, kept, end, stretch, limit):
        scales, bias_place = (scale, float32(1)), (bias_at, int32(1))
        if scattered:
            for i, values in ((0, sums[0:4]), (1, sums[4:8]), (2, sums[8:12]), (3, sums[12:16])):
                r = side_of(kept, int32(0), int32(row + i), end, stretch, limit)
                place = int32(at + r * width), width, int32(r >= 0), cols
                store_row(values, out, place, bias, where, biased, False, relu, scales, bias_place, aligned)
        else:
            place = int32(at + row * width), width, int32(end - row), cols
            store(sums, out, place, bias, where, biased, False, relu, scales, bias_place, aligned)

    return write


def _products_of(product, listed, of_a, of_b):
    """Return a device function that multiplies the tiles of a block; each factory makes its own (`inlined`)."""
    gates_source, gates_other = product in (DX, PATCHES), product == DW  # `where` goes with dy
    (place_a, gather, _, leave_a), (place_b, _, fetch, leave_b) = loads_of(of_a), loads_of(of_b)
    (side_entry, inner_entry), col_of = _entries(product, listed), number_of(listed == COLS)
    corner, zeros, multiply, _, _ = sums_of(4, of_a)
    a_room, b_room, table_room, last = 2 * of_a.stage, 2 * of_b.stage, 4 * CHUNK, CHUNK // DEPTH - 1

    @inlined
    def products(source, other, where, masked, kept, geometry, begin, sides, inner, columns, listing):
        """Return the sums of a thread. The block computes the side axis from `sides` on and the columns from `columns` on, for
        a part of the inner axis.
        """
        (source_at, other_at, listed_at), (stretch, limit) = begin, listing
        (side0, side_end), (first, end), (col0, cols, col_step) = sides, inner, columns
        a_tile, b_tile = cuda.shared.array(a_room, float32, 16), cuda.shared.array(b_room, float32, 16)
        table, t = cuda.shared.array(table_room, int32, 16), int32(cuda.threadIdx.x)
        # this thread's elements
        (a_k, a_m), (b_k, b_n) = place_a(t), place_b(t)
        one = side_entry(kept, int32(side0 + a_m), side_end, stretch, limit, geometry)
        two = side_entry(kept, int32(side0 + a_m + 32), side_end, stretch, limit, geometry)
        b_one = int32(col_of(kept, listed_at, int32(col0 + b_n), cols, stretch, limit) * col_step)
        b_two = int32(col_of(kept, listed_at, int32(col0 + b_n + 32), cols, stretch, limit) * col_step)
        _, _, _, a_at, b_at = corner(t)
        sums, zero = zeros(), float32(0)
        a_values = b_values = (zero, zero, zero, zero)
        steps = int32((end - first + DEPTH - 1) // DEPTH) if end > first else int32(0)
        for step in range(int32(steps + 1)):
            if step < steps:
                if step & last == 0:  # the next entries of the inner axis: the last ones have been read
                    table[t], table[t + CHUNK], table[t + 2 * CHUNK], table[t + 3 * CHUNK] = inner_entry(
                        kept, listed_at, int32(first + step * DEPTH + t), end, stretch, limit, geometry
                    )
                    cuda.syncthreads()
                a_values = gather(
                    source, where, masked and gates_source, source_at, table, step, a_k, one, two, geometry[0], geometry[1]
                )
                b_values = fetch(other, where, masked and gates_other, other_at, table, step, b_k, b_one, b_two)
            if step > 0:
                sums = multiply(sums, a_tile, a_at, b_tile, b_at, int32(step - 1))
            if step < steps:
                leave_a(a_tile, step, a_k, a_m, a_values)
                leave_b(b_tile, step, b_k, b_n, b_values)
            cuda.syncthreads()
        return sums

    return products


@kernels("conv")
def conv_product_kernel(product=FORWARD, listed=NOTHING):
    """Return the kernel for one of the four products; `listed` is the axis whose kept indices are read from a list."""
    of_a, of_b = layout(TILE, product != DW), layout(TILE, product in (DX, PATCHES))
    corner, _, _, store, _ = sums_of(4, of_a)
    write, products = _writing(product, listed, store), _products_of(product, listed, of_a, of_b)

    @kernel(
        f"void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], i4[::1], i4[::1], UniTuple(i4, {NUMBERS}),"
        f" UniTuple(i4, {len(Sizes._fields)}), b1, b1, b1, b1, b1, f4)",
        bounds=(THREADS, 2),
    )
    def conv_product(
        source, other, where, bias, out, kept, counts, geometry, sizes, counted, masked, aligned, biased, relu, scale
    ):
        """Each block computes 64 entries of the side axis by 64 columns of one group, for one part of the inner axis."""
        sides, length, tiles, depth, cols, col_tiles, stretch, room, limit = sizes[:9]
        col_step, source_group, other_group, out_group, out_part, width, parts = sizes[9:]
        group, part = split(int32(cuda.blockIdx.z), parts)
        tile, col_tile = split(int32(cuda.blockIdx.x), col_tiles)
        band, tile = split(tile, tiles)  # a band is a block row, in DW a block column, without blocks the whole axis
        side0, side_end = int32(band * length + tile * TILE), min(int32((band + 1) * length), sides)
        col0 = int32(col_tile * TILE)
        if counted:
            depth = int32(counts[band] * stretch)
        span = int32(split(int32(depth + parts * DEPTH - 1), int32(parts * DEPTH))[0] * DEPTH)
        inner = int32(part * span), min(int32(part * span + span), depth)
        begin = int32(group * source_group), int32(group * other_group), int32(band * room)
        of_sides, columns, listing = (side0, side_end), (col0, cols, col_step), (stretch, limit)
        sums = products(source, other, where, masked, kept, geometry, begin, of_sides, inner, columns, listing)
        _, row, col, _, _ = corner(int32(cuda.threadIdx.x))
        row, col = int32(side0 + row), int32(col0 + col)
        at, bias_at, cols = int32(group * out_group + part * out_part + col), int32(group * cols + col), int32(cols - col)
        write(
            sums, out, at, row, width, cols, aligned, bias, bias_at, biased, source, relu, scale, kept, side_end, stretch, limit
        )

    return conv_product
