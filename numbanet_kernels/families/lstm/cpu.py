"""LSTM on the CPU: arguments and division among threads for the loops of `cpu_steps`."""

from __future__ import annotations

import numpy as np

from ...host import blas, packed_gemm, threads
from ...host.simd import WIDTH
from ...host.transpose import NO_INDICES
from ...runtime.declare import tape
from ...runtime.expect import INT32, expect
from ...runtime.memory import copy_cpu, empty_cpu, full_cpu
from .cpu_lists import add_scaled, write_places, write_starts
from .cpu_steps import add_scores, backward, copy_seen, forward
from .family import AFTER, STATE, check, check_seen, started

# bytes; if a packed weight is larger, threads divide the units, else they divide the samples and every core reads the weight
UNITS = 1 << 22
NOWHERE = np.zeros((1, 0), np.int32)


def _increasing(op, name, lists, limit):
    """Raise ValueError unless each list increases and its numbers are in 0 … limit - 1. During a recording lists are not
    checked: replays read other lists, which were checked when their plans were made.
    """
    if (
        tape.get() is None
        and lists.size
        and (lists.min() < 0 or lists.max() >= limit or (lists[..., 1:] <= lists[..., :-1]).any())
    ):
        raise ValueError(f"{op}: {name} must increase, from 0 to at most {limit - 1}")


def _places(lists, total, places=None):
    """Return an int32 array (S, total) that holds, for each time step s and each index below `total`, the position of the index
    in list s, or, if `places` (S, K) is given, the number in `places` at this position; -1 if the index is not in the list.
    """
    found = empty_cpu((len(lists), total), np.int32)
    write_places(lists, packed_gemm.all_of(lists.shape[1])[None] if places is None else places, found)
    return found


def _divided(flops, panels, samples):
    """Return (number of parts, True if parts are ranges of units, a function that calls work(part) for each part)."""
    parts, by_units = threads.parts(flops=flops), 4 * panels >= UNITS
    if parts == 1 or (samples == 1 and not by_units):
        return 1, False, lambda work: work(threads.WHOLE)
    return parts, by_units, threads.share


def _through(steps, by_units, run, loop, blocks, tiles):
    """Call loop(first step, end of steps, first block, end of blocks, first tile, end of tiles) for all parts."""
    if not by_units:
        run(lambda part: loop(0, steps, 0, blocks, part.of(tiles).start, part.of(tiles).stop))
        return
    for step in range(steps):
        run(lambda part, step=step: loop(step, step + 1, part.of(blocks).start, part.of(blocks).stop, 0, tiles))


def _add_product(z, h, w, scale, own):
    """z[:, own] += scale h w[own].T"""
    add_scaled(blas.matmul(h, w[own].T, out=empty_cpu((len(z), own.stop - own.start))), scale, z[:, own])


def lstm_cpu(z, w, h0, c0, units=None, scale=1.0, lengths=None):
    """h[t + 1] = o tanh(c[t + 1]), where c[t + 1] = f c[t] + i g; returns (h, c), each (T + 1, N, H)

    The gates i, f, g, o are computed from z[t] + scale h[t][:, units] w[:, units].T, and overwrite z.
    """
    steps, n, hidden = check("lstm (cpu)", z, w, units, lengths, h0=(h0, STATE), c0=(c0, STATE))
    h, c = (started(empty_cpu, copy_cpu, first, steps) for first in (h0, c0))
    if units is not None:
        _increasing("lstm (cpu)", "units", units, hidden)
    shared = units is None or len(units) == 1
    kept = packed_gemm.all_of(hidden) if units is None or not shared else units[0]
    rows, depth = packed_gemm.all_rows(len(kept)) if shared else packed_gemm.rows_of(units, hidden)
    place = NOWHERE if units is None else _places(units, hidden)
    once = steps == 1 and units is None  # with one time step, reading w in place takes less time than packing it
    flops = 8 * steps * n * hidden * depth
    with threads.held(flops):
        parts, by_units, run = _divided(flops, 4 * hidden * len(kept), n)
        if once:
            run(lambda part: _add_product(z[0], h[0], w, scale, part.of(4 * hidden)))
            kept, depth = NO_INDICES, 0
        panels = packed_gemm.packed_outputs(w, kept, 4, run)
        x = packed_gemm.tiles(n, packed_gemm.tile_of(n, 1 if by_units else parts), depth)

        def loop(first, stop, *blocks_and_tiles):
            forward(
                z,
                h,
                c,
                panels,
                rows,
                place,
                NO_INDICES if lengths is None else lengths,
                scale,
                x,
                first - 1,
                stop - 1,
                *blocks_and_tiles,
            )

        _through(steps + 1, by_units, run, loop, panels.shape[1], x.shape[1])
    return h, c


