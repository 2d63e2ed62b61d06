"""`ell` on the CPU."""

from __future__ import annotations

import numpy as np

from ...host import threads
from ...host.simd import WIDTH, aligned
from ...layouts.slabs import LANES, ROWS
from ...runtime.launch import ceil_div
from .cpu_loops import moves_of, multiply, spread_out
from .family import check, check_samples


def _within(op, name, indices, limit):
    """Raise ValueError unless all indices are from 0 to limit - 1."""
    if indices.size and not (0 <= indices.min() and indices.max() < limit):
        raise ValueError(f"{op}: {name} must be from 0 to {limit - 1}, not {indices.min()} to {indices.max()}")


def empty_slabs_cpu(slabs, neurons):
    """Return an uninitialised array (slabs, neurons, LANES) for activations."""
    return aligned(slabs, neurons, LANES)


def _divided(part, slabs, groups, moved):
    """Return the work of a thread as (first slab, end of slabs, first group, end of groups). A thread computes all row groups
    of some slabs; but if slabs are few and samples are not moved, it computes some row groups of all slabs.
    """
    if moved or slabs >= 4 * part.count:
        return part.of(slabs).start, part.of(slabs).stop, 0, groups
    return 0, slabs, part.of(groups).start, part.of(groups).stop


def samples_together_cpu():
    """Return the number of adjacent samples that are computed together: if one of them is alive, all of them are computed."""
    return WIDTH


def ell_cpu(x, indices, values, bias, ceiling, lanes=None, alive=None, rows=None, out=None):
    """y = min(max(W x + bias, 0), ceiling) for the samples that `lanes` or `alive` select; returns (y, live)

    live[n] is 0 if all values of sample n of y are 0, else 1.
    """
    op = "ell (cpu)"
    count, inputs = check(op, x, indices, values, bias, lanes, alive, rows, out), x.shape[1]
    total, depth = indices.shape
    order, groups = rows or (np.arange(total, dtype=np.int32), 0)
    _within(op, "indices", indices, inputs)
    _within(op, "rows", order, total)
    slabs = ceil_div(count, LANES)
    y = empty_slabs_cpu(slabs, total) if out is None else out
    marks = np.zeros(slabs * LANES, np.int32)
    marks[:count] = 1 if alive is None else alive
    moves, starts = np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
    if lanes is not None and count:
        _within(op, "lanes", lanes, x.shape[0] * LANES)
        if (lanes[1:] <= lanes[:-1]).any():
            raise ValueError(f"{op}: lanes must increase")
        moves, starts = moves_of(lanes, inputs)
    live = []

    def work(part):
        not_zero, room = np.zeros(slabs * LANES, np.int32), aligned((inputs + 1) * LANES if starts.size else 0)
        live.append(not_zero)
        multiply(
            x.reshape(-1),
            indices.reshape(-1),
            values.reshape(-1),
            depth,
            bias,
            ceiling,
            order,
            groups,
            marks,
            moves,
            starts,
            room,
            y.reshape(-1),
            not_zero,
            inputs,
            *_divided(part, slabs, total - (ROWS - 1) * groups, starts.size),
        )

    threads.share(work, flops=2 * count * indices.size)
    return y, np.bitwise_or.reduce(live)[:count]


def in_slabs_cpu(starts, columns, values, inputs, out=None):
    """x[s, columns[k], b] = values[k] for starts[n] <= k < starts[n + 1], where n = s LANES + b; all other values are 0"""
    op = "in_slabs (cpu)"
    x = empty_slabs_cpu(*check_samples(op, starts, columns, values, inputs, out)[:2]) if out is None else out
    check_samples(op, starts, columns, values, inputs, out)
    _within(op, "columns", columns, inputs)
    _within(op, "starts", starts, columns.size + 1)
    threads.share(lambda part: spread_out(starts, columns, values, x, part.of(len(x)).start, part.of(len(x)).stop), x.size)
    return x
