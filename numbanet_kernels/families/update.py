"""Parameter updates in place, each fused into one pass over the weight; g is the gradient, w the weight, t the step (from 1):

    sgd    g += decay w;  v = momentum v + g;  w -= lr v        (nesterov: w -= lr (g + momentum v))
    adam   g += decay w;  m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) g²;
           w -= lr (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)
           decoupled: no decay in g; w *= 1 - lr decay before the step (AdamW; Loshchilov & Hutter 2019, algorithm 2)

as PyTorch computes them. w, v, m, s are (R, C). The gradient is dense (R, C), or packed (`packed`).

With late, a `layouts.packed.Late`, some blocks of w are left as they are, and others catch up: the family `late` says how.
With into, on the CPU, the wanted blocks of row r, in order, are written to into.packed[into.places[r]] as well, as far as there
is room.

sgd and adam take several weights at once: a list of `SGDUpdate` or `AdamUpdate`; all that are late have the same powers. On
CUDA up to TOGETHER of them are one launch. Numbers that change from step to step lie in arrays of the device, so that what is
recorded can be done with others: sgd takes lr as an array (1,), too, and adam takes what `adam_numbers` gives.

adam_numbers    (lr, b1, b2, eps, 1 / (1 - b1^t), 1 / (1 - b2^t), what of w is added to g, what of w is left)
"""
from __future__ import annotations

import math

import numpy as np
from numba import float32, int32

from ..blocks.intrinsics import chosen, owner
from ..host import threads
from ..layouts.packed import AdamUpdate, Into, Packing, SGDUpdate
from ..runtime.arrays import device_cache, to_device
from ..runtime.declare import cuda, host_function, host_kernel, kernel, kernels
from ..runtime.expect import expect
from ..runtime.launch import ceil_div, launch
from ..runtime.memory import THREADS, copy_cuda, empty_cpu, empty_cuda, flat, full_cpu, output
from .late import late_example
from .packed import check_update, packed_example, packing, unpack_gradient_reference, unread

NUMBERS = 8  # what adam takes besides arrays


# --- reference --------------------------------------------------------------------------------------------------------
def sgd_reference(w, v, g, lr, momentum=0.0, nesterov=False, decay=0.0, kept=None):
    """(w, v) after the step, float64."""
    w, v = np.float64(w), np.float64(v)
    g = unpack_gradient_reference(g, kept, w.shape) + decay * w
    v = momentum * v + g
    return w - lr * (g + momentum * v if nesterov else v), v


def adam_reference(w, m, s, g, lr, beta1, beta2, eps, step, decay=0.0, decoupled=False, kept=None):
    """(w, m, s) after the step, float64."""
    w, m, s = np.float64(w), np.float64(m), np.float64(s)
    g = unpack_gradient_reference(g, kept, w.shape) + (0 if decoupled else decay * w)
    w = w * (1 - lr * decay) if decoupled else w
    m, s = beta1 * m + (1 - beta1) * g, beta2 * s + (1 - beta2) * g * g
    return w - lr * (m / (1 - beta1**step)) / (np.sqrt(s / (1 - beta2**step)) + eps), m, s


def sgd_late_reference(w, v, g, lr, momentum, nesterov, decay, kept, late):
    """(w, v, after) after the step, float64: with g where a block is held, all it missed without g where it is wanted."""
    behind, (height, width) = late.behind, late.block
    new_w, new_v, after = np.array(w, np.float64), np.array(v, np.float64), np.array(behind) + 1
    g = unpack_gradient_reference(g, kept, w.shape)
    for u, b in np.ndindex(*behind.shape):
        own = slice(u * height, (u + 1) * height), slice(b * width, (b + 1) * width)
        missed = behind[u, b]
        if late.held[u, b] or late.wanted[u, b]:
            for gradient in [np.zeros_like(g[own])] * (missed + 1) if missed else [g[own]]:
                new_w[own], new_v[own] = sgd_reference(new_w[own], new_v[own], gradient, lr, momentum, nesterov, decay)
            after[u, b] = 0
    return new_w, new_v, after


def adam_numbers_reference(lr, beta1, beta2, eps, step, decay=0.0, decoupled=False):
    of_g, left = (0.0, 1 - lr * decay) if decoupled else (decay, 1.0)
    return lr, beta1, beta2, eps, 1 / (1 - beta1**step), 1 / (1 - beta2**step), of_g, left


