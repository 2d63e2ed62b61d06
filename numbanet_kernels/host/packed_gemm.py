"""Packed GEMM: products of few samples with a large weight that is packed once and multiplied often, as in an LSTM.

    out[r, v] = sum_k x[k, r] panel[rows[k], v]      one panel of WIDTH outputs, up to SIZES[0] samples r

BLAS packs the weight in each product, which takes as long as the product itself if there are 20 samples. Here a panel is stored
in the order in which it is read: (rows + 1, WIDTH), where the last row is zeros. It is read once for all samples of a tile; the
sums of each sample are in one register. x is packed as (depth, samples), so that x and the panel are both read contiguously.
`rows` lists the rows of the panel that belong to the rows of x: each time step has its list, which leaves out dropped inputs.
It is padded with the index of the row of zeros to a multiple of DEPTH.
"""

from __future__ import annotations

import functools

import numba
import numpy as np
from numba import float32
from numba.extending import intrinsic

from ..runtime.declare import host_function, host_kernel
from ..runtime.memory import empty_cpu, full_cpu
from .simd import FLOATS, NUMBER, REAL, WIDTH, aligned, below, data_of, fetch, load, multiply_add, spread, store, vector_at
from .transpose import transpose_block

# numbers of samples of a tile; each sample takes one register
SIZES = (20, 16, 12, 10, 8, 4, 2, 1) if WIDTH == 16 else (12, 10, 8, 4, 2, 1)
CHAINS = 8  # smallest number of independent sums; fewer would wait for the latency of multiply-adds
DEPTH = 8  # the length of x is padded to a multiple of it
# distance of the prefetch, in rows of a panel; without prefetch, products with a large w reach 74 instead of 115 GFLOP/s
AHEAD = 128
REACH = 32  # rows of w are packed in groups of this size: one group into all panels, then the next group