def lstm_grad_cpu(dy, gates, c, w, units=None, scale=1.0, lengths=None, dc=None, columns=None, threshold=0.0):
    """Return (dz, dh0, dc0), where dz (T, N, 4H) is the gradient of x W_ih^T + b.

    dz overwrites `gates`. If `columns` is given, dz (T, N, K) holds only these columns, in a new array.
    """
    op = "lstm_grad (cpu)"
    steps, n, hidden = check(
        op, gates, w, units, lengths, columns, dy=(dy, AFTER), c=(c, (len(dy) + 1, "N", "H")), dc=(dc, STATE)
    )
    dc = full_cpu(dy.shape[1:], 0.0) if dc is None else copy_cpu(dc)
    if units is not None:
        _increasing(op, "units", units, hidden)
    if columns is not None:
        _increasing(op, "columns", columns, 4 * hidden)
    own = units is not None and len(units) == 1
    outs = units[0] if own else packed_gemm.all_of(hidden)
    kept = packed_gemm.all_of(4 * hidden) if columns is None else columns
    place = NOWHERE if units is None else _places(units, hidden, None if own else units)
    starts = empty_cpu((max(-(-len(outs) // WIDTH), 1) + 1,), np.int64)
    write_starts(outs, hidden, starts)
    rows, depth = packed_gemm.all_rows(len(kept))
    column = NO_INDICES if columns is None else _places(columns[None], 4 * hidden)[0]
    dz, dh0 = gates if columns is None else empty_cpu((steps, n, len(kept))), empty_cpu((n, hidden))
    flops = 2 * steps * n * len(outs) * depth
    with threads.held(flops):
        parts, by_units, run = _divided(flops, len(outs) * len(kept), n)
        panels = packed_gemm.packed_inputs(w, kept, outs, run)
        x = packed_gemm.tiles(n, packed_gemm.tile_of(n, 1 if by_units else parts), depth)

        def loop(*ranges):
            backward(
                dy,
                gates,
                c,
                panels,
                starts,
                rows,
                place,
                NO_INDICES if lengths is None else lengths,
                scale,
                column,
                threshold,
                x,
                dz,
                dc,
                dh0,
                *ranges,
            )

        _through(steps + 1, by_units, run, loop, panels.shape[1], x.shape[1])
    return dz, dh0, dc


def lstm_scores_cpu(dy, gates, c, lengths=None):
    """scores[j] = sum_t,n |dz[t, n, j]| without recurrent gradients: dh = dy[t] and dc = dh o (1 - q^2), where q = tanh c"""
    expect(
        "lstm_scores (cpu)",
        dy=(dy, AFTER),
        gates=(gates, ("T", "N", 4 * dy.shape[-1])),
        c=(c, (len(dy) + 1, "N", "H")),
        lengths=(lengths, ("N",), INT32),
    )
    hidden = dy.shape[2]
    found = full_cpu(4 * hidden, 0.0)

    def work(part):
        own = part.of(-(-hidden // WIDTH))
        add_scores(
            dy, gates, c, NO_INDICES if lengths is None else lengths, found, own.start * WIDTH, min(own.stop * WIDTH, hidden)
        )

    threads.share(work, gates.size)
    return found


def lstm_seen_cpu(h, units):
    """y[t, n, u] = h[t, n, u] for the units u in the list of time step t, else 0"""
    check_seen("lstm_seen (cpu)", h, units)
    y = empty_cpu(h.shape)

    def work(part):
        own = part.of(len(h))
        copy_seen(h, units, y, own.start, own.stop)

    threads.share(work, h.size)
    return y