# --- CPU --------------------------------------------------------------------------------------------------------------
# Kept columns of a packed gradient are spread over a buffer that stays in the nearest cache. It has one place more than a row,
# where the entries -1 of `cols` end up, and whatever else lies outside a row. Pieces of rows are taken as arrays of their own,
# because their indices are then known not to be negative, and the loops become vector instructions.
@host_function
def _spread(spread, spread_class, g, cols, place, row_class):
    """Row `place` of g, if there is one, into the buffer, which holds one of `spread_class`; returns its class, else -1."""
    row_class = row_class if 0 <= place < g.shape[0] and row_class < cols.shape[0] else -1
    if row_class != spread_class:
        spread[:] = 0
    if row_class >= 0:
        row, kept = g[place], cols[row_class]
        for k in range(kept.size):
            spread[min(np.uint64(kept[k]), np.uint64(spread.size - 1))] = row[k]
    return row_class


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], f4[::1], f4, b1, f4, i8, i8)")
def _sgd(w, v, g, packed, row_pos, row_class, cols, rates, momentum, nesterov, decay, first, stop):
    """Rows first … stop - 1, all of them up to date."""
    lr = rates[0]
    spread, spread_class = np.zeros(w.shape[1] + 1, np.float32), -1
    for r in range(first, stop):
        row, velocity = w[r], v[r]
        if packed:
            spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
        gradient = spread if packed else g[r]
        for c in range(row.size):
            slope = gradient[c] + decay * row[c]
            velocity[c] = momentum * velocity[c] + slope
            row[c] -= lr * (slope + momentum * velocity[c] if nesterov else velocity[c])


# Where the kept columns of a block lie side by side in a packed gradient, they are read there.
@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], i4[:, ::1], f4[::1], f4, b1, f4,"
             " i4[:, ::1], i4[:, ::1], b1[:, ::1], b1[:, ::1], f4[:, ::1], i8, i8, f4[:, ::1], i8[::1])")
def _sgd_blocks(w, v, g, packed, row_pos, row_class, cols, col_pos, rates, momentum, nesterov, decay,
                behind, after, held, wanted, powers, height, width, into, places_into):
    lr = rates[0]
    nothing, spread = np.zeros(w.shape[1], np.float32), np.zeros(w.shape[1] + 1, np.float32)
    spread_class, due = -1, np.empty(behind.shape[1], np.int64)
    for r in range(w.shape[0]):
        u, is_spread = r // height, False
        if r % height == 0:
            count = 0
            for b in range(behind.shape[1]):
                after[u, b] = behind[u, b] + 1
                if held[u, b] or wanted[u, b]:
                    after[u, b], due[count] = 0, b
                    count += 1
        row, velocity, packed_row, places, written = w[r], v[r], nothing, cols[0], 0
        there = packed and 0 <= row_pos[r] < g.shape[0] and 0 <= row_class[r] < cols.shape[0]
        if there:
            packed_row, places = g[row_pos[r]], col_pos[row_class[r]]
        for b in due[:count]:
            c0, c1 = np.uint64(b * width), np.uint64(min((b + 1) * width, w.shape[1]))
            if held[u, b]:
                gradient, offset = nothing, np.uint64(0)
                if not packed:
                    gradient = g[r]
                elif there:
                    first, last = places[c0], places[c1 - np.uint64(1)]
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
                steps = max(min(behind[u, b] + 1, powers.shape[0] - 1), 0)
                ww, wv, vw, vv = powers[steps, 0], powers[steps, 1], powers[steps, 2], powers[steps, 3]
                for c in range(c0, c1):
                    before = row[c]
                    row[c] = ww * before + wv * velocity[c]
                    velocity[c] = vw * before + vv * velocity[c]
            if wanted[u, b] and written + width <= into.shape[1] and 0 <= places_into[r] < into.shape[0]:
                out = into[places_into[r], written:written + width]
                for c in range(c0, c1):
                    out[c - c0] = row[c]
                written += width


