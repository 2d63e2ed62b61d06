"""Updates on CUDA."""

from __future__ import annotations

import math

import numpy as np
from numba import int32

from ...blocks.intrinsics import chosen, owner
from ...runtime.arrays import device_cache, to_device
from ...runtime.declare import cuda, inlined, kernel, kernels
from ...runtime.expect import expect
from ...runtime.launch import ceil_div, launch
from ...runtime.memory import THREADS, flat
from .family import NUMBERS
from .packed import check_update, packing, unread

# One launch updates several weights: each has its own blocks, which look up their weight. All arrays are flat, because kernel
# arguments must fit into 4 KiB and a second axis takes 16 bytes more.
TOGETHER = 6
EACH = 4  # number of weights per thread; a guess, not tuned on a device


def _groups(kind, count):
    """Return Numba's type of `count` groups of arguments; a group is a tuple with one argument for each weight of a launch."""
    return f"UniTuple(UniTuple({kind}, {TOGETHER}), {count})"


FIRSTS = f"UniTuple(i4, {TOGETHER})"


def _gradient():
    """Return the device function `gradient`; each factory makes its own (`inlined`)."""

    @inlined
    def gradient(w, g, lists, width, g_width, i, r, c, decay):
        """Return decay w[i] + the gradient of w[i]. If g_width is -1, g is dense and read at index i; else g is packed and read
        for row r and column c of the weight.
        """
        index = i
        if g_width >= 0:
            row_pos, row_class, col_pos = lists
            row, at = row_pos[r], row_class[r] * width + c
            col = col_pos[at] if 0 <= at < col_pos.size else int32(-1)
            index = row * g_width + col if row >= 0 and 0 <= col < g_width else int32(-1)
        d = decay * w[i]
        if 0 <= index < g.size:
            d += g[index]
        return d

    return gradient


