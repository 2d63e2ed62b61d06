"""LLVM code with which the threads of a block copy a tile of an operand into shared memory.

    cp.async.ca.shared.global [to], [source], 4, inside ? 4 : 0     copies one float asynchronously; if it is outside of the
                                                                    operand, nothing is read and 0 is written

There are two tiles in shared memory (double buffering): while one is multiplied, the next one is copied. The tile of step s is
copied to tile s & 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir
from numba import types

from ..runtime.declare import intrinsic
from .intrinsics import F32, I32, I64, constant, data_of, element, numbers_of

DEPTH = 16  # length of a tile along k; not tuned on a device
THREADS = 256  # number of threads of a block


class Layout(NamedTuple):
    """How the threads of a block copy the tiles of an operand, and the layout of a tile in shared memory."""

    along_k: bool  # True if adjacent threads copy elements that are adjacent along k, else along the rows or columns
    deep: int  # number of values of k that all threads copy at once
    wide: int  # number of rows or columns that all threads copy at once
    count: int  # number of elements that each thread copies
    step: int  # stride of a tile along k, in floats
    side: int  # stride of a tile along rows or columns, in floats
    stage: int  # number of floats of a tile


def layout(tile, along_k, passes=0, padding=4):
    """Return the layout of tiles with `tile` rows or columns, of which adjacent threads read along k if `along_k`."""
    walk = (True, 8, 32, tile) if along_k else (False, THREADS // tile, tile, tile)
    if passes and along_k:
        return Layout(*walk, 1, DEPTH + 4, tile * (DEPTH + 4))
    pitch = tile + (8 if passes else padding)
    return Layout(*walk, pitch, 1, DEPTH * pitch)


class Copies(NamedTuple):
    """The intrinsics with which a thread copies its elements of a tile.

    first(t, line, tile) returns (k, row or column, address in shared memory) of the first element of thread t; `line` comes
    from `accumulate`. strided and listed copy all elements of the thread for one tile.
    """

    first: Callable
    strided: Callable
    listed: Callable


@intrinsic()
def address(typing_context, array, at):
    """Return the address of array[at] in global memory, as an integer."""

    def generate(context, builder, signature, arguments):
        array, at = arguments
        return builder.ptrtoint(element(builder, data_of(context, builder, signature.args[0], array), at), I64)

    return types.int64(array, types.int32), generate


THREE = types.UniTuple(types.int32, 3)
COPY = ir.InlineAsm(
    ir.FunctionType(ir.VoidType(), [I32, I64, I32]), "cp.async.ca.shared.global [$0], [$1], 4, $2;", "r,l,r", side_effect=True
)  # `wait_for_all_but_one` is the memory barrier, and loads are not moved across it


def _first_of(layout):
    @intrinsic(layout)
    def first(typing_context, t, line, array):
        """Return the numbers that `Copies` describes. If adjacent threads copy along k, threads form rows of 8."""

        def generate(context, builder, signature, arguments):
            t, line, array = arguments
            k, side = (
                (builder.and_(t, constant(7)), line)
                if layout.along_k
                else (builder.udiv(t, constant(layout.wide)), builder.urem(t, constant(layout.wide)))
            )
            at = builder.add(builder.mul(k, constant(layout.step)), builder.mul(side, constant(layout.side)))
            target = element(builder, data_of(context, builder, signature.args[2], array), at)
            target = builder.ptrtoint(builder.addrspacecast(target, ir.PointerType(F32, 3)), I32)
            return context.make_tuple(builder, THREE, [k, side, target])

        return THREE(types.int32, types.int32, array), generate

    return first


@functools.cache
def copies_of(layout, k_listed=False, side_listed=False):
    """Return the `Copies` of tiles; `listed` takes k from a list if `k_listed`, and rows or columns if `side_listed`."""
    parts = [(i, j) for i in range(0, DEPTH, layout.deep) for j in range(0, layout.count, layout.wide)]

    def copied(builder, to, step, sources, depth, sides):
        """Copy from each source address to its element of the tile of this step."""
        to = builder.add(to, builder.mul(builder.and_(step, constant(1)), constant(4 * layout.stage)))
        for (i, j), source in zip(parts, sources, strict=True):
            inside = builder.and_(builder.icmp_signed("<", constant(i), depth), builder.icmp_signed("<", constant(j), sides))
            target = builder.add(to, constant(4 * (i * layout.step + j * layout.side)))
            builder.call(COPY, [target, source, builder.select(inside, constant(4), constant(0))])

    @intrinsic(layout)
    def strided(typing_context, to, step, source, k_step, side_step, depth, sides):
        """Copy from the address `source` with strides in floats; return the address of the next tile. `depth` and `sides` are
        the numbers of k and of rows or columns inside the operand, counted from this thread's element in the first tile.
        """

        def generate(context, builder, signature, arguments):
            to, step, source, k_step, side_step, depth, sides = arguments

            def bytes_on(k, side):
                return builder.add(
                    *(
                        builder.mul(ir.Constant(I64, 4 * count), builder.sext(floats, I64))
                        for count, floats in ((k, k_step), (side, side_step))
                    )
                )

            sources = [builder.add(source, bytes_on(i, j)) for i, j in parts]
            copied(builder, to, step, sources, builder.sub(depth, builder.mul(step, constant(DEPTH))), sides)
            return builder.add(source, bytes_on(DEPTH, 0))

        return types.int64(types.int32, types.int32, types.int64, *[types.int32] * 4), generate

    @intrinsic(layout, k_listed, side_listed)
    def listed(typing_context, to, step, array, k, side, k_step, side_step, depth, sides, k_list, k_at, side_list, side_at):
        """Copy array[K k_step + S side_step], where K is entry k of the list that begins at k_at, or k itself; S is the same
        for the row or column. `depth` and `sides` are the lengths of the operand. Lists must be readable up to the end of a
        tile.
        """

        def generate(context, builder, signature, arguments):
            to, step, array, k, side, k_step, side_step, depth, sides, k_list, k_at, side_list, side_at = arguments
            k = builder.add(k, builder.mul(step, constant(DEPTH)))
            deep = [builder.add(k, constant(i)) for i in range(0, DEPTH, layout.deep)]
            wide = [builder.add(side, constant(j)) for j in range(0, layout.count, layout.wide)]
            deep = numbers_of(context, builder, signature.args[9], k_list, k_at, deep) if k_listed else deep
            wide = numbers_of(context, builder, signature.args[11], side_list, side_at, wide) if side_listed else wide
            deep, wide = [builder.mul(n, k_step) for n in deep], [builder.mul(n, side_step) for n in wide]
            data = data_of(context, builder, signature.args[2], array)
            sources = [builder.ptrtoint(element(builder, data, builder.add(n, m)), I64) for n in deep for m in wide]
            copied(builder, to, step, sources, builder.sub(depth, k), builder.sub(sides, side))
            return context.get_dummy_value()

        return types.void(
            types.int32, types.int32, array, *[types.int32] * 6, k_list, types.int32, side_list, types.int32
        ), generate

    return Copies(_first_of(layout), strided, listed)