_NOWHERE = Into(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
_ALL = Packing(*(np.zeros(0, np.int32),) * 2, *(np.zeros((1, 0), np.int32),) * 2)  # not read under a dense gradient


def _share_rows(update, arrays, g, kept, numbers):
    """The update on each thread's rows of the weight and its state, all of them up to date; of a vector, on its elements."""
    row_pos, row_class, cols, _ = kept or _ALL
    vector = kept is None and arrays[0].shape[0] == 1
    if not threads.worthwhile(arrays[0].size):
        update(*arrays, g, kept is not None, row_pos, row_class, cols, *numbers, 0, arrays[0].shape[0])
        return

    def work(part):
        own = part.of(arrays[0].shape[1 if vector else 0])
        if vector:
            update(*(array[:, own] for array in (*arrays, g)), False, row_pos, row_class, cols, *numbers, 0, 1)
        else:
            update(*arrays, g, kept is not None, row_pos, row_class, cols, *numbers, own.start, own.stop)

    threads.share(work, arrays[0].size)


def sgd_cpu(updates, lr, momentum=0.0, nesterov=False, decay=0.0):
    """g += decay w;  v = momentum v + g;  w -= lr v   (nesterov: w -= lr (g + momentum v)), in place"""
    for update in updates:
        check_update("sgd (cpu)", update)
    rates = full_cpu((1,), lr) if np.isscalar(lr) else lr
    for update in updates:
        _sgd_one(*update, (rates, momentum, nesterov, decay))


def _sgd_one(w, v, g, kept, late, into, numbers):
    if late is None:
        _share_rows(_sgd, (w, v), g, kept, numbers)
        return
    row_pos, row_class, cols, col_pos = kept or _ALL
    *states, powers, block = late
    packed, places = into or _NOWHERE

    def work(part):
        units = part.of(late.behind.shape[0])
        rows = slice(units.start * block[0], units.stop * block[0])
        _sgd_blocks(w[rows], v[rows], g[rows] if kept is None else g, kept is not None, row_pos[rows], row_class[rows],
                    cols, col_pos, *numbers, *(state[units] for state in states), powers, *block, packed, places[rows])

    threads.share(work, w.size)


@host_kernel("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], b1, i4[::1], i4[::1], i4[:, ::1], f4[::1], i8, i8)")
def _adam(w, m, s, g, packed, row_pos, row_class, cols, numbers, first, stop):
    """Rows first … stop - 1."""
    lr, beta1, beta2, eps = numbers[0], numbers[1], numbers[2], numbers[3]
    correct1, correct2, decay, left = numbers[4], numbers[5], numbers[6], numbers[7]
    spread, spread_class = np.zeros(w.shape[1] + 1, np.float32), -1
    for r in range(first, stop):
        if packed:
            spread_class = _spread(spread, spread_class, g, cols, row_pos[r], row_class[r])
        gradient = spread if packed else g[r]
        for c in range(w.shape[1]):
            d = gradient[c] + decay * w[r, c]
            m[r, c] = beta1 * m[r, c] + (float32(1) - beta1) * d
            s[r, c] = beta2 * s[r, c] + (float32(1) - beta2) * d * d
            w[r, c] = left * w[r, c] - lr * (m[r, c] * correct1) / (math.sqrt(s[r, c] * correct2) + eps)


def adam_numbers_cpu(lr, beta1, beta2, eps, step, decay=0.0, decoupled=False, out=None):
    """What `adam` takes in step t.   -> (8,)"""
    if out is None or out.shape != (NUMBERS,):
        out = output("adam_numbers (cpu)", empty_cpu, out, (NUMBERS,))
    out[:] = adam_numbers_reference(lr, beta1, beta2, eps, step, decay, decoupled)
    return out


def adam_cpu(updates, numbers):
    """w -= lr m' / (sqrt(s') + eps) with bias-corrected m', s', in place"""
    expect("adam (cpu)", numbers=(numbers, (NUMBERS,)))
    for update in updates:
        check_update("adam (cpu)", update)
    for *arrays, g, kept in updates:
        _share_rows(_adam, arrays, g, kept, (numbers,))


# --- CUDA -------------------------------------------------------------------------------------------------------------
# Several weights are one launch: each has blocks of its own, and finds out which weight they belong to. All arrays come flat:
# what a kernel takes has to fit into 4 KiB, and an array with two axes is 16 bytes more.
TOGETHER = 6
EACH = 4  # weights a thread
WEIGHTS, LISTS, FLAGS, COUNTS = (f"UniTuple({kind}, {TOGETHER})" for kind in ("f4[::1]", "i4[::1]", "b1[::1]", "i4"))


@kernels("update")
def _updates():
    @kernel(f"void({WEIGHTS}, {WEIGHTS}, {WEIGHTS}, {LISTS}, {LISTS}, {LISTS}, {LISTS}, {LISTS}, {FLAGS}, {FLAGS}, f4[:, ::1],"
            f" f4[::1], {COUNTS}, {COUNTS}, {COUNTS}, {COUNTS}, {COUNTS}, {COUNTS}, f4, b1, f4)")
    def sgd_step(ws, vs, gs, row_places, row_classes, col_places, behinds, afters, helds, wanteds, powers, rates,
                 firsts, widths, g_widths, heights, block_widths, blocks_across, momentum, nesterov, decay):
        """A packed gradient (g_width >= 0) is looked up, zero where the plan kept nothing. Not lazy: blocks of height 0.

        Lazy: a thread whose block is neither held nor wanted leaves its weights alone.
        """
        block = int32(cuda.blockIdx.x)
        k = owner(firsts, block)
        w, v, g, behind, after = chosen(ws, k), chosen(vs, k), chosen(gs, k), chosen(behinds, k), chosen(afters, k)
        row_pos, row_class, col_pos = chosen(row_places, k), chosen(row_classes, k), chosen(col_places, k)
        held, wanted, width, g_width = chosen(helds, k), chosen(wanteds, k), chosen(widths, k), chosen(g_widths, k)
        height, block_width, across = chosen(heights, k), chosen(block_widths, k), chosen(blocks_across, k)
        lr = rates[0]
        first = (block - chosen(firsts, k)) * int32(THREADS * EACH) + int32(cuda.threadIdx.x)
        for j in range(EACH):
            i = int32(first + j * THREADS)
            if i < w.size:
                r, c = i // width, i % width
                missed, due = int32(1), True
                if height > 0:
                    at = (r // height) * across + c // block_width
                    missed, due = behind[at] + int32(1), held[at] or wanted[at]
                    if r % height == 0 and c % block_width == 0:
                        after[at] = int32(0) if due else missed
                if due and missed == 1:
                    place = i
                    if g_width >= 0:
                        row, at = row_pos[r], row_class[r] * width + c
                        col = col_pos[at] if 0 <= at < col_pos.size else int32(-1)
                        place = row * g_width + col if row >= 0 and 0 <= col < g_width else int32(-1)
                    d = decay * w[i]
                    if 0 <= place < g.size:
                        d += g[place]
                    new = momentum * v[i] + d
                    v[i] = new
                    w[i] -= lr * (d + momentum * new if nesterov else new)
                elif due:
                    missed = max(min(missed, int32(powers.shape[0] - 1)), int32(0))
                    before, velocity = w[i], v[i]
                    w[i] = powers[missed, 0] * before + powers[missed, 1] * velocity
                    v[i] = powers[missed, 2] * before + powers[missed, 3] * velocity

    @kernel(f"void({WEIGHTS}, {WEIGHTS}, {WEIGHTS}, {WEIGHTS}, {LISTS}, {LISTS}, {LISTS}, f4[::1], {COUNTS}, {COUNTS},"
            f" {COUNTS})")
    def adam_step(ws, ms, ss, gs, row_places, row_classes, col_places, numbers, firsts, widths, g_widths):
        """A packed gradient (g_width >= 0) is looked up, zero where the plan kept nothing."""
        lr, beta1, beta2, eps = numbers[0], numbers[1], numbers[2], numbers[3]
        correct1, correct2, decay, left = numbers[4], numbers[5], numbers[6], numbers[7]
        block = int32(cuda.blockIdx.x)
        k = owner(firsts, block)
        w, m, s, g, width, g_width = (chosen(ws, k), chosen(ms, k), chosen(ss, k), chosen(gs, k), chosen(widths, k),
                                      chosen(g_widths, k))
        row_pos, row_class, col_pos = chosen(row_places, k), chosen(row_classes, k), chosen(col_places, k)
        first = (block - chosen(firsts, k)) * int32(THREADS * EACH) + int32(cuda.threadIdx.x)
        for j in range(EACH):
            i = int32(first + j * THREADS)
            if i < w.size:
                place = i
                if g_width >= 0:
                    r, c = i // width, i % width
                    row, at = row_pos[r], row_class[r] * width + c
                    col = col_pos[at] if 0 <= at < col_pos.size else int32(-1)
                    place = row * g_width + col if row >= 0 and 0 <= col < g_width else int32(-1)
                d = decay * w[i]
                if 0 <= place < g.size:
                    d += g[place]
                m_new = beta1 * m[i] + (float32(1) - beta1) * d
                s_new = beta2 * s[i] + (float32(1) - beta2) * d * d
                m[i] = m_new
                s[i] = s_new
                w[i] = left * w[i] - lr * (m_new * correct1) / (math.sqrt(s_new * correct2) + eps)

    return sgd_step, adam_step


def _lateness(late):
    """(behind, after, held, wanted), flat, and (rows of a block or 0, columns of a block, blocks across)"""
    if late is None:
        return (unread(np.int32),) * 2 + (unread(np.bool_),) * 2, (0, 1, 1)
    return tuple(map(flat, late[:4])), (*late.block, late.behind.shape[1])


@device_cache(maxsize=256)
def _rate(lr):
    return to_device(np.array([lr], np.float32))


def _together(kernel, weights, shared, numbers):
    """Launch a kernel on weights, each given as (its arrays, its numbers), TOGETHER at a time."""
    for start in range(0, len(weights), TOGETHER):
        some = weights[start:start + TOGETHER]
        blocks = [ceil_div(arrays[0].size, THREADS * EACH) for arrays, _ in some]
        some = some + some[-1:] * (TOGETHER - len(some))  # these get no blocks
        firsts = [sum(blocks[:i]) if i < len(blocks) else sum(blocks) for i in range(TOGETHER)]
        arrays, facts = (tuple(zip(*parts, strict=True)) for parts in zip(*some, strict=True))
        launch(kernel, sum(blocks), THREADS, *arrays, *shared, tuple(firsts), *facts, *numbers)


def sgd_cuda(updates, lr, momentum=0.0, nesterov=False, decay=0.0):
    weights, powers = [], None
    for update in updates:
        check_update("sgd (cuda)", update)
    for w, v, g, kept, late, _ in updates:
        (lists, widths), (states, facts) = packing(w, g, kept), _lateness(late)
        powers = powers if late is None else late.powers
        if w.size:
            weights.append(((flat(w), flat(v), flat(g), *lists, *states), (*widths, *facts)))
    shared = unread(np.float32, 2) if powers is None else powers, _rate(float(lr)) if np.isscalar(lr) else lr
    _together(_updates()[0], weights, shared, (momentum, nesterov, decay))


def adam_numbers_cuda(lr, beta1, beta2, eps, step, decay=0.0, decoupled=False, out=None):
    out = output("adam_numbers (cuda)", empty_cuda, out, (NUMBERS,))
    return copy_cuda(np.float32(adam_numbers_reference(lr, beta1, beta2, eps, step, decay, decoupled)), out)


def adam_cuda(updates, numbers):
    expect("adam (cuda)", numbers=(numbers, (NUMBERS,)))
    weights = []
    for update in updates:
        check_update("adam (cuda)", update)
    for w, m, s, g, kept in updates:
        lists, widths = packing(w, g, kept)
        if w.size:
            weights.append(((flat(w), flat(m), flat(s), flat(g), *lists), widths))
    _together(_updates()[1], weights, (numbers,), ())


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    return {
        "sgd": lambda: dev.sgd([SGDUpdate(a(O, I), a(O, I), a(O, I))], 0.1, 0.9),
        "sgd, packed": lambda: dev.sgd([SGDUpdate(a(O, I), a(O, I), *packed_example(a, O, I))], 0.1, 0.9),
        "sgd, late": lambda: dev.sgd([SGDUpdate(a(O, I), a(O, I), *packed_example(a, O, I), late_example(a, O, I))], 0.1, 0.9),
        "adam": lambda: dev.adam([AdamUpdate(a(O, I), a(O, I), a(O, I, above=0.1), *packed_example(a, O, I))],
                                 np.float32(adam_numbers_reference(0.1, 0.9, 0.999, 1e-8, 3))),
        "adam_numbers": lambda: dev.adam_numbers(0.1, 0.9, 0.999, 1e-8, 3, 0.01, True),
    }
