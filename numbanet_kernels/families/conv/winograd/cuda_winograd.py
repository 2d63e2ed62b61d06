"""Convolutions on CUDA by Winograd's filtering F(2 x 2, 3 x 3), for dw F(3 x 3, 2 x 2) (Lavin and Gray 2016, sections 4.1 and
4.2; `matrices` has the formula), in one kernel: transformed pixels and products exist in shared memory and registers only.

    winograd_filters     U = G g G^T of each filter and channel, or with reversed taps, for dx: once per call
    winograd             y = act(scale A^T [sum_c U * (B^T d B)] A + bias), act is ReLU if `relu`, else the identity
    winograd_gradient    dw = G^T [sum_tiles (A dY A^T) * (B^T d B)] G, the tiles in parts, which are added up in order

A block of 256 threads computes 32 tiles of 2 x 2 outputs by 32 filters, over 8 channels at a time (`cuda_winograd_tiles`): a
thread loads and transforms one tile of one channel while the block multiplies the previous 8 channels, and cp.async copies U.
U has a kernel of its own because otherwise each of the blocks with the same filters, one for 128 outputs, would transform them
again. It lies in the order in which blocks copy it, padded by zeros to whole blocks: 16 / 9 of the weight.

dx is y of the gradients of the outputs, with 2 - padding around them. The sums of a tile are in the same order each time, so
that results are reproducible. If a pixel is infinite or NaN, outputs of its tile that do not read the pixel may be NaN as well.
"""

from __future__ import annotations

import math

from numba import float32, int32

from ....blocks.intrinsics import commit, wait_for_all_but_one
from ....layouts.windows import Window
from ....runtime.availability import capability, multiprocessors
from ....runtime.declare import cuda, inlined, kernel, kernels
from ....runtime.launch import ceil_div, launch
from ....runtime.memory import THREADS, empty_cuda, flat
from ...elementwise import relu_grad_cuda
from ..cuda_gather import split
from ..cuda_im2col import transpose_gradient
from ..cuda_implicit_gemm import LEAST_ROWS, add_parts, row_sums
from .cuda_winograd_tiles import (
    ELEMENTS,
    INNER,
    LINE,
    PLANE,
    SIDE,
    copy_plane,
    exchange_of,
    multiply_of,
    pixels_of,
    places_of,
    series_of,
    thread,
    transform_of,
    zeros,
)

# Where it is chosen, by what the PTX machine counted of it and of the direct kernels; no card has timed them. With 64 channels
# and filters and 4 images of 8 x 8 pixels it issues 0.44 of their instructions forward and 0.54 backward, and touches 0.93 and
# 0.88 of their sectors. From 8 to 64 channels these are 0.63 and 0.93 forward, from 4 to 64 they are 0.97 and 1.38
CHANNELS = 8  # least number of channels, and of filters
# Largest share of the multiplications of the definition. With 64 channels it touches 1.17 of the sectors on images of 3 x 3, of
# which the share is 64 / 81, and 2.16 on single pixels, 16 / 9
SHARE = 2 / 3
# There must be SIDE tiles: 16 tiles of a block are half padding, and take 0.71 of the instructions and 1.41 of the sectors
MOST = SIDE * 65535  # channels or filters: a grid has no more blocks along its second axis

SIZES = "UniTuple(i4, 11)"


