"""Updates on the CPU."""

from __future__ import annotations

import math

import numpy as np

from ...host import threads
from ...layouts.packed import Into, Packing
from ...runtime.declare import host_function, host_kernel
from ...runtime.expect import expect
from ...runtime.memory import full_cpu
from .family import NUMBERS
from .packed import check_update


# A packed gradient row is scattered into a buffer that stays in the L1 cache. The buffer has one element more than a row: the
# entries -1 of `cols`, and any out of range, go there. Loops run over slices, because indices of a slice are known not to be
# negative, so that LLVM vectorises.
@host_function
def _spread(spread, spread_class, g, cols, row_index, row_class):
    """Scatter row `row_index` of g to the buffer `spread`, which holds a row of the class `spread_class`. Return the class of
    the row that the buffer holds now, or -1 if the row has no gradient.
    """
    row_class = row_class if 0 <= row_index < g.shape[0] and row_class < cols.shape[0] else -1
    if row_class != spread_class:
        spread[:] = 0
    if row_class >= 0:
        row, columns = g[row_index], cols[row_class]
        for k in range(columns.size):
            spread[min(np.uint64(columns[k]), np.uint64(spread.size - 1))] = row[k]
    return row_class


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], f4[::1], f4, b1, f4, i8, i8)")
def _sgd(w, v, g, packed, row_pos, row_class, cols, rates, momentum, nesterov, decay, first, stop):
    """Make an SGD step for the rows first … stop - 1, without lazy blocks."""
    lr = rates[0]
    spread, spread_class = np.zeros(w.shape[1] + 1, np.float32), np.int64(-1)
    for r in range(first, stop):
        row, velocity = w[r], v[r]
        if packed:
            spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
        gradient = spread if packed else g[r]
        for c in range(row.size):
            slope = gradient[c] + decay * row[c]
            velocity[c] = momentum * velocity[c] + slope
            row[c] -= lr * (slope + momentum * velocity[c] if nesterov else velocity[c])


@host_function
def _due(lag, after, current, wanted, due):
    """Write the blocks to update, of a row of blocks, to `due`, and return their number; other blocks skip a step more."""
    count = 0
    for b in range(lag.size):
        after[b] = lag[b] + 1
        if current[b] or wanted[b]:
            after[b], due[count] = 0, b
            count += 1
    return count


# If the kept columns of a block are contiguous in the packed gradient, the gradient is read in place, without the buffer.
@host_kernel(
    "void(f4[:, ::1], f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], i4[:, ::1], f4[::1], f4, b1, f4,"
    " i4[:, ::1], i4[:, ::1], b1[:, ::1], b1[:, ::1], f4[:, ::1], i8, i8, f4[:, ::1], i8[::1])"
)
def _sgd_blocks(
    w,
    v,
    g,
    row_pos,
    row_class,
    cols,
    col_pos,
    rates,
    momentum,
    nesterov,
    decay,
    lag,
    after,
    current,
    wanted,
    powers,
    height,
    width,
    into,
    into_rows,
):
    """Make an SGD step for current blocks, with the gradient, and all skipped steps for blocks that are only wanted."""
    lr, packed = rates[0], row_pos.size > 0
    nothing, spread = np.zeros(w.shape[1], np.float32), np.zeros(w.shape[1] + 1, np.float32)
    spread_class, due = np.int64(-1), np.empty(lag.shape[1], np.int64)
    for r in range(w.shape[0]):
        u, is_spread = r // height, False
        if r % height == 0:
            count = _due(lag[u], after[u], current[u], wanted[u], due)
        row, velocity, packed_row, columns, written = w[r], v[r], nothing, cols[0], 0
        has_gradient = packed and 0 <= row_pos[r] < g.shape[0] and 0 <= row_class[r] < cols.shape[0]
        if has_gradient:
            packed_row, columns = g[row_pos[r]], col_pos[row_class[r]]
        for b in due[:count]:
            c0, c1 = np.uint64(b * width), np.uint64(min((b + 1) * width, w.shape[1]))
            if current[u, b]:
                gradient, offset = nothing if packed else g[r], np.uint64(0)
                if has_gradient:
                    first, last = columns[c0], columns[c1 - np.uint64(1)]
                    if first >= 0 and last < packed_row.size and np.uint64(last - first) == c1 - c0 - np.uint64(1):
                        gradient, offset = packed_row, c0 - np.uint64(first)
                    else:
                        if not is_spread:
                            spread_class, is_spread = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r]), True
                        gradient = spread
                for c in range(c0, c1):
                    slope = gradient[c - offset] + decay * row[c]
                    velocity[c] = momentum * velocity[c] + slope
                    row[c] -= lr * (slope + momentum * velocity[c] if nesterov else velocity[c])
            else:
                steps = max(min(lag[u, b] + 1, powers.shape[0] - 1), 0)
                ww, wv, vw, vv = powers[steps, 0], powers[steps, 1], powers[steps, 2], powers[steps, 3]
                for c in range(c0, c1):
                    row[c], velocity[c] = ww * row[c] + wv * velocity[c], vw * row[c] + vv * velocity[c]
            if wanted[u, b] and written + width <= into.shape[1] and 0 <= into_rows[r] < into.shape[0]:
                out = into[into_rows[r], written : written + width]
                for c in range(c0, c1):
                    out[c - c0] = row[c]
                written += width


