"""LLVM code and device functions for Winograd's filtering F(2 x 2, 3 x 3) on CUDA, for `cuda_winograd`: how a thread loads and
transforms tiles, and how a block multiplies them.

A stage of a block is 16 products (one for each element of a tile, 4 x 4) of 32 rows by 32 columns over 8 inner entries. Both
factors lie in shared memory as planes [8 inner][16 elements][32]; two elements share a warp, and a thread has 8 x 8 sums of one
element, those of the rows 4 r … 4 r + 3 and 16 + 4 r … 16 + 4 r + 3, and of such columns. A tile of results needs the sums of
all 16 elements, which are in 16 threads: after the last stage they are exchanged in shared memory, 8 rows at a time.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import int32, types

from ....blocks.accumulate import QUAD
from ....blocks.intrinsics import F32, I32, I64, constant, data_of, element
from ....runtime.declare import cuda, inlined, intrinsic
from ..cuda_gather import split
from .matrices import AT, BT, GT, A, G, sandwich

SIDE, ELEMENTS, INNER = 32, 16, 8  # rows and columns of a stage's products, elements of a tile, inner entries
LINE, PLANE = ELEMENTS * SIDE, INNER * ELEMENTS * SIDE  # floats of an inner entry, and of a stage's factor
ROWS, PITCH = 8, SIDE + 8  # rows that are exchanged at a time; their pitch, with which the stores have no bank conflicts
SUMS = types.UniTuple(types.float32, 64)


class _Number:
    """A float in a register, with Python's operators."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def _with(self, operation, other):
        other = other.value if isinstance(other, _Number) else ir.Constant(F32, float(other))
        return _Number(self.builder, getattr(self.builder, operation)(self.value, other, flags=("contract",)))

    def __add__(self, other):
        return self._with("fadd", other)

    def __sub__(self, other):
        return self._with("fsub", other)

    def __mul__(self, other):
        return self._with("fmul", other)


LOAD = ir.InlineAsm(
    ir.FunctionType(F32, [I64, I32]),
    "{.reg .pred %there; setp.ne.b32 %there, $2, 0; mov.f32 $0, 0f00000000; @%there ld.global.f32 $0, [$1];}",
    "=f,l,r",
    side_effect=True,
)  # predicated: a select would wait for the value at once, before the block multiplies


@intrinsic()
def thread(typing_context):
    """Return threadIdx.x, read anew: what is computed from it need not stay in registers beside the sums."""

    def generate(context, builder, signature, arguments):
        return builder.call(ir.InlineAsm(ir.FunctionType(I32, []), "mov.u32 $0, %tid.x;", "=r", side_effect=True), [])

    return types.int32(), generate


# --- tiles in registers -----------------------------------------------------------------------------------------------
@functools.cache
def transform_of(name):
    """Return the intrinsic that maps the elements of a tile X to those of M X M^T; `name` is that of the matrix M."""
    matrix = {"AT": AT, "BT": BT, "GT": GT, "A": A, "G": G}[name][2]
    side, given, made = len(matrix[0]), *(types.UniTuple(types.float32, len(part) ** 2) for part in (matrix[0], matrix))

    @intrinsic(name)
    def transform(typing_context, values):
        def generate(context, builder, signature, arguments):
            numbers = [_Number(builder, builder.extract_value(arguments[0], i)) for i in range(side * side)]
            rows = sandwich(matrix, lambda r, s: numbers[r * side + s])
            return context.make_tuple(builder, made, [number.value for row in rows for number in row])

        return made(given), generate

    return transform


@functools.cache
def pixels_of(side):
    """Return the intrinsic that loads a tile of side x side numbers."""
    kind = types.UniTuple(types.float32, side * side)

    @intrinsic(side)
    def pixels(typing_context, source, at, line, step, mask):
        """Return source[at + i line + j step] for pixel (i, j) if bit side i + j of the mask is set, else 0."""

        def generate(context, builder, signature, arguments):
            source, at, line, step, mask = arguments
            data, values = data_of(context, builder, signature.args[0], source), []
            for i in range(side):
                first = builder.add(at, builder.mul(constant(i), line))
                for j in range(side):
                    place = element(builder, data, builder.add(first, builder.mul(constant(j), step)))
                    bit = builder.and_(mask, constant(1 << side * i + j))
                    values.append(builder.call(LOAD, [builder.ptrtoint(place, I64), bit]))
            return context.make_tuple(builder, kind, values)

        return kind(source, *[types.int32] * 4), generate

    return pixels