def tile_of(samples, parts=1):
    """Return the number of samples per tile, one of SIZES, with which the product takes the least time if `parts` threads share
    the tiles. The time of a tile is assumed to be proportional to its samples plus 2.
    """
    return min(SIZES, key=lambda size: -(-samples // (size * parts)) * (size + 2))


def tiles(samples, size, depth):
    """Return two packed inputs of zeros, as an array (2, tiles, depth, size): one is read while the other one is written."""
    x = aligned(2, -(-samples // size), depth, size)
    return full_cpu(x.shape, 0.0, out=x)


def rows_of(lists, total):
    """Return (rows, depth) for `multiply_panel`: rows (S, depth + AHEAD), int32, are made from lists (S, K) of indices below
    `total`.

    Each list is padded to `depth`, a multiple of DEPTH, with the index of the row of zeros. AHEAD rows of the next panels
    follow, which are only prefetched.
    """
    depth = max(-(-lists.shape[1] // DEPTH), 1) * DEPTH
    rows = empty_cpu((len(lists), depth + AHEAD), np.int32)
    _list_rows(lists, total, depth, rows)
    return rows, depth


@host_kernel("void(i4[:, ::1], i8, i8, i4[:, ::1])")
def _list_rows(lists, total, depth, rows):
    for s in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            turn, position = k // depth, k % depth
            rows[s, k] = (lists[s, position] if position < lists.shape[1] else total) + turn * (total + 1)


def all_rows(total):
    """Return the result of `rows_of` for one list, which contains all `total` rows."""
    return rows_of(all_of(total)[None], total)


@functools.lru_cache(maxsize=64)
def all_of(count):
    """Return the integers 0 … count - 1 as an int32 array, which is cached and must not be changed."""
    return np.arange(count, dtype=np.int32)


# --- packing ----------------------------------------------------------------------------------------------------------
@intrinsic
def _copy_row(typing_context, source, start, target, at, count):
    """target[at:at + WIDTH] = source[start:start + count], padded with zeros; flat arrays."""

    def generate(context, builder, signature, arguments):
        source, start, target, at, count = data_of(context, builder, signature, arguments)
        store(builder, load(builder, source, start, below(builder, count)), target, at, below(builder, NUMBER(WIDTH)))
        return context.get_dummy_value()

    integer = numba.int64
    return numba.void(source, integer, target, integer, integer), generate


@host_function
def _first_run(indices):
    """Return the number of adjacent integers at the beginning of an increasing list."""
    low, high = 0, indices.size  # bisection: indices[i] - i is constant within a run
    while low < high:
        middle = (low + high) // 2
        if indices[middle] - middle == indices[0]:
            low = middle + 1
        else:
            high = middle
    return low


@host_kernel("void(f4[:, ::1], i4[::1], f4[:, :, :, ::1], i8, i8)")
def _pack_outputs(w, cols, panels, first, stop):
    """panels[g, b, k, v] = w[g O + b WIDTH + v, cols[k]] for first <= b < stop, padded with zeros; O is the rows of a group."""
    groups, depth, inner = panels.shape[0], w.shape[1], cols.size
    outs, turn = w.shape[0] // groups, _first_run(cols)
    # True if the columns are one or two runs of adjacent integers
    window = turn == inner or cols[inner - 1] - cols[turn] == inner - 1 - turn
    room = np.empty((0 if window else depth, WIDTH), np.float32)
    for b in range(first, stop):
        for g in range(groups):
            panel, n, width = panels[g, b], g * outs + b * WIDTH, min(WIDTH, outs - b * WIDTH)
            for k in range(inner if width < WIDTH else 0):
                panel[k] = 0
            if window:
                for k0, k1 in ((0, turn), (turn, inner)):
                    if k0 < k1:
                        transpose_block(w, n, n + width, cols[k0], cols[k0] + k1 - k0, panel, k0, 0, False)
            else:
                transpose_block(w, n, n + width, 0, depth, room, 0, 0, False)
                for k in range(inner):
                    _copy_row(room, cols[k] * WIDTH, panels, ((g * panels.shape[1] + b) * (inner + 1) + k) * WIDTH, width)
            panel[inner] = 0


@host_kernel("void(f4[:, ::1], i4[::1], i4[::1], f4[:, :, :, ::1], i8, i8)")
def _pack_inputs(w, rows, outs, panels, first, stop):
    """panels[0, b, k, v] = w[rows[k], outs[b WIDTH + v]] for first <= b < stop, padded with zeros."""
    inner = rows.size
    for b in range(first, stop):
        panels[0, b, inner] = 0
    for k0 in range(0, inner, REACH):
        for b in range(first, stop):
            block_outs, at = outs[b * WIDTH : (b + 1) * WIDTH], b * (inner + 1) * WIDTH
            together = block_outs.size and block_outs[block_outs.size - 1] - block_outs[0] == block_outs.size - 1
            for k in range(k0, min(k0 + REACH, inner)):
                if together:
                    _copy_row(w, rows[k] * w.shape[1] + block_outs[0], panels, at + k * WIDTH, block_outs.size)
                    continue
                target = panels[0, b, k]
                for v in range(WIDTH):
                    target[v] = w[rows[k], block_outs[v]] if v < block_outs.size else float32(0)


def _packed(loop, run, panels, *given):
    def work(part):
        span = part.of(panels.shape[1])
        loop(*given, panels, span.start, span.stop)

    run(work)
    return panels


def packed_outputs(w, cols, groups, run):
    """Return panels (groups, blocks, K + 1, WIDTH) for the product x w[:, cols].T. The rows of w are divided into `groups`
    equal groups, each of which has its own panels. run(work) calls work(part) for each part, as `threads.share` does.
    """
    return _packed(_pack_outputs, run, aligned(groups, -(-(len(w) // groups) // WIDTH), len(cols) + 1, WIDTH), w, cols)


def packed_inputs(w, rows, outs, run):
    """Return panels (1, blocks, K + 1, WIDTH) for the product x w[rows][:, outs]; run(work) is as for `packed_outputs`."""
    return _packed(_pack_inputs, run, aligned(1, max(-(-len(outs) // WIDTH), 1), len(rows) + 1, WIDTH), w, rows, outs)


# --- the product ------------------------------------------------------------------------------------------------------
def _variant(builder, size, x, panel, rows, depth, out):
    """Generate the loop of `multiply_panel` for tiles of `size` samples."""

    def row_at(at):
        row = builder.sext(builder.load(builder.gep(rows, [at])), NUMBER)
        return builder.gep(panel, [builder.mul(row, NUMBER(WIDTH))])

    sets = max(1, CHAINS // size)
    unroll = max(4, sets)
    before, loop, done = builder.block, *(builder.append_basic_block(name) for name in (f"loop{size}", f"done{size}"))
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(NUMBER)
    k.add_incoming(NUMBER(0), before)
    sums = [[builder.phi(FLOATS) for _ in range(size)] for _ in range(sets)]
    values = [list(chain) for chain in sums]
    for u in range(unroll):
        at = builder.add(k, NUMBER(u))
        vector = builder.load(builder.bitcast(row_at(at), FLOATS.as_pointer()), align=4 * WIDTH)
        first = builder.gep(x, [builder.mul(at, NUMBER(size))])
        fetch(builder, row_at(builder.add(at, NUMBER(AHEAD))))
        chain = values[u % sets]
        for r in range(size):
            factor = spread(builder, builder.load(builder.gep(first, [NUMBER(r)]))).value
            chain[r] = multiply_add(builder, vector, factor, chain[r])
    following = builder.add(k, NUMBER(unroll))
    k.add_incoming(following, loop)
    for phis, results in zip(sums, values):
        for phi, result in zip(phis, results):
            phi.add_incoming(FLOATS([REAL(0.0)] * WIDTH), before)
            phi.add_incoming(result, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, done)
    builder.position_at_end(done)
    for r in range(size):
        total = values[0][r]
        for chain in values[1:]:
            total = builder.fadd(total, chain[r])
        builder.store(total, vector_at(builder, out, NUMBER(r * WIDTH)), align=4)


@intrinsic
def multiply_panel(typing_context, x, panel, rows, out):
    """out[r, v] = sum_k x[k, r] panel[rows[k], v] over all rows k of x.

    The number of rows of x is a multiple of DEPTH, and its number of columns is one of SIZES.
    """

    def generate(context, builder, signature, arguments):
        data = data_of(context, builder, signature, arguments)
        shape = context.make_array(signature.args[0])(context, builder, arguments[0]).shape
        depth, size = (builder.extract_value(shape, axis) for axis in range(2))
        after = builder.append_basic_block("after")
        choice = builder.switch(size, after)
        for count in SIZES:
            block = builder.append_basic_block(f"size{count}")
            choice.add_case(NUMBER(count), block)
            builder.position_at_end(block)
            _variant(builder, count, *data[:3], depth, data[3])
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return numba.void(x, panel, rows, out), generate