_NO_INTO = Into(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
# arguments that are not read if the gradient is dense
_ALL = Packing(*(np.zeros(0, np.int32),) * 2, *(np.zeros((1, 0), np.int32),) * 2)


def _share_rows(update, arrays, g, packing, numbers):
    """Update the rows of a weight and of its state on all threads, without lazy blocks; a vector is divided by elements."""
    row_pos, row_class, cols, _ = packing or _ALL
    vector = packing is None and arrays[0].shape[0] == 1
    if not threads.worthwhile(arrays[0].size):
        update(*arrays, g, packing is not None, row_pos, row_class, cols, *numbers, 0, arrays[0].shape[0])
        return

    def work(part):
        span = part.of(arrays[0].shape[1 if vector else 0])
        if vector:
            update(*(array[:, span] for array in (*arrays, g)), False, row_pos, row_class, cols, *numbers, 0, 1)
        else:
            update(*arrays, g, packing is not None, row_pos, row_class, cols, *numbers, span.start, span.stop)

    threads.share(work, arrays[0].size)


def sgd_cpu(updates, lr, momentum=0.0, nesterov=False, decay=0.0):
    """g += decay w;  v = momentum v + g;  w -= lr v   (nesterov: w -= lr (g + momentum v)), in place"""
    for update in updates:
        check_update("sgd (cpu)", update)
    rates = full_cpu((1,), lr) if np.isscalar(lr) else lr
    for update in updates:
        _sgd_one(*update, (rates, momentum, nesterov, decay))


def _sgd_one(w, v, g, packing, lazy, into, numbers):
    if lazy is None:
        _share_rows(_sgd, (w, v), g, packing, numbers)
        return
    row_pos, row_class, cols, col_pos = packing or _ALL
    *states, powers, block = lazy
    packed, into_rows = into or _NO_INTO

    def work(part):
        units = part.of(lazy.lag.shape[0])
        rows = slice(units.start * block[0], units.stop * block[0])
        _sgd_blocks(
            w[rows],
            v[rows],
            g[rows] if packing is None else g,
            row_pos[rows],
            row_class[rows],
            cols,
            col_pos,
            *numbers,
            *(state[units] for state in states),
            powers,
            *block,
            packed,
            into_rows[rows],
        )

    threads.share(work, w.size)


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], f4[::1], i8, i8)")
def _adam(w, m, s, g, packed, row_pos, row_class, cols, numbers, first, stop):
    """Make an Adam step for the rows first … stop - 1."""
    lr, beta1, beta2, eps = numbers[0], numbers[1], numbers[2], numbers[3]
    correct1, correct2, decay, left = numbers[4], numbers[5], numbers[6], numbers[7]
    new1, new2 = numbers[8], numbers[9]  # 1 - beta1 and 1 - beta2, which float32 betas near 1 do not give
    spread, spread_class = np.zeros(w.shape[1] + 1, np.float32), np.int64(-1)
    for r in range(first, stop):
        if packed:
            spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
        gradient = spread if packed else g[r]
        for c in range(w.shape[1]):
            d = gradient[c] + decay * w[r, c]
            m[r, c] = beta1 * m[r, c] + new1 * d
            s[r, c] = beta2 * s[r, c] + new2 * d * d
            w[r, c] = left * w[r, c] - lr * (m[r, c] * correct1) / (math.sqrt(s[r, c] * correct2) + eps)


def adam_cpu(updates, numbers):
    """w -= lr m' / (sqrt(s') + eps) with bias-corrected m' and s', in place"""
    expect("adam (cpu)", numbers=(numbers, (NUMBERS,)))
    for update in updates:
        check_update("adam (cpu)", update)
    for *arrays, g, packing in updates:
        _share_rows(_adam, arrays, g, packing, (numbers,))