# --- kernels ----------------------------------------------------------------------------------------------------------
@kernels("conv")
def _filters():
    """Return two kernels, which transform the filters of w, and those of the convolution that computes dx."""

    def declared(turned):
        lines, length = (INNER, 9 * SIDE) if turned else (SIDE, 9 * INNER)  # of the part of w that a block reads
        pitch, room = length + 1, lines * (length + 1)
        (load, _), (_, store), transform = series_of(9), series_of(ELEMENTS), transform_of("G")

        @kernel("void(f4[:, ::1], f4[::1], i4)")
        def winograd_filters(w, u, stages):
            """Transform 32 filters by 8 channels of w (O, C 9); if turned, 8 filters by 32 channels."""
            tile, t = cuda.shared.array(room, float32), int32(cuda.threadIdx.x)
            lane, warp = t & 31, t >> 5
            block, stage = split(int32(cuda.blockIdx.x), stages)
            o0, c0 = (stage * INNER, block * SIDE) if turned else (block * SIDE, stage * INNER)
            for i in range(warp, lines, THREADS // SIDE):
                for k in range(lane, length, SIDE):
                    inside = o0 + i < w.shape[0] and c0 * 9 + k < w.shape[1]
                    tile[i * pitch + k] = w[o0 + i, c0 * 9 + k] if inside else float32(0)
            cuda.syncthreads()
            first = warp * pitch + lane * 9 + 8 if turned else lane * pitch + warp * 9
            taps = load(tile, int32(first), int32(-1 if turned else 1))
            store(u, int32(cuda.blockIdx.x * PLANE + warp * LINE + lane), int32(SIDE), transform(taps))

        return winograd_filters

    return declared(False), declared(True)


def _finishing():
    """Return the device function that writes an output; the factory makes its own (`inlined`)."""

    @inlined
    def finish(y, at, there, value, bias, scale, relu):
        """y[at] = act(scale value + bias), if it is there. NaN stays NaN."""
        if there:
            value = scale * value + bias
            y[at] = float32(0) if relu and value < float32(0) else value

    return finish


@kernels("conv")
def _forward():
    """Return the kernel that computes y, or dx."""
    (_, store), pixels, place, goal = series_of(ELEMENTS), pixels_of(4), places_of(4), places_of(2)
    of_pixels, of_sums, multiply, finish = transform_of("BT"), transform_of("AT"), multiply_of(True), _finishing()
    (corner, share, row_of), room_floats = exchange_of(), 3 * PLANE

    @kernel(f"void(f4[::1], f4[::1], f4[::1], f4[::1], {SIZES}, b1, b1, f4)", least=(8, 0), bounds=(THREADS, 2))
    def winograd(x, u, bias, y, sizes, biased, relu, scale):
        """Compute 32 tiles by 32 filters: the transformed pixels are in a plane of shared memory, U in two, in turn."""
        tiles, down, across, height, width, above, beside, channels, grid_height, grid_width, outs = sizes
        room, t = cuda.shared.array(room_floats, float32, 16), int32(cuda.threadIdx.x)
        lane, warp, stages = t & 31, t >> 5, int32((channels + INNER - 1) // INNER)
        # adjacent threads load adjacent channels, and four tiles
        tile0, c = int32(cuda.blockIdx.x * SIDE), lane & 7
        at, mask = place(int32(tile0 + 4 * warp + (lane >> 3)), tiles, (down, across), (height, width), (above, beside))
        at, line, to = int32(at * channels + c), int32(width * channels), int32(c * LINE + 4 * (warp ^ c) + (lane >> 3))
        source = int32(cuda.blockIdx.y) * stages * PLANE + 4 * t
        d, sums = pixels(x, at, line, channels, mask if c < channels else int32(0)), zeros()
        copy_plane(room, int32(PLANE + 4 * t), u, source)
        commit()
        for stage in range(stages):
            store(room, to, int32(SIDE), of_pixels(d))
            if stage + 1 < stages:
                at, c, source = int32(at + INNER), int32(c + INNER), int32(source + PLANE)
                copy_plane(room, int32(PLANE + ((stage + 1) & 1) * PLANE + 4 * t), u, source)
                d = pixels(x, at, line, channels, mask if c < channels else int32(0))
            commit()
            wait_for_all_but_one()
            cuda.syncthreads()
            row, column = corner(thread())
            sums = multiply(sums, room, row, int32(PLANE + (stage & 1) * PLANE + column))
            cuda.syncthreads()
        t = thread()
        o = int32(cuda.blockIdx.y * SIDE + (t & 31))
        added = bias[o] if biased and o < outs else float32(0)
        for turn in range(4):
            y00, y01, y10, y11 = of_sums(share(room, sums, int32(turn), t))
            tile, grid = int32(tile0 + row_of(turn, t)), (grid_height, grid_width)
            at, mask = goal(tile, tiles, (down, across), grid, (int32(0), int32(0)))
            at, mask = int32(at * outs + o), mask if o < outs else int32(0)
            finish(y, at, mask & 1 != 0, y00, added, scale, relu)
            finish(y, at + outs, mask & 2 != 0, y01, added, scale, relu)
            finish(y, at + grid_width * outs, mask & 4 != 0, y10, added, scale, relu)
            finish(y, at + grid_width * outs + outs, mask & 8 != 0, y11, added, scale, relu)

    return winograd


@kernels("conv")
def _gradient():
    """Return the kernel that computes dw."""
    (_, store), (_, store_taps), (corner, share, row_of) = series_of(ELEMENTS), series_of(9), exchange_of()
    pixels, slopes, place, source = pixels_of(4), pixels_of(2), places_of(4), places_of(2)
    of_pixels, of_slopes, of_sums = transform_of("BT"), transform_of("A"), transform_of("GT")
    multiply, room_floats = multiply_of(False), 2 * PLANE

    @inlined
    def load(x, dy, first, end, sizes):
        """Return (a tile of pixels of a channel, one of gradients of a filter); 0 from tile `end` on and beyond channels."""
        _, down, across, height, width, above, beside, channels, grid_height, grid_width, outs = sizes
        tile, lane = int32(first + (thread() >> 5)), thread() & 31
        c, o = int32(cuda.blockIdx.x * SIDE + lane), int32(cuda.blockIdx.y * SIDE + lane)
        at, mask = place(tile, end, (down, across), (height, width), (above, beside))
        d = pixels(x, int32(at * channels + c), int32(width * channels), channels, mask if c < channels else int32(0))
        at, mask = source(tile, end, (down, across), (grid_height, grid_width), (int32(0), int32(0)))
        return d, slopes(dy, int32(at * outs + o), int32(grid_width * outs), outs, mask if o < outs else int32(0))

    @kernel(f"void(f4[::1], f4[::1], f4[::1], {SIZES}, i4)", least=(8, 0), bounds=(THREADS, 2))
    def winograd_gradient(x, dy, terms, sizes, span):
        """Compute terms (parts, 9 C, O) for 32 channels by 32 filters, of `span` tiles, 8 at a time; a warp loads a tile."""
        channels, outs, room = sizes[7], sizes[10], cuda.shared.array(room_floats, float32, 16)
        first, end = int32(cuda.blockIdx.z * span), min(int32(cuda.blockIdx.z * span + span), sizes[0])
        t, sums, (d, g) = thread(), zeros(), load(x, dy, first, end, sizes)
        to, (row, column) = int32((t >> 5) * LINE + (t & 31)), corner(t)
        while first < end:
            store(room, to, int32(SIDE), of_pixels(d))
            store(room, int32(PLANE + to), int32(SIDE), of_slopes(g))
            cuda.syncthreads()
            first = int32(first + INNER)
            d, g = load(x, dy, first, end, sizes)
            sums = multiply(sums, room, row, int32(PLANE + column))
            cuda.syncthreads()
        t = thread()
        o = int32(cuda.blockIdx.y * SIDE + (t & 31))
        for turn in range(4):
            found, c = of_sums(share(room, sums, int32(turn), t)), int32(cuda.blockIdx.x * SIDE + row_of(turn, t))
            if c < channels and o < outs:
                at = int32((cuda.blockIdx.z * 9 * channels + c) * outs + o)
                store_taps(terms, at, int32(channels * outs), found)

    return winograd_gradient


# --- launchers --------------------------------------------------------------------------------------------------------
def _convolve(x, w, turned, padding, positions, bias, relu, scale):
    """y (N, *positions, O) from x (N, H, W, C); if `turned`, w is (C, O, 3, 3), and its taps are reversed."""
    outs, channels = w.shape[1::-1] if turned else w.shape[:2]
    blocks, stages = ceil_div(outs, SIDE), ceil_div(channels, INNER)
    u, y = empty_cuda((blocks * stages * PLANE,)), empty_cuda((x.shape[0], *positions, outs))
    launch(_filters()[turned], blocks * stages, THREADS, w.reshape(len(w), 9 * w.shape[1]), u, stages)
    down, across = (ceil_div(n, 2) for n in positions)
    tiles = x.shape[0] * down * across
    sizes = tiles, down, across, *x.shape[1:3], *padding, channels, *positions, outs
    grid = ceil_div(tiles, SIDE), blocks
    launch(_forward(), grid, THREADS, flat(x), u, u if bias is None else bias, flat(y), sizes, bias is not None, relu, scale)
    return y


def _weight_gradient(dz, x, padding, scale):
    """dw (O, C, 3, 3)"""
    (images, *positions, outs), channels = dz.shape, x.shape[3]
    down, across = (ceil_div(n, 2) for n in positions)
    tiles, grid = images * down * across, (ceil_div(channels, SIDE), ceil_div(outs, SIDE))
    most = 2 * multiprocessors() // math.prod(grid)  # two blocks each, as in `gemm_block`
    parts = max(min(most, 4 * tiles // LEAST_ROWS), 1)
    span = ceil_div(ceil_div(tiles, parts), INNER) * INNER
    parts, dwt = ceil_div(tiles, span), empty_cuda((9 * channels, outs))
    terms = empty_cuda((parts, dwt.size))
    sizes = tiles, down, across, *x.shape[1:3], *padding, channels, *positions, outs
    launch(_gradient(), (*grid, parts), THREADS, flat(x), flat(dz), flat(terms), sizes, span)
    add_parts(terms, dwt, scale)
    return transpose_gradient(dwt, (outs, channels, 3, 3))


def suits(window, images, outs):
    """True if convolving images (N, H, W, C) so takes fewer instructions than the direct kernels, and touches about as much
    memory or less. If the arrays are too large for 32 bits, the direct kernels say so.
    """
    (count, height, width, channels), positions = images, window.positions(*images[1:3])
    if window._replace(padding=(0, 0)) != Window((3, 3)) or max(window.padding) > 2 or not min(positions):
        return False
    if min(channels, outs) < CHANNELS or max(channels, outs) > MOST or capability() < (8, 0):
        return False
    own = math.prod(ceil_div(n, 2) for n in positions)  # tiles of an image
    floats = max(count * height * width * channels, count * math.prod(positions) * outs, 16 * (channels + SIDE) * (outs + SIDE))
    fewer = ELEMENTS * own <= SHARE * 9 * math.prod(positions)
    return fewer and count * own >= SIDE and floats < 1 << 31


def convolved(x, w, window, positions, bias, relu, scale):
    """y of conv2d"""
    return _convolve(x, w, False, window.padding, positions, bias, relu, scale)


def gradients(dy, where, x, w, window, scale, wants_dx):
    """(dx or None, dw, db) of conv2d_grad. dz is stored: the kernels read each of its elements several times."""
    dz, dx = dy if where is None else relu_grad_cuda(dy, where), None
    if wants_dx:
        behind = tuple(2 - before for before in window.padding)
        dx = _convolve(dz, w, True, behind, x.shape[1:3], None, False, scale)
    rows = math.prod(dz.shape[:3])
    db = row_sums(dz.reshape((rows, dz.shape[3])), None, None, rows)
    return dx, _weight_gradient(dz, x, window.padding, scale), db
