"""Convolution as a matrix product that gathers the im2col matrix on the fly: the implicit GEMM, for every device.

    forward   y[r, o] = act(scale sum_k A[r, k] wt[k, o] + bias[o])       x (N, H, W, C), wt (K, O), K = KH KW C / groups
    dx        dx[pixel] = scale times the sum of dz[r, o] wt[k, o] over all (r, k) whose A[r, k] is that pixel
    dw        dwt[k, o] = scale sum_r A[r, k] dz[r, o]
    db        db[o] = sum_r dz[r, o]

act is ReLU if `relu`, else the identity. dz[r, o] = dy[r, o]; but if `where` is given, dz[r, o] = 0 unless where[r, o] > 0.

Row r = (n, oh, ow) of A is an output position, column k = (kh, kw, c) a tap: A[r, k] is the pixel x[n, oh stride - padding +
kh dilation, ow stride - padding + kw dilation, c], 0 outside the image. A has KH KW times the elements of x, and is never
written: a block gathers 64 x 16 elements of A into shared memory, while the previous 64 x 16 are multiplied. A thread has 4 x 4
sums.

One kernel serves four products. The entries of an axis are the addresses of its pixels (`cuda_gather`). Each product has a side
axis, whose entries a thread keeps in registers, and an inner axis, whose entries the block computes 256 at a time and keeps in
shared memory. So no element needs a division.

    product   side         inner       columns    other operand
    FORWARD   positions    taps        outputs    wt
    DX        pixels       taps        channels   wt, read along the outputs
    PATCHES   positions    outputs     taps       wt, read along the outputs: dA[r, k] = scale sum_o dz[r, o] wt[k, o]
    DW        taps         positions   outputs    dz; the rows are cut into parts, and the parts added up in order

A plan keeps rows of A (`rows`, an increasing list), or some blocks of columns for each block row (`Blocks`). Then a list gives
the kept indices of one axis of each product, and only the kept part is multiplied. In this case dx takes two steps: the product
PATCHES computes the kept part of dA, and then each pixel adds up its terms in a fixed order (`cuda_im2col.launch_col2im`).
"""

from __future__ import annotations

from numba import float32, int32

from ...blocks.copies import DEPTH, THREADS
from ...blocks.index_views import block_columns
from ...runtime.availability import multiprocessors
from ...runtime.declare import cuda, kernel, kernels
from ...runtime.expect import INT32, expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import blocks_for, empty_cuda, flat, full_cuda
from .cuda_conv_product import COLS, DW, DX, FORWARD, INNER, NOTHING, PATCHES, SIDE, TILE, Sizes, conv_product_kernel
from .cuda_gather import PHASE, Geometry
from .cuda_im2col import launch_col2im

ACROSS, DOWN = 32, 8  # threads of a block along the columns and along the rows, in sums of rows


