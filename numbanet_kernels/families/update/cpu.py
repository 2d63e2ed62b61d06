"""Updates on the CPU."""

from __future__ import annotations

import math

import numpy as np

from ...host import threads
from ...layouts.packed import Into, Packing
from ...runtime.declare import host_function, host_kernel
from ...runtime.expect import expect
from ...runtime.memory import empty_cpu, full_cpu
from .family import NUMBERS
from .lazy_sgd import flushed, make_skipped
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
        for c in range(spread.size):
            spread[c] = 0
    if row_class >= 0:
        row, columns, last = g[row_index], cols[row_class], np.uint64(spread.size - 1)
        for k in range(columns.size):
            place = np.uint64(columns[k])
            spread[place if place < last else last] = row[k]
    return row_class


@host_function
def _step(row, velocity, gradient, lr, momentum, nesterov, decay):
    """Make an SGD step for a part of a row."""
    for c in range(row.size):
        slope = gradient[c] + decay * row[c]
        velocity[c] = flushed(momentum * velocity[c] + slope)
        row[c] -= lr * (slope + momentum * velocity[c] if nesterov else velocity[c])


@host_function
def _copy(row, out):
    for c in range(row.size):
        out[c] = row[c]


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], i4[::1], i4[::1], i4[:, ::1], f4[::1], f4, b1, f4, i8, i8)")
def _sgd(w, v, g, spread, row_pos, row_class, cols, rates, momentum, nesterov, decay, first, stop):
    """Make an SGD step for the rows first … stop - 1, without lazy blocks. The gradient is packed if the buffer `spread` has
    elements.
    """
    lr, packed, spread_class = rates[0], spread.size > 0, np.int64(-2)  # of no class yet
    for r in range(first, stop):
        row, velocity = w[r], v[r]
        if packed:
            spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
        gradient = spread if packed else g[r]
        _step(row, velocity, gradient, lr, momentum, nesterov, decay)


@host_function
def _due(lag, after, current, wanted, due):
    """Write runs of adjacent blocks to update, of a row of blocks, to `due`, and return their number. Run k has the blocks
    due[k, 0] … due[k, 1] - 1, which all make the same step. Other blocks skip a step more.
    """
    count = 0
    for b in range(lag.size):
        after[b] = lag[b] + 1
        if current[b] or wanted[b]:
            after[b] = 0
            alike = count > 0 and due[count - 1, 1] == b and current[b] == current[b - 1] and wanted[b] == wanted[b - 1]
            if alike and (current[b] or lag[b] == lag[b - 1]):
                due[count - 1, 1] = b + 1
            else:
                due[count, 0], due[count, 1] = b, b + 1
                count += 1
    return count


@host_function
def _kept(columns, begin, end, size):
    """Return (first, one after the last, position of the first) of the kept columns among `begin` … end - 1. The position is -1
    if they are not contiguous in the packed row of `size` elements.
    """
    while begin < end and columns[begin] < 0:
        begin += 1
    while begin < end and columns[end - 1] < 0:
        end -= 1
    if begin == end:
        return begin, end, np.int64(0)
    position, last = np.int64(columns[begin]), np.int64(columns[end - 1])
    return begin, end, position if last < size and last - position == end - 1 - begin else np.int64(-1)


# If the kept columns of a run are contiguous in the packed gradient, the gradient is read in place, without the buffer. All
# this is in a function, because the loop of `_sgd_blocks` would count references, which takes longer than a short run.
@host_function
def _sgd_row(
    r,
    w,
    v,
    g,
    row_pos,
    row_class,
    cols,
    col_pos,
    numbers,
    due,
    lag,
    current,
    wanted,
    powers,
    width,
    into,
    into_rows,
    nothing,
    spread,
    spread_class,
):
    """Update the runs `due` of blocks in row r, and copy the wanted ones `into`. Return the class of the row in `spread`."""
    lr, momentum, nesterov, decay = numbers
    row, velocity, packed, written = w[r], v[r], row_pos.size > 0, 0
    has_gradient = packed and 0 <= row_pos[r] < g.shape[0] and 0 <= row_class[r] < cols.shape[0]
    is_spread = False
    for k in range(due.shape[0]):
        b, c0, c1 = due[k, 0], due[k, 0] * width, min(due[k, 1] * width, w.shape[1])
        if current[b]:
            gradient, first, last = nothing, c1, c1
            if not packed:
                gradient, first = g[r, c0:c1], c0
            elif has_gradient:
                first, last, position = _kept(col_pos[row_class[r]], c0, c1, g.shape[1])
                if position >= 0:
                    gradient = g[row_pos[r], position : position + last - first]
                else:
                    if not is_spread:
                        spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
                        is_spread = True
                    gradient = spread[first:last]
            if c0 < first:
                _step(row[c0:first], velocity[c0:first], nothing, lr, momentum, nesterov, decay)
            _step(row[first:last], velocity[first:last], gradient, lr, momentum, nesterov, decay)
            if last < c1:
                _step(row[last:c1], velocity[last:c1], nothing, lr, momentum, nesterov, decay)
        else:
            make_skipped(row[c0:c1], velocity[c0:c1], powers[max(min(lag[b] + 1, powers.shape[0] - 1), 0)])
        size = (due[k, 1] - b) * width
        if wanted[b] and written + size <= into.shape[1] and 0 <= into_rows[r] < into.shape[0]:
            _copy(row[c0:c1], into[into_rows[r], written : written + c1 - c0])
            written += size
    return spread_class


