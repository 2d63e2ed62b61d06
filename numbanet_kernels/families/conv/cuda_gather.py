"""LLVM code with which the threads of a block gather a tile of the im2col matrix of a convolution, for `cuda_implicit_gemm`.

Element (r, k) of the matrix belongs to a position r, an output pixel, and a tap k = (kh, kw, c). Each of the two has an offset
and two coordinates, computed once per tile; an element then takes two sums, two comparisons and one load:

    0 <= h_r + h_k < height and 0 <= w_r + w_k < width ? source[offset_r + offset_k] : 0

    forward     position (n, oh, ow): h = oh stride - padding     tap (kh, kw, c): h = kh dilation
    back        position (n, h, w): h + padding = q stride + f    tap (kh, kw, o): -kh dilation = -(q stride + f)

Backward, a pixel combines only with taps of its own phase f of the stride: a coordinate is q + PHASE f, so that the sum of two
different phases is outside of every image. Missing entries (rows or taps beyond the last) have the coordinate -OUTSIDE.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir
from numba import types

from ...blocks.copies import DEPTH
from ...blocks.intrinsics import F32, constant, data_of, element, gates_of, loaded
from ...runtime.declare import intrinsic

CHUNK = 256  # entries of a table, for CHUNK / DEPTH steps along the inner axis
PHASE = 1 << 16  # padded images must be smaller than half of it, strides below an eighth
OUTSIDE = 1 << 30
FOUR = types.UniTuple(types.float32, 4)
ENTRY = types.UniTuple(types.int32, 4)
TWO = types.UniTuple(types.int32, 2)


class Geometry(NamedTuple):
    """Parameters of positions and taps; heights come before widths."""

    height: int  # of the source images
    width: int
    pixel: int  # floats from one pixel to the next
    grid_height: int  # positions of an image
    grid_width: int
    channels: int  # channels of a tap, those of its group
    kernel_width: int
    stride_h: int
    stride_w: int
    padding_h: int
    padding_w: int
    dilation_h: int
    dilation_w: int
    position_step: int  # in the other operand, position r has the index position_step r,
    tap_step: int  # and tap (kh, kw, c) has the index tap_step (kh, kw) + channel_step c
    channel_step: int


NUMBERS = len(Geometry._fields)
GEOMETRY = types.UniTuple(types.int32, NUMBERS)


def _unpacked(builder, geometry):
    return Geometry(*(builder.extract_value(geometry, i) for i in range(NUMBERS)))


def _divided(builder, number, by):
    """Return (quotient, remainder) of non-negative numbers."""
    quotient = builder.udiv(number, by)
    return quotient, builder.sub(number, builder.mul(quotient, by))


def _both(builder, geometry, coordinates):
    """Return the offset of the pixel (h, w) in floats: (h width + w) pixel."""
    h, w = coordinates
    return builder.mul(builder.add(builder.mul(h, geometry.width), w), geometry.pixel)


def _entry(context, builder, exists, offset, coordinates, other):
    """Return the entry (offset, h, w, index in the other operand); for missing entries h is -OUTSIDE and the index -1."""
    h, w = coordinates
    values = [offset, builder.select(exists, h, constant(-OUTSIDE)), w, builder.select(exists, other, constant(-1))]
    return context.make_tuple(builder, ENTRY, values)


def _with_phase(builder, number, stride):
    """Return (q, q + PHASE f), where number = q stride + f."""
    quotient, phase = _divided(builder, number, stride)
    return quotient, builder.add(quotient, builder.mul(phase, constant(PHASE)))


@functools.cache
def position_of(back):
    """Return the intrinsic that maps (number, exists, geometry) to the entry of a position; of the backward pass if `back`."""

    @intrinsic(back)
    def position(typing_context, number, exists, geometry):
        def generate(context, builder, signature, arguments):
            number, exists, g = *arguments[:2], _unpacked(builder, arguments[2])
            n, rest = _divided(builder, number, builder.mul(g.grid_height, g.grid_width))
            at, pixels, coordinates = _divided(builder, rest, g.grid_width), [], []
            for i, stride, padding in zip(at, g[7:9], g[9:11], strict=True):
                if back:
                    pixel, coordinate = _with_phase(builder, builder.add(i, padding), stride)
                else:
                    pixel = coordinate = builder.sub(builder.mul(i, stride), padding)
                pixels.append(pixel)
                coordinates.append(coordinate)
            image = builder.mul(builder.mul(n, builder.mul(g.height, g.width)), g.pixel)
            return _entry(
                context,
                builder,
                exists,
                builder.add(image, _both(builder, g, pixels)),
                coordinates,
                builder.mul(number, g.position_step),
            )

        return ENTRY(types.int32, types.boolean, GEOMETRY), generate

    return position


@functools.cache
def tap_of(back):
    """Return the intrinsic that maps (number, exists, geometry) to the entry of a tap; of the backward pass if `back`."""

    @intrinsic(back)
    def tap(typing_context, number, exists, geometry):
        def generate(context, builder, signature, arguments):
            number, exists, g = *arguments[:2], _unpacked(builder, arguments[2])
            place, channel = _divided(builder, number, g.channels)
            at, pixels, coordinates = _divided(builder, place, g.kernel_width), [], []
            for i, stride, dilation in zip(at, g[7:9], g[11:13], strict=True):
                pixel = coordinate = builder.mul(i, dilation)
                if back:
                    pixel, coordinate = (builder.neg(n) for n in _with_phase(builder, pixel, stride))
                pixels.append(pixel)
                coordinates.append(coordinate)
            other = builder.add(builder.mul(place, g.tap_step), builder.mul(channel, g.channel_step))
            return _entry(context, builder, exists, builder.add(_both(builder, g, pixels), channel), coordinates, other)

        return ENTRY(types.int32, types.boolean, GEOMETRY), generate

    return tap


@intrinsic()
def split(typing_context, number, by):
    """Return (number // by, number % by) in 32 bits, for non-negative numbers."""

    def generate(context, builder, signature, arguments):
        return context.make_tuple(builder, TWO, _divided(builder, *arguments))

    return TWO(types.int32, types.int32), generate


@functools.cache
def number_of(listed):
    """Return the intrinsic that maps (list, at, i, count, stretch, limit) to number i of `count` numbers, or to -1 if there is
    none. If `listed`, entry e of the list, from `at` on, stands for the numbers e stretch … (e + 1) stretch - 1 below the
    limit; else number i is i itself.
    """

    @intrinsic(listed)
    def number(typing_context, kept, at, i, count, stretch, limit):
        def generate(context, builder, signature, arguments):
            kept, at, i, count, stretch, limit = arguments
            exists = builder.icmp_signed("<", i, count)
            if listed:
                place, rest = _divided(builder, i, stretch)
                data, always = data_of(context, builder, signature.args[0], kept), ir.Constant(ir.IntType(1), 1)
                (found,) = loaded(builder, data, [builder.add(at, place)], [exists], always)
                i = builder.add(builder.mul(found, stretch), rest)
                exists = builder.and_(exists, builder.icmp_signed("<", i, limit))
            return builder.select(exists, i, constant(-1))

        return types.int32(kept, *[types.int32] * 5), generate

    return number


class Loads(NamedTuple):
    """The intrinsics with which a thread loads its elements of a tile and stores them to shared memory. `copies.layout` defines
    the layout of the tile; a thread has four elements.
    """

    place: Callable  # t -> (its first k, its first row or column)
    windowed: Callable  # load four elements from images, given their entries
    plain: Callable  # load four elements from another operand, given their offsets
    leave: Callable  # store the four elements into the tile of this step


def _place_of(layout):
    @intrinsic(layout)
    def place(typing_context, t):
        """If adjacent threads load along k, threads form rows of 8."""

        def generate(context, builder, signature, arguments):
            (t,) = arguments
            first, second = _divided(builder, t, constant(8 if layout.along_k else layout.wide))
            return context.make_tuple(builder, TWO, [second, first] if layout.along_k else [first, second])

        return TWO(types.int32), generate

    return place


def _leave_of(layout, parts):
    @intrinsic(layout)
    def leave(typing_context, tile, step, k, side, values):
        """tile[k + i, side + j] = values: st.shared.f32."""

        def generate(context, builder, signature, arguments):
            tile, step, k, side, values = arguments
            at = builder.add(builder.mul(k, constant(layout.step)), builder.mul(side, constant(layout.side)))
            at = builder.add(at, builder.mul(builder.and_(step, constant(1)), constant(layout.stage)))
            data = element(builder, data_of(context, builder, signature.args[0], tile), at)
            for number, (i, j) in enumerate(parts):
                there = element(builder, data, constant(i * layout.step + j * layout.side))
                builder.store(builder.extract_value(values, number), there)
            return context.get_dummy_value()

        return types.void(tile, types.int32, types.int32, types.int32, FOUR), generate

    return leave


@functools.cache
def loads_of(layout):
    parts = [(i, j) for i in range(0, DEPTH, layout.deep) for j in range(0, layout.count, layout.wide)]

    def column(context, builder, kind, table, number, step, k):
        """Return field `number` of the entries in the table, for the k of this thread."""
        data = data_of(context, builder, kind, table)
        at = builder.add(k, builder.mul(builder.and_(step, constant(CHUNK // DEPTH - 1)), constant(DEPTH)))
        at = builder.add(at, constant(number * CHUNK))
        return {i: builder.load(element(builder, data, builder.add(at, constant(i)))) for i in range(0, DEPTH, layout.deep)}

    def gated(context, builder, signature, arguments, places, inside):
        """Return source[first + places] if inside, else 0; if masked, also 0 unless `where` is above 0 at this element."""
        source, where, masked, first = arguments[:4]
        always = ir.Constant(ir.IntType(1), 1)
        data = element(builder, data_of(context, builder, signature.args[0], source), first)
        gate = element(builder, data_of(context, builder, signature.args[1], where), first)
        zero, values = ir.Constant(F32, 0.0), loaded(builder, data, places, inside, always)
        gates = gates_of(builder, gate, masked, places, inside)
        return context.make_tuple(builder, FOUR, [builder.select(*both, zero) for both in zip(gates, values, strict=True)])

    @intrinsic(layout)
    def windowed(typing_context, source, where, masked, first, table, step, k, one, other, height, width):
        """Return source[first + offset] for the entries of the thread's rows, `one` and perhaps `other`, and those in the
        table.
        """

        def generate(context, builder, signature, arguments):
            table, step, k, *sides = arguments[4:9]
            columns = [column(context, builder, signature.args[4], table, n, step, k) for n in range(3)]
            sides, places, inside = dict(zip(range(0, layout.count, layout.wide), sides)), [], []
            for i, j in parts:
                offset, h, w = (builder.add(columns[n][i], builder.extract_value(sides[j], n)) for n in range(3))
                places.append(offset)
                inside.append(
                    builder.and_(builder.icmp_unsigned("<", h, arguments[9]), builder.icmp_unsigned("<", w, arguments[10]))
                )
            return gated(context, builder, signature, arguments, places, inside)

        return FOUR(
            source, where, types.boolean, types.int32, table, types.int32, types.int32, ENTRY, ENTRY, types.int32, types.int32
        ), generate

    @intrinsic(layout)
    def plain(typing_context, source, where, masked, first, table, step, k, one, other):
        """Return source[first + offset + n] for the offsets of the thread's columns, `one` and perhaps `other`, and the n in
        the table. Offsets of missing elements are negative.
        """

        def generate(context, builder, signature, arguments):
            table, step, k, *sides = arguments[4:9]
            rows = column(context, builder, signature.args[4], table, 3, step, k)
            sides = dict(zip(range(0, layout.count, layout.wide), sides))
            inside = [builder.icmp_signed(">=", builder.or_(rows[i], sides[j]), constant(0)) for i, j in parts]
            places = [builder.add(rows[i], sides[j]) for i, j in parts]
            return gated(context, builder, signature, arguments, places, inside)

        return FOUR(source, where, types.boolean, types.int32, table, *[types.int32] * 4), generate

    return Loads(_place_of(layout), windowed, plain, _leave_of(layout, parts))