def places_of(side):
    """Return a device function; each factory makes its own (`inlined`)."""

    @inlined
    def inside(first, limit):
        """Return an int32 whose bit i is set if 0 <= first + i < limit, for i < side."""
        low, high = min(max(-first, int32(0)), int32(side)), max(min(limit - first, int32(side)), int32(0))
        return ((int32(1) << high) - int32(1)) & ~((int32(1) << low) - int32(1))

    @inlined
    def place(tile, tiles, grid, images, padding):
        """Return (index of the first of the side x side pixels of a tile, which may be outside of the image; mask of those that
        are inside, 0 for a tile from `tiles` on). `grid`, `images` and `padding` are tiles and pixels along each axis.
        """
        (down, across), (height, width), (above, beside) = grid, images, padding
        n, rest = split(tile, down * across)
        th, tw = split(rest, across)
        top, left = int32(2 * th - above), int32(2 * tw - beside)
        rows, mask = inside(top, height), int32(0)
        line = inside(left, width) if tile < tiles else int32(0)
        for i in range(side):
            mask |= ((rows >> i) & 1) * (line << (side * i))
        return int32((n * height + top) * width + left), int32(mask)

    return place


# --- tiles in shared memory -------------------------------------------------------------------------------------------
@functools.cache
def series_of(count):
    """Return the intrinsics (load, store) for `count` floats of an array, `step` floats apart."""
    kind = types.UniTuple(types.float32, count)

    def places(context, builder, signature, array, at, step):
        data = element(builder, data_of(context, builder, signature.args[0], array), at)
        return [element(builder, data, builder.mul(step, constant(i))) for i in range(count)]

    @intrinsic(count)
    def load(typing_context, array, at, step):
        """Return array[at + i step] for each i."""

        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, kind, [builder.load(p) for p in places(context, builder, signature, *arguments)])

        return kind(array, types.int32, types.int32), generate

    @intrinsic(count)
    def store(typing_context, array, at, step, values):
        """array[at + i step] = values[i]"""

        def generate(context, builder, signature, arguments):
            for i, place in enumerate(places(context, builder, signature, *arguments[:3])):
                builder.store(builder.extract_value(arguments[3], i), place)
            return context.get_dummy_value()

        return types.void(array, types.int32, types.int32, kind), generate

    return load, store


COPY = ir.InlineAsm(
    ir.FunctionType(ir.VoidType(), [I32, I64]), "cp.async.cg.shared.global [$0], [$1], 16;", "r,l", side_effect=True
)


@intrinsic()
def copy_plane(typing_context, room, to, source, at):
    """Copy four times four floats, PLANE / 4 floats apart, from source[at] on to room[to] on, asynchronously: a thread's share
    of a plane.
    """

    def generate(context, builder, signature, arguments):
        room, to, source, at = arguments
        target = element(builder, data_of(context, builder, signature.args[0], room), to)
        target = builder.ptrtoint(builder.addrspacecast(target, ir.PointerType(F32, 3)), I32)
        origin = builder.ptrtoint(element(builder, data_of(context, builder, signature.args[2], source), at), I64)
        for offset in range(0, 4 * PLANE, PLANE):
            builder.call(COPY, [builder.add(target, constant(offset)), builder.add(origin, ir.Constant(I64, offset))])
        return context.get_dummy_value()

    return types.void(room, types.int32, source, types.int32), generate


# --- sums -------------------------------------------------------------------------------------------------------------
@intrinsic()
def zeros(typing_context):
    """Return 64 zeros."""

    def generate(context, builder, signature, arguments):
        return context.make_tuple(builder, SUMS, [ir.Constant(F32, 0.0)] * 64)

    return SUMS(), generate


TURN = ir.InlineAsm(  # computed when needed: four addresses in registers all along would be too many
    ir.FunctionType(I32, [I32, I32]), "xor.b32 $0, $1, $2;", "=r,r,n", side_effect=True
)