AT_ONCE = 64  # threads take turns of so many rows: a window is often in one half of a weight, a pattern in every second row


@host_kernel(
    "void(f4[:, ::1], f4[:, ::1], f4[:, ::1], i4[::1], i4[::1], i4[:, ::1], i4[:, ::1], f4[::1], f4, b1, f4,"
    " i4[:, ::1], i4[:, ::1], b1[:, ::1], b1[:, ::1], f4[:, ::1], i8, i8, f4[:, ::1], i8[::1], i8, i8)"
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
    thread,
    threads,
):
    """Make an SGD step for current blocks, with the gradient, and all skipped steps for blocks that are only wanted; this
    thread updates its share of the rows.
    """
    together = max(AT_ONCE // height, 1)
    nothing, spread = np.zeros(w.shape[1], np.float32), np.zeros(w.shape[1] + 1, np.float32)
    spread_class, due = np.int64(-1), np.empty((lag.shape[1], 2), np.int64)
    for u in range(lag.shape[0]):
        count = 0 if u // together % threads != thread else _due(lag[u], after[u], current[u], wanted[u], due)
        for r in range(u * height, min((u + 1) * height, w.shape[0]) if count else 0):
            spread_class = _sgd_row(
                r,
                w,
                v,
                g,
                row_pos,
                row_class,
                cols,
                col_pos,
                (rates[0], momentum, nesterov, decay),
                due[:count],
                lag[u],
                current[u],
                wanted[u],
                powers,
                width,
                into,
                into_rows,
                nothing,
                spread,
                spread_class,
            )


_NO_INTO = Into(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
# arguments that are not read if the gradient is dense
_ALL = Packing(*(np.zeros(0, np.int32),) * 2, *(np.zeros((1, 0), np.int32),) * 2)
_NO_SPREAD = np.zeros(0, np.float32)


def _share_rows(update, arrays, g, packing, numbers):
    """Update the rows of a weight and of its state on all threads, without lazy blocks; a vector is divided by elements."""
    row_pos, row_class, cols, _ = packing or _ALL
    height, width = arrays[0].shape
    vector = packing is None and height == 1

    def rows(first, stop):
        spread = _NO_SPREAD if packing is None else empty_cpu((width + 1,))
        update(*arrays, g, spread, row_pos, row_class, cols, *numbers, first, stop)

    if not threads.worthwhile(arrays[0].size):
        rows(0, height)
        return

    def work(part):
        span = part.of(width if vector else height)
        if vector:
            update(*(array[:, span] for array in (*arrays, g)), _NO_SPREAD, row_pos, row_class, cols, *numbers, 0, 1)
        else:
            rows(span.start, span.stop)

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
        _sgd_blocks(w, v, g, row_pos, row_class, cols, col_pos, *numbers, *states, powers, *block, packed, into_rows, *part)

    threads.share(work, w.size)


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], i4[::1], i4[::1], i4[:, ::1], f4[::1], i8, i8)")
def _adam(w, m, s, g, spread, row_pos, row_class, cols, numbers, first, stop):
    """Make an Adam step for the rows first … stop - 1; `spread` is that of `_sgd`."""
    lr, beta1, beta2, eps = numbers[0], numbers[1], numbers[2], numbers[3]
    correct1, correct2, decay, left = numbers[4], numbers[5], numbers[6], numbers[7]
    new1, new2 = numbers[8], numbers[9]  # 1 - beta1 and 1 - beta2, which float32 betas near 1 do not give
    packed, spread_class = spread.size > 0, np.int64(-2)
    for r in range(first, stop):
        if packed:
            spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
        gradient = spread if packed else g[r]
        for c in range(w.shape[1]):
            d = gradient[c] + decay * w[r, c]
            m[r, c] = flushed(beta1 * m[r, c] + new1 * d)
            s[r, c] = flushed(beta2 * s[r, c] + new2 * d * d)
            w[r, c] = left * w[r, c] - lr * (m[r, c] * correct1) / (math.sqrt(s[r, c] * correct2) + eps)


def adam_cpu(updates, numbers):
    """w -= lr m' / (sqrt(s') + eps) with bias-corrected m' and s', in place"""
    expect("adam (cpu)", numbers=(numbers, (NUMBERS,)))
    for update in updates:
        check_update("adam (cpu)", update)
    for *arrays, g, packing in updates:
        _share_rows(_adam, arrays, g, packing, (numbers,))