@kernels("update")
def _sgd_kernel():
    gradient = _gradient()

    @kernel(
        f"void({_groups('f4[::1]', 3)}, {_groups('i4[::1]', 5)}, {_groups('b1[::1]', 2)}, f4[:, ::1], f4[::1], {FIRSTS},"
        f" {_groups('i4', 5)}, f4, b1, f4)"
    )
    def sgd_step(weights, lists, flags, powers, rates, firsts, sizes, momentum, nesterov, decay):
        """Make an SGD step for up to TOGETHER weights. If there is no packed gradient, g_width is -1; if there are no lazy
        blocks, the height of a block is 0. A thread whose block is neither current nor wanted leaves its weights unchanged.
        """
        block, lr = int32(cuda.blockIdx.x), rates[0]
        k = owner(firsts, block)
        (w, v, g), (row_pos, row_class, col_pos, lag, after) = chosen(weights, k), chosen(lists, k)
        (current, wanted), (width, g_width, height, block_width, across) = chosen(flags, k), chosen(sizes, k)
        first = (block - chosen((firsts,), k)[0]) * int32(THREADS * EACH) + int32(cuda.threadIdx.x)
        for j in range(EACH):
            i = int32(first + j * THREADS)
            if i < w.size:
                r, c, missed, due = i // width, i % width, int32(1), True
                if height > 0:
                    at = (r // height) * across + c // block_width
                    missed, due = lag[at] + int32(1), current[at] or wanted[at]
                    if r % height == 0 and c % block_width == 0:
                        after[at] = int32(0) if due else missed
                if due and missed == 1:
                    d = gradient(w, g, (row_pos, row_class, col_pos), width, g_width, i, r, c, decay)
                    new = momentum * v[i] + d
                    v[i] = new
                    w[i] -= lr * (d + momentum * new if nesterov else new)
                elif due:
                    missed = max(min(missed, int32(powers.shape[0] - 1)), int32(0))
                    before, velocity = w[i], v[i]
                    w[i] = powers[missed, 0] * before + powers[missed, 1] * velocity
                    v[i] = powers[missed, 2] * before + powers[missed, 3] * velocity

    return sgd_step


@kernels("update")
def _adam_kernel():
    gradient = _gradient()

    @kernel(f"void({_groups('f4[::1]', 4)}, {_groups('i4[::1]', 3)}, f4[::1], {FIRSTS}, {_groups('i4', 2)})")
    def adam_step(weights, lists, numbers, firsts, sizes):
        """Make an Adam step for up to TOGETHER weights. If there is no packed gradient, g_width is -1."""
        lr, beta1, beta2, eps = numbers[0], numbers[1], numbers[2], numbers[3]
        correct1, correct2, decay, left = numbers[4], numbers[5], numbers[6], numbers[7]
        new1, new2 = numbers[8], numbers[9]  # 1 - beta1 and 1 - beta2, which float32 betas near 1 do not give
        block = int32(cuda.blockIdx.x)
        k = owner(firsts, block)
        (w, m, s, g), of_g, (width, g_width) = chosen(weights, k), chosen(lists, k), chosen(sizes, k)
        first = (block - chosen((firsts,), k)[0]) * int32(THREADS * EACH) + int32(cuda.threadIdx.x)
        for j in range(EACH):
            i = int32(first + j * THREADS)
            if i < w.size:
                r, c = (i // width, i % width) if g_width >= 0 else (i, i)
                d = gradient(w, g, of_g, width, g_width, i, r, c, decay)
                m_new = beta1 * m[i] + new1 * d
                s_new = beta2 * s[i] + new2 * d * d
                m[i] = m_new
                s[i] = s_new
                w[i] = left * w[i] - lr * (m_new * correct1) / (math.sqrt(s_new * correct2) + eps)

    return adam_step


def _lazy_lists(lazy):
    """Return ((lag, after), (current, wanted)) as flat arrays, and (rows of a block, columns of a block, blocks across). If
    `lazy` is None, a block has 0 rows.
    """
    if lazy is None:
        return (unread(np.int32),) * 2, (unread(np.bool_),) * 2, (0, 1, 1)
    lag, after, current, wanted = map(flat, lazy[:4])
    return (lag, after), (current, wanted), (*lazy.block, lazy.lag.shape[1])


@device_cache(maxsize=256)
def _rate(lr):
    return to_device(np.array([lr], np.float32))


def _together(kernel, weights, shared, numbers):
    """Launch a kernel on weights, up to TOGETHER in a launch. Each weight is given as (groups of arrays, sizes)."""
    for start in range(0, len(weights), TOGETHER):
        some = weights[start : start + TOGETHER]
        blocks = [ceil_div(arrays[0].size, THREADS * EACH) for arrays, *_ in some]
        some = some + some[-1:] * (TOGETHER - len(some))  # the list is padded; weights of the padding get no blocks
        firsts = [sum(blocks[:i]) if i < len(blocks) else sum(blocks) for i in range(TOGETHER)]
        *groups, sizes = (tuple(zip(*parts, strict=True)) for parts in zip(*some, strict=True))
        launch(kernel, sum(blocks), THREADS, *groups, *shared, tuple(firsts), sizes, *numbers)


def sgd_cuda(updates, lr, momentum=0.0, nesterov=False, decay=0.0):
    weights, powers = [], None
    for update in updates:
        check_update("sgd (cuda)", update)
    for w, v, g, packed_as, lazy, _ in updates:
        (lists, widths), (lags, flags, sizes) = packing(w, g, packed_as), _lazy_lists(lazy)
        powers = powers if lazy is None else lazy.powers
        if w.size:
            weights.append(((flat(w), flat(v), flat(g)), (*lists, *lags), flags, (*widths, *sizes)))
    shared = unread(np.float32, 2) if powers is None else powers, _rate(float(lr)) if np.isscalar(lr) else lr
    _together(_sgd_kernel(), weights, shared, (momentum, nesterov, decay))


def adam_cuda(updates, numbers):
    expect("adam (cuda)", numbers=(numbers, (NUMBERS,)))
    weights = []
    for update in updates:
        check_update("adam (cuda)", update)
    for w, m, s, g, packed_as in updates:
        lists, widths = packing(w, g, packed_as)
        if w.size:
            weights.append(((flat(w), flat(m), flat(s), flat(g)), lists, widths))
    _together(_adam_kernel(), weights, (numbers,), ())