# --- sums -------------------------------------------------------------------------------------------------------------
@kernels("conv")
def _sums():
    """Return two kernels: `conv_sums` sums the rows of a matrix in parts, and `conv_added` adds up the sums of the parts."""
    room = ACROSS * DOWN

    @kernel("void(f4[:, ::1], f4[:, ::1], i4[::1], f4[:, ::1], i4, b1, b1)")
    def conv_sums(dy, where, rows, parts, count, listed, masked):
        """Each block sums 32 columns (ACROSS) over its part of the rows."""
        shared = cuda.shared.array(room, float32)
        tx, ty = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
        o, span = int32(cuda.blockIdx.x * ACROSS + tx), int32((count + parts.shape[0] - 1) // parts.shape[0])
        first, total = int32(cuda.blockIdx.y * span), float32(0)
        if o < dy.shape[1]:
            for i in range(first + ty, min(first + span, count), DOWN):
                r = rows[i] if listed else i
                if 0 <= r < dy.shape[0] and (not masked or where[r, o] > float32(0)):
                    total += dy[r, o]
        shared[ty * ACROSS + tx] = total
        cuda.syncthreads()
        if ty == 0 and o < dy.shape[1]:
            total = float32(0)
            for i in range(DOWN):
                total += shared[i * ACROSS + tx]
            parts[cuda.blockIdx.y, o] = total

    @kernel("void(f4[:, ::1], f4[::1], f4)")
    def conv_added(parts, out, scale):
        """out = scale times the sum of the parts, which are added one after the other."""
        i = cuda.grid(1)
        if i < out.size:
            total = float32(0)
            for part in range(parts.shape[0]):
                total += parts[part, i]
            out[i] = scale * total

    return conv_sums, conv_added


# --- launchers --------------------------------------------------------------------------------------------------------
class _Work:
    """The checked sizes of a convolution, and the lists that say which part of its im2col matrix is kept."""

    def __init__(self, op, shape, weight_shape, window, rows, blocks, **arrays):
        self.images, self.height, self.width, self.channels = shape
        self.window, self.grid, self.rows, self.blocks = window, window.positions(*shape[1:3]), rows, blocks
        self.total, (self.depth, self.outs) = self.images * self.grid[0] * self.grid[1], weight_shape
        self.taps = window.kernel[0] * window.kernel[1]
        self.own_channels = self.depth // self.taps
        self.groups = self.channels // self.own_channels if self.own_channels else 1
        if (self.own_channels * self.taps, self.own_channels * self.groups) != (
            self.depth,
            self.channels,
        ) or self.outs % self.groups:
            raise ValueError(f"{op}: images {tuple(shape)} do not match a transposed weight {weight_shape} and {window}")
        self.own_outs = self.outs // self.groups
        shapes = {"x": tuple(shape), "wt": (self.depth, self.outs), "bias": (self.outs,)}
        expect(
            op,
            rows=(rows, ("R",), INT32),
            kept=(blocks and blocks.kept, (self.bands, "Q"), INT32),
            **{name: (array, shapes.get(name, (self.total, self.outs))) for name, array in arrays.items()},
        )
        self._check(op)

    def _check(self, op):
        if self.rows is not None and self.blocks is not None:
            raise ValueError(f"{op}: rows and blocks cannot be given together")
        padded = [n + 2 * padding for n, padding in zip((self.height, self.width), self.window.padding, strict=True)]
        if max(padded) >= PHASE // 2 or max(self.window.stride) >= PHASE // 8:
            raise ValueError(
                f"{op}: {self.height} x {self.width} pixels in {self.window}: with their padding they must be "
                f"fewer than {PHASE // 2} along each axis, and strides below {PHASE // 8}"
            )
        sizes = {
            "x": self.images * self.height * self.width * self.channels,
            "y": self.total * self.outs,
            "what is kept of dA": self.groups * self.kept_rows * self.kept_cols * self.planned,
        }
        if max(sizes.values()) >= 2**31:
            raise ValueError(f"{op}: 32 bits do not count the elements of {sizes}; take fewer images at a time")

    @property
    def planned(self):
        return self.rows is not None or self.blocks is not None

    @property
    def bands(self):
        """The number of block rows of A; 1 without blocks."""
        return 1 if self.blocks is None else ceil_div(self.total, self.blocks.height)

    @property
    def kept_rows(self):
        return self.total if self.rows is None else self.rows.size

    @property
    def kept_cols(self):
        """The number of columns of the packed dA, whose last block may extend beyond the last column of dA."""
        return self.depth if self.blocks is None else self.blocks.kept.shape[1] * self.blocks.width

    def geometry(self, product):
        """Return the geometry of the images from which `product` gathers."""
        to_tap = self.own_channels * self.outs
        if product == PATCHES:
            return Geometry(1, 1, self.outs, 1, 1, max(self.own_outs, 1), 1, 1, 1, 0, 0, 1, 1, 0, 0, 1)
        images, grid, pixel, channels = (self.height, self.width), self.grid, self.channels, self.own_channels
        steps = self.outs, to_tap, self.outs
        if product == DX:
            images, grid, pixel, channels, steps = grid, images, self.outs, self.own_outs, (0, to_tap, 1)
        rest = (self.window.kernel[1], *self.window.stride, *self.window.padding, *self.window.dilation)
        return Geometry(*images, pixel, *grid, channels, *rest, *steps)

    def sizes(self, product, parts=1):
        """Return the `Sizes` of `product`: the lengths of its side axis, inner axis and columns, which the table at the top of
        this module defines, and their strides.
        """
        blocks, own, outs, taps = self.blocks, self.own_outs, self.outs, self.own_channels
        sides, depth, cols = {
            FORWARD: (self.kept_rows, self.kept_cols, own),
            PATCHES: (self.kept_rows, own, self.kept_cols),
            DX: (self.images * self.height * self.width, self.taps * own, taps),
            DW: (self.depth, self.kept_rows, own),
        }[product]
        lying = {  # col_step, source_group, other_group, out_group, out_part, out_width
            FORWARD: (1, taps, own, own, 0, outs),
            PATCHES: (outs, own, own, sides * cols, 0, cols),
            DX: (outs, own, own, taps, 0, self.channels),
            DW: (1, taps, own, own, self.depth * outs, outs),
        }[product]
        length, stretch, room, limit = sides, 1, 0, self.total
        if blocks is not None:
            (bands, entries), height, width = blocks.kept.shape, blocks.height, blocks.width
            length, stretch, room, limit = (
                (width, height, bands, self.total) if product == DW else (height, width, entries, self.depth)
            )
        of_tiles = ceil_div(length, TILE), depth, cols, ceil_div(cols, TILE)
        return Sizes(sides, length, *of_tiles, stretch, room, limit, *lying, parts)

    def listed(self, product):
        """Return the axis of `product` whose kept indices are read from a list: SIDE, INNER or COLS; NOTHING without a plan."""
        if product == DX or not self.planned:
            return NOTHING
        if self.rows is not None:
            return INNER if product == DW else SIDE
        return COLS if product == PATCHES else INNER


def _launch(product, work, source, other, out, where=None, bias=None, relu=False, scale=1.0, parts=1):
    """Compute one of the four products and write it to `out`."""
    sizes, listed, counts = work.sizes(product, parts), work.listed(product), None
    if not source.size or not other.size:
        sizes = sizes._replace(depth=0)
    kept = work.rows if work.blocks is None else flat(work.blocks.kept)
    if product == DW and work.blocks is not None:
        columns, counts = block_columns(work.blocks, work.depth)
        kept = flat(columns)
    kept = empty_cuda((1,), INT32) if kept is None else kept
    bands = ceil_div(sizes.sides, max(sizes.length, 1))
    aligned = all(n % 4 == 0 for n in (sizes.out_width, sizes.out_group, sizes.out_part))
    launch(
        conv_product_kernel(product, listed),
        (bands * sizes.tiles * sizes.col_tiles, 1, work.groups * parts),
        THREADS,
        flat(source),
        flat(other),
        flat(other if where is None else where),
        flat(out) if bias is None else bias,
        flat(out),
        kept,
        kept if counts is None else counts,
        tuple(work.geometry(product)),
        tuple(sizes),
        counts is not None,
        where is not None,
        aligned,
        bias is not None,
        relu,
        scale,
    )
    return out


def launch_forward(x, wt, window, bias=None, relu=False, scale=1.0, rows=None, blocks=None, out=None):
    """y (N P, O), 0 in rows that are not listed; there are C KH KW / K groups, their outputs in order."""
    work = _Work("implicit forward", x.shape, wt.shape, window, rows, blocks, x=x, wt=wt, bias=bias, out=out)
    out = empty_cuda((work.total, work.outs)) if out is None else out
    if rows is not None:
        full_cuda(out.shape, 0.0, out=out)
    return _launch(FORWARD, work, x, wt, out, bias=bias, relu=relu, scale=scale)


def launch_dx(dy, wt, where, shape, window, scale=1.0, rows=None, blocks=None):
    """dx of shape `shape`, (N, H, W, C), from dy (N P, O)."""
    work = _Work("implicit dx", shape, wt.shape, window, rows, blocks, dy=dy, wt=wt, where=where)
    if not work.planned:
        return _launch(DX, work, dy, wt, empty_cuda(tuple(shape)), where, scale=scale)
    packed = empty_cuda((work.groups, work.kept_rows, work.kept_cols))
    return launch_col2im(_launch(PATCHES, work, dy, wt, packed, where), shape, window, scale, rows, blocks)


LEAST_ROWS = 16 * DEPTH  # of A, for one part of dw; not tuned on a device


def launch_dw(x, dy, where, window, groups=1, scale=1.0, rows=None, blocks=None, parts=None):
    """(dwt (K, O), db (O,)), K = KH KW C / groups; db sums all rows of dz, or the listed ones. The rows are divided into n =
    `parts` parts, by default enough to fill the device.
    """
    depth, outs = window.kernel[0] * window.kernel[1] * (x.shape[3] // groups), dy.shape[1]
    work = _Work("implicit dw", x.shape, (depth, outs), window, rows, blocks, x=x, dy=dy, where=where)
    count = work.kept_rows * work.kept_cols // max(depth, 1)
    if parts is None:
        tiles = ceil_div(depth, TILE) * ceil_div(work.own_outs, TILE) * groups
        parts = max(min(2 * multiprocessors() // max(tiles, 1), count // LEAST_ROWS), 1)  # two blocks each, as in `gemm_block`
    dwt = empty_cuda((depth, outs))
    if parts == 1:
        _launch(DW, work, x, dy, dwt, where, scale=scale)
    else:
        terms = _launch(DW, work, x, dy, empty_cuda((parts, depth * outs)), where, parts=parts)
        add_parts(terms, dwt, scale)
    return dwt, row_sums(dy, where, rows, work.kept_rows)


def add_parts(terms, out, scale=1.0):
    """out = scale times the sum of the rows of `terms`, in order."""
    launch(_sums()[1], blocks_for(out.size), THREADS, terms, flat(out), scale)


def row_sums(dy, where, rows, count):
    """db[o] = sum_r dz[r, o] over `count` rows: all, or those that are listed."""
    parts, db = max(ceil_div(count, LEAST_ROWS), 1), empty_cuda((dy.shape[1],))
    terms = empty_cuda((parts, db.size))
    launch(
        _sums()[0],
        (ceil_div(db.size, ACROSS), parts),
        (ACROSS, DOWN),
        dy,
        dy if where is None else where,
        empty_cuda((1,), INT32) if rows is None else rows,
        terms,
        count,
        rows is not None,
        where is not None,
    )
    add_parts(terms, db)
    return db