@functools.cache
def multiply_of(mixed):
    """Return the intrinsic that multiplies two planes. If `mixed`, quad q of the rows of inner entry k lies at q ^ k, so that
    threads that transform tiles of 8 adjacent channels store them to different banks.
    """

    @intrinsic(mixed)
    def multiply(typing_context, sums, room, left, right):
        """sums[i, j] += sum_k L[k, row i] R[k, column j], in the order of k, by fma.rn.f32; the thread's first row of its
        element is at room[left], and its first column at room[right].
        """

        def generate(context, builder, signature, arguments):
            sums, room, left, right = arguments
            values = [builder.extract_value(sums, i) for i in range(64)]
            data = data_of(context, builder, signature.args[1], room)

            def quad(at, offset):
                place = builder.gep(element(builder, data, at), [ir.Constant(I64, offset)])
                four = builder.load(builder.bitcast(place, ir.PointerType(QUAD, place.type.addrspace)), align=16)
                return [builder.extract_element(four, constant(i)) for i in range(4)]

            for k in range(INNER):
                low, high = (k & 3, k >> 2) if mixed else (0, 0)
                begin = builder.call(TURN, [left, constant(4 * low)]) if low else left
                rows = [v for half in range(2) for v in quad(begin, LINE * k + 16 * (half ^ high))]
                for half in range(2):
                    for j, column in enumerate(quad(right, LINE * k + 16 * half), 4 * half):
                        for i, row in enumerate(rows):
                            values[8 * i + j] = builder.fma(row, column, values[8 * i + j])
            return context.make_tuple(builder, SUMS, values)

        return SUMS(SUMS, room, types.int32, types.int32), generate

    return multiply


@intrinsic()
def leave(typing_context, room, at, sums, turn):
    """Store the thread's rows 2 turn and 2 turn + 1, turn < 4, from room[at] on, PITCH floats apart, by st.shared.v4.f32."""

    def generate(context, builder, signature, arguments):
        room, at, sums, turn = arguments
        first = element(builder, data_of(context, builder, signature.args[0], room), at)
        for own in range(4):
            with builder.if_then(builder.icmp_signed("==", turn, constant(own))):
                for row in range(2):
                    for j in range(0, 8, 4):
                        four = ir.Constant(QUAD, ir.Undefined)
                        for k in range(4):
                            value = builder.extract_value(sums, 8 * (2 * own + row) + j + k)
                            four = builder.insert_element(four, value, constant(k))
                        place = builder.gep(first, [ir.Constant(I64, PITCH * row + 4 * j)])
                        builder.store(four, builder.bitcast(place, ir.PointerType(QUAD, place.type.addrspace)), align=16)
        return context.get_dummy_value()

    return types.void(room, types.int32, SUMS, types.int32), generate


def exchange_of():
    """Return device functions (corner, share, row_of); each factory makes its own (`inlined`)."""
    load, _ = series_of(ELEMENTS)

    @inlined
    def corner(t):
        """Return the offsets of a thread's first row and first column in an inner entry of a plane. 8 adjacent threads, whose
        16 bytes each are moved at a time, have two rows and four columns.
        """
        element, r, column = int32(t >> 4), int32((t >> 2) & 3), int32(t & 3)
        return int32(element * SIDE + 4 * r), int32(element * SIDE + 4 * column)

    @inlined
    def share(room, sums, turn, t):
        """Exchange 8 rows of sums; return the 16 elements of this thread's row, t // 32, and column, t % 32."""
        cuda.syncthreads()
        leave(room, int32((t >> 4) * ROWS * PITCH + ((t >> 2) & 3) * 2 * PITCH + 4 * (t & 3)), sums, turn)
        cuda.syncthreads()
        return load(room, int32((t >> 5) * PITCH + (t & 31)), int32(ROWS * PITCH))

    @inlined
    def row_of(turn, t):
        """Return the row of 32 that `share` gives to thread t in this turn."""
        warp = int32(t >> 5)
        i = int32(2 * turn + (warp & 1))
        return int32(4 * (warp >> 1) + (i & 3) + 16 * (i >> 2))

    return corner, share, row_of
